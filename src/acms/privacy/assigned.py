"""Values that their context calls secret: in prose, code, configuration, headers and commands.

A word such as "password" is looked for first; what follows it is read by bounded patterns, and the value is judged by
its look: a type, a call, a variable, a placeholder or a word of prose is none.
"""

# ruff: noqa: E501  an alternative of a pattern stays in one line

from __future__ import annotations

import re
from functools import cache

from acms.privacy.assigned_apart import answered, argument, column, item, signed_in, spoken
from acms.privacy.headers import header
from acms.privacy.plausibility import (  # fmt: skip
    DIGIT,
    LETTER,
    MOMENT,
    ODD,
    SCRIPT,
    bare,
    entropy,
    opaque,
    placeholder,
    plausible,
    rest_of,
)
from acms.privacy.tokens import Found

#: Where a word for something secret begins, or has its last part. Those with letters beyond ASCII are looked for apart.
_STEMS = (
    "pass", "pwd", "pw", "psw", "p/w", "secret", "token", "key", "cred", "authorization", "bearer", "kennwort", "senha",
    "contrasena", "cookie", "sessi", "signature", "sig=", "identified by", "recovery", "backup", "phrase",
    "mnemonic", "_auth", '"auth"', "wachtwoord", "parola", "heslo", "salasana", "adgangskode", "kata sandi",
    "connect.sid", "mdp", "psk", "zugangscode", "toegangscode", "code d", "code wi", "codice", "codigo", "kodeord", "clave", "chiave",
    "chave", "sleutel", "klucz", "nyckel", "jeton", "geheimnis",
)  # fmt: skip
_STEMS_BEYOND = (
    "contraseña", "пароль", "密码", "密碼", "口令", "パスワード", "비밀번호", "암호", "hasło", "lösenord",
    "暗証番号", "合言葉", "código", "schlüssel", "clé", "nøgle", "klíč", "ключ", "キー", "密钥", "密鑰", "秘钥", "秘鑰", "токен", "令牌",
    "トークン", "şifre", "jelszó", "mật khẩu", "كلمة المرور", "كلمة السر", "סיסמה", "סיסמא", "κωδικός",
)  # fmt: skip
_WORD = re.compile(
    r"(?P<password>pass(?:word|wd|code|wort|[ _-]?phrase)|(?:recovery|backup)[ _-]?(?:code|key)|"
    r"p(?<![a-z]p)(?:ass|asswrd|sw|w|swd|/w)(?![a-z])|"
    r"pass(?![a-z])(?:(?<=storepass)|(?<=keypass)|(?<=userpass)|(?<=dbpass)|(?<=rootpass)|(?<=bindpass)|(?<=adminpass)|"
    r"(?<=authpass)|(?<=smtppass)|(?<=mailpass)|(?<=ftppass))|"
    r"passe(?:(?<=mot de passe)|(?<=palavra[ -]passe))|pwd|kennwort|contrase(?:ñ|n)a|senha|"
    r"mdp(?<![a-z]mdp)(?![a-z])|psk(?<![a-z]psk)(?![a-z])|"
    r"zugangscode|toegangscode|code (?:d['’]acc[eè]s|(?:du )?wi-?fi)|codice (?:di )?accesso|codigo de acceso|código de acceso|暗証番号|合言葉|"
    r"(?=[pwhsak])(?<![a-z])(?:passord|wachtwoord|parola|heslo|salasana|adgangskode|kodeord|kata sandi)|пароль|密[码碼]|口令|パスワード|"
    r"비밀번호|암호|hasło|lösenord|şifre|jelszó|mật khẩu|كلمة المرور|كلمة السر|סיסמ[הא]|κωδικός)"
    r"|(?P<api_key>key(?![a-rt-z]))"
    r"|(?P<lock>(?=[scknк])(?<![^\W\d_])(?<!palabras )(?<!palabra )(?<!parole )(?<!parola )(?<!mot-)(?<!mots-)"
    r"(?:schlüssel|clé|clave|chiave|chave|sleutel|klucz|nyckel|nøgle|klíč|ключ)"
    r"(?:[ _-](?:(?:de|del|do|da|di|du|della)[ -]|d['’])?(?:api|wi-?fi|wlan|acceso|acc[eè]s|accesso|acesso))?(?![^\W\d_])|"
    r"キー(?![ァ-ヶー])(?:(?<=apiキー)|(?<=api キー)|(?<=アクセスキー)|(?<=秘密キー)|(?<=ライセンスキー))|密[钥鑰]|秘[钥鑰])"
    r"|(?P<token>token|токен(?![а-я])|令牌|トークン|jeton(?<![a-z]jeton)(?: d['’]acc[eè]s)?(?![a-z])|session[ _.-]?id|sessid|connect\.sid)"
    r"|(?P<secret>secret|geheimnis(?![a-z])|cred(?:ential)?s?(?![a-z])|signature|sig(?==)|_auth(?==)|\"auth\"(?=:))"
    r"|(?P<header>authorization|bearer)"
    r"|(?P<cookie>cookie)"
    r"|(?P<phrase>(?:(?:seed|recovery|backup|mnemonic)[ _-]?)?phrase|mnemonic)"
    r"|(?P<sql>identified by(?= ['\"]))"
)
#: What makes a key, written before the word, one that opens something.
_OPENING = tuple(
    """api access auth app application service subscription storage account license encryption encrypt signing sign
    master admin private secret shared session hmac webhook deploy crypto cipher aes project team prod live wifi wi-fi wlan
    wpa wpa2 wep functions""".split()
)
_OPENING_ENDS = frozenset(word[-3:] for word in _OPENING)
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
#: Every alternative begins with a character or a set of them, so that most places are refused at a look.
_SIGN = (
    r"""(?:[ \t]{9,48}+(?=[:=])|[ \t]?:[ \t]?(?:&?'?(?:static )?str|[Ss]tring|Final(?:\[str\])?|any)[?!]?"""
    r"""(?=[ \t]?=[ \t])|(?:[ \t](?!value)[\w:-]{1,24}+="[^"<>\n]{0,64}+"){1,3}(?=>))?"""
    r"""[ \t]{0,8}+(?P<op>=>|:=|->|→|={1,3}|%3[dD]|[:：](?!:\w)|\||[-–—](?=[ \t])|['’]s[ \t]|"""
    r"""[是为為は는은]|"""
    r"""(?=[iıİwaleéèjäbcIWALEÉÈJÄBC])(?<!\w)(?:[iıİI](?i:st?)|[wW](?i:as)|[aA](?i:re|dalah)|[lL](?i:autet)|"""
    r"""[eE](?i:ste?|s|quals)|[éèÉÈ]|[jJ](?i:est|e)|[äÄ](?i:r)|[bB](?i:ecomes)|[cC](?i:['’]est))"""
    r"""(?:[ \t](?:now|jetzt|ahora|ora|agora|nu|teraz|maintenant|(?:set|changed|reset|updated)[ \t]to|currently|still|just))?[ \t:]|"""
    r"""set[ \t]to[ \t]|changed[ \t]to[ \t]|updated[ \t]to[ \t]|reset[ \t]to[ \t]|t(?<!\wt)o[ \t]|>|"""
    r"""v(?<=["'][ \t]v)alue=|,(?=[ \t]?["'`])|(?<=[ \t])(?=[ \t]?["'`“][^"'`]{4,64}["'`”]))"""
    r"""[ \t(\[{]{0,8}(?:\*\*[ \t])?(?:\n[ \t]{0,12}(?=[^\s\w]?[A-Za-z0-9!@#$%^&*+/=_.-]{8,64}+(?:\n|$)))?"""
)
_CLOSE = r"""(?P<close>(?:[\\"`\])*]|'(?!s[ \t])){0,6}+)"""
#: A word that is given back whole or not at all: what could stand for a sign is no part of it.
_PART = r"""[^\s:=;"'`|,>→：是为為は]"""
#: Between a name and its value: what the name is of, a sign or a verb.
_AFTER = re.compile(
    _CLOSE
    + r"""(?:[ \t]{1,4}+(?P<of>(?:for|of|to|on|at|in|zum|für|von|de|del|da|I|we|you|they|he|she|that)"""
    + rf"""(?:[ \t]{_PART}{{1,24}}+){{1,5}}?))??"""
    + _SIGN
)
#: The same after "password", with any words; "pass" and "pw" are said of too much else.
_AFTER_ANY = re.compile(
    _CLOSE
    + r"""(?:[ \t]{1,4}+(?P<of>\([^()\n]{1,48}\)|(?!value=)"""
    + rf"""[^\W\d_]{_PART}{{0,24}}+(?:[ \t]{_PART}{{1,24}}+){{0,5}}?))??"""
    + _SIGN
)
_LOGIN = re.compile(
    r"(?:login|user|username|account|utente|usuario|usuário|benutzer|utilisateur|identifiant|gebruiker)"
    r"[ \t:=]{1,3}\S{1,64}+[ \t]{1,4}$"
)


