"""Detectors of personal data: email addresses, telephone numbers, bank accounts, payment cards.

Numbers are recognized by shape and checksum: ISO 13616 (IBAN, mod 97), ISO/IEC 7812 (cards, Luhn), E.164
(telephone numbers, at most fifteen digits after the country code).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain

from acms.privacy.found import Found, Work
from acms.privacy.identity import check_luhn
from acms.privacy.looks import names_itself
from acms.privacy.rules import get_word_set, load_pattern, load_word_lists

# ── email addresses ─────────────────────────────────────────────────────────────────────────────────────────────────

_LOCAL = re.compile(r"""[^\s@<>()\[\]{},;:"`|\\/=&?#!*^~$]{1,64}+""")
_PLAIN_NAME = re.compile(r"(?<=[\u2e80-\ud7af])[A-Za-z0-9][!-~]*$")
_DOMAIN = load_pattern("domain")
_SPELT = load_pattern("mail spelt")
#: After a host: a path, an address of a repository, the prompt of a shell, a call.
_AFTER_HOST = load_pattern("mail after host")
_RELEASE = re.compile(r"@v?\d+\.\d")
_ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{24,64}", re.IGNORECASE)
_COPY = re.compile(r"\b(?:scp|rsync)[ \t]")
_SHELL = load_pattern("mail shell")
_MESSAGE = load_pattern("mail message")


def _is_machine_address(text: str, start: int, name: str, domain: re.Match[str]) -> bool:
    """Return whether an apparent email address names a host, a message, a release or an account of a network."""
    before = text[start - 1 : start]
    if before in ("@", "$", "%"):
        return True  # a handle of the fediverse, a variable
    end = domain.end()
    if domain[1].lower() in get_word_set("inside") and "." not in name:
        return True
    if _RELEASE.match(domain[0]) or _ID.fullmatch(name) or _AFTER_HOST.match(text, end):
        return True
    near, after = text[max(0, start - 160) : start].lower(), text[end : end + 1]
    if (after == ":" and _COPY.search(near)) or (
        name in ("git", "hg", "svn", "ssh") and after and after in ":/"
    ):
        return True
    return _SHELL.search(near) is not None or _MESSAGE.search(near) is not None


_BOX = load_pattern("mail box")
_SITE = load_pattern("mail site")
_UNREAD = re.compile(r"(?i)(?:no|do-?not|dont)[._-]?reply")


def _is_dummy_email(name: str, domain: str) -> bool:
    """Return whether an email address is an example or a no-reply address."""
    if domain.lower().endswith(".tld") or _UNREAD.fullmatch(name):
        return True
    site = _SITE.fullmatch(domain)
    if not site:
        return False
    return _BOX.fullmatch(name) is not None or (name.lower() == "user" and "exam" not in site["site"].lower())


def find_emails(text: str, work: Work) -> Iterator[Found]:
    """Find email addresses."""
    after = 0
    for domain in _DOMAIN.finditer(text):
        work.spend(300)
        at = domain.start()
        local = _LOCAL.match(text[max(after, at - 64) : at][::-1])
        after = domain.end()
        name = local[0][::-1].lstrip(".-+'%") if local else ""
        if not name.isascii() and (plain := _PLAIN_NAME.search(name)):
            name = plain[0]  # the text before it is a sentence without blanks
        if (
            not name
            or name.endswith(".")
            or domain[1].lower() in get_word_set("files")
            or _is_dummy_email(name, domain[0][1:])
        ):
            continue
        start = at - len(name)
        if not _USERINFO.search(text, max(0, at - 160), at) and not _is_machine_address(
            text, start, name, domain
        ):
            yield Found(start, after, "email")
    if "dot" in text:
        yield from (
            Found(match.start(), match.end(), "email") for match in _SPELT.finditer(text) if "dot" in match[0]
        )


#: The text before the host of a web address.
_USERINFO = re.compile(r"://[^\s/?#@]{0,128}$")
_USER = load_pattern("user")
_HOST = re.compile(r"@[A-Za-z0-9][\w.-]{0,120}+(?::\d{2,5}|/)|@(?:tcp|udp|unix)\(")


def find_host_logins(text: str, work: Work) -> Iterator[Found]:
    """Find `user:password@host:port` without a scheme."""
    after = 0
    for host in _HOST.finditer(text):
        work.spend(100)
        user = _USER.search(text, max(after, host.start() - 98), host.start())
        if user and user[1].lower() not in get_word_set("mail headers") and not names_itself(user[2]):
            after = host.end()
            yield Found(user.start(), after, "connection_string")


# ── telephone numbers ───────────────────────────────────────────────────────────────────────────────────────────────

#: Digits in groups, with what may stand between the groups of one number.
_DIGITS = re.compile(r"[+(0-9](?:[0-9()]|[ \u00a0\u2009\u202f.\-/]{1,3}(?=[0-9(])){5,40}+")


def _joins_word(char: str) -> bool:
    """Return whether a number after this character is part of a word; not in scripts without blanks between words."""
    return char.isalnum() and not "\u2e80" <= char <= "\ud7af"


_BEFORE = frozenset("./:#$€£=+-,")
_NATIONAL = load_pattern("phone national")
_CALLED = load_pattern("phone called")
_DATE = load_pattern("date")
_SHORT = load_pattern("numbered")
#: The text before digits in a hex dump.
_PAIRS = re.compile(r"(?<![0-9A-Za-z])(?:[0-9A-Fa-f]{2} {1,2}){2}$")
_COUNTED = re.compile(r"00\d{0,3}[ .\-/]+0")
#: Country codes of E.164 by their first digits; all others are unassigned.
_CODES = load_pattern("phone codes")


