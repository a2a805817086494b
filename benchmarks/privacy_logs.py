"""Texts as logs, repositories, tickets and chats hold them, made from a seed: for `privacy.py --logs`.

Written after the rules and apart from the generator in `privacy.py`, from what such places are known to hold. Parts
`second` to `tenth`: each was measured once before any rule was changed because of it, and the next was written after those
changes (the ninth beside the eighth). The figures at first sight stand in docs/figures.md. Nothing here is real: every key,
number and name is drawn at random.
"""

# ruff: noqa: E501  a template stays in one line

from __future__ import annotations

import base64
import json
import random
import re
from collections.abc import Iterator

UPPER = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
LOWER = UPPER.lower()
DIGITS = "0123456789"
HEX = DIGITS + "abcdef"
ALNUM = UPPER + LOWER + DIGITS
URLSAFE = ALNUM + "-_"
BASE64 = ALNUM + "+/"
_MARK = re.compile("\x01([a-z_]+)\x02([^\x03]*)\x03")

#: Digits that follow the check digits of an account number, by country: d a digit, A a capital, c either.
ACCOUNTS = {
    "DE": "d18", "AT": "d16", "CH": "d5c12", "FR": "d10c11d2", "BE": "d12", "NL": "A4d10", "LU": "d3c13", "ES": "d20", "PT": "d21", "IT": "A1d10c12",
    "GB": "A4d14", "IE": "A4d14", "DK": "d14", "SE": "d20", "NO": "d11", "FI": "d14", "PL": "d24", "CZ": "d20", "HU": "d24", "GR": "d7c16", "TR": "d5d1c16",
    "SA": "d2c18", "AE": "d19", "BR": "d23A1c1", "EE": "d16", "HR": "d17",
}  # fmt: skip
#: Telephone numbers by country, 9 any digit and 8 one that is not 0 or 1; all else as it is written.
TELEPHONES = {
    "US": ("+1 (8##) 8##-####", "+1 8##.8##.####", "(8##) 8##-####", "8##-8##-####", "+18##8######", "1-8##-8##-####"),
    "GB": ("+44 20 7### ####", "+44 (0)161 ### ####", "07### ######", "+447#########", "0161 ### ####"),
    "DE": ("+49 (0) 89 / ######", "+49 176 ########", "089 / ### ## ##", "0176-########", "+4917########", "(030) ######-##", "0049 30 ########"),
    "FR": ("+33 6 ## ## ## ##", "06.##.##.##.##", "06 ## ## ## ##", "+33 (0)1 ## ## ## ##", "+336########"),
    "ES": ("+34 6## ### ###", "+34 91 ### ## ##", "+346########"),
    "IT": ("+39 3## #######", "+39 02 ########", "+39 06 #### ####"),
    "NL": ("+31 6 ########", "06-########", "+31 20 ### ####"),
    "BE": ("+32 4## ## ## ##", "04## ## ## ##"),
    "CH": ("+41 79 ### ## ##", "079 ### ## ##", "+41 44 ### ## ##"),
    "AT": ("+43 660 #######", "+43 1 #######", "0660/#######"),
    "PL": ("+48 6## ### ###", "+48 22 ### ## ##"),
    "SE": ("+46 70 ### ## ##", "070-### ## ##"),
    "IN": ("+91 9#### #####", "+91-9#########", "+91 22 #### ####"),
    "CN": ("+86 13# #### ####", "+86-10-8### ####"),
    "JP": ("+81 90-####-####", "090-####-####", "03-####-####"),
    "BR": ("+55 (11) 9####-####", "(21) 9####-####", "+55 11 3### ####"),
    "MX": ("+52 55 #### ####", "+52 1 55 #### ####"),
    "AU": ("+61 4## ### ###", "+61 2 9### ####", "04## ### ###", "(02) 9### ####"),
    "RU": ("+7 (495) ###-##-##", "+7 9## ### ## ##", "8 (9##) ###-##-##"),
    "ZA": ("+27 82 ### ####", "082 ### ####"),
    "TR": ("+90 532 ### ## ##", "0532 ### ## ##"),
    "IL": ("+972 50-###-####", "050-###-####"),
}  # fmt: skip
#: Begin, length, how a card of that issuer is grouped.
CARDS = (("4", 16, "4444"), ("51", 16, "4444"), ("54", 16, "4444"), ("2223", 16, "4444"), ("37", 15, "465"), ("34", 15, "465"), ("6011", 16, "4444"), ("3056", 14, "464"), ("3566", 16, "4444"), ("6212", 16, "4444"))  # fmt: skip


def under_headings(text: str) -> Iterator[tuple[str, str]]:
    """Yield the lines of a text, each with the heading (`## …`) it stands under."""
    heading = ""
    for line in text.strip().splitlines():
        if line.startswith("## "):
            heading = line[3:]
        elif line:
            yield heading, line


