"""What looks like a secret and is none, and secrets that do not look like one: beyond the first lists."""

from __future__ import annotations

import random
import string

import pytest

from acms import Privacy
from acms.privacy.detect import find_sensitive_spans, redact_text
from acms.privacy.value_checks import shannon_entropy

MADE = random.Random(47)
ALNUM = string.ascii_letters + string.digits


def random_secret(size: int, alphabet: str = ALNUM) -> str:
    return "".join(MADE.choices(alphabet, k=size)) + "a7"


#: The sensitive stretch stands between « and », a line ends at ¶.
POSITIVE = f"""password la password del server è «Falcon&River9»
password a senha do banco é «Maple_2014»
password le mot de passe du wifi est «vzmeu940GD»
password Ditt lösenord är «kestrel!12»
password hasło: «kestrel!12»
password wachtwoord: «kestrel!12»
password Şifre: «kestrel!12»
password 비밀번호는 «kestrel!12»
password 我的密码是«kestrel88»，谢谢
password パスワードは «Kestrel88» です
password I always use «kestrel!12» as my password
password try "«kestrel!12»" as the password
password the password's «kestrel!12» btw
password PASSWORD IS «kestrel.river.724»
password my password «Kestrel12!» does not work
password password (db-1.example.net): «Kestrel12!»
password export PGPASSWORD=«MAPLE_1993»
password admin_password                  = "«kestrel.river.724»"
password let password: String = "«Kestrel@12»"
password PASSWORD: Final = '«Kestrel@12»'
password - name: POSTGRES_PASSWORD¶  value: «Kestrel@12»
password chpasswd:¶  list: |¶    root:«Kestrel@12»
password requirepass «Kestrel12»
password unzip -P «kestrel!12» backup.zip
password docker login -u bot -p «Kestrel12!» registry.example.com
password net use Z: //srv/share /user:ana «Kestrel12!»
password sudo mysql -uroot -p'«Kestrel12!»'
password auth=('bot', '«Kestrel12!»')
password password=«I<3Kestrels» # for now
password CREATE LOGIN app WITH PASSWORD = N'«Kestrel12»';
password snowsql -a acc -u bob -p «Kestrel12»
password sqlplus system/«Kestrel12»
password http -a bob:«Kestrel12» https://api.example.com
password <Password Type="text">«Kestrel12»</Password>
password credentials bob:«Kestrel12»
token the token I got was «a1b2c3d4e5f6{random_secret(12)}»
token connect.sid=«s%3A{random_secret(30)}.{random_secret(40)}»
api_key aws_secret_access_key = «Sb9lZ/IZwQYvQVXzgty/FbWujJcT2MERFfMVmj{random_secret(2)}»
api_key https://api.telegram.org/«bot7257314374:AA{random_secret(31)}»/getMe
api_key rejected «EAAG{random_secret(150)}»
bearer_token 401 for Bearer «b31a73b7-a6ce-4e39-b5ac-{random_secret(10, "0123456789abcdef")}»
connection_string «root:Kes@trel12@example.com:22»
credit_card Ana Keller,«4111 1111 1111 1111»,12/29
credit_card card no 6759649826438453: «6759649826438453»
phone Hotline «+43 660 3347612» (Mo-Fr)
phone text «(030) 605919-33» when you're here
phone 电话号码是«+31 20 198 3040»
phone Phone no. «050-778-4669»
phone my number is «8 (963) 911-19-13»
phone sms to «0401 58 36 96» failed""".splitlines()

