"""Texts drawn from a seed, for `privacy.py`: values of every kind, in every format, in many wordings, and look-alikes.

`privacy_templates.txt` has whole texts, `ASSIGNMENTS` and `SURROUNDINGS` are taken with every name and kind, sentences are
put together at run time from the parts in `SAYINGS`. Of all of it the hash decides which half it belongs to: `tuned` may be
looked at while rules change, `held out` may not. In a template «h8» stands for eight characters of an alphabet, «1-99» for a
number, «w» for a word, «mail» for an address (all names: `Draw.slot`), ⏎ for a new line. ⟦kind⟧ is a value of a kind,
⟦kind|…⟧ a stretch of that kind, with slots of its own. Nothing here is real: every key, number and name is drawn at random.
"""

# ruff: noqa: E501  a template stays in one line

from __future__ import annotations

import base64
import hashlib
import json
import random
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

LOWER = "abcdefghijklmnopqrstuvwxyz"
DIGITS = "0123456789"
HEX = DIGITS + "abcdef"
ALNUM = LOWER + LOWER.upper() + DIGITS
#: By the letter of a slot; d is a number that does not begin with 0.
ALPHABETS = {
    "z": DIGITS, "d": DIGITS, "h": HEX, "H": HEX.upper(), "a": ALNUM, "b": ALNUM + "+/", "u": ALNUM + "-_", "l": LOWER,
    "U": LOWER.upper(), "x": LOWER + DIGITS, "X": LOWER.upper() + DIGITS, "s": "!$%*?#@", "n": "123456789",
}  # fmt: skip

WORDS = """anchor bramble cobalt dahlia ember fjord garnet hazel indigo juniper kestrel lagoon maple nectar onyx pebble
    quartz raven saffron thunder umber velvet willow zephyr""".split()
FIRST = "Anna Jonas Lucía Marek Aoife Kenji Fatima Björn Chloé Ravi Olga Tomás".split()
LAST = "Keller Novak Moreau Silva Tanaka Okafor Lindqvist Rossi Haddad Byrne Petrov Weiss".split()

#: Keys that tell by their look which service gave them out.
KEYS = """
    AKIA«U12»7«U3» ASIA«U12»2«U3» AIza«u34»a ya29.«u120» GOCSPX-«u27»a ghp_«a36» gho_«a36» ghs_«a36» ghu_«a36» ghr_«a36»
    github_pat_«a22»_«a59» glpat-«a20» glrt-«a20» xoxb-«n12»-«n13»-«a24» xoxp-«n12»-«n12»-«n12»-«h32»
    xapp-1-A«X10»-«n13»-«h64» https://hooks.slack.com/services/T«U8»/B«U10»/«a24» sk_live_«a24» sk_test_«a24» rk_live_«a99»
    whsec_«a32» sk-«a48» sk-«a20»T3BlbkFJ«a20» sk-proj-«u64»0 sk-proj-«u74»T3BlbkFJ«u73»a sk-ant-api03-«u93»AA sk-or-v1-«h64»
    hf_«a34» npm_«a36» pypi-AgEIcHlwaS5vcmcCJ«u150»1 SG.«a22».«a43» SK«h32» «n10»:AA«u33» dop_v1_«h64» shpat_«h32»
    sq0csp-«u43» «a3»8Q~«a34» dckr_pat_«a27» lin_api_«a40» hvs.«u94»b dapi«h32» gsk_«a52» PMAK-«h24»-«h34» figd_«u40»
    secret_«a43» xai-«a80» r8_«a37» rubygems_«h48» tskey-auth-k«a11»CNTRL-«a32» ATATT3xFfGF0«u180» key-«h32» EAAG«a160»
    sntrys_eyJ«a140»_«a43» glsa_«a32»_«h8» M«a23».«a6».«a38» dp.pt.«a43» ntn_«z11»«a35» pplx-«a48» sbp_«h40» pul-«h40»
    «a14».atlasv1.«a64» nvapi-«u62»a7 pcsk_«a6»_«a63» tvly-dev-«a32» lsv2_pt_«h32»_«h10» re_«a8»_«a24» sha256~«u43»
    fo1_«u43» squ_«h40» pat«a14».«h64» pat-na1-«uuid» pscale_tkn_«a43»
""".split()

