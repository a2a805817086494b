"""Terms: which words count, in which form, and that a number is all there is to them."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acms.core.chain import micros
from acms.core.terms import BITS, day_terms, term, terms, words


def of(text: str) -> list[int]:
    return terms(words(text))


@given(st.text(max_size=60))
def test_terms_are_numbers_of_24_bits_for_any_text(text: str) -> None:
    found = of(text)
    assert all(0 < number < 1 << BITS for number in found)
    assert bool(found) == bool(words(text))
    assert len(found) <= len(words(text))
    assert found == of(text)


@pytest.mark.parametrize(
    "texts",
    [
        ("deploy", "deploys", "deployed", "deploying", "DEPLOY"),
        ("database", "databases", "Database's"),
        ("choice", "choices"),
        ("buy", "bought", "buying"),
        ("go", "went", "gone"),
        ("child", "children"),
        ("Größe", "größe", "GRÖßE"),
        ("überprüft", "ÜBERPRÜFT"),
    ],
)
def test_words_meet_in_all_their_forms(texts: tuple[str, ...]) -> None:
    assert len({tuple(of(text)) for text in texts}) == 1


@pytest.mark.parametrize("text", ["données", "数据库", "база", "قاعدة", "データ", "42", "v2", "snake_case"])
def test_words_of_other_scripts_and_numbers_are_words(text: str) -> None:
    assert len(of(text)) == 1
    assert of(f"{text}, {text}!") == of(text) * 2


def test_stop_words_do_not_count_beside_others() -> None:
    assert of("what did we choose for the orders") == of("choose orders")
    assert term("the") == term("what") == 0


def test_a_text_of_stop_words_only_keeps_them_all() -> None:
    found = of("to be or not to be")
    assert len(found) == 6
    assert found[:2] == found[4:] == of("to be")
    assert len(set(found)) == 4


def test_the_order_and_the_repetition_of_words_are_kept() -> None:
    orders, database = of("orders")[0], of("database")[0]
    assert of("orders database orders") == [orders, database, orders]


@pytest.mark.parametrize("text", ["", "   ", "?!", "🙂", "…\n\t"])
def test_a_text_without_a_word_has_no_term(text: str) -> None:
    assert of(text) == []


@pytest.mark.parametrize(
    ("moment", "said"),
    [
        (datetime(2026, 3, 14, 23, 59, tzinfo=UTC), "14 March 2026"),
        (datetime(1970, 1, 1, tzinfo=UTC), "1 January 1970"),
        (datetime(1969, 12, 31, 23, 59, tzinfo=UTC), "31 December 1969"),
        (datetime(1815, 6, 18, tzinfo=UTC), "18 June 1815"),
        (datetime(2024, 2, 29, tzinfo=UTC), "29 February 2024"),
    ],
)
def test_a_day_is_found_by_the_words_of_its_date(moment: datetime, said: str) -> None:
    assert list(day_terms(micros(moment) // 86_400_000_000)) == of(said)


def test_may_and_march_are_words_of_a_date() -> None:
    assert of("in May")[-1] in day_terms(micros(datetime(2026, 5, 1, tzinfo=UTC)) // 86_400_000_000)


@pytest.mark.parametrize("day", [-(10**9), 10**9])
def test_days_that_no_calendar_has_do_not_fail(day: int) -> None:
    assert len(day_terms(day)) == 3


def test_threads_stem_side_by_side() -> None:
    """A recall in a thread reads words while the event loop writes cards."""
    stems = [
        f"{head}{tail}" for head in ("relat", "nationaliz", "hop", "gener") for tail in ("ing", "ational")
    ]
    everything = [f"{stem}{number}ing" for number in range(60) for stem in stems]
    expected = [term.__wrapped__(word) for word in everything]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(lambda _: [term.__wrapped__(word) for word in everything], range(4)))
    finally:
        sys.setswitchinterval(before)
    assert all(one == expected for one in found)