def _login(before: str) -> bool:
    """Tell whether a user is named just before: "login bob password …"."""
    if before[-1:] not in (" ", "\t", "\n"):
        return False
    named = (
        "us" in before
        or "login" in before
        or "account" in before
        or "ut" in before
        or "iden" in before
        or "gebr" in before
    )
    return named and _LOGIN.search(before) is not None


_JOINED = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")
#: What may stand right after a name that has a value.
_FOLLOWS = _JOINED | frozenset(" \t\n\\\"'`])*=:|,<>%：→–—’是为為は는은")
#: Words after "password" that speak of something else: a policy, a reset, its age.
_ABOUT = re.compile(
    r"(?i)\b(?:polic\w*|reset\w*|hash\w*|length|chang\w*|expir\w*|field\w*|manager|hint|strength|rule\w*|must|should|"
    r"require\w*|min\w*|max\w*|valid\w*|attempt\w*|last|updated|created|rotat\w*|age|protect\w*|input|form|page|link|"
    r"error|fail\w*)\b"
)
_LINE_END = re.compile(r"[ \t]*(?:\r?\n|$)")
#: What repeats one character of a set is tried before what has exceptions to it, which takes ten times as long.
_VALUE = re.compile(
    r"""[ \t]{0,12}+(?:(?:[a-zA-Z]{1,2})?\\{1,3}(?P<escape>["'])(?P<escaped>[^"'\\\n]{1,256}+)"""
    r"""|(?:[rbufN]{1,2}(?=["']))?(?:"(?P<double>(?>[^"\\\n]{1,256}+(?!\\)|(?:[^"\\\n]|\\.){1,256}+))"|"""
    r"""'(?P<single>(?>[^'\\\n]{1,256}+(?!\\)|(?:[^'\\\n]|\\.){1,256}+))'"""
    r"""|`(?P<tick>[^`\n]{1,256}+)`|[“「](?P<curly>[^”」\n]{1,256}+)[”」])"""
    r"""|\*\*(?P<bold>[^*\s]{3,128}+)\*\*"""
    r"""|(?:(?P<scheme>Bearer|Basic|Token|ApiKey|SSWS|Digest|token|bearer|basic)[ \t]{1,4})?"""
    r"""["'`]?(?P<bare>[^\s"'`<>“”]{1,64}+(?!<\d)|(?:[^\s"'`<>“”]|<(?=\d)){1,64}+))""",
)