#: Digits that follow the check digits of an account number, by country: d a digit, A a capital, c either.
ACCOUNTS = {
    "DE": "d18", "AT": "d16", "CH": "d5c12", "FR": "d10c11d2", "BE": "d12", "NL": "A4d10", "LU": "d3c13", "ES": "d20",
    "PT": "d21", "IT": "A1d10c12", "GB": "A4d14", "IE": "A4d14", "DK": "d14", "SE": "d20", "NO": "d11", "FI": "d14",
    "PL": "d24", "CZ": "d20", "HU": "d24", "GR": "d7c16", "TR": "d5d1c16", "SA": "d2c18", "AE": "d19", "BR": "d23A1c1",
    "EE": "d16", "HR": "d17", "MT": "A4d5c18",
}  # fmt: skip
#: Telephone numbers by country: # any digit, 8 one that is neither 0 nor 1 where the country is the US.
PHONES = {
    "US": ("+1 (8##) 8##-####", "+1 8##.8##.####", "(8##) 8##-####", "8##-8##-####", "+18##8######", "1-8##-8##-####"),
    "GB": ("+44 20 7### ####", "+44 (0)161 ### ####", "07### ######", "+447#########", "0161 ### ####"),
    "DE": ("+49 (0) 89 / ######", "+49 176 ########", "089 / ### ## ##", "0176-########", "+4917########",
           "(030) ######-##", "0049 30 ########", "030/#######"),
    "FR": ("+33 6 ## ## ## ##", "06.##.##.##.##", "06 ## ## ## ##", "+33 (0)1 ## ## ## ##", "+336########"),
    "ES": ("+34 6## ### ###", "+34 91 ### ## ##", "+346########"),
    "IT": ("+39 3## #######", "+39 02 ########", "+39 06 #### ####"),
    "NL": ("+31 6 ########", "06-########", "+31 20 ### ####"), "BE": ("+32 4## ## ## ##", "04## ## ## ##"),
    "CH": ("+41 79 ### ## ##", "079 ### ## ##"), "AT": ("+43 660 #######", "+43 1 #######", "0660/#######"),
    "PL": ("+48 6## ### ###", "+48 22 ### ## ##"), "SE": ("+46 70 ### ## ##", "070-### ## ##"),
    "IN": ("+91 9#### #####", "+91-9#########", "+91 22 #### ####"), "CN": ("+86 13# #### ####", "+86-10-8### ####"),
    "JP": ("+81 90-####-####", "090-####-####", "03-####-####"), "TR": ("+90 532 ### ## ##", "0532 ### ## ##"),
    "BR": ("+55 (11) 9####-####", "(21) 9####-####", "+55 11 3### ####"), "MX": ("+52 55 #### ####", "+52 1 55 #### ####"),
    "AU": ("+61 4## ### ###", "+61 2 9### ####", "04## ### ###", "(02) 9### ####"), "IL": ("+972 50-###-####", "050-###-####"),
    "RU": ("+7 (495) ###-##-##", "+7 9## ### ## ##", "8 (9##) ###-##-##"), "ZA": ("+27 82 ### ####", "082 ### ####"),
}  # fmt: skip
#: Begin, length, how a card of that issuer is grouped.
CARDS = (
    ("4", 16, "4444"), ("51", 16, "4444"), ("55", 16, "4444"), ("2223", 16, "4444"), ("37", 15, "465"), ("34", 15, "465"),
    ("6011", 16, "4444"), ("65", 16, "4444"), ("3056", 14, "464"), ("3566", 16, "4444"), ("6212", 16, "4444"),
)  # fmt: skip
PASSWORDS = (
    "«W»«10-2029»!", "«w»«1960-2005»", "«w»«z2»", "«a12»", "«a16»", "«a17»$9", "«w»-«w»-«w»-«1-99»", "«w»«s1»«1-999»", "«W»#«1-99»",
    "qwerty«1-9999»", "«W»«W»«1-99»", "«l5»«z3»«U2»", "«w».«w».«100-999»", "I<3«W»s4", "«a10»~«z2»", "«10-99»«W»&«W»", "«h12»",
    "Tr0ub4dor&«z1»", "P@ss«w»«z2»", "«w»4ever!", "«l4»-«l4»-«z4»", "«w»_«w»#«z3»", "«l3»_«z4»_«U2»", "«w»!«w»!«1-9»",
)  # fmt: skip
#: Values that only a name calls secret.
VALUES = ("«h32»", "«h40»", "«h64»", "«a23»7", "«a31»7", "«a39»7", "«b42»5=", "«u29»4", "«uuid»", "«x19»9")
SCHEMES = """postgres postgresql postgresql+asyncpg mysql mysql+pymysql mariadb mongodb mongodb+srv redis rediss amqp amqps
    http https ftp sftp ssh smtp smtps imap ldap nats kafka mssql clickhouse rtsp socks5 jdbc:postgresql""".split()
