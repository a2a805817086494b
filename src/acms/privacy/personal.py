"""What belongs to a person: email addresses, telephone numbers, bank accounts, payment cards.

Numbers are taken by their shape and their checksum: ISO 13616 (IBAN, mod 97), ISO/IEC 7812 (cards, Luhn), E.164
(telephone numbers, at most fifteen digits after the country code).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain

from acms.privacy.plausibility import names_itself
from acms.privacy.tokens import VARIABLE, Found

# ── email addresses ─────────────────────────────────────────────────────────────────────────────────────────────────

_LOCAL = re.compile(r"""[^\s@<>()\[\]{},;:"`|\\/=&?#!*^~$]{1,64}+""")
_PLAIN_NAME = re.compile(r"(?<=[\u2e80-\ud7af])[A-Za-z0-9][!-~]*$")
_DOMAIN = re.compile(
    r"@(?:[^\W_](?:[\w-]{0,61}[^\W_])?\.){1,6}([A-Za-z]{2,24}|xn--[a-z0-9-]{2,30})(?![^\W\u2e80-\ud7af]|-)"
)
_SPELT = re.compile(
    r"(?<![\w.])[\w.+-]{1,64}(?: ?(?:\[at\]|\(at\)|\{at\}) ?"
    r"(?:[\w-]{1,63} ?(?:\.|\[dot\]|\(dot\)|\{dot\}| dot ) ?){1,4}"
    r"| at (?:[\w-]{1,63}(?: dot |\.(?=[\w-]{1,63} dot ))){1,4})[A-Za-z]{2,12}(?!\w)"
)
#: What looks like the domain of an address and is the name of a file: image@2x.png.
_FILES = frozenset(
    "png jpg jpeg gif svg webp ico css scss js mjs ts tsx jsx json html htm txt pdf xml yml yaml log lock "
    "toml ini cfg map gz tar whl exe dll class jar tmp".split()
)
#: Accounts of machines, written before the host in addresses of repositories and in unit names.
_MACHINES = frozenset("git hg svn ssh".split())
#: Domains that no mail is sent to; people of a company may write "anna.keller@corp.local" all the same.
_INSIDE = frozenset("local localhost localdomain internal lan intranet invalid arpa home cluster".split())
#: After a host: a path, an address of a repository, the prompt of a shell, a call.
_AFTER_HOST = re.compile(r"(?::[/~]|:[ \t]{0,2}[$#]|:[\w.-]{1,40}/|[ \t]~|\(|\[)")
_RELEASE = re.compile(r"@v?\d+\.\d")
_ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{24,64}", re.IGNORECASE)
_COPY = re.compile(r"\b(?:scp|rsync)[ \t]")
_SHELL = re.compile(
    r"(?:s(?<!\ws)(?:sh(?:fs|-copy-id)?|ftp|cp)|m(?<!\wm)osh|r(?<!\wr)sync)"
    r"(?:[ \t]{1,4}-[A-Za-z]\S{0,24}(?:[ \t]{1,4}[\w./:~-]{1,40}+)?){0,4}[ \t]{1,4}$"
)
_MESSAGE = re.compile(
    r"(?:message-id|in-reply-to|references|content-id|msgid)[ \t]{0,2}[:=][ \t]{0,2}"
    r"(?:<[^<>\s]{1,120}+>[,\s]{1,4}){0,3}<?[^<>\s@]{0,60}$"
)


def _of_a_machine(text: str, start: int, name: str, domain: re.Match[str]) -> bool:
    """Tell whether what looks like an email address names a host, a message, a release, an account of a network."""
    before = text[start - 1 : start]
    if before in ("@", "$", "%"):
        return True  # a handle of the fediverse, a variable
    inside = domain[1].lower() in _INSIDE and "." not in name
    if inside or _RELEASE.match(domain[0]) or _ID.fullmatch(name) or _AFTER_HOST.match(text, domain.end()):
        return True
    if text[domain.end() : domain.end() + 1] == ":" and _COPY.search(text, max(0, start - 80), start):
        return True
    if name in _MACHINES and text[domain.end() : domain.end() + 1] in ":/":
        return True
    if (
        "ss" not in (near := text[max(0, start - 160) : start].lower())
        and "-" not in near
        and "ync" not in near
    ):
        return "referen" in near and _MESSAGE.search(near) is not None
    return _SHELL.search(near) is not None or _MESSAGE.search(near) is not None


