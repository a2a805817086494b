"""What detectors look for and return, and how much work they may do on a text."""

from __future__ import annotations

from typing import NamedTuple


class Found(NamedTuple):
    """A sensitive stretch of a text, before overlaps are settled."""

    start: int
    end: int
    kind: str


class Name(NamedTuple):
    """A name of something secret, where it stands and what it is of."""

    start: int
    #: Offset after all that belongs to the identifier it stands in.
    end: int
    kind: str
    #: The word itself, in lower case.
    word: str
    #: What follows it in its identifier.
    rest: str = ""
    #: Whether its value must look drawn at random: of a key of which only is said whose it is.
    drawn: bool = False
    #: Form of its value in a sentence: "code" (digits), "stated code" (digits after a verb), "login" (a name and a
    #: password), "phrase" (words), "" (any).
    form: str = ""


class Exhausted(Exception):
    """A text took more work than any text of its length should."""


class Work:
    """The work that one text may take: characters that detectors read of it, counted before they read them.

    Detectors are linear, so that no text should come near the limit; one that does is stopped and taken out whole.
    """

    PER_CHARACTER = 400
    AT_LEAST = 400_000

    def __init__(self, size: int) -> None:
        self.left = self.AT_LEAST + self.PER_CHARACTER * size

    def spend(self, characters: int) -> None:
        """Count characters that are about to be read; raise when there were too many."""
        self.left -= characters
        if self.left < 0:
            raise Exhausted
