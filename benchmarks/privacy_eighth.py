"""The part `eighth` of `privacy_logs`: ordinary settings first, rare ones after, by one who had not read the rules.

Slots as in `fifth`; `⟦kind|…⟧` marks a stretch that is drawn from slots, `«badcard»` and `«badiban»` fail their checksums.
"""

# ruff: noqa: E501  a template stays in one line

from __future__ import annotations

import re
from collections.abc import Iterator

from privacy_fifth import expanded
from privacy_logs import Make, s, under_headings

_STRETCH = re.compile(r"⟦([a-z_]+)\|([^⟧]*)⟧")


def _made(m: Make, template: str) -> str:
    """Return a template with its slots drawn and its stretches marked."""
    template = re.sub("«badcard»", lambda _: m.card(right=False), template)
    template = re.sub("«badiban»", lambda _: _spoilt(m.iban()), template)
    return _STRETCH.sub(lambda match: s(match[1], match[2]), expanded(m, template))


def _spoilt(iban: str) -> str:
    """Return an account number whose check digits are one too many."""
    return f"{iban[:2]}{(int(iban[2:4]) - 1) % 97 + 2:02}{iban[4:]}"


def positives(m: Make) -> Iterator[str]:
    """Yield one text of each setting."""
    return (_made(m, line) for line in POSITIVES.strip().splitlines())


def negatives(m: Make) -> Iterator[tuple[str, str]]:
    """Yield (what, text) of texts that hold nothing sensitive and look as if."""
    return ((what, _made(m, line)) for what, line in under_headings(NEGATIVES))