NEGATIVE = """"bic": "COBADEFFXXX"
"color": "#deadbeef"
"duration": "PT1H30M", "size": 1234567890
"epoch": 1700000000, "nanos": 123456789
"iccid": "8949020000001234567"
"matrix": [1, 0, 0, 0, 1, 0, 0, 0, 1]
"password": "********"
"password": "[FILTERED]"
"password": "required|min:8|confirmed"
"password": ["This field is required."]
"routing": "021000021"
"ssid": "FRITZ!Box 7590"
"token": "string", "expires": 0
"token": "{{access_token}}"
"tx": "0x5c504ed432cb51138bcf09aa5e8a410dd4a1e204ef84bfed1be16dfba1b22060"
"viewport": "1920x1080", "dpr": 2
"vin": "1HGBH41JXMN109186"
"wkn": "710000"
"zoom": 12, "bearing": -17.6, "pitch": 45
#0  0x00007ffff7a42428 in __GI_raise (sig=sig@entry=6) at ../sysdeps/unix/sysv/linux/raise.c:54
$password = ConvertTo-SecureString $env:PW -AsPlainText -Force
$password = Read-Host -AsSecureString
-    token = request.args.get("token")
0 1 2 3 4 5 6 7 8 9
0000 0000 0000 0000
00000000-0000-0000-0000-000000000000
001 002 003 004 005
01/15/2024 02:30 PM
06/07/2024 10:30
1,234,567.89
1-2-3-4-5-6-7
1.234.567,89
10.0.0.1:5432
11.09.2001 08:46
12345678901234567890
15.01.2024 14:30
18 U.S.C. § 1030(a)(2)(C)
19:30-21:00
20240607 103000
<input type="password" placeholder="Enter password here" />
@@ -12,7 +12,9 @@ def reset_password(token):
Authorization: Bearer ${API_TOKEN}
Bus 100, 200, 300
Call stack size: 1048576
Collecting numpy==1.26.4 (18.0 MB)
Credentials are stored in ~/.aws/credentials
Error: ENOENT: no such file, open '/run/secrets/api_key'
Extension 1234
GB82 TEST 1234
I reset the password yesterday and it works
IBAN: DE00 0000 0000 0000 0000 00
ISBN 9780306406157
If-None-Match: "5f2b1c3d-264"
JSESSIONID is missing; PHPSESSID not set
Kundennr. 0815-4711-1234
Order-ID: 302-1234567-1234567
PASS  src/auth/login.test.ts (5.123 s)
PWD=/home/alice/project
Password updated successfully
Phone: N/A
Process finished with exit code 137 (interrupted by signal 9: SIGKILL)
Rechnungsnummer: RE-20241122-0815
S1 S2 S3 S4
SECRET_KEY = config("SECRET_KEY")
SECRET_KEY = env.str("SECRET_KEY", default="insecure")
Serial: C02XK0Q2JGH5
Show password
Steuer-ID 12 345 678 901
String password = new String(console.readPassword());
SyntaxError: Unexpected token < in JSON at position 0
TOKEN=$(cat ~/.token)
The API key is set via environment variable
The password field accepts up to 128 characters
Tokens: 1,234 / 8,192
Uncaught SyntaxError: Unexpected token 'export'
Unexpected token: punc (;)
Your password is too short
actions/checkout@v4
amqp://guest@rabbit
build 20241122.1
cache key: users:42:profile
call 2 functions and 3 methods
client = OpenAI()  # reads OPENAI_API_KEY
client = OpenAI(api_key=os.environ.get("OPENAI_API_KEY"))
commit abc1234 (HEAD -> feature/reset-password, origin/main)
credentials_file: ~/.aws/credentials
creds = (user, pw)
curl -u "$USER:$TOKEN" https://api.example.com
curl -u user https://api.example.com
dial timeout 10000000ns
docker login -u bot --password-stdin
echo $PWD
export ANTHROPIC_API_KEY='your-api-key-here'
fax: none
first pass: 3.2s, second pass: 1.1s
foreign key (user_id) references users(id)
git stash@{0}: WIP on main: 1234567 message
helm upgrade app . --set image.tag=1.2.3
her password is her dog's name
host key verification failed
https://example.com:8443/path
image@sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08
incorrect password for user admin
invalid csrf token
key = "name", sort_keys=True, indent=2
key takeaways: 1. scale 2. cost 3. speed
key=value pairs are separated by commas
keyword arguments: key1=value1, key2=value2
kubectl get secret db -o jsonpath='{.data.password}' | base64 -d
let token = try? keychain.get("token")
login: admin, role: viewer
max_new_tokens=256, eos_token_id=2, bos_token_id=1
mongodb://mongo:27017
my $password = shift // die "no password";
mysql -h db -u app -p app < dump.sql
npm ERR! code E401 Unable to authenticate, need: Basic realm="Artifactory"
oauth_callback_url=https://app.example.com/callback
openssl req -new -key server.key -out server.csr
pass insert -m email/work
passed: 120, failed: 0
passphrase-protected keys are supported
password = ''.join(random.choices(string.ascii_letters, k=12))
password = boto3.client("ssm").get_parameter(Name="/app/db")["Parameter"]["Value"]
password = cli.prompt("Password", hide_input=True, confirmation_prompt=True)
password: "{{password}}"
password: ((db-password))
password: *default_password
password: await bcrypt.hash(password, 10)
password: faker.internet.password()
password: file:///run/secrets/db
password: op://vault/item/password
password: req.body.password
password: str = Field(..., min_length=8, max_length=64, examples=["string"])
password: {{ .Values.db.password | b64enc }}
password: {{ lookup('env', 'DB_PASSWORD') }}
password=@password
password_hash = bcrypt.hashpw(password.encode(), bcrypt.gensalt(rounds=12))
pip install package==1.2.3 --hash=sha256:abcdef
primary key: id (bigint)
recovery code sent to your phone
ring buffer 1048576 4096
room 030-1234
root@ubuntu:~#
secret: true
seed: 42
sessionid=None; session_timeout=1800; session_engine=redis
std::getenv("API_TOKEN")
tel: invalid
terraform apply -var-file=prod.tfvars
the secret is rotated automatically
token = ENV.fetch("TOKEN")
token usage: 45.3%
user: root
username: admin
val token = prefs.getString("token", null)
vault read -field=token auth/token/lookup-self
4827664082699  Raven tea 100 g  3,49
{"user_id": 4539578763621486}
tweet 6759649826438453
00000010  06 81 29 43 15 a1 8d a2  2f 64 f2 4a 9a da 25 d8  |uc6j3BtMy5Tip|
signingkey = 0123456789ABCDEF
password: ${DB_PASSWORD}¶url: postgres://$DB_USER:$DB_PASS@example.org:5432/app
postgres://%s:%s@example.org:5432/app
tags: your-hub-username/your-image-name:latest pushed by docker login
zip -r out.zip src""".splitlines()


