"""Detectors and redaction: true findings, false alarms, and the promises of redaction.

No secret stands in this file: all are made when the tests run, as hosts of repositories refuse realistic ones.
"""

from __future__ import annotations

import random
import re
import string
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acms import Privacy
from acms.privacy.detect import (
    KINDS,
    find_sensitive_spans,
    redact_text,
    redaction_mark,
    safe_key,
)
from acms.privacy.modes import strictest_mode
from acms.privacy.named_secrets import lower_keeping_offsets
from acms.privacy.rules import load_table_rows

ALNUM = string.ascii_letters + string.digits
HEX = string.digits + "abcdef"
MADE = random.Random(9)


def random_secret(size: int, alphabet: str = ALNUM) -> str:
    return "".join(MADE.choices(alphabet, k=size)) + "a7"


def card_number(start: str, size: int) -> str:
    body = start + "".join(MADE.choices(string.digits, k=size - len(start) - 1))
    doubled = [int(char) * (2 - index % 2) for index, char in enumerate(reversed(body))]
    return body + str(-sum(one - 9 if one > 9 else one for one in doubled) % 10)


def make_iban(country: str, body: str) -> str:
    number = int("".join(str(int(char, 36)) for char in body + country + "00"))
    return f"{country}{98 - number % 97:02}{body}"


def pem_block(lines: int) -> str:
    return "-----BEGIN RSA PRIVATE KEY-----\n" + "\n".join(random_secret(62) for _ in range(lines))


