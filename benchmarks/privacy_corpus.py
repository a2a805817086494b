"""Texts drawn from a seed, for `privacy.py`: values of every kind, in every format, in many wordings, and look-alikes.

`SETTINGS` are whole texts and `LOOK_ALIKES` texts that hold nothing sensitive, by format; each found a fault in the rules when
it was first seen, or looks least like the others. `ASSIGNMENTS` and `SURROUNDINGS` are taken with every name and kind instead.
In a template «h8» stands for eight characters of an alphabet, «1-99» for a number, «w» for a word, «mail» for an address (all
names: `Draw.slot`), ⏎ for a new line. ⟦kind⟧ is a value of a kind, ⟦kind|…⟧ a stretch of that kind, with slots of its own.
Nothing here is real: every key, number and name is drawn at random.
"""

# ruff: noqa: E501  a template stays in one line

from __future__ import annotations

import base64
import json
import random
import re
from collections.abc import Callable, Iterator
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
    "phone": "phone", "iban": "iban", "credit_card": "card",
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
            "url": self.url, "badcard": lambda: self.card(right=False), "badiban": lambda: self.iban(right=False),
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


def under_headings(text: str) -> Iterator[tuple[str, str]]:
    """Yield the lines of a text, each with the heading (`## …`) it stands under."""
    heading = ""
    for line in text.strip().splitlines():
        if line.startswith("## "):
            heading = line[3:]
        else:
            yield heading, line


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