POSITIVES = """
password=«!pw:password»
DB_PASS=«!pw:password»⏎DB_HOST=«ip»
{"username":"«w»","password":"«!pw:password»","mfa":false}
mysql: {host: "«ip»", user: root, password: "«!pw:password»"}
my new password is «!pw:password»
Hey, the staging login is «w» / pw: «!pw:password»
«first»: what was the password again?⏎«last»: «!pw:password»
Username: «w»⏎Password: «!pw:password»⏎⏎Please change it after the first login.
Das Passwort für den Router ist «!pw:password»
Kennwort: «!pw:password»
Benutzer: «w», Kennwort: «!pw:password»
Identifiant : «w»⏎Mot de passe : «!pw:password»
Usuario: «w»⏎Contraseña: «!pw:password»
Utente «w», password «!pw:password», valida fino a lunedì
Usuário: «w» Senha: «!pw:password»
Логин: «w», пароль: «!pw:password»
hasło: «!pw:password»
Lösenord: «!pw:password»
şifre: «!pw:password»
用户名：«w»，密码：«!pw:password»
비밀번호: «!pw:password»
SECRET_KEY_BASE=«!value:secret»
DJANGO_SECRET_KEY = "«!value:secret»"
JWT_SECRET=«!value:secret»
"clientSecret": "«!value:client_secret»"
AZURE_CLIENT_SECRET=«!value:client_secret»
oauth:⏎  client_id: «w»-web⏎  client_secret: «!value:client_secret»
x-api-key: «!value:api_key»
{"apikey": "«!value:api_key»", "region": "eu"}
GET /v2/forecast?city=Bremen&appid=⟦api_key|«h32»⟧&units=metric HTTP/1.1
https://maps.example.com/api/js?key=⟦api_key|AIza«u35»⟧&libraries=places
aws_access_key_id = ⟦api_key|AKIA«U14»72⟧⏎aws_secret_access_key = ⟦api_key|«b40»⟧
AWS_SECRET_ACCESS_KEY=⟦api_key|«b40»⟧
export OPENAI_API_KEY=⟦api_key|sk-proj-«a74»T3BlbkFJ«a74»⟧
client = OpenAI(api_key="⟦api_key|sk-«a48»⟧")
ANTHROPIC_API_KEY=⟦api_key|sk-ant-api03-«u93»AA⟧
git clone https://⟦connection_string|ghp_«a36»⟧@github.com/«w»/«w».git
remote: https://oauth2:⟦connection_string|glpat-«a20»⟧@gitlab.com/«w»/«w».git
//registry.npmjs.org/:_authToken=⟦token|npm_«a36»⟧
I accidentally pushed «!key:api_key» to the repo, can you help me rotate it?
key: «!key:api_key»
Bitte den Schlüssel «!key:api_key» sofort sperren
postgres://«w»:⟦connection_string|«a16»⟧@«ip»:5432/«w»
DATABASE_URL=postgresql://«w»:⟦connection_string|«w»«d4»⟧@db.«w».internal:5432/«w»?sslmode=require
MONGO_URI="mongodb+srv://«w»:⟦connection_string|«a20»⟧@cluster0.ab1cd.mongodb.net/«w»?retryWrites=true"
redis://:⟦connection_string|«a24»⟧@«ip»:6379/0
amqp://«w»:⟦connection_string|«w»-«w»«d2»⟧@rabbit:5672/%2f
jdbc:mysql://«ip»:3306/«w»?user=«w»&password=⟦password|«a14»⟧&useSSL=false
jdbc:oracle:thin:«w»/⟦connection_string|«a12»«d2»⟧@//«ip»:1521/ORCL
Data Source=«ip»;Initial Catalog=«w»;User ID=«w»;Pwd=«!pw:password»;
DefaultEndpointsProtocol=https;AccountName=«w»;AccountKey=⟦api_key|«b86»==⟧;EndpointSuffix=core.windows.net
sqlalchemy.exc.OperationalError: could not connect: mysql+pymysql://«w»:⟦connection_string|«a12»«d3»⟧@«ip»/«w»
curl -H "Authorization: Bearer ⟦bearer_token|«u60»⟧" https://api.«w».io/v1/me
Authorization: Bearer «!jwt:jwt»
{"access_token":"«!jwt:jwt»","token_type":"Bearer","expires_in":3600}
Authorization: Basic «!basic:password»
curl -u '«w»:«!pw:password»' -X POST https://ci.«w».dev/job/build
«time» DEBUG http >> "Authorization: Bearer ⟦bearer_token|«a40»⟧[\\r][\\n]"
fetch(url, { headers: { Authorization: 'Bearer ⟦bearer_token|«a32»⟧' } })
Set-Cookie: session=«!jwt:jwt»; Path=/; HttpOnly; Secure
token expired? here is mine: «!jwt:jwt»
«!pem:private_key»
ssl_key: |⏎  «!pem:private_key»
cat ~/.ssh/id_rsa⏎«!pem:private_key»
{"type": "service_account", "project_id": "«w»", "private_key": "⟦private_key|-----BEGIN PRIVATE KEY-----\\n«b64»\\n«b64»\\n«b64»=\\n-----END PRIVATE KEY-----⟧\\n"}
From: «first» «last» <«!mail:email»>⏎To: «!mail:email»⏎Subject: Invoice «d5»
Contact «!mail:email» for access.
{"id": «d4», "email": "«!mail:email»", "role": "viewer"}
Kontakt: «!mail:email»
Mon adresse est «!mail:email».
Mi correo es «!mail:email», gracias
Мой адрес «!mail:email»
mailto:«!mail:email»?subject=Hello
Author: «first» «last» <«!mail:email»>⏎Date: Tue May 6 10:«10-59»:«10-59» 2025 +0200
Signed-off-by: «first» «last» <«!mail:email»>
«time» INFO user.login email=«!mail:email» ip=«ip» ok
«d3»,«first»,«last»,«!mail:email»,active
SELECT * FROM users WHERE email = '«!mail:email»';
INSERT INTO customers VALUES («d4», '«first»', '«!mail:email»', '«!phone:phone»');
https://«w».example.com/unsubscribe?email=«!mail:email»&id=«d6»
postfix/smtp[«d4»]: to=<«!mail:email»>, relay=none, status=deferred
cc «!mail:email»; bcc «!mail:email»
git config user.email "«!mail:email»"
Call me on «!phone:phone» after lunch.
Tel.: «!phone:phone»
Mobil: «!phone:phone»⏎Fax: «!phone:phone»
{"name":"«first»","phone":"«!phone:phone»"}
phone_number=«!phone:phone»
Mein Handy: «!phone:phone»
Téléphone : «!phone:phone»
Teléfono: «!phone:phone»
Telefono cellulare: «!phone:phone»
Телефон: «!phone:phone»
電話：«!phone:phone»
My WhatsApp number is «!phone:phone»
SMS to «!phone:phone» failed: unreachable
tel:+4930⟦phone|«d8»⟧
text me at ⟦phone|+1 (415) 555-«z4»⟧ please
Best regards,⏎«first» «last»⏎Sales, «W» GmbH⏎T ⟦phone|+49 40 «d7»⟧⏎«!mail:email»
IBAN: «!iban:iban»
Bitte überweisen Sie auf «!iban:iban», Empfänger «last»
"iban": "«!iban:iban»", "bic": "DEUTDEFF"
Virement sur le compte «!iban:iban» avant vendredi
payout_account,«!iban:iban»,EUR,«d4».00
my bank account is «!iban:iban»
Card: «!card:credit_card» exp 0«1-9»/28
card_number=«!card:credit_card»&cvv=«d3»
{"pan":"«!card:credit_card»","expiry":"2028-0«1-9»"}
Customer read out the card number «!card:credit_card» on the call.
Kreditkarte «!card:credit_card», gültig bis 1«0-2»/29
Numéro de carte : «!card:credit_card»
tarjeta «!card:credit_card» rechazada
«time» WARN payment declined card=«!card:credit_card» amount=«d3».00
mysqldump -u root -p'«!pw:password»' «w» > dump.sql
PGPASSWORD='«!pw:password»' pg_dump -h «ip» «w»
sshpass -p «!pw:password» scp out.tgz «w»@«ip»:/tmp
echo '«!pw:password»' | sudo -S systemctl restart «w»
echo "«w»:«!pw:password»" | chpasswd
net use Z: \\\\«w»\\share «!pw:password» /user:«w»
wpa_passphrase=«!pw:password»
network={⏎  ssid="«w»"⏎  psk="«!pw:password»"⏎}
WLAN: «w»-guest, Schlüssel: «!pw:password»
kubectl create secret generic «w» --from-literal=password='«!pw:password»'
helm upgrade «w» . --set auth.password=«!pw:password»
apiVersion: v1⏎kind: Secret⏎metadata:⏎  name: «w»⏎data:⏎  password: ⟦password|«b22»==⟧
- name: ROOT_PASSWORD⏎  value: «!pw:password»
variable "db_password" {⏎  default = "«!pw:password»"⏎}
<connectionStrings><add name="«w»" connectionString="Server=«ip»;Database=«w»;Uid=«w»;Pwd=«!pw:password»;" /></connectionStrings>
<bean id="ds"><property name="password" value="«!pw:password»"/></bean>
$db['default']['password'] = '«!pw:password»';
define( 'DB_PASSWORD', '«!pw:password»' );
$cred = ConvertTo-SecureString "«!pw:password»" -AsPlainText -Force
private static final String PASSWORD = "«!pw:password»";
let conn = Client::connect("host=«ip» user=«w» password=«!pw:password»", NoTls)?;
smtp.login("«w»", "«!pw:password»")
ftp> user «w» «!pw:password»⏎230 Login successful.
USER «w»⏎331 Please specify the password.⏎PASS «!pw:password»
login failed for user '«w»' with password '«!pw:password»'
Keystore password: «!pw:password», alias: «w»
ansible_become_password: "«!pw:password»"
enable secret 0 «!pw:password»
rabbitmqctl add_user «w» «!pw:password»
htpasswd -b .htpasswd «w» «!pw:password»
keytool -importkeystore -srckeystore «w».jks -srcstorepass «!pw:password»
openssl pkcs12 -in «w».p12 -passin pass:«!pw:password» -nodes
"Your temporary password is: «!pw:password»"
GitLab root password: «!pw:password» (from /etc/gitlab/initial_root_password)
pypi upload: username __token__ password ⟦password|pypi-AgEIcHlwaS5vcmc«u110»⟧
SLACK_WEBHOOK=⟦api_key|https://hooks.slack.com/services/T«U8»/B«U10»/«a24»⟧
SLACK_BOT_TOKEN=⟦token|xoxb-«d12»-«d13»-«a24»⟧
https://discord.com/api/webhooks/⟦api_key|«d18»/«u68»⟧
https://api.telegram.org/bot⟦api_key|«d10»:AA«u33»⟧/sendMessage
stripe.api_key = "⟦api_key|sk_live_«a24»⟧"
STRIPE_WEBHOOK_SECRET=⟦secret|whsec_«a32»⟧
TWILIO_AUTH_TOKEN=⟦token|«h32»⟧
SENDGRID_API_KEY=⟦api_key|SG.«a22».«a43»⟧
HF_TOKEN=⟦token|hf_«a34»⟧
GEMINI_API_KEY: ⟦api_key|AIza«u35»⟧
terraform login token ⟦token|«a14».atlasv1.«a64»⟧
VAULT_TOKEN=⟦token|hvs.«u92»8⟧
nvapi key ⟦api_key|nvapi-«u62»a7⟧
PINECONE_API_KEY=⟦api_key|pcsk_«a6»_«a63»⟧
export TAVILY_API_KEY=⟦api_key|tvly-dev-«a32»⟧
perplexity: ⟦api_key|pplx-«a48»⟧
LANGSMITH_API_KEY=⟦api_key|lsv2_pt_«h32»_«h10»⟧
supabase access token: ⟦token|sbp_«h40»⟧
RESEND_API_KEY=⟦api_key|re_«a8»_«a24»⟧
NEW_RELIC_LICENSE_KEY=⟦api_key|«h36»NRAL⟧
DD_API_KEY=⟦api_key|«h32»⟧
oc login --token=⟦token|sha256~«u43»⟧ --server=https://api.«w».io:6443
fly deploy --access-token ⟦token|fo1_«u43»⟧
SNYK_TOKEN=⟦token|«uuid»⟧
HEROKU_API_KEY=⟦api_key|«uuid»⟧
sonar.login=⟦token|squ_«h40»⟧
airtable ⟦api_key|pat«a14».«h64»⟧
NOTION_TOKEN=⟦token|ntn_«z11»«a35»⟧
hubspot: ⟦api_key|pat-na1-«uuid»⟧
CLOUDFLARE_API_TOKEN=⟦token|«a38»_«z1»⟧
PULUMI_ACCESS_TOKEN=⟦token|pul-«h40»⟧
planetscale ⟦api_key|pscale_tkn_«a43»⟧
age key: ⟦private_key|AGE-SECRET-KEY-1QPZRY9X8GF2TVDW0S3JN54KHCE6MUA7LQPZRY9X8GF2TVDW0S3JN54KHCE⟧
"auth": "⟦password|«b38»==⟧" in ~/.docker/config.json, "auths": {"registry.«w».io": …
WireGuard: [Interface]⏎PrivateKey = ⟦private_key|«b43»=⟧⏎Address = 10.0.0.«1-99»/32
<img src="https://storage.example.com/«w».png?sv=2023-01-03&se=2030-01-01&sr=b&sp=r&sig=⟦token|«a40»%2B«a2»%3D⟧">
_csrf ok, session cookie: sessionid=⟦token|«l8»«z4»«l20»⟧
"""

