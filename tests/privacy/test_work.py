"""The work of finding sensitive text grows linearly with its length, however repetitive it is.

Two things make it grow faster: a search to the end of the text from every place of it, which is counted here in
characters, and a pattern that reads a line in every way there is, which only time shows.
"""

# ruff: noqa: E501  openings of a kind stand together

from __future__ import annotations

import re
from collections.abc import Iterator
from time import process_time
from typing import Any

import pytest

from acms.privacy import (
    detect,
    identity_numbers,
    named_secrets,
    personal_data,
    rules,
    secret_formats,
    separated_secrets,
    value_checks,
)
from acms.privacy.detect import find_sensitive_spans
from acms.privacy.detector_types import ScanBudget, ScanBudgetExceeded

MODULES = (
    separated_secrets,
    detect,
    identity_numbers,
    value_checks,
    named_secrets,
    personal_data,
    secret_formats,
)

BEGIN, END = "-----BEGIN RSA PRIVATE KEY-----\n", "-----END RSA PRIVATE KEY-----\n"
OPENINGS = (
    # Private keys: what begins and never ends, ends and never began, or is none.
    BEGIN, END, "-----BEGIN", "-----BEGIN PRIVATE KEY", BEGIN + "MIIEpAIBAAKCAQEAx7\n", "MIIEpAIBAAKCAQEAx7\n" + END,
    BEGIN + "\n \t\n", BEGIN + "Comment: ", "PuTTY-User-Key-File-2:", "Private-MAC: a", "-" * 40, BEGIN + "." * 200,
    # Addresses, tokens, mail.
    "://", "a://b:c", "a://b:c@", "https://a:b@c ", "a@", "a@a.", "a.b@c.d", "a@b.c / ", "user:pw@host:1 ", "a at b dot ", "@" * 8,
    "eyJ", "eyJhbGciOiJ.eyJ", "sk-", "sk-a1", "ghp_", "-pypi-AgEx", "AKIA", "SG.", "xoxb-1", "a_", "ab_cd_", "key-", "?key=", "&code=a1",
    # Names of secrets, with signs, quotes and what never closes.
    "password", "password=", "password = \"", "password: '", "password is ", "my password was changed to ", "password\n", "password (",
    "my_key=Zaq1wertyuiopp_", "my key: ", "api_key=", "api key ", "token: \\\"", "secret=a1;", "secret\t", "Bearer ", "Authorization: Bearer ",
    "Cookie: a=b; ", "cookie: sid", "recovery phrase: ", "seed phrase is abandon ", "what is the password?\n", "password?\n> ",
    "name: A_PASSWORD\nvalue: ", 'variable "password" {\n', ".setPassword(\"", "credentials: a/", "as the password", "x as my password ",
    "PASS a\n", "USER a\nPASS ", "client_secret=", "${password", "identified by '", "密码：", "contraseña es ", "пароль ",
    # Tables.
    "password,token\n", "a,heslo\n", "heslo,a1\n" + "a1" + "@." * 400 + ",1\n", "password|1\n", "1\tpassword\t!\n", "|", "\t", ", ",
    # Commands.
    "curl -u ", "curl -u a:", "mysql -p", "sshpass -p ", "zip -P ", "net use ", "echo a | ", "echo a | sudo ", "chpasswd\n", "auth(", "auth('a', ",
    "login(a,", "AUTH ", "set passwd ", "username a secret ", "htpasswd -b a ", "https -a a:", "docker login -p ", "password send \"",
    # Numbers.
    "1", "12 ", "1-", "(", "(0", "+49 ", "0000 ", "4111 1111 1111 111", "DE89 ", "DE89-3704-", "030 1", "tel ", "0 " * 8, "iban de89 ",
    # Signs, blanks, brackets and words.
    " ", "\n", "\\", "\"", "'", "`", "[", "{", "{{", "<", "=", ":", ";", ".", "_", "a", "A1", "é", "密", "İ", "[REDACTED: ", "[REDACTED: token] a1 ",
)  # fmt: skip