_BOX = re.compile(
    r"(?i)(?:your?|name|e-?mail|(?:e-?mail|mail)[._-]?address|user[._-]?name|"
    r"(?:your|my|full|first|last|user|some)[._-]?(?:name|e?mail|address|user|id)|f(?:irst)?(?:name)?[._-]l(?:ast)?(?:name)?|"
    r"vorname[._-]nachname|pr[ée]nom[._-]nom|nom|nombre[._-]apellidos?|nombre|nome[._-]cognome|nome|someone|somebody|"
    r"anyone|local[._-]?part|recipient|foo|bar|x{2,}|abc)"
)
_SITE = re.compile(
    r"(?i)(?:[a-z]{2,6}\.)?(?:your|my|some)?[._-]?(?P<site>domain|company|example|site|website|host|hostname|mail|email|"
    r"provider|organi[sz]ation|org|server|service|firma|beispiel|exemple|ejemplo|esempio|empresa|entreprise|foo|bar)"
    r"(?:name)?\.(?:[a-z]{2,4}\.)?[a-z]{2,4}"
)
_UNREAD = re.compile(r"(?i)(?:no|do-?not|dont)[._-]?reply")


def _nobodys(name: str, domain: str) -> bool:
    """Tell whether an email address shows how one is written, or that nobody reads what is sent there."""
    if domain.lower().endswith(".tld") or _UNREAD.fullmatch(name):
        return True
    site = _SITE.fullmatch(domain)
    if not site:
        return False
    return _BOX.fullmatch(name) is not None or (name.lower() == "user" and "exam" not in site["site"].lower())


def emails(text: str) -> Iterator[Found]:
    """Find email addresses."""
    after = 0
    for domain in _DOMAIN.finditer(text):
        at = domain.start()
        local = _LOCAL.match(text[max(after, at - 64) : at][::-1])
        name = local[0][::-1].lstrip(".-+'%") if local else ""
        if not name.isascii() and (plain := _PLAIN_NAME.search(name)):
            name = plain[0]  # what stands before it is a sentence without blanks
        if (
            name
            and not name.endswith(".")
            and domain[1].lower() not in _FILES
            and not _USERINFO.search(text, max(0, at - 160), at)
            and not _nobodys(name, domain[0][1:])
            and not _of_a_machine(text, at - len(name), name, domain)
        ):
            yield Found(at - len(name), domain.end(), "email")
        after = domain.end()
    if "dot" in text and ("[at]" in text or "(at)" in text or "{at}" in text or " at " in text):
        for match in _SPELT.finditer(text):
            if "dot" in match[0]:
                yield Found(match.start(), match.end(), "email")


#: What stands before the host of an address of the web.
_USERINFO = re.compile(r"://[^\s/?#@]{0,128}$")
_USER = re.compile(
    r"""(?<![\w.@/${%-])([A-Za-z][\w.-]{0,31}):([^\s:@"'`<>/]{1,64}(?:@[^\s:@"'`<>/,;]{1,64})?)$"""
)
_HOST = re.compile(r"@[A-Za-z0-9][\w.-]{0,120}+(?::\d{2,5}|/)|@(?:tcp|udp|unix)\(")


def logins(text: str) -> Iterator[Found]:
    """Find `user:password@host:port` without a scheme."""
    at = after = 0
    while host := _HOST.search(text, at):
        at = host.start() + 1
        user = _USER.search(text, max(after, host.start() - 98), host.start())
        if (
            user
            and user[1].lower() not in _HEADERS
            and not VARIABLE.fullmatch(user[2])
            and not names_itself(user[2])
        ):
            at = after = host.end()
            yield Found(user.start(), after, "connection_string")


_HEADERS = frozenset("mailto to from cc bcc email mail sip sips".split())

# ── telephone numbers ───────────────────────────────────────────────────────────────────────────────────────────────

#: Digits in groups, with what may stand between the groups of one number.
_DIGITS = re.compile(r"[+(0-9](?:[0-9()]|[ \u00a0\u2009\u202f.\-/]{1,3}(?=[0-9(])){5,40}+")


def _joined(char: str) -> bool:
    """Tell whether a number that follows a character is part of a word: not in scripts that put no blanks between."""
    return char.isalnum() and not "\u2e80" <= char <= "\ud7af"