SETTINGS = r"""
## configuration
ConnectionStrings__Main=Server=«w».internal;User Id=sa;Password=⟦password⟧;
      - name: POSTGRES_PASSWORD⏎        value: ⟦password⟧
env:⏎  DB_PASS: ⟦password⟧⏎  DB_USER: app
stringData:⏎  username: app⏎  password: ⟦password⟧
root:⟦password⟧@«w»-«1-9».corp.net:22
"adminPassword": {"value": "⟦password⟧"},
machine api.«w».io⏎  login «w»⏎  password ⟦password⟧
OPENAI_API_KEY=⟦api_key|sk-proj-«u74»T3BlbkFJ«u74»⟧⏎OPENAI_MODEL=gpt-4o-mini
{"pan":"⟦credit_card⟧","exp_month":«1-12»,"exp_year":2028}
{"type":"service_account","project_id":"«w»","private_key":"⟦private_key|-----BEGIN PRIVATE KEY-----\n«b64»\n«b64»\n«b64»\n«b40»==\n-----END PRIVATE KEY-----⟧\n"}
sms.gateway: sent id=«h12» to=⟦phone|+4479«z8»⟧ parts=1
enable secret 0 ⟦password⟧
username «w» privilege 15 password 0 ⟦password⟧
# cloud-init⏎chpasswd:⏎  list: |⏎    root:⟦password⟧
network={⏎  ssid="«w»"⏎  psk="⟦password⟧"⏎}
variable "db_password" {⏎  default = "⟦password⟧"⏎}
## code
  admin_password                  = "⟦password⟧"
password: str = "⟦password⟧"
PASSWORD: Final = '⟦password⟧'
let password: String = "⟦password⟧"
await page.fill('#password', '⟦password⟧');
cy.get('[name=password]').type('⟦password⟧')
DB_PASS = "⟦password⟧"  # noqa
$cred = ConvertTo-SecureString "⟦password⟧" -AsPlainText -Force
smtp.login("«w»", "⟦password⟧")
define( 'DB_USER', '«w»' );⏎define( 'DB_PASSWORD', '⟦password⟧' );⏎define( 'DB_CHARSET', 'utf8mb4' );
smtp.Credentials = new NetworkCredential("«w»", "⟦password⟧");
let cfg = Config::new().user("«w»").password("⟦password⟧").host("«ip»");
my $dbh = DBI->connect("dbi:mysql:«w»", "«w»", "⟦password⟧", { RaiseError => 1 });
settings(refresh_token="⟦token⟧", timeout=3)
auth=('bot', '⟦password⟧')
## shell
wget --user=bot --password=⟦password⟧ https://«w».internal/f.zip
docker login -u bot -p ⟦password⟧ registry.«w».internal
unzip -P ⟦password⟧ backup.zip
openssl enc -aes-256-cbc -pass pass:⟦password⟧ -in a -out b
git clone ⟦connection_string⟧
sudo mysql -u«first» -p'⟦password⟧'
net user «w» ⟦password⟧ /add
DATABASE_PASSWORD=⟦password⟧ npm run migrate
echo "⟦password⟧" | sudo -S apt update # sudo password: ⟦password⟧
keytool -storepass ⟦password⟧ -alias «w»
rabbitmqctl add_user «w» ⟦password⟧
$ cat ~/.pgpass⏎db.«w».internal:5432:«w»:app:⟦password|«a16»⟧
lftp -u «w»,⟦password⟧ ftp.«w».net -e 'mirror -R dist /www; quit'
gpg --batch --yes --passphrase '⟦password⟧' -c backup-«d8».tar
mongosh "mongodb://«ip»:27017/admin" --username «w» --password '⟦password⟧'
ipmitool -I lanplus -H «ip» -U ADMIN -P ⟦password⟧ power status
xfreerdp /u:«w» /p:'⟦password⟧' /v:«ip» /dynamic-resolution
kubeadm join «ip»:6443 --token ⟦token|«h6».«h16»⟧ --discovery-token-ca-cert-hash sha256:«h64»
./config.sh --url https://github.com/«w»/«w» --token ⟦token|A«U28»⟧
ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI«b43» ⟦email⟧
pip install --extra-index-url ⟦connection_string|https://«w»:«a20»@pypi.«w».io⟧/simple «w»
$ git remote -v⏎origin	⟦connection_string|https://«w»:ghp_«a36»@github.com⟧/«w»/«w».git (fetch)
## protocol
Authorization: Bearer ⟦bearer_token⟧
-H 'authorization: Bearer ⟦bearer_token⟧'
Authorization: Basic ⟦password|«basic»⟧
https://api.telegram.org/bot⟦api_key|«d10»:AA«u33»⟧/getMe
"authorization": ["Bearer ⟦bearer_token⟧"]
{name: 'Authorization', value: 'Basic ⟦password|«basic»⟧'}
GET /v2/forecast?city=Bremen&appid=⟦api_key|«h32»⟧&units=metric HTTP/1.1
jdbc:mysql://«ip»:3306/«w»?user=«w»&password=⟦password|«a14»⟧&useSSL=false
fetch(url, { headers: { Authorization: 'Bearer ⟦bearer_token|«a32»⟧' } })
ftp> user «w» ⟦password⟧⏎230 Login successful.
https://wa.me/⟦phone|4917«d9»⟧ ping me there
<a href="mailto:⟦email⟧?subject=Hi">write us</a>
RCPT TO:<⟦email⟧>⏎250 2.1.5 Ok
BEGIN:VCARD⏎VERSION:3.0⏎FN:«first» «last»⏎TEL;TYPE=CELL:⟦phone⟧⏎EMAIL:⟦email⟧⏎END:VCARD
Set-Cookie: session=⟦token⟧; Path=/; HttpOnly
connect.sid=⟦token|s%3A«u32».«b43»⟧
## log
{"role": "tool", "content": "export KEY=⟦api_key⟧\nexport DEBUG=1"}
Nov 10 09:11:02 mx postfix/smtp[«d4»]: «H10»: to=<⟦email⟧>, relay=none, delay=30, status=deferred
## table
INSERT INTO customers VALUES («d4», '«first»', '⟦email⟧', '⟦phone⟧');
id,login,password,created⏎1,«w»,⟦password|«a12»⟧,2025-03-0«1-9»
| Host | User | Password |⏎|---|---|---|⏎| «ip» | «w» | `⟦password⟧` |
<DbtrAcct><Id><IBAN>⟦iban⟧</IBAN></Id></DbtrAcct>
<subscription-key>⟦api_key|«value»⟧</subscription-key>
SET PASSWORD FOR '«w»'@'localhost' = '⟦password⟧';
## chat
the password's ⟦password⟧ btw
use admin / ⟦password⟧ for the staging login, password included
I've set your password to ⟦password⟧, change it after logging in
try "⟦password⟧" as the password
I always use ⟦password⟧ as my password
it's ⟦connection_string⟧, I think
sms to ⟦phone⟧ failed
my number is ⟦phone⟧
Can you log in with user «first» and password ⟦password⟧?
PASSWORD IS ⟦password⟧
login «first»⏎password ⟦password⟧⏎
My banking password is ⟦password⟧ and it was in the breach.
Hotline ⟦phone⟧ (Mo-Fr)
TICKET-«1-999»: customer wrote 'my password ⟦password⟧ does not work'
password («w»-«1-9».corp.net): ⟦password⟧
Phone no. ⟦phone⟧
«first» (10:«10-59» AM): what's the wifi password? «last»: ⟦password⟧
The admin password was changed to ⟦password⟧ yesterday.
Use the password ⟦password⟧ for the archive.
login «w» / ⟦password⟧ - password must be changed
Ask «first» (⟦phone⟧) about the phone line
«first»: what was the password again?⏎«last»: ⟦password⟧
hey can you try logging in with ⟦email⟧ / ⟦password⟧ and tell me if the dashboard loads?
Guest Wi-Fi "«W» Visitors", passphrase: ⟦password|«w» «w» «w» «d2»⟧
you can reach me at ⟦email|«w».«w» (at) «w» (dot) com⟧ after lunch
Kind regards,⏎«first» «last»⏎Head of Support, «W» GmbH⏎T ⟦phone⟧⏎M ⟦phone⟧⏎⟦email⟧
Je kunt me bellen op ⟦phone|06 «z8»⟧.
⟦jwt⟧⏎⟦jwt⟧
cc ⟦email⟧; bcc ⟦email⟧
cat id_rsa⏎⟦private_key⟧⏎
login: «first»⏎pwd: ⟦password⟧
my key:⏎⏎⟦private_key|-----BEGIN RSA PRIVATE KEY-----⏎«b64»⏎«b64»⟧
Password for the shared drive: ⟦password⟧
Ticket #«d5»: customer says the temporary password ⟦password⟧ was rejected twice.
## languages
La contraseña es ⟦password⟧
密码是 ⟦password⟧
密码：⟦password⟧
La password è ⟦password⟧
hasło: ⟦password⟧
Şifre: ⟦password⟧
Zugangsdaten: Benutzer «first», Passwort ⟦password⟧
le mot de passe du wifi est ⟦password⟧
La password del server è ⟦password⟧
a senha do banco é ⟦password⟧
登录密码：⟦password⟧
我的密码是⟦password⟧
パスワード: ⟦password⟧
비밀번호는 ⟦password⟧
Twoje hasło to ⟦password⟧
电话号码是⟦phone⟧
パスワードは「⟦password⟧」です
WLAN: «w»-guest, Schlüssel: ⟦password⟧
Ich habe das Passwort auf ⟦password⟧ zurückgesetzt.
identifiant : «w»⏎mdp : ⟦password⟧
La clave del wifi es ⟦password⟧, la red se llama «W».
お世話になっております。初期パスワードは「⟦password⟧」です。初回ログイン時に変更してください。
メールアドレスは⟦email⟧です。
Sie erreichen mich unter ⟦phone|0176 «d3» «d5»⟧ oder im Büro: ⟦phone|040 / «d3» «d2» «d2»⟧.
Mi móvil es el ⟦phone|6«z2» «z3» «z3»⟧, llámame mañana.
Bitte schicken Sie die Rechnung an ⟦email⟧, danke.
"""

