"""Credentials in headers: `Authorization`, `Cookie`."""

from __future__ import annotations

import re
from binascii import Error as BinasciiError
from binascii import a2b_base64

from acms.privacy.plausibility import DIGIT, EXPRESSION, LETTER, placeholder, rest_of
from acms.privacy.tokens import Found

_AUTH = re.compile(
    r"""["'`\]]{0,2}(?:,[ \t\n]{0,16}["']?value["']?)?[ \t]{0,4}[:=,]?[ \t]{0,4}(?:[frb]?["'`])?"""
    r"""(?:(?P<scheme>bearer|basic|token|apikey|api-key|ssws|digest)(?:[ \t:]{1,4}|%20|\+)"""
    r"""(?:["'`][ \t]?[+.][ \t]?["'`])?)?(?P<value>[A-Za-z0-9_.~+/=@-]{8,200}+)""",
    re.IGNORECASE,
)
_COOKIE = re.compile(
    r"""["'`]{0,2}[ \t]{0,4}[:=][ \t]{0,4}["'`]?(?:[\w.-]{1,64}=[^;\s"'`]{0,512}+;[ \t]?){0,20}?"""
    r"""(?P<name>[\w.-]{0,40}(?:sess|sid|auth|token|jwt|remember)[\w.-]{0,40})="""
    r"""(?P<value>[^;\s"'`]{8,2048}+)""",
    re.IGNORECASE,
)


def _is_pair(value: str) -> bool:
    """Tell whether base64 holds `user:password`."""
    try:
        return b":" in a2b_base64(value[: len(value) // 4 * 4])
    except BinasciiError:
        return False


def header(text: str, name: re.Match[str]) -> Found | None:
    """Return the credential of a header whose name was found."""
    if name.lastgroup == "cookie":
        match = _COOKIE.match(text, name.end())
        if match and not placeholder(match["value"]):
            return Found(match.start("value"), match.end("value"), "token")
        return None
    match = _AUTH.match(text, name.end())
    if not match or text[match.start("value") - 1] not in " \t:=\"'`,0+":
        return None
    value, scheme = match["value"].rstrip("."), (match["scheme"] or "").lower()
    if name[0] == "bearer":
        if text[name.end() : name.end() + 1] not in " \t:=%" or scheme:
            return None
        scheme = "bearer"
    telling = DIGIT.search(value) is not None and LETTER.search(value) is not None
    if placeholder(value) or EXPRESSION.fullmatch(value):
        return None
    if scheme == "basic" and len(value) >= 8 and _is_pair(value):
        return Found(match.start("value"), rest_of(text, match.start("value") + len(value)), "password")
    if telling and len(value) >= (12 if scheme else 16) and not (value.isupper() and "-" in value):
        return Found(match.start("value"), rest_of(text, match.start("value") + len(value)), "bearer_token")
    return None
