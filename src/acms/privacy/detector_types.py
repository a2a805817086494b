"""The types that detectors share: names of secrets, findings, and the limit on the work for one text."""

from __future__ import annotations

from typing import NamedTuple


class Detection(NamedTuple):
    """A sensitive span of a text, before overlaps are merged."""

    start: int
    end: int
    kind: str


class Name(NamedTuple):
    """A name of a secret, its position, and the kind of the secret."""

    start: int
    #: Offset after the identifier that contains it.
    end: int
    kind: str
    #: The word itself, in lower case.
    word: str
    #: The rest of its identifier.
    suffix: str = ""
    #: Whether its value must look random: true for "key" after any word, which often is no secret ("primary key").
    must_look_random: bool = False
    #: Form of its value in a sentence: "code" (digits), "stated code" (digits after a verb), "login" (a name and a
    #: password), "phrase" (words), "" (any).
    form: str = ""


class ScanBudgetExceeded(Exception):
    """A text took more work than any text of its length should."""


class ScanBudget:
    """A limit on the work for one text, in characters, counted before detectors read them.

    Detectors are linear, so no text should come near the limit; a text that exceeds it is removed whole.
    """

    #: Characters that may be read for each character of the text, and in addition for any text, however short.
    PER_CHARACTER = 400
    AT_LEAST = 400_000

    def __init__(self, size: int) -> None:
        self.remaining = self.AT_LEAST + self.PER_CHARACTER * size

    def spend(self, characters: int) -> None:
        """Count characters that are about to be read; raise `ScanBudgetExceeded` above the limit."""
        self.remaining -= characters
        if self.remaining < 0:
            raise ScanBudgetExceeded