PEM = ("RSA PRIVATE KEY", "EC PRIVATE KEY", "OPENSSH PRIVATE KEY", "PRIVATE KEY", "ENCRYPTED PRIVATE KEY", "DSA PRIVATE KEY",
       "PGP PRIVATE KEY BLOCK")  # fmt: skip

#: The slot that makes a value of a kind when a template says no more.
KINDS = {
    "password": "pw", "api_key": "key", "secret": "value", "token": "value", "client_secret": "value",
    "bearer_token": "value", "jwt": "jwt", "private_key": "pem", "connection_string": "url", "email": "mail",
    "phone": "phone", "iban": "iban", "credit_card": "card", "national_id": "person", "passport": "pass",
}  # fmt: skip

#: Names that say what a value is, by kind.
NAMES = {
    "password": """password passwd pwd pass PASSWORD DB_PASSWORD POSTGRES_PASSWORD dbPassword admin_password smtp_pass
        ansible_become_pass spring.datasource.password passphrase Passwort Kennwort contraseña hasło wachtwoord lösenord
        пароль 密码 パスワード""",
    "api_key": """api_key API_KEY apiKey x-api-key DATADOG_API_KEY aws_secret_access_key SecretAccessKey encryption_key
        subscription-key license_key account_key storage_key signing_key service_account_key master_key""",
    "token": """token TOKEN access_token refreshToken AUTH_TOKEN x-auth-token session_token csrf_token bot_token id_token
        deploy_token push_token private_token sas_token""",
    "secret": """secret SECRET_KEY JWT_SECRET secretKey webhook_secret signing_secret session_secret shared_secret
        hmac_secret cookie_secret secret_key_base NEXTAUTH_SECRET""",
    "client_secret": "client_secret clientSecret client-secret AZURE_CLIENT_SECRET consumer_secret",
    "email": "email mail E-Mail correo courriel 邮箱", "phone": "phone mobile tel phoneNumber Telefon Handy Téléphone 电话",
    "national_id": "ssn SSN national_id taxId", "passport": "passport passport_number Passnummer",
    "iban": "iban IBAN account Konto debtor", "credit_card": "card card_number cardNumber pan Kreditkarte tarjeta",
}  # fmt: skip
#: How a name is given its value.
ASSIGNMENTS = r"""
## configuration
{name}={value}
{name} = {value}
{name}: {value}⏎region: eu
user:⏎  {name}: "{value}"⏎  plan: free
{"{name}": "{value}", "n": 3}
{"user": {"{name}":"{value}"}}
{\"{name}\":\"{value}\"}
    - {name}={value}
ENV {name}={value}
## code
{name} := "{value}"
const {name} = '{value}';
os.environ['{name}'] = '{value}'
'{name}' => '{value}',
connect(user='app', {name}='{value}')
+    {name}: '{value}',⏎-    {name}: null
## shell
export {name}="{value}"
--{name}={value} --verbose
--{name} '{value}'
## protocol
{name}: {value}⏎Accept: */*
https://«w».example.com/x?user=bob&{name}={value}
## table
<{name}>{value}</{name}>
<add key="{name}" value="{value}"/>
| {name} | {value} |
`{name}`: `{value}`
## log
[INFO] loaded {name}: {value}
## chat
My {name} is {value}, please write it down.
"""
#: Kinds that tell by their look, and where they stand without a name.
PLAIN = ("api_key", "jwt", "private_key", "connection_string", "email", "iban", "credit_card")
SURROUNDINGS = r"""
## configuration
export X={value}
{"value": "{value}", "n": 3}
- item: {value}⏎- other: none
## code
const x = '{value}';⏎run(x);
# {value}
## shell
curl -s https://api.example.com/v1/items?page=2 -d '{value}'
echo {value} | tool login --stdin
## protocol
GET /cb?state=1&code={value} HTTP/1.1
## log
2024-05-01T10:00:00Z INFO client started with {value} after 3 retries
ERROR [worker-3] refused: {value}\n
## table
| name | value |⏎| --- | --- |⏎| a | {value} |
<td>{value}</td>
a, {value}, b
## chat
{value}
Here it is: {value}
I pasted {value} into the chat by mistake.
The ticket says ({value}) and nothing else.
see **{value}** below
`{value}`
"""