def _pieces_of_shape(shape: str) -> str:
    """Return something like what a shape of the data describes: its literals, with a digit where it has a set."""
    return re.sub(
        r"\\[dw]|\[[^\]]*\]|\\.|\(\?\S{1,2}|[(){}|+*?^$]|\d,\d+", lambda part: "a1"[part[0][0] == "["], shape
    )[:60]


#: What each row of the data waits for, and something like what it describes.
_ROWS = [
    *(
        f"{head}a1 "
        for row in rules.load_table_rows("tokens")
        for head in (*row.get("heads", ()), row.get("inside", "ey"))
    ),
    *(
        f"{_pieces_of_shape(row['shape'])} "
        for name in ("tokens", "numbers")
        for row in rules.load_table_rows(name)
    ),
    *(
        f"{literal} {_pieces_of_shape(row['shape'])} a1"
        for row in rules.load_table_rows("commands")
        for literal in row["has"]
    ),
    *(f"{name} 123-45-6789 " for row in rules.load_table_rows("numbers") for name in row["names"]),
    *(f"{name}: a1 " for some in rules.load_word_lists()["names"].values() for name in some),
    *(f"{name} C01X00T47 " for name in rules.load_word_lists()["passport"]),
]


class _Counted:
    """A pattern that counts the characters between where it is told to look and where it ends."""

    read = 0

    def __init__(self, pattern: re.Pattern[str]) -> None:
        self._pattern = pattern

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pattern, name)

    def _told(
        self, match: re.Match[str] | None, text: str, pos: int, endpos: int | None
    ) -> re.Match[str] | None:
        end = len(text) if endpos is None else min(endpos, len(text))
        _Counted.read += max(0, (match.end() if match else end) - pos)
        return match

    def search(self, text: str, pos: int = 0, endpos: int | None = None) -> re.Match[str] | None:
        """Search, and count."""
        found = self._pattern.search(text, pos, len(text) if endpos is None else endpos)
        return self._told(found, text, pos, endpos)

    def match(self, text: str, pos: int = 0, endpos: int | None = None) -> re.Match[str] | None:
        """Match, and count what matched."""
        found = self._pattern.match(text, pos, len(text) if endpos is None else endpos)
        return self._told(found, text, pos, endpos) if found else None

    def fullmatch(self, text: str, pos: int = 0, endpos: int | None = None) -> re.Match[str] | None:
        """Match the whole, and count it."""
        return self._told(
            self._pattern.fullmatch(text, pos, len(text) if endpos is None else endpos), text, pos, endpos
        )

    def finditer(self, text: str, pos: int = 0, endpos: int | None = None) -> Iterator[re.Match[str]]:
        """Find all, which looks at each character once."""
        self._told(None, text, pos, endpos)
        return self._pattern.finditer(text, pos, len(text) if endpos is None else endpos)