LOOK_ALIKES = r"""
## configuration
[merge]⏎	conflictstyle = diff3⏎[credential]⏎	helper = osxkeychain⏎[user]⏎	signingkey = «H16»
annotations:⏎  checksum/secret: «h64»
resource "random_password" "«w»" {⏎  length  = 32⏎  special = false⏎}
secret_arn = "arn:aws:secretsmanager:us-east-1:«d12»:secret:«w»/db-«a6»"
password=⏎user=«w»⏎token=⏎secret=
DB_PASSWORD=${DB_PASSWORD:?required}⏎TOKEN=$(cat /run/secrets/token)⏎SECRET=%SECRET%
vocab: {"token": «d4», "Ġpassword": «d5», "Ġsecret": «d4», "key": «d4»}
"hashed_secret": "«h40»", "is_verified": false, "line_number": «1-99», "type": "Secret Keyword"
<dependency><groupId>com.auth0</groupId><artifactId>java-jwt</artifactId><version>4.«0-9».«0-9»</version></dependency>
keepalive_timeout 65; client_max_body_size 20m; limit_req zone=login burst=«1-20»; proxy_set_header Authorization $http_authorization;
ssl_certificate /etc/ssl/certs/«w».pem;⏎ssl_certificate_key /etc/ssl/private/«w».key;⏎ssl_session_cache shared:SSL:10m;
tokenizer: cl100k_base⏎pad_token: "<pad>"⏎eos_token: "</s>"⏎unk_token: "[UNK]"⏎bos_token_id: 1
securitySchemes:⏎  ApiKeyAuth:⏎    type: apiKey⏎    in: header⏎    name: X-API-Key⏎  BearerAuth:⏎    scheme: bearer⏎    bearerFormat: JWT
password: !!secretRef, tokenCount: 0, keyBy: 'id', secretsManager: new SecretsManager({ region })
"phone": {"type": "string", "pattern": "^\\+[1-9]\\d{1,14}$", "maxLength": 16}
## code
$password = $_POST['password']; $token = bin2hex(random_bytes(32));
re.compile(r"(?i)(password|token|secret)\s*[:=]\s*\S+")
use Illuminate\Support\Facades\Password;⏎Password::min(12)->mixedCase()->uncompromised();
<label for="api-key">API key</label> <input id="api-key" :value="apiKey" readonly>
api_key = os.environ.get('API_KEY') or config['api_key']⏎if not api_key:⏎    raise RuntimeError('Set API_KEY first')
<meta name="csrf-param" content="authenticity_token"><link rel="preload" href="/_next/static/chunks/«100-9999»-«h16».js">
case Key.F5: case Key.Enter: keyDown(event.keyCode, event.ctrlKey); keymap['Ctrl-S'] = 'save'
decorators: @app.route("/token") @login_required @cache.cached(timeout=«10-99»)
KEY_COLUMNS = ("tenant", "session", "seq")⏎sort_key = lambda row: (row.token, -row.score)
@pytest.fixture⏎def token(client): return client.post('/token').json()['access_token']
token_ids = [101, 7592, 2088, 102, 0, 0, 0]⏎attention_mask = [1, 1, 1, 1, 0, 0, 0]⏎keys = ['q', 'k', 'v']
## shell
read -s -p 'Password: ' PASSWORD; export PASSWORD; echo "$PASSWORD" | sudo -S true; unset PASSWORD
gpg --recv-keys «H40»; apt-key adv --keyserver hkps://keys.example.org --recv «H16»
TOKEN=$(curl -s -X PUT http://169.254.169.254/latest/api/token -H 'X-aws-ec2-metadata-token-ttl-seconds: 60')
Enter passphrase (empty for no passphrase): ⏎Enter same passphrase again: ⏎Your identification has been saved in «w».
aws secretsmanager get-secret-value --secret-id prod/«w»/db --query SecretString --output text
? API key (leave blank to log in with the browser) › ⏎✔ Logged in as «w»
vault write auth/approle/login role_id=$ROLE secret_id=$SECRET
## protocol
HTTP/1.1 401 Unauthorized⏎WWW-Authenticate: Bearer realm="«w»", error="invalid_token"⏎Content-Length: «d3»
{"usage":{"prompt_tokens":«d4»,"completion_tokens":«d3»,"total_tokens":«d4»},"id":"chatcmpl-«a29»"}
«ip» - «w» [«10-28»/Jun/2024:1«0-9»:«10-59»:«10-59» +0200] "GET /password/reset?step=2 HTTP/1.1" 302 0
Set-Cookie: token=; Max-Age=0; Path=/; HttpOnly⏎Set-Cookie: lang=en; Path=/
{"ok":false,"error":"missing_token","needs":["password","secret"]}
x-ratelimit-limit-tokens: «d6»⏎x-ratelimit-remaining-tokens: «d6»⏎x-ratelimit-reset-tokens: «1-60»ms
{"error":{"code":"token_expired","message":"Token expired at «time»","param":"token"}}
## log
#«1-20»  0x0000«h12» in check_password (pw=0x7ffe«h8» "", len=0) at pam.c:«1-999»
e2e: enters password → clicks Sign in → sees dashboard («d4» ms)
Starting «w» with args: --password-file=/run/secrets/pw --token-ttl=15m --secret-backend=aws
2025/11/12 10:«10-59»:33 [error] «d4»#«d4»: *«d6» user "«w»": password mismatch, client: «ip», server: «w».io, request: "GET /admin HTTP/1.1"
pam_unix(sshd:auth): authentication failure; logname= uid=0 euid=0 tty=ssh ruser= rhost=«ip»
{"KeyMetadata": {"KeyId": "«uuid»", "KeyState": "Enabled", "KeyUsage": "ENCRYPT_DECRYPT", "KeyManager": "CUSTOMER"}}
Jun «10-28» 1«0-9»:«10-59»:«10-59» «w» sshd[«d5»]: Accepted publickey for deploy from «ip» port «d5» ssh2: ED25519 SHA256:«b43»
## table
«d4» «d4» «d4» «d4»⏎«d4» «d4» «d4» «d4»
«uuid»,«1000-9999»,«time»,«ip»,«w»,ok⏎«uuid»,«1000-9999»,«time»,«ip»,«w»,ok⏎«uuid»,«1000-9999»,«time»,«ip»,«w»,ok
username,password,role⏎# passwords are hashed, see «w».md⏎
## chat
He passed: 85 %. Bus pass: valid. Boarding pass: gate B12. Pass rate: 97.5%. A hall pass is a pass to the hall.
Please pass the salt. Pass: 12, fail: 3. Boarding pass: mobile. Day pass: «10-40» EUR. Pass code of conduct training.
Token «d4» of «d5» generated, «10-99».«0-9» tokens/s, kv cache «d3» MiB
The token budget: 4096 tokens; the prompt uses «100-999» tokens, so pass max_tokens=«d4».
## languages
password: "Contraseña"⏎passwordPlaceholder: "Escribe tu contraseña"⏎token: "Código de acceso"
Ihre Bestellung «z3»-«z7» vom «1-28».«1-12».2025 über «10-999»,«z2» € wurde versandt. Sendungsnummer: 00340«z15».
Kundennummer: «z10»⏎Vertragsnummer: «z4» «z4» «z2»⏎Zählernummer: 1«U3»«z10»⏎Zählerstand: «d6»
パスワードは8文字以上で入力してください。密码必须包含数字。비밀번호를 잊으셨나요? Пароль должен содержать цифры. Hasło jest za krótkie.
Passwort vergessen? Das Passwort muss mindestens 8 Zeichen haben. Passwort: erforderlich.
Mot de passe oublié ? Le mot de passe est incorrect. Mot de passe : obligatoire.
La contraseña es demasiado corta. Contraseña: obligatorio. ¿Olvidó su contraseña?
API 密钥可以在控制台重新生成，令牌有效期为两小时。
密码长度不能少于8位。密码错误，请重试。忘记密码怎么办？
El token es inválido. Le jeton est expiré. Das Token ist ungültig. Il token è scaduto.
password in Chinese is 密码, in Japanese パスワード, in Russian пароль, in Turkish şifre
Le secret de la réussite : travailler. Der Schlüssel: Geduld. El secreto: paciencia.
Termin am «10-28».0«1-9».2025 um «10-18»:«10-59» Uhr, Raum «d3», Kundennr. «d8», Tel-Aviv-Str. «1-99»
## identifier
tweet «1-9»«z18», channel «1-9»«z17», page 1000«z11»
github.com/«w»/token v0.0.0-2023«z10»-«h12» h1:«b43»=
mastodon @«w»@«w».social
msg_«a24» req_«a24» run_«a24» call_«a24»
{"idempotency_key": "«uuid»", "cache_key": "user:«1-9999»:v2", "partition_key": "«h16»"}
«h32»  «w».iso⏎«h128»  «w».tar.xz
«w»==«0-9».«0-30».«0-9» \⏎    --hash=sha256:«h64»
contract address 0x«h40»
## number
EAN 4«z12», GTIN-14 «z14», UPC «z12»
4«z12»  «W» tea 100 g  3,49⏎4«z12»  «W» oil 1 l   7,99
{"user_id": 4«z15», "snowflake": 4«z17»}
(«d3») «d3» rows, [«d3»] «d4», («z4») «d6»
matrix: «z3» «z3» «z4»⏎        «z3» «z3» «z4»
1 000 000, 2 500 000 and «d2» «z3» «z3» CHF; 01 02 03 04 05; 12-34-56
part 0«z3»-«z6»-«z2», drawing «z3».«z3».«z4», catalogue «d3»-«d4», DIN 0«z4»
iat=17«z8» exp=17«z8» ms=17«z11» ns=17«z17»
pi = 3.14159265358979323846, e = 2.718281828459045, «2-9»^«60-99» = «d1»«z24»
20250«1-9»1«0-9»T1«0-9»«10-59»«10-59»Z
53°04'«10-59».2"N 8°48'«10-59».5"E
order «d3»-«d3»-«d4» shipped; part no. «d3»-«d3»-«d4»; SKU «d4»-«d4»
Serial number «z4»-«z4»-«z4», firmware «1-9».«1-99».«1-99», MAC «h2»:«h2»:«h2»:«h2»:«h2»:«h2», IMEI not given
## placeholder
postgres://$DB_USER:$DB_PASS@«w».example.org:5432/app
aws_secret_access_key = wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY
-----BEGIN PRIVATE KEY-----⏎...⏎-----END PRIVATE KEY-----
name@domain.tld
DATABASE_URL=postgres://USER:PASSWORD@HOST:5432/DBNAME
private_key: "-----BEGIN RSA PRIVATE KEY-----\n<your key>\n-----END RSA PRIVATE KEY-----\n"
Authorization: Bearer <token>
sk-xxxxxxxxxxxxxxxxxxxxxxxx
Phone: (___) ___-____
Write to <first>.<last>@<company>.com
Keys look like `ghp_…`, `gho_…` or `github_pat_…`.
Card number: XXXX XXXX XXXX «z4»⏎Expiry: MM/YY⏎CVC: ***
Mot de passe : non défini
SLACK_WEBHOOK=https://hooks.slack.com/services/T00000000/B00000000/XXXXXXXXXXXXXXXXXXXXXXXX
curl -u username:password https://«w».example.com
postgresql://user:password@localhost:5432/mydb
Replace `<YOUR_API_KEY>` with your key: `export API_KEY=<YOUR_API_KEY>`
## encoded
data:image/jpeg;base64,/9j/4AAQSkZJRgABAQ«b600»
\u0068\u0065 \x«h2»\x«h2» %E2%82%AC%20«z2» &#8364; =?UTF-8?B?«b40»?=
-----BEGIN CERTIFICATE REQUEST-----⏎«b64»⏎«b64»⏎-----END CERTIFICATE REQUEST-----⏎-----BEGIN RSA PUBLIC KEY-----⏎«b64»⏎-----END RSA PUBLIC KEY-----
ssh-dss AAAAB3NzaC1kc3MAAACB«b180»== «w»
-----BEGIN PUBLIC KEY-----⏎MIIBIjANBgkqhkiG9w0BAQEFAAOCAQ8A«b32»⏎«b64»⏎«b40»==⏎-----END PUBLIC KEY-----
"""
