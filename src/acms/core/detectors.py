"""Secrets in a text: private keys, credentials in URLs, tokens of known services, values that a key calls secret.

Every search is linear. A rule is tried only where a literal of it stands, each repetition has an upper bound, and what
is taken once is not tried again. A text without long words, digits and words like "password" costs a few scans in C.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from math import log2
from typing import NamedTuple

from acms.core import detectors_rules as rules


class Found(NamedTuple):
    """A sensitive stretch of a text, before overlaps are settled."""

    start: int
    end: int
    kind: str


def entropy(text: str) -> float:
    """Return Shannon's entropy in bits per character."""
    size = len(text)
    counts = [text.count(char) for char in set(text)]
    return log2(size) - sum(count * log2(count) for count in counts) / size if size else 0.0


def secrets(text: str) -> list[Found]:
    """Return what is clearly secret, in no order; stretches may overlap."""
    found: list[Found] = []
    if "PRIVATE KEY" in text or "PuTTY-User-Key-File" in text:
        found += private_keys(text)
    if "://" in text:
        found += addresses(text)
    found += tokens(text)
    found += assigned(text)
    return found


# ── private keys ────────────────────────────────────────────────────────────────────────────────────────────────────

_BEGIN = re.compile(r"-----BEGIN[ A-Z0-9_-]{0,60}?PRIVATE KEY(?: BLOCK)?-----|PuTTY-User-Key-File-\d:")
_END = re.compile(r"-----END[ A-Z0-9_-]{0,60}?PRIVATE KEY(?: BLOCK)?-----|Private-MAC: [0-9a-f]{0,64}")
#: A line of a key that goes on: base64, its header fields, what quotes and joins lines in code, JSON and diffs.
_BODY = re.compile(
    r"""(?:(?:\s|\\+[nrt]|["'`,+|>\\])++"""
    r"""|(?:Proc-Type|DEK-Info|Comment|Version|Hash|Encryption|Public-Lines|Private-Lines|Key-Derivation|Argon2-\w{1,20})"""
    r""":[^\n\\]{0,120}+|(?:[A-Za-z0-9/]|\+(?=[A-Za-z0-9/+=])){12,}+[A-Za-z0-9+/]{0,80}+={0,2}+"""
    r"""|[A-Za-z0-9+/]{1,80}+={1,2}+|\.{3,}+|…)++"""
)
_LINE = re.compile(r"[A-Za-z0-9+/]{1,100}={0,2}")


def private_keys(text: str) -> Iterator[Found]:
    """Find keys in PEM, PGP and PuTTY form; one without its end goes as far as its lines look like a key."""
    at = 0
    while begin := _BEGIN.search(text, at):
        end = _END.search(text, begin.end())
        another = _BEGIN.search(text, begin.end())
        if end and not (another and another.start() < end.start()) and end.end() - begin.start() <= 20_000:
            at = end.end()
        else:
            body = _BODY.match(text, begin.end(), begin.end() + 20_000)
            at = begin.end() + len(body[0].rstrip(" \t\n\r\"'`,|>\\")) if body else begin.end()
            at = max(at, begin.end())
        yield Found(begin.start(), at, "private_key")
    at = 0
    for end in _END.finditer(text):  # the end of one whose beginning was cut away
        start = end.start()
        lines = text[max(at, start - 8000) : start].split("\n")
        while lines and (not (line := lines[-1].strip()) or (_LINE.fullmatch(line) and len(line) > 11)):
            start -= len(lines.pop()) + 1
        if start < end.start():
            yield Found(max(start + 1, at), end.end(), "private_key")
        at = end.end()


# ── credentials in addresses ────────────────────────────────────────────────────────────────────────────────────────

_SCHEME = re.compile(r"(?:jdbc:)?[A-Za-z][A-Za-z0-9+.-]{1,30}$")
_CREDENTIALS = re.compile(r"""://([^\s/?#:@"'`<>]{0,128}+):([^\s/"'`<>]{1,256})@([^\s"'`<>,;)\]}]{1,512}+)""")
_VARIABLE = re.compile(
    r"""\$?\$?\{[^}]*\}?\}?|\$\(?\w{1,60}\)?|%\w{1,60}%|%\(\w{1,60}\)s|%[sdrv]|<[^>]*>?|\[[^\]]*\]?|\*+|x{3,}|X{3,}|\.{2,}|…|_+"""
)


