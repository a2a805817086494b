"""Windows: whether a name gives away a text, by so many of its characters in a row.

A stretch of `WINDOW` characters holds one of `GRAM` that begins at a multiple of `STRIDE`, wherever it starts. So only
those of the texts are remembered, and looked up for every place of a name.
"""

from __future__ import annotations

from collections.abc import Iterable

WINDOW = 20
"""Characters in a row that give away a text."""
GRAM = 10
STRIDE = WINDOW - GRAM + 1
MOST = 64
"""Places of one gram that are compared; a text made to have more gives itself away."""


class Windows:
    """Texts of which nothing may be told."""

    def __init__(self, texts: Iterable[str]) -> None:
        #: By gram, what stands around it: up to `GRAM` characters on either side.
        self._around: dict[str, set[tuple[str, str]]] = {}
        for text in texts:
            for at in range(0, len(text) - GRAM + 1, STRIDE):
                found = self._around.setdefault(text[at : at + GRAM], set())
                if len(found) <= MOST:
                    found.add((text[max(0, at - GRAM) : at], text[at + GRAM : at + 2 * GRAM]))

    def __bool__(self) -> bool:
        """Whether there is any text."""
        return bool(self._around)

    def give_away(self, name: str) -> bool:
        """Whether a name holds `WINDOW` characters in a row of a text."""
        if len(name) < WINDOW or not self._around:
            return False
        for at in range(len(name) - GRAM + 1):
            around = self._around.get(name[at : at + GRAM])
            if around is None:
                continue
            before, after = name[max(0, at - GRAM) : at], name[at + GRAM : at + 2 * GRAM]
            if len(around) > MOST or any(
                _same(reversed(left), reversed(before)) + _same(right, after) >= WINDOW - GRAM
                for left, right in around
            ):
                return True
        return False


def _same(one: Iterable[str], other: Iterable[str]) -> int:
    """Return how many characters two texts have in common at their start."""
    count = 0
    for left, right in zip(one, other, strict=False):
        if left != right:
            break
        count += 1
    return count