JWT = f"eyJ{random_secret(20)}.eyJ{random_secret(60)}.{random_secret(40)}"
#: kind, text before, the sensitive stretch, text after
PLANTED = [
    ("email", "write to ", "bob.stone+x@example.co.uk", ", please"),
    ("email", '{"mail": "', "o'neil@example.ie", '"}'),
    ("email", "at ", "bob[at]example[dot]com", " or so"),
    ("phone", "call ", "+49 30 901820", " now"),
    ("phone", "(", "(212) 555-0142", ")"),
    ("phone", "(", "(030) 1234567", ""),
    ("phone", "phone: ", "4155550199", ""),
    ("phone", "Tel. ", "0171/1234567", ""),
    ("iban", "pay to ", make_iban("DE", "370400440532013000"), " today"),
    ("iban", "pay to ", "GB82 WEST 1234 5698 7654 32", "."),
    ("credit_card", "card ", card_number("4", 16), " 12/27"),
    ("credit_card", "amex ", card_number("37", 15), ""),
    ("jwt", "Authorization: Bearer ", JWT, "\n"),
    ("private_key", "", pem_block(5) + "\n-----END RSA PRIVATE KEY-----", "\nend"),
    ("private_key", "cut off: ", pem_block(4), ""),
    ("private_key", '{"key": "', (pem_block(4) + "\n-----END RSA PRIVATE KEY-----\n").replace("\n",
        "\\n")[:-2], '\\n"}'),
    ("connection_string", "db at ", "postgresql://u:p@h/db", " is up"),
    ("connection_string", "", f"mongodb+srv://app:{random_secret(8)}@c0.ab1.example.net/?w=1", ""),
    ("connection_string", "", f"redis://:{random_secret(8)}@cache:6379/0", ""),
    ("api_key", "key ", f"sk-{random_secret(46)}", ""),
    ("api_key", "key ", f"sk-proj-{random_secret(60)}", " here"),
    ("api_key", "token=", f"ghp_{random_secret(34)}", "&x=1"),
    ("api_key", "\\n", "AKIA" + random_secret(14, string.ascii_uppercase + "234567").upper()[:16], ""),
    ("api_key", "mailchimp_key: '", f"{random_secret(30, HEX)}-us12", "'"),
    ("api_key", "api_key: ", random_secret(30, HEX), "\n"),
    ("api_key", "X-Api-Key: ", random_secret(30), "\n"),
    ("api_key", "<add key='ApiKey' value='", random_secret(30), "' />"),
    ("client_secret", '"client_secret": "', random_secret(30), '"'),
    ("bearer_token", "-H 'Authorization: Bearer ", random_secret(38), "'"),
    ("token", "refresh_token=", random_secret(38), "&x=1"),
    ("secret", "webhook_secret: ", random_secret(30), "\n"),
    ("password", "my password is ", "hunter2", ", ok?"),
    ("password", "password: ", "swordfish", "\nport: 1\n"),
    ("password", 'export DB_PASSWORD="', "Xk29!dkLm", '"'),
    ("password", "{\\\"password\\\": \\\"", "Xk29!dkLm", "\\\"}"),
    ("password", "jdbc:mysql://h/x?user=a&password=", "Xk29dkLm", "&ssl=1"),
    ("password", "Passwort lautet ", "Sonnenblume22", "."),
    ("password", "curl -u admin:", "Xk29dkLm", " https://x.example"),
    ("password", "the password you asked for: ", "Bluebird77", ""),
    ("password", "my passphrase: '", "correct horse battery staple", "'"),
    ("client_secret", "uses the client secret ", f"8f3kLq92{random_secret(8)}", " for staging"),
    ("password", "the password ", "hunter2pass", " works"),
    ("national_id", "my SSN is ", "536-22-8714", ""),
    ("national_id", "DNI ", "12345678Z", ", Madrid"),
    ("national_id", "codice fiscale: ", "RSSMRA85T10A562S", ""),
    ("national_id", "BSN ", "111222333", "."),
    ("national_id", "CPF ", "529.982.247-25", ""),
    ("national_id", "PESEL: ", "44051401359", ""),
    ("national_id", "NIR ", "2 55 08 14 168 025 38", ""),
    ("national_id", "Steuer-ID ", "86 095 742 719", ""),
    ("national_id", "personnummer ", "811218-9876", ""),
    ("national_id", "rijksregister ", "85.07.30-033.28", ""),
    ("national_id", "SIN ", "046 454 286", ""),
    ("national_id", "National Insurance number ", "QQ 12 34 56 C".replace("QQ", "AB"), ""),
    ("national_id", "Aadhaar ", "2341 2341 2346", ""),
    ("national_id", "身份证 ", "11010519491231002X", ""),
    ("passport", "my passport, number ", "C01X00T47", ", expires in May"),
    ("passport", "Reisepass Nr. ", "C01X00T47", ""),
    ("secret", "seed phrase: ", " ".join(["ability", "absorb", "abstract", "absurd"] * 3), ""),
]  # fmt: skip

NEGATIVE = """commit 9fceb02d0ae598e95dc970b74767f19372d61af8
UUID 123e4567-e89b-12d3-a456-426614174000, ETag "33a64df551425fcc55e4d42a148795d9f25f89d4"
Order 4111-2222-3333-4445 shipped, order number is 1234567890, tracking 9400 1000 0000 0000 0000 00
python>=3.11, numpy==2.1.3, lodash@4.17.21, @types/node@18.0.0, image@2x.png
2024-01-15 14:30:45,123 and 1705329045123 and 12-31-2024 and 01.05.2024 14:00-15:30
192.168.1.100:8080, fe80::1ff:fe23:4567:890a, 40.712776,-74.005974, ISBN 978-0-13-468599-1
population 331 002 651, 1 439 323 776 elsewhere, 12000 kg, 100-200-3000
password_field = forms.CharField(widget=forms.PasswordInput)
password = os.environ['DB_PASSWORD']; api_key = settings.API_KEY; token = await getToken()
def login(username: str, password: str) -> Token: ...
if password != confirm_password: raise
max_tokens=4096, total_tokens: 15234, "token_type": "Bearer", csrf_token = "{{ csrf_token() }}"
api_key=<your-api-key> password=${DB_PASSWORD} token={{ secrets.TOKEN }} secret=********
OPENAI_API_KEY=sk-your-key-here; aws_access_key_id = AKIAIOSFODNN7EXAMPLE
Authorization: Bearer <token>, Authorization: Bearer YOUR_ACCESS_TOKEN
postgres://USER:${PASSWORD}@localhost/db or https://<user>:<password>@host/
The password must be at least 12 characters long. My password is not working.
Your password was changed on 2024-05-01 at 10:15:00. password expires at: 2025-01-01
The secret to a good soup: 3 onions. The key to success is: practice.
primary_key=True, redis_key: "session:user:1234", keyboard: qwerty, secretary: Ms. Jones4
git@github.com:org/repo.git and ssh deploy@10.0.0.5 and https://medium.com/@user/title-abc123def456
-----BEGIN PRIVATE KEY----- is how a key begins
GB29 is a postcode, DE89 3704 0044 0532 0130 01, 4111 1111 1111 1112
my SSN is 936-22-8714, part no. 536-22-8714, passport photo of 2019, DNI 12345678A, BSN 111222334, CPF 529.982.247-26
secret: projects/123456/secrets/db-pass/versions/3, PASSWORD_FILE: /run/secrets/db_password""".splitlines()