_SLOT = re.compile(r"«([^»]*)»")
_MARKED = re.compile(r"⟦([a-z_]+)(?:\|([^⟧]*))?⟧")


class Span(NamedTuple):
    """What is sensitive in a text."""

    start: int
    end: int
    kind: str


class Draw:
    """Draws values and texts."""

    def __init__(self, seed: int | str) -> None:
        self.random = random.Random(f"privacy {seed}")
        self._named: dict[str, Callable[[], str]] = {
            "w": lambda: self.random.choice(WORDS), "W": lambda: self.random.choice(WORDS).title(),
            "first": lambda: self.random.choice(FIRST), "last": lambda: self.random.choice(LAST),
            "uuid": lambda: self.slots("«h8»-«h4»-4«h3»-a«h3»-«h12»"),
            "ip": lambda: self.slots("«1-254».«1-254».«1-254».«1-254»"),
            "time": lambda: self.slots("2025-1«0-2»-«10-28»T«10-23»:«10-59»:«10-59».«z3»Z"),
            "pw": lambda: self.slots(self.random.choice(PASSWORDS)),
            "key": lambda: self.slots(self.random.choice(KEYS)),
            "value": lambda: self.slots(self.random.choice(VALUES)),
            "basic": lambda: base64.b64encode(self.slots("«w»:«a14»").encode()).decode(),
            "mail": self.mail, "phone": self.phone, "iban": self.iban, "card": self.card, "jwt": self.jwt, "pem": self.pem,
            "url": self.url, "person": self.person, "pass": lambda: self.slots(self.random.choice(PASSPORTS)), "badcard": lambda: self.card(right=False), "badiban": lambda: self.iban(right=False),
        }  # fmt: skip

    def text(self, template: str) -> tuple[str, list[Span]]:
        """Return a template as a text, and what is sensitive in it."""
        parts: list[str] = []
        gold: list[Span] = []
        size = at = 0
        for match in _MARKED.finditer(template):
            kind, inner = match[1], match[2] or f"«{KINDS[match[1]]}»"
            before, value = self.slots(template[at : match.start()]), self.slots(inner)
            size += len(before)
            gold.append(Span(size, size + len(value), kind))
            size += len(value)
            parts += (before, value)
            at = match.end()
        return "".join([*parts, self.slots(template[at:])]), gold

    def slots(self, template: str) -> str:
        """Return a template without marks, its slots filled."""
        return _SLOT.sub(lambda match: self.slot(match[1]), template.replace("⏎", "\n"))

    def slot(self, name: str) -> str:
        """Return what stands for a slot: a number of a range, characters of an alphabet, or a value by its name."""
        if name in self._named:
            return self._named[name]()
        low, dash, high = name.partition("-")
        if dash:
            return str(self.random.randint(int(low), int(high)))
        drawn = "".join(self.random.choices(ALPHABETS[name[0]], k=int(name[1:])))
        return self.random.choice("123456789") + drawn[1:] if name[0] == "d" else drawn

    def mail(self) -> str:
        names = (self.random.choice(FIRST), self.random.choice(LAST))
        first, last = (re.sub(r"[^a-z]", "", name.lower()) for name in names)
        local = self.random.choice(
            (
                first,
                f"{first}.{last}",
                f"{first[0]}.{last}",
                f"{last}«1-99»",
                f"{first}-{last}",
                f"{first}_{last}+news",
            )
        )
        host = self.random.choice(
            ("gmail.com", "web.de", "orange.fr", "proton.me", "corp.example.com", "example.co.uk", "uni-bremen.de", "«w».io",
             "mail.«w»-«w».co.jp", "«w».museum")
        )  # fmt: skip
        return self.slots(f"{local}@{host}")

    def phone(self) -> str:
        country = self.random.choice(sorted(PHONES))
        shape = self.random.choice(PHONES[country])
        if country == "US":
            shape = re.sub("8", lambda _: self.random.choice("23456789"), shape)
        return re.sub("#", lambda _: self.random.choice(DIGITS), shape)

    def iban(self, *, right: bool = True) -> str:
        country = self.random.choice(sorted(ACCOUNTS))
        slots = re.sub("[dAc]", lambda kind: {"d": "z", "A": "U", "c": "X"}[kind[0]], ACCOUNTS[country])
        body = self.slots(
            re.sub(r"(\w)(\d+)", r"«\1\2»", re.sub(r"(\d+)(?=\D)", r"\1 ", slots)).replace(" ", "")
        )
        check = 98 - int("".join(str(int(char, 36)) for char in body + country + "00")) % 97
        plain = f"{country}{check if right else (check - 1) % 97 + 2:02}{body}"
        return self.random.choice((plain, " ".join(plain[at : at + 4] for at in range(0, len(plain), 4))))

    def card(self, *, right: bool = True) -> str:
        start, size, groups = self.random.choice(CARDS)
        body = start + self.slots(f"«z{size - len(start) - 1}»")
        total = sum(sum(divmod(int(char) * (2 - index % 2), 10)) for index, char in enumerate(reversed(body)))
        plain = body + str((-total + (0 if right else self.random.randint(1, 9))) % 10)
        parts: list[str] = []
        for width in map(int, groups):
            parts.append(plain[:width])
            plain = plain[width:]
        return self.random.choice(("", " ", "-")).join(parts)

    def jwt(self) -> str:
        def part(value: object) -> str:
            return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")

        head = {"alg": self.random.choice(("HS256", "RS256")), "typ": "JWT"}
        body = {"sub": self.slot("z10"), "iat": self.random.randint(1_700_000_000, 1_760_000_000)}
        return f"{part(head)}.{part(body)}.{self.slot('u43')}"

    def pem(self) -> str:
        """Return a private key: whole, cut off, or its lines joined by escapes as in JSON."""
        name = self.random.choice(PEM)
        rows = [self.slot("b64") for _ in range(self.random.randint(3, 24))]
        head, end = f"-----BEGIN {name}-----", f"-----END {name}-----"
        form = self.random.randrange(8)
        if form == 0:
            return "\n".join([head, *rows])
        return ("\\n" if form == 1 else "\n").join([head, *rows, self.slots("«b30»="), end])

    def url(self) -> str:
        """Return an address with a user and a password in it."""
        secret = re.sub(r"[@/#?:&<%]", "x", self.slot("pw"))
        user = self.random.choice(("«w»", "admin", "svc_app", "a.b", "root"))
        host = self.random.choice(("db.«w».internal", "«w»-«1-9».example.net", "«ip»", "localhost"))
        rest = self.random.choice(("", ":5432", ":«1000-9999»")) + self.random.choice(
            ("", "/", "/«w»", "/app?ssl=true&timeout=5")
        )
        return self.slots(f"{self.random.choice(SCHEMES)}://{user}:") + secret + self.slots(f"@{host}{rest}")

    def person(self) -> str:
        """Return a personal number of a country whose numbers tell by their shape what they are."""
        return self.random.choice((self.ssn, self.nir, self.fiscale, self.cpf))()

    def ssn(self) -> str:
        return self.slots("«100-665»-«10-99»-«1000-9999»")

    def nir(self) -> str:
        body = self.slots("«1-2»«50-99»0«1-9»«10-95»«z3»«100-999»")
        return self.random.choice(("{}{}", "{} {}")).format(body, f"{97 - int(body) % 97:02}")

    def fiscale(self) -> str:
        odd = dict(zip(DIGITS + LOWER.upper(), (1, 0, 5, 7, 9, 13, 15, 17, 19, 21, 1, 0, 5, 7, 9, 13, 15, 17, 19, 21,
            2, 4, 18, 20, 11, 3, 6, 8, 12, 14, 16, 10, 22, 25, 24, 23), strict=True))  # fmt: skip
        body = self.slots(
            f"«U6»«50-99»{self.random.choice('ABCDEHLMPRST')}«10-28»{self.random.choice('ABCDFGHL')}«100-999»"
        )
        total = sum(odd[char] for char in body[::2]) + sum(
            int(char, 36) - 10 * char.isalpha() for char in body[1::2]
        )
        return body + LOWER.upper()[total % 26]

    def cpf(self) -> str:
        body = self.slots("«z9»")
        for _ in range(2):
            total = sum(int(char) * (len(body) + 1 - at) for at, char in enumerate(body))
            body += str(total * 10 % 11 % 10)
        return f"{body[:3]}.{body[3:6]}.{body[6:9]}-{body[9:]}"


