"""Templates that no rule was repaired for: what leaks most often and what looks like it, by one who had not read the rules.

Kept apart from `privacy_corpus.py`, so that what is measured with them stays a measure. Slots and marks as there; a heading
names the format.
"""

# ruff: noqa: E501  a template stays in one line

SETTINGS = r"""
## configuration
env:⏎  GITHUB_TOKEN: ⟦api_key|github_pat_«a22»_«a59»⟧⏎  CI: true
variables:⏎  CI_PUSH_TOKEN: "⟦api_key|glpat-«a20»⟧"⏎  GIT_DEPTH: "1"
STRIPE_WEBHOOK_SECRET=⟦secret|whsec_«a32»⟧
{"web":{"client_id":"«d12»-«l20».apps.googleusercontent.com","project_id":"«w»","client_secret":"⟦client_secret|GOCSPX-«u28»⟧"}}
{"type":"service_account","project_id":"«w»","private_key_id":"«h40»","private_key":"⟦private_key|-----BEGIN PRIVATE KEY-----\nMIIEvQ«b58»\n«b64»\n«b64»\n«b40»=\n-----END PRIVATE KEY-----⟧\n"}
[pypi]⏎username = __token__⏎password = ⟦api_key|pypi-AgEIcHlwaS5vcmcCJ«a140»⟧
MAILGUN_API_KEY=⟦api_key|key-«h32»⟧⏎MAILGUN_DOMAIN=mg.«w».io
PINECONE_API_KEY=⟦api_key|«uuid»⟧⏎PINECONE_ENV=us-east1-gcp
{"id_token":"⟦jwt⟧","scope":"openid profile","expires_in":3599}
spring.data.mongodb.uri=⟦connection_string|mongodb://root:«W»«d4»@«ip»:27017⟧/«w»?authSource=admin
REDIS_URL=rediss://default:⟦connection_string|«a32»⟧@«w».upstash.io:6379
broker_url: amqps://«w»:⟦connection_string|«u32»4⟧@duck.lmq.cloudamqp.com/«w»
Data Source=«ip»;Initial Catalog=«W»;User ID=«w»;Pwd=⟦password|«a12»7⟧;MultipleActiveResultSets=True
Endpoint=sb://«w».servicebus.windows.net/;SharedAccessKeyName=RootManageSharedAccessKey;SharedAccessKey=⟦api_key|«b43»=⟧
ssl_key: |⏎  ⟦private_key|-----BEGIN EC PRIVATE KEY-----⏎  MHcCAQEEI«b55»⏎  «b64»⏎  «b32»==⏎  -----END EC PRIVATE KEY-----⟧
MAIL_USERNAME=⟦email⟧⏎MAIL_PASSWORD=⟦password⟧⏎MAIL_PORT=587
services:⏎  db:⏎    image: mysql:8⏎    environment:⏎      - MYSQL_ROOT_PASSWORD=⟦password⟧
"ADMIN_PASSWORD": "⟦password⟧",
  admin_password: ⟦password⟧
redis:⏎  password: "⟦password⟧"
elasticsearch.password: "⟦password⟧"
wifi: «W»-5G, password: ⟦password⟧
Password del router: ⟦password⟧
{"id": «d5», "name": "«first» «last»", "email": "⟦email⟧", "plan": "pro"}
Signed-off-by: «first» «last» <⟦email⟧>
"phoneNumber": "⟦phone⟧", "country": "DE"
Tel.: ⟦phone⟧⏎Fax: ⟦phone⟧
IBAN: ⟦iban⟧⏎BIC: COBADEFFXXX
{"account_holder": "«first» «last»", "iban": "⟦iban⟧", "currency": "EUR"}
card_number=⟦credit_card⟧&exp_month=12&exp_year=2027
{"pan": "⟦credit_card⟧", "amount": 4999, "currency": "EUR"}
Customer read out the card over the phone: ⟦credit_card⟧, charge failed.
NEXTAUTH_SECRET=⟦secret|«b43»=⟧
SPOTIFY_CLIENT_ID=«h32»⏎SPOTIFY_CLIENT_SECRET=⟦client_secret|«h32»⟧
keycloak:⏎  realm: «w»⏎  credentials:⏎    secret: ⟦client_secret|«uuid»⟧
session_token: ⟦token|«a64»1⟧
SONAR_TOKEN=⟦api_key|sqp_«h40»⟧ mvn sonar:sonar
CIRCLECI_TOKEN=⟦api_key|CCIPAT_«a22»_«h40»⟧
planetscale: ⟦api_key|pscale_tkn_«u43»⟧
dt_token=⟦api_key|dt0c01.«U24».«U64»⟧
age-keygen output:⏎# public key: age1«l58»⏎⟦private_key|AGE-SECRET-KEY-1QPZRY9X8GF2TVDW0S3JN54KHCE6MUA7LGF2TVDW0S3JN54KHCE6MUA7LQP⟧
[Interface]⏎PrivateKey = ⟦private_key|«b43»=⟧⏎Address = 10.0.0.2/32⏎⏎[Peer]⏎PublicKey = «b43»=
sec-websocket-protocol: graphql-ws, ⟦jwt⟧
contact_phone: "⟦phone⟧"
{"msg":"login failed","user":"⟦email⟧","password":"⟦password⟧"}
## code
import openai⏎openai.api_key = "⟦api_key|sk-«a48»⟧"⏎resp = openai.ChatCompletion.create(model="gpt-4")
client = OpenAI(api_key="⟦api_key|sk-proj-«u74»T3BlbkFJ«u73»a⟧", timeout=30)
anthropic = Anthropic(api_key=os.getenv("KEY") or "⟦api_key|sk-ant-api03-«u93»AA⟧")
s3 = boto3.client('s3', aws_access_key_id='⟦api_key|AKIA«U16»⟧', aws_secret_access_key='⟦secret|«a39»4⟧')
access_key = "⟦api_key|AKIA«U16»⟧"⏎secret_key = "⟦secret|«b39»3⟧"⏎region     = "eu-north-1"
slack_client = WebClient(token="⟦api_key|xoxb-«d12»-«d13»-«a24»⟧")
Stripe.api_key = '⟦api_key|sk_live_«a24»⟧'
const sgMail = require('@sendgrid/mail'); sgMail.setApiKey('⟦api_key|SG.«a22».«a43»⟧');
const client = require('twilio')('AC«h32»', '⟦token|«h32»⟧');
firebase.initializeApp({ apiKey: "⟦api_key|AIza«u35»⟧", authDomain: "«w».firebaseapp.com", messagingSenderId: "«d12»" });
from huggingface_hub import login⏎login("⟦api_key|hf_«a33»x⟧")
updater = Updater(token='⟦api_key|«d10»:AA«u33»⟧', use_context=True)
bot.login('⟦token|MT«a22».G«a5».«a38»⟧');
const shopify = new Shopify({ shopName: '«w»', accessToken: '⟦api_key|shpat_«h32»⟧' });
WEATHER_KEY = "⟦api_key|«h32»⟧"  # openweathermap, free plan
const SUPABASE_ANON = '⟦jwt⟧'
DATABASE_URL="⟦connection_string|postgres://«w»:«a20»@ec2-3-«1-250»-«1-250»-7.compute-1.amazonaws.com⟧:5432/d«a12»"
engine = create_engine("⟦connection_string|postgresql+asyncpg://app:«w»«d3»@db⟧/«w»")
mongoose.connect('⟦connection_string|mongodb+srv://admin:«a16»@cluster0.«l5».mongodb.net⟧/shop?w=majority')
SQLALCHEMY_DATABASE_URI = 'mysql://root:⟦connection_string|«w»«d4»⟧@localhost/blog'
jdbc:sqlserver://«ip»:1433;databaseName=«w»;user=sa;password=⟦password|«W»«d4»!⟧;encrypt=false
const PRIVATE_KEY = `⟦private_key⟧`;
PRIVATE_KEY="⟦private_key|-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXktdjEA«b50»\n«b70»\n«b20»==\n-----END OPENSSH PRIVATE KEY-----⟧"
# .env⏎DB_HOST=localhost⏎DB_PASS=⟦password⟧⏎DB_NAME=«w»
db_config = {'host': 'localhost', 'user': 'root', 'passwd': '⟦password⟧', 'db': '«w»'}
$db = new PDO('mysql:host=localhost;dbname=«w»', 'root', '⟦password|«W»«d3»!⟧');
$password = "⟦password⟧";⏎$conn = mysqli_connect($host, $user, $password);
String password = "⟦password⟧";
var adminPassword = '⟦password⟧';
DB_PASSWORD: str = "⟦password⟧"
server.login("⟦email⟧", "⟦password|«a16»⟧")
driver.find_element(By.ID, "password").send_keys("⟦password⟧")
await page.fill('#password', '⟦password|«W»«d4»!⟧');
JWT_SECRET_KEY = "⟦secret|«h64»⟧"
app.config['SECRET_KEY'] = '⟦secret|«h32»⟧'
session({ secret: '⟦secret|«w»-«w»-«d4»⟧', resave: false })
APP_KEY=base64:⟦secret|«b43»=⟧
const token = jwt.sign({ id: user.id }, '⟦secret|«a32»6⟧', { expiresIn: '1h' });
passport.use(new GitHubStrategy({ clientID: '«h20»', clientSecret: '⟦client_secret|«h40»⟧', callbackURL: '/cb' }));
consumer_key = "⟦api_key|«a25»⟧"⏎consumer_secret = "⟦secret|«a50»⟧"⏎access_token = "⟦token|«d10»-«a40»⟧"
heroku_api_key = "⟦api_key|«uuid»⟧"
to=⟦phone⟧ body="Your code is on its way"
## shell
ANTHROPIC_API_KEY=⟦api_key|sk-ant-api03-«u93»AA⟧ claude -p "explain this"
aws configure set aws_access_key_id ⟦api_key|AKIA«U16»⟧ --profile «w»
AWS_SESSION_TOKEN="⟦token|FwoGZXIvYXdzE«a300»⟧"
gh auth login --with-token <<< ⟦api_key|ghp_«a36»⟧
git push https://⟦connection_string|«w»:ghp_«a36»⟧@github.com/«w»/«w».git HEAD:main
glab auth login --hostname gitlab.com --token ⟦api_key|glpat-«a20»⟧
stripe listen --api-key ⟦api_key|rk_live_«a32»⟧ --forward-to localhost:4242/hook
npm config set //registry.npmjs.org/:_authToken ⟦api_key|npm_«a36»⟧
TWINE_PASSWORD=⟦api_key|pypi-AgEIcHlwaS5vcmcCJ«a140»⟧ twine upload dist/*
doctl auth init -t ⟦api_key|dop_v1_«h64»⟧
curl https://api.groq.com/openai/v1/models -H "Authorization: Bearer ⟦api_key|gsk_«a52»⟧"
REPLICATE_API_TOKEN=⟦api_key|r8_«a37»⟧ cog predict -i prompt="a house"
databricks configure --host https://adb-«d16».«1-19».azuredatabricks.net --token ⟦api_key|dapi«h32»⟧
VAULT_TOKEN=⟦api_key|hvs.CAESI«a90»⟧ vault read secret/data/«w»
docker login -u «w» --password-stdin <<< "⟦api_key|dckr_pat_«a27»⟧"
curl "https://api.«w».com/v3/users" -H "apikey: ⟦api_key|«a32»7⟧" -H "Accept: application/json"
http GET https://api.«w».dev/orders 'Authorization:Bearer ⟦bearer_token|«h64»⟧'
psql: error: connection to "postgresql://app:⟦connection_string|«a14»9⟧@«ip»:5432/«w»" failed: Connection refused
wget ftp://«w»:⟦connection_string|«W»«d3»⟧@ftp.«w».org/dump.sql.gz
-----BEGIN RSA PRIVATE KEY-----⏎⟦private_key|MIIEow«b58»⏎«b64»⏎«b64»⏎«b64»⏎«b40»=⟧⏎-----END RSA PRIVATE KEY-----
curl -u elastic:⟦password|«a20»⟧ -X GET "localhost:9200/_cat/indices?v"
mysqldump -u root --password=⟦password⟧ «w» > dump.sql
psql "host=«ip» port=5432 dbname=«w» user=app password=⟦password|«a14»5⟧ sslmode=require"
ssh «w»@«ip»  # pw: ⟦password⟧
useradd -m «w» && echo '«w»:⟦password|«W»«d4»!⟧' | sudo chpasswd
helm install grafana grafana/grafana --set adminPassword=⟦password⟧
terraform apply -var="db_password=⟦password⟧"
docker run -d -e POSTGRES_PASSWORD=⟦password⟧ -p 5432:5432 postgres:16
az sql server create -n «w» -u adm -p ⟦password⟧ -l westeurope
curl -d grant_type=refresh_token -d refresh_token=⟦token|1//0«u100»⟧ https://oauth2.googleapis.com/token
flyctl deploy --access-token "⟦api_key|fo1_«u43»⟧"
export CLOUDFLARE_API_KEY=⟦api_key|«h37»⟧ CLOUDFLARE_EMAIL=⟦email⟧
sentry-cli --auth-token ⟦api_key|sntryu_«h64»⟧ releases new 1.«0-9»
eas: EXPO_TOKEN=⟦token|«u40»⟧ npx eas-cli build --non-interactive
ngrok config add-authtoken ⟦token|2«a26»_«a21»⟧
tailscale up --authkey ⟦api_key|tskey-auth-k«a11»CNTRL-«a32»⟧
Invoke-Command -Credential (New-Object PSCredential("«w»", (ConvertTo-SecureString "⟦password|«W»«d4»!⟧" -AsPlainText -Force)))
restic -r s3:s3.«w».io/backup --password-command 'echo ⟦password|«a18»2⟧' snapshots
rclone config create «w» webdav url=https://dav.«w».io user=«w» pass=⟦password⟧
grpcurl -H "authorization: Bearer ⟦bearer_token|«a36»6⟧" «ip»:443 list
## protocol
User uploaded credentials: Access key ID,Secret access key⏎⟦api_key|AKIA«U16»⟧,⟦secret|«a39»8⟧
notify:⏎  slack_url: ⟦secret|https://hooks.slack.com/services/T«U8»/B«U10»/«a24»⟧⏎  channel: '#deploys'
headers: { 'X-Figma-Token': '⟦api_key|figd_«a40»⟧' }
https://api.openweathermap.org/data/2.5/weather?q=Bremen&appid=⟦api_key|«h32»⟧&units=metric
https://newsapi.org/v2/top-headlines?country=de&apiKey=⟦api_key|«h32»⟧
axios.get(url, { headers: { Authorization: `Bearer ⟦bearer_token|«a40»2⟧` } })
requests.get(url, headers={"X-API-KEY": "⟦api_key|«h40»⟧"})
req.Header.Set("Authorization", "Bearer ⟦bearer_token|«a43»5⟧")
Authorization: Bearer ⟦jwt|eyJhbGciOiJSUzI1NiIsImtpZCI6IjEifQ.eyJzdWIiOiI«a60».«u86»⟧
http://localhost:3000/callback#access_token=⟦jwt⟧&state=«h16»
jdbc:postgresql://«ip»:5432/«w»?user=app&password=⟦password|«a14»3⟧
http_proxy=http://«w»:⟦connection_string|«a10»1⟧@proxy.«w».corp:8080
SENTRY_DSN=https://⟦connection_string|«h32»:«h32»⟧@sentry.«w».io/«1-99»
From: ⟦email⟧⏎To: ⟦email⟧⏎Subject: Re: contract «d4»
Cookie: PHPSESSID=⟦token|«l10»«z4»«l12»⟧; lang=de
csrftoken=⟦token|«a32»⟧; sessionid=⟦token|«l14»«z6»«l12»⟧
https://outlook.office.com/webhook/⟦secret|«uuid»@«uuid»/IncomingWebhook/«h32»/«uuid»⟧
Authorization=Bearer ⟦bearer_token|«u48»8⟧
'Authorization': 'Bearer ⟦bearer_token|«h40»⟧',
.header("Authorization", "Bearer ⟦bearer_token|«a40»1⟧")
the bearer token from my session: ⟦jwt⟧ does it still work for you?
## log
{"ok":false,"error":"token_revoked","token":"⟦api_key|xoxp-«d12»-«d12»-«d12»-«h32»⟧"}
Error: jwt expired⏎    at verify (/app/node_modules/jsonwebtoken/verify.js:152:21)⏎token: ⟦jwt⟧
«time» INFO mailer sent template=welcome to=⟦email⟧ status=250
Duplicate entry '⟦email⟧' for key 'users.email_unique'
«time» ERROR payment declined card=⟦credit_card⟧ amount=«d4»
## table
<meta-data android:name="com.google.android.geo.API_KEY" android:value="⟦api_key|AIza«u35»⟧"/>
<password>⟦password⟧</password>
ALTER USER 'root'@'localhost' IDENTIFIED WITH mysql_native_password BY '⟦password⟧';
GRANT ALL ON «w».* TO 'app'@'%' IDENTIFIED BY '⟦password⟧';
UPDATE users SET email = '⟦email⟧' WHERE id = «d4»;
<wsse:Password Type="wsse:PasswordText">⟦password⟧</wsse:Password>
«first» «last»;⟦iban⟧;«d3»,50;EUR
<IBAN>⟦iban⟧</IBAN>
INSERT INTO payments (card_no, owner) VALUES ('⟦credit_card⟧', '«first» «last»');
<a href="tel:⟦phone⟧">Call us</a>
## chat
::add-mask::⏎Run echo ⟦api_key|ghs_«a36»⟧ | gh auth login --with-token
here is the deploy key you asked for⏎⏎⟦private_key⟧⏎⏎pls put it in ~/.ssh
hey, the staging login is «w» and password is ⟦password⟧
oh the pw changed, it's ⟦password⟧ now
can you use my account? user: ⟦email⟧ pass: ⟦password⟧
Dear «first»,⏎your temporary password is ⟦password⟧. It expires in 24 hours.
The password for the encrypted PDF is ⟦password⟧.
Hi, the root password of db-«1-9» was set to ⟦password⟧ last night, please rotate.
«first» «last» <⟦email⟧>
My email address is ⟦email⟧, please update it in your records.
Please call me back at ⟦phone⟧ before noon.
My mobile number is ⟦phone⟧.
SMS sent to ⟦phone⟧ (status=delivered)
Best regards,⏎«first» «last»⏎«W» GmbH | ⟦phone⟧ | ⟦email⟧
Please transfer the amount to ⟦iban⟧, reference «d8».
My card number is ⟦credit_card⟧, exp 0«1-9»/2«6-9»
snmp-server community ⟦password|«W»«d4»⟧ RO
"Invalid signature for ⟦jwt⟧", "code": 401
Visa ⟦credit_card⟧ valid thru 09/28 cvv 123
WhatsApp ⟦phone⟧
the shared account is ⟦email⟧, password ⟦password⟧ (2FA off)
## languages
Das Passwort für das WLAN ist ⟦password⟧
Passwort: ⟦password⟧⏎Gültig bis: 31.12.2026
Voici tes identifiants : login «w», mot de passe ⟦password⟧
Mot de passe : ⟦password⟧
La contraseña es ⟦password⟧, no la compartas.
A senha do banco de dados é ⟦password⟧.
Пароль: ⟦password⟧
密码是 ⟦password⟧
パスワードは ⟦password⟧ です
Hasło: ⟦password⟧
Schreib mir bitte an ⟦email⟧, danke!
Mon adresse est ⟦email⟧ si besoin.
Meine Handynummer ist ⟦phone⟧, ruf einfach an.
Mon numéro : ⟦phone⟧
Mi número de teléfono es ⟦phone⟧
Überweise es bitte auf mein Konto ⟦iban⟧
Mon IBAN est ⟦iban⟧
Mi tarjeta es ⟦credit_card⟧ y no pasa el pago
IBAN des Empfängers: ⟦iban⟧, Verwendungszweck: Rechnung «d6»
el número de cuenta es ⟦iban⟧
Kreditkarte: ⟦credit_card⟧, gültig bis 11/27
«first»: mein neues Handy: ⟦phone⟧
ich heiße «first» «last», Telefon ⟦phone⟧, Mail ⟦email⟧
"""

