"""The part `fifth` of `privacy_logs`: what an agent at work reads, one template a line, written apart from the rules."""

# ruff: noqa: E501  a template stays in one line

from __future__ import annotations

import base64
import re
from collections.abc import Iterator

from privacy_logs import ALNUM, BASE64, DIGITS, HEX, LOWER, UPPER, URLSAFE, Make, s, under_headings

_SLOT = re.compile(r"«([^»]*)»")
_ALPHABETS = {
    "z": DIGITS,
    "h": HEX,
    "H": HEX.upper(),
    "a": ALNUM,
    "b": BASE64,
    "u": URLSAFE,
    "l": LOWER,
    "U": UPPER,
}


def expanded(m: Make, template: str) -> str:
    """Return a template with its slots drawn: «h8» characters, «1-99» a number, «w» a word, «!phone» a marked value."""

    def drawn(match: re.Match[str]) -> str:
        slot = match[1]
        if slot[0] == "!":
            name, _, kind = slot[1:].partition(":")
            made = {
                "pw": m.password, "key": m.key, "value": m.random_value, "mail": m.mail, "phone": m.phone, "iban": m.iban, "card": m.card, "jwt": m.jwt, "pem": m.pem,
                "basic": lambda: base64.b64encode(f"{m.word()}:{m.of(ALNUM, 14)}".encode()).decode(),
            }[name]()  # fmt: skip
            return s(kind, made)
        if re.fullmatch(r"\d+-\d+", slot):
            return str(m.num(*map(int, slot.split("-"))))
        if re.fullmatch(r"d\d+", slot):
            return m.of("123456789", 1) + m.of(DIGITS, int(slot[1:]) - 1)
        if re.fullmatch(r"[a-zA-Z]\d+", slot):
            return m.of(_ALPHABETS[slot[0]], int(slot[1:]))
        return {"w": m.word, "W": lambda: m.word().title(), "uuid": m.uuid, "ip": m.ip, "time": m.time, "first": lambda: m.person()[0], "last": lambda: m.person()[1]}[slot]()  # fmt: skip

    return _SLOT.sub(drawn, template).replace("⏎", "\n")


def positives(m: Make) -> Iterator[str]:
    """Yield one text of each setting."""
    return (expanded(m, line) for line in POSITIVES.strip().splitlines())


def negatives(m: Make) -> Iterator[tuple[str, str]]:
    """Yield (what, text) of texts that hold nothing sensitive and look as if."""
    return ((what, expanded(m, line)) for what, line in under_headings(NEGATIVES))