def _lower(text: str) -> str:
    """Return a text in lower case with the same offsets: "İ" alone would become two characters."""
    low = text.lower()
    return low if len(low) == len(text) else text.replace("İ", "i").lower()


@cache
def _any(stems: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(stems))


def named(text: str) -> tuple[str, ...]:
    """Return the stems of names of secrets that a text has at all."""
    low = _lower(text)
    stems = tuple([stem for stem in _STEMS if stem in low])
    return stems if low.isascii() else stems + tuple([stem for stem in _STEMS_BEYOND if stem in low])


def assigned(text: str, stems: tuple[str, ...]) -> list[Found]:
    """Find what prose, code, configuration, headers and commands call a password, a key, a token or a secret."""
    found: list[Found] = []
    if stems:
        low = _lower(text)
        said = any(map(text.__contains__, _LINKS))
        find = _any(stems).search
        at, digit, line = 0, -1, -1
        while stem := find(low, at):
            start = stem.start()
            name = _WORD.match(low, start)
            if not name:
                at = stem.end()
                continue
            at = end = name.end()
            kind = name.lastgroup or "secret"
            if digit < at:  # where the next digit stands: what is searched for further away has one
                next_one = DIGIT.search(text, at)
                digit = next_one.start() if next_one else len(text) + _FAR
            near = digit - at < _FAR
            if line < at:
                line = text.find("\n", at)
                line = len(text) + _FAR if line < 0 else line
            below = near and line - at < _BELOW
            if text[at : at + 1] not in _FOLLOWS:
                if text.startswith("(", at):
                    hit = argument(text, start, at, kind)
                elif kind == "password":
                    hit = (_value_before(text, name) if said else None) or (
                        _near(text, at) if digit - at < _NEAR else None
                    )
                else:
                    hit = None
                if hit := hit or (answered(text, low, start, at, kind) if below else None):
                    found.append(hit)
                elif below and text.startswith(";", at):
                    found += column(text, start, at, kind)
                continue
            mine = kind == "api_key" and _mine(low, start)
            if kind == "api_key" and not mine and not _opens(low, start):
                continue
            if kind == "lock":
                kind = "api_key"
            if text[start] == "P" and _TESTED.match(text, start):
                if hit := signed_in(text, start):
                    found.append(hit)
                continue
            if kind == "phrase":
                words = _WORDS.match(text, end)
                hit = Found(words.start(1), words.end(1), "secret") if words else None
            elif kind in ("header", "cookie"):
                hit = header(text, name)
            else:
                hit = _value(text, low, name, kind)
                if not hit and name[0].startswith("cred"):
                    hit = _pair(text, name)
                elif not hit and kind == "password":
                    hit = _value_before(text, name) if said else None
                    if not hit and digit - end < _NEAR:
                        hit = _near(text, end)
                    if not hit and digit - end < _SENTENCE:
                        hit = spoken(text, low, start, end)
                if below and not hit:
                    hit = answered(text, low, start, end, kind)
                    if not hit:
                        found += column(text, start, end, kind)
            if hit and mine:
                hit = _drawn(text, hit)
            if hit:
                found.append(hit)
                at = max(at, hit.end)
    return found