_BEFORE = frozenset("./:#$€£=+-,")
_NATIONAL = re.compile(
    # North America: (212) 555-0142, 212-555-0142, 1-800-555-0199, 212 555 0142
    r"(?:1[ .\-])?(?:\([2-9]\d{2}\)[ .\-]?[1-9]\d{2}[ .\-]\d{4}|[2-9]\d{2}(?P<gap>[ .\-])[1-9]\d{2}(?P=gap)\d{4})"
    # a trunk zero: 030 1234567, 0171/1234567, 01 23 45 67 89, (020) 7946 0958, 020 7946 0958, 03-1234-5678
    r"|\(0[1-9]\d{0,4}\) ?\d{3,8}(?:[ \-]\d{1,6}){0,3}|06[ \-]\d{8}|0[1-9](?:[ .\-]\d{2}){4}|0[1-9][ \-]\d{4}[ \-]\d{4}"
    r"|0[1-9]\d{2}(?: \d{2}){3}|8 \(9\d\d\) \d{3}-\d\d-\d\d"
    r"|0[1-9]\d{1,4} ?[ /\-] ?\d{3,9}(?:[ \-]\d{2,5}){0,3}"
    # Brazil: (11) 91234-5678
    r"|\([1-9]\d\) ?9?\d{4}-\d{4}"
)
_CALLED = re.compile(
    r"(?:\b(?:tele?(?:phone|fon|fone)?|phones?|mobiles?|mobil|m[óo]vil|cell(?:phone)?|handy|fax|whats ?app|sms|dial|"
    r"ring|contact|hotline|call(?:ed|er|ing)|call(?: me| us| him| her| them)?|text (?:me|him|her|us)|"
    r"reach (?:me|us|him|her)|(?:my|his|her|their|our|meine|seine|ihre) (?:new |neue )?(?:number|nummer)|"
    r"(?:mon|son|notre) numéro|m[óo]j numer|chiama(?:mi|ci)|ll[áa]ma(?:me|nos)|bellen|appele[rz][- ](?:moi|nous)|"
    r"joindre|erreich(?:en|bar)|(?:mi|su) número|rufnummer)|tel\.|"
    r"téléphone|teléfono|☎|📞|📱|手机|电话|電話|携帯|전화|телефон|номер)(?:号码?|番号|번호)?"
    r"(?:[ _]?(?:number|no\.?|nr\.?|nummer|#))?['\"]?[ \t]{0,3}"
    r"(?:is|at|on|under|unter|op|al|au|to|ist|est|es|è|é|是|は|：|:|=|-)?[ \t]{0,3}"
    r"(?:is |at |on |el |le |il |o |das |die )?['\"]?$",
    re.IGNORECASE,
)
_DATE = re.compile(r"\d{1,2}[./ -]\d{1,2}[./ -](?:19|20)\d{2}|(?:19|20)\d{2}[./ -]\d{1,2}[./ -]\d{1,2}")
_SHORT = re.compile(
    r"(?i)(?:\b|_)(?:isbn|issn|ean|gtin|upc|barcode|imei|iccid|order|invoice|ticket|ref|reference|version|part|sku|serial|"
    r"ids?|uid|no|nr|snowflake|tweet|status|channel|page|seq|ack|offset|batch|lot|model|case|account|tracking|customer|"
    r"member|item|bestellung|commande|pedido|ordine|dossier|facture|rechnung|auftrag|vertrag|sendung|"
    r"(?!telefon|ruf|handy|mobil|fax|tel)\w{0,14}n(?:umme)?r|job|run|build|issue|voucher|coupon|gift|loyalty|code|meeting)"
    r"['\"]?[ .:=#]*['\"]?$"
)
#: What stands before digits in a dump of bytes.
_PAIRS = re.compile(r"(?<![0-9A-Za-z])(?:[0-9A-Fa-f]{2} {1,2}){2}$")
_COUNTED = re.compile(r"00\d{0,3}[ .\-/]+0")
#: Country codes of E.164 by their first digits; what is not here is nobody's.
_CODES = re.compile(
    r"1|20|21[1-368]|22\d|23\d|24\d|25\d|26\d|27|29[0179]|3[0-469]|35\d|37\d|38\d|4[013-9]|42[013]|5[1-8]|50\d|59\d|6[0-6]|67\d|68\d|69[0-2]|"
    r"7|8[1246]|80\d|85[02356]|87\d|88\d|9[0-58]|96\d|97\d|99[2-68]"
)


