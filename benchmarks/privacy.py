"""Detection, false alarms and cost of the privacy stage.

Run:  python benchmarks/privacy.py --generate 4000 [--seed 1] [--show 5] [--json]
      python benchmarks/privacy.py --logs 4000 [--seed 1] [--show 5] [--json]
      python benchmarks/privacy.py --corpus FILE [--show 5] [--json]
      python benchmarks/privacy.py --data FOLDER [--messages 500] [--json]
      python benchmarks/privacy.py --adversarial 10000 [--processes 2] [--seconds 3600] [--size 1000000] [--json]

`--generate` makes texts from a seed, secrets and all, at run time: positives of every kind in prose, code, JSON, YAML,
logs and URLs, and hard negatives. Rules were written without looking at the failures of the part held out (some
templates and some kinds of tokens); both parts are printed.
`--logs` makes texts as logs, repositories, tickets and chats hold them (`privacy_logs`), written apart from the rules.
`--corpus` reads JSON lines `{"text": …, "spans": [{"start": …, "end": …, "kind": …}]}`; a line without spans is a negative.
A span may also be given by its `value`, and fields and kinds may have their other usual names.
`--data` is a folder of conversations in JSON files: times of `redact` on real messages, cut and joined to 2 KB.
`--adversarial` times texts made to be slow, of random pieces of the rules; no new one is begun after `--seconds`. Each
of `--processes` takes every Nth text; what is measured is the CPU time of its thread, so give them a core each.

Detected: at least half of the marked characters were taken out. Covered: all. False alarms: negatives of which anything
was taken out. Precision: of what was taken out, the part that touches a marked stretch; it is counted per kind found.
"""

# ruff: noqa: E501  a template stays in one line

from __future__ import annotations

import argparse
import json
import random
import re
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import ClassVar

import privacy_eighth
import privacy_fifth
import privacy_fourth
import privacy_logs
import privacy_ninth
import privacy_second
import privacy_seventh
import privacy_sixth
import privacy_tenth
import privacy_third

from acms.model import Privacy
from acms.privacy import secret_patterns
from acms.privacy.detect import redact, spans

UPPER = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
LOWER = UPPER.lower()
DIGITS = "0123456789"
HEX = DIGITS + "abcdef"
ALNUM = UPPER + LOWER + DIGITS
URLSAFE = ALNUM + "-_"
BASE64 = ALNUM + "+/"


@dataclass(frozen=True, kw_only=True)
class Case:
    text: str
    #: (start, end, kind)
    gold: list[tuple[int, int, str]] = field(default_factory=list)
    #: Which part it belongs to.
    part: str = "corpus"
    #: What it was made from.
    source: str = ""


# ── values ──────────────────────────────────────────────────────────────────────────────────────────────────────────