_FAR = 1600
"""Characters after a name within which its value stands, apart from it."""
_BELOW = 300
"""Characters after a name within which its line ends, where its value stands in another one."""
_NEAR = 64
"""Characters after "password" within which something that can be nothing else is one."""
_SENTENCE = 96
"""Characters after "password" within which a sentence says what it was turned to."""
_JUDGED = 1024
"""Characters by which the value of somebody's key is judged: one that is refused is read again from each name in it."""
#: A key that is somebody's: its value must look drawn at random.
_MINE = re.compile(r"(?<![a-z])(?:my|your|our|his|her|their|new|maps)[ _-]$")
_WHOSE = ("my", "your", "our", "his", "her", "their", "new", "maps")
#: What is said of networks: their keys are passwords.
_NETWORK = re.compile(r"(?<![a-z])(?:wi-?fi|wlan|ssid)(?![a-z])[^\n]{0,40}$")
#: The report of a test, or the command of a protocol.
_TESTED = re.compile(r"PASS(?:[ \t]|: \S*[tT]est)")


def _drawn(text: str, hit: Found) -> Found | None:
    """Return the value of somebody's key to its end, when it looks drawn at random by as much of it as is judged."""
    if not opaque(text[hit.start : hit.end]):
        return None
    return hit if hit.end - hit.start < _JUDGED else Found(hit.start, rest_of(text, hit.end), hit.kind)