#: Numbers of passports: of the United States, Germany, France, the United Kingdom, Spain, India, Poland, Japan.
PASSPORTS = ("«d9»", "C0«X1»X«z4»7", "«10-29»AK«z5»", "5«z8»", "PA«U1»«z6»", "K«d7»", "EH«z7»", "TK«z7»")


def under_headings(text: str) -> Iterator[tuple[str, str]]:
    """Yield the lines of a text, each with the heading (`## …`) it stands under."""
    heading = ""
    for line in text.strip().splitlines():
        if line.startswith("## "):
            heading = line[3:]
        else:
            yield heading, line


def half(text: str) -> str:
    """Return the half that a template or a part of a sentence belongs to."""
    return ("tuned", "held out")[hashlib.sha256(text.encode()).digest()[0] & 1]


def templates(draw: Draw, part: str, sensitive: bool) -> Iterator[tuple[str, str]]:
    """Yield (format, template) of all that belongs to a half: with something sensitive or without, in one round."""
    text = (Path(__file__).parent / "privacy_templates.txt").read_text(encoding="utf-8")
    whole = text.split("\n# look-alikes\n")[not sensitive].split("\n# sensitive\n")[-1]
    drawn = chain(assigned(draw), assigned(draw), assigned(draw)) if sensitive else ()
    for heading, template in chain(under_headings(whole), drawn):
        if half(template) == part:
            yield heading, template
    for _ in range(SENTENCES):
        yield "sentence", sentence(draw, part, sensitive)


