"""The part `seventh` of `privacy_logs`: a short one, written after the repairs for `sixth`, slots as in `fifth`."""

# ruff: noqa: E501  a template stays in one line

from __future__ import annotations

from collections.abc import Iterator

from privacy_fifth import expanded
from privacy_logs import Make


def positives(m: Make) -> Iterator[str]:
    """Yield one text of each setting."""
    return (expanded(m, line) for line in POSITIVES.strip().splitlines())


def negatives(m: Make) -> Iterator[tuple[str, str]]:
    """Yield (what, text) of texts that hold nothing sensitive and look as if."""
    return (("mixed", expanded(m, line)) for line in NEGATIVES.strip().splitlines())


POSITIVES = """
FTP access: host «w».example.org, user «w», password «!pw:password»
"db": {"user": "«w»", "password": "«!pw:password»", "port": 5432}
PASSWORD="«!pw:password»" ./deploy.sh
password = "«!pw:password»"
passwd: «!pw:password»
Temporary password: «!pw:password»
Please log in with user «w» and password «!pw:password».
the db password is «!pw:password», don't commit it
docker run -e MYSQL_ROOT_PASSWORD=«!pw:password» mysql:8
curl --user «w»:«!pw:password» «ip»
app.login("«w»", password="«!pw:password»")
<Password>«!pw:password»</Password>
wachtwoord: «!pw:password»
Mot de passe : «!pw:password»
Passwort: «!pw:password»
my api key: «!value:api_key»
API_KEY=«!value:api_key»
"apiToken": "«!value:token»"
Authorization: Bearer «!value:bearer_token»
client_secret: «!value:client_secret»
stripe key «!key:api_key» was committed
GITHUB_TOKEN=«!key:api_key»
const k = '«!key:api_key»';
[default]⏎key = «!key:api_key»
Authorization: Bearer «!jwt:jwt»
«!pem:private_key»
Email me at «!mail:email»
"email":"«!mail:email»"
<«!mail:email»>: host not found
Phone: «!phone:phone»
Her mobile is «!phone:phone».
"tel": "«!phone:phone»"
customer called from «!phone:phone»
My IBAN: «!iban:iban»
IBAN «!iban:iban»
Card number «!card:credit_card»
Amex/Visa: «!card:credit_card»
"""
NEGATIVES = """
The endpoint returns 422 when password has fewer than «8-16» characters or token is malformed.
Reviewer: can `Token` implement `Display`? Author: it would print the secret.
ERROR: password for user «w» is required but stdin is not a terminal
secrets:⏎  - source: db_password⏎    target: /run/secrets/db_password⏎    mode: 0400
export interface Session { token: string; refreshToken?: string; expiresAt: number }
«time» app[web.1]: Started POST "/passwords" for «ip» at 2024-06-«10-28» 1«0-9»:«10-59»:«10-59» +0000
Parameters: {"utf8"=>"✓", "user"=>{"password"=>"[FILTERED]", "token"=>"[FILTERED]"}}
UPDATE accounts SET password_changed_at = now(), token_version = token_version + 1 WHERE id = «d7»;
output "password" {⏎  value     = random_password.db.result⏎  sensitive = true⏎}
│ Error: Missing required argument "secret" on main.tf line «1-99», in resource "vault_token" "«w»":
password: !Ref DBPassword⏎token: !GetAtt Auth.Token⏎secret: '{{resolve:secretsmanager:db:SecretString:password}}'
- Fixed: password field loses focus (#«d4»); token list is sorted; secret names may contain dots.
Token «d4» of «d5» generated, «10-99».«0-9» tokens/s, kv cache «d3» MiB
The customer wants a password of at most 8 characters, which we must refuse.
POST /v1/tokens 201 (key=card, brand=visa, last4=«z4», exp=«1-9»/2029)
PKG_HASH:=«h64»⏎PKG_VERSION:=«1-9».«0-99»⏎PKG_SOURCE:=«w»-«1-9».tar.xz
yarn.lock: resolved "https://registry.example.com/passport/-/passport-0.«1-9».0.tgz#«h40»"
id: «uuid», version: «1-99», etag: "«h32»", key: /items/«uuid»
let pass = tests.filter(t => t.ok).length; console.log(`pass: ${pass}, fail: ${fail}`);
Pass rate «10-99»%, token accuracy 0.«z3», password F1 0.«z3», secret recall 0.«z2»
Termin am «10-28».0«1-9».2025 um «10-18»:«10-59» Uhr, Raum «d3», Kundennr. «d8», Tel-Aviv-Str. «1-99»
coords «10-59».«z4»,-«10-99».«z4» zoom «1-19» tile «d4»/«d4» 
v«1-9».«0-9».«0-9»-«d3»-g«h7» built 2024«z4»-«z6»
RMA «d3»-«d7», claim «d4»-«d4»-«d4», policy «d3» «d3» «d3»
Total: «d3»,«z3».«z2» USD (ref «d4» «d4»), due in «10-30» days, net «d5».«z2»
mov eax, 0x«h8» ; key schedule⏎xor token, token ; secret cleared
Dear all, the secret ballot is on «10-28» May; your pass gets you in. Token of thanks: cake.
User enters password, server issues token, client stores secret; attacker sees nothing.
:password, presence: true
password_digest:string token:string:uniq secret:text
rails g model User email:string password_digest:string token:string
assert_response 401, "password accepted but token expired"
log.warn("secret {} not found in {}", name, path);
{"error":{"code":"token_expired","message":"Token expired at «time»","param":"token"}}
{"name":"password","in":"formData","type":"string","required":true,"x-order":2}
+-- password: 12 of 14 tests passed⏎+-- token: 9 of 9 tests passed
Password hash rounds: 12; token bits: 256; secret bytes: 32; key size: 4096.
password in Chinese is 密码, in Japanese パスワード, in Russian пароль, in Turkish şifre
El token es inválido. Le jeton est expiré. Das Token ist ungültig. Il token è scaduto.
$ passwd «w»⏎Changing password for «w».⏎Current password: ⏎New password: ⏎Retype new password: ⏎passwd: password updated successfully
[sudo] password for «w»: ⏎Sorry, try again.
ssh_authorized_keys: []⏎lock_passwd: true⏎chpasswd: { expire: false }
--token=TOKEN (required) --password-stdin --secret-id SECRET_ID
vault write auth/approle/login role_id=$ROLE secret_id=$SECRET
secret/data/«w»/prod#password is read at start; secret/data/«w»/ci#token is not
Passkey instead of password? Passwordless: yes. Token binding: no. Secretless: planned.
@pytest.fixture⏎def token(client): return client.post('/token').json()['access_token']
<secret name="«w»" type="generic"/> <token id="«1-99»" type="op">=</token>
enum class Token : uint8_t { Pass = 0x01, Key = 0x02, Secret = 0x04 };
The password reset link is valid for «10-60» minutes and was sent on «10-28» June.
"""
