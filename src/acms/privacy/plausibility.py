"""What values look like: words, placeholders and code that are no secrets, and what makes one look made up."""

from __future__ import annotations

import re
from math import log2
from sys import maxsize

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
    mismatch mismatched match matches matched failed failure fails locked unlocked disabled enabled active inactive
    pending success successful succeeded blank blocked lost found copied cleared confirmed malformed mandatory skipped
    ignored unspecified breached pwned reused forbidden authenticated authentication prompted interactive plaintext
    cleartext nonexistent mixed abgelaufen falsch ungültig vergessen geändert incorrecta incorrecto inválida olvidada
    oublié expiré invalide requis refused expiring entered typed retyped sha256 bcrypt argon2
    filtered omitted scrubbed elided snip suppressed unchanged kennwort contraseña senha wachtwoord passord lösenord
    hasło şifre heslo parola jelszó salasana adgangskode clave пароль 密码 密碼 パスワード 비밀번호 암호""".split()
)
#: What stands in the place of a value, in lower case. Each alternative begins with a character or a set of them.
_STAND_IN = re.compile(
    r"\$\$?[{(][^\s]*|%\w{1,40}%|%\(\w{1,40}\)s|%[sdrv]|"
    r"[*x._\-#?•●·0…](?:(?<=\*)\**|(?<=x)x*|(?<=\.)\.+|(?<=_)_*|(?<=-)-*|(?<=#)#*|(?<=\?)\?*|(?<=[•●·])[•●·]*|(?<=0)0*|(?<=…))|"
    r"@\w+@|my[\s_.-]\D*|some[\s_.-]\D*|the[\s_.-]\D*|a[\s_.-]\D*|an[\s_.-]\D*|your(?:[\s_.-].*|\w*)|"
    r"insert[\s_.-].*|enter[\s_.-].*|replace(?:[\s_.-].*|_?me\w*)|change(?:[\s_.-].*|_?me\w*)|put[\s_.-].*|"
    r"sample[\s_.-].*|dummy[\s_.-].*|fake[\s_.-].*|"
    r"redacted.*|required\|.*|nullable\|.*|sometimes\|.*|string\|.*|confirmed\|.*|min:\d+\|.*|to[_-]?do|tbd|n/a|"
    r"env:\w+|vault:\S+|ref:\S+|op://\S+|secret[s]?[/.:]\S+|file:\S+|arn:\S+|"
    r"!(?:vault|ref|sub|secret|env|getatt)\b.*|enc\[.*|https?://\S+"
)
_SHOWS = re.compile(r"example[\s_.-].*|[\w/+=.-]*")
_PATH = re.compile(r"/[\w.-]+(?:/[\w.-]+)+|[a-z0-9_.-]+(?:/[a-z0-9_.-]+){2,}|\.{0,2}/[\w./-]+")
_VARIABLE = re.compile(r"\$(?:[A-Z_][A-Z0-9_]*|[a-z_]+)")
_OPENED = frozenset("<[{(}")
_CLOSED = frozenset(">]})")


def placeholder(value: str) -> bool:
    """Tell whether a value is none: a variable, a path, dots, or words for what should stand there."""
    if value[:1] in _OPENED or value[-1:] in _CLOSED:
        return True
    low = value.lower()
    return (
        _STAND_IN.fullmatch(low) is not None
        or low.endswith(("_here", "-here"))
        or "placeholder" in low
        or ("example" in low and _SHOWS.fullmatch(low) is not None)
        or ("/" in value and _PATH.fullmatch(value) is not None)
        or (value[:1] == "$" and _VARIABLE.fullmatch(value) is not None)
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
    return (DIGIT.search(value) is not None or _varied(value)) and not _TECHNICAL.fullmatch(value)


def _varied(value: str) -> bool:
    """Tell whether a value without a digit has letters and what words have not: signs, capitals inside, hyphens."""
    inner = value.strip("!?.,:;*~")
    if not inner.isascii() or not LETTER.search(inner):
        return False
    return (
        ODD.search(inner) is not None
        or (inner.isalnum() and inner != inner.upper() and inner[1:] != inner[1:].lower())
        or (inner.count("-") >= 3 and inner.replace("-", "").isalpha())
    )


#: What a character adds that occurs so often: the logarithms are most of the cost.
_TERMS = (0.0, *(count * log2(count) for count in range(1, 257)))


def entropy(text: str) -> float:
    """Return Shannon's entropy in bits per character."""
    size = len(text)
    if not size:
        return 0.0
    counts = map(text.count, set(text))
    parts = (
        map(_TERMS.__getitem__, counts) if size < len(_TERMS) else (count * log2(count) for count in counts)
    )
    return log2(size) - sum(parts) / size