def addresses(text: str) -> Iterator[Found]:
    """Find `scheme://user:password@host…`, whole."""
    at = text.find("://")
    while at >= 0:
        match = _CREDENTIALS.match(text, at)
        after = at + 3
        if match:
            scheme = _SCHEME.search(text, max(0, at - 32), at)
            if scheme and not _VARIABLE.fullmatch(match[2]):
                yield Found(scheme.start(), match.start() + len(match[0].rstrip(".:!?")), "connection_string")
                after = match.end()
        at = text.find("://", after)


# ── tokens of known services ────────────────────────────────────────────────────────────────────────────────────────

#: What a token can be made of, long enough to be one; prose has few of these.
_RUN = re.compile(r"(?<![A-Za-z0-9_.~+/=%:$-])[A-Za-z0-9_.~+/=%:$-]{16,}+")
_MORE = re.compile(r"[A-Za-z0-9_-]*+")
_JWT = re.compile(
    r"(?<![\w-])ey[A-Za-z0-9_-]{10,8000}+\.(?:ey[A-Za-z0-9_-]{5,16000}+|[A-Za-z0-9_-]{40,16000}+)"
    r"(?:\.[A-Za-z0-9_-]{0,8000}+){0,3}+"
)
_AZURE = re.compile(r"(?<![A-Za-z0-9_~.-])[A-Za-z0-9_~.]{3}\dQ~[A-Za-z0-9_~.-]{31,34}(?![A-Za-z0-9_~-])")
_MAXMIND = re.compile(r"(?<![A-Za-z0-9_])[A-Za-z0-9]{6}_[A-Za-z0-9]{29}_mmk")
_ATLAS = re.compile(r"(?<![A-Za-z0-9])[A-Za-z0-9]{14}\.atlasv1\.[A-Za-z0-9_=-]{60,70}")
_ENCODED = re.compile(r"(?<![A-Za-z0-9+/])ZXlK[A-Za-z0-9+/_-]{60,8000}+={0,2}+")
_FACEBOOK = re.compile(r"(?<![A-Za-z0-9])\d{15,16}(?:\||%7[Cc])[0-9A-Za-z_-]{27,40}(?![A-Za-z0-9_-])")
_SPECIAL = (
    ("ey", _JWT, "jwt"),
    ("Q~", _AZURE, "client_secret"),
    ("_mmk", _MAXMIND, "api_key"),
    (".atlasv1.", _ATLAS, "api_key"),
    ("ZXlK", _ENCODED, "jwt"),
)
_DUMMY = re.compile(
    r"(?i)example$|x{5,}|\*{3,}|\.{3,}|(?<![a-z])(?:your|my|insert|replace|enter|put|change|some|fake)[_-]|[_-]here$|"
    r"placeholder|changeme|redacted|^(.)\1*$|abcdefghijklmnopqrstuvwxyz|0{8,}"
)


@cache
def _compiled(shape: str, flags: int = 0) -> re.Pattern[str]:
    """Return a rule, compiled when its literal was first seen."""
    return re.compile(shape, flags)


@cache
def _known() -> tuple[re.Pattern[str], dict[str, list[tuple[str, float]]]]:
    """Return what finds the beginnings of tokens, and the shapes by beginning."""
    shapes: dict[str, list[tuple[str, float]]] = {}
    for row in (*rules.TOKENS.strip().splitlines(), *rules.OURS.strip().splitlines()):
        _, heads, shape, *least = row.split(" | ")
        for head in heads.split():
            shapes.setdefault(head, []).append((shape, float(least[0]) if least else 0.0))
    longest = sorted(shapes, key=len, reverse=True)
    by_first: dict[str, list[str]] = {}
    for head in longest:
        by_first.setdefault(head[0], []).append(re.escape(head[1:]))
    heads = "|".join(f"{re.escape(first)}(?:{'|'.join(rest)})" for first, rest in by_first.items())
    for head in longest:  # a longer beginning has the shapes of the shorter ones, too
        for other in longest:
            if other != head and head.startswith(other):
                shapes[head] += [one for one in shapes[other] if one not in shapes[head]]
    # A token may follow an escape of JSON or of a URL: `\nAKIA…`, `%3Dghp_…`.
    return re.compile(rf"(?:(?<![A-Za-z0-9])|(?<=\\[nrt])|(?<=%[0-9A-Fa-f][0-9A-Fa-f]))(?:{heads})"), shapes