POSITIVES = """
Hi team, I set up the «w» box. ssh root@«ip», password is «!pw:password», please change it after first login.
«first» (10:«10-59» AM): what's the wifi password? «last»: «!pw:password»
spring.datasource.username=«w»⏎spring.datasource.password=«!pw:password»⏎spring.jpa.show-sql=false
  environment:⏎    POSTGRES_USER: «w»⏎    POSTGRES_PASSWORD: «!pw:password»⏎    PGDATA: /var/lib/data
resource "db" "«w»" {⏎  username = "admin"⏎  password = "«!pw:password»"⏎}
INSERT INTO users (name, password) VALUES ('«first»', '«w»'); -- password: «!pw:password»
ALTER USER «w» WITH PASSWORD '«!pw:password»';
CREATE USER '«w»'@'%' IDENTIFIED BY '«!pw:password»';
POST /login HTTP/1.1⏎Content-Type: application/x-www-form-urlencoded⏎⏎username=«w»&password=«!pw:password»
{"email": "«!mail:email»", "password": "«!pw:password»", "remember": true}
export DB_PASSWORD="«!pw:password»"
sshpass -p '«!pw:password»' ssh «w»@«ip» uptime
mysql -h «ip» -u root -p«!pw:password» «w»
net user «w» «!pw:password» /add
curl -u «w»:«!pw:password» https://«w».example.com/api/v1/items
client = Client(host="«ip»", user="admin", password="«!pw:password»")
config.password = '«!pw:password»';
const creds = { user: '«w»', pass: '«!pw:password»' };
[smtp]⏎host = mail.«w».net⏎user = «w»⏎pass = «!pw:password»
machine git.«w».io login «w» password «!pw:password»
ENV ADMIN_PASSWORD=«!pw:password»
<add key="DbPassword" value="«!pw:password»" />
<property name="password" value="«!pw:password»"/>
Server=«ip»;Database=«w»;User Id=sa;Password=«!pw:password»;Encrypt=True
«time» DEBUG auth - login attempt user=«w» password=«!pw:password» ip=«ip»
Ticket #«d5»: customer says the temporary password «!pw:password» was rejected twice.
The admin password was changed to «!pw:password» yesterday.
my pin is 1234 just kidding, my password is "«!pw:password»"
Mein Passwort lautet «!pw:password», bitte nicht weitersagen.
Le mot de passe est «!pw:password» pour le serveur «w».
La contraseña del servidor es «!pw:password».
La password è «!pw:password», cambiala subito.
A senha é «!pw:password»
パスワードは「«!pw:password»」です
密码：«!pw:password»
docker login -u «w» -p «!pw:password» registry.«w».io
ansible_ssh_pass: «!pw:password»
redis-cli -h «ip» -a «!pw:password» ping
requirepass «!pw:password»
"smtp": {"auth": {"user": "«w»", "pass": "«!pw:password»"}}
os.environ["DB_PASSWORD"] = "«!pw:password»"
ConnectionStrings__Default="Host=«ip»;Username=«w»;Password=«!pw:password»"
- name: DB_PASSWORD⏎  value: "«!pw:password»"
the root pw on «w» is «!pw:password» fyi
Default credentials: admin / «!pw:password»
user: «w»⏎password: «!pw:password»⏎otp: off
+    password: '«!pw:password»',⏎-    password: process.env.PASSWORD,
unlock with passphrase: «!pw:password»
Found a leaked key in CI: «!key:api_key» - rotate it now!
export TOKEN=«!key:api_key»
remote: error: push declined, secret «!key:api_key» found in src/«w».py:«1-99»
curl -H "X-Api-Key: «!key:api_key»" https://api.«w».dev/v2/usage
os.environ["API"] = "«!key:api_key»"
{"level":"warn","ts":«d10»,"msg":"using key «!key:api_key»"}
## Setup⏎Put `KEY=«!key:api_key»` in your .env file.
git remote set-url origin https://oauth2:«!key:api_key»@git.«w».io/«w».git
args: ["--token", "«!key:api_key»"]
I pasted «!key:api_key» by mistake, sorry
provider "«w»" {⏎  token = "«!key:api_key»"⏎}
//registry.«w».org/:_authToken=«!key:api_key»
GET /v1/me?access_token=«!key:api_key» 200 «1-99»ms
x-api-key: «!value:api_key»
api_key: "«!value:api_key»"
"apiKey": "«!value:api_key»",
My API key is «!value:api_key» can you check it?
«W»_API_KEY=«!value:api_key»
GET /data?api_key=«!value:api_key»&limit=20
Authorization: Bearer «!value:bearer_token»
curl -H 'Authorization: Bearer «!value:bearer_token»' https://«w».io
> authorization: bearer «!value:bearer_token»⏎> accept: */*
headers = {"Authorization": "Token «!value:token»"}
"access_token":"«!value:token»","expires_in":3600,"token_type":"bearer"
refresh_token=«!value:token»&grant_type=refresh_token
Set-Cookie: sessionid=«!value:token»; HttpOnly; Path=/
auth_token: «!value:token»
the token you need is «!value:token»
client_secret=«!value:client_secret»&client_id=«w»
"client_secret": "«!value:client_secret»"
  clientSecret: «!value:client_secret»
SECRET_KEY = '«!value:secret»'
JWT_SECRET=«!value:secret»
secret_key_base: «!value:secret»
webhook_secret = "«!value:secret»"
signing secret: «!value:secret»
aws_secret_access_key = «!value:api_key»
AWS_SECRET_ACCESS_KEY=«!value:api_key»
AccountKey=«!value:api_key»;EndpointSuffix=core.example.net
encryption_key: «!value:api_key»
Authorization: Basic «!basic:password»
proxy-authorization: Basic «!basic:password»
Authorization: Bearer «!jwt:jwt»
{"token": "«!jwt:jwt»"}
Cookie: jwt=«!jwt:jwt»; theme=dark
decoded the token «!jwt:jwt» and it has expired
«!pem:private_key»
cat ~/.ssh/id_rsa⏎«!pem:private_key»⏎$ ls
apiVersion: v1⏎kind: Secret⏎stringData:⏎  tls.key: |⏎«!pem:private_key»
Contact «first» at «!mail:email» for access.
From: «first» «last» <«!mail:email»>⏎Subject: invoice «d5»
«d4»,«first»,«last»,«!mail:email»,active
Author: «first» «last» <«!mail:email»>⏎Date:   Mon Jun 3 2024
«time» INFO user «!mail:email» signed in from «ip»
{"to": ["«!mail:email»"], "subject": "Hi"}
cc «!mail:email»; bcc «!mail:email»
Please reset 2FA for «!mail:email», she lost the phone.
mailto:«!mail:email»?subject=Order
INSERT INTO customers VALUES («d4», '«first»', '«!mail:email»', '2024-01-02');
Call me on «!phone:phone» after six.
Phone: «!phone:phone»
tel:«!phone:phone»
"phone": "«!phone:phone»"
Mobile «!phone:phone» | Office hours 9-5
phone_number=«!phone:phone»
WhatsApp «!phone:phone»
«first» «last», Tel. «!phone:phone»
reach «first» by phone at «!phone:phone» or by mail at «!mail:email»
Telefon: «!phone:phone»
Mein Handy: «!phone:phone»
Téléphone : «!phone:phone»
Teléfono: «!phone:phone»
contact: «!phone:phone»
SMS sent to «!phone:phone», status delivered
Fax: «!phone:phone»
{"customer": {"name": "«first»", "mobile": "«!phone:phone»"}}
Emergency contact: «first» «last», «!phone:phone»
my number is «!phone:phone», text me
IBAN «!iban:iban»
Please wire EUR «d3»,50 to «!iban:iban» by Friday.
"iban": "«!iban:iban»"
Bankverbindung: «!iban:iban»
debtor_account=«!iban:iban»
Konto «!iban:iban» BIC ABCDDEFF
Card: «!card:credit_card» exp 09/27
card_number=«!card:credit_card»&cvc=«z3»
"pan": "«!card:credit_card»"
My visa «!card:credit_card» was charged twice
Kreditkarte «!card:credit_card»
payment failed for card «!card:credit_card» (declined)
"""

