"""What belongs to a person: email addresses, telephone numbers, bank accounts, payment cards.

Numbers are taken by their shape and their checksum: ISO 13616 (IBAN, mod 97), ISO/IEC 7812 (cards, Luhn), E.164 (telephone
numbers, at most fifteen digits after the country code).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from acms.core.detectors import Found

# ── email addresses ─────────────────────────────────────────────────────────────────────────────────────────────────

_LOCAL = re.compile(r"""[^\s@<>()\[\]{},;:"'`|\\/=&?#!*^~%$]{1,64}+""")
_DOMAIN = re.compile(r"@(?:[^\W_](?:[\w-]{0,61}[^\W_])?\.){1,6}([A-Za-z]{2,24}|xn--[a-z0-9-]{2,30})(?![\w-])")
_SPELT = re.compile(
    r"(?<![\w.])([\w.+-]{1,64}) ?(?:\[at\]|\(at\)|\{at\}| at ) ?((?:[\w-]{1,63} ?(?:\.|\[dot\]|\(dot\)|\{dot\}| dot ) ?){1,4}"
    r"[A-Za-z]{2,12})(?!\w)"
)
#: What looks like the domain of an address and is the name of a file: image@2x.png.
_FILES = frozenset(
    "png jpg jpeg gif svg webp ico css scss js mjs ts tsx jsx json html htm txt pdf xml yml yaml log lock "
    "toml ini cfg map gz tar whl exe dll class jar tmp".split()
)
#: Accounts of machines, written before the host in addresses of repositories and in unit names.
_MACHINES = frozenset("git hg svn ssh".split())


def emails(text: str) -> Iterator[Found]:
    """Find email addresses."""
    at, after = text.find("@"), 0
    while at >= 0:
        domain = _DOMAIN.match(text, at)
        if domain:
            local = _LOCAL.match(text[max(after, at - 64) : at][::-1])
            name = local[0][::-1].lstrip(".-+") if local else ""
            if (
                name
                and not name.endswith(".")
                and domain[1].lower() not in _FILES
                and not (name in _MACHINES and text[domain.end() : domain.end() + 1] in ":/")
            ):
                yield Found(at - len(name), domain.end(), "email")
            after = domain.end()
        at = text.find("@", max(after, at + 1))
    if "dot" in text and ("[at]" in text or "(at)" in text or "{at}" in text or " at " in text):
        for match in _SPELT.finditer(text):
            if "dot" in match[2] and ("at " not in match[0] or " dot " in match[2]):
                yield Found(match.start(), match.end(), "email")


_LOGIN = re.compile(
    r"""(?<![\w.@/-])([A-Za-z][\w.-]{0,31}):([^\s:@"'`<>/]{3,64})@([A-Za-z0-9][\w.-]{0,120}\w)(:\d{2,5}|/)"""
)


def logins(text: str) -> Iterator[Found]:
    """Find `user:password@host:port` without a scheme."""
    for match in _LOGIN.finditer(text):
        if match[1].lower() not in ("mailto", "to", "from", "cc", "bcc", "email", "mail", "sip", "sips"):
            yield Found(match.start(), match.end(), "connection_string")


# ── telephone numbers ───────────────────────────────────────────────────────────────────────────────────────────────