def tokens(text: str) -> list[Found]:
    """Find tokens that tell by their beginning what they are."""
    found: list[Found] = []
    run = _RUN.search(text)
    if not run:
        return found
    heads, shapes = _known()
    while run:
        found += _tokens(text, run.start(), run.end(), heads, shapes)
        run = _RUN.search(text, run.end())
    for sign, shape, kind in _SPECIAL:
        if sign in text:
            found += (Found(match.start(), match.end(), kind) for match in shape.finditer(text))
    if "|" in text and "acebook" in text:
        found += (Found(match.start(), match.end(), "api_key") for match in _FACEBOOK.finditer(text))
    return found


def _tokens(
    text: str, start: int, stop: int, heads: re.Pattern[str], shapes: dict[str, list[tuple[str, float]]]
) -> Iterator[Found]:
    at = start
    while head := heads.search(text, at, stop):
        at = head.end()
        for shape, least in shapes[head[0]]:
            match = _compiled(shape).match(text, head.start())
            if match and entropy(match[0]) >= least and not _DUMMY.search(match[0]):
                more = _MORE.match(text, match.end())
                at = more.end() if more else match.end()
                scheme = "https://" if "." in head[0] and text.endswith("https://", start, match.start()) else ""
                yield Found(match.start() - len(scheme), at, "api_key")
                break
    near = _near(text, start, stop)
    if near:
        yield near


@cache
def _services() -> tuple[re.Pattern[str], list[tuple[str, str, float]]]:
    """Return what finds the name of a service in a key, and the shapes of the values of each."""
    rows = [row.split(" | ") for row in rules.NEAR.strip().splitlines()]
    every = "|".join(sorted({row[1] for row in rows}, key=len, reverse=True))
    return re.compile(every, re.IGNORECASE), [
        (row[1], row[2], float(row[3]) if row[3:] else 2.5) for row in rows
    ]


def _near(text: str, start: int, stop: int) -> Found | None:
    """Return the value of a key that names a service, where it has the shape of that service's secrets."""
    if (cut := max(text.rfind("=", start, stop - 8), text.rfind(":", start, stop - 20))) > start:
        key, start = text[max(0, start - 40) : cut], cut + 1
    else:
        before = text[max(0, start - 80) : start].rstrip(" \t\n'\"`")
        if not before or before[-1] not in "=:,>|":
            return None
        key = before
    key = key.rstrip("=:,>|?").rstrip(" \t'\"`\\])")[-50:].rpartition("\n")[2]
    service, kinds = _services()
    name = None
    for name in service.finditer(key):
        pass
    if not name or len(key) - name.end() > 20:
        return None
    value = text[start:stop].rstrip(".:")
    for named, shape, least in kinds:
        if not _compiled(named, re.IGNORECASE).fullmatch(name[0]):
            continue
        if _compiled(shape, re.IGNORECASE).fullmatch(value):
            if not re.search(r"\d", value) or entropy(value) < least or _DUMMY.search(value):
                return None
            return Found(start, start + len(value), "api_key")
    return None


# ── values that a key calls secret ──────────────────────────────────────────────────────────────────────────────────