NEGATIVES = """
## review
nit: rename `password` to `hashed_password`, otherwise people think it is the plain text.
Why is `token` optional here? If the token is missing we should raise, not return None.
I would move the secret lookup out of the constructor; passing secret: SecretStr is fine.
LGTM, but please don't log the password even at DEBUG level.
Can we drop the `pass` here? An empty except with pass hides «w» errors.
Suggestion: `def reset(self, password: str | None = None) -> User:` reads better.
The key: always compare tokens with hmac.compare_digest, never with ==.
This test passes the password twice; `password=password` is enough.
`api_key=self._api_key` shadows the parameter, see line «1-999».
Shouldn't this be `secret_name` rather than `secret`? The value comes from vault.
We pass token=token.value through four layers, could be a context variable.
Please replace password: string by password: Redacted<string> in types/«w».ts
blocking: secret=os.getenv("«W»_SECRET", "") silently accepts an empty secret
Looks good. One question: token_type="bearer" or "Bearer"? RFC 6750 says Bearer.
s/passwd/password/ in the docs; also "pass phrase" should be one word.
The token budget: 4096 tokens; the prompt uses «100-999» tokens, so pass max_tokens=«d4».
Does the password reset flow work with SSO? Password reset: disabled for SSO users.
Tests pass: yes. Docs: no. Secrets: none. Tokens: unchanged.
the api key here is only a name; api_key: keyof ApiMap
I think secret rotation should be a cron job; secret-rotation: weekly
Prefer `with_token(Token::Comma)` over `token == Token::Comma`.
password field: use autocomplete="new-password" instead of autocomplete="off"
What happens when pass rate: 98.5% drops? The gate says pass if >= 95.
## trace
Traceback (most recent call last):⏎  File "/app/auth/password.py", line «1-999», in verify_password⏎    raise InvalidPassword(user_id=«d5»)⏎InvalidPassword: password does not match
java.lang.IllegalArgumentException: token: must not be null⏎	at com.«w».auth.TokenFilter.doFilter(TokenFilter.java:«1-999»)
KeyError: 'password'
TypeError: login() got an unexpected keyword argument 'password'
TypeError: Cannot read properties of undefined (reading 'token')⏎    at getToken (/srv/«w»/dist/main.js:«1-9999»:«1-99»)
pydantic_core.ValidationError: 1 validation error for Settings⏎api_key⏎  Field required [type=missing, input_value={}, input_type=dict]
botocore.exceptions.NoCredentialsError: Unable to locate credentials
psycopg.OperationalError: connection failed: FATAL: password authentication failed for user "«w»"
fe_sendauth: no password supplied
panic: runtime error: invalid memory address [signal SIGSEGV: segmentation violation code=0x1 addr=0x«h2» pc=0x«h12»]⏎goroutine «1-99» [running]:
SyntaxError: Unexpected token < in JSON at position 0
SyntaxError: Unexpected token 'export'
error[E0425]: cannot find value `secret` in this scope⏎  --> src/«w».rs:«1-99»:«1-99»
jwt.exceptions.InvalidTokenError: Not enough segments
ssl.SSLError: [SSL: WRONG_PASSWORD] wrong password (_ssl.c:«d4»)
error: Permission denied (publickey,password).
org.postgresql.util.PSQLException: The server requested password-based authentication, but no password was provided.
Caused by: javax.crypto.AEADBadTagException: Tag mismatch: key=AES/GCM, iv length: 12
thread 'main' panicked at 'called `Result::unwrap()` on an `Err` value: MissingToken', src/«w».rs:«1-99»:«1-99»
0x00007f«h10» <+«1-99»>: mov rax,QWORD PTR [rip+0x«h6»]  # 0x00007f«h10»
#«1-20»  0x0000«h12» in check_password (pw=0x7ffe«h8» "", len=0) at pam.c:«1-999»
rake aborted!⏎ActiveSupport::MessageEncryptor::InvalidMessage⏎Missing secret_key_base for 'production' environment
## ci
##[add-mask]***⏎Run docker login -u $USER -p $PASSWORD registry.«w».io⏎  env: TOKEN: ***
  with:⏎    token: ${{ secrets.GITHUB_TOKEN }}⏎    ssh-key: ${{ secrets.DEPLOY_KEY }}
Run actions/checkout@v4⏎  with: repository: «w»/«w»⏎  token: ***⏎  persist-credentials: true
«time» Step «1-20»/«20-30» : ARG NPM_TOKEN⏎ ---> Using cache⏎ ---> «h12»
Downloading «w»-«1-9».«0-9».«0-9»-py3-none-any.whl.metadata («1-99».«0-9» kB)
test_password_reset.py::test_token_is_single_use PASSED [ «10-99»%]
tests/auth/test_token.py .......s...                                     [ «10-99»%]
PASS src/auth/password.test.ts («1-9».«z3» s)⏎  ✓ rejects a short password («1-99» ms)
ok  	«w».dev/auth/token	0.«z3»s	coverage: «10-99».«0-9»% of statements
Pass: «100-999», Fail: 0, Skip: «1-9», Token: ok
Cache restored from key: linux-node-«h64»
Cache key: v1-deps-«h40»
Digest: sha256:«h64»⏎Status: Downloaded newer image for «w»:latest
«h12»: Pull complete⏎«h12»: Already exists⏎latest: digest: sha256:«h64» size: «d4»
commit «h40»⏎Merge: «h7» «h7»
index «h7»..«h7» 100644⏎--- a/src/password.py⏎+++ b/src/password.py
Build #«d4» finished in «1-59»m«1-59»s; artifact «w»-«d5»-«h7».tar.gz («d8» bytes)
Secret scanning: no secrets found in «d4» files. Token scopes: contents=read, packages=write
Uploading artifact «d10» … finalised, id «d9», digest «h64»
warning: secret TOKEN is not set, the step publish will be skipped
::warning file=src/token.ts,line=«1-99»,col=«1-99»::'token' is declared but never used
Detected password in CHANGELOG? no. gitleaks: 0 leaks, «d8» bytes scanned in «1-99».«z2»s
e2e: enters password → clicks Sign in → sees dashboard («d4» ms)
job «d11» run «d11» attempt 1 runner «w»-«z4»-«l5»
## k8s
apiVersion: v1⏎kind: Secret⏎metadata:⏎  name: «w»-secret⏎type: Opaque⏎data: {}
        env:⏎        - name: DB_PASSWORD⏎          valueFrom:⏎            secretKeyRef:⏎              name: «w»-db⏎              key: password
  secretName: «w»-tls⏎  issuerRef:⏎    name: letsencrypt-prod⏎    kind: ClusterIssuer
imagePullSecrets:⏎- name: regcred⏎serviceAccountName: «w»⏎automountServiceAccountToken: false
existingSecret: «w»-credentials⏎existingSecretPasswordKey: postgres-password
pod/«w»-«h10»-«l5»   1/1     Running   0          «1-99»d
volumes:⏎- name: token⏎  projected:⏎    sources:⏎    - serviceAccountToken: {path: token, expirationSeconds: 3600}
helm upgrade «w» ./chart --set auth.password=$PASSWORD --set auth.secretKey=password
image: registry.«w».io/«w»@sha256:«h64»
resourceVersion: "«d9»"⏎uid: «uuid»⏎generation: «1-99»
password: {{ .Values.auth.password | quote }}
token: {{ include "«w».token" . | b64enc }}
tokenReviewerJwt: ""⏎pemKeys: []⏎tokenTTL: 24h
annotations:⏎  checksum/secret: «h64»
nodePort: «30000-32767»⏎clusterIP: «ip»⏎sessionAffinity: None
## terraform
variable "password" {⏎  type      = string⏎  sensitive = true⏎}
password = var.db_password⏎token = data.vault_generic_secret.«w».data["token"]
  + password = (sensitive value)⏎  + secret_id = (known after apply)
manage_master_user_password = true⏎password_length = 24⏎password_policy = "strict"
resource "random_password" "«w»" {⏎  length  = 32⏎  special = false⏎}
secret_key = module.«w».secret_key⏎kms_key_id = "arn:aws:kms:eu-west-1:«d12»:key/«uuid»"
token_ttl = "1h"⏎secret = "${random_id.secret.hex}"⏎password = local.passwords["«w»"]
secret_arn = "arn:aws:secretsmanager:us-east-1:«d12»:secret:«w»/db-«a6»"
aws_instance.«w»: Creation complete after «10-59»s [id=i-0«h16»]
ami = "ami-0«h16»"⏎subnet_id = "subnet-0«h16»"⏎vpc_security_group_ids = ["sg-0«h16»"]
access_key = var.access_key⏎skip_credentials_validation = true⏎skip_requesting_account_id = true
  "h1:«b43»=",⏎  "zh:«h64»",
## docs
Enter your password, then choose Continue. Your password must contain at least 12 characters, one digit and one symbol.
Password: required. Must be at least 8 characters. Token: optional. Secret: never shown again.
| Field | Type | Description |⏎| password | string | The user's password |⏎| token | string | Reset token |
`--password PASSWORD`  Password for the server [env: «W»_PASSWORD]
-p, --password <password>   the password to use (default: prompt)
usage: «w» [-h] [--token TOKEN] [--secret SECRET] [--pass-through] file
Replace `<YOUR_API_KEY>` with your key: `export API_KEY=<YOUR_API_KEY>`
Set api_key="YOUR_API_KEY" or pass token="..." to the client.
curl -H "Authorization: Bearer $TOKEN" https://api.«w».dev/v1/items
curl -u username:password https://«w».example.com
postgresql://user:password@localhost:5432/mydb
Authorization: Bearer <token>⏎Authorization: Basic <base64(user:password)>
A token is a string that identifies a session. The secret is stored in the keychain. The password is hashed with Argon2.
Passwords are case sensitive. Password hints: optional. Password history: 5. Password expiry: 90 days.
Tokenization: the tokenizer splits text into tokens; token: a unit of text. See chapter «1-20».
Keys: use arrow keys to move, Enter to select, Esc to cancel. Hot key: Ctrl+Shift+P. Pass -v for verbose.
The secret key is used for signing, the public key for verification. The key is: rotate often.
Forgot password? Password reset. Change password. Confirm password. Show password. Password strength: weak.
The default password is empty. The initial password is printed in the log. The password is optional.
The password is your email address. The token is invalid after 15 minutes. The secret is required.
`password` (str): plain text password. `secret` (bytes): at least 32 bytes. `api_key` (Optional[str]): defaults to None.
:param password: the password of the user⏎:param token: bearer token⏎:returns: True when valid
@param secret - shared secret used for HMAC⏎@param token - opaque token
Password=Base64(SHA256(salt+password)), token=HMAC(key, message)
API key authentication: send the header X-API-Key: {api_key}
password: "your-password-here"⏎token: "xxxxxxxxxxxxxxxx"⏎secret: "changeme"
PASSWORD=********⏎TOKEN=xxxx-xxxx-xxxx⏎SECRET=<redacted>
Bearer tokens: see RFC 6750. Basic authentication: see RFC 7617. API keys: see section «1-9».«1-9».
sudo -u postgres psql -c '\\password «w»'
Environment variables: API_KEY, API_SECRET, DB_PASSWORD, SESSION_TOKEN (all required)
Passwort vergessen? Das Passwort muss mindestens 8 Zeichen haben. Passwort: erforderlich.
Mot de passe oublié ? Le mot de passe est incorrect. Mot de passe : obligatoire.
La contraseña es demasiado corta. Contraseña: obligatorio. ¿Olvidó su contraseña?
## swagger
"password": {"type": "string", "format": "password", "minLength": 8, "writeOnly": true}
securitySchemes:⏎  apiKey: {type: apiKey, in: header, name: X-API-Key}⏎  bearer: {type: http, scheme: bearer, bearerFormat: JWT}
tokenUrl: https://«w».example.com/oauth/token⏎authorizationUrl: https://«w».example.com/oauth/authorize⏎scopes: {}
required: [email, password, token]⏎properties: {token: {$ref: '#/components/schemas/Token'}}
"token": {"type": ["string", "null"], "description": "Opaque token, see /auth/token"}
"phone": {"type": "string", "pattern": "^\\\\+[1-9]\\\\d{1,14}$", "maxLength": 16}
"email": {"type": "string", "format": "email"}, "iban": {"type": "string", "minLength": 15, "maxLength": 34}
"secret": {"readOnly": true, "nullable": true}, "api_key": {"$ref": "#/definitions/Key"}
parameters: - in: query⏎  name: token⏎  schema: {type: string, default: none}
"operationId": "resetPassword", "tags": ["password"], "x-token-required": false
message LoginRequest { string username = 1; string password = 2; string totp_token = 3; }
type Mutation { login(email: String!, password: String!): Token!, revoke(token: ID!): Boolean }
## sql
CREATE TABLE users (id BIGINT PRIMARY KEY, email VARCHAR(255), password CHAR(60) NOT NULL, token VARCHAR(64) DEFAULT NULL);
ALTER TABLE sessions ADD COLUMN token TEXT NOT NULL DEFAULT '', ADD COLUMN secret BYTEA;
SELECT id, password, token FROM users WHERE token = $1 AND password = crypt($2, password);
UPDATE users SET password = :password, token = NULL WHERE id = «d5»;
INSERT INTO orders VALUES («d6», «d4», '2024-0«1-9»-«10-28» 1«0-9»:«10-59»:00', «d3».«z2», 'paid');
INSERT INTO `schema_migrations` VALUES ('2024«z10»'),('2023«z10»');
CREATE INDEX ix_tokens_secret ON tokens (secret) WHERE secret IS NOT NULL;
GRANT SELECT (password) ON users TO «w»; -- password column: deprecated
COPY public.items (id, sku, qty) FROM stdin;⏎«d6»	«U3»-«d6»	«1-99»⏎«d6»	«U3»-«d6»	«1-99»
-- Dump completed on 2024-«10-12»-«10-28» «10-23»:«10-59»:«10-59»
WHERE password IS NULL OR token = '' OR secret = 'none'
id=«d10» parent_id=«d10» seq=«d9» lsn=«H2»/«H8» xid=«d8»
EXPLAIN: Seq Scan on tokens  (cost=0.00..«d5».«z2» rows=«d6» width=«d2») (actual time=0.«z3»..«d3».«z3» rows=«d6» loops=1)
## http
HTTP/1.1 401 Unauthorized⏎WWW-Authenticate: Bearer realm="«w»", error="invalid_token"⏎Content-Length: «d3»
HTTP/2 200⏎etag: W/"«h32»"⏎x-request-id: «uuid»⏎cf-ray: «h16»-FRA
«ip» - - [«10-28»/Jun/2024:1«0-9»:«10-59»:«10-59» +0000] "POST /api/token HTTP/1.1" 200 «d4» "-" "Mozilla/5.0"
«ip» - «w» [«10-28»/Jun/2024:1«0-9»:«10-59»:«10-59» +0200] "GET /password/reset?step=2 HTTP/1.1" 302 0
traceparent: 00-«h32»-«h16»-01⏎tracestate: «w»=«h16»
x-amz-request-id: «H16»⏎x-amz-id-2: «b76»=
GET /oauth/authorize?response_type=code&client_id=«w»&scope=openid%20email&code_challenge_method=S256&code_challenge=«u43»
Content-Security-Policy: script-src 'self' 'nonce-«b22»=='; report-uri /csp
Sec-WebSocket-Accept: «b27»=⏎Sec-WebSocket-Version: 13
x-ratelimit-limit-tokens: «d6»⏎x-ratelimit-remaining-tokens: «d6»⏎x-ratelimit-reset-tokens: «1-60»ms
Access-Control-Allow-Headers: Authorization, X-API-Key, X-CSRF-Token⏎Access-Control-Max-Age: 86400
Set-Cookie: token=; Max-Age=0; Path=/; HttpOnly⏎Set-Cookie: lang=en; Path=/
{"error":"invalid_grant","error_description":"Token has been expired or revoked."}
{"token_type":"Bearer","expires_in":«d4»,"scope":"read write"}
{"usage":{"prompt_tokens":«d4»,"completion_tokens":«d3»,"total_tokens":«d4»},"id":"chatcmpl-«a29»"}
{"password":["This field is required."],"token":["Invalid token."]}
{"ok":false,"error":"missing_token","needs":["password","secret"]}
{"password":null,"token":"","secret":false,"apiKey":"undefined"}
{"hasPassword":true,"passwordUpdatedAt":"«time»","tokenCount":«1-9»,"secretQuestion":"none"}
GET /v1/users/«d8»/orders/«d10»?from=2024-01-01&to=2024-12-31&page=«1-99» 200 «d5»B «1-99».«z2»ms
Last-Modified: Tue, «10-28» Jun 2024 1«0-9»:«10-59»:«10-59» GMT⏎Age: «d6»⏎Alt-Svc: h3=":443"; ma=2592000
## mail
Hi «first»,⏎⏎your password expires in «1-14» days. Please change your password at https://«w».example.com/account before then.⏎⏎IT Support
Dear customer, we noticed a sign-in to your account. If this was not you, reset your password now. We never ask for your password by phone.
Your verification is complete. Your password was changed on «10-28» June at «10-23»:«10-59».
Order «d3»-«d7»-«d7» has shipped. Tracking: 1Z«U3»«d10», «10-28» June, total € «d3»,«z2».
Invoice no. 2024-«d6», customer no. «d8», VAT DE«d9», due «10-28».0«1-9».2024, amount «1-9».«z3»,«z2» EUR
Subject: Re: password policy⏎Message-ID: not kept⏎References: policy v«1-9»
Meeting ID: «d3» «d4» «d4»⏎Time: «10-23»:«10-59» CET⏎Room: 0«1-9».«d3»
Flight «U2»«d4», seat «1-39»A, booking reference «U6», ticket «d3»-«d10»
The pass for the museum costs «10-99» euros; your pass is valid until «10-28»/0«1-9»/2025.
Let me call you tomorrow between «1-9» and «10-12». My office is 0«d3» in building «1-99».
Please call the vendor about PO «d10» and quote «d8»; they open at 0«1-9»00.
## ticket
[«U4»-«d4»] Users cannot reset password: token expired⏎Steps: 1. open /reset 2. enter new password 3. see "token invalid"
Password reset mail is not sent. Expected: mail with token. Actual: nothing. Priority: P«1-4». Severity: «1-4».
Customer «d8» says login fails: password wrong. Asked them to retry; password correct now; ticket closed.
As a user I want to log in with a passkey instead of a password so that I need no secret.
Acceptance: password min 12 chars; token lifetime 15 min; secret rotated; pass rate above «90-99» %.
SLA: first response «1-9»h; escalation level «1-3»; case «z8»; asset tag «z6»; serial «U3»«z9»
Duplicate of #«d5», see also #«d5» and «h7». Password manager: any. Token: hardware.
Password: forgot it, help! Token: lost. Secret: unknown.
The user's password is wrong again, the token is stale, and the secret is missing from the vault.
Serial number «z4»-«z4»-«z4», firmware «1-9».«1-99».«1-99», MAC «h2»:«h2»:«h2»:«h2»:«h2»:«h2», IMEI not given
## csv
id,sku,price,qty,updated⏎«d6»,«U2»-«d5»,«d2».«z2»,«1-99»,2024-0«1-9»-«10-28»⏎«d6»,«U2»-«d5»,«d2».«z2»,«1-99»,2024-0«1-9»-«10-28»
lat,lon,alt⏎«10-59».«z6»,«1-9».«z6»,«d3»⏎-«10-59».«z6»,«10-99».«z6»,«d2»
timestamp,open,high,low,close,volume⏎«d10»,«d3».«z2»,«d3».«z2»,«d3».«z2»,«d3».«z2»,«d9»
user_id;password_set;token_count;last_login⏎«d5»;true;«1-9»;2024-0«1-9»-«10-28»⏎«d5»;false;0;
ean;name;stock⏎«d13»;«w»;«1-99»
zip,city,population⏎«z5»,«W»,«d6»⏎«z5»,«W»,«d5»
run,loss,tokens,lr⏎«1-99»,«1-9».«z4»,«d10»,3.0e-0«1-9»
name,hash⏎«w».zip,«h64»⏎«w».iso,«h40»
date,amount,balance⏎«10-28».0«1-9».2024,-«d3».«z2»,«d4».«z2»⏎«10-28».0«1-9».2024,«d2».«z2»,«d4».«z2»
## changelog
## [«1-9».«0-9».«0-9»] - 2024-«10-12»-«10-28»⏎### Fixed⏎- Password reset tokens are now single use (#«d4»)⏎- token: avoid panic on empty input
- **auth:** pass token to refresh handler (`«h7»`), closes #«d4»
- BREAKING: `password` is now `passwordHash`; `token` becomes `accessToken`; `secret` removed
feat(auth)!: token => accessToken, pass => password
* «h7» fix: secret leak in log («first»)⏎* «h7» chore: bump «w» from «1-9».«0-9».«0-9» to «1-9».«0-9».«0-9»
- Bump to «1-9».«0-99».«0-99»-rc.«1-9»+build.«d8»; min iOS «10-17».«0-6»; API level «21-35»
- Security: tokens: longer. Passwords: bcrypt → argon2id. Secrets: rotated. Keys: Ed25519.
## lock
"integrity": "sha512-«b86»==",⏎"resolved": "https://registry.example.org/«w»/-/«w»-«1-9».«0-9».«0-9».tgz"
«w»==«1-9».«0-9».«0-9» \\⏎    --hash=sha256:«h64» \\⏎    --hash=sha256:«h64»
[[package]]⏎name = "secret-service"⏎version = "«1-9».«0-9».«0-9»"⏎checksum = "«h64»"
"node_modules/js-tokens": {"version": "4.0.0", "license": "MIT"}, "node_modules/token-types": {"version": "6.0.0"}
passlib==1.7.4⏎python-jose==3.3.0⏎pyjwt==2.8.0⏎itsdangerous==2.1.2⏎secretstorage==3.3.3
github.com/«w»/token v0.0.0-2023«z10»-«h12» h1:«b43»=
"content-hash": "«h32»", "lockfileVersion": 3, "fingerprint": "«h40»"
Podfile checksum: «h40»⏎COCOAPODS: 1.15.2⏎SecretKit (2.1.0): ~> 2.0
## ids
request_id=«uuid» trace_id=«h32» span_id=«h16» parent=«h16»
_id: ObjectId("«h24»"), __v: 0, cursor: "«b32»"
ulid 01«H10»«H14», nanoid «u21», ksuid «a27», cuid c«l4»«z4»«l8»«z8»
build 2024«z8»-«z4», order «d9», batch «z12», pallet «z18»
DOI 10.«d4»/«l4».«d7», ISBN 978-3-16-«d6»-0, arXiv:24«z2».«z5», PMID «d8»
urn:uuid:«uuid»⏎tag:«w».example,2024:«d8»⏎oid 1.3.6.1.4.1.«d5».«1-9».«1-9»
steam id 7656119«z10», tweet «d19», snowflake «d18», video «u11», channel UC«u22»
tenant «uuid» sub «uuid» key id «h16» kid «u22»
idempotency_key=«uuid» partition_key=«w»#«d5» sort_key=ORDER#«d8» cache_key=«w»:«d5»:v«1-9»
primary key (id), foreign key (token_id) references tokens(id), routing key «w».«w».#, object key uploads/«h8»/«w».png
public_key: «b44»⏎key_fingerprint: SHA256:«b43»⏎keyspace: «w»
ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI«b43» «w»
-----BEGIN CERTIFICATE-----⏎MII«b61»⏎«b64»⏎-----END CERTIFICATE-----
-----BEGIN PUBLIC KEY-----⏎MFkw«b60»⏎«b60»==⏎-----END PUBLIC KEY-----
bitcoin block 000000000000000000«h46», height «d6»; eth tx 0x«h64», gas «d5»
## number
PID «d5», RSS «d8» kB, uptime «d6».«z2», load 0.«z2» 1.«z2» 0.«z2»
epoch «d10», millis «d13», nanos «d19»
«d3» «z3» «z3» items, «1-9» «z3» «z3» rows, 0.«z9» s, 1e-«1-12»
52.«z5», 13.«z5» / 48° «10-59»′ «10-59»″ N 2° «10-59»′ «10-59»″ E
v«1-9».«0-99».«0-99», 10.0.«10-99».«100-999», 2024.«1-12».«1-28», r«d6», build «d5».«d4»
between 0«d3» and 0«d4»: page «d3»-«d3», pp. «d4»-«d4», vol. «1-99», no. «1-12»
range 1000000-2000000, ports 30000-32767, ids «d6»-«d6», lines «d3»-«d3», bytes «d7»-«d7»/«d8»
score «1-9»-«1-9», «10-99»-«10-99»-«10-99», 555 units, 800 x 600 px, 1920x1080, ratio 16:9
population «1-9»,«z3»,«z3»; GDP $«1-9».«z2» trillion; +«1-9».«z2» %; -«1-9».«z3»; ± 0.«z3»
+«1-99» -«1-99» lines, +«d3»,«z2» EUR, +0«1-9»:00, UTC+5:30, +1 from me, +«1-9»00 bps
2024-06-«10-28» 1«0-9»:«10-59»:«10-59»,«z3» · 20240«1-9»«10-28»T1«0-9»«10-59»«10-59»Z · «10-28»/06/2024 · 06-«10-28»-2024
sum=«d6».«z2» avg=«d3».«z4» p95=«d3».«z2» n=«d6» seed=«d10»
(«d3») «d3» rows, [«d3»] «d4», («z4») «d6»
matrix: «z3» «z3» «z4»⏎        «z3» «z3» «z4»
0 «d3» «d3» «d4» 100% /dev/sda«1-9»⏎«d8» «d8» «d7» «10-99»% /home
hexdump 000000«h2»0: «h4» «h4» «h4» «h4» «h4» «h4» «h4» «h4»
1 000 000, 2 500 000 and «d2» «z3» «z3» CHF; 01 02 03 04 05; 12-34-56
part 0«z3»-«z6»-«z2», drawing «z3».«z3».«z4», catalogue «d3»-«d4», DIN 0«z4»
phone model SM-«U1»«d3»B, phone screen 6.«1-9» in, phone plan «10-99» GB, phones sold: «d6»
call «d3» of «d4»; call id «d8»; call stack depth «1-99»; 911 calls: «d4»; call count=«d6»
cell A«1-99»: «d6»; cell «1-99»,«1-99»; mobile visits «d5»; contact id «d8»; fax queue 0
tel-aviv «10-40»°C; text «d4» chars; number of orders: «d6»; number «d5»; no. «d6»
elapsed 00:0«1-9»:«10-59».«z3»; eta 1h«10-59»m; speed «d3».«z2» MB/s; temp «10-99».«0-9»°C; hz «d10»
account «d10», account number ending in «z4», card ending «z4», last four «z4», iban ****«z4», card ************«z4»
card type: visa, card «1-52» of 52, credit: «d4», test card 0000 0000 0000 0000, exp «1-12»/2«4-9»
## code
if (!password || password.length < 8) throw new Error('password too short');
password = getpass.getpass("Password: ")
const token = await getToken(user.id); const secret = process.env.SECRET;
let token: Option<&str> = headers.get("x-token").and_then(|v| v.to_str().ok());
token := r.Header.Get("Authorization"); if token == "" { return ErrNoToken }
self.password = password; self.token = kwargs.pop("token", None); self.secret = secret or DEFAULT
public string Password { get; set; } = string.Empty;
String password = System.getenv("DB_PASSWORD"); char[] secret = console.readPassword();
password: z.string().min(8).max(72), token: z.string().uuid()
$password = $_POST['password']; $token = bin2hex(random_bytes(32));
parser.add_argument("--token", default=None, help="API token"); parser.add_argument("--password", action="store_true")
token = tokens[i]; while token.type != TokenType.EOF: token = next(tokens)
@property⏎def secret(self) -> SecretStr:⏎    return self._secret
assert token == expected_token; assert password != hashed; assert not secret
class PasswordField(CharField): password = CharField(max_length=128); token = ForeignKey(Token, on_delete=CASCADE)
try:⏎    import secrets⏎except ImportError:⏎    pass
if x: pass⏎else: pass  # nothing to do
match token { Token::Plus => add(), Token::Minus => sub(), _ => unreachable!() }
token="".join(random.choice(chars) for _ in range(32)); password=fake.password(length=12)
props: { password: String, token: { type: String, default: null }, apiKey: { required: true } }
<input type="password" name="password" placeholder="Password" required autocomplete="current-password">
<label for="password">Password:</label> <span class="token keyword">return</span>
<PasswordInput label="Password" value={password} onChange={setPassword} secret={false} />
.token.string { color: #«h6» } .password-input { padding: 0 } --token-color: #«h6»;
api_key = settings.OPENAI_API_KEY; client = Client(api_key=api_key, token=settings.token)
logger.info("password changed for user %s", user_id); logger.debug("token=%s", mask(token))
print(f"password: {password!r} token: {token[:4]}...")
assertEquals("password is too short", error.getMessage()); expect(token).toBe('abc');
key=lambda item: item.token; sorted(tokens, key=len); dict(key=value); key = "«w»_«w»"
var password string; var token *Token; type Secret struct { Key []byte `json:"key"` }
func (p Password) String() string { return "***" }
data class Login(val password: String, val token: String? = null)
PASSWORD_HASHERS = ['django.contrib.auth.hashers.Argon2PasswordHasher']⏎AUTH_PASSWORD_VALIDATORS = []
validates :password, presence: true, length: { minimum: 8 }⏎has_secure_password⏎has_secure_token :auth_token
export const selectToken = (state: RootState) => state.auth.token;
i18n: password: 'Passwort', confirmPassword: 'Passwort bestätigen', token: 'Sicherheitscode'
enum Field { Password = 'password', Token = 'token', Secret = 'secret' }
token = Token.objects.get(user=user).key; password=make_password(raw)
it('returns 401 when token is expired', async () => { const token = sign({ exp: 0 }, secret); });
secret = Secret.from_name("«w»-secret"); token_file = "/var/run/secrets/token"; password_file=/run/secrets/db_password
bool password_ok = verify(password, hash); int token_id = 0; secret->len = 32;
SecretKeySpec secret = new SecretKeySpec(bytes, "HmacSHA256"); Token token = new Token(Type.PLUS, "+", line);
password = input.nextLine(); token = strtok(NULL, " "); pass = pass + 1; secret = secret << 8;
- password_confirmation: matches:password⏎- token: required|string|size:64
from .token import Token as T; from password_strength import PasswordPolicy
## config
password=⏎user=«w»⏎token=⏎secret=
password: ""⏎token: null⏎secret: ~⏎api_key: !vault |
DB_PASSWORD=${DB_PASSWORD:?required}⏎TOKEN=$(cat /run/secrets/token)⏎SECRET=%SECRET%
password = ENC[AES256_GCM,data:redacted,type:str]⏎token_file = /etc/«w»/token⏎secret-backend = vault
max_password_age = 90⏎password_min_length = 12⏎token_lifetime = 3600⏎secret_rotation = monthly
PasswordAuthentication no⏎PermitRootLogin prohibit-password⏎PubkeyAuthentication yes
auth_pass_through: on⏎proxy_pass http://«w»:8080;⏎fastcgi_pass unix:/run/php.sock;
password_encryption = scram-sha-256⏎token_endpoint_auth_method: client_secret_basic
auth required pam_unix.so⏎password requisite pam_pwquality.so retry=3⏎password sufficient pam_unix.so sha512 shadow
"token": "@env:TOKEN", "password": "file:/run/secrets/db", "secret": "vault:kv/«w»#secret"
token_type = bearer⏎token_format = jwt⏎token_store = redis⏎secret_provider = aws
password.policy=strong⏎token.issuer=«w»⏎secret.manager=gcp⏎pass.through=true⏎api.key.header=X-Api-Key
tokenizer: cl100k_base⏎pad_token: "<pad>"⏎eos_token: "</s>"⏎unk_token: "[UNK]"⏎bos_token_id: 1
vocab: {"token": «d4», "Ġpassword": «d5», "Ġsecret": «d4», "key": «d4»}
## prose
The secret of good bread is patience. The key to the house is under the mat. A pass over the mountains stays closed until May.
He took the pass at «1-9»:«10-59» and ran for «10-99» yards; pass completed: 21 of 30.
Her secret: garlic. His secret? More garlic. The key ingredient is time; the pass mark is 60.
She whispered the password and the door opened. "Password?" asked the guard. "Friends," said the boy.
The password was the name of his dog, everyone knew. The token was a small brass coin.
In this episode we talk about passwords: why they fail, what a passkey is, and who still writes the password on a note.
I always forget my password and have to reset it, then the new password is the same as the old one.
Secret Santa: «10-20» December, budget «10-30» euros. Token gift: chocolate. Password: none needed, just come!
Please pass the salt. Pass: 12, fail: 3. Boarding pass: mobile. Day pass: «10-40» EUR. Pass code of conduct training.
Users choose bad passwords such as birthdays or pet names; a password like that is guessed in seconds.
We tell users that the password is case-sensitive, but half of them think the password is not.
Agent: I will store the token in the keychain and pass the secret via environment. Next step: verify password flow.
I've added password hashing, token refresh, and secret rotation. All «10-99» tests pass. Should I proceed?
tool_call: reset_password(user_id=«d5», notify=True) -> {"status": "ok", "token_sent": true}
The model has a context of «d6» tokens; the price per token is $0.0000«10-99», secret sauce: attention.
assistant: The password field is blank because token refresh failed; secret not mounted; key rotated «1-9» days ago.
"""