@pytest.mark.parametrize(("kind", "before", "value", "after"), PLANTED, ids=lambda part: str(part)[:24])
def test_each_kind_is_found_where_it_stands(kind: str, before: str, value: str, after: str) -> None:
    text = before + value + after
    (found,) = find_sensitive_spans(text)
    assert (text[found.start : found.end], found.kind) == (value, kind)
    assert found.clear == (kind not in ("email", "phone"))


def test_what_only_looks_sensitive_is_left_alone() -> None:
    assert [text for text in NEGATIVE if redact_text(text, Privacy.REDACT).text != text] == []


def test_check_33_email_address_connection_string_and_key_are_absent_and_marked() -> None:
    key = f"sk-{random_secret(40)}"
    text = f"write to bob@example.com about postgresql://u:p@h/db and {key}."
    out = redact_text(text, Privacy.REDACT).text
    assert out == "write to [REDACTED: email] about [REDACTED: connection_string] and [REDACTED: api_key]."
    out = redact_text(text, Privacy.ALLOW).text
    assert out == "write to bob@example.com about [REDACTED: connection_string] and [REDACTED: api_key]."


def test_check_32_under_block_no_text_is_left() -> None:
    assert redact_text("anything at all", Privacy.BLOCK) == ("", ())


def test_check_35_the_strictest_mode_is_in_effect() -> None:
    allow, hide, block = Privacy.ALLOW, Privacy.REDACT, Privacy.BLOCK
    assert strictest_mode(allow, block) is block
    assert strictest_mode(hide, allow, allow) is hide
    assert strictest_mode(allow) is strictest_mode() is allow


def test_two_hundred_planted_secrets_leave_in_no_mode() -> None:
    clear = [row for row in PLANTED if row[0] not in ("email", "phone")]
    picked = [MADE.choice(clear) for _ in range(200)]
    for mode in Privacy:
        for _, before, value, after in picked:
            text = f"Notes of the {MADE.choice(['first', 'second'])} day.\n{before}{value}{after}"
            assert value not in redact_text(text, mode).text


def test_overlapping_finds_are_one_of_the_most_specific_kind() -> None:
    text = f"curl -H 'Authorization: Bearer {JWT}' amqp://bob:{random_secret(9)}@mail.example.com/x"
    assert [one.kind for one in find_sensitive_spans(text)] == ["jwt", "connection_string"]


def test_a_fact_about_offsets_the_text_outside_the_spans_is_untouched() -> None:
    text = "\n".join(before + value + after for _, before, value, after in PLANTED)
    out, found = redact_text(text, Privacy.REDACT)
    assert all(one.end <= other.start for one, other in pairwise(found))
    at, parts = 0, []
    for one in found:
        parts += [text[at : one.start], redaction_mark(one.kind)]
        at = one.end
    assert out == "".join([*parts, text[at:]])


