"""Find the new messages in lists that repeat the earlier ones, as every request to a model does."""

from __future__ import annotations

from collections.abc import Sequence

from acms.branches.importers.conversation import digest_text
from acms.log.provider_messages import Turn


class Repeats:
    """The messages of one conversation's lists so far, as digests."""

    def __init__(self) -> None:
        self._digests: list[bytes] = []

    def take_new(self, turns: Sequence[Turn]) -> list[Turn]:
        """Return the new messages of the next list, each with a key made of its position and content.

        A list begins with messages that the earlier lists had. A program may have trimmed the oldest of them, so the
        list begins with the *last* messages so far.
        """
        digests = [_digest_turn(turn) for turn in turns]
        repeated_count = self._count_repeated(digests)
        new_turns: list[Turn] = []
        for turn, digest in zip(turns[repeated_count:], digests[repeated_count:], strict=True):
            new_turns.append({**turn, "key": f"{len(self._digests)}-{digest.hex()[:12]}"})
            self._digests.append(digest)
        return new_turns

    def _count_repeated(self, digests: Sequence[bytes]) -> int:
        """Return the number of messages at the beginning of a list that are equal to the last messages so far."""
        previous = self._digests
        for start in range(max(0, len(previous) - len(digests)), len(previous)):
            overlap = len(previous) - start
            if previous[start:] == digests[:overlap]:
                return overlap
        # A program that trims its messages keeps the system message at the start of the list.
        return 1 if len(digests) > 1 and previous[:1] == digests[:1] else 0


def _digest_turn(turn: Turn) -> bytes:
    """Return the digest of a message without its key and time."""
    content = (turn["role"], turn.get("content"), turn.get("parts"), turn.get("tool_call_id"))
    return digest_text(repr(content))