class Maker:
    """Makes values of every kind from a seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def of(self, alphabet: str, size: int) -> str:
        return "".join(self.random.choices(alphabet, k=size))

    def pick(self, *options: str) -> str:
        return self.random.choice(options)

    def word(self) -> str:
        return self.pick(
            *"river stone maple falcon copper winter harbor violet thunder pepper canyon orbit".split()
        )

    def name(self) -> str:
        return self.pick(
            *"alice bob carol dmitri elena farid grace hiro ines jonas kate liam maria noor".split()
        )

    def host(self) -> str:
        tld = self.pick("com", "org", "net", "io", "dev", "de", "co.uk", "fr", "internal")
        return f"{self.pick('db', 'mail', 'api', 'www', 'cache', 'prod')}.{self.word()}{self.pick('', '-corp', 'labs')}.{tld}"

    def email(self) -> str:
        name, last = self.name(), self.word()
        local = self.pick(
            name,
            f"{name}.{last}",
            f"{name}_{last}",
            f"{name[0]}{last}",
            f"{name}+{last}",
            f"{name}{self.of(DIGITS, 2)}",
        )
        return f"{local}@{self.pick(self.host(), 'gmail.com', 'example.com', 'example.co.uk', 'uni-bremen.de', 'outlook.com')}"

    def phone(self) -> str:
        def d(size: int) -> str:
            return self.of(DIGITS, size)

        area = self.pick("212", "415", "646", "312", "503", "720")
        return self.pick(
            f"+1 {area} 555 {d(4)}", f"+1-{area}-555-{d(4)}", f"+1 ({area}) 555-{d(4)}", f"({area}) 555-{d(4)}",
            f"{area}-555-{d(4)}", f"{area}.555.{d(4)}", f"+49 30 {d(7)}", f"+49 (0)171 {d(7)}", f"+44 20 7946 {d(4)}",
            f"+44 7700 900{d(3)}", f"07700 900{d(3)}", f"020 7946 0{d(3)}", f"+33 1 {d(2)} {d(2)} {d(2)} {d(2)}",
            f"06 {d(2)} {d(2)} {d(2)} {d(2)}", f"+4915{d(9)}", f"0171 {d(7)}", f"030/{d(7)}", f"+91 98765 {d(5)}",
            f"+81 3-{d(4)}-{d(4)}", f"+61 4{d(2)} {d(3)} {d(3)}", f"+34 6{d(2)} {d(3)} {d(3)}", f"+7 9{d(2)} {d(3)}-{d(2)}-{d(2)}",
            f"+86 138 {d(4)} {d(4)}", f"0049 89 {d(8)}", f"+55 11 9{d(4)}-{d(4)}", f"+39 06 {d(8)}", f"1-800-555-{d(4)}",
        )  # fmt: skip

    def iban(self) -> str:
        country, form = self.random.choice(
            [("DE", "d" * 18), ("GB", "AAAA" + "d" * 14), ("FR", "d" * 10 + "c" * 11 + "dd"), ("NL", "AAAA" + "d" * 10),
             ("ES", "d" * 20), ("IT", "A" + "d" * 10 + "c" * 12), ("CH", "d" * 17), ("AT", "d" * 16), ("PL", "d" * 24),
             ("NO", "d" * 11), ("SE", "d" * 20), ("BE", "d" * 12), ("MT", "AAAA" + "d" * 5 + "c" * 18)]
        )  # fmt: skip
        body = "".join(self.of({"d": DIGITS, "A": UPPER, "c": UPPER + DIGITS}[char], 1) for char in form)
        check = 98 - int("".join(str(int(char, 36)) for char in body + country + "00")) % 97
        plain = f"{country}{check:02}{body}"
        return self.pick(plain, " ".join(plain[at : at + 4] for at in range(0, len(plain), 4)))

    def card(self) -> str:
        start, size = self.random.choice(
            [
                ("4", 16),
                ("51", 16),
                ("55", 16),
                ("2221", 16),
                ("34", 15),
                ("37", 15),
                ("6011", 16),
                ("36", 14),
                ("3530", 16),
                ("65", 16),
            ]
        )
        body = start + self.of(DIGITS, size - len(start) - 1)
        total = 0
        for index, char in enumerate(reversed(body)):
            number = int(char) * (2 - index % 2)
            total += number - 9 if number > 9 else number
        plain = body + str(-total % 10)
        if size == 16:
            gap = self.pick("", " ", "-")
            return gap.join(plain[at : at + 4] for at in range(0, 16, 4))
        return self.pick(plain, f"{plain[:4]} {plain[4:10]} {plain[10:]}") if size == 15 else plain

    def password(self) -> str:
        word, other = self.word(), self.word()
        return self.pick(
            f"{word}{self.of(DIGITS, 2)}", f"{word.title()}{self.of(DIGITS, 4)}!", self.of(ALNUM, 12), self.of(ALNUM + "!@#$%^&*", 14) + "7",
            f"{word.title()}-{other.title()}-{self.of(DIGITS, 2)}", f"Tr0ub4dor&{self.of(DIGITS, 1)}", f"{word}_{other}#{self.of(DIGITS, 3)}",
            f"P@ss{word}{self.of(DIGITS, 2)}", f"{self.of(LOWER, 4)}-{self.of(LOWER, 4)}-{self.of(DIGITS, 4)}",
        )  # fmt: skip

    def jwt(self) -> str:
        return f"eyJ{self.of(URLSAFE, self.random.randint(17, 60))}.eyJ{self.of(URLSAFE, self.random.randint(30, 300))}.{self.of(URLSAFE, 43)}"

    def pem(self) -> str:
        name = self.pick("RSA ", "EC ", "OPENSSH ", "", "ENCRYPTED ", "DSA ")
        lines = [self.of(BASE64, 64) for _ in range(self.random.randint(3, 20))]
        last = self.of(BASE64, 30) + "=="
        whole = f"-----BEGIN {name}PRIVATE KEY-----\n" + "\n".join([*lines, last])
        end = f"\n-----END {name}PRIVATE KEY-----"
        kind = self.random.randrange(4)
        if kind == 0:
            return "\n".join(whole.split("\n")[:-1])  # cut off
        if kind == 1:
            return (whole + end).replace("\n", "\\n")
        return whole + end

    def url(self) -> str:
        scheme = self.pick(
            "postgres",
            "postgresql",
            "mysql",
            "mongodb",
            "mongodb+srv",
            "redis",
            "amqp",
            "https",
            "http",
            "ftp",
            "rediss",
            "postgresql+psycopg",
            "sftp",
        )
        secret = re.sub(r"[@/:#?&]", "x", self.password())
        user = self.pick(self.name(), "admin", "svc_app", "")
        if not user and scheme != "redis":
            user = "root"
        return f"{scheme}://{user}:{secret}@{self.host()}{self.pick('', ':5432', ':27017')}{self.pick('', '/', '/app', '/orders?sslmode=require')}"

    TOKENS: ClassVar[dict[str, Callable[[Maker], str]]] = {
        "aws": lambda m: m.pick("AKIA", "ASIA") + m.of(UPPER + "234567", 16),
        "github": lambda m: m.pick("ghp_", "gho_", "ghs_", "ghu_", "ghr_") + m.of(ALNUM, 36),
        "github-pat": lambda m: "github_pat_" + m.of(ALNUM, 22) + "_" + m.of(ALNUM, 59),
        "gitlab": lambda m: "glpat-" + m.of(URLSAFE[:-2], 20),
        "openai": lambda m: "sk-" + m.of(ALNUM, 48),
        "openai-project": lambda m: "sk-proj-" + m.of(URLSAFE, 74) + "T3BlbkFJ" + m.of(URLSAFE, 73) + "a",
        "anthropic": lambda m: "sk-ant-api03-" + m.of(URLSAFE, 93) + "AA",
        "slack-bot": lambda m: f"xoxb-{m.of('123456789', 12)}-{m.of('123456789', 12)}-{m.of(ALNUM, 24)}",
        "slack-hook": lambda m: (
            f"https://hooks.slack.com/services/T{m.of(UPPER, 8)}/B{m.of(UPPER, 10)}/{m.of(ALNUM, 24)}"
        ),
        "stripe": lambda m: m.pick("sk_live_", "sk_test_", "rk_live_") + m.of(ALNUM, 24),
        "google": lambda m: "AIza" + m.of(ALNUM, 35),
        "google-oauth": lambda m: "GOCSPX-" + m.of(ALNUM, 28),
        "npm": lambda m: "npm_" + m.of(ALNUM, 36),
        "pypi": lambda m: "pypi-AgEIcHlwaS5vcmc" + m.of(URLSAFE, 120) + "x",
        "huggingface": lambda m: "hf_" + m.of(ALNUM, 34),
        "sendgrid": lambda m: f"SG.{m.of(ALNUM, 22)}.{m.of(ALNUM, 43)}",
        "twilio": lambda m: "SK" + m.of(HEX, 32),
        "digitalocean": lambda m: "dop_v1_" + m.of(HEX, 64),
        "shopify": lambda m: "shpat_" + m.of(HEX, 32),
        "telegram": lambda m: m.of("123456789", 10) + ":AA" + m.of(URLSAFE, 33),
        # held out
        "groq": lambda m: "gsk_" + m.of(ALNUM, 52),
        "vault": lambda m: "hvs." + m.of(URLSAFE, 94) + "a",
        "docker": lambda m: "dckr_pat_" + m.of(ALNUM, 27),
        "databricks": lambda m: "dapi" + m.of(HEX, 32),
        "linear": lambda m: "lin_api_" + m.of(ALNUM, 40),
        "discord": lambda m: f"M{m.of(ALNUM, 23)}.{m.of(ALNUM, 6)}.{m.of(ALNUM, 38)}",
        "mailchimp": lambda m: f"mailchimp_api: \1{m.of(HEX, 32)}-us{m.of('123456789', 2)}",
        "azure": lambda m: f"AccountKey=\1{m.of(BASE64, 86)}==",
        "doppler": lambda m: "dp.pt." + m.of(ALNUM, 43),
        "notion": lambda m: f"ntn_{m.of(DIGITS, 11)}{m.of(ALNUM, 35)}",
        "replicate": lambda m: "r8_" + m.of(ALNUM, 37),
        "grafana": lambda m: f"glsa_{m.of(ALNUM, 32)}_{m.of(HEX, 8)}",
        "openrouter": lambda m: "sk-or-v1-" + m.of(HEX, 64),
        "postman": lambda m: f"PMAK-{m.of(HEX, 24)}-{m.of(HEX, 34)}",
    }
    HELD = tuple(
        "groq vault docker databricks linear discord mailchimp azure doppler notion replicate grafana openrouter postman".split()
    )

    def opaque(self) -> str:
        return self.pick(
            self.of(ALNUM, 32),
            self.of(HEX, 40),
            self.of(HEX, 32),
            self.of(URLSAFE, 43) + "4",
            self.of(BASE64, 40) + "7=",
            self.of(LOWER + DIGITS, 24) + "9",
        )


#: Templates by kind; {v} is what is marked. The last third of each list is held out.
ANYWHERE = (
    "Here it is: {v}", "{v}", "please use {v} for now, thanks", "I pasted {v} into the chat by mistake.", '{{"value": "{v}", "n": 3}}',
    "2024-05-01T10:00:00Z INFO client started with {v} after 3 retries", "- item: {v}\n- other: none\n", "export X={v}\n",
    "curl -s https://api.example.com/v1/items?page=2 -d '{v}'", "| name | value |\n| --- | --- |\n| a | {v} |", "<td>{v}</td>",
    "const x = '{v}';\nrun(x);", "The ticket says ({v}) and nothing else.", "ERROR [worker-3] refused: {v}\\n", "`{v}`", "see **{v}** below",
    "a, {v}, b", "{{\\\"x\\\": \\\"{v}\\\"}}",
)  # fmt: skip
PROSE = (
    "My {k} is {v}, please write it down.", "Contact: {v}", "you can reach me under {v} after six.", "{v} is new", "The {k} changed to {v}.",
    '{{"user": {{"{k}": "{v}", "id": 17}}}}', "user:\n  {k}: {v}\n  plan: free\n", "{k}={v}", "row 7;{v};Berlin;3", "INFO user {v} logged in",
    "Please send it to {v}; he knows.", "<b>{v}</b>", "{k} – {v}", "(see {v})",
)  # fmt: skip
PASSWORDS = (
    "password: {v}", 'password = "{v}"', "my password is {v}", '{{"username": "bob", "password": "{v}"}}', "PGPASSWORD={v} psql -h db",
    "db:\n  user: app\n  password: {v}\n  port: 5432\n", "export DB_PASSWORD='{v}'", "passwd={v}", "login with bob and the password {q}{v}{q}", "Passwort: {v}",
    "const password = '{v}';", "The wifi password for guests is: {v}", "spring.datasource.password={v}", "--password {v}", "--password={v} --user bob",
    "conn = connect(user='app', password='{v}')", "Server=db;Database=app;User Id=sa;Password={v};Encrypt=true", "<password>{v}</password>", "pwd: {v}",
    "CREATE USER app WITH PASSWORD '{v}';", "https://x.example.com/login?user=bob&password={v}&next=1", "sshpass -p '{v}' ssh root@10.0.0.5",
    '{{\\"password\\": \\"{v}\\"}}', "machine api.example.com login bob password {v}", "contraseña: {v}", "MYSQL_ROOT_PASSWORD: {v}", "pass: {v}",
    "I changed the admin password to {v} yesterday", "passphrase={v}", "identified by '{v}'",
)  # fmt: skip
ASSIGNED = (
    ("api_key: {v}", "api_key"), ('API_KEY="{v}"', "api_key"), ("client_secret={v}", "client_secret"), ('"client_secret": "{v}"', "client_secret"), ("aws_secret_access_key = {v}", "api_key"),
    ("Authorization: Bearer {v}", "bearer_token"), ("-H 'Authorization: Bearer {v}'", "bearer_token"), ("access_token={v}", "token"), ("X-Api-Key: {v}", "api_key"),
    ("auth_token: '{v}'", "token"), ("my api key is {v}", "api_key"), ("SECRET_KEY = '{v}'", "secret"), ('"apiKey":"{v}"', "api_key"), ("secret: {v}", "secret"),
    ("?api_key={v}&page=2", "api_key"), ("refresh_token: {v}", "token"), ("x-auth-token: {v}", "token"), ('headers = {{"Authorization": f"Bearer {v}"}}', "bearer_token"),
    ("The client secret for the app: {v}", "client_secret"), ("encryption_key: {v}", "api_key"), ("TOKEN={v}", "token"), ("private_token={v}", "token"),
    ("webhook_secret = {v}", "secret"), ('<add key="ApiKey" value="{v}" />', "api_key"),
)  # fmt: skip


def negatives(make: Maker) -> Iterator[tuple[str, str]]:
    """Yield (what, text) of texts that hold nothing sensitive and look as if."""
    sha, uuid = (
        make.of(HEX, 40),
        f"{make.of(HEX, 8)}-{make.of(HEX, 4)}-4{make.of(HEX, 3)}-a{make.of(HEX, 3)}-{make.of(HEX, 12)}",
    )
    d = make.of
    yield "git", f"commit {sha}\nAuthor: build\n\n    Fix the token counter"
    yield "git", f"git checkout {sha[:10]} && make test"
    yield "git", f"git clone git@github.com:{make.word()}/{make.word()}.git"
    yield "uuid", f"request_id={uuid} status=200"
    yield "uuid", f'{{"id": "{uuid}", "key": "user-{make.word()}"}}'
    yield "order", f"Your order number is {d(DIGITS, 10)}, it ships on 2024-11-03."
    yield "order", f"Order #{d(DIGITS, 4)}-{d(DIGITS, 7)}-{d(DIGITS, 7)} was delivered."
    yield "order", f"Invoice INV-{d(DIGITS, 8)} over 1,299.00 EUR"
    yield "order", f"tracking 1Z{d(UPPER + DIGITS, 16)}"
    yield (
        "version",
        f"upgrade from {d('123456789', 1)}.{d(DIGITS, 2)}.{d(DIGITS, 1)} to 10.4.2-rc1+build.{d(DIGITS, 4)}",
    )
    yield "version", "requires python>=3.11, numpy==2.1.3, lodash@4.17.21 and @types/node@18.0.0"
    yield (
        "date",
        f"on 2024-0{d('123456789', 1)}-1{d(DIGITS, 1)} 10:11:12.{d(DIGITS, 6)} it was {d('123456789', 1)}.03.2021",
    )
    yield "date", f"between 01/02/2023 and 12-31-2024, 0{d('123456789', 1)}.11.2022 14:00-15:30"
    yield "time", f"ts={d('1', 1)}7{d(DIGITS, 8)} next=17{d(DIGITS, 11)}"
    yield "hash", f"sha256:{d(HEX, 64)}"
    yield "hash", f'integrity "sha512-{d(BASE64, 86)}=="'
    yield "hash", f"md5sum {d(HEX, 32)}  file.tar.gz"
    yield "image", f"![x](data:image/png;base64,iVBORw0KGgo{d(BASE64, 300)}==)"
    yield "image", '<img src="image@2x.png" srcset="a@3x.jpg 3x">'
    yield (
        "code",
        "password_field = forms.CharField(widget=forms.PasswordInput)\nif password != confirm_password: raise",
    )
    yield (
        "code",
        "def login(username: str, password: str) -> Token:\n    token = create_token(user.id)\n    return token",
    )
    yield (
        "code",
        "password = os.environ['DB_PASSWORD']\napi_key = settings.API_KEY\nsecret = config.get('secret')",
    )
    yield "code", "const token = await getToken(); const { password } = req.body;"
    yield "code", 'api_key=os.getenv("OPENAI_API_KEY"), timeout=30'
    yield "code", "class Auth { private String password; private final TokenStore tokenStore; }"
    yield "code", "if (token == null || token === undefined) { throw new Error('Invalid token'); }"
    yield (
        "code",
        "self.password_hash = generate_password_hash(password)\ncheck(password, hash=user.password_hash)",
    )
    yield "code", f"max_tokens={d(DIGITS[1:], 4)}, total_tokens: {d(DIGITS[1:], 4)}, prompt_tokens = 512"
    yield "code", 'parser.add_argument("--password", help="the password of the user", required=True)'
    yield "code", "password: { type: String, required: true, minlength: 8 }, passwordResetToken: String"
    yield (
        "code",
        '<input type="password" name="password" id="password" placeholder="Password" autocomplete="current-password">',
    )
    yield "code", "SELECT password, api_key FROM users WHERE token = $1 AND secret = ?"
    yield "code", "password: ${DB_PASSWORD}\ntoken: {{ secrets.TOKEN }}\nkey: $(KEY)\nsecret: %(secret)s"
    yield "code", "secretKeyRef:\n  name: db-credentials\n  key: password\nsecretName: tls-certificate"
    yield "code", "for key, value in data.items(): primary_key = key; foreign_key = 'user_id'"
    yield "placeholder", "api_key=<your-api-key> and password=<password>"
    yield "placeholder", "OPENAI_API_KEY=sk-your-key-here\nPASSWORD=changeme\nSECRET=********"
    yield (
        "placeholder",
        "Authorization: Bearer <token>\nAuthorization: Bearer $TOKEN\nAuthorization: Bearer YOUR_ACCESS_TOKEN",
    )
    yield "placeholder", "postgres://USER:${PASSWORD}@localhost/db or https://<user>:<password>@host/"
    yield "placeholder", "aws_access_key_id = AKIAIOSFODNN7EXAMPLE"
    yield "placeholder", 'token: "xxxxxxxxxxxxxxxxxxxx", api_key: "..."'
    yield "placeholder", "password: [REDACTED: password] token=[REDACTED: token]"
    yield "prose", f"The password is required and must have at least {d(DIGITS[1:], 1)}2 characters."
    yield "prose", "I forgot my password: what can I do? The token expired, the secret is safe with me."
    yield "prose", "The key to success is: practice. Her secret: patience. Pass: the ball to me."
    yield (
        "prose",
        "Password reset: click the link. Two-factor authentication: enabled. Access token: refreshed daily.",
    )
    yield "prose", "The secret ingredient is cinnamon; the token of my love is a ring."
    yield (
        "prose",
        f"We used {d(DIGITS[1:], 3)},{d(DIGITS, 3)},{d(DIGITS, 3)} tokens and {d(DIGITS[1:], 5)} API calls.",
    )
    yield (
        "phone-like",
        f"part no. {d(DIGITS, 3)}-{d(DIGITS, 6)}, serial {d(DIGITS, 12)}, ref 0{d(DIGITS, 3)}{d(DIGITS, 6)}",
    )
    yield "phone-like", f"coordinates 52.5{d(DIGITS, 5)}, 13.4{d(DIGITS, 5)} and pi 3.14159265358979"
    yield (
        "phone-like",
        f"{d(DIGITS[1:], 4)} mm x {d(DIGITS[1:], 3)} mm, 12000 kg, 3500000 ms, 100 000 000 rows",
    )
    yield "phone-like", f"scores 10 20 30 40 50 60 70, range 100-200-300, {d(DIGITS[1:], 3)} 000 000"
    yield "isbn", f"ISBN 978-3-16-14841{d(DIGITS, 1)}-{d(DIGITS, 1)} and ISBN 0-306-40615-2"
    yield (
        "ip",
        f"192.168.{d('12', 2)}.{d('12', 2)}:8080 -> 10.0.0.1, 2001:0db8:85a3:0000:0000:8a2e:0370:7334, 127.0.0.1",
    )
    yield "mac", f"de:ad:be:ef:{d(HEX, 2)}:{d(HEX, 2)} eth0"
    yield "url", f"https://example.com/a/{d(LOWER, 8)}?utm_source=news&id={d(DIGITS, 9)}#section-2"
    yield (
        "url",
        f"https://cdn.example.com/assets/{d(HEX, 20)}.js?v={d(HEX, 8)} and s3://bucket/{uuid}/part-0001.parquet",
    )
    yield "url", "https://user@example.com/path and ssh://git@github.com:22/a.git, mailto: and @mentions"
    yield (
        "log",
        f"[{d(DIGITS, 5)}] GET /v1/users/{d(DIGITS, 8)} 200 {d(DIGITS, 3)}ms trace={d(HEX, 32)} span={d(HEX, 16)}",
    )
    yield "log", f"kernel: [ {d(DIGITS, 5)}.{d(DIGITS, 6)}] usb 1-1: SerialNumber: {d(HEX, 12)}"
    yield "card-like", f"account {'9' + d(DIGITS, 15)} and counter {'1' + d(DIGITS, 15)}"
    yield "docker", f"docker pull registry.example.com/app@sha256:{d(HEX, 64)}"
    yield (
        "doc",
        "Set `api_key` (string, required): the key of your account. `token` (string): see above. `password`: never logged.",
    )
    yield "doc", '"password": {"type": "string", "minLength": 8}, "token": {"$ref": "#/definitions/token"}'
    yield "doc", "-----BEGIN CERTIFICATE-----\n" + d(BASE64, 64) + "\n-----END CERTIFICATE-----"
    yield "doc", "-----BEGIN PUBLIC KEY-----\n" + d(BASE64, 64) + "\n-----END PUBLIC KEY-----"
    yield "doc", f"ssh-rsa AAAAB3NzaC1yc2E{d(BASE64, 120)} build-host"


def generated(count: int, seed: int) -> Iterator[Case]:
    """Yield positives and hard negatives, as many of one as of the other."""
    make = Maker(seed)

    def case(template: str, value: str, kind: str, held: bool, **more: str) -> Case:
        text = template.format(v="\0", **more)
        marked = value
        if template.startswith("{{\\"):
            marked = value.replace("\n", "\\n")
        start = text.index("\0")
        context, _, marked = marked.rpartition("\1")  # what stands before the secret itself
        text = text.replace("\0", context + marked)
        start += len(context)
        around = make.random.random()
        before = "" if around < 0.6 else f"Some words about the {make.word()} first.\n"
        start += len(before)
        return Case(
            text=before + text, gold=[(start, start + len(marked), kind)], part="held out" if held else "development",
            source=template,
        )  # fmt: skip

    def chosen(templates: tuple[str, ...]) -> tuple[str, bool]:
        index = make.random.randrange(len(templates))
        return templates[index], index >= len(templates) * 2 // 3

    bare = [template for template in ANYWHERE if "{v}" in template]
    while count > 0:
        negative = list(negatives(make))
        for index, (what, text) in enumerate(negative):
            yield Case(text=text, part="held out" if index % 3 == 2 else "development", source=what)
        for _ in negative:
            kind = make.pick(
                "email",
                "phone",
                "iban",
                "credit_card",
                "jwt",
                "private_key",
                "connection_string",
                "password",
                "password",
                "api_key",
                "api_key",
                "assigned",
                "assigned",
            )
            if kind in ("email", "phone", "iban", "credit_card"):
                value = {
                    "email": make.email,
                    "phone": make.phone,
                    "iban": make.iban,
                    "credit_card": make.card,
                }[kind]()
                template, held = chosen(PROSE)
                yield case(template, value, kind, held, k={"credit_card": "card"}.get(kind, kind))
            elif kind == "password":
                template, held = chosen(PASSWORDS)
                value = make.password()
                if ("Passwo" in template and ";" in template) or "&" in template:
                    value = re.sub("[;&]", "x", value)
                yield case(template, value, kind, held, q=make.pick('"', "'", "`"))
            elif kind == "assigned":
                index = make.random.randrange(len(ASSIGNED))
                template, named = ASSIGNED[index]
                yield case(template, make.opaque(), named, index >= len(ASSIGNED) * 2 // 3)
            elif kind == "api_key":
                name = make.pick(*make.TOKENS)
                template, held = chosen(tuple(bare))
                yield case(template, make.TOKENS[name](make), kind, held or name in make.HELD)
            else:
                value = {"jwt": make.jwt, "private_key": make.pem, "connection_string": make.url}[kind]()
                template, held = chosen(tuple(bare))
                yield case(template, value, kind, held)
        count -= 2 * len(negative)


#: Parts of `--logs`, by name.
LOGS = {
    "second": privacy_second,
    "third": privacy_third,
    "fourth": privacy_fourth,
    "fifth": privacy_fifth,
    "sixth": privacy_sixth,
    "seventh": privacy_seventh,
    "eighth": privacy_eighth,
    "ninth": privacy_ninth,
    "tenth": privacy_tenth,
}


def logged(count: int, seed: int) -> Iterator[Case]:
    """Yield the positives and negatives of each part of `privacy_logs`, as many of one as of the other."""
    for part, source in LOGS.items():
        make = privacy_logs.Make(seed)
        made = {True: 0, False: 0}
        while min(made.values()) * 2 < count:
            hard = made[False] <= made[True]
            texts = (
                source.negatives(make) if hard else (("positive", text) for text in source.positives(make))
            )
            for what, marked in texts:
                text, gold = privacy_logs.unmarked(marked)
                yield Case(text=text, gold=gold, part=part, source=what)
                made[not hard] += 1


# ── corpora ─────────────────────────────────────────────────────────────────────────────────────────────────────────

_SAME = (
    ("email", "email"), ("phone", "phone"), ("tel", "phone"), ("mobile", "phone"), ("iban", "iban"), ("card", "credit_card"), ("pan", "credit_card"),
    ("jwt", "jwt"), ("private", "private_key"), ("pem", "private_key"), ("ssh", "private_key"), ("connection", "connection_string"), ("url", "connection_string"),
    ("dsn", "connection_string"), ("database", "connection_string"), ("client_secret", "client_secret"), ("pass", "password"), ("pwd", "password"),
    ("bearer", "bearer_token"), ("key", "api_key"), ("github", "api_key"), ("slack", "api_key"), ("token", "token"), ("secret", "secret"),
)  # fmt: skip


def kind_of(name: object) -> str:
    plain = re.sub(r"[^a-z0-9]+", "_", str(name or "secret").lower()).strip("_")
    return next((kind for part, kind in _SAME if part in plain), plain)


def read(path: Path) -> Iterator[Case]:
    """Read a corpus, lenient about names."""
    body = path.read_text(encoding="utf-8")
    rows = (
        json.loads(body)
        if body.lstrip().startswith("[")
        else [json.loads(line) for line in body.splitlines() if line.strip()]
    )
    for row in rows:
        text = next(row[name] for name in ("text", "content", "input", "message", "body") if name in row)
        marked = next(
            (
                row[name]
                for name in ("spans", "entities", "labels", "secrets", "annotations", "expected")
                if row.get(name)
            ),
            [],
        )
        gold: list[tuple[int, int, str]] = []
        for one in marked:
            if isinstance(one, list | tuple):
                one = dict(zip(("start", "end", "kind"), one, strict=False))
            kind = kind_of(
                next(
                    (
                        one[name]
                        for name in ("kind", "label", "type", "entity", "entity_type", "category")
                        if name in one
                    ),
                    "",
                )
            )
            start = next(
                (one[name] for name in ("start", "begin", "offset", "start_offset") if name in one), None
            )
            if start is None:
                value = next(one[name] for name in ("value", "secret", "text", "match") if name in one)
                start = text.index(value)
                end = start + len(value)
            else:
                end = next((one[name] for name in ("end", "stop", "end_offset") if name in one), None)
                end = start + one["length"] if end is None else end
            gold.append((start, end, kind))
        yield Case(
            text=text,
            gold=gold,
            part=str(row.get("part") or row.get("split") or "corpus"),
            source=str(row.get("source", "")),
        )


# ── scores ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def score(cases: list[Case], show: int, shown: set[str]) -> dict[str, object]:
    """Return the figures of one part."""
    kinds: dict[str, Counter[str]] = {}
    total: Counter[str] = Counter()
    for case in cases:
        found = spans(case.text)
        taken = bytearray(len(case.text))
        for one in found:
            taken[one.start : one.end] = b"\1" * (one.end - one.start)
            touches = any(one.start < end and start < one.end for start, end, _ in case.gold)
            kinds.setdefault(one.kind, Counter()).update(found=1, right=int(touches))
            total.update(found=1, right=int(touches))
        for start, end, kind in case.gold:
            share = sum(taken[start:end]) / max(1, end - start)
            hit, cover = int(share >= 0.5), int(share == 1.0)
            kinds.setdefault(kind, Counter()).update(gold=1, detected=hit, covered=cover)
            total.update(gold=1, detected=hit, covered=cover)
            if not cover and show and case.part in shown:
                print(
                    f"  missed {kind} {share:.0%}: {redact(case.text, Privacy.REDACT).text[:160]!r} of {case.text[start:end][:60]!r}"
                )
        if not case.gold:
            total.update(negatives=1, alarms=int(bool(found)))
            if found and show and case.part in shown:
                print(
                    f"  alarm {case.source} {[one.kind for one in found]}: {redact(case.text, Privacy.REDACT).text[:200]!r}"
                )
    rate = lambda of, n: round(of / n, 4) if n else None  # noqa: E731
    row = lambda c: {  # noqa: E731
        "marked": c["gold"], "detected": rate(c["detected"], c["gold"]), "covered": rate(c["covered"], c["gold"]),
        "found": c["found"], "precision": rate(c["right"], c["found"]),
    }  # fmt: skip
    return {
        "all": row(total)
        | {"negatives": total["negatives"], "false alarms": rate(total["alarms"], total["negatives"])},
        "kinds": {kind: row(kinds[kind]) for kind in sorted(kinds)},
    }


def quality(cases: list[Case], show: int) -> dict[str, object]:
    parts = sorted({case.part for case in cases})
    shown = set(parts) - {"held out"}
    return {part: score([case for case in cases if case.part == part], show, shown) for part in parts}


# ── cost ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def messages(folder: Path, count: int, seed: int) -> dict[str, list[str]]:
    """Return texts of 2 KB: real messages, the same with secrets in them, plain chat."""
    texts: list[str] = []
    for path in sorted(folder.rglob("*.json")):
        texts += re.findall(
            r'"(?:content|text)": ?"((?:[^"\\]|\\.){40,4000})"', path.read_text(encoding="utf-8")
        )
    texts = [json.loads(f'"{text}"') for text in texts]
    random.Random(seed).shuffle(texts)
    real: list[str] = []
    held = ""
    for text in texts:
        held += text + "\n"
        if len(held) >= 2048:
            real.append(held[:2048])
            held = ""
    chat = [text for text in real if not re.search(r"[{}=@]", text)]
    planted = [case.text for case in generated(4 * count, seed)]
    mixed = [
        (text[:1000] + "\n" + planted[index % len(planted)] + "\n" + text[1000:])[:2048]
        for index, text in enumerate(real)
    ]
    dense = ["\n".join(planted[at : at + 60])[:2048] for at in range(0, len(planted) - 60, 20)]
    return {
        "real": real[:count],
        "plain chat": chat[:count],
        "with a secret": mixed[:count],
        "dense": dense[:count],
    }


def cost(folder: Path, count: int, seed: int) -> dict[str, object]:
    report: dict[str, object] = {}
    for name, texts in messages(folder, count, seed).items():
        for text in texts[:50]:
            redact(text, Privacy.REDACT)
        times: list[float] = []
        for text in texts:
            begin = time.thread_time_ns()
            redact(text, Privacy.REDACT)
            times.append((time.thread_time_ns() - begin) / 1e6)
        if len(times) > 1:
            report[name] = {
                "messages": len(times), "median ms": round(statistics.median(times), 3),
                "p95 ms": round(statistics.quantiles(times, n=20)[-1], 3), "worst ms": round(max(times), 3),
            }  # fmt: skip
    return report


PIECES = (
    *"""password= token: secret key api_key= "password": ' " ` \\ \\n = : , ; | @ . - _ + / ( ) [ ] < > { } :// a: x@ 1 12 00 +49 0 ( 4111 DE89 A B a b
    -----BEGIN -----END PRIVATE KEY----- sk- ghp_ eyJ ey . eyJa.eyJ AKIA xoxb- 1- glpat- hvs. s. M. Bearer Authorization: Cookie: a=b; sess=
    identified by is for of to at dot curl -u mysql -p sshpass client pass pw [REDACTED: password] aaaaaaaaaaaaaaaa 1111111111111111
    tel: call me at phone é ñ пароль 密码 $ % ${ } === => :=""".split(),
    " ", "\n", "  ", "\t", " for ", " is ", "token for ", "password ", "pw ", " a b", "a1b2c3d4e5f6g7h8", "@a.b", "a.b.", "-a", "a-", "1.", "1 ", " 1", "(1", "A1 ", "=\n", "\\\"",
    "enable secret ", "key 7 ", "AUTH a ", 'variable "password" {\n a = b\n', 'login("a", ', "password?\n", "send token\n", "?key=a", "echo a | ", "printf %s ",
    "net user a ", "PASS a\n", "a_", "-pass ", "setx password ", "htpasswd -b a ", "Message-ID: <a> ", "ssh -a b ", "@a@b.cd", "schlüssel ", "clé ", "密钥：", "setPassword('",
    "a,password\nb,c1d2e3\n", "api key,b\nx1,y2\n", "login a@b.cd / a1", "passphrase: a b c ", "|password|\n|-|\n|a1|\n", "h:5432:a:b:c1\n",
    "name: password ", "password type: a, ", "auth(", "rabbitmqctl add_user ", "wlan key ", "mysqli_connect(a, ", '"assword: " send "', "token?\nhere: it's ",
)  # fmt: skip


def hostile(count: int, size: int, seed: int) -> Iterator[tuple[str, str]]:
    """Yield (name, text): one piece over and over, pairs, triples, a beginning and a long tail, every literal of a rule."""
    chance = random.Random(seed)
    heads = [
        row.split(" | ")[1].split()[0]
        for row in (*secret_patterns.TOKENS.strip().splitlines(), *secret_patterns.OURS.strip().splitlines())
    ]
    shapes: list[tuple[str, ...]] = [(piece,) for piece in (*PIECES, *heads)]
    while len(shapes) < count:
        shapes.append(tuple(chance.choice(PIECES + tuple(heads)) for _ in range(chance.randint(2, 6))))
    chance.shuffle(shapes)
    for pieces in shapes[:count]:
        if chance.random() < 0.2 and len(pieces) > 1:
            unit = pieces[0]
            text = (unit + pieces[1] * (size // len(pieces[1]) + 1))[:size]
        else:
            unit = "".join(pieces)
            text = (unit * (size // len(unit) + 1))[:size]
        yield repr(pieces), text


def timed(
    count: int, size: int, seed: int, seconds: float, process: int, step: int
) -> list[tuple[float, str]]:
    """Return the times of every text whose number is `process` modulo `step`."""
    times: list[tuple[float, str]] = []
    end = time.monotonic() + seconds
    for name, text in islice(hostile(count, size, seed), process, None, step):
        if times and time.monotonic() > end:
            break
        begin = time.thread_time()
        redact(text, Privacy.REDACT)
        times.append((time.thread_time() - begin, name))
    return times


def worst(count: int, size: int, seed: int, seconds: float, processes: int) -> dict[str, object]:
    share = partial(timed, count, size, seed, seconds, step=processes)
    if processes > 1:
        with ProcessPoolExecutor(processes) as pool:
            times = list(chain.from_iterable(pool.map(share, range(processes))))
    else:
        times = share(0)
    times.sort(reverse=True)
    return {
        "texts": len(times), "characters": size, "worst s": round(times[0][0], 3),
        "median s": round(statistics.median(seconds for seconds, _ in times), 3),
        "slowest": [f"{seconds:.2f} s {name}" for seconds, name in times[:10]],
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--generate", type=int, default=0, metavar="N")
    parser.add_argument("--logs", type=int, default=0, metavar="N", help="texts of each part")
    parser.add_argument("--corpus", type=Path, metavar="FILE")
    parser.add_argument("--data", type=Path, metavar="FOLDER")
    parser.add_argument("--adversarial", type=int, default=0, metavar="N")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="of the adversarial texts")
    parser.add_argument("--processes", type=int, default=1, help="that share the adversarial texts")
    parser.add_argument("--messages", type=int, default=500)
    parser.add_argument("--size", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--show", type=int, default=0, help="print what was missed, but nothing of the part held out"
    )
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    report: dict[str, object] = {}
    if args.generate:
        report["generated"] = quality(list(generated(args.generate, args.seed)), args.show)
    if args.logs:
        report["logs"] = quality(list(logged(args.logs, args.seed)), args.show)
    if args.corpus:
        report["corpus"] = quality(list(read(args.corpus)), args.show)
    if args.data:
        report["cost"] = cost(args.data, args.messages, args.seed)
    if args.adversarial:
        report["adversarial"] = worst(args.adversarial, args.size, args.seed, args.seconds, args.processes)
    if not report:
        parser.error("name at least one of --generate, --logs, --corpus, --data, --adversarial")
    if args.json:
        json.dump(report, sys.stdout, indent=1)
        print()
        return
    for title in ("generated", "logs", "corpus"):
        for part, figures in report.get(title, {}).items():
            print(f"{title}, {part}: {figures['all']}")
            for kind, row in figures["kinds"].items():
                print(f"  {kind:18} {row}")
    for title in ("cost", "adversarial"):
        for name, row in report.get(title, {}).items():
            print(f"{title}, {name}: {row}")


if __name__ == "__main__":
    main()