def test_marks_are_no_secrets_and_divide_what_stands_beside_them() -> None:
    for kind in KINDS:
        for text in (
            redaction_mark(kind),
            f"password: {redaction_mark(kind)} = {redaction_mark(kind)}",
            f"{kind}: {redaction_mark(kind)}",
        ):
            assert find_sensitive_spans(text) == []
    assert redact_text(f"{redaction_mark('password')} mail bob@example.com", Privacy.REDACT).text == (
        "[REDACTED: password] mail [REDACTED: email]"
    )


_PIECES = st.sampled_from(
    [part for row in PLANTED for part in row[1:]]
    + [*NEGATIVE[:8], *(redaction_mark(kind) for kind in KINDS)]
    + [
        "password",
        "token=",
        "+",
        "1",
        "00",
        "@",
        ".",
        "-",
        "://",
        ":",
        '"',
        "'",
        "\\",
        " ",
        "\n",
        "a",
        "ey",
        "sk-",
        "İ",
        "é",
    ]
)


@given(st.lists(_PIECES | st.text(max_size=6), max_size=8).map("".join), st.sampled_from(list(Privacy)))
def test_redacting_again_changes_nothing(text: str, mode: Privacy) -> None:
    once = redact_text(text, mode).text
    assert redact_text(once, mode) == (once, ())


def test_a_text_made_to_need_many_rounds_loses_what_is_left_and_stays_redacted() -> None:
    text = "+491234567890" * 40
    once = redact_text(text, Privacy.REDACT).text
    assert not re.search(r"\d{6}", once)
    assert redact_text(once, Privacy.REDACT).text == once


def test_keys_with_something_sensitive_are_not_safe_to_show() -> None:
    assert safe_key("proj:orders#migration")
    assert safe_key("m_3f2_000a1_9f8e7d")
    assert not safe_key("doc:bob@example.com")
    assert not safe_key(f"frag:ghp_{random_secret(34)}")


def test_a_short_name_holds_no_secret_and_the_shortest_that_does_is_found() -> None:
    names = ["rootpw12", "password", "psk12345", "AKIAIOSF", "DE891234", "token", "a1", "", "İiİiİ"]
    assert [name for name in names if find_sensitive_spans(name)] == []
    (found,) = find_sensitive_spans("rootpwx1y")
    assert (found.start, found.kind) == (6, "password")
    assert [one.kind for one in find_sensitive_spans("01701234")] == [
        one.kind for one in find_sensitive_spans("01701234 ")
    ]


def test_lower_case_keeps_offsets_for_every_character() -> None:
    text = "".join(map(chr, [*range(0xD800), *range(0xE000, 0x11000)]))
    low = lower_keeping_offsets(text)
    assert len(low) == len(text)
    assert all(char.lower() == other for char, other in zip(text, low, strict=True) if char != "İ")


def test_every_format_says_where_it_is_from_and_how_often_it_repeats_at_most() -> None:
    for row in (*load_table_rows("tokens"), *load_table_rows("numbers")):
        assert row["source"], row
        assert row["licence"] in ("MIT", "documented format"), row
    for row in (*load_table_rows("tokens"), *load_table_rows("numbers"), *load_table_rows("commands")):
        plain = re.sub(r"\\.|\[(?:\\.|[^\]])+\]", "c", re.compile(row["shape"]).pattern)
        assert not re.search(r"\*|\{\d+,\}|(?<!\})\+", plain), row


@pytest.mark.parametrize("rest", ["proj-", "", "test-"])
def test_keys_of_letters_in_order_are_keys_too(rest: str) -> None:
    key = f"sk-{rest}" + "".join(map(chr, range(ord("a"), ord("z") + 1))) + "1234567890"
    assert redact_text(f"use {key} here", Privacy.ALLOW).text == "use [REDACTED: api_key] here"