#: Where a word for something secret begins, or has its last part. Those with letters beyond ASCII are looked for apart.
_STEMS = (
    "pass", "pwd", "pw", "psw", "secret", "token", "key", "cred", "authorization", "bearer", "kennwort", "senha",
    "contrasena", "cookie", "sessi", "sessid", "signature", "sig=", "identified by", "recovery", "backup", "phrase",
    "mnemonic",
)  # fmt: skip
_STEMS_BEYOND = ("contraseña", "пароль", "密码", "密碼", "パスワード", "비밀번호")
_WORD = re.compile(
    r"(?P<password>pass(?:word|wd|code|wort|[ _-]?phrase)|(?:recovery|backup)[ _-]?(?:code|key)|(?<![a-z])(?:pass|passwrd|psw|pw|pswd)(?![a-z])|"
    r"(?<=mot de )passe|pwd|kennwort|contrase(?:ñ|n)a|senha|пароль|密码|密碼|パスワード|비밀번호)"
    r"|(?P<api_key>key(?![a-rt-z]))"
    r"|(?P<token>token|session[ _.-]?id|sessid)"
    r"|(?P<secret>secret|cred(?:ential)?s?(?![a-z])|signature|sig(?==))"
    r"|(?P<header>authorization|bearer)"
    r"|(?P<cookie>cookie)"
    r"|(?P<phrase>(?:(?:seed|recovery|backup|mnemonic)[ _-]?)?phrase|mnemonic)"
    r"|(?P<sql>identified by(?= ['\"]))"
)
#: What makes a key, written before the word, one that opens something.
_OPENING = tuple(
    """api access auth app application service subscription storage account license encryption encrypt signing sign
    master admin private secret shared session hmac webhook deploy crypto cipher aes project team prod live""".split()
)
_FORMER = re.compile(r"<?[A-Za-z0-9_.:\-]{0,48}$")
_CHANGED = re.compile(r"(?:chang|set|reset|updat|switch|rotat)[a-z]{0,4} [^.\n]{0,36}$")
_TAIL = re.compile(r"[A-Za-z0-9_\-]{0,40}+")
_SPLIT = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")
#: What may follow the word in a key that still names the secret itself.
_STILL = frozenset(
    """value val string str text plain plaintext raw prod production dev development test testing staging stage live
    default main primary base secondary old new current temp tmp admin root user db database base64 b64 env var v pw
    pass password secret key token access api client auth bot personal app oauth o t i a the of my""".split()
)
_AFTER = re.compile(
    r"""(?P<close>[\\"'`\])*]{0,6}+)"""
    r"""(?:[ \t]{1,4}(?P<of>[^\W\d_][^\s:=;"'`|,]{0,24}(?:[ \t][^\s:=;"'`|,]{1,24}){0,5}?))?"""
    r"""[ \t]{0,8}(?P<op>=>|:=|->|→|={1,3}|%3[dD]|[:：]|\||[-–—](?=[ \t])|['’]s[ \t]|是|为|為|は|"""
    r"""(?:is|was|are|ist|lautet|est|es|é|equals|becomes)(?:[ \t](?:now|set[ \t]to|currently|still|just))?[ \t:]|"""
    r"""(?:set|changed|updated|reset)[ \t]to[ \t]|to[ \t]|>|(?<=["'][ \t])value=|,(?=[ \t]?["'`])|"""
    r"""(?=[ \t]["'`“][^"'`]{4,64}["'`”]))"""
    r"""[ \t(\[{]{0,8}(?:\*\*[ \t])?(?:\n[ \t]{0,12}(?=[^\s\w]?[A-Za-z0-9!@#$%^&*+/=_.-]{8,}+(?:\n|$)))?"""
)
_PREPOSITION = re.compile(r"(?:for|of|to|on|at|in|zum|für|von|de|del|da)\b")
#: Words after "password" that speak of something else: a policy, a reset, its age.
_ABOUT = re.compile(
    r"(?i)\b(?:polic\w*|reset\w*|hash\w*|length|chang\w*|expir\w*|field\w*|manager|hint|strength|rule\w*|must|should|"
    r"require\w*|min\w*|max\w*|valid\w*|attempt\w*|last|updated|created|rotat\w*|age|protect\w*|input|form|page|link|"
    r"error|fail\w*)\b"
)
_MOMENT = re.compile(
    r"\d{1,4}[-./:]\d{1,2}(?:[-./:]\d{1,4})?(?:[T ]?\d{1,2}:\d{2}.*)?|v?\d+(?:\.\d+)+|\S+@\S+\.\w+|\d+\w{0,2}"
)
_VALUE = re.compile(
    r"""(?:[a-zA-Z]{1,2})?\\{1,3}(?P<escape>["'])(?P<escaped>[^"'\\\n]{1,256}+)"""
    r"""|(?:[rbuf]{1,2}(?=["']))?(?:"(?P<double>(?:[^"\\\n]|\\.){1,256}+)"|'(?P<single>(?:[^'\\\n]|\\.){1,256}+)'"""
    r"""|`(?P<tick>[^`\n]{1,256}+)`|“(?P<curly>[^”\n]{1,256}+)”)"""
    r"""|\*\*(?P<bold>[^*\s]{3,128}+)\*\*"""
    r"""|(?:(?P<scheme>Bearer|Basic|Token|ApiKey|SSWS|Digest|token|bearer|basic)[ \t]{1,4})?"""
    r"""["'`]?(?P<bare>[^\s"'`<>“”]{1,512}+)""",
)
_NOT_VALUES = frozenset(
    """string str text bool boolean int integer number float object any unknown undefined none null nil true false void
    required optional missing invalid incorrect wrong empty expired reset changed updated generated encrypted hashed
    protected secure secured strong weak short long too not here there this that same different correct valid stored saved set
    unset sent shown hidden visible masked redacted removed rotated revoked leaked exposed compromised safe yes no on off your
    the a an my our their his her its it what where when how why which who please enter forgot forgotten change
    default env environ process self request response config settings args kwargs input output field value label
    password passwort passwd secret token key credentials user username login admin email name type id url path file
    line char varchar data form html body header bearer basic digest api public private only never always also and or
    but if for from with without by in of to at as is was are be been being must should can could may might will would
    has have had do does did needed necessary used use using handled managed passed given provided supplied
    available unavailable accepted rejected denied allowed checked verified validated configured injected read loaded
    raise return break continue throw await new function def class null assert print log import export super this self
    example sample dummy placeholder todo tbd n/a foobar xxx xxxx""".split()
)
_PLACEHOLDER = re.compile(
    r"(?i)[<\[{(].*|.*[>\]})]$|\$\{?\$?\(?[a-z_][\w.:-]*\)?\}?|%\w{1,40}%|%\(\w{1,40}\)s|%[sdrv]|\*+|x+|\.{2,}|…|_+|-+|#+|\?+|[•●·]+|0+|"
    r"@\w+@|(?:your|insert|enter|replace|change|put|example|sample|dummy|fake|placeholder)[\s_.-].*|(?:my|some|the|a|an)[\s_.-]\D*|"
    r"your\w*|change_?me\w*|replace_?me\w*|.*placeholder.*|.*(?:[_-]here|_goes_here)|redacted.*|\w*example\w*|"
    r"to[_-]?do|tbd|n/a|env:\w+|vault:\S+|ref:\S+|op://\S+|secret[s]?[/.:]\S+|file:\S+|arn:\S+|/[\w.-]+(?:/[\w.-]+)+|"
    r"\.{0,2}/[\w./-]+|https?://\S+|\[redacted.*"
)
_EXPRESSION = re.compile(
    r"[A-Za-z_]\w*(?:(?:\.|::|->|\?\.)[A-Za-z_]\w*)+(?:[([].*)?|[A-Za-z_][\w.]*[(\[].*|!?[A-Za-z_][\w.]*[)};]+|"
    r"[a-z]+(?:[A-Z][a-z]+)+|[a-z]+(?:_[a-z]+)+|[A-Z][A-Z]*(?:_[A-Z0-9]+)+|(?:[A-Z][a-z]+){2,}|[&@][A-Za-z_]+"
)
_SEQUENCE = re.compile(r"[A-Za-z]{1,}")
_SPLIT_VALUE = re.compile(
    r"[,;&|](?=\s|$)|&(?=\w{1,40}=)|;(?=[\w ]{1,40}=)|,(?=[\"'\w ]{1,40}[=:])|\\[nrt\"']|\)+[,;.]*$|[}\]]+[,;]*$"
)
_AFTERWARDS = re.compile(r"[ \t]+[a-z]+(?![\w=:@/.-]*[=:@])")