def find_phone_numbers(text: str, work: Work) -> Iterator[Found]:
    """Find telephone numbers: international ones, national ones in groups, and any that the text calls one."""
    for match in _DIGITS.finditer(text):
        work.spend(100)
        start, number = match.start(), match[0].rstrip("( \u00a0\u2009\u202f.-/")
        stop = start + len(number)
        if number.count(")") > number.count("("):
            number = number.rstrip(")")
        elif number[:1] == "(" and number.find(")") == len(number) - 1:
            start, number = start + 1, number[1:-1]
        elif number[:2] == "((":
            start, number = start + 1, number[1:].removesuffix(")")
        before, after = text[start - 1 : start], text[stop : stop + 2]
        joined = _joins_word(before) or before in ("_", "+") or after[:1].isalnum() or after[:1] in ("_", "@")
        if joined or number[:2] in ("+ ", "+.") or (after[:1] in tuple(".,:-/") and after[1:].isdigit()):
            continue
        if _is_phone(text, start, stop, number):
            yield Found(start, start + len(number), "phone")


def _is_phone(text: str, start: int, stop: int, number: str) -> bool:
    digits = "".join(char for char in number if "0" <= char <= "9")
    before, size = text[start - 1 : start], len(digits)
    if size < 7 or len(set(digits)) < 3:
        return False
    numbered = _SHORT.search(text, max(0, start - 24), start) is not None
    called = text.endswith("wa.me/", 0, start) or _CALLED.search(text, max(0, start - 36), start) is not None
    if number[0] == "+" and 8 <= size <= 15:
        return _CODES.match(digits) is not None
    if digits[:2] == "00" and 11 <= size <= 16 and _CODES.match(digits, 2) and not _COUNTED.match(number):
        return called or (len(number) > size and "." not in number and before not in _BEFORE and not numbered)
    if numbered or _DATE.search(number) or _PAIRS.search(text, max(0, start - 9), start):
        return numbered and size <= 13 and called
    if 9 <= size <= 12 and before not in _BEFORE and _NATIONAL.fullmatch(number):
        return _is_national_phone(text, start, stop, number)
    return size <= 13 and called


#: Words for telephones near a number, not only right before it.
_NEAR = load_pattern("phone near")
_NEIGHBOUR = re.compile(r"\d[ \t,;|/]{1,8}$")


def _is_national_phone(text: str, start: int, stop: int, number: str) -> bool:
    """Return whether a number in a national format is a telephone number, by brackets, hyphens or nearby words."""
    score = 2 * ("(" in number) + ("-" in number) + ("/" in number) + (number[0] in "0(")
    score += 2 * (_NEAR.search(text, max(0, start - 60), min(len(text), stop + 24)) is not None)
    quoted = text[start - 1 : start] == text[stop : stop + 1] == "'"
    score += quoted and "VALUES" in text[max(0, start - 160) : start]
    before, after = text[max(0, start - 9) : start], text[stop : stop + 9].lstrip(" \t,;|/")
    score -= _NEIGHBOUR.search(before) is not None or (after != text[stop : stop + 9] and after[:1].isdigit())
    return score >= 2


# ── bank accounts ───────────────────────────────────────────────────────────────────────────────────────────────────

_IBAN = re.compile(r"[A-Z]{2}[0-9]{2}(?:[ \u00a0-]?[A-Z0-9]){11,30}+")
_SMALL = re.compile(r"[a-z]{2}[0-9]{2}(?:[ \u00a0-]?[a-z0-9]){11,30}+")


def find_ibans(text: str, work: Work) -> Iterator[Found]:
    """Find international bank account numbers with valid length and checksum."""
    for match in chain(_IBAN.finditer(text), _SMALL.finditer(text) if "iban" in text.lower() else ()):
        work.spend(50)
        raw = match[0].upper()
        size = load_word_lists()["ibans"].get(raw[:2])
        if not size or _joins_word(text[match.start() - 1 : match.start()]):
            continue
        places = [place for place, char in enumerate(raw) if char.isalnum()][:size]
        end = match.start() + places[-1] + 1  # what follows may be the next word
        turned = "".join([str(int(raw[place], 36)) for place in places[4:] + places[:4]])
        if len(places) == size and not text[end : end + 1].isalnum() and int(turned) % 97 == 1:
            yield Found(match.start(), end, "iban")


# ── payment cards ───────────────────────────────────────────────────────────────────────────────────────────────────

_CARD = load_pattern("card")
#: Ungrouped digits, which also look like ids and article numbers: only of issuers with narrow ranges.
_PLAIN = load_pattern("card plain")
#: A group of four before a group of four: "DE89 ", "1234-".
_PART = re.compile(r"(?<![0-9A-Za-z])(?:[A-Z]{2}[0-9]{2}|[0-9]{4})[ \u00a0-]$")
_PAID = load_pattern("card paid")
_ISSUERS = load_pattern("card issuers")


def find_card_numbers(text: str, work: Work) -> Iterator[Found]:
    """Find numbers of payment cards: a known issuer, the usual grouping, a valid Luhn checksum."""
    for match in _CARD.finditer(text):
        work.spend(50)
        start, gap = match.start(), match["gap"]
        before, near = text[start - 1 : start], max(0, start - 40)
        if _joins_word(before) or before in ("_", ".", "-", "/"):
            continue
        if gap and before == gap and _PART.search(text, max(0, start - 8), start):
            continue  # a part of a longer number, such as an account whose check is wrong
        digits = match[0].replace(gap, "") if gap else match[0]
        if not check_luhn(digits) or not _ISSUERS.fullmatch(digits) or len(set(digits)) < 2:
            continue
        alone = gap is None and (
            not _PLAIN.fullmatch(digits) or _SHORT.search(text, max(0, start - 24), start)
        )
        if not alone or _PAID.search(text, near, start):
            yield Found(start, match.end(), "credit_card")