def _mine(low: str, start: int) -> bool:
    """Tell whether a key, by what is written before the word, is somebody's."""
    before = low[max(0, start - 12) : start]
    return before.rstrip(" _-\n").endswith(_WHOSE) and _MINE.search(before) is not None


def _opens(low: str, start: int) -> bool:
    """Tell whether a key, by what is written before the word, is one that opens something."""
    before = low[max(0, start - 48) : start]
    word = before.rstrip(" _.-")
    return (word[-3:] in _OPENING_ENDS and word.endswith(_OPENING)) or (
        ("wi" in before or "wlan" in before or "ssid" in before) and _NETWORK.search(before) is not None
    )


def _value(text: str, low: str, name: re.Match[str], kind: str) -> Found | None:
    """Return the value of a name, when it has one and the value looks like a secret."""
    if _refers(text, name.start(), kind):
        return None
    end = name.end()
    rest = ""
    if text[end : end + 1] in _JOINED and (tail := _TAIL.match(text, end)):
        end, rest = tail.end(), tail[0]
        if (
            rest
            and rest != "s"
            and not all(word.lower() in _STILL or word.isdigit() for word in _SPLIT.findall(rest))
        ):
            return None
    if kind == "secret":
        kind = _secret(low[max(0, name.start() - 9) : name.start()], rest)
    if kind == "sql":
        place: tuple[int, str] | None = end, "by"
        kind = "password"
    else:
        place = _place(text, low, name, end, kind)
    if not place:
        return _beside(text, end, kind)
    if text[place[0] : place[0] + 1] > "\u2e80" and text[place[0]] != "「" and SCRIPT.match(text, place[0]):
        return None  # a sentence goes on
    match = _VALUE.match(text, place[0])
    if not match:
        return None
    group = match.lastgroup or "bare"
    if group in ("scheme", "escape"):
        group = "bare" if match["bare"] else "escaped"
    value, start = match[group], match.start(group)
    whole = group == "bare"
    if whole:
        if kind != "password" and value.islower() and not DIGIT.search(value):
            return None  # a word, or what reads like one
        if value[0] > "\u2e80" and SCRIPT.match(value):
            return None  # a sentence goes on
        judged = bare(value)
        whole, value = judged == value, judged
    if name[0] == "sig" and len(value) < 16:
        return None  # a signal
    op = place[1]
    if op == ":" and name[0] in text[name.start() : name.end()] and _LINE_END.match(text, start + len(value)):
        op = "="  # a line of configuration
    if op == "-" and value.isalpha() and value.islower():
        return None
    if not value or not plausible(text, value, start, kind, op, group != "bare", rest == "s"):
        return _beside(text, end, kind)
    if (
        kind == "password"
        and name[0] != "passcode"
        and value.isdigit()
        and group == "bare"
        and len(value) < 6
    ):
        return None  # a count
    end = start + len(value)
    if whole:
        mine = name.lastgroup == "api_key" and _mine(low, name.start())
        end = rest_of(text, end, end + _JUDGED if mine else len(text))
    return Found(start, end, "bearer_token" if match["scheme"] else kind)


def _secret(before: str, rest: str) -> str:
    """Return what a name is of that says "secret", by what is written before and after it."""
    if before.rstrip(" _.-").endswith(("client", "consumer")):
        return "client_secret"
    return "api_key" if rest.lower().endswith("key") else "secret"


#: A command that stores a value under a name.
_SET = re.compile(
    r"[sc](?<!\w.)(?:(?<=s)et(?:x|env)?|(?<=c)onfig(?:ure)?(?:[ \t]set)?)"
    r"(?:[ \t]-{1,2}[a-z]\S{0,20}){0,3}[ \t]{1,3}[\w.:/-]{0,60}$"
)
_PREPOSITION = re.compile(
    r"(?:for|of|to|on|at|in|zum|zur|für|von|vom|de|del|della|da|do|du|des|van|voor|för|till|para|pour|от|для|к)\b"
)
_STATED = frozenset(":|：|is|was|is now|was set to|is set to|ist|lautet|war|est|es|é|è|jest|är".split("|"))