def _lower(text: str) -> str:
    """Return a text in lower case with the same offsets: "İ" alone would become two characters."""
    low = text.lower()
    return low if len(low) == len(text) else text.replace("İ", "i").lower()


@cache
def _any(stems: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(stems))


def assigned(text: str) -> list[Found]:
    """Find what prose, code, configuration, headers and commands call a password, a key, a token or a secret."""
    low = _lower(text)
    found: list[Found] = []
    stems = tuple(stem for stem in _STEMS if stem in low)
    if not low.isascii():
        stems += tuple(stem for stem in _STEMS_BEYOND if stem in low)
    if stems:
        find = _any(stems).search
        at = 0
        while stem := find(low, at):
            at = stem.end()
            name = _WORD.match(low, stem.start())
            if not name:
                continue
            kind = name.lastgroup or "secret"
            if kind == "api_key" and not low[max(0, at - 24) : stem.start()].rstrip(" _.-").endswith(_OPENING):
                continue
            if kind == "phrase":
                words = _WORDS.match(text, name.end())
                hit = Found(words.start(1), words.end(1), "secret") if words else None
            elif kind in ("header", "cookie"):
                hit = _header(text, name)
            else:
                hit = _value(text, low, name, kind) or (_pair(text, name) if name[0].startswith("cred") else None)
            if hit:
                found.append(hit)
                at = max(at, hit.end)
    if "curl" in low or "sshpass" in low or "mysql" in low or "redis-cli" in low:
        found += _commands(text)
    return found


