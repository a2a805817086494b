"""Terms: which words count, in which form, and that a number is all there is to them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acms.log.encoding import to_microseconds
from acms.text import tokenizer
from acms.text.tokenizer import (
    BITS,
    LONGEST,
    content_term,
    content_terms,
    count_terms,
    day_terms,
    find_names,
    primary_term,
    remove_function_words,
    searchable_terms,
    split_words,
)


def terms_of_text(text: str) -> list[int]:
    return content_terms(split_words(text))


@given(st.text(max_size=60))
def test_terms_are_numbers_of_24_bits_for_any_text(text: str) -> None:
    found = terms_of_text(text)
    assert all(0 < number < 1 << BITS for number in found)
    assert bool(found) == bool(split_words(text))
    assert len(found) <= len(split_words(text))
    assert found == terms_of_text(text)


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
    assert len({tuple(terms_of_text(text)) for text in texts}) == 1


@pytest.mark.parametrize("text", ["données", "база", "قاعدة", "数据", "42", "v2", "snake_case"])
def test_words_of_other_scripts_and_numbers_are_words(text: str) -> None:
    assert len(terms_of_text(text)) == 1
    assert terms_of_text(f"{text}, {text}!") == terms_of_text(text) * 2


def test_stop_words_do_not_count_beside_others() -> None:
    assert terms_of_text("what did we choose for the orders") == terms_of_text("choose orders")
    assert content_term("the") == content_term("what") == 0


def test_a_text_of_stop_words_only_keeps_them_all() -> None:
    found = terms_of_text("to be or not to be")
    assert len(found) == 6
    assert found[:2] == found[4:] == terms_of_text("to be")
    assert len(set(found)) == 4


def test_the_order_and_the_repetition_of_words_are_kept() -> None:
    orders, database = terms_of_text("orders")[0], terms_of_text("database")[0]
    assert terms_of_text("orders database orders") == [orders, database, orders]


@pytest.mark.parametrize("text", ["", "   ", "?!", "🙂", "…\n\t"])
def test_a_text_without_a_word_has_no_term(text: str) -> None:
    assert terms_of_text(text) == []


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
    assert list(day_terms(to_microseconds(moment) // 86_400_000_000)) == terms_of_text(said)


def test_may_and_march_are_words_of_a_date() -> None:
    assert terms_of_text("in May")[-1] in day_terms(
        to_microseconds(datetime(2026, 5, 1, tzinfo=UTC)) // 86_400_000_000
    )


@pytest.mark.parametrize("day", [-(10**9), 10**9])
def test_days_that_no_calendar_has_do_not_fail(day: int) -> None:
    assert len(day_terms(day)) == 3


@given(st.lists(st.sampled_from("the of to boat boats garden gardening 40 é".split()), max_size=40))
def test_a_tally_counts_the_terms_in_the_order_of_the_words(said: list[str]) -> None:
    assert [one for one in count_terms(said).items() if one[1]] == list(
        Counter(map(primary_term, said)).items()
    )


def test_a_word_that_was_forgotten_has_the_same_term_again(monkeypatch: pytest.MonkeyPatch) -> None:
    said = [f"{word}s" for word in ("order", "invoice", "queue", "host", "lathe", "printer")]
    expected = list(map(primary_term, said))
    monkeypatch.setattr(tokenizer, "_KNOWN", 2)
    primary_term("never seen before")  # what is known is over the limit: all of it is forgotten
    assert list(map(primary_term, said * 2)) == expected * 2


def test_threads_stem_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    """A recall in a thread reads words while the event loop writes index records."""
    stems = [
        f"{head}{tail}" for head in ("relat", "nationaliz", "hop", "gener") for tail in ("ing", "ational")
    ]
    everything = [f"{stem}{number}ing" for number in range(60) for stem in stems]
    monkeypatch.setattr(tokenizer, "_KNOWN", 16)  # so that the threads stem, too
    expected = list(map(primary_term, everything))
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(lambda _: list(map(primary_term, everything)), range(4)))
    finally:
        sys.setswitchinterval(before)
    assert all(one == expected for one in found)


# ── names ───────────────────────────────────────────────────────────────────────────────────────────────────────────

#: A text, and what finds it: whole, and by parts.
NAMED = [
    ("see user_id there", ["user_id", "user", "id"]),
    ("call getUserById now", ["getUserById", "getuserbyid", "user", "id"]),
    ("the HTTPServer2 is up", ["HTTPServer2", "httpserver2", "http", "server"]),
    ("edit src/acms/core/rank.py, please", ["src/acms/core/rank.py", "rank.py", "rank", "acms", "core"]),
    ("it is C:\\Users\\sam\\notes.txt", ["C:\\Users\\sam\\notes.txt", "notes.txt", "notes"]),
    ("released v1.2.3.", ["v1.2.3", "v1"]),
    ("ping 10.0.0.12!", ["10.0.0.12", "10", "12"]),
    ("use (foo-bar)", ["foo-bar", "foo", "bar", "Foo-Bar"]),
    ("we write C++, not C#", ["C++", "C#", "c++", "c"]),
    ("with node.js today", ["node.js", "Node.js", "node"]),
    ("it costs $48,000 a year", ["$48,000", "48000", "48k", "48K"]),
    ("it costs 48k a year", ["48k", "48,000", "48000", "$48,000"]),
    ("it costs 1.5M a year", ["1.5M", "1,500,000", "1500000"]),
    ("write to sam.lee@example.com", ["sam.lee@example.com", "example.com", "sam.lee", "sam", "lee"]),
    ("https://docs.example.com/guide/intro.html", ["docs.example.com", "intro.html", "guide", "example"]),
    ("fixed in ACMS-123 today", ["ACMS-123", "acms-123", "acms", "123"]),
    ("due on 2026-03-14", ["2026-03-14", "March 14", "14 March 2026", "2026"]),
    ("due on 14.3.2026", ["14.3.2026", "March 14"]),
    ("my café is open", ["café", "cafe", "CAFÉ", "cafe\u0301"]),
    ("the re\u0301sume\u0301 is here", ["résumé", "resume", "re\u0301sume\u0301"]),
    ("Größe und Øresund", ["große", "GRÖSSE", "Oresund"]),
    ("ещё один", ["еще", "ещё"]),
    ("我养了一只猫，名字叫小白", ["猫", "名字", "小白", "一只猫"]),
    ("データベースを使う", ["データ", "ベース", "使う", "データベース"]),
    ("고양이가 좋아요", ["고양이", "좋아"]),
    ("使用Python开发", ["python", "开发", "使用"]),
    ("แมวของฉันชื่อ", ["แมว", "ชื่อ"]),
    ("हिन्दी में", ["हिन्दी"]),
    ("code ＡＢＣ１２３", ["abc123", "ＡＢＣ１２３"]),
]  # fmt: skip


@pytest.mark.parametrize(("text", "asked"), NAMED, ids=[text for text, _ in NAMED])
def test_a_name_is_found_whole_and_by_its_parts(text: str, asked: list[str]) -> None:
    held = set(searchable_terms(text))
    for one in asked:
        wanted = searchable_terms(one)
        assert wanted
        assert held.intersection(wanted), one


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("we use C++", "we use C#"),
        ("see rank.py", "see rank"),
        ("v1.2.3", "v1.3.2"),
        ("10.0.0.12", "12.0.0.10"),
        ("it costs 48,000", "it costs 48"),
        ("上海", "海上"),
    ],
)
def test_a_name_is_more_than_its_parts(one: str, other: str) -> None:
    assert set(searchable_terms(one)) - set(searchable_terms(other))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Hello there. How are you?",
        "it's Sam's, isn't it... or not",
        "well, yes -- no - maybe",
        "I have 3 cats and 12 dogs.",
        "USA and NATO",
        "“quoted” — and an emoji 🙂…",
        "дом",
        "A" * 10_000,
    ],
)
def test_plain_texts_hold_no_names(text: str) -> None:
    assert find_names(text) == []
    assert searchable_terms(text) == terms_of_text(text)


@given(st.text(max_size=60) | st.text("aAzZ09_-./:@\\,+#kM é数", max_size=60))
def test_names_add_to_the_words_of_any_text_and_take_nothing_away(text: str) -> None:
    said = [primary_term(word) for word in remove_function_words(split_words(text))]
    assert searchable_terms(text)[: len(said)] == said
    for name in find_names(text):
        assert name.extra_terms
        assert all(0 < number < 1 << BITS for number in name.extra_terms)
        assert len(set(name.extra_terms)) == len(name.extra_terms)


@given(st.text("aA0_-./: é数", max_size=30), st.sampled_from([" ", "\n", "\t", " (", ") "]))
def test_names_do_not_depend_on_what_stands_beside_them(text: str, between: str) -> None:
    alone = {number for name in find_names("user_id") for number in name.extra_terms}
    assert alone <= {number for name in find_names(f"{text}{between}user_id") for number in name.extra_terms}


def test_what_is_longer_than_a_name_is_data() -> None:
    assert all(len(name.text) <= LONGEST for name in find_names("aB/c-d" * 10_000))


def test_parts_are_told_from_the_whole() -> None:
    (name,) = find_names("src/getUserName.py")
    assert set(name.parts) == set(content_terms(["get", "user", "name"])) - set(
        content_terms(split_words("src/getUserName.py"))
    )
    assert set(name.parts) < set(name.extra_terms)


def test_words_are_stemmed_the_same_beside_pystemmer(tmp_path: Path) -> None:
    """`snowballstemmer` hands its work to PyStemmer where that is installed, and lacks its own classes then."""
    stand_in = tmp_path / "Stemmer.py"
    stand_in.write_text("def algorithms(): return ['english']\nclass Stemmer: pass\n")
    probe = (
        "import snowballstemmer; from acms.text.tokenizer import content_terms, split_words\n"
        "found = content_terms(split_words('We are choosing databases for orders.'))\n"
        "print(hasattr(snowballstemmer, 'EnglishStemmer'), *found)"
    )
    said = [
        subprocess.run(
            [sys.executable, "-c", probe],
            check=True,
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": path},
        ).stdout.split()
        for path in (str(tmp_path), "")
    ]
    assert [one[0] for one in said] == ["False", "True"]
    assert said[0][1:] == said[1][1:] != []