NEGATIVES = """
## hashes and ids
commit «h40»⏎Merge: «h7» «h7»
index «h7»..«h7» 100644⏎--- a/src/«w».py⏎+++ b/src/«w».py
sha256:«h64»  «w»-«1-9».«0-9».tar.gz
«h32»  ./dist/«w».zip
Digest: sha256:«h64»⏎Status: Image is up to date for «w»:«1-9».«0-9»
image: ghcr.io/«w»/«w»@sha256:«h64»
"integrity": "sha512-«b86»=="
"resolved": "https://registry.npmjs.org/«w»/-/«w»-«1-9».«0-9».«0-9».tgz"
    --hash=sha256:«h64» \\⏎    --hash=sha256:«h64»
request_id=«uuid» trace_id=«h32» span_id=«h16»
traceparent: 00-«h32»-«h16»-01
ETag: W/"«h32»"
{"_id": {"$oid": "«h24»"}, "rev": "3-«h32»"}
<link rel="stylesheet" href="/assets/app.«h8».css" integrity="sha384-«b64»">
X-Amz-Request-Id: «H16»⏎x-amz-id-2: «b76»
arn:aws:iam::«z12»:role/«w»-deploy
projects/«w»-«d6»/locations/eu/keyRings/«w»/cryptoKeys/«w»
subscription «uuid», resource group «w», tenant «uuid»
tx 0x«h64» confirmed in block «d8»
contract address 0x«h40»
torrent magnet:?xt=urn:btih:«h40»
SHA256 fingerprint: SHA256:«b43»
Certificate serial: «H2»:«H2»:«H2»:«H2»:«H2»:«H2»
MD5 («w».iso) = «h32»
go.sum: github.com/«w»/«w» v1.«0-9».«0-9» h1:«b43»=
flake.lock: "narHash": "sha256-«b43»=", "rev": "«h40»"
checksum = "«h64»"
cache key: node-modules-linux-«h64»
uses: actions/checkout@«h40» # v4.1.1
bisect: bad «h40», good «h40»
Build «h8» deployed as dpl_«a24» to preview
docker ps: «h12»   «w»:latest   "python main.py"   Up 3 hours
nonce-«b22»== in script-src
Object name: cus_«a14», sub_«a14», pi_«a24»
trace: ULID 01H«H23», KSUID order only
video https://youtu.be/«u11» at 3:«10-59»
design https://www.figma.com/file/«a22»/«w»
https://docs.example.com/document/d/«u44»/edit
slack message: https://«w».slack.com/archives/C0«H8»/p17«z14»
blob «h40» «d5»⏎tree «h40»
## placeholders and examples
OPENAI_API_KEY=<your-key>
API_KEY=your_api_key_here
password: changeme   # placeholder, replaced at deploy
export GITHUB_TOKEN=ghp_xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx
api_key = "YOUR_API_KEY"
Authorization: Bearer <token>
Authorization: Bearer $TOKEN
Authorization: Bearer {{ access_token }}
curl -H "X-Api-Key: ${API_KEY}" https://api.example.com/v1/items
postgres://user:password@localhost:5432/db
postgresql://<user>:<password>@<host>/<db>
mongodb://${MONGO_USER}:${MONGO_PASS}@«w»:27017
https://$USER:$TOKEN@github.com/«w»/«w».git
redis://:{password}@{host}:{port}/0
AWS_ACCESS_KEY_ID=AKIAIOSFODNN7EXAMPLE
aws_secret_access_key = wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY
sk-xxxxxxxxxxxxxxxxxxxxxxxx
The key starts with sk- and has 51 characters.
Keys look like `ghp_…`, `gho_…` or `github_pat_…`.
password=********
Password: ••••••••
"password": "[REDACTED]", "token": "[MASKED]"
Card ending in «z4», **** **** **** «z4»
token=*** (hidden)
key: sk-...«a4»
Bearer eyJ...
"apiKey": "",⏎"secret": null
secret: "{{ vault_secret }}"
password: ENC[AES256_GCM,data:…,type:str]
-----BEGIN PRIVATE KEY-----⏎...⏎-----END PRIVATE KEY-----
PASSWORD=${DB_PASSWORD:?must be set}
client_secret: ${env:CLIENT_SECRET}
name@domain.tld
Enter your e-mail as name@…, without spaces.
Write to <first>.<last>@<company>.com
SLACK_WEBHOOK=https://hooks.slack.com/services/T00000000/B00000000/XXXXXXXXXXXXXXXXXXXXXXXX
IBAN: DE__ ____ ____ ____ ____ __
Phone: (___) ___-____
phone format: +49 ### #######
--password=<PASSWORD> --user=<USER>
Passwort: <hier eintragen>
contraseña: (vacía)
Mot de passe : non défini
password: TBD
token = "dummy"
## code that reads or names secrets
api_key = os.environ["OPENAI_API_KEY"]
const token = process.env.GITHUB_TOKEN;
password := os.Getenv("DB_PASSWORD")
String secret = System.getenv("CLIENT_SECRET");
let key = std::env::var("API_KEY").expect("API_KEY not set");
$password = getenv('DB_PASSWORD') ?: null;
password = getpass.getpass("Password: ")
token = secrets.token_urlsafe(32)
secret = vault.read("secret/data/«w»")["data"]["password"]
SECRET_KEY = config("SECRET_KEY")
password: process.env.DB_PASS || undefined,
token: ${{ secrets.GITHUB_TOKEN }}
env:⏎  NPM_TOKEN: ${{ secrets.NPM_TOKEN }}
valueFrom:⏎  secretKeyRef:⏎    name: «w»-db⏎    key: password
password = var.db_password
secret_arn = aws_secretsmanager_secret.«w».arn
def check_password(password: str, hashed: bytes) -> bool:
if (password.length < 12) throw new Error("password too short");
public record LoginRequest(string UserName, string Password);
private readonly tokenService: TokenService;
struct Credentials { password: String, token: Option<String> }
token = tokenizer.encode(text)
tokens = nltk.word_tokenize(sentence)
pass_rate = passed / total
key = lambda item: item.score
sorted(rows, key=operator.itemgetter("created_at"))
primary_key=True, unique=True, index=True
foreign_key = "users.id"
<input type="password" name="password" autocomplete="current-password">
<label for="token">Token</label>
form.password.data = None
user.password = hash_password(raw)
self.assertNotIn("password", response.json())
expect(screen.getByLabelText('Password')).toBeVisible();
logger.info("token refreshed for user %s", user.id)
except InvalidPassword: raise AuthError("wrong password") from None
@RequestParam String token, @RequestHeader("X-Api-Key") String apiKey
csrf_token = request.form.get("csrf_token")
localStorage.removeItem("access_token");
public const string SecretName = "ConnectionStrings--Default";
await page.fill('#password', password)
password=password, token=token, secret=secret
return jwt.encode(payload, settings.secret, algorithm="HS256")
type Token = { kind: "ident" | "number"; value: string };
case TOKEN_STRING: return parse_string(p, token);
passwordEncoder.matches(raw, stored)
key_file = Path.home() / ".ssh" / "id_ed25519"
PasswordAuthentication no⏎PubkeyAuthentication yes
ssl_certificate_key /etc/nginx/ssl/«w».key;
IdentityFile ~/.ssh/«w»_ed25519
pg_hba: host all all «ip»/32 scram-sha-256
password_file: /run/secrets/db_password
--token-file /var/run/secrets/token
## prose and policy
Passwords must have at least 12 characters, one digit and one symbol.
Your password will expire in «2-14» days.
I forgot my password, can you reset it?
The password is wrong again.
Password reset requested for account «d6».
Is the API key rotated every 90 days?
Never share your private key with anybody.
The secret is to keep the dough cold.
We use short-lived tokens instead of a password.
The password is stored in 1Password, ask «first».
My password is not working since Tuesday.
password is required
Password: minimum 8 characters
Token: see the vault
secret: none
API key: required, string
The token is valid for «10-90» minutes.
Das Passwort ist abgelaufen.
Das Passwort muss mindestens 10 Zeichen haben.
Passwort vergessen?
Le mot de passe est obligatoire.
Le mot de passe doit contenir un chiffre.
La contraseña es incorrecta.
La contraseña debe tener ocho caracteres.
La password è obbligatoria.
A senha é obrigatória.
Пароль должен содержать не менее 8 символов.
密码不能为空
パスワードを入力してください
비밀번호를 입력하세요
Ik ben mijn wachtwoord vergeten.
Key takeaways: revenue up «1-30»%, churn down.
Pass the salt, please. Boarding pass at gate B«1-30».
The keyword is banana, the key is C minor.
Login failed: bad credentials
Agreed: password manager for all by «1-28» May
He passed with 87%, pass mark 60.
What is a bearer token? It is a token that gives access to whoever holds it.
authentication token from the mobile app was rejected with 403 Forbidden
Bearer of this letter is entitled to enter.
## numbers
Order #«d3»-«d7»-«d7» shipped
ISBN 978-3-16-14«z4»-0
ISBN-10: 3-540-«z5»-X
Tracking number 1Z«H3»«z3»03«z8»
DHL JJD«z18»
UPS delivery, parcel 00340434«z12»
Invoice 2025-«z6», customer no. «d7»
created_at: 17«z8», updated_at: 17«z11»
2025-0«1-9»-1«0-9» 1«0-9»:«10-59»:«10-59»,«d3»
20250«1-9»1«0-9»T1«0-9»«10-59»«10-59»Z
lat 53.«z6», lon 8.«z6»
53°04'«10-59».2"N 8°48'«10-59».5"E
version 1.«0-9».«0-9»-beta.«1-9»+build.«d5»
Python 3.11.«1-9», pip 24.«0-3», numpy 1.26.«0-4»
EAN 40«z11»
UPC 0«z11»
Product key figures: «d4» units, «d4» sold, «d4» left
part no. «d4»-«d4»-«d4»-«d2»
ASIN B0«H8»
DOI 10.1«z3»/s«z5»-0«z2»-«z5»-«d1»
arXiv:2«z3».«z5»
RFC 7519, section 4.1.«1-7»
ticket INC00«z5», change CHG00«z5»
Steuersatz 19 %, Betrag «d4»,«z2» EUR
VIN WVWZZZ1JZXW«z6»
account ref «badcard»
batch «badcard» done
checksum invalid for «badiban»
Lot «U2»«z2» «z4» «z4» «z2»
matrix: 1 0 0 1, 0 1 1 0, 1 1 1 1, 0 0 0 1
sizes: 1024 2048 4096 8192 16384
«10-99».«100-999».«100-999» Einwohner
population 1,«z3»,«z3»; area «d3».«z2» km2
pid «d5» tid «d5» rss «d7» vsz «d8»
ports 8080, 8443, 9090-9099
10.«0-9».«0-99».«1-99»:«1000-9999» -> «ip»:443 len «d4»
MAC 00:1A:«H2»:«H2»:«H2»:«H2»
fe80::«h4»:«h4»:«h4»:«h4»%eth0
IMEI check skipped, 15 digits expected
PNR code «U6», flight LH«d4», seat «1-40»C
score 3-2, 6-4 7-5 6-3
2019-2024, pp. «100-199»-«200-299», vol. «1-40»(«1-12»)
0x«H8» 0x«H8» 0x«H8» 0x«H8»
1e-0«1-9» 3.14159265358979 2.718281828459045
step «d4»/«d5» loss 0.«z4» lr 3e-05 tok/s «d5»
Room 415-555, floor 4, building 12
duration 00:03:«10-59».«z3» frames «d5»
EUR/USD 1.0«z3» GBP/USD 1.2«z3»
crontab: 15 3 * * 1-5 /usr/local/bin/backup
0.0.0.0/0, 127.0.0.1, 192.168.1.«1-254», 255.255.255.0
## at signs and addresses
@«first» can you review this with @«w»?
git@github.com:«w»/«w».git
ssh://git@«w».example.com:2222/«w»/«w».git
npm install @«w»/core@«1-9».«0-9».«0-9» @types/node@20
pnpm dlx «w»@latest
scp build.tgz deploy@«ip»:/srv/«w»
root@«w»:~# apt update
«w»@«w»-pro ~ % ls
@media (min-width: 600px) { .x { color: red } }
@dataclass(frozen=True)
@Override public String toString() { return name; }
user@host
import x from '@/components/«w»'
icon@2x.png
meet me @ 7pm
SELECT @@version, @rownum := @rownum + 1
https://medium.com/@«w»/how-we-scaled-«h12»
https://unpkg.com/«w»@«1-9».«0-9».0/dist/index.min.js
matrix: @«w»:«w».org, room !«a18»:«w».org
mastodon @«w»@«w».social
docker.io/library/«w»:3.«1-20»@sha256:«h64»
Message-ID header missing
## logs
sshd[«d5»]: Failed password for invalid user «w» from «ip» port «d5» ssh2
sshd[«d5»]: Accepted publickey for «w» from «ip» port «d5» ssh2: ED25519 SHA256:«b43»
pam_unix(sshd:auth): authentication failure; logname= uid=0 euid=0 tty=ssh ruser= rhost=«ip»
«time» INFO auth: token issued sub=«uuid» ttl=3600
«time» WARN auth: password check failed user_id=«d5» attempts=«2-9»
FATAL: password authentication failed for user "«w»"
Access denied for user 'root'@'localhost' (using password: YES)
«ip» - - [1«0-9»/May/2025:10:«10-59»:«10-59» +0000] "POST /oauth/token HTTP/1.1" 200 «d4»
kernel: [«d5».«z6»] usb 1-1: New USB device, idVendor=«h4», idProduct=«h4», SerialNumber=3
Error 401: invalid_client, the OAuth client was not found.
E AssertionError: assert 'password' in {'username': '«w»'}
  at Object.<anonymous> (src/auth/token.test.ts:«10-99»:«1-9»)
  File "/usr/lib/python3.11/site-packages/«w»/auth/password.py", line «d3», in verify
java.lang.IllegalStateException: No API key configured at com.«w».auth.KeyStore.load(KeyStore.java:«d3»)
thread 'main' panicked at src/token.rs:«d3»:«1-99»: called `Option::unwrap()` on a `None` value
systemd[1]: Starting Rotate secrets for «w».service...
vault: core: vault is sealed, unseal key shares 3, threshold 2
cert-manager: Certificate «w»-tls issued, secret «w»-tls updated
[webpack] asset main.«h20».js 1.«0-9» MiB [emitted] [immutable]
level=info msg="key pair loaded" file=/etc/ssl/«w».pem bits=2048
pytest: 214 passed, 3 skipped, 1 xfailed in «10-59».«z2»s
GC pause 12.«z1» ms, tokens in 1«z3», tokens out «d3», cost $0.0«z3»
model=gpt-4o prompt_tokens=«d4» completion_tokens=«d3» max_tokens=4096
## formats, help, schemas, encodings
  -p, --password string   Password or personal access token (PAT)
  --api-key TEXT  API key for the service.  [env var: API_KEY; required]
usage: «w» [-h] [--token TOKEN] [--secret-file PATH] url
{"type": "object", "required": ["password"], "properties": {"password": {"type": "string", "minLength": 12}}}
components:⏎  securitySchemes:⏎    bearerAuth:⏎      type: http⏎      scheme: bearer⏎      bearerFormat: JWT
"password.reset.title": "Reset your password", "token.expired": "Your link has expired"
msgid "Password"⏎msgstr "Passwort"
<string name="hint_password">Enter password</string>
CREATE TABLE users (id serial primary key, email text unique, password_hash text, api_token text);
message Login { string user = 1; string password = 2; string token = 3; }
| Field | Type | Description |⏎| --- | --- | --- |⏎| api_key | string | The key of the account |
data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAA«b160»
<path d="M12.«z2» 3.4c-1.«z2» 0-2.«z2».«z2»-3 2.«z2»l-.«z2» 4.«z2»z"/>
!function(e,t){"use strict";var n=e.token,r=t.key;n&&r&&(e.pass=!0)}(a,b);
var a={key:13,pass:!1,token:null},s=function(e){return e.key===a.key?1:0};
-----BEGIN CERTIFICATE-----⏎MIID«b60»⏎«b64»⏎«b30»==⏎-----END CERTIFICATE-----
-----BEGIN PUBLIC KEY-----⏎MIIB«b60»⏎«b64»⏎-----END PUBLIC KEY-----
ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI«b43» «w»-laptop
//# sourceMappingURL=data:application/json;base64,eyJ2ZXJzaW9uIjozLCJzb3VyY2VzIjpbX
sequence >«w»_1 MKTAYIAKQRQISFVKSHFSRQLEERLGLIEVQAPILSRVGDGTQDNLSGAEKAVQVKVK
%PDF-1.7 «h32» obj stream endstream
color: #«h6»; background: #«h6»80;
regex: /^[A-Z0-9._%+-]+@[A-Z0-9.-]+\\.[A-Z]{2,}$/i
pattern = r"sk-[A-Za-z0-9]{48}"
gitleaks: id = "github-pat", regex = '''ghp_[0-9a-zA-Z]{36}''', keywords = ["ghp_"]
^(?:4[0-9]{12}(?:[0-9]{3})?|5[1-5][0-9]{14})$
"""