#: Words for a secret, alone or with what it is of: `password`, `db_pass`, `myToken2`.
_NAMED = re.compile(
    r"(?i)(?:(?:your|my|the|some|new|old|db|database|user|root|admin|app|api|access|auth)[_.-]?){0,2}"
    r"(?:password|passwd|passwort|passw|pass|pwd|pw|secret|token|pat|(?:api[_.-]?)?key|credentials?|"
    r"kennwort|contrase(?:ñ|n)a|clave|senha|wachtwoord|has(?:ł|l)o|motdepasse|mdp|changeme|change[_-]me)\d?"
)


def names_itself(value: str) -> bool:
    """Tell whether a value says what should stand there, as in `user:password@host`."""
    return placeholder(value) or _NAMED.fullmatch(value) is not None


_CHANGE = re.compile(r"[a-z](?=[A-Z0-9])|[A-Z](?=[0-9])|[0-9](?=[A-Za-z])")
_HEX = re.compile(r"[0-9a-f]{24,128}|[0-9A-F]{24,128}")


def opaque(value: str) -> bool:
    """Tell whether a value was drawn at random: digits of base 16, or letters and digits that change as no words do."""
    if _HEX.fullmatch(value):
        return entropy(value) > 2.8 and LETTER.search(value) is not None
    return (
        DIGIT.search(value) is not None
        and len(_CHANGE.findall(value)) * 25 >= len(value) * 7
        and entropy(value) > 3
    )


#: What ends a value without quotes: a comma before a space, the next parameter, an escape.
_ENDS = re.compile(
    r"[,;&|\\](?:(?<=[,;&|])(?=\s|$)|(?<=&)(?=\w{1,40}=)|(?<=;)(?=[\w ]{1,40}=)|"
    r"(?<=,)(?=[\"'\w ]{1,40}[=:])|(?<=\\)[nrt\"'])"
)
MOMENT = re.compile(
    r"\d{1,4}[-./:]\d{1,2}(?:[-./:]\d{1,4})?(?:[T ]?\d{1,2}:\d{2}.*)?|v?\d+(?:\.\d+)+|\S[^\s@]*+@\S+\.\w+|\d+\w{0,2}"
)
_AFTERWARDS = re.compile(r"[ \t]+[a-z]+(?![\w=:@/.-]*[=:@])")
_MEASURE = re.compile(r"[\d.,:x%-]+[a-zA-Z]{0,3}")
_AMOUNT = re.compile(r"\d[\d.,]{0,12}(?:%|[mnµ]?s|min|sec|[hdx]|[kmg]i?b|px|r?em)")
_PHRASE = re.compile(r"[A-Za-z]++(?:[_.\-/ :][A-Za-z]++)++:?")
_NAMES = re.compile(r"(?:[A-Z]?[a-z]{3,}+[._-]?)++")
SCRIPT = re.compile("[\u3000-\u30ff\u3400-\u9fff\uac00-\ud7af\uff01-\uff0f\uff1a-\uff20]")


def bare(value: str) -> str:
    """Return an unquoted value without what ends it: a comma, the next parameter, a closing bracket, a full stop."""
    end = _ENDS.search(value)
    if end:
        value = value[: end.start()]
    if not value.isascii() and (end := SCRIPT.search(value)):
        value = value[: end.start()]  # a sentence goes on: no blank stands before it
    if "(" not in value and "[" not in value and "{" not in value:
        value = value.rstrip(")]},;.:") or value
    return value.rstrip(".,;:") if len(value) > 1 else value


_SYMBOL = re.compile(r"[^\w.\-/ '’]")
#: A place in a file: `app/settings.py:53`.
_SOURCE = re.compile(r"[\w./@-]{1,100}\.[a-z]{1,4}(?::\d{1,6}){1,2}:?")
#: The two parts of a token that joins a machine to a cluster, which read like an attribute.
_JOINING = re.compile(r"[a-z0-9]{6}\.[a-z0-9]{16}")
_KEY_ID = re.compile(r"(?:0x)?(?:[0-9A-Fa-f]{8}|[0-9A-Fa-f]{16}|[0-9A-Fa-f]{40})")
_OURS = re.compile(r"passw(?:or)?d|your[-_]|my[-_]")
_SAID = frozenset("netrc - – — to is was are 's ’s ist est es lautet é > | ,".split())