_AUTH = re.compile(
    r"""["'`\]]{0,2}[ \t]{0,4}[:=,]?[ \t]{0,4}[frb]?["'`]?(?:(?P<scheme>bearer|basic|token|apikey|api-key|ssws|digest)(?:[ \t:]{1,4}|%20|\+)(?:["'`][ \t]?[+.][ \t]?["'`])?)?(?P<value>[A-Za-z0-9_.~+/=@-]{8,4096}+)""",
    re.IGNORECASE,
)
_COOKIE = re.compile(
    r"""["'`]{0,2}[ \t]{0,4}[:=][ \t]{0,4}["'`]?(?:[\w.-]{1,64}=[^;\s"'`]{0,512}+;[ \t]?){0,20}?(?P<name>[\w.-]{0,40}(?:sess|sid|auth|token|jwt|remember)[\w.-]{0,40})=(?P<value>[^;\s"'`]{8,2048}+)""",
    re.IGNORECASE,
)


def _header(text: str, name: re.Match[str]) -> Found | None:
    if name.lastgroup == "cookie":
        match = _COOKIE.match(text, name.end())
        if match and not _PLACEHOLDER.fullmatch(match["value"]):
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
    telling = any(char.isdigit() for char in value) and any(char.isalpha() for char in value)
    if _PLACEHOLDER.fullmatch(value) or _EXPRESSION.fullmatch(value):
        return None
    if scheme == "basic" and (telling or value.endswith("=")) and len(value) >= 8:
        return Found(match.start("value"), match.start("value") + len(value), "password")
    if telling and len(value) >= (12 if scheme else 16):
        return Found(match.start("value"), match.start("value") + len(value), "bearer_token")
    return None


