"""Detectors of national identity numbers, of more than ten countries, and of passport numbers.

`privacy-numbers.jsonl` has their shapes, names and sources, the checks are here: ranges (US), mod 97 (FR, BE), mod 23
(ES), odd and even letters (IT), weights (NL, PL, BR, CN), ISO 7064 mod 11,10 (DE), Luhn (SE, CA), Verhoeff (IN).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from acms.privacy.detector_types import Detection, ScanBudget
from acms.privacy.rules import compile_pattern, get_word_set, join_literals, load_table_rows


def _weighted_sum(digits: str, weights: tuple[int, ...]) -> int:
    return sum(int(digit) * weight for digit, weight in zip(digits, weights, strict=False))


def check_luhn(digits: str) -> bool:
    """Return whether the Luhn checksum of a number is valid."""
    total = sum(map(int, digits[::-2]))
    for digit in digits[-2::-2]:
        total += sum(divmod(2 * int(digit), 10))
    return total % 10 == 0


def _check_cpf(digits: str) -> bool:
    """Check the two last digits of a Brazilian CPF: each a weighted sum of the digits before it, modulo 11."""
    if len(set(digits)) == 1:  # such as 111.111.111-11, which has valid check digits but is never issued
        return False
    for index in (9, 10):
        weights = tuple(range(index + 1, 1, -1))
        if _weighted_sum(digits, weights) * 10 % 11 % 10 != int(digits[index]):
            return False
    return True


def _check_iso_11_10(digits: str) -> bool:
    product = 10
    for digit in digits[:-1]:
        product = 2 * ((int(digit) + product) % 10 or 10) % 11
    return (11 - product) % 10 == int(digits[-1]) and len(set(digits[:10])) in (8, 9)


_LETTERS = (1, 0, 5, 7, 9, 13, 15, 17, 19, 21, 2, 4, 18, 20, 11, 3, 6, 8, 12, 14, 16, 10, 22, 25, 24, 23)
_ODD = dict(zip("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ", _LETTERS[:10] + _LETTERS, strict=True))


def _check_codice_fiscale(code: str) -> bool:
    even_sum = sum(int(char) if char.isdigit() else ord(char) - 65 for char in code[1:15:2])
    return (sum(_ODD[char] for char in code[:15:2]) + even_sum) % 26 == ord(code[15]) - 65


def _check_dni(code: str) -> bool:
    number = code[:-1].translate(
        str.maketrans("XYZ", "012")
    )  # foreigners have a letter in place of the first digit
    return "TRWAGMYFPDXBNJZSQVHLCKE"[int(number) % 23] == code[-1]


def _check_verhoeff(digits: str) -> bool:
    check = 0
    for index, digit in enumerate(reversed(digits)):
        permuted = int(digit)
        for _ in range(index % 8):
            permuted = int("1576283094"[permuted])
        # The dihedral group of ten: turns and mirrored turns.
        is_mirrored, turn = divmod(check, 5)
        mirrors, added_turn = divmod(permuted, 5)
        turn = turn - added_turn if is_mirrored else turn + added_turn
        check = 5 * (is_mirrored ^ mirrors) + turn % 5
    return check == 0


def _check_nir(code: str) -> bool:
    body = code[:13].replace("2A", "19").replace("2B", "18")  # the two departments of Corsica
    return 97 - int(body) % 97 == int(code[13:])


def _check_rijksregister(digits: str) -> bool:
    # For people born since 2000, a 2 is put before the number.
    return any(97 - int(start + digits[:9]) % 97 == int(digits[9:]) for start in ("", "2"))


def _check_ssn(digits: str) -> bool:
    area, group, serial = digits[:3], digits[3:5], digits[5:]
    return area[0] != "9" and area not in ("000", "666") and group != "00" and serial != "0000"


_WEIGHTS = (7, 9, 10, 5, 8, 4, 2, 1, 6, 3)
#: Whether the check digits of a number are right, by the name that the rows of data give to a check.
_CHECKS: dict[str, Callable[[str], bool]] = {
    "any": bool, "ssn": _check_ssn, "nir": _check_nir, "dni": _check_dni, "fiscale": _check_codice_fiscale,
    "cpf": _check_cpf, "steuer": _check_iso_11_10, "rijk": _check_rijksregister, "luhn": check_luhn,
    "verhoeff": _check_verhoeff, "personnummer": lambda digits: check_luhn(digits[-10:]),
    "bsn": lambda digits: not _weighted_sum(digits, (9, 8, 7, 6, 5, 4, 3, 2, -1)) % 11,
    "pesel": lambda digits: not _weighted_sum(digits, (1, 3, 7, 9, 1, 3, 7, 9, 1, 3, 1)) % 10,
    "resident": lambda digits: "10X98765432"[_weighted_sum(digits, _WEIGHTS + _WEIGHTS[:7]) % 11] == digits[-1],
}  # fmt: skip
_CONTINUES = re.compile(r"[\w/]|[.-]\w")
_OTHER_NUMBER = re.compile(
    r"(?i)(?:part|order|ref\w*|sku|ticket|invoice|tracking|serial|case|item|model|lot|bestell\w*)[ .:#a-z]{0,8}$"
)
_SEPARATORS = re.compile(r"[ .+-]")


def find_national_ids(text: str, lower_text: str, scan_budget: ScanBudget) -> Iterator[Detection]:
    """Find national identity numbers."""
    for row in load_table_rows("numbers"):
        names = row["names"]
        if names and not any(name in lower_text for name in names):
            continue
        for match in compile_pattern(row["shape"]).finditer(text):
            scan_budget.spend(100)
            start = match.start()
            text_before = lower_text[max(0, start - 64) : start]  # a label and a few words
            if text_before[-1:].isalnum() or text_before[-1:] in ("_", ".", "+", "/", "-"):
                continue
            if names and not any(name in text_before for name in names):
                continue
            if _CONTINUES.match(text, match.end()) or _OTHER_NUMBER.search(text_before):
                continue
            if _CHECKS[row["check"]](_SEPARATORS.sub("", match[0])):
                yield Detection(start, match.end(), "national_id")


_PASSPORT = re.compile(join_literals(list(get_word_set("passport"))))
#: Letters and digits of a passport: seven to nine, most of them digits; German ones mix them.
_VALUE = re.compile(
    r"(?<![\w.+/-])(?=(?:[A-Z]{0,9}[0-9]){4})(?:[A-Z]{1,3}[0-9]{6,8}|[0-9]{2}[A-Z]{2}[0-9]{5}|[CFGHJKLMNPRTVWXYZ][0-9A-Z]{8}|[0-9]{8,9})(?![\w/]|[.-]\w)"
)


def find_passports(text: str, lower_text: str, scan_budget: ScanBudget) -> Iterator[Detection]:
    """Find passport numbers by their shape, at most 40 characters after the word on the same line."""
    for name in _PASSPORT.finditer(lower_text):
        scan_budget.spend(100)
        stop = name.end() + 40
        line = lower_text.find("\n", name.end(), stop)
        value = _VALUE.search(text, name.end(), line if line >= 0 else stop)
        if value and not _OTHER_NUMBER.search(lower_text, max(0, value.start() - 24), value.start()):
            yield Detection(value.start(), value.end(), "passport")