def _repeat_opening(opening: str, size: int) -> str:
    """Return a text of a size that repeats an opening whole: a cut opening may be another one.

    It has digits: without any most rules would look no further.
    """
    return opening * (size // len(opening)) + " 1234567"


TABLE = ",".join(["    a    "] * 8)


def test_a_line_that_is_no_line_of_a_table_is_not_read_in_every_way() -> None:
    """Blanks and tabs once belonged to a name, to what follows it or between the two: 36 seconds for 150 characters."""
    for line in (
        TABLE + ",password,!",
        "a" + "\t" * 200 + "password\t!",
        TABLE + "\t \t,password|!",
        "password" + ", \t" * 60 + "!",
    ):
        assert find_sensitive_spans(f"{line}\n1,2\n") == []
    found = find_sensitive_spans(f"{TABLE},password\n" + "1," * 8 + "Xk9fPq27,\n")
    assert not found, "a row has as many cells as the line of names"
    assert [one.kind for one in find_sensitive_spans(f"{TABLE},password\n" + "1," * 8 + "Xk9fPq27\n")] == [
        "password"
    ]


def test_a_long_value_is_taken_to_its_end_though_its_beginning_is_judged() -> None:
    value = "Xk9fPq27Zw4mTb8s" * 500
    assert [(one.start, one.end) for one in find_sensitive_spans(f"my key: {value} ")] == [
        (8, 8 + len(value))
    ]
    assert [(one.start, one.end) for one in find_sensitive_spans(f"api key: {value} ")] == [
        (9, 9 + len(value))
    ]


def test_brackets_without_a_number_are_none() -> None:
    assert find_sensitive_spans("((((((((((  1234567") == []
    assert [one.kind for one in find_sensitive_spans("((((((( call +49 30 1234567")] == ["phone"]


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in MODULES:
        for name, value in list(vars(module).items()):
            if isinstance(value, re.Pattern):
                monkeypatch.setattr(module, name, _Counted(value))
        if hasattr(module, "compiled"):
            monkeypatch.setattr(module, "compiled", lambda *shape: _Counted(rules.compile_pattern(*shape)))


def _characters_read(text: str) -> int:
    _Counted.read = 0
    find_sensitive_spans(text)
    return _Counted.read


@pytest.mark.usefixtures("counted")
def test_private_keys_that_begin_again_and_again_are_read_once() -> None:
    """A quarter of a megabyte of such lines once took ten seconds."""
    assert _characters_read(BEGIN * (256 * 1024 // len(BEGIN))) <= 4.4 * _characters_read(
        BEGIN * (64 * 1024 // len(BEGIN))
    )


@pytest.mark.usefixtures("counted")
@pytest.mark.parametrize("size", [2_000, pytest.param(8_000, marks=pytest.mark.slow)])
def test_four_times_the_text_is_four_times_the_reading(size: int) -> None:
    grown: dict[str, float] = {}
    for opening in (*OPENINGS, *_ROWS[::100]):
        short, long = (
            _characters_read(_repeat_opening(opening, size)),
            _characters_read(_repeat_opening(opening, 4 * size)),
        )
        if long > 6 * short:
            grown[opening[:40]] = long / short
    assert not grown


def test_a_text_that_takes_too_much_work_is_stopped_and_taken_out_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = "the password is, " * 2_000
    assert find_sensitive_spans(text) == []
    monkeypatch.setattr(ScanBudget, "AT_LEAST", 10_000)
    monkeypatch.setattr(ScanBudget, "PER_CHARACTER", 1)
    assert find_sensitive_spans(text) == [(0, len(text), "secret", True)]
    with pytest.raises(ScanBudgetExceeded):
        list(named_secrets.find_secret_names(text, text, ScanBudget(0)))


def _least_seconds(text: str, runs: int) -> float:
    """Return the least time of some runs: what else runs on the machine only adds to it."""
    times: list[float] = []
    for _ in range(runs):
        began = process_time()
        find_sensitive_spans(text)
        times.append(process_time() - began)
    return min(times)


@pytest.mark.slow
@pytest.mark.parametrize("opening", [*OPENINGS, *_ROWS], ids=ascii)
def test_twice_the_text_takes_twice_as_long_up_to_a_megabyte(opening: str) -> None:
    """Times of texts of one size differ by the machine: a ratio must be wrong five times, at growing sizes, to count."""
    size, worst = 16_000, 9.0
    for runs in (1, 1, 3, 3, 3):
        short, long = (
            max(0.001, _least_seconds(_repeat_opening(opening, times * size), runs)) for times in (1, 2)
        )
        worst = min(worst, long / short)
        if worst <= 2.3:
            break
        size = min(2 * size, 500_000)
    assert worst <= 2.3
    most = 2.3**4 * max(0.01, _least_seconds(_repeat_opening(opening, 62_500), 1))
    assert any(_least_seconds(_repeat_opening(opening, 1_000_000), runs) < most for runs in (1, 3))