def _value(text: str, low: str, name: re.Match[str], kind: str) -> Found | None:
    former = _FORMER.search(text, max(0, name.start() - 48), name.start())
    tail = _TAIL.match(text, name.end())
    end = tail.end() if tail else name.end()
    head = former[0] if former else ""
    rest = text[name.end() : end]
    if rest and rest != "s":
        words = [word.lower() for word in _SPLIT.findall(rest)]
        if any(word not in _STILL and not word.isdigit() for word in words):
            return None
    if kind == "secret" and rest.lower().endswith("key"):
        kind = "api_key"
    plural = rest == "s"
    if kind == "secret" and low[max(0, name.start() - 9) : name.start()].rstrip(" _.-").endswith(("client", "consumer")):
        kind = "client_secret"
    if kind == "sql":
        after_at, op, flag = end, "by", False
    else:
        flag = head.startswith("--") or (head.endswith("-") and text[name.start() - 1 : name.start()] == "-")
        after = _AFTER.match(text, end)
        if after and after["of"] and not _about(after["of"], kind):
            after = None
        if not after:
            if not flag and (hit := _beside(text, end, kind)):
                return hit
            if flag and text[end : end + 1] in (" ", "\t"):
                after_at, op = end + 1, "flag"
            elif (
                kind == "password"
                and text[end : end + 1] == " "
                and re.search(
                    r"(?:login|user|username|account)[ \t]\S{1,64}[ \t]{1,4}$",
                    text[max(0, name.start() - 90) : name.start()],
                )
            ):
                after_at, op = end + 1, "netrc"
            else:
                return None
        else:
            after_at, op = after.end(), after["op"].strip() + (" " if after["of"] else "")
            if (not op and name[0] == "pass") or (
                op == ">" and (not head.startswith("<") or text[after.end() : after.end() + 1] in "@:/")
            ):
                return None
            if op == "to " or op == "to" and not _CHANGED.search(low, max(0, name.start() - 48), name.start()):
                return None
            if op in ("==", "===") or (
                op == "=" and text[after.start("op") - 1 : after.start("op")] in ("!", "<")
            ):
                return None
    while text[after_at : after_at + 1] in (" ", "\t"):
        after_at += 1
    match = _VALUE.match(text, after_at)
    if not match:
        return None
    group = match.lastgroup or "bare"
    if group == "scheme" or group == "escape":
        group = "bare" if match["bare"] else "escaped"
    value, start = match[group], match.start(group)
    quoted = group != "bare"
    if group == "bare":
        value = _bare(value)
    if not value or not _plausible(text, value, start, kind, op, quoted, plural):
        return None
    return Found(
        start, start + len(value), "bearer_token" if match["scheme"] else "secret" if kind == "sql" else kind
    )


def _about(phrase: str, kind: str) -> bool:
    """Tell whether words between a name and its value leave it the name of that value."""
    return not _ABOUT.search(phrase) if kind == "password" else _PREPOSITION.match(phrase) is not None


_BESIDE = re.compile(r"[ \t]([^\s\"'`<>“”]{8,200}+)")


def _beside(text: str, end: int, kind: str) -> Found | None:
    """Return a value that follows its name at once: "the api key 8sd7…"; nothing but its look tells it from a word."""
    match = _BESIDE.match(text, end)
    if not match:
        return None
    value = _bare(match[1])
    if kind == "password":
        low, up = any(map(str.islower, value)), any(map(str.isupper, value))
        symbol = any(not char.isalnum() for char in value.strip("._-/"))
        enough = len(value) >= 8 and low + up + symbol >= 2 and not _MOMENT.fullmatch(value)
    else:
        enough = len(value) >= 20 and entropy(value) >= 3 and any(map(str.isalpha, value))
    if enough and any(map(str.isdigit, value)) and _plausible(text, value, match.start(1), kind, "=", False, False):
        return Found(match.start(1), match.start(1) + len(value), kind)
    return None


#: Twelve words or more: a mnemonic of BIP 39.
_WORDS = re.compile(
    r"""["'`]{0,2}[ \t]{0,4}(?:is|are|[:=])[ \t\n"'`]{0,4}((?:[a-z]{3,8}[ \n]{1,2}){11,24}+[a-z]{3,8})"""
)
_PAIR = re.compile(
    r"""s?[ \t]{0,4}(?:are|is|[:=])[ \t]{0,4}[\w.@-]{1,64}[ \t]?[/:|][ \t]?([^\s"'`<>,;]{4,128}+)"""
)


def _pair(text: str, name: re.Match[str]) -> Found | None:
    """Return the second of "credentials: admin / …"."""
    match = _PAIR.match(text, name.end())
    value = match[1].rstrip(".") if match else ""
    if match and any(map(str.isdigit, value)) and _plausible(text, value, match.start(1), "password", "is", False, False):
        return Found(match.start(1), match.start(1) + len(value), "password")
    return None


def _bare(value: str) -> str:
    """Return an unquoted value without what ends it: a comma, the next parameter, a closing bracket, a full stop."""
    cut = _SPLIT_VALUE.search(value)
    if cut:
        value = value[: cut.start()]
    return value.rstrip(".,;:") if len(value) > 1 else value


_SAID = frozenset(("-", "–", "—", "to", "is", "was", "are", "'s", "’s", "ist", "est", "es", "lautet", "é", ">", "|", ","))


