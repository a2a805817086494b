"""Details: what cannot be guessed again is found, plain talk is passed over, and no text takes long."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acms.text.details import KINDS, find_details


def details_of_text(text: str) -> list[str]:
    return [detail.text for detail in find_details(text)]


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        (
            "path",
            "/etc/nginx/sites-enabled/app.conf C:\\Users\\ana\\notes.txt ../lib/core.py src/acms/core/plan.py:120 "
            "config.yaml ~/.ssh/id_rsa src/acms/core/ archive.tar.gz \\\\nas\\share\\film.mp4",
        ),
        ("url", "https://example.com/a/b?x=1&y=2 http://localhost:8080/health s3://bucket/key www.example.org/page"),
        ("email", "ops@example.org first.last+tag@mail.example.co.uk"),
        (
            "id",
            "ORD-4312 #1234 123e4567-e89b-12d3-a456-426614174000 9fceb02 0xdeadBEEF eu-west-1 x86_64 gpt-4o INC100223",
        ),
        (
            "code",
            "user_id maxRetries MAX_SIZE os.path.join PlanBuilder __init__ std::vector --dry-run "
            "--max-old-space-size=4096 $HOME @scope/package run_all()",
        ),
        ("version", "v1.2.3 3.11.4 v2 1.0.0-rc1"),
        ("number", "$1,250.00 12.5% 231ms 37 404 €90 10k 0.75 512MB 1.250,00 30°C"),
        ("date", "2026-03-01 2026-03-01T12:00:05Z 12.05.2026 03/04/2026 14:30 10:15:30"),
        ("host", "db-3.internal:5432 10.0.0.12:8080 10.0.0.12 192.168.1.0/24 localhost:6379 fe80::1ff:fe23:4567:890a"),
    ],
)  # fmt: skip
def test_a_detail_is_found_in_a_sentence_whatever_stands_around_it(kind: str, names: str) -> None:
    for name in names.split():
        for text in (
            f"we saw {name} there",
            f"it is {name}.",
            f"look ({name}), then",
            f"{name}",
            f'"{name}"',
        ):
            kinds = {detail.text: detail.kind for detail in find_details(text)}
            assert kinds.get(name) == kind, text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("it has 4,096 MB of memory", ["4,096 MB"]),
        ("it waits 30 s, then 5 seconds", ["30 s", "5 seconds"]),
        ("about 1.5 million rows", ["1.5 million"]),
        ("due March 3, 2026 or 3rd of April 2027 at 10:30 am", ["March 3, 2026", "3rd of April 2027 at 10:30 am"]),
        ("seen 2026-03-01 14:30 in the log", ["2026-03-01 14:30"]),
        ("we asked Maria Keller from Zürich", ["Maria Keller", "Zürich"]),
        ("ask Dr. Smith and J. K. Rowling", ["Dr. Smith", "J. K. Rowling"]),
        ("it was Ludwig van Beethoven who said so", ["Ludwig van Beethoven"]),
        ("the team of Łukasz Żółw in Ålesund", ["Łukasz Żółw", "Ålesund"]),
        ("Maria Keller knows. She left.", ["Maria Keller"]),
        ("he said “never on a Friday”, twice", ["never on a Friday", "Friday"]),
        ("call `retry` or 'keep it small' now", ["retry", "keep it small"]),
        ('{"status": "ok", "message": "connection reset by peer"}', ["connection reset by peer"]),
        ('{"order":"ORD-99","ms":231.5}', ["ORD-99", "231.5"]),
        ("see https://example.com/a), please", ["https://example.com/a"]),
        ("see https://example.com/Rust_(language), please", ["https://example.com/Rust_(language)"]),
        (
            "订单ORD-4312的金额是4096元，路径为/var/log/app.log，时间2026年3月1日。「重要的话」",
            ["ORD-4312", "4096元", "/var/log/app.log", "2026年3月1日", "重要的话"],
        ),
        (
            "Die Rechnung RE-20931 über 1.250,00 € liegt bei Frau Grünwald, und der Termin ist am 3. März 2026.",
            ["RE-20931", "1.250,00 €", "Frau Grünwald", "3. März 2026"],
        ),
        ("ORD-1 and ORD-2 and ORD-1 again", ["ORD-1", "ORD-2"]),
    ],
)  # fmt: skip
def test_details_come_in_order_each_once(text: str, expected: list[str]) -> None:
    assert details_of_text(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "Okay, I'll look at the well-known, long-running thing first. Don't worry, it's fine!",
        "You can read and/or write it, e.g. with a client/server setup; that's an I/O problem.",
        "Sure. Yes. The queue looks slow. However, we should wait.\nThen we merge it.\n- Maybe later",
        "I think the API is OK and the JSON is fine - thanks!",
        "It has 2 ideas, or 3.",
        "Let me check (this is the second time) … and done.",
        "The “best” is what we want; it’s the users’ choice.",
        "我们今天先看一下这个问题，然后再决定。",
        "Wir haben heute die Arbeit und den Plan mit der Gruppe besprochen, und es ist gut.",
        "",
        " \n\t ",
        "... --- !!!",
    ],
)
def test_plain_talk_has_none(text: str) -> None:
    assert details_of_text(text) == []


@given(st.text(st.sampled_from("aZ19 ./:-_@\"'`#$€%(),\\\n“”你März"), max_size=80) | st.text(max_size=80))
def test_a_detail_is_where_it_says(text: str) -> None:
    last = 0
    seen = set()
    for detail in find_details(text):
        assert detail.text == text[detail.start : detail.end] != ""
        assert detail.kind in KINDS
        assert detail.start >= last
        last = detail.start
        assert detail.text not in seen
        seen.add(detail.text)


HOSTILE = [
    "a", "a.", "a/", "a-", "a_", '"', '"a ', "'a ", "1,", "1.", "A ", "Aa ", "a://", "a@", "ab:", "ff:", "\\", "\\\\a",
    "`a", " ", "111,", "你好", "1", ".", "/", "March 1 ", "Aa\t", "A(", "«„“'", "--", "@a/", "#1", "v1.", "1 s ", "T1:",
]  # fmt: skip


@pytest.mark.parametrize("pattern", HOSTILE)
def test_long_hostile_text_is_read(pattern: str) -> None:
    """A pattern that goes back over its text would take an hour here."""
    find_details(pattern * (50_000 // len(pattern)))


def test_a_megabyte_of_random_signs_is_read() -> None:
    rng = random.Random(1)
    find_details("".join(rng.choices("aA1./:-_@\"'`#$ \\(){},", k=1_000_000)))
