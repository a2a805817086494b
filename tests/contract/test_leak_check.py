"""Names that quote a text: twenty characters in a row reveal it, wherever they stand."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from acms.contract.kv_policy import QUOTE_CHARS, find_quoting_keys

TEXT = "The orders are moved by night, and nobody at all is told about it in time."


def find_naively(texts: list[str], name: str) -> bool:
    """Say the same by looking for every stretch in every text."""
    return any(
        name[at : at + QUOTE_CHARS] in text for text in texts for at in range(len(name) - QUOTE_CHARS + 1)
    )


def test_every_stretch_of_a_text_gives_it_away_and_a_shorter_one_does_not() -> None:
    for at in range(len(TEXT) - QUOTE_CHARS + 1):
        whole = f"id:{TEXT[at : at + QUOTE_CHARS]}#1"
        shorter = f"id:{TEXT[at : at + QUOTE_CHARS - 1]}~{'#' * QUOTE_CHARS}"
        assert find_quoting_keys([whole, shorter], [TEXT]) == {whole}


@given(st.lists(st.text("ab ", max_size=60), max_size=4), st.text("ab ", max_size=50), st.randoms())
def test_it_says_what_a_search_for_every_stretch_says(
    texts: list[str], name: str, rng: random.Random
) -> None:
    if texts and rng.random() < 0.5:
        text = rng.choice(texts)
        start = rng.randint(0, len(text))
        name = name[:10] + text[start : start + rng.randint(15, 25)] + name[10:]
    assert bool(find_quoting_keys([name], texts)) == find_naively(texts, name)


def test_a_text_made_to_be_slow_is_searched_like_any_other() -> None:
    rng = random.Random(1)
    text = "".join("a" * 10 + chr(rng.randrange(0x100, 0x2000)) for _ in range(20_000))
    quoting, other = text[5000:5025], "a" * 10 + "c" * 10
    assert find_quoting_keys([quoting, other], [text]) == {quoting}


def test_without_texts_there_is_nothing_to_give_away() -> None:
    assert not find_quoting_keys([TEXT], [])
    assert not find_quoting_keys([TEXT], ["", "short"])