def _plausible(
    text: str, value: str, start: int, kind: str, op: str, quoted: bool, plural: bool
) -> bool:
    """Tell whether a value is a secret rather than a type, a call, a variable, a placeholder or a word of prose."""
    low = value.lower()
    size = len(value)
    if size < 4 or low in _NOT_VALUES or low.rstrip("?!.") in _NOT_VALUES or _PLACEHOLDER.fullmatch(value):
        return False
    if "[redacted" in low or len(set(low)) < 3 and not value.isdigit():
        return False
    digit = any(char.isdigit() for char in value)
    alpha = any(char.isalpha() for char in value)
    symbol = any(not char.isalnum() and char not in "._-/ '’" for char in value[:-1])
    mixed = alpha and not value.islower() and not value.isupper() and not value[1:].islower()
    if op.endswith(" ") and _MOMENT.fullmatch(value):
        return False
    prose = not op or op in _SAID or " " in op
    if " " in value:
        words = value.split()
        if (
            kind == "password"
            and len(words) >= 4
            and all(word.isalpha() and word.islower() for word in words)
        ):
            return sum(word in _NOT_VALUES for word in words) < 2  # a passphrase
        return kind == "password" and digit and symbol and len(words) <= 3
    if not quoted and (
        _EXPRESSION.fullmatch(value) or value.startswith(("(", "{", "[", "function", "lambda"))
    ):
        return False
    if (
        quoted
        and not digit
        and re.fullmatch(r"[A-Za-z]+(?:[_.\-/ :][A-Za-z]+)+:?", value)
        and kind != "password"
    ):
        return False
    if any(word in low for word in ("password", "passwd", "your-", "your_", "my-", "my_")) and not digit:
        return False
    if kind in ("password", "sql"):
        if plural:
            return False
        if digit or symbol or mixed:
            if value.replace(".", "").replace(",", "").isdigit() and (size < 6 or prose) and not quoted:
                return size >= 4 and not re.match(
                    r"[ \t]*(?:char|day|min|hour|sec|time|digit|of|attempt|user|%)",
                    text[start + size : start + size + 12],
                )
            return not (not quoted and prose and not digit and not mixed and not symbol)
        if quoted:
            return not prose or size >= 5
        if prose or not value.isascii():
            return False
        following = text[start + size : start + size + 24]
        return size >= 5 and not _AFTERWARDS.match(following)
    if plural and not quoted:
        return False
    if value.isdigit():
        return kind in ("client_secret",) and size >= 8
    if not digit:
        # A key without a digit is long and random or it is a name.
        return (
            size >= 20
            and mixed
            and entropy(value) >= 3.8
            and not re.fullmatch(r"(?:[A-Z]?[a-z]{3,}[._-]?)+", value)
        )
    if not alpha or re.fullmatch(r"[\d.,:x%-]+[a-zA-Z]{0,3}", value):
        return False
    least = 2.5 if kind in ("client_secret", "secret", "api_key") else 2.8
    if kind == "secret" and not quoted and prose and size < 12:
        return digit and (mixed or symbol)
    return size >= 6 and entropy(value) >= (least if size >= 10 else 2.2)


_USER = re.compile(r"""(?:-u|--user)(?:=|[ \t]{0,4})["']?([^\s"':]{0,128}+):([^\s"']{3,256}+)""")
_SSHPASS = re.compile(
    r"""(?:sshpass[ \t]{1,4}-p|redis-cli[ \t](?:[^\n]{0,60}?[ \t])?-a)[ \t]{0,4}["']?([^\s"']{3,128}+)|mysql\w{0,8}[ \t](?:[^\n]{0,80}?[ \t])?-p([^\s"'-][^\s"']{2,127})"""
)


def _commands(text: str) -> Iterator[Found]:
    """Find passwords in options of commands: `curl -u user:password`, `sshpass -p …`, `mysql -p…`."""
    for match in _USER.finditer(text):
        if not _PLACEHOLDER.fullmatch(match[2]):
            yield Found(match.start(2), match.end(2), "password")
    for match in _SSHPASS.finditer(text):
        group = 1 if match[1] else 2
        if not _PLACEHOLDER.fullmatch(match[group]):
            yield Found(match.start(group), match.end(group), "password")