_GAP = r"[ \u00a0\u2009\u202f.\-/]"
_PLUS = re.compile(
    rf"(?<![\w+])(?:\+|(?<!\d)00(?=[1-9][ \u00a0\-/0-9]{{9}}))[ \u00a0]?[1-9(](?:[0-9()]|{_GAP}{{1,3}}(?=[0-9(])){{6,23}}+(?![0-9])"
)
_NATIONAL = re.compile(
    # North America: (212) 555-0142, 212-555-0142, 1-800-555-0199, 212 555 0142
    r"(?<![\w./:#$€£=+\-,])(?<!\d )(?:1[ .\-])?(?:\([2-9]\d{2}\)[ .\-]?[2-9]\d{2}[ .\-]\d{4}|[2-9]\d{2}(?P<a>[ .\-])[2-9]\d{2}(?P=a)\d{4})(?![\w]|[.\-/,:]\d| \d)"
    # a trunk zero: 030 1234567, 0171/1234567, 01 23 45 67 89, (0)20 7946 0958, 020 7946 0958, 04 1234 5678, 03-1234-5678
    r"|(?<![\w./:#$€£=+\-,])(?<!\d )(?:\(0[1-9]\d{1,4}\) ?\d{3,4}[ \-]?\d{3,6}|0[1-9](?:[ .\-]\d{2}){4}|0[1-9]\d{1,4} ?[ /\-] ?\d{3,9}(?:[ \-]\d{2,5}){0,3}"
    r"|0[1-9][ \-]\d{4}[ \-]\d{4})(?![\w]|[.\-/,:]\d| \d)"
    # Brazil: (11) 91234-5678
    r"|(?<![\w.])\([1-9]\d\) ?9?\d{4}-\d{4}(?!\w)"
)
_SAID = re.compile(
    r"(?:\btel(?:ephone|efon|éfono|efone|\.)?|\bphone|\bmobile?|\bcell(?:phone)?|\bhandy|\bfax|\bwhats ?app|\bsms|\bdial|\bring|"
    r"\bcall(?: (?:me|us|him|her|them))?|\btext(?: me| him| her| us)|\breach (?:me|us|him|her)|\bcontact|\bhotline|\bphone number|☎|📞|📱)"
    r"(?:[ \t]?(?:number|no\.?|nr\.?|nummer|#))?['\"]?[ \t]{0,3}(?:is|at|on|under|ist|me at|:|=|-)?[ \t]{0,3}(?:is |at |on )?['\"]?"
    r"(?P<number>\(?[0-9](?:[0-9()]|[ \u00a0.\-/]{1,3}(?=[0-9(])){5,20}+)(?![\w]|[.,:]\d)",
    re.IGNORECASE,
)
_DATE = re.compile(r"\d{1,2}[./ -]\d{1,2}[./ -](?:19|20)\d{2}|(?:19|20)\d{2}[./ -]\d{1,2}[./ -]\d{1,2}")
_SHORT = re.compile(
    r"(?i)\b(?:isbn|issn|order|invoice|ticket|ref|reference|version|part|sku|serial|id|no|nr)[ .:#]*$"
)
#: Country codes of E.164 by their first digits; what is not here is nobody's.
_CODES = re.compile(
    r"1|20|21[1-368]|22\d|23\d|24\d|25\d|26\d|27|29[0179]|3[0-469]|35\d|37\d|38\d|4[013-9]|42[013]|5[1-8]|50\d|59\d|6[0-6]|67\d|68\d|69[0-2]|"
    r"7|8[1246]|80\d|85[02356]|87\d|88\d|9[0-58]|96\d|97\d|99[2-68]"
)


def phones(text: str) -> Iterator[Found]:
    """Find telephone numbers: international ones, national ones written in groups, any that is called one."""
    if "+" in text or "00" in text:
        for match in _PLUS.finditer(text):
            digits = "".join(char for char in match[0] if char in "0123456789")
            number = digits[2:] if match[0][0] == "0" else digits
            if 8 <= len(number) <= 15 and _CODES.match(number) and len(set(number)) > 2:
                yield Found(match.start(), match.end() - (match[0][-1] == "("), "phone")
    for match in _NATIONAL.finditer(text):
        size = sum(char.isdigit() for char in match[0])
        if (
            9 <= size <= 12
            and not _DATE.fullmatch(match[0])
            and not _SHORT.search(text, max(0, match.start() - 14), match.start())
        ):
            yield Found(match.start(), match.end(), "phone")
    for match in _SAID.finditer(text):
        number = match["number"]
        size = sum(char.isdigit() for char in number)
        if 7 <= size <= 13 and not _DATE.match(number) and len(set(number)) > 3:
            yield Found(match.start("number"), match.start("number") + len(number.rstrip("-. /(")), "phone")


# ── bank accounts ───────────────────────────────────────────────────────────────────────────────────────────────────