def _place(text: str, low: str, name: re.Match[str], end: int, kind: str) -> tuple[int, str] | None:
    """Return where the value of a name begins, and by which sign or word; None when nothing says that one follows."""
    start = name.start()
    after = (_AFTER_ANY if kind == "password" and len(name[0]) > 4 else _AFTER).match(text, end)
    if after and after["of"] and kind == "password" and _ABOUT.search(after["of"]):
        after = None
    if not after:
        before = low[max(0, start - 90) : start]
        listed = "name" in before or "key" in before or "variable" in before
        if listed and (at := item(text, start, end)) is not None:
            return at, "="
        if text[end : end + 1] not in (" ", "\t"):
            return None
        if before and not before[-1].isspace() and "-" in before[-48:]:
            option = before[max(map(before.rfind, " \n\t")) + 1 :]
            if option.startswith("-"):
                return end + 1, "flag" if option.startswith("--") else "-"
        if ("set" in before or "config" in before) and _SET.search(before):
            return end + 1, "-"
        if kind == "password" and _login(before):
            return end + 1, "netrc"
        return None
    op, of = after["op"].strip().lower(), after["of"]
    if (of and (not op or (not _PREPOSITION.match(of) and op not in _STATED))) or text.startswith(
        "//", after.end()
    ):
        return None
    if op == ",":
        former = _FORMER.search(text, max(0, start - 48), start)
        if not former or not _FIRST.search(text, max(0, former.start() - 8), former.start()):
            return None
    elif op == ">":
        former = _FORMER.search(text, max(0, start - 48), start)
        if not former or not former[0].startswith("<") or text[after.end() : after.end() + 1] in "@:/":
            return None
    elif op == "|":
        if ("{{" in text[max(0, start - 48) : start]) or (
            text[end : end + 1] == "|" and text[end + 1 : end + 2].isalpha()
        ):
            return None  # a filter of a template
    elif op == "to":
        if name[0] != "hasło" and (of or not _CHANGED.search(low, max(0, start - 48), start)):
            return None
    elif (
        op in ("==", "===")
        or (op == "=" and text[after.start("op") - 1] in "!<")
        or (not op and name[0] == "pass")
    ):
        return None
    return after.end(), op + (" " if of else "")


_FIRST = re.compile(r"""[(][ \t\n]{0,4}["']$""")
#: What stands before a name that is a part of something else: of a template, a path, a URN, the name of a hash.
_REFERENCE = re.compile(r"[$#{]\{[ \t]?[\w.]{0,40}$")
_SEGMENT = re.compile(r"(?:\w[/:]|hash(?:ed)?[_-]|checksum[_-]|digest[_-])[\w.-]{0,40}$")
_PATH = re.compile(r"(?<![/:])/[\w.-]{1,30}/[\w.-]{0,30}$")


def _refers(text: str, start: int, kind: str) -> bool:
    """Tell whether a name is a part of a template, a path or a URN, so that what follows it is not its value."""
    before = text[max(0, start - 42) : start]
    if "{" in before and _REFERENCE.search(before):
        return True
    if kind == "password":
        return "/" in before and _PATH.search(before) is not None
    last = max(before.rfind("/"), before.rfind(":"))
    if last > 0 and _SEGMENT.match(before, last - 1):
        return True
    hashed = "hash" in before or "checksum" in before or "digest" in before
    return hashed and _SEGMENT.search(before) is not None


_BESIDE = re.compile(r"[ \t]([^\s\"'`<>“”]{8,200}+)")


def _beside(text: str, end: int, kind: str) -> Found | None:
    """Return a value that follows its name at once: "the api key 8sd7…"; nothing but its look tells it from a word."""
    match = _BESIDE.match(text, end) if text[end : end + 1] in (" ", "\t") else None
    if not match:
        return None
    value = bare(match[1])
    if not DIGIT.search(value):
        return None
    if kind == "password":
        low, up = any(map(str.islower, value)), any(map(str.isupper, value))
        inner = value.strip("._-/")
        symbol = inner != "" and not inner.isalnum()
        several = low + up + symbol >= 2 or (low + up and sum(map(str.isdigit, value)) >= 4)
        enough = len(value) >= 8 and several and not MOMENT.fullmatch(value)
    else:
        enough = len(value) >= 20 and entropy(value) >= 3 and LETTER.search(value)
    if enough and plausible(text, value, match.start(1), kind, "=", False, False):
        return Found(match.start(1), match.start(1) + len(value), kind)
    return None


