"""The part `sixth` of `privacy_logs`: other places than in `fifth`, written after the repairs for it, slots as there."""

# ruff: noqa: E501  a template stays in one line

from __future__ import annotations

from collections.abc import Iterator

from privacy_fifth import expanded
from privacy_logs import Make, under_headings


def positives(m: Make) -> Iterator[str]:
    """Yield one text of each setting."""
    return (expanded(m, line) for line in POSITIVES.strip().splitlines())


def negatives(m: Make) -> Iterator[tuple[str, str]]:
    """Yield (what, text) of texts that hold nothing sensitive and look as if."""
    return ((what, expanded(m, line)) for what, line in under_headings(NEGATIVES))


POSITIVES = """
Onboarding: your account «w»@«w» is ready. Password: «!pw:password» (valid for 24 h).
[mysqld_client]⏎user="«w»"⏎password="«!pw:password»"⏎port=3306
<bean id="ds"><property name="username" value="«w»"/><property name="password" value="«!pw:password»"/></bean>
spring:⏎  datasource:⏎    username: «w»⏎    password: «!pw:password»⏎    hikari: {}
DATABASE_PASSWORD=«!pw:password» npm run migrate
await page.fill('#password', '«!pw:password»');
cy.get('[name=password]').type('«!pw:password»')
PUT /api/users/«d4» {"name":"«first»","password":"«!pw:password»"}
Received form data: {'username': '«w»', 'password': '«!pw:password»', 'csrf': 'on'}
$env:DB_PASSWORD = "«!pw:password»"
SET PASSWORD FOR '«w»'@'localhost' = '«!pw:password»';
psql "host=«ip» user=«w» password=«!pw:password» dbname=«w»"
echo "«!pw:password»" | sudo -S apt update # sudo password: «!pw:password»
Use the password «!pw:password» for the archive.
I forgot to mention: the password for the zip is «!pw:password».
Sure! The VPN password is "«!pw:password»" and the user is «w».
user said: pw=«!pw:password» works on staging
Router admin password: «!pw:password»⏎SSID: «w»
wpa_passphrase=«!pw:password»
"adminPassword": {"value": "«!pw:password»"},
vars:⏎  mysql_root_password: "«!pw:password»"
keytool -storepass «!pw:password» -alias «w»
openssl pkcs12 -in a.p12 -passin pass:«!pw:password»
Das neue Passwort für «w» ist «!pw:password»
voici le mot de passe : «!pw:password»
Contraseña: «!pw:password»
Hasło: «!pw:password»
пароль: «!pw:password»
パスワード：«!pw:password»
password => '«!pw:password»',
DB_PASS = "«!pw:password»"  # noqa
val password = "«!pw:password»"
private string _password = "«!pw:password»";
login «w» / «!pw:password» - password must be changed
Old password: «!pw:password»
memory: the user's email password is «!pw:password»
{"role":"user","content":"my github password is «!pw:password» can you log in?"}
--password=«!pw:password» --host «ip»
The agent stored «!key:api_key» in plain text.
key = "«!key:api_key»"
OPENAI_KEY: «!key:api_key»
gh auth login --with-token <<< «!key:api_key»
Error: invalid credentials «!key:api_key» (status 401)
pip config set global.key «!key:api_key»
{"type":"env","name":"X","value":"«!key:api_key»"}
-----> Setting config var: A=«!key:api_key»
| service | key |⏎| «w» | «!key:api_key» |
Is «!key:api_key» still valid?
-  api: «!key:api_key»
https://api.«w».io/v1?key=«!key:api_key»&units=metric
apikey=«!value:api_key»
X-API-KEY: «!value:api_key»
Your API key: «!value:api_key»
"api_key" => "«!value:api_key»"
api-key «!value:api_key»
SERVICE_API_KEY='«!value:api_key»'
set the api key to «!value:api_key»
headers: { Authorization: 'Bearer «!value:bearer_token»' }
-H "authorization: Bearer «!value:bearer_token»"
Authorization: Bearer «!value:bearer_token»⏎Host: «w».io
session_token = "«!value:token»"
"refreshToken" : "«!value:token»"
csrf_token=«!value:token»
bot token: «!value:token»
access_token: «!value:token»⏎scope: all
ACCESS_TOKEN="«!value:token»"
CLIENT_SECRET=«!value:client_secret»
oauth: {clientId: '«w»', clientSecret: '«!value:client_secret»'}
app.secret=«!value:secret»
"secret": "«!value:secret»"
SECRET_KEY: «!value:secret»
shared secret is «!value:secret»
"AWS_SECRET_ACCESS_KEY": "«!value:api_key»"
Authorization: Basic «!basic:password»
'Authorization': 'Basic «!basic:password»'
the jwt is «!jwt:jwt» ok?
"id_token":"«!jwt:jwt»"
> Authorization: Bearer «!jwt:jwt»
«!pem:private_key»
ssl_key: |⏎«!pem:private_key»
Reported-by: «first» «last» <«!mail:email»>
"assignee": {"emailAddress": "«!mail:email»"}
write to «!mail:email»!
user=«!mail:email» action=login
«!mail:email» wrote:
SELECT * FROM users WHERE email='«!mail:email»'
Mail: «!mail:email», Web: www.«w».com
Ping «!mail:email» if it breaks
You can call «first» at «!phone:phone».
Tel.: «!phone:phone»
"phoneNumber": "«!phone:phone»",
mobile: «!phone:phone»
Phone «!phone:phone», ask for «first»
my phone number is «!phone:phone»
Customer phone: «!phone:phone»
Handynummer: «!phone:phone»
Tél : «!phone:phone»
call «!phone:phone» to confirm
phone='«!phone:phone»' WHERE id=«d4»
Telefone: «!phone:phone»
Ask «first» («!phone:phone») about the phone line
IBAN: «!iban:iban»
"account": {"iban": "«!iban:iban»"}
transfer to «!iban:iban», thanks
refund to IBAN «!iban:iban»
pay with «!card:credit_card» please
"cardNumber": "«!card:credit_card»"
credit card: «!card:credit_card»
Card no. «!card:credit_card», holder «last»
charge «!card:credit_card» failed, card expired
"""