SENTENCES = 60
"""Sentences of a round, sensitive or not."""


def sentence(draw: Draw, part: str, sensitive: bool) -> str:
    """Return a sentence made of parts of a half: who, does what with, of which name, a value or not, and what else."""

    def one(of: Sequence[str]) -> str:
        return draw.random.choice([text for text in of if half(text) == part])

    language = draw.random.choice(sorted(SAYINGS))
    who, does, names, harmless, rest = (
        [text.strip() for text in line.split("|")] for line in SAYINGS[language]
    )
    if sensitive:
        name, _, kind = one(names).partition("=")
        value = "⟦api_key|«value»⟧" if kind == "api_key" else f"⟦{kind}⟧"
        return f"{one(who)} {one(does)} {name} {value} {one(rest)}."
    return f"{one(who)} {one(does)} {one(harmless)} {one(rest)}."


#: By language: who, does what with, names of values and their kinds, what is harmless, and what else is said.
SAYINGS = {
    "en": (
        "The deploy job | Our billing service | Olga | My old laptop | The container | This script | He | The night shift | Support | The mail gateway",
        "uses | signs in with | still has | was started with | connects with | asked me for | wrote down | should get | accepts | gave out",
        """the client secret=client_secret | the password=password | the access token=token | the API key=api_key | my password=password
        | the webhook secret=secret | the passphrase=password | our license key=api_key | SSN=national_id | the passport number=passport
        | passport=passport | the root password=password | the refresh token=token | the signing key=api_key | the bot token=token
        | the social security number=national_id | an admin password=password | the wifi password=password""",
        """the password policy v2.«1-9» | the token count «d5» | the key «w»_id | the secret named «w»-tls | commit «h40» | the passport photo of 2019
        | the passwords file /etc/«w»/users | a token limit of «d4» | the password from «10-28».11.2025 | the secret sauce | an API key prefix
        | the access tokens table | the password field «1-9» | the client secret rotation | build «h8» | the key result «1-9»
        | the password manager «W» | ticket «U3»-«d4»""",
        "for staging | until Friday | and nothing else | works | was rejected | since the move | on the second try | as agreed | in the test system | today",
    ),
    "de": (
        "Der Server | Olga | Mein altes Handy | Die Nachtschicht | Unser Dienst | Der Support | Das Skript | Er",
        "benutzt | braucht | hat noch | meldet sich an mit | kennt | verlangt | bekommt | nennt",
        """das Passwort=password | das Kennwort=password | den API-Schlüssel=api_key | den Zugangscode=password | das Token=token
        | das Client Secret=client_secret | die Passnummer=passport | den Reisepass=passport""",
        """das Passwortfeld «1-9» | die Tokenzahl «d4» | den Schlüsselbund von «W» | Version 2.«1-9».«1-20» | das Passwort vom «10-28».11.2025
        | das Geheimnis des Erfolgs | die Bestellung «d7» | das Kennwort-Formular""",
        "für den Test | bis Freitag | und sonst nichts | seit gestern | beim zweiten Mal | wie besprochen | im Keller | noch heute",
    ),
    "fr": (
        "Le serveur | Olga | Mon ancien portable | Notre service | Le script | Elle | L'équipe | Le support",
        "utilise | demande | connaît | a reçu | se connecte avec | garde | donne | refuse",
        """le mot de passe=password | la clé API=api_key | le jeton d'accès=token | le mdp=password | le code d'accès=password
        | le passeport=passport | le secret client=client_secret | le numéro de passeport=passport""",
        """le mot de passe du «10-28»/11/2025 | la version 2.«1-9» | la clé de la réussite | le champ mot de passe «1-9» | la commande «d7»
        | le secret du chef | les jetons de la page «1-99» | le fichier /srv/«w»/cle""",
        "pour les tests | jusqu'à vendredi | et rien d'autre | depuis hier | en ce moment | comme convenu | au bureau | aujourd'hui",
    ),
    "es": (
        "El servidor | Olga | Mi portátil viejo | Nuestro servicio | El script | Ella | El equipo | Soporte",
        "usa | pide | conoce | recibió | entra con | guarda | da | rechaza",
        """la contraseña=password | la clave API=api_key | el token de acceso=token | el código de acceso=password | mi contraseña=password
        | el pasaporte=passport | el secreto de cliente=client_secret | el número de pasaporte=passport""",
        """la contraseña del «10-28»/11/2025 | la versión 2.«1-9» | la clave del éxito | el campo contraseña «1-9» | el pedido «d7»
        | el secreto del chef | los tokens de la página «1-99» | el archivo /srv/«w»/clave""",
        "para pruebas | hasta el viernes | y nada más | desde ayer | por ahora | como acordamos | en la oficina | hoy",
    ),
}  # fmt: skip


def assigned(draw: Draw) -> Iterator[tuple[str, str]]:
    """Yield (format, template) of every assignment and every surroundings, each with a kind and a name that are drawn."""
    for heading, line in under_headings(ASSIGNMENTS):
        kind = draw.random.choice(sorted(NAMES))
        value = "⟦api_key|«value»⟧" if kind == "api_key" else f"⟦{kind}⟧"
        name = draw.random.choice(NAMES[kind].split())
        yield heading, line.replace("{name}", name).replace("{value}", value)
    for heading, line in under_headings(SURROUNDINGS):
        kind = "api_key" if draw.random.random() < 0.4 else draw.random.choice(PLAIN)
        yield heading, line.replace("{value}", f"⟦{kind}⟧")