def phones(text: str) -> Iterator[Found]:
    """Find telephone numbers: international ones, national ones written in groups, any that is called one."""
    for match in _DIGITS.finditer(text):
        start, number = match.start(), match[0].rstrip("( \u00a0\u2009\u202f.-/")
        stop = start + len(number)
        if number.count(")") > number.count("("):
            number = number.rstrip(")")
        elif number[:2] == "((" or (number[:1] == "(" and number.find(")") == len(number) - 1):
            start, number = start + 1, number[1:-1]
        digits = "".join(char for char in number if "0" <= char <= "9")
        before, after = text[start - 1 : start], text[stop : stop + 2]
        if (
            len(digits) < 7
            or len(set(digits)) < 3
            or _joined(before)
            or before in ("_", "+")
            or after[:1].isalnum()
        ):
            continue
        if after[:1] in ("_", "@") or (after[:1] in (".", ",", ":", "-", "/") and after[1:].isdigit()):
            continue
        if number[:2] == "+ " or number[:2] == "+.":
            continue
        numbered = _SHORT.search(text, max(0, start - 24), start) is not None
        if number[0] == "+" and 8 <= len(digits) <= 15:
            there = _CODES.match(digits) is not None
        elif (
            digits[:2] == "00"
            and 11 <= len(digits) <= 16
            and _CODES.match(digits, 2)
            and not _COUNTED.match(number)
        ):
            there = (
                len(number) > len(digits) and "." not in number and before not in _BEFORE and not numbered
            ) or _called(text, start)
        elif numbered or _DATE.search(number) or _PAIRS.search(text, max(0, start - 9), start):
            there = numbered and len(digits) <= 13 and _called(text, start)
        elif 9 <= len(digits) <= 12 and before not in _BEFORE and _NATIONAL.fullmatch(number):
            there = _written(text, start, stop, number)
        else:
            there = len(digits) <= 13 and _called(text, start)
        if there:
            yield Found(start, start + len(number), "phone")


#: What is said of telephones near a number, not only right before it.
_NEAR = re.compile(
    r"(?i)phone|fon\b|mobil|handy|\btel\b|\bfax|\bsms|\btext(?:ed)? |\bcall|\breach|\bring\b|\bdial|contact|whatsapp|"
    r"number|numéro|número|nummer|\bcell|m[óo]vil|t[ée]l[ée]|☎|📞|📱|手机|电话|電話|携帯|전화|тел|"
    r"erreich|anruf|rufen|durchwahl|\bll[áa]m[ae]|\bbell?en\b|\bbel me|joindre|joignable|"
    r"appele[rz]|chiam[ai]|\bligu?[ae]|zadzwo|dzwoni|звон|(?m:^)[ \t]*[TMFP][.:]?[ \t]{1,2}(?=[(0])"
)
_NEIGHBOUR = re.compile(r"\d[ \t,;|/]{1,8}$")


def _written(text: str, start: int, stop: int, number: str) -> bool:
    """Tell whether a number in a national format is a telephone's: by brackets, hyphens or what is said near."""
    score = 2 * ("(" in number) + ("-" in number) + ("/" in number) + (number[0] in "0(")
    score += 2 * (_NEAR.search(text, max(0, start - 60), min(len(text), stop + 24)) is not None)
    if (
        text[start - 1 : start] == text[stop : stop + 1] == "'"
        and "VALUES" in text[max(0, start - 160) : start]
    ):
        score += 1
    before, after = text[max(0, start - 9) : start], text[stop : stop + 9].lstrip(" \t,;|/")
    score -= _NEIGHBOUR.search(before) is not None or (after != text[stop : stop + 9] and after[:1].isdigit())
    return score >= 2


def _called(text: str, start: int) -> bool:
    return text.endswith("wa.me/", 0, start) or _CALLED.search(text, max(0, start - 36), start) is not None


# ── bank accounts ───────────────────────────────────────────────────────────────────────────────────────────────────

#: Length of an IBAN by country, from the IBAN registry of SWIFT.
_LENGTHS = {
    pair[:2]: int(pair[2:])
    for pair in """
    AD24 AE23 AL28 AT20 AZ28 BA20 BE16 BG22 BH22 BI27 BR29 BY28 CH21 CR22 CY28 CZ24 DE22 DJ27 DK18 DO28 EE20
    EG29 ES24 FI18 FK18 FO18 FR27 GB22 GE22 GI23 GL18 GR27 GT28 HN28 HR21 HU28 IE22 IL23 IQ23 IS26 IT27 JO30 KW30 KZ20
    LB28 LC32 LI21 LT20 LU20 LV21 LY25 MC27 MD24 ME22 MK19 MN20 MR27 MT31 MU30 NI28 NL18 NO15 OM23 PK24 PL28 PS29 PT25
    QA29 RO24 RS22 RU33 SA24 SC31 SD18 SE24 SI19 SK24 SM27 SO23 ST25 SV28 TL23 TN24 TR26 UA29 VA22 VG24 XK20 YE30
    """.split()
}
_IBAN = re.compile(r"[A-Z]{2}[0-9]{2}(?:[ \u00a0-]?[A-Z0-9]){11,30}+")
_SMALL = re.compile(r"[a-z]{2}[0-9]{2}(?:[ \u00a0-]?[a-z0-9]){11,30}+")


