"""Find the new messages in lists that repeat the earlier ones, as every request to a model does."""

from __future__ import annotations

from collections.abc import Sequence

from acms.branches.importers.conversation import digest_text
from acms.log.foreign import Turn

__all__ = ["Repeats"]


class Repeats:
    """The messages of one conversation's lists so far, as digests."""

    def __init__(self) -> None:
        self._digests: list[bytes] = []

    def take_new(self, turns: Sequence[Turn]) -> list[Turn]:
        """Return the messages of the next list after those that it repeats, each with a key made of its position.

        The list may begin later than the one before, where it was trimmed; then its beginning is the end of that.
        """
        digests = [_digest_turn(turn) for turn in turns]
        known = self._count_known(digests)
        new: list[Turn] = []
        for turn, digest in zip(turns[known:], digests[known:], strict=True):
            new.append({**turn, "key": f"{len(self._digests)}-{digest.hex()[:12]}"})
            self._digests.append(digest)
        return new

    def _count_known(self, digests: Sequence[bytes]) -> int:
        """Return how many messages of a list, from its first on, are the last ones so far."""
        previous = self._digests
        for start in range(max(0, len(previous) - len(digests)), len(previous)):
            overlap = len(previous) - start
            if previous[start:] == digests[:overlap]:
                return overlap
        # A system message at the start of every request is before the trimmed rest.
        return 1 if len(digests) > 1 and previous[:1] == digests[:1] else 0


def _digest_turn(turn: Turn) -> bytes:
    """Return the digest of a message without its key and time."""
    content = (turn["role"], turn.get("content"), turn.get("parts"), turn.get("tool_call_id"))
    return digest_text(repr(content))