LOOK_ALIKES = r"""
## configuration
auth:⏎  type: password⏎  min_length: 12⏎  max_age_days: 90
valueFrom:⏎  secretKeyRef:⏎    name: «w»-db⏎    key: password
env:⏎  TOKEN: ${{ secrets.DEPLOY_TOKEN }}
PasswordAuthentication no⏎PermitRootLogin prohibit-password
password    requisite     pam_pwquality.so retry=3
token_ttl: 3600⏎refresh_token_ttl: 1209600
max_tokens: 4096⏎temperature: 0.2⏎stop_token: "</s>"
ssl_key_file = /etc/ssl/private/«w».key
password_file: /run/secrets/«w»_password
secret_name = "«w»-tls"
api_key_env: OPENAI_API_KEY
passwordCommand: pass show mail/«w»
key_rotation: quarterly⏎key_algorithm: ed25519
security.require-password-change=true
"tokenLifetime": "PT1H", "issuer": "https://id.«w».io"
aws_profile = «w»⏎credential_process = aws-vault exec «w» --json
data "aws_secretsmanager_secret" "db" {⏎  name = "prod/«w»/db"⏎}
variable "db_password" {⏎  type      = string⏎  sensitive = true⏎}
password = var.db_password
Environment=TOKEN_FILE=%d/token
primary_key: id⏎sort_key: created_at⏎partition_key: tenant
hotkey: ctrl+shift+«l1»⏎api_version: 2025-01-0«1-9»
IdentityFile ~/.ssh/id_ed25519_«w»
imagePullSecrets:⏎  - name: regcred-«w»
"auth": {"method": "token", "token_path": "/var/run/secrets/kubernetes.io/serviceaccount/token"}
secret-scanning:⏎  push-protection: enabled
"password": {"type": "string", "format": "password", "minLength": 8}
securitySchemes:⏎  ApiKeyAuth:⏎    type: apiKey⏎    in: header⏎    name: X-API-Key
{"name": "token", "in": "query", "required": true, "schema": {"type": "string"}}
message LoginRequest { string username = 1; string password = 2; }
| token | string | yes | The token that the login returned |
phone: { type: string, pattern: "^\\+[0-9]{7,15}$" }
"required": ["email", "password", "api_key"]
email VARCHAR(255) NOT NULL UNIQUE, password CHAR(60) NOT NULL
type User { id: ID! email: String! apiToken: String }
"iban": {"description": "International account number", "maxLength": 34}
## code
api_key = os.environ["OPENAI_API_KEY"]
const apiKey = process.env.API_KEY ?? '';
password = getpass.getpass("Password: ")
val token = prefs.getString("auth_token", null)
String password = request.getParameter("password");
secret = vault.read("secret/data/«w»")["data"]["password"]
token := os.Getenv("GITHUB_TOKEN")
if (password.length < 8) throw new Error('password too short');
assert user.check_password(password) is True
def verify_password(plain_password: str, hashed_password: str) -> bool:
private static final String TOKEN_HEADER = "X-Auth-Token";
const [password, setPassword] = useState("");
<input type="password" id="password" autocomplete="current-password" placeholder="Password" />
password: Annotated[SecretStr, Field(min_length=12)]
return token.split('.')[1]
$password = $_POST['password'] ?? null;
let token = tokens.next().unwrap_or(Token::Eof);
api_key=settings.api_key, timeout=settings.timeout
credentials = Credentials.from_authorized_user_file("token.json", SCOPES)
password_hash = bcrypt.hashpw(password.encode(), bcrypt.gensalt())
client = OpenAI(api_key=config.get("openai", "key"))
with open("/run/secrets/db_password") as f: password = f.read().strip()
SELECT password_hash FROM users WHERE email = $1
ALTER TABLE users ADD COLUMN password_reset_token VARCHAR(64) NULL;
CREATE INDEX idx_tokens_hash ON tokens (token_hash);
request.headers.get('Authorization')?.replace('Bearer ', '')
String secretKey = System.getProperty("secret.key");
for key, value in secrets.items(): print(key)
self.token_embedding = nn.Embedding(vocab_size, d_model)
pad_token_id=tokenizer.eos_token_id, max_new_tokens=«d3»
tokenizer.add_special_tokens({"pad_token": "<|endoftext|>"})
const { data: session, status } = useSession();
type Credentials struct { Username, Password string }
interface LoginForm { username: string; password: string; }
@login_required⏎def change_password(request):
app.secret_key = secrets.token_hex(32)
jwt.decode(token, key=PUBLIC_KEY, algorithms=["RS256"])
EMAIL_RE = re.compile(r"[^@\s]+@[^@\s]+\.[a-z]+")
let phone = format!("{} {}", prefix, number);
new Error("Invalid password for user " + username)
class PasswordResetTokenGenerator(BaseTokenGenerator): pass
<TextField label="API key" type="password" value={apiKey} onChange={onKey} />
expect(screen.getByLabelText('Password')).toBeInTheDocument()
@app.route("/token", methods=["POST"])
public record TokenResponse(string AccessToken, int ExpiresIn);
key={`row-${index}`} className="password-row"
!function(e,t){"use strict";var n=t.token,r=e.key||"id";n&&(e.auth=n[r])}(window,document);
a.password=function(t){return this._p=t,this},a.secret=function(t){return t?b(t):null}
.password-field::placeholder { color: #«h6»; }
## shell
  -p, --password string   password of the registry (default: prompt)
  --token TOKEN   access token; read from $GH_TOKEN when absent
  --api-key-file FILE   file that holds the key
usage: «w» login [-u USERNAME] [--password-stdin] SERVER
Enter passphrase for key '/home/«w»/.ssh/id_ed25519':
[sudo] password for «w»:
Password: ⏎Login incorrect
? Paste your authentication token: [? for help]
  secret create   Create a secret from a file or STDIN
error: missing required argument: --client-secret
## log
Nov  4 10:«10-59»:12 «w» sshd[«d5»]: Failed password for root from «ip» port «d5» ssh2
Nov  4 10:«10-59»:13 «w» sshd[«d5»]: Accepted publickey for «w» from «ip» port «d5» ssh2: ED25519 SHA256:«b43»
sshd[«d4»]: Invalid user admin from «ip» port «d5»
pam_unix(sudo:session): session opened for user root(uid=0) by «w»(uid=1000)
FATAL:  password authentication failed for user "«w»"
ERROR 1045 (28000): Access denied for user 'root'@'localhost' (using password: YES)
«time» INFO token refreshed for user=«d5» expires_in=3600
«time» WARN auth: invalid token (kid=«h8») from «ip»
«time» DEBUG oauth: exchanging code for token at https://id.«w».io/token
«time» INFO secret "«w»-tls" not found in namespace "default"
401 Unauthorized: token expired «1-59» minutes ago
fatal: Authentication failed for 'https://github.com/«w»/«w».git/'
Logged in as «w» (oauth_token)⏎Token: ghp_************************************
audit: type=USER_AUTH msg=audit(17«d8».«z3»:«d4»): pid=«d4» uid=0 res=success
«ip» - - [04/Nov/2025:10:01:02 +0000] "POST /api/token HTTP/1.1" 200 «d4» "-" "okhttp/4.12.0"
kubelet: MountVolume.SetUp succeeded for volume "kube-api-access-«l5»"
Step 4/9 : ARG NPM_TOKEN⏎ ---> Running in «h12»
npm warn deprecated @«w»/auth-token@2.«0-9».0: use @«w»/auth
Prompt tokens: «d4», completion tokens: «d3», total tokens: «d5»
mem: «d10» bytes, rss «d9», vsz «d10», uptime «d7» s
vault: lease «h8» renewed, ttl 768h
Key 'session:«d6»' expired after «d4» s
Traceback (most recent call last):⏎  File "auth.py", line «d3», in login⏎    token = payload["token"]⏎KeyError: 'token'
    at PasswordService.verify (/app/src/password.service.ts:«10-99»:«10-30»)
java.security.InvalidKeyException: Illegal key size⏎	at javax.crypto.Cipher.checkCryptoPerm(Cipher.java:«d4»)
pydantic_core.ValidationError: 1 validation error for Settings⏎api_key⏎  Field required [type=missing]
openai.OpenAIError: The api_key client option must be set
botocore.exceptions.NoCredentialsError: Unable to locate credentials
jwt.exceptions.ExpiredSignatureError: Signature has expired
TypeError: Cannot read properties of undefined (reading 'password')
thread 'main' panicked at src/token.rs:«10-99»:9: unexpected token `;`
SyntaxError: Unexpected token < in JSON at position 0
## chat
Passwords must have at least 12 characters, one digit and one symbol.
Never share your password with anyone, not even with support.
I forgot my password and the reset mail never arrives.
The password is stored as a bcrypt hash with cost 12.
Where do I find my API key? It is under Settings, Developer.
The secret to good bread is time.
Tokens are counted per request; a token is about four characters.
My password expired yesterday, can you reset it?
The key is to read the error first.
She passed the exam with 87 points on 12 May.
Use a long passphrase instead of a short password; four random words will do.
The password has to be changed every 90 days.
We rotate the signing key every quarter and keep two versions.
Did you try the password from the wiki? No, which page?
the token you sent does not work, can you send another one?
Secret Santa is on 12.12., budget 15 euros.
Use Bearer authentication, not Basic, for the new API.
Our phone line is open Monday to Friday, 9 to 17.
Ask «first» for the credentials, or look in the vault.
what's the password policy for the new portal?
pw reset done, check your inbox
can u send me the token limit of this model? 128000 I think
my pin board is full of notes
ok the key is under the mat in spirit: read the README first
I'll dm you the password
wifi password is on the board in the kitchen
2FA code expired, ask for a new one
my number one wish: dark mode
Order 4«d7» arrived, invoice 9«d7» did not
please don't paste your secret key here, only the public one (pk_live or pk_test)
the card ends in «d4», expires 11/27
IBAN field shows DE** **** **** **** **** «z2»
phone: +1 (NNN) NNN-NNNN
"phone_number_id": "1«z14»", "waba_id": "1«z14»"
telephone-keypad 123 456 789 *0#
«first» dialled the wrong extension, «d3» instead of «d3»
Cardinality 1«z16» exceeds int32, capped
snowflake «d18» is older than «d18»
credit_card_token_enabled: true
Auth scheme must be one of: Bearer, Basic, Digest
WWW-Authenticate: Bearer realm="«w»", error="invalid_token"
Access-Control-Allow-Headers: Authorization, X-Api-Key, X-CSRF-Token
Set-Cookie: sessionid=; Max-Age=0; Path=/
GET /password/reset HTTP/1.1 200
{"password": null, "token": "", "api_key": false}
jwt: malformed, expected three parts separated by dots
kid: «u22», alg: RS256, n: «u86», e: AQAB
## languages
Bitte das Passwort nicht per Mail schicken.
Das Passwort muss mindestens 10 Zeichen lang sein.
Ich habe mein Passwort vergessen, was nun?
Le mot de passe doit contenir au moins 8 caractères.
Votre mot de passe a été modifié avec succès.
La contraseña debe tener al menos 8 caracteres.
Esqueci minha senha e não consigo entrar.
La password è scaduta, va cambiata.
Пароль должен содержать не менее 8 символов.
密码长度至少为8位，且包含字母和数字。
パスワードは8文字以上で入力してください。
Het wachtwoord is verlopen, vraag een nieuw aan.
Hasło musi mieć co najmniej 10 znaków.
"login.password.label": "Kennwort", "login.password.hint": "Mindestens 8 Zeichen"
msgid "Password changed"⏎msgstr "Mot de passe modifié"
<string name="password_too_short">Das Passwort ist zu kurz</string>
password: 'Contraseña', confirmPassword: 'Confirmar contraseña', token: 'Código'
"errors.invalid_token" = "Ungültiges Token";
auth.password_placeholder=Введите пароль
api_key: Clé API⏎secret: Secret⏎save: Enregistrer
"forgotPassword": "パスワードをお忘れですか？"
Das Kennwort steht im Passwortmanager unter «W».
## identifier
commit «h40»⏎Merge: «h7» «h7»⏎⏎    Rotate tokens before expiry
«h64»  «w»-1.«0-9».0-linux-amd64.tar.gz
MD5 («w».iso) = «h32»
sha512-«b86»==
index «h7»..«h7» 100644⏎--- a/src/auth.py⏎+++ b/src/auth.py
git cherry-pick «h40» && git push origin main
Digest: sha256:«h64»⏎Status: Downloaded newer image for «w»:latest
ETag: "«h32»"⏎Last-Modified: Tue, 04 Nov 2025 10:00:00 GMT
"integrity": "sha512-«b86»==", "engines": {"node": ">=18"}
SHA256 fingerprint of the host key is SHA256:«b43».
cache key: deps-linux-«h64»
build «h8» passed, build «h8» failed
ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI«b43» «w»-laptop
-----BEGIN CERTIFICATE-----⏎MIID«b60»⏎«b64»⏎«b44»==⏎-----END CERTIFICATE-----
-----BEGIN PUBLIC KEY-----⏎MIIBIj«b58»⏎«b64»⏎«b40»IDAQAB⏎-----END PUBLIC KEY-----
Serial Number: 04:«h2»:«h2»:«h2»:«h2»:«h2»:«h2»:«h2»
pip install «w»==1.«0-9».3 --hash=sha256:«h64»
block 0x«h64» mined, parent 0x«h64»
contract 0x«h40» deployed at height «d8»
password.py,sha256=«u43»,«d4»
request_id=«uuid» trace_id=«h32» span_id=«h16»
traceparent: 00-«h32»-«h16»-01
{"id": "«uuid»", "parent": "«uuid»", "type": "folder"}
order_id: ORD-2025-«d8»
Your tracking number is 1Z«U6»«d10».
DHL Sendungsnummer 00340434«d12»
ISBN 978-3-16-148410-«0-9», 2nd edition, «d3» pages
Ticket INC«d7» was linked to PRB«d7».
AWS account «d12», role arn:aws:iam::«d12»:role/«w»-deploy
arn:aws:secretsmanager:eu-west-1:«d12»:secret:prod/«w»/db-«a6»
arn:aws:kms:eu-central-1:«d12»:key/«uuid»
vpc-«h17» subnet-«h17» sg-«h17» i-«h17»
projects/«w»-prod/secrets/db-password/versions/«1-9»
"clientId": "«uuid»", "tenantId": "«uuid»"
message id «h24», room «h24», ts «d10».«z6»
chatcmpl-«a29» finished with stop, 312 tokens
toolu_01«a22» returned 3 results
user_id=«d6» account=«d8» shard=«1-30»
cus_«a14» upgraded to price_1«a23»
evt_1«a23» delivered to endpoint we_1«a23» in «d3» ms
pk.id «d8», fk.token_id «d5»
invoice no. «d10» dated 03.11.2025, customer no. «d7»
Steuernummer der Firma: 12/345/«d5», HRB «d5» B
VIN WVWZZZ1JZXW«d6»
EAN «d13», Artikelnummer «d6»
doi:10.1145/«d7».«d7», arXiv:25«1-9»1.«d5»
CVE-2025-«d5» and GHSA-«l4»-«l4»-«l4» affect token parsing
MAC «h2»:«h2»:«h2»:«h2»:«h2»:«h2», IP «ip»
machine-id «h32»
pod/«w»-api-«h10»-«l5» 1/1 Running 0 «1-9»d
Session «h8» opened for job «d5».
npm install @«w»/auth@1.2.«0-9» --save-exact
@«w» can you review @«w»-dev's PR?
git@github.com:«w»/«w».git
origin	ssh://git@gitlab.«w».io:2222/«w»/«w».git (push)
uses: actions/checkout@v4
uses: docker/login-action@«h40»
image: «w»@sha256:«h64»
«w»@web-«1-9»:~$ sudo systemctl restart nginx
rsync -av dist/ deploy@«ip»:/var/www/
logo@2x.png, icon@3x.png
go install golang.org/x/tools/gopls@latest
user@1000.service: Succeeded.
@Override public String getToken() { return token; }
https://medium.com/@«w»/storing-passwords-«h12»
## number
Card declined: «badcard»
Test IBAN «badiban» has a wrong check digit.
52.520«d3», 13.404«d3»
lat=-33.8688«d2» lon=151.2093«d2» zoom=14
17«d8» 17«d8» 17«d8»
2025-11-04 10:22:33,«d3» - 2025-11-04 10:22:34,«d3»
version 10.0.19041.«d4», build 2025.11.«1-28».«d3»
1.234.567,89 EUR and 2 345 678 USD
Population: 83 783 942 (2020), 84 358 845 (2022)
π ≈ 3.14159265358979, e ≈ 2.71828182845905
bytes 1024-2047/1«d6», offset 0x«h8»
range «ip»/24, port 8080-8090
chr7:117120017-117308718
Öffnungszeiten: 08:00-12:00, 14:00-18:30
PID «d5» PPID «d4» UID 1000 GID 1000
Score 21-15 21-18, 2024-2025 season
[0.«z8», -0.«z8», 0.«z8», 0.«z8»]
Part no. 800-«d5»-01 rev B
Batch 2025-0«1-9»-1«0-9»-«d4», lot «d6»
1600x900+«d3»+«d3» 24 bpp 60.00 Hz
§ 823 Abs. 1 BGB, BGH NJW 2019, 1234-1238
PO 4500«d6», item 00010, plant 1000
20251104102233 migrations done
0.1.2-alpha.3+«h7»
## placeholder
OPENAI_API_KEY=sk-...
OPENAI_API_KEY=<your-openai-key>
ANTHROPIC_API_KEY=your-api-key-here
api_key: "YOUR_API_KEY"
export GITHUB_TOKEN=ghp_xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx
password: <password>
DB_PASSWORD=changeme
password = "********"
Authorization: Bearer <token>
Authorization: Bearer $TOKEN
curl -H "X-API-Key: {api_key}" https://api.example.com
client_secret=REPLACE_ME
secret: ${SECRET_FROM_VAULT}
postgres://user:password@localhost:5432/dbname
postgresql://${DB_USER}:${DB_PASS}@${DB_HOST}/app
mongodb://<username>:<password>@host:27017
token: "{{ .Values.token }}"
aws_access_key_id = AKIAIOSFODNN7EXAMPLE
aws_secret_access_key = wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY
"apiKey": "xxxxxxxxxxxxxxxxxxxxxxxx"
API_TOKEN=[REDACTED]
password=*** user=«w»
"secret": "<set in CI>"
SLACK_WEBHOOK=https://hooks.slack.com/services/T000/B000/your-hook
-----BEGIN RSA PRIVATE KEY-----⏎...⏎-----END RSA PRIVATE KEY-----
Incorrect API key provided: sk-proj-****************«a4».
secret_key_base: <%= ENV["SECRET_KEY_BASE"] %>
Passwort: ••••••••
mot de passe : [votre mot de passe]
contraseña: <tu contraseña>
IBAN: DE00 0000 0000 0000 0000 00
phone: +00 000 0000000
Card number: XXXX XXXX XXXX «d4»
stripe.api_key = "sk_test_..."
mysql -u root -p «w»
mysql -u USER -pPASSWORD DBNAME
https://user:pass@example.com/
token=TBD
## encoded
<img src="data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAA«b120»==" alt="key">
src: url(data:font/woff2;base64,d09GMgABAAAAA«b100»)
data:image/svg+xml;base64,PHN2ZyB4bWxucz0iaHR0cDov«b80»
"cursor": "eyJpZCI6«d5»fQ==", "has_more": true
nextPageToken: CAUQAA«a12»
"image_url": "https://cdn.«w».io/i/«u43».jpg?w=800&h=600"
https://«w».s3.amazonaws.com/public/«uuid»/report.pdf
https://www.youtube.com/watch?v=«u11»
https://docs.google.com/document/d/1«u43»/edit
https://figma.com/file/«a22»/Login-password-flow?node-id=1-«d3»
vocab: ["Ġpassword", "Ġtoken", "##key", "▁secret"]
%PDF-1.7 %âãÏÓ 1 0 obj<</Type/Catalog/Pages 2 0 R>>
uuencode: begin 644 key.txt
"""