def ibans(text: str) -> Iterator[Found]:
    """Find international bank account numbers whose length and checksum are right."""
    for match in chain(_IBAN.finditer(text), _SMALL.finditer(text) if "iban" in text.lower() else ()):
        raw = match[0].upper()
        size = _LENGTHS.get(raw[:2])
        if not size or _joined(text[match.start() - 1 : match.start()]):
            continue
        places = [place for place, char in enumerate(raw) if char.isalnum()][:size]
        if len(places) < size:
            continue
        end = places[-1] + 1  # what follows may be the next word
        if not text[match.start() + end : match.start() + end + 1].isalnum():
            number = "".join([raw[place] for place in places])
            turned = "".join([str(int(char, 36)) for char in number[4:] + number[:4]])
            if int(turned) % 97 == 1:
                yield Found(match.start(), match.start() + end, "iban")


# ── payment cards ───────────────────────────────────────────────────────────────────────────────────────────────────

_CARD = re.compile(
    r"[2-6][0-9]{3}(?:(?P<gap>[ \u00a0-])(?:[0-9]{4}(?P=gap)[0-9]{4}(?P=gap)[0-9]{4}|[0-9]{6}(?P=gap)[0-9]{4,5})"
    r"|[0-9]{9,15}+)(?![\w]|[.-]\d|,\d{3}(?!\d))"
)
#: Digits alone, for they are also what ids and article numbers look like: only of issuers whose ranges are narrow.
_PLAIN = re.compile(
    r"4\d{15}|(?:5[1-5]\d{2}|222[1-9]|22[3-9]\d|2[3-6]\d{2}|27[01]\d|2720)\d{12}|3[47]\d{13}|3(?:0[0-5]|[689]\d)\d{11}|"
    r"6(?:011|5\d{2}|4[4-9]\d)\d{12}|62\d{14}|35(?:2[89]|[3-8]\d)\d{12}"
)
#: A group of four before a group of four: "DE89 ", "1234-".
_PART = re.compile(r"(?<![0-9A-Za-z])(?:[A-Z]{2}[0-9]{2}|[0-9]{4})[ \u00a0-]$")
_PAID = re.compile(
    r"(?i)(?:cards?|karten?|carte|tarjeta|carta|cart[ãa]o|kaart|kort|visa|maestro|mastercard|amex|unionpay|\bpan|\bcc|卡号|卡|カード|карт\w*)"
    r"[^\n0-9]{0,24}$"
)
#: Twice a digit, and the digits of that added up.
_DOUBLED = (0, 2, 4, 6, 8, 1, 3, 5, 7, 9)
_ISSUERS = re.compile(
    r"4(?:\d{12}|\d{15}|\d{18})|(?:5[1-5]\d{2}|222[1-9]|22[3-9]\d|2[3-6]\d{2}|27[01]\d|2720)\d{12}|3[47]\d{13}|"
    r"3(?:0[0-59]|[689]\d)\d{11,13}|6(?:011|5\d{2}|4[4-9]\d)\d{12,15}|62\d{14,17}|35(?:2[89]|[3-8]\d)\d{12,15}|"
    r"(?:50|5[6-9]|6\d)\d{10,17}"
)


def cards(text: str) -> Iterator[Found]:
    """Find numbers of payment cards: a known issuer, grouped as cards are, Luhn's check right."""
    for match in _CARD.finditer(text):
        before = text[match.start() - 1 : match.start()]
        gap = match["gap"]
        if _joined(before) or before in ("_", ".", "-", "/"):
            continue
        if gap and before == gap and _PART.search(text, max(0, match.start() - 8), match.start()):
            continue  # a part of a longer number, such as an account whose check is wrong
        digits = match[0].replace(gap, "") if gap else match[0]
        total = sum(map(int, digits[::-2])) + sum(map(_DOUBLED.__getitem__, map(int, digits[-2::-2])))
        if total % 10 or not _ISSUERS.fullmatch(digits) or len(set(digits)) < 2:
            continue
        at = match.start()
        alone = gap is None and (not _PLAIN.fullmatch(digits) or _SHORT.search(text, max(0, at - 24), at))
        if not alone or _PAID.search(text, max(0, at - 40), at):
            yield Found(match.start(), match.end(), "credit_card")