#: Twelve words or more: a mnemonic of BIP 39.
_WORDS = re.compile(
    r"""["'`]{0,2}[ \t]{0,4}(?:is|are|[:=])[ \t\n"'`]{0,4}((?:[a-z]{3,8}[ \n]{1,2}){11,24}+[a-z]{3,8})"""
)
_PAIR = re.compile(
    r"""s?[ \t]{0,4}(?:(?:are|is|[:=])[ \t]{0,4}[\w.@-]{1,64}[ \t]?[/:|][ \t]?|[\w.@-]{1,64}:)([^\s"'`<>,;]{4,128}+)"""
)


def _pair(text: str, name: re.Match[str]) -> Found | None:
    """Return the second of "credentials: admin / …"."""
    match = _PAIR.match(text, name.end())
    value = match[1].rstrip(".") if match else ""
    if (
        match
        and DIGIT.search(value)
        and plausible(text, value, match.start(1), "password", "is", False, False)
    ):
        return Found(match.start(1), match.start(1) + len(value), "password")
    return None


_BEFORE = re.compile(
    r"""(?:^|[\s"'`“(])([^\s"'`“(]{4,64}+)["'`”)]?[ ](?:as|is|ist|als|comme|como)[ ]"""
    r"""(?:my|the|your|our|his|her|their|a|mein|das|dein|mon|mi)[ ](?:[^\W\d_]{1,12}[ ]){0,2}$"""
)


_POOR = (
    "bad",
    "weak",
    "poor",
    "terrible",
    "awful",
    "common",
    "wrong",
    "invalid",
    "valid",
    "good",
    "strong",
    "secure",
    "guessable",
)
#: What joins the value to the name after it.
_LINKS = (" as ", " is ", " ist ", " als ", " comme ", " como ")


def _value_before(text: str, name: re.Match[str]) -> Found | None:
    """Return a value that is called a password after it was said: "use … as the password"."""
    start = max(0, name.start() - 110)
    if text[name.start() - 1 : name.start()] != " ":
        return None
    before = text[start : name.start()]
    if not any(map(before.__contains__, _LINKS)):
        return None
    match = _BEFORE.search(before)
    if (
        match
        and not before.rstrip().endswith(_POOR)
        and plausible(text, match[1], start + match.start(1), "password", "is", False, False)
    ):
        return Found(start + match.start(1), start + match.end(1), "password")
    return None


_NEARBY = re.compile(r"""[ \t"'`“「(]([^\s"'`“”「」()\[\]{}<>=:;,/|\\]{8,64}+)(?=["'`”」)]|[.,;]?(?:\s|$))""")
_VERSION = re.compile(r".*@v?\d.*|.*\d%|[\d.+-]+\w{0,8}|[$^].*[$^].*|.*\$")


_SHOWN = re.compile(r"(?i)(?:e\.g\.|such as|like|i\.e\.|z\.B\.|p\.ex\.|example)[ :,]{0,3}$")


def _near(text: str, start: int) -> Found | None:
    """Return what stands within a line after "password" and has letters, digits and signs as only passwords have."""
    line = text.find("\n", start, start + _NEAR)
    end = line if line >= 0 else start + _NEAR
    if not ODD.search(text, start, end):
        return None
    for match in _NEARBY.finditer(text, start, end):
        value = match[1].rstrip(".")
        if (
            DIGIT.search(value)
            and LETTER.search(value)
            and ODD.search(value, 1)
            and not _VERSION.fullmatch(value)
            and not placeholder(value)
            and not _SHOWN.search(text, max(0, match.start() - 16), match.start() + 1)
        ):
            return Found(match.start(1), match.start(1) + len(value), "password")
    return None
