"""What values look like: words, placeholders and code that are no secrets, and what makes one look made up."""

from __future__ import annotations

import re

DIGIT = re.compile("[0-9]")
LETTER = re.compile(r"[^\W\d_]")
NOT_VALUES = frozenset(
    """string str text bool boolean int integer number float object any unknown undefined none null nil true false void
    required optional missing invalid incorrect wrong empty expired reset changed updated generated encrypted hashed
    protected secure secured strong weak short long too not here there this that same different correct valid stored
    saved set unset sent shown hidden visible masked redacted removed rotated revoked leaked exposed compromised
    safe yes no on off your the a an my our their his her its it what where when how why which who please enter
    forgot forgotten change default env environ process self request response config settings args kwargs input
    output field value label password passwort passwd secret token key credentials user username login admin email
    name type id url path file line char varchar data form html body header bearer basic digest api public private
    only never always also and or but if for from with without by in of to at as is was are be been being must
    should can could may might will would has have had do does did needed necessary used use using handled managed
    passed given provided supplied available unavailable accepted rejected denied allowed checked verified validated
    configured injected read loaded async raise return break continue throw await new function def class null assert
    print log import export super this self example sample dummy placeholder todo tbd n/a foobar xxx xxxx
    shift undef nullptr
    filtered omitted scrubbed elided snip suppressed unchanged kennwort contraseña senha wachtwoord passord lösenord
    hasło şifre heslo parola jelszó salasana adgangskode clave пароль 密码 密碼 パスワード 비밀번호 암호""".split()
)
PLACEHOLDER = re.compile(
    r"(?i)[<\[{(}].*|.*[>\]})]$|\$\$?[{(][^\s]*|(?-i:\$(?:[A-Z_][A-Z0-9_]*|[a-z_]+))|"
    r"%\w{1,40}%|%\(\w{1,40}\)s|%[sdrv]|\*+|x+|\.{2,}|…|_+|-+|#+|\?+|"
    r"[•●·]+|0+|@\w+@|(?:my|some|the|a|an)[\s_.-]\D*|"
    r"(?:your|insert|enter|replace|change|put|example|sample|dummy|fake|placeholder)[\s_.-].*|"
    r"your\w*|change_?me\w*|replace_?me\w*|.*placeholder.*|.*(?:[_-]here|_goes_here)|redacted.*|[\w/+=.-]*example[\w/+=.-]*|"
    r"(?:required|nullable|sometimes|string|confirmed|min:\d+)\|.*|to[_-]?do|tbd|n/a|env:\w+|vault:\S+|ref:\S+|op://\S+|secret[s]?[/.:]\S+|file:\S+|arn:\S+|"
    r"/[\w.-]+(?:/[\w.-]+)+|(?-i:[a-z0-9_.-]+(?:/[a-z0-9_.-]+){2,})|"
    r"!(?:vault|ref|sub|secret|env|getatt)\b.*|enc\[.*|\.{0,2}/[\w./-]+|https?://\S+|\[redacted.*"
)
#: Code rather than a value: an attribute, a call, a name in one of the usual cases.
EXPRESSION = re.compile(
    r"[A-Za-z_]\w*+(?:(?:\.|::|->|\?\.)[A-Za-z_]\w*+)++(?:[([].*)?|[A-Za-z_][\w.]*+[(\[].*|!?[A-Za-z_][\w.]*+[)};]++|"
    r"[a-z]++(?:[A-Z][a-z]++)++|[a-z]++(?:_[a-z]++)++|[A-Z]++(?:_(?![0-9]{2,}$)[A-Z0-9]++)++|(?:[A-Z][a-z]++){2,}+|[&@][A-Za-z_]++|!!\w++|[a-z][a-z0-9]*+_t|"
    r"(?:Convert(?:To|From)|Read|Get|New|Import|Invoke)-[A-Z]\w++"
)
#: What people put into passwords and code seldom puts into names.
ODD = re.compile(r"[!@#$%^&*?+~]")
#: A parameter or a setting, an address of memory, the name of an algorithm, a standard or a version.
_TECHNICAL = re.compile(
    r"(?i)-{0,2}[a-z_][\w.-]*[=:][^=].*|0x[0-9a-f]+|\$\w+[^\w!@#%^&*?+~]?.{0,40}|"
    r"(?:sha|md|argon|scrypt|bcrypt|pbkdf|hmac|base|utf|rsa|aes|ed|rfc|iso|oauth|http|ipv|hs|rs|es|v|u?int|u|i)"
    r"[ -]?\d{1,4}\w{0,2}"
)


def credential(value: str) -> bool:
    """Tell whether an unquoted value looks made up: two kinds of characters at least, or several words in a row."""
    if _TECHNICAL.fullmatch(value):
        return False
    if DIGIT.search(value):
        return True
    inner = value.strip("!?.,:;*~")
    if not inner.isascii() or not LETTER.search(inner):
        return False
    low, up = any(map(str.islower, inner)), any(map(str.isupper, inner[1:]))
    return (
        ODD.search(inner) is not None
        or (low and up and inner.isalnum())
        or (inner.count("-") >= 3 and inner.replace("-", "").isalpha())
    )
