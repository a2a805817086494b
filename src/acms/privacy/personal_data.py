"""Detectors of personal data: email addresses, telephone numbers, bank accounts, payment cards.

Numbers are recognized by shape and checksum: ISO 13616 (IBAN, mod 97), ISO/IEC 7812 (cards, Luhn), E.164
(telephone numbers, at most fifteen digits after the country code).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain

from acms.privacy.detector_types import Detection, ScanBudget
from acms.privacy.identity_numbers import check_luhn
from acms.privacy.rules import get_word_set, load_pattern, load_word_lists
from acms.privacy.value_checks import names_itself

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
    if text[start - 1 : start] in ("@", "$", "%"):
        return True  # a handle such as @user@host, or a variable
    end = domain.end()
    if "." not in name and domain[1].lower() in get_word_set("inside"):
        return True
    if _RELEASE.match(domain[0]) or _ID.fullmatch(name) or _AFTER_HOST.match(text, end):
        return True
    text_before, next_character = text[max(0, start - 160) : start].lower(), text[end : end + 1]
    if next_character == ":" and _COPY.search(text_before):
        return True
    if next_character in (":", "/") and name in ("git", "hg", "svn", "ssh"):
        return True
    return _SHELL.search(text_before) is not None or _MESSAGE.search(text_before) is not None


_BOX = load_pattern("mail box")
_SITE = load_pattern("mail site")
_NO_REPLY = re.compile(r"(?i)(?:no|do-?not|dont)[._-]?reply")


def _is_dummy_email(name: str, domain: str) -> bool:
    """Return whether an email address is an example or a no-reply address."""
    if domain.lower().endswith(".tld") or _NO_REPLY.fullmatch(name):
        return True
    site = _SITE.fullmatch(domain)
    if not site:
        return False
    return _BOX.fullmatch(name) is not None or (name.lower() == "user" and "exam" not in site["site"].lower())


def find_emails(text: str, scan_budget: ScanBudget) -> Iterator[Detection]:
    """Find email addresses."""
    previous = 0
    for domain in _DOMAIN.finditer(text):
        scan_budget.spend(300)
        at_sign = domain.start()
        name = _read_local_part(text[max(previous, at_sign - 64) : at_sign])
        previous = domain.end()
        if not name or name.endswith(".") or domain[1].lower() in get_word_set("files"):
            continue
        if _is_dummy_email(name, domain[0][1:]) or _USERINFO.search(text, max(0, at_sign - 160), at_sign):
            continue
        start = at_sign - len(name)
        if not _is_machine_address(text, start, name, domain):
            yield Detection(start, previous, "email")
    if "dot" in text:
        for match in _SPELT.finditer(text):
            if "dot" in match[0]:
                yield Detection(match.start(), match.end(), "email")


def _read_local_part(text_before: str) -> str:
    """Return the local part of an email address at the end of a text, or ""."""
    # Matching backwards from the @ takes time for this part alone.
    reversed_match = _LOCAL.match(text_before[::-1])
    name = reversed_match[0][::-1].lstrip(".-+'%") if reversed_match else ""
    if not name.isascii():
        ascii_part = _PLAIN_NAME.search(name)
        if ascii_part:
            return ascii_part[0]  # the rest is a sentence in a script without blanks
    return name


#: The text before the host of a web address.
_USERINFO = re.compile(r"://[^\s/?#@]{0,128}$")
_USER = load_pattern("user")
_HOST = re.compile(r"@[A-Za-z0-9][\w.-]{0,120}+(?::\d{2,5}|/)|@(?:tcp|udp|unix)\(")


def find_host_logins(text: str, scan_budget: ScanBudget) -> Iterator[Detection]:
    """Find `user:password@host:port` without a scheme."""
    searched_until = 0
    for host in _HOST.finditer(text):
        scan_budget.spend(100)
        user = _USER.search(text, max(searched_until, host.start() - 98), host.start())
        if user and user[1].lower() not in get_word_set("mail headers") and not names_itself(user[2]):
            searched_until = host.end()
            yield Detection(user.start(), searched_until, "connection_string")


# ── telephone numbers ───────────────────────────────────────────────────────────────────────────────────────────────

#: Digits in groups, with what may stand between the groups of one number.
_DIGITS = re.compile(r"[+(0-9](?>(?:[0-9()]|[ \u00a0\u2009\u202f.\-/]{1,3}(?=[0-9(])){5,40})")


def _joins_word(char: str) -> bool:
    """Return whether a number after this character is part of a word; not in scripts without blanks between words."""
    return char.isalnum() and not "\u2e80" <= char <= "\ud7af"


_NOT_BEFORE_PHONE = frozenset("./:#$€£=+-,")
_NATIONAL = load_pattern("phone national")
_CALLED_PHONE = load_pattern("phone called")
_DATE = load_pattern("date")
_NUMBERED = load_pattern("numbered")
#: The text before digits in a hex dump.
_PAIRS = re.compile(r"(?<![0-9A-Za-z])(?:[0-9A-Fa-f]{2} {1,2}){2}$")
_COUNTED = re.compile(r"00\d{0,3}[ .\-/]+0")
#: Country codes of E.164 by their first digits; all others are unassigned.
_CODES = load_pattern("phone codes")
_NATIONAL_DIGITS = range(9, 13)
"""Numbers of digits of a telephone number in a national format."""
_MAX_DIGITS = 13
"""Digits of the longest telephone number that is recognized without a country code."""


def find_phone_numbers(text: str, scan_budget: ScanBudget) -> Iterator[Detection]:
    """Find telephone numbers: international ones, national ones in groups, and any that the text calls one."""
    for match in _DIGITS.finditer(text):
        scan_budget.spend(100)
        start, number = match.start(), match[0].rstrip("( \u00a0\u2009\u202f.-/")
        stop = start + len(number)
        if number.count(")") > number.count("("):
            number = number.rstrip(")")
        elif number[:1] == "(" and number.find(")") == len(number) - 1:
            start, number = start + 1, number[1:-1]
        elif number[:2] == "((":
            start, number = start + 1, number[1:].removesuffix(")")
        if number[:2] in ("+ ", "+.") or _is_part_of_word(text, start, stop):
            continue
        if _is_phone(text, start, stop, number):
            yield Detection(start, start + len(number), "phone")


def _is_part_of_word(text: str, start: int, stop: int) -> bool:
    """Return whether digits are part of a word, an identifier or a longer number."""
    previous_character, next_character, second_character = (
        text[start - 1 : start],
        text[stop : stop + 1],
        text[stop + 1 : stop + 2],
    )
    if _joins_word(previous_character) or previous_character in ("_", "+"):
        return True
    if next_character.isalnum() or next_character in ("_", "@"):
        return True
    return next_character in tuple(".,:-/") and second_character.isdigit()


def _is_phone(text: str, start: int, stop: int, number: str) -> bool:
    """Return whether digits are a telephone number; the first rule that applies decides."""
    digits = "".join(char for char in number if "0" <= char <= "9")
    size = len(digits)
    if size < 7 or len(set(digits)) < 3:
        return False
    if number[0] == "+" and 8 <= size <= 15:  # digits of E.164
        return _CODES.match(digits) is not None
    is_plain_start = text[start - 1 : start] not in _NOT_BEFORE_PHONE
    is_numbered = _NUMBERED.search(text, max(0, start - 24), start) is not None
    is_called_phone = _is_called_phone(text, start)
    # 00 and a country code: a phone if it is called one, or if it is grouped and nothing speaks against it.
    if _is_international(digits) and not _COUNTED.match(number):
        is_grouped = len(number) > size and "." not in number
        return is_called_phone or (is_grouped and is_plain_start and not is_numbered)
    # "order no. …": something else, unless it is called a phone.
    if is_numbered:
        return is_called_phone and size <= _MAX_DIGITS
    # A date, or bytes of a hex dump.
    if _DATE.search(number) or _PAIRS.search(text, max(0, start - 9), start):
        return False
    if size in _NATIONAL_DIGITS and is_plain_start and _NATIONAL.fullmatch(number):
        return _is_national_phone(text, start, stop, number)
    return is_called_phone and size <= _MAX_DIGITS


def _is_called_phone(text: str, start: int) -> bool:
    """Return whether the text right before digits calls them a telephone number."""
    if text.endswith("wa.me/", 0, start):
        return True
    return _CALLED_PHONE.search(text, max(0, start - 36), start) is not None


def _is_international(digits: str) -> bool:
    """Return whether digits begin with 00 and a country code."""
    return digits.startswith("00") and 11 <= len(digits) <= 16 and _CODES.match(digits, 2) is not None


#: Words for telephones near a number, not only right before it.
_NEAR = load_pattern("phone near")
_NEIGHBOUR = re.compile(r"\d[ \t,;|/]{1,8}$")


def _is_national_phone(text: str, start: int, stop: int, number: str) -> bool:
    """Return whether a number in a national format is a telephone number: at least two points.

    Brackets count two points, as does a nearby word for a telephone; other signs of one count one point each. A number
    beside another one loses a point: both may be columns of a table.
    """
    score = 2 * ("(" in number) + ("-" in number) + ("/" in number) + (number[0] in "0(")
    if _NEAR.search(text, max(0, start - 60), min(len(text), stop + 24)):
        score += 2
    is_quoted = text[start - 1 : start] == text[stop : stop + 1] == "'"
    if is_quoted and "VALUES" in text[max(0, start - 160) : start]:  # a string of an SQL statement
        score += 1
    text_after = text[stop : stop + 9]
    next_text = text_after.lstrip(" \t,;|/")
    is_before_number = next_text != text_after and next_text[:1].isdigit()
    if is_before_number or _NEIGHBOUR.search(text[max(0, start - 9) : start]):
        score -= 1
    return score >= 2


# ── bank accounts ───────────────────────────────────────────────────────────────────────────────────────────────────

_IBAN = re.compile(r"[A-Z]{2}[0-9]{2}(?>(?:[ \u00a0-]?[A-Z0-9]){11,30})")
_LOWER_CASE_IBAN = re.compile(r"[a-z]{2}[0-9]{2}(?>(?:[ \u00a0-]?[a-z0-9]){11,30})")


def find_ibans(text: str, scan_budget: ScanBudget) -> Iterator[Detection]:
    """Find international bank account numbers with valid length and checksum."""
    for match in chain(
        _IBAN.finditer(text), _LOWER_CASE_IBAN.finditer(text) if "iban" in text.lower() else ()
    ):
        scan_budget.spend(50)
        start, candidate = match.start(), match[0].upper()
        size = load_word_lists()["ibans"].get(candidate[:2])
        if not size or _joins_word(text[start - 1 : start]):
            continue
        offsets = [offset for offset, char in enumerate(candidate) if char.isalnum()][:size]
        if len(offsets) < size:
            continue
        end = start + offsets[-1] + 1  # the match may go on into the next word
        if text[end : end + 1].isalnum():
            continue
        account = "".join(candidate[offset] for offset in offsets)
        number = "".join(str(int(char, 36)) for char in account[4:] + account[:4])
        if int(number) % 97 == 1:
            yield Detection(start, end, "iban")


# ── payment cards ───────────────────────────────────────────────────────────────────────────────────────────────────

_CARD = load_pattern("card")
#: Ungrouped digits, which also look like ids and article numbers: only of issuers with narrow ranges.
_PLAIN = load_pattern("card plain")
#: A group of four before a group of four: "DE89 ", "1234-".
_GROUP_BEFORE = re.compile(r"(?<![0-9A-Za-z])(?:[A-Z]{2}[0-9]{2}|[0-9]{4})[ \u00a0-]$")
_PAID = load_pattern("card paid")
_ISSUERS = load_pattern("card issuers")


def find_card_numbers(text: str, scan_budget: ScanBudget) -> Iterator[Detection]:
    """Find numbers of payment cards: a known issuer, the usual grouping, a valid Luhn checksum."""
    for match in _CARD.finditer(text):
        scan_budget.spend(50)
        start, gap = match.start(), match["gap"]
        previous_character = text[start - 1 : start]
        if _joins_word(previous_character) or previous_character in ("_", ".", "-", "/"):
            continue
        if gap and previous_character == gap and _GROUP_BEFORE.search(text, max(0, start - 8), start):
            continue  # part of a longer number, such as a bank account with a wrong checksum
        digits = match[0].replace(gap, "") if gap else match[0]
        if not check_luhn(digits) or not _ISSUERS.fullmatch(digits) or len(set(digits)) < 2:
            continue
        if gap is not None or _is_payment_number(text, start, digits):
            yield Detection(start, match.end(), "credit_card")


def _is_payment_number(text: str, start: int, digits: str) -> bool:
    """Return whether ungrouped digits are a card number, not an id: by the issuer, or by the text before them."""
    if _PLAIN.fullmatch(digits) and not _NUMBERED.search(text, max(0, start - 24), start):
        return True
    return _PAID.search(text, max(0, start - 40), start) is not None