def test_what_does_not_look_like_a_secret_is_found() -> None:
    missed: list[str] = []
    for row in POSITIVE:
        kind, _, marked = row.replace("¶", "\n").partition(" ")
        before, _, rest = marked.partition("«")
        value, _, after = rest.partition("»")
        text = before + value + after
        if (value, kind) not in [(text[one.start : one.end], one.kind) for one in find_sensitive_spans(text)]:
            missed.append(row)
    assert missed == []


def test_what_looks_like_a_secret_is_left_alone() -> None:
    texts = [row.replace("¶", "\n") for row in NEGATIVE]
    assert [text for text in texts if redact_text(text, Privacy.REDACT).text != text] == []


def test_a_long_text_is_searched_to_its_ends_and_stays_redacted() -> None:
    key = f"ghp_{random_secret(34)}"
    plain = "the migration of the orders took longer than planned. " * 6000
    text = f"{key} {plain} {key} mail bob@example.com, {plain} password: Kestrel12 {key}"
    once = redact_text(text, Privacy.REDACT)
    assert [one.kind for one in once.spans] == ["api_key", "api_key", "email", "password", "api_key"]
    assert redact_text(once.text, Privacy.REDACT) == (once.text, ())


def test_what_one_find_uncovers_in_the_middle_of_a_long_text_is_found() -> None:
    plain = "the migration of the orders took longer than planned. " * 6000
    text = f"{plain}ann@example.com+49 30 1234567 {plain}"
    found = [text[one.start : one.end] for one in find_sensitive_spans(text)]
    assert found == [
        "ann@example.com",
        "+49 30 1234567",
    ]  # no word goes on before the number once the first is gone


def test_values_of_any_length_are_measured_alike() -> None:
    for size in (3, 128, 129, 300):
        assert shannon_entropy("ab" * size) == pytest.approx(1.0)


def test_lists_of_the_same_secret_are_taken_out_whole() -> None:
    text = "4111 1111 1111 1111, bob@example.com; " * 500
    out = redact_text(text, Privacy.REDACT).text
    assert out == "[REDACTED: credit_card], [REDACTED: email]; " * 500