class Make:
    """Draws values."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(f"logs {seed}")

    def of(self, alphabet: str, size: int) -> str:
        return "".join(self.random.choices(alphabet, k=size))

    def one(self, *options: str) -> str:
        return self.random.choice(options)

    def num(self, low: int, high: int) -> int:
        return self.random.randint(low, high)

    def word(self) -> str:
        return self.one(*"anchor bramble cobalt dahlia ember fjord garnet hazel indigo juniper kestrel lagoon meadow nectar onyx pebble quartz raven saffron tundra umber velvet willow zephyr".split())  # fmt: skip

    def person(self) -> tuple[str, str]:
        return self.one(*"Anna Jonas Lucía Marek Aoife Kenji Fatima Björn Chloé Ravi Olga Tomás".split()), self.one(*"Keller Novak Moreau Silva Tanaka Okafor Lindqvist Rossi Haddad Byrne Petrov Weiss".split())  # fmt: skip

    def digits(self, shape: str) -> str:
        return "".join(
            self.of("23456789", 1)
            if char == "8" and "#" in shape
            else self.of(DIGITS, 1)
            if char == "#"
            else char
            for char in shape
        )

    def phone(self) -> str:
        shape = self.random.choice(TELEPHONES[self.random.choice(sorted(TELEPHONES))])
        if shape.startswith(("+1", "(8##)", "8##", "1-8")):
            return self.digits(shape)
        return "".join(self.of(DIGITS, 1) if char == "#" else char for char in shape)

    def iban(self) -> str:
        country = self.random.choice(sorted(ACCOUNTS))
        sets = {"d": DIGITS, "A": UPPER, "c": UPPER + DIGITS}
        body = "".join(
            self.of(sets[kind], int(size)) for kind, size in re.findall(r"([dAc])(\d+)", ACCOUNTS[country])
        )
        check = 98 - int("".join(str(int(char, 36)) for char in body + country + "00")) % 97
        plain = f"{country}{check:02}{body}"
        return self.one(plain, " ".join(plain[at : at + 4] for at in range(0, len(plain), 4)))

    def card(self, right: bool = True) -> str:
        start, size, groups = self.random.choice(CARDS)
        body = start + self.of(DIGITS, size - len(start) - 1)
        total = sum(sum(divmod(int(char) * (2 - index % 2), 10)) for index, char in enumerate(reversed(body)))
        plain = body + str((-total + (0 if right else self.num(1, 9))) % 10)
        gap, at, parts = self.one("", " ", "-"), 0, list[str]()
        for width in map(int, groups):
            parts.append(plain[at : at + width])
            at += width
        return gap.join(parts)

    def mail(self) -> str:
        first, last = (re.sub(r"[^a-z]", "", name.lower()) for name in self.person())
        local = self.one(
            f"{first}.{last}",
            f"{first[0]}.{last}",
            f"{last}{self.num(1, 99)}",
            f"{first}-{last}",
            f"{first}_{last}+news",
            first,
        )
        return f"{local}@{self.one('gmail.com', 'web.de', 'orange.fr', 'proton.me', 'corp.example.com', f'{self.word()}.io', f'mail.{self.word()}-{self.word()}.co.jp', f'{self.word()}.museum')}"  # fmt: skip

    def uuid(self) -> str:
        return f"{self.of(HEX, 8)}-{self.of(HEX, 4)}-4{self.of(HEX, 3)}-{self.one(*'89ab')}{self.of(HEX, 3)}-{self.of(HEX, 12)}"

    def time(self) -> str:
        return f"2025-{self.num(1, 12):02}-{self.num(1, 28):02}T{self.num(0, 23):02}:{self.num(0, 59):02}:{self.num(0, 59):02}.{self.of(DIGITS, 3)}Z"

    def ip(self) -> str:
        return ".".join(str(self.num(1, 254)) for _ in range(4))

    def password(self) -> str:
        first, last = self.person()
        return self.one(
            f"{self.word().title()}{self.num(10, 2029)}!", f"{first.lower()}{self.num(1960, 2005)}", self.of(ALNUM, 16), self.of(ALNUM + "!$%*_-", 18) + "9",
            f"{self.word()}-{self.word()}-{self.word()}-{self.num(1, 99)}", f"{self.word()}{self.of('!?#*', 1)}{self.num(1, 999)}", f"{last}#{self.num(1, 99)}", f"qwerty{self.num(1, 9999)}",
            f"{self.word().replace('a', '@').replace('e', '3').title()}{self.num(0, 99)}",
        )  # fmt: skip

    def jwt(self) -> str:
        def part(value: object) -> str:
            return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")

        return f"{part({'alg': self.one('HS256', 'RS256'), 'typ': 'JWT'})}.{part({'sub': self.of(DIGITS, 10), 'iat': 1700000000 + self.num(0, 9**8)})}.{self.of(URLSAFE, 43)}"

    def pem(self) -> str:
        name = self.one(
            "RSA PRIVATE KEY",
            "EC PRIVATE KEY",
            "OPENSSH PRIVATE KEY",
            "PRIVATE KEY",
            "ENCRYPTED PRIVATE KEY",
            "PGP PRIVATE KEY BLOCK",
        )
        rows = [self.of(BASE64, 64) for _ in range(self.num(4, 26))] + [
            self.of(BASE64, self.num(8, 60)) + "="
        ]
        return f"-----BEGIN {name}-----\n" + "\n".join(rows) + f"\n-----END {name}-----"

    def key(self) -> str:
        """Return a key that tells by its look which service gave it out."""
        of = self.of
        return self.random.choice([
            lambda: self.one("AKIA", "ASIA") + of(UPPER + "234567", 16), lambda: "AIza" + of(URLSAFE, 35), lambda: "ya29." + of(URLSAFE, 120), lambda: "GOCSPX-" + of(URLSAFE, 28),
            lambda: self.one("ghp_", "gho_", "ghs_") + of(ALNUM, 36), lambda: f"github_pat_{of(ALNUM, 22)}_{of(ALNUM, 59)}", lambda: "glpat-" + of(ALNUM, 20), lambda: "glrt-" + of(ALNUM, 20),
            lambda: f"xoxb-{of('123456789', 12)}-{of('123456789', 13)}-{of(ALNUM, 24)}", lambda: f"xoxp-{of('123456789', 12)}-{of('123456789', 12)}-{of('123456789', 12)}-{of(HEX, 32)}", lambda: f"xapp-1-A{of(UPPER + DIGITS, 10)}-{of('123456789', 13)}-{of(HEX, 64)}",
            lambda: self.one("sk_live_", "sk_test_", "rk_live_") + of(ALNUM, self.num(24, 99)), lambda: "whsec_" + of(ALNUM, 32), lambda: "sk-" + of(ALNUM, 20) + "T3BlbkFJ" + of(ALNUM, 20), lambda: "sk-proj-" + of(URLSAFE, 64) + "0",
            lambda: "sk-ant-api03-" + of(URLSAFE, 93) + "AA", lambda: "hf_" + of(UPPER + LOWER, 34), lambda: "npm_" + of(ALNUM, 36), lambda: "pypi-AgEIcHlwaS5vcmcCJ" + of(URLSAFE, 150) + "1",
            lambda: f"SG.{of(URLSAFE[:-2], 22)}.{of(URLSAFE[:-2], 43)}", lambda: self.one("SK") + of(HEX, 32), lambda: of("123456789", 10) + ":AA" + of(URLSAFE, 33), lambda: "dop_v1_" + of(HEX, 64),
            lambda: "shpat_" + of(HEX, 32), lambda: "sq0csp-" + of(URLSAFE, 43), lambda: f"{of(ALNUM, 3)}8Q~{of(ALNUM, 34)}", lambda: "dckr_pat_" + of(URLSAFE[:-2], 27), lambda: "lin_api_" + of(ALNUM, 40),
            lambda: "hvs." + of(URLSAFE, 94) + "b", lambda: "dapi" + of(HEX, 32), lambda: "gsk_" + of(ALNUM, 52), lambda: f"PMAK-{of(HEX, 24)}-{of(HEX, 34)}", lambda: "figd_" + of(URLSAFE, 40), lambda: "secret_" + of(ALNUM, 43),
            lambda: "xai-" + of(ALNUM, 80), lambda: "r8_" + of(ALNUM, 37), lambda: "rubygems_" + of(HEX, 48), lambda: "tskey-auth-k" + of(ALNUM, 11) + "CNTRL-" + of(ALNUM, 32), lambda: "ATATT3xFfGF0" + of(URLSAFE, 180), lambda: f"key-{of(HEX, 32)}",
            lambda: "EAAG" + of(ALNUM, 160), lambda: "AGE-SECRET-KEY-1" + of("QPZRY9X8GF2TVDW0S3JN54KHCE6MUA7L", 58), lambda: f"sntrys_eyJ{of(ALNUM, 140)}_{of(ALNUM, 43)}", lambda: "glsa_" + of(ALNUM, 32) + "_" + of(HEX, 8),
        ])()  # fmt: skip

    def random_value(self) -> str:
        """Return a value that only its name calls secret."""
        value = self.one(self.of(HEX, 32), self.of(HEX, 64), self.of(ALNUM, 24), self.of(ALNUM, 40), self.of(BASE64, 43) + "=", self.of(URLSAFE, 30), self.uuid(), self.of(LOWER + DIGITS, 20))  # fmt: skip
        return value if re.search(r"\d", value) else value[:-1] + "7"


def s(kind: str, value: str) -> str:
    """Mark a stretch as sensitive."""
    return f"\x01{kind}\x02{value}\x03"


def unmarked(text: str) -> tuple[str, list[tuple[int, int, str]]]:
    """Return a text without its marks, and (start, end, kind) of what was marked."""
    gold: list[tuple[int, int, str]] = []
    parts: list[str] = []
    size = at = 0
    for match in _MARK.finditer(text):
        parts += (text[at : match.start()], match[2])
        size += match.start() - at
        gold.append((size, size + len(match[2]), match[1]))
        size += len(match[2])
        at = match.end()
    return "".join([*parts, text[at:]]), gold