_EQUAL = frozenset(("=", ":=", "%3d", "flag", "netrc", "by"))


def plausible(text: str, value: str, start: int, kind: str, op: str, quoted: bool, plural: bool) -> bool:
    """Tell whether a value is a secret rather than a type, a call, a variable, a placeholder or a word of prose."""
    low = value.lower()
    size = len(value)
    digit = DIGIT.search(value) is not None
    if not digit:
        if (
            op == "flag"
            and 24 <= size <= 64
            and value.isalpha()
            and value.isupper()
            and entropy(value) >= 3.4
        ):
            return "TOKEN" not in value and "KEY" not in value
        if kind != "password" and (
            size < 20
            or value.islower()
            or value.isupper()
            or len(set(value)) < 14
            or (not quoted and (":" in value or "(" in value))
        ):
            return False
        if _OURS.search(low):
            return False
        equal = op in _EQUAL and value.isalpha()
        if kind == "password" and not quoted and not equal and not _varied(value):
            return False  # a word that nothing calls equal to the name
    if (
        size < 4
        or _AMOUNT.fullmatch(low)
        or low in NOT_VALUES
        or low.rstrip("?!.") in NOT_VALUES
        or placeholder(value)
    ):
        return False
    if kind != "password" and (names_itself(value) or (not op and size < 12)):
        return False
    if size < 24 and text.startswith(("...", "…"), start + size):
        return False  # only its beginning is shown
    if "[redacted" in low or (len(set(low)) < 3 and not value.isdigit()):
        return False
    alpha = LETTER.search(value) is not None
    symbol = _SYMBOL.search(value, 0, size - 1) is not None
    mixed = alpha and not value.islower() and not value.isupper() and not value[1:].islower()
    if op.endswith(" ") and MOMENT.fullmatch(value):
        return False
    prose = not op or op in _SAID or " " in op
    if " " in value:
        words = value.split()
        if (
            kind == "password"
            and len(words) >= 4
            and all(word.isalpha() and word.islower() for word in words)
        ):
            return sum(word in NOT_VALUES for word in words) < 2  # a passphrase
        return kind == "password" and digit and len(words) <= 3 and (symbol or op in ("=", ":"))
    if not quoted and (
        (EXPRESSION.fullmatch(value) and not _JOINING.fullmatch(value))
        or (digit and ":" in value and _SOURCE.fullmatch(value))
        or value.startswith(("(", "{", "[", "function", "lambda"))
    ):
        return False
    if quoted and not digit and _PHRASE.fullmatch(value) and kind != "password":
        return False
    if kind in ("password", "sql"):
        if plural:
            return False
        if not quoted and not credential(value):
            # One word in one case: only what is said to be equal to the name, and nothing goes on after it.
            return (
                size >= 5
                and value.isascii()
                and value.isalpha()
                and op in _EQUAL
                and not _AFTERWARDS.match(text[start + size : start + size + 24])
            )
        if digit or symbol or mixed:
            if not op and not digit and not symbol:
                return False  # two names side by side
            if value.replace(".", "").replace(",", "").isdigit() and (size < 6 or prose) and not quoted:
                return size >= 4 and not re.match(
                    r"[ \t]*(?:char|day|min|hour|sec|time|digit|of|attempt|user|%)",
                    text[start + size : start + size + 12],
                )
            return True
        return bool(op) and (not prose or size >= 5)
    if plural and not quoted:
        return False
    if (
        kind == "api_key"
        and _KEY_ID.fullmatch(value)
        and text[max(0, start - 24) : start].lower().rstrip(" \t=:\"'").endswith("signingkey")
    ):
        return False  # names a public key
    if value.isdigit():
        return kind in ("client_secret",) and size >= 8
    if not digit:
        # A key without a digit is long and random, so of fourteen characters at least, or it is a name.
        return size >= 20 and mixed and entropy(value) >= 3.8 and not _NAMES.fullmatch(value)
    if not alpha or _MEASURE.fullmatch(value):
        return False
    least = 2.5 if kind in ("client_secret", "secret", "api_key") else 2.8
    if kind == "secret" and not quoted and prose and size < 12:
        return digit and (mixed or symbol)
    return size >= 6 and entropy(value) >= (least if size >= 10 else 2.2)


_REST = re.compile(r"(?:[^\s\"'`<>“”,;&\\)\]}]|<(?=\d))*+")


def rest_of(text: str, end: int, stop: int = maxsize) -> int:
    """Return the end of a value that was judged by its first characters, at most `stop`."""
    rest = _REST.match(text, end, stop)
    return rest.end() if rest else end
