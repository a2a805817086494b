"""One word, one thing: modules, classes and functions are named in the words of the field."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pytest

from tests.conventions.code import ROOT, module_files

#: Retired words, and what is said instead.
RETIRED = {
    "aim": "query framing",
    "aside": "off the event loop, concurrent",
    "beside": "off the event loop, concurrent",
    "card": "index record",
    "cellar": "infrastructure",
    "ceo": "caller",
    "certainty": "retrieval confidence",
    "house": "package",
    "lead": "speaker margin",
    "letter": "append request",
    "mailbox": "write queue",
    "noise": "score cutoff",
    "offer": "candidates",
    "porch": "interfaces",
    "reach": "idf coverage",
    "room": "package, budget",
    "said": "message",
    "shown": "rendered",
    "stale": "superseded",
    "standing": "summary coverage",
    "succession": "correction detection",
    "told": "message, reply",
    "unit": "atomic group",
    "workshop": "domain",
}
#: Names that mean something else by the word (alphabets, bank cards, measures, sizes), and public names.
OTHERWISE = {
    "card": "privacy.personal_data.find_card_numbers",
    "ceo": "contract.caller.CEO",
    "certainty": """
        results.Certainty results.certainty
    """,
    "letter": """
        contract.schema.letters
       
    """,
    "noise": "acms_eval.scenarios.pressure.noise_injection",
    "reach": "prompt.summaries.reach",
    "said": "acms_eval.nouns.Said",
    "stale": "acms_eval.metrics.stale acms_eval.metrics.stale_anywhere",
    "unit": """
        contract.caller_cache.units
    """,
}
#: Names that are still to be changed. This list only shrinks.
STILL: dict[str, str] = {}


def _words_of_name(name: str) -> set[str]:
    parts = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)
    return {part.lower() for part in parts} | {part.lower().removesuffix("s") for part in parts}


_DEFINED = re.compile(r"^ *(?:async def|def|class) (?!test_)(\w+)", re.MULTILINE)
"""Tests of the suites that ACMS ships are sentences, and left out."""


@cache
def _words_of_names() -> list[tuple[set[str], str]]:
    """Return the words of every name, with where it stands: `({"mailbox"}, "write.queue.Mailbox")`."""
    found: list[tuple[set[str], str]] = []
    for module, file in module_files().items():
        found.append((_words_of_name(module.rpartition(".")[2]), module))
        for name in _DEFINED.findall(file.read_text(encoding="utf-8")):
            found.append((_words_of_name(name), f"{module}.{name}"))
    return found


@pytest.mark.parametrize("word", RETIRED)
def test_names_use_the_words_of_the_field(word: str) -> None:
    found = {place for words, place in _words_of_names() if word in words}
    listed = [*OTHERWISE.get(word, "").split(), *STILL.get(word, "").split()]
    assert len(listed) == len(set(listed))
    assert not found - set(listed), f"say {RETIRED[word]}"
    assert not set(listed) - found, "not there any more: take it off the list"


#: Words that no page has in any sense, and numbers of documents that a reader does not have.
_NOT_ON_A_PAGE = re.compile(
    r"\b(?:porch|cellar|mailbox(?:es)?|living rooms?|house rules?|seeds? 00\d)\b", re.IGNORECASE
)
#: Modules that still do.
MODULES_STILL = {
    "src/acms/session.py",
    "src/acms/write/episodes.py",
}


def _with_such_words(pages: Iterable[Path]) -> set[str]:
    return {
        page.relative_to(ROOT).as_posix()
        for page in pages
        if _NOT_ON_A_PAGE.search(page.read_text(encoding="utf-8"))
    }


def test_pages_use_the_words_of_the_field() -> None:
    folders = ("docs", "docs/how-to", "docs/reference")
    pages = [*ROOT.glob("*.md"), *[page for folder in folders for page in ROOT.glob(f"{folder}/*.md")]]
    assert not _with_such_words(pages)


def test_docstrings_use_the_words_of_the_field() -> None:
    folders = ("src", "packages", "tests", "benchmarks", "examples")
    files = [file for folder in folders for file in (ROOT / folder).rglob("*.py") if file != Path(__file__)]
    assert _with_such_words(files) == MODULES_STILL
