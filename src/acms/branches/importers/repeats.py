"""Find the new messages in lists that repeat the earlier ones, as every request to a model does."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

from acms.log.foreign import Turn

__all__ = ["Repeats"]


class Repeats:
    """The messages of one conversation's lists so far, as digests."""

    def __init__(self) -> None:
        self._digests: list[bytes] = []

    def take_new(self, turns: Sequence[Turn]) -> list[Turn]:
        """Return the messages of the next list behind those that it repeats, each with a key made of its place.

        The list may begin later than the one before, where it was trimmed; then its beginning is the end of that.
        """
        digests = [_digest_turn(turn) for turn in turns]
        known = self._count_known(digests)
        found: list[Turn] = []
        for turn, digest in zip(turns[known:], digests[known:], strict=True):
            found.append({**turn, "key": f"{len(self._digests)}-{digest.hex()[:12]}"})
            self._digests.append(digest)
        return found

    def _count_known(self, digests: Sequence[bytes]) -> int:
        """Return how many messages of a list, from its first on, are the last ones so far."""
        before = self._digests
        for start in range(max(0, len(before) - len(digests)), len(before)):
            if before[start:] == digests[: len(before) - start]:
                return len(before) - start
        # A system message at the start of every request stands before the trimmed rest.
        return 1 if before and digests and before[0] == digests[0] and len(digests) > 1 else 0


def _digest_turn(turn: Turn) -> bytes:
    """Return the digest of what a message says, whatever its key and time."""
    said = (turn["role"], turn.get("content"), turn.get("parts"), turn.get("tool_call_id"))
    return blake2b(repr(said).encode("utf-8", "surrogatepass"), digest_size=16).digest()