#: Length of an IBAN by country, from the IBAN registry of SWIFT.
_LENGTHS = {
    pair[:2]: int(pair[2:])
    for pair in """AD24 AE23 AL28 AT20 AZ28 BA20 BE16 BG22 BH22 BI27 BR29 BY28 CH21 CR22 CY28 CZ24 DE22 DJ27 DK18 DO28 EE20
    EG29 ES24 FI18 FK18 FO18 FR27 GB22 GE22 GI23 GL18 GR27 GT28 HN28 HR21 HU28 IE22 IL23 IQ23 IS26 IT27 JO30 KW30 KZ20
    LB28 LC32 LI21 LT20 LU20 LV21 LY25 MC27 MD24 ME22 MK19 MN20 MR27 MT31 MU30 NI28 NL18 NO15 OM23 PK24 PL28 PS29 PT25
    QA29 RO24 RS22 RU33 SA24 SC31 SD18 SE24 SI19 SK24 SM27 SO23 ST25 SV28 TL23 TN24 TR26 UA29 VA22 VG24 XK20 YE30""".split()
}
_IBAN = re.compile(
    r"(?<![A-Za-z0-9])[A-Z]{2}[0-9]{2}(?:[ \u00a0-]?[A-Z0-9]){11,30}+|(?<![A-Za-z0-9])[a-z]{2}[0-9]{2}(?: [a-z0-9]{4}){2}(?: ?[a-z0-9]){3,22}+"
)


def ibans(text: str) -> Iterator[Found]:
    """Find international bank account numbers whose length and checksum are right."""
    for match in _IBAN.finditer(text):
        raw = match[0].upper()
        size = _LENGTHS.get(raw[:2])
        if not size:
            continue
        chars: list[str] = []
        end = 0
        for end, char in enumerate(raw, 1):  # noqa: B007  what follows may be the next word
            if char.isalnum():
                chars.append(char)
            if len(chars) == size:
                break
        after = text[match.start() + end : match.start() + end + 1]
        if len(chars) == size and not after.isalnum():
            turned = "".join(str(int(char, 36)) for char in chars[4:] + chars[:4])
            if int(turned) % 97 == 1:
                yield Found(match.start(), match.start() + end, "iban")


# ── payment cards ───────────────────────────────────────────────────────────────────────────────────────────────────

_CARD = re.compile(r"(?<![\w.\-/])[2-6][0-9]{3}(?:[ \u00a0-]?[0-9]){9,15}+(?![\w]|[.,-]\d)")
_ISSUERS = re.compile(
    r"4(?:\d{12}|\d{15}|\d{18})|(?:5[1-5]\d{2}|222[1-9]|22[3-9]\d|2[3-6]\d{2}|27[01]\d|2720)\d{12}|3[47]\d{13}|"
    r"3(?:0[0-59]|[689]\d)\d{11,13}|6(?:011|5\d{2}|4[4-9]\d)\d{12,15}|62\d{14,17}|35(?:2[89]|[3-8]\d)\d{12,15}|"
    r"(?:50|5[6-9]|6\d)\d{10,17}"
)
_GROUPS = re.compile(
    r"\d{13,19}|\d{4}([ \u00a0-])\d{4}\1\d{4}\1\d{4}(?:\1\d{1,3})?|\d{4}([ \u00a0-])\d{6}\2\d{4,5}"
)


def cards(text: str) -> Iterator[Found]:
    """Find numbers of payment cards: a known issuer, grouped as cards are, Luhn's check right."""
    for match in _CARD.finditer(text):
        digits = "".join(char for char in match[0] if char.isdigit())
        if not _GROUPS.fullmatch(match[0]) or not _ISSUERS.fullmatch(digits) or len(set(digits)) < 2:
            continue
        if len(digits) == len(match[0]) and _SHORT.search(text, max(0, match.start() - 14), match.start()):
            continue
        total = 0
        for index, char in enumerate(reversed(digits)):
            number = int(char) * (1 + index % 2)
            total += number - 9 if number > 9 else number
        if total % 10 == 0:
            yield Found(match.start(), match.end(), "credit_card")