NEGATIVES = """
## agent
I'll start by reading src/auth/token.py to understand how the password is checked before it is hashed.
Plan: 1. find where `secret` is read 2. replace with SecretStr 3. run tests 4. pass the token explicitly
{"tool":"grep","args":{"pattern":"password\\\\s*=","path":"src/"}}
{"tool":"read_file","path":"config/secrets.example.yml","lines":"1-«10-99»"}
Observation: 3 matches⏎src/login.py:«1-99»: password = form.password.data⏎src/login.py:«1-99»: if not user.check_password(password):
The user asked for password strength: I will use zxcvbn, score «1-4» of 4. Token usage so far: «d5» in, «d4» out.
thinking: secret is probably None here because key missing in env; token would then be ""
Result: password validation passes, token refresh fails with 401 after «d4» seconds.
{"usage":{"input_tokens":«d5»,"cache_read_input_tokens":«d6»,"output_tokens":«d3»},"stop_reason":"end_turn","id":"msg_01«a22»"}
{"id":"toolu_01«a22»","name":"reset_password","input":{"user_id":«d6»,"notify":true}}
{"id":"call_«a24»","type":"function","function":{"name":"get_token","arguments":"{}"}}
The password prompt appears twice; expected once. I pass stdin through a pipe so that no password is echoed.
Memory: user prefers passkeys over passwords; token expiry 15 min; secret names in vault path kv/«w»
Done. Password: changed nothing. Token: kept. Secret: moved to vault. Key files: «1-9».
Do you want me to rotate the secret, or to keep the token until Friday «10-28» June?
max_tokens=«d4», temperature=0.«1-9», top_p=0.«10-99», stop=["</token>"], api_key=api_key
## pytest
    def test_login_rejects_wrong_password(client):⏎>       assert client.post("/login", data={"password": ""}).status_code == 401⏎E       assert 500 == 401
E   AssertionError: assert 'token' in {'error': 'missing secret'}
FAILED tests/test_password.py::test_hash_is_slow[argon2id-«1-9»] - assert 0.«z2» > 0.«z2»
FAILED tests/test_token.py::TestToken::test_expired - jwt.exceptions.ExpiredSignatureError: Signature has expired
src/auth/password.py      «d3»      «1-99»    «10-99»%   «1-99»-«100-199», «d3»-«d3»
password = <SecretStr('**********')>, token = None, secret = <MagicMock name='secret' id='«d15»'>
self = <tests.test_token.TestToken object at 0x7f«h10»>, token = <Token: «w»>
1 failed, «d3» passed, «1-99» skipped, «1-9» warnings in «d2».«z2»s (0:0«1-9»:«10-59»)
    ✓ hides the password by default («1-99» ms)⏎    ✕ shows token expiry («d3» ms)
Expected: "password is required"⏎Received: "token is required"
  - Expected  «1-9»⏎  + Received  «1-9»⏎    Object { -   "password": "required", +   "password": "optional", }
go: github.com/«w»/secret-store@v«1-9».«0-99».«0-9»: reading go.mod: unexpected status
--- FAIL: TestTokenBucket (0.«z2»s)⏎    bucket_test.go:«1-99»: tokens: got «1-99», want «1-99»
## logs
«time» WARN  [http-nio-8080-exec-«1-20»] c.«w».auth.PasswordService : password mismatch for user id «d6», attempt «1-5» of 5
«time» level=info msg="token refreshed" user=«d6» ttl=3600s key_id=«h8» took=«1-99»ms
Jun «10-28» 1«0-9»:«10-59»:«10-59» «w» sshd[«d5»]: Failed password for invalid user oracle from «ip» port «d5» ssh2
Jun «10-28» 1«0-9»:«10-59»:«10-59» «w» sshd[«d5»]: Accepted publickey for deploy from «ip» port «d5» ssh2: ED25519 SHA256:«b43»
Jun «10-28» 1«0-9»:«10-59»:«10-59» «w» kernel: [«d6».«z6»] usb 1-«1-9»: New USB device found, idVendor=«h4», idProduct=«h4»
«time» ERROR auth: secret not found: name=«w»-db namespace=prod reason=NotFound
«time» INFO  password reset requested for account «d8», mail queued as job «d9»
[«d5»] LOG:  checkpoint complete: wrote «d4» buffers (1.«0-9»%); lsn=«H1»/«H8»
I0«d3» 1«0-9»:«10-59»:«10-59».«z6»       1 token_controller.go:«d3»] token controller synced
type=USER_AUTH msg=audit(«d10».«z3»:«d4»): pid=«d4» uid=0 auid=«d10» ses=«1-99» msg='op=PAM:authentication'
oauth2-proxy: «ip»:«d5» - «uuid» - - GET "/oauth2/auth" 401 Token: none
INFO:root:token count «d4», password hashes upgraded: «d3», secrets scanned: «d4»
nginx: [emerg] cannot load certificate key "/etc/ssl/private/«w».key": PEM_read_bio_PrivateKey() failed
vault: Success! Data written to: secret/«w»/db
Starting «w» with args: --password-file=/run/secrets/pw --token-ttl=15m --secret-backend=aws
redis: «d5»:M «10-28» Jun 2024 1«0-9»:«10-59»:«10-59».«z3» # Warning: no password set, protected-mode no
consumer lag: topic=tokens partition=«1-9» offset=«d9» lag=«d5» key=null
GC: pause «1-99».«z3»ms, heap «d9»->«d8»(«d9»), tokens freed: «d6»
## yaml
on: workflow_call⏎secrets:⏎  token:⏎    required: true⏎    description: token used for release
jobs:⏎  build:⏎    env:⏎      PASSWORD: ${{ secrets.PASSWORD }}⏎      TOKEN: ${{ github.token }}⏎    steps: []
password:⏎  label: Password⏎  help: At least 10 characters⏎token:⏎  label: Token
services:⏎  db:⏎    environment:⏎      POSTGRES_PASSWORD_FILE: /run/secrets/db-password⏎secrets:⏎  db-password:⏎    external: true
auth:⏎  existingSecret: ""⏎  passwordKey: password⏎  tokenKey: token⏎  rotate: false
rules:⏎- apiGroups: [""]⏎  resources: ["secrets", "pods"]⏎  verbs: ["get", "list"]
spec:⏎  secretStoreRef: {name: vault, kind: ClusterSecretStore}⏎  data: [{secretKey: password, remoteRef: {key: «w»/db}}]
en:⏎  password: Password⏎  forgot_password: Forgot your password?⏎  token_invalid: The token is invalid
de:⏎  password: Kennwort⏎  reset_password: Kennwort zurücksetzen⏎  token: Einmalcode
fr:⏎  password: "Mot de passe"⏎  token: "Jeton"⏎  secret: "Clé secrète"
password_policy: {min: 12, upper: 1, digits: 1}⏎token: {ttl: 3600, alg: RS256}⏎secret: {engine: kv, version: 2}
- name: set password⏎  user: name=«w» password={{ vault_password | password_hash('sha512') }}⏎  no_log: true
key: ${{ runner.os }}-pip-${{ hashFiles('**/requirements.txt') }}
- uses: actions/cache@v4⏎  with: {path: ~/.npm, key: npm-«h40»}
rev: v«1-9».«0-99».«0-9»⏎hooks: [{id: detect-secrets, args: ['--baseline', '.secrets.baseline']}]
"hashed_secret": "«h40»", "is_verified": false, "line_number": «1-99», "type": "Secret Keyword"
## code
def authenticate(username: str, password: str, *, token: str = "", secret: bytes = b"") -> bool: ...
const { password, token = null, ...rest } = req.body;
fetch(url, { headers: { Authorization: `Bearer ${token}`, 'X-Api-Key': apiKey } })
if (token === undefined) return next(new Error('token missing'));
$this->password = Hash::make($request->password); $secret = config('app.secret');
user.password = bcrypt.hashpw(password.encode(), bcrypt.gensalt(12))
@Value("${app.password}") private String password; @NotBlank String token;
let secret = Secret::new(env::var("APP_SECRET")?); let password = rpassword::prompt_password("Password: ")?;
token, err := jwt.Parse(raw, func(t *jwt.Token) (any, error) { return secret, nil })
tok = tokenizer(text, return_tensors="pt"); pad_token_id=tokenizer.eos_token_id
struct passwd *pw = getpwuid(getuid()); char *pass = crypt(key, salt); token = strtok_r(line, ",", &save);
#define TOKEN_LPAREN 0x28⏎#define KEY_ENTER 0x0D⏎#define PASS 0⏎#define SECRET_LEN 32
for key, value in params.items(): token = quote(key, safe=""); secret += value
password_hash: Mapped[str] = mapped_column(String(128)); token: Mapped[str | None]
schema = Joi.object({ password: Joi.string().pattern(/^[a-zA-Z0-9]{3,30}$/), token: [Joi.string(), Joi.number()] })
re.compile(r"(?i)(password|token|secret)\\s*[:=]\\s*\\S+")
password = "".join(secrets.choice(alphabet) for i in range(20))
<TextField type={showPassword ? 'text' : 'password'} label="Password" error={!!errors.password} />
<form:password path="password" cssClass="input"/> <td class="token">${token.name}</td>
input[type=password] { width: 100%; } .pass { color: green } .secret::after { content: '*'; }
type Props = { password: string; onToken: (token: Token) => void; secret?: boolean };
export PASSWORD=$(pass show «w»/db); TOKEN=`cat token.txt`; read -s -p "Password: " pw
if [ -z "$PASSWORD" ]; then echo "password is empty"; exit 1; fi
kubectl get secret «w» -o jsonpath='{.data.password}' | base64 -d
openssl rand -hex 32 > secret.key; chmod 600 secret.key; gpg --passphrase-fd 0
password: faker.internet.password(), token: faker.string.uuid(), secret: () => secret
key = KeyCode.ENTER; secret = SECRET_NAME; token = TOKEN_RE.match(line).group("token")
var token = await _tokenService.CreateAsync(user); options.Password.RequiredLength = 8;
class Token(NamedTuple): kind: str; value: str; line: int = 0; pass
expect(screen.getByLabelText('Password')).toHaveAttribute('type', 'password');
password.addEventListener('input', () => { token = null; });
sessionStorage.removeItem('token'); localStorage.setItem('key', JSON.stringify(value));
## docs
### `token` (required)⏎The personal access token. Type: string. Default: none.
### Password⏎⏎Passwords are stored as Argon2id hashes; the parameters are m=65536, t=3, p=4.
To reset a password: open Settings → Security → Password, then click Reset.
The secret must be base64 encoded. The token must be sent in the header. The password must not be empty.
> **Note** Never commit a password, token or secret. Use `git secret` or `sops`.
Step «1-9»: Password. Step «1-9»: Token. Choose "Next" after each; press Tab to move between fields.
Supported: password, token, certificate. Not supported: Kerberos, secret questions, key cards.
curl -X POST https://api.example.com/login -d '{"username": "USERNAME", "password": "PASSWORD"}'
mysql -u root -p < dump.sql ; mysql -uroot -p«w»_db_name_here
mongodb://<username>:<password>@«w».example.com:27017/?authSource=admin
redis://:$REDIS_PASSWORD@redis:6379/0 and amqp://${USER}:${PASS}@mq/
The password flag is deprecated; the token flag is preferred; the secret flag is ignored since v«1-9».«0-9».
FAQ: Is the password stored? No. Is my token shared? Never. Where is the secret? In the keychain.
Q: What is a token? A: A token is about four characters of English, so «1-9»00 tokens are about «d2» words.
Rate limits: «d5» tokens per minute, «d3» requests per minute, key: per organisation.
Password managers compared: free tier, «1-9»,99 €/month, passkey support since 20«20-24».
API keys: create one under Account → API keys. API key: shown once. API key name: anything.
## tables
| password | varchar(255) | NO | | NULL | |⏎| token | char(36) | YES | UNI | NULL | |
| Test | Result |⏎|---|---|⏎| password reset | pass |⏎| token refresh | fail |
Password | Token | Secret⏎yes | no | partial
field,type,required⏎password,string,true⏎token,string,false⏎secret,binary,false
model,tokens,price⏎«w»-«1-9»,«d6»,0.«z4»⏎«w»-«1-9»,«d7»,0.«z4»
«d4» «d4» «d4» «d4»⏎«d4» «d4» «d4» «d4»
«d3» «d3» «d4»⏎«d3» «d3» «d4»⏎«d3» «d3» «d4»
0«d2» «d3» «d4» 0«d2» «d3» «d4»
id | started | rows⏎«d8» | 2024-0«1-9»-«10-28» | «d7»⏎«d8» | 2024-0«1-9»-«10-28» | «d7»
order «d3»-«d3»-«d4» shipped; part no. «d3»-«d3»-«d4»; SKU «d4»-«d4»
## numbers
Article «d3».«d3».«d3», drawing «d2»-«d4»-«d3», lot «d8», pallet 00«d16», weight «d3».«z1» kg
Bestellnummer «d10», Kundennummer «d7», Betrag «1-9».«z3»,«z2» €, Lieferung «10-28».0«1-9».2024
Facture n° 2024-«d5», montant «1-9» «z3»,«z2» €, SIRET «d3» «z3» «z3» «z5»
commit «h40» (tag: v«1-9».«0-9».«0-9»)⏎ 3 files changed, «d3» insertions(+), «d2» deletions(-)
from «ip»:«d5» to «ip»:443 len=«d4» seq=«d10» ack=«d10» win=«d5»
x=«d3».«z4», y=-«d2».«z4», z=«1-9».«z8»; bbox: «1-9».«z6»,«10-59».«z6»,«10-19».«z6»,«10-59».«z6»
ts=«d13» dur=«d6»us cpu=«1-99».«z1»% mem=«d9» io=«d7»/«d7»
sha1:«h40» md5:«h32» crc32:«h8» blake2b:«h128»
/nix/store/«l12»«z8»«l12»-«w»-«1-9».«0-9».«0-9»/bin/«w»
s3://«w»-logs/2024/0«1-9»/«10-28»/«uuid».json.gz  «d8» bytes  etag «h32»
https://«w».example.com/p/«d10»?utm_source=mail&gclid=«u60»
https://hooks.example.com/builds/«uuid»/logs?from=«d10»&to=«d10»
docker run --rm -p 8080:80 -e MODE=dev «w»/«w»:«h12»
node_modules/.pnpm/«w»@«1-9».«0-9».«0-9»_«h32»/node_modules/«w»
kernel 6.«1-9».0-«10-99»-generic #«10-99»-Ubuntu SMP; BIOS F«1-9» 0«1-9»/«10-28»/2023; rev «d4»-«d4»
Time 0«0-9»:«10-59»:«10-59»,«z3» --> 0«0-9»:«10-59»:«10-59»,«z3»⏎The password is in the drawer.
lottery: 0«1-9» 1«1-9» 2«1-9» 3«1-9» 4«1-9»; draw «d4»; pot 0«d3»-«d4»
pages «d3»-«d3», «d4»:«d3»-«d3», doi:10.«d4»/s«z5»-«z3»-«z5»-«l1»
case 0«z3»/2024, room 0«z3», shelf 0«d1»-«z2»-«z2», locker 0«d2»
1 234 567 rows, 0«d3» 4567 skipped, 12 345 678 bytes; balance -1 234 567,89
heart rate «50-99»-«100-180», zone «1-5», pace 0«4-6»:«10-59»/km, HRV «20-90», steps «d5»
PCI 0000:«h2»:00.0, IRQ «d3», DMA 0x«h8»-0x«h8», slot 0«1-9»-0«1-9»
member since 20«10-23», points «d6», level «1-9», badge «d8», gate 0«1-9», key card «d6»
GTIN 0«z13», lot «z6», exp 20«25-29»-«10-12», serial «d14»
(«d3») «d2».«z2» (n=«d4»), 95% CI («1-9».«z2»–«1-9».«z2»), p=0.«z3», chi2(«1-9»)=«d2».«z2»
## prose
"What's the password?" "There is no password," she said, "just knock."
It's an open secret: the token prize went to the youngest. A mountain pass, a bus pass, a free pass.
The key is to listen. The secret? Practice. The password to success: persistence.
Password fatigue is real; people write a password on paper, then lose the paper.
My brother passed the exam with 87 points; the pass mark was 60; I pass on dessert.
We were given a secret word, and the secret word was banana, and nobody guessed it for «10-59» minutes.
Le secret de la réussite : travailler. Der Schlüssel: Geduld. El secreto: paciencia.
Das Passwort wurde geändert. Das Passwort ist abgelaufen. Bitte Passwort eingeben: mindestens 8 Zeichen.
Votre mot de passe expire dans «1-14» jours. Mot de passe modifié avec succès le «10-28»/06/2024.
Su contraseña ha caducado. La contraseña debe tener 8 caracteres. Contraseña: mínimo 8 caracteres.
La password è scaduta. Password dimenticata? Inserisci la password: almeno 8 caratteri.
A senha deve ter 8 caracteres. Senha: obrigatória. Esqueceu a senha?
パスワードを入力してください。パスワード：必須。密码：必填，8到20位。
Memo: the password meeting is at «10-17»:30, room «d3»; token ring cables go to the museum; key handover on Friday.
Her phone died at «10-23»:«10-59», so we texted on «d2» June instead; the call took «1-9» minutes and «10-59» seconds.
The hotline is open from 0«6-9»:00 to 1«6-9»:00; calls cost 0.«10-20» € per minute; number of calls: «d5».
the wifi password is on the fridge
the password is the same as last time
my password was wrong again :(
Password: same as always
his password is stronger than mine
password is now longer, token is now shorter
"""
