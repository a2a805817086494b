"""Families of secrets and of what looks like one: each row is a cousin of a text that was missed or taken for one.

In a row a line ends at ¶. Nothing here is real.
"""

from __future__ import annotations

import random
import re
import string

from acms import Privacy
from acms.privacy.detect import find_sensitive_spans, redact_text

#: What is sensitive stands between « and ».
POSITIVE = r"""
define( 'DB_PASSWORD', '«saffron-kestrel-52»' );
define("SMTP_PASS", "«lucia1981»");
os.environ.setdefault("DB_PASSWORD", "«garnet!704»")
std::env::set_var("DB_PASSWORD", "«garnet!704»");
System.setProperty("javax.net.ssl.keyStorePassword", "«garnet704»");
props.put("password", "«Kestrel211!»");
setenv("ROOT_PASSWORD", "«Kestrel211!»", 1);
builder.withPassword("«Kestrel211!»").build()
ds.setPassword("«qwerty594»");
.password("«qwerty594»")
.with_password('«qwerty594»')
new NetworkCredential("svc", "«Haddad#46»")
smtp.login("ravi", "«Haddad#46»")
server.login('ravi@corp', '«qwerty594»')
await imap.authenticate("ravi", "«K3Str3L0»");
HTTPBasicAuth("ravi", "«K3Str3L0»")
requests.get(url, auth=HTTPBasicAuth('ravi', '«K3Str3L0»'))
request.basicAuth("ravi", "«K3Str3L0x»")
new UsernamePasswordCredentials("ravi", "«K3Str3L0»")
ftp.login(user="ravi", passwd="«K3Str3L0»")
mysqli_connect("10.0.0.2", "shop", "«Tundra634»", "shop");
DriverManager.getConnection(url, "shop", "«Tundra634!»");
$cred = ConvertTo-SecureString "«Tundra634!»" -AsPlainText -Force
$p = ConvertTo-SecureString -String '«Tundra634!»' -AsPlainText -Force
variable "db_password" {¶  default = "«Tundra634!»"¶}
variable "db_password" {¶  type        = string¶  sensitive   = true¶  default     = "«Tundra634!»"¶}
variable "admin_pwd" {¶  description = "password of the admin"¶  default = "«tundra-onyx-634»"¶}
variable "api_key" {¶  type = string¶  default = "«a8d7f6s5d4f3g2h1j0k9»"¶}
- name: DB_PASSWORD¶  value: «tundra634»
env:¶  - name: DB_PASSWORD¶    value: "«tundra!634»"
{"name": "DB_PASSWORD", "value": "«tundra!634»"}
{"key": "password", "type": "string", "value": "«tundra!634»"}
ParameterKey=DbPassword,ParameterValue=«tundra634»
<name>javax.jdo.option.ConnectionPassword</name>¶<value>«tundra634»</value>
<key>password</key>¶<string>«tundra634»</string>
psk="«tundra634»"
wpa_psk=«tundra634»
network={¶  ssid="home"¶  psk="«tundra!634»"¶}
wifi-sec.psk «tundra!634»
wpa-psk ascii 0 «tundra!634»
wpa-psk «tundra!634»
option key '«tundra!634»'
nmcli dev wifi connect home password «tundra!634»
enable secret 0 «Rossi#34»
enable secret «Rossi#34x»
enable password «Rossi#34x»
username admin privilege 15 secret 0 «K3Str3L0»
username admin password 7 «08204E4D0A164651»
password 7 «08204E4D0A164651»
 neighbor 10.0.0.2 password «K3Str3L0»
ppp chap password 0 «K3Str3L0»
snmp-server community «K3Str3L0» RO
tacacs-server key «K3Str3L0x»
radius-server key 7 «08204E4D0A164651»
crypto isakmp key «K3Str3L0x» address 10.0.0.2
set psksecret «K3Str3L0x»
203.0.113.5 %any : PSK "«K3Str3L0x»"
ip ospf message-digest-key 1 md5 «K3Str3L0x»
WLAN: gast, Schlüssel: «quartz#557»
WLAN-Schlüssel: «lucia1976xy»
wifi key: «quartz#557»
Wi-Fi: home, key: «quartz557ab»
clé wifi : «quartz#557»
clave wifi: «quartz#557»
La clave del wifi es «quartz557»
Clave: «quartz#557»
clave de acceso: «quartz557»
mdp: «quartz#557»
MDP = «quartz557»
palavra-passe: «quartz#557»
kodeord: «quartz#557»
Zugangscode: «quartz#557»
code d'accès : «quartz#557»
codice di accesso: «quartz#557»
chiave wifi: «quartz#557»
klucz do wifi: «quartz#557»
wachtwoord is «quartz#557»
toegangscode: «quartz#557»
hasło do serwera to «quartz#557»
senha do wifi: «quartz#557»
暗証番号：«quartz557»
合言葉は「«quartz557»」
密钥：«quartz557ab»
口令：«quartz557»
ключ: «quartz557ab»
mật khẩu: «quartz557»
API-Schlüssel: «a8d7f6s5d4f3g2h1j0k9»
clé API : «a8d7f6s5d4f3g2h1j0k9»
clave API: «a8d7f6s5d4f3g2h1j0k9»
chiave API: «a8d7f6s5d4f3g2h1j0k9»
chave de API: «a8d7f6s5d4f3g2h1j0k9»
klucz API: «a8d7f6s5d4f3g2h1j0k9»
API-sleutel: «a8d7f6s5d4f3g2h1j0k9»
APIキー：«a8d7f6s5d4f3g2h1j0k9»
API 密钥：«a8d7f6s5d4f3g2h1j0k9»
API-ключ: «a8d7f6s5d4f3g2h1j0k9»
令牌：«a8d7f6s5d4f3g2h1j0k9»
トークン: «a8d7f6s5d4f3g2h1j0k9»
токен: «a8d7f6s5d4f3g2h1j0k9»
jeton d'accès : «a8d7f6s5d4f3g2h1j0k9»
Geheimnis: «a8d7f6s5d4f3g2h1j0k9»
Anna: what was the password again?¶Weiss: «garnet!704»
Anna: what was the password again?¶Weiss: «V3Lv3T66»
[10:04] anna: wifi password?¶[10:05] ben: «tundra634»
> what's the admin password?¶«garnet!704»
Q: What is the root password?¶A: «garnet704!»
Anna: do you have the password for staging?¶Ben: sure, it's «garnet!704»
Anna: can you send me the db password¶Ben: «garnet704»
what is the wifi password?¶¶«garnet-onyx-704»
Wie war nochmal das Passwort?¶«garnet704»
c'est quoi le mot de passe ?¶Luc: «garnet!704»
¿cuál es la contraseña?¶Luis: «garnet704»
密码是多少？¶小明：«garnet704»
Ben: send me the token pls¶Anna: «a8d7f6s5d4f3g2h1j0k9»
what's your api key?¶«a8d7f6s5d4f3g2h1j0k9»
ftp> user ravi «björn1963»¶230 Login successful.
USER bob¶331 Please specify the password.¶PASS «qwerty594»
USER bob¶+OK¶PASS «garnet704»¶+OK Logged in
---> USER bob¶<--- 331 Password required¶---> PASS «garnet704»
login: bob¶Password: «garnet704»
Name (10.0.0.2:root): bob¶Password: «garnet704»
expect "assword:"¶send "«garnet704!»\r"
GET /v2/forecast?city=Bremen&appid=«726789d5deaf694723562a2a5d2049e5»&units=metric HTTP/1.1
https://api.example.com/v1/items?key=«726789d5deaf694723562a2a5d2049e5»
https://api.example.com/v1/items?apikey=«726789d5deaf694723562a2a5d2049e5»&q=x
https://api.example.com/v1/items?api-key=«Hs73jdKs93Kdls83jd02»
https://x.blob.core.windows.net/c/b?sv=2023-01-03&sig=«8dj3KDs93kdKD93kd92KDk39dk3KD%3D»
https://api.example.com/me?access_token=«8dj3KDs93kdKD93kd92KDk39dk3KD»
wss://stream.example.com/ws?token=«8dj3KDs93kdKD93kd92KDk39dk3KD»
https://s3.amazonaws.com/b/k?X-Amz-Expires=900&X-Amz-Signature=«726789d5deaf694723562a2a5d2049e5726789d5deaf694723562a2a5d2049e5»
https://example.com/hook?auth=«8dj3KDs93kdKD93kd92KDk39dk3KD»
echo '«garnet!704»' | sudo -S systemctl restart nginx
echo "«garnet!704»" | passwd --stdin bob
echo «garnet704» | docker login -u bob --password-stdin
echo «garnet!704» | kinit bob
printf '%s\n' '«garnet!704»' | sudo -S ls
echo «8dj3KDs93kdKD93kd92KDk39dk3KD» | gh auth login --with-token
net use Z: \\files\share «garnet!704» /user:bob
net use \\files\share /user:CORP\bob «garnet!704»
net user bob «garnet!704» /add
rabbitmqctl add_user bob «garnet!704»
rabbitmqctl change_password bob «garnet-onyx-704»
htpasswd -b .htpasswd bob «garnet-onyx-704»
htpasswd -bc /etc/nginx/.htpasswd bob «garnet704»
htpasswd -nb bob «garnet704»
htpasswd -cbB users.txt bob '«garnet!704»'
keytool -importkeystore -srckeystore a.jks -srcstorepass «garnet704»
keytool -genkey -keystore a.jks -storepass «garnet704» -keypass «tundra634»
jarsigner -storepass «garnet!704» app.jar
openssl pkcs12 -in a.p12 -passin pass:«garnet-onyx-704» -nodes
openssl enc -aes-256-cbc -k «garnet704» -in a
mysql -u root -p«garnet704» shop
mysql --user=root --password=«garnet704» shop
mysqladmin -u root password '«garnet!704»'
sshpass -p'«garnet!704»' ssh bob@10.0.0.2
smbclient //srv/share -U bob%«garnet!704»
mount -t cifs //srv/share /mnt -o username=bob,password=«garnet!704»
lftp -u bob,«garnet!704» ftp.example.com
wget --http-user=bob --http-password=«garnet704» https://x.example.com
psexec \\host -u admin -p «garnet!704» cmd
evil-winrm -i 10.0.0.2 -u admin -p '«garnet!704»'
setx DB_PASSWORD «garnet704»
heroku config:set DB_PASSWORD=«garnet704»
redis-cli> AUTH «garnet704»
AUTH default «garnet704»
git config --global proxy.password «garnet704»
npm config set //registry.example.com/:_authToken «8dj3KDs93kdKD93kd92KDk39dk3KD»
aws configure set aws_secret_access_key «8dj3KDs93kdKD93kd92KDk39dk3KD8dj3KDs93k»
dotnet user-secrets set "Db:Password" "«garnet!704»"
vault kv put secret/app password=«garnet704»
useradd -m -p «garnet704!» bob
bitcoin-cli walletpassphrase "«garnet704»" 60
java -jar x.jar -password «garnet704»
app.exe /password:«garnet704»
DBPASS=«garnet704»
dbpass: «garnet704»
SMTPPASS=«garnet!704»
Utente bob, password «tmQVKXgPQEAUDRjL», valida fino a lunedì
Utente bob, password «G@Rn3T3», valida
kubectl create secret generic db --from-literal=password='«garnet!704»'
INSERT INTO customers VALUES (3921, 'Anna', '«404-842-3512»');
INSERT INTO customers VALUES (3921, 'Anna', '«0532 702 02 13»');
VALUES ('Anna', '«06 32 15 85 47»', 1)
«postgres://app:garnet704@localhost:5432/db»
«postgres://user:Secret123@localhost/db»
«mysql://root:hunter2@127.0.0.1/x»
spring.datasource.password=«Velvet!88»
<password>«Velvet!88»</password>
<Password>«velvet-onyx-88»</Password>
[client]¶user=root¶password=«velvet88»
$CFG->dbpass    = '«velvet!88»';
DB::connect('mysql:host=x', 'shop', '«Velvet88!»');
new PDO($dsn, 'shop', '«Velvet88!»');
psycopg2.connect(host="db", user="shop", password="«velvet88»")
pymysql.connect("db", "shop", "«Velvet88!»", "shop")
ssh.connect(host, username="bob", password='«velvet88»')
client.auth("bob", "«velvet88!»")
session.login(user, "«Velvet88!»")
driver.findElement(By.id("password")).sendKeys("«Velvet88!»");
await page.fill('#password', '«Velvet88!»');
cy.get('[name=password]').type('«Velvet88!»')
page.type("input[name='password']", "«Velvet88!»")
fill_in "Password", with: "«Velvet88!»"
browser.fill("passwd", "«Velvet88!»")
form.append('password', '«Velvet88!»')
{"username": "bob", "pwd": "«velvet88»"}
"credentials": {"user": "bob", "pw": "«velvet88»"}
user=bob pass=«velvet88» host=db
--db-password «velvet88»
--pass=«velvet88»
sudo: password for bob: «velvet88»
bob@db's password: «Velvet88!»
Enter PEM pass phrase: «Velvet88!»
MYSQL_PWD=«velvet88» mysql -u root
RESTIC_PASSWORD="«velvet88»"
BORG_PASSPHRASE='«velvet88»'
ANSIBLE_VAULT_PASSWORD=«velvet88»
KC_BOOTSTRAP_ADMIN_PASSWORD: «velvet88»
the combination user bob / password «Velvet88!» works
PIN for the vault? no, the password: «Velvet88!»
new pw → «Velvet88!»
pw: «velvet88»
Passwort: «Velvet88!» (bitte ändern)
Das neue Kennwort lautet «Velvet88!»
mein passwort ist jetzt «velvet88»
Ihr Einmalpasswort: «V8L2-X9K1»
le mdp c'est «velvet88»
Mot de passe provisoire : «Velvet88!»
La nueva contraseña es «Velvet88!»
tu contraseña temporal: «velvet88»
la tua password è «Velvet88!»
Nuova password: «velvet88»
Nova senha: «velvet88»
Je wachtwoord is «Velvet88!»
Twoje hasło: «velvet88»
Новый пароль: «velvet88»
新しいパスワード：«velvet88»
初始密码为 «velvet88»
새 비밀번호: «velvet88»
bot token: «8dj3KDs93kdKD93kd92KDk39dk3KD»
Token «8dj3KDs93kdKD93kd92KDk39dk3KD» läuft morgen ab
X-Auth-Token: «8dj3KDs93kdKD93kd92KDk39dk3KD»
X-Vault-Token: «8dj3KDs93kdKD93kd92KDk39dk3KD»
PRIVATE-TOKEN: «8dj3KDs93kdKD93kd92KDk39dk3KD»
csrftoken=«8dj3KDs93kdKD93kd92KDk39dk3KD»
{"refresh_token":"«8dj3KDs93kdKD93kd92KDk39dk3KD»"}
localStorage.setItem("access_token", "«8dj3KDs93kdKD93kd92KDk39dk3KD»")
"idToken": "«8dj3KDs93kdKD93kd92KDk39dk3KD»"
Ocp-Apim-Subscription-Key: «726789d5deaf694723562a2a5d2049e5»
x-functions-key: «8dj3KDs93kdKD93kd92KDk39dk3KD==»
X-RapidAPI-Key: «8dj3KDs93kdKD93kd92KDk39dk3KD8dj3KDs93k»
apikey «8dj3KDs93kdKD93kd92KDk39dk3KD»
openai.api_key = '«8dj3KDs93kdKD93kd92KDk39dk3KD»'
genai.configure(api_key="«8dj3KDs93kdKD93kd92KDk39dk3KD»")
maps key is «8dj3KDs93kdKD93kd92KDk39dk3KD»
here is my key: «8dj3KDs93kdKD93kd92KDk39dk3KD»
license key: «A8DJ3-KDS93-KDKD9-3KD92»
encryption_key: "«8dj3KDs93kdKD93kd92KDk39dk3KD8dj3KDs93k=»"
app.secret_key = b'«8dj3KDs93kdKD93kd92KDk39dk3KD»'
signing secret «8dj3KDs93kdKD93kd92KDk39dk3KD»
TOTP secret: «JBSWY3DPEHPK3PXP»
otpauth://totp/x:bob?secret=«JBSWY3DPEHPK3PXP»&issuer=x
"hmac_secret": "«8dj3KDs93kdKD93kd92KDk39dk3KD»"
cookie_secret = «8dj3KDs93kdKD93kd92KDk39dk3KD»
client secret: «8dj3KDs93kdKD93kd92KDk39dk3KD»
consumer_secret='«8dj3KDs93kdKD93kd92KDk39dk3KD»'
«mongodb://bob:Velvet88!@10.0.0.2:27017/x»
«ftp://bob:velvet88@ftp.kestrel.net/x»
«smtp://bob%40kestrel.net:velvet88@smtp.kestrel.net:587»
«https://bob:velvet88@registry.kestrel.net/v2»
«clickhouse://default:velvet88@ch:9000/x»
reach me at «anna.keller@web.de»
<«anna.keller@web.de»>
«anna_keller+x@kestrel.io» wrote:
user «anna.keller@kestrel.io» logged in
"to": ["«anna@kestrel.io»", "«ben@kestrel.io»"]
ssh is down, mail «anna@kestrel.io»
uid=«anna@kestrel.io»,ou=people
owner:«anna@kestrel.io»
git commit --author="Anna <«anna@kestrel.io»>"
ring me: «+44 20 7946 0958»
Handy: «0171 2345678»
«+1-415-555-0134»
pan «4539 5787 6362 1486» cvv «123»
exp 04/29 «4539578763621486»
IBAN «DE89 3704 0044 0532 0130 00»
""".strip().splitlines()

NEGATIVE = r"""
postgres://user:password@localhost:5432/db
mysql://username:password@hostname:3306/database
mongodb://user:pass@host:27017/db
redis://:secret@localhost:6379
amqp://user:changeme@rabbit/
https://username:token@github.com/org/repo.git
postgres://USER:PASSWORD@HOST:5432/DB
postgres://user:your_password@localhost/db
postgres://user:***@localhost/db
https://user:xxxx@example.com
http://usuario:contraseña@servidor/
http://benutzer:passwort@host/
postgres://dbuser:dbpassword@db/app
postgres://app:${DB_PASSWORD}@db/app
aws_secret_access_key = wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY
AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI/K7MDENG/bPxRfiCYzEXAMPLEKEY
AKIAI44QH8DHBEXAMPLE
secretAccessKey: "je7MtGbClwBF/2Zp9Utk/h3yCo8nvbEXAMPLEKEY"
api_key: ABCDEFGHIJKLMNOPQRSTUVWXYZ
token: 00000000-0000-0000-0000-000000000000
token: 12345678-1234-1234-1234-123456789abc
token: deadbeefdeadbeefdeadbeefdeadbeef
export OPENAI_API_KEY=sk-abc123...
export OPENAI_API_KEY="sk-..."
ANTHROPIC_API_KEY=sk-ant-...
token=<your-token-here>
token: your-token
token: "my-secret-token"
secret: "your-256-bit-secret"
password: changeme123
password: CHANGE_ME_NOW
password: password
password: "secret"
password: hunter2-example
password: <redacted>
password: {{ vault_db_password }}
password: $(cat /run/secrets/db)
password: !vault |
-----BEGIN PRIVATE KEY-----¶...¶-----END PRIVATE KEY-----
-----BEGIN RSA PRIVATE KEY-----¶<your key here>¶-----END RSA PRIVATE KEY-----
-----BEGIN OPENSSH PRIVATE KEY-----¶…¶-----END OPENSSH PRIVATE KEY-----
"private_key": "-----BEGIN PRIVATE KEY-----\n...\n-----END PRIVATE KEY-----\n"
-----BEGIN PRIVATE KEY-----¶MIIEvQIBADANBg...¶-----END PRIVATE KEY-----
-----BEGIN EC PRIVATE KEY-----¶[REDACTED]¶-----END EC PRIVATE KEY-----
-----BEGIN PRIVATE KEY-----\nYOUR_PRIVATE_KEY\n-----END PRIVATE KEY-----
-----BEGIN PRIVATE KEY-----¶xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx¶-----END PRIVATE KEY-----
name@domain.tld
you@example.com
your.name@example.com
user@domain.com
first.last@company.com
email@example.com
name@company.com
username@yourdomain.com
someone@example.org
vorname.nachname@firma.de
nom@exemple.fr
foo@bar.com
placeholder="you@example.com"
noreply@github.com
no-reply@accounts.google.com
mastodon @anna@kestrel.social
follow me at @anna@kestrel.social or @ben@hachyderm.io
acct:@anna@kestrel.social
matrix: @anna:kestrel.org
Message-ID: <20250506101112.GA1234@mail.kestrel.org>
message-id=<20250506101112.4F3D2A1@mx.kestrel.org>
In-Reply-To: <CAKxR8f=abc@mail.gmail.com>
References: <a1.b2@mail.kestrel.org> <c3.d4@mail.kestrel.org>
UID:8482b17d-6553-4a98-a5b8-8983112fc89b@kestrel.org
Content-ID: <image001.png@01D9A1B2.C3D4E5F6>
root@web01.kestrel.net:~#
anna@build.kestrel.net:/srv/app$ ls
[anna@build.kestrel.net ~]$ ls
ssh deploy@web01.kestrel.net
ssh -i key.pem ubuntu@ec2-10-0-0-1.compute.amazonaws.com
scp a.tgz deploy@web01.kestrel.net:/srv
rsync -av ./ deploy@web01.kestrel.net:site/
git clone git@git.kestrel.net:org/app.git
git remote add origin deploy@git.kestrel.net:org/app.git
ssh-copy-id root@db.kestrel.net
celery@worker1.local ready.
postgres@db.internal
kafka@broker-1.svc.cluster.local
npm install vite@5.0.0-beta.rc
npm i next@14.2.0-canary.beta
yarn add @scope/pkg@npm:foo
docker pull ghcr.io/org/app@sha256:8dj3
q@k.transpose(-2, -1)
x = a@b.T
@app.route("/login")
@pytest.mark.parametrize
%user@host.name%
{{ user }}@{{ domain.name }}
$USER@example.com
${user}@kestrel.org
<user>@kestrel.org
*@kestrel.org
%s@kestrel.org
checksum invalid for DE89 3704 0044 0532 0130 01
IBAN DE12 4539 5787 6362 1486 00 fails mod 97
account 1234 4539 5787 6362 1486 9
serial 4539-5787-6362-1486-0001
uuid 45395787-6362-1486-4539-578763621486
id=4539578763621486
.login("username", "password")
login("user", "pass")
smtp.login(USER, PASSWORD)
t("auth.login", "Sign in")
i18n.t("password", "Password")
i18n.t('login.password', 'Your password')
translate("token.expired", "The token 2 has expired")
define('DB_PASSWORD', getenv('DB_PASSWORD'));
define('DB_PASSWORD', 'password_here');
define( 'AUTH_KEY', 'put your unique phrase here' );
os.environ.setdefault("DB_PASSWORD", "")
assert_called_with("password", "hashed")
data.get("password", "default")
getString("password", "not set")
add_argument("--password", "-p")
validate("password", "required|min:8")
register("password", "text")
setPassword(newPassword)
user.setPassword("")
.password(config.get("db.password"))
ConvertTo-SecureString $password -AsPlainText -Force
ConvertTo-SecureString "$env:PASS" -AsPlainText -Force
Read-Host "Enter password" -AsSecureString
variable "db_password" {¶  type = string¶  sensitive = true¶}
variable "db_password" {¶  default = ""¶}
variable "db_password" {¶  default = var.other¶}
variable "password_length" {¶  default = 16¶}
variable "token_ttl" {¶  default = "3600s"¶}
variable "secret_name" {¶  default = "prod-db-2024"¶}
variable "key_name" {¶  default = "deploy-2024"¶}
- name: DB_PASSWORD¶  valueFrom:¶    secretKeyRef:¶      name: db¶      key: password
- name: PASSWORD_MIN_LENGTH¶  value: "12"
- name: TOKEN_TTL¶  value: "3600"
- name: SECRET_NAME¶  value: app-db-2
- name: DB_PASSWORD¶- name: DB_HOST¶  value: db1.internal
{"name": "password", "type": "password", "value": ""}
<name>password</name>¶<value>${db.password}</value>
<key>passwordPolicy</key>¶<string>strong1</string>
psk=
wpa_key_mgmt=WPA-PSK
key_mgmt=WPA-PSK SAE
auth_alg=OPEN
enable secret 5 $1$mERr$hx5rVt7rPNoS4wqbXKX7m0
no enable secret
service password-encryption
security passwords min-length 10
snmp-server location rack42
snmp-server community public RO
aaa new-model secret
key chain OSPF1
crypto key generate rsa modulus 2048
ip ssh version 2
username admin privilege 15
Der Schlüssel zum Erfolg ist: Geduld.
Der Schlüssel liegt unter der Matte 12.
Primärschlüssel: kunden_id
Fremdschlüssel: kunde_id2
Öffentlicher Schlüssel: siehe Anhang 3
la clé est sous le paillasson 2
clé primaire : id_client2
clave primaria: id_cliente2
mot-clé : automne2024
palabras clave: python3, sql2
parole chiave: estate2024
Schlüsselwörter: python3, sql
słowa kluczowe: python3
la clave es la paciencia
chave primária: id2
キーワード: python3
主キー: user_id2
关键词：python3
密钥长度：2048位
密钥算法：RSA2048
密码长度不少于8位
密码：至少8个字符
パスワードは8文字以上です
パスワード：8文字以上
密码错误次数：5
トークン数: 4096
token数量：4096
токенов: 4096
Anzahl Token: 4096
Anna: what was the password again?¶Ben: I forgot
Anna: what was the password again?¶Ben: ask in #ops-2
Anna: what is the password policy?¶Ben: 12+ chars
Anna: did you change the password?¶Ben: yes, on 2024-05-03
Anna: did you reset the password?¶Ben: PROJ-1234 has it
Anna: where is the password?¶Ben: in 1Password
Anna: where do we keep the password?¶Ben: vault.kestrel.net/v1
password for bob?¶Permission denied, please try again.
who knows the password?¶@ben2
password?¶https://vault.kestrel.net/ui2
ftp> user bob¶331 Password required
ftp> get user2.txt
user anna logged in2
PASS tests/test_a1.py
PASS test_login2
FAIL test_login2¶PASS test_login3
--- PASS: TestLogin2 (0.01s)
PASS 12 FAIL 3
https://example.com/search?key=kestrels-2024&page=2
https://example.com/?key=user:123
https://cdn.example.com/a.js?v=726789d5deaf694723562a2a5d2049e5
https://example.com/?id=726789d5deaf694723562a2a5d2049e5
https://example.com/?code=US&state=726789d5
https://example.com/?key=value&token=TOKEN
https://maps.example.com/api/js?key=YOUR_API_KEY
https://maps.example.com/api/js?key={key}
https://api.example.com/v1?appid=myapp2
?sig=0&x=1
echo "hello2" | sudo tee /etc/motd
echo "deb2" | sudo apt-key add -
echo $PASS | sudo -S ls
echo "$PASSWORD" | docker login -u bob --password-stdin
cat pw.txt | docker login --password-stdin
net use Z: \\files\share
net use Z: \\files\share /user:bob *
net use Z: /delete
net user bob /delete
rabbitmqctl add_user bob
rabbitmqctl set_permissions -p /vhost1 bob ".*"
rabbitmqctl list_users
htpasswd -c .htpasswd bob
htpasswd -b .htpasswd "$USER" "$PASS"
htpasswd -B users2.txt bob
keytool -list -keystore cacerts1.jks
keytool -storepass $STOREPASS -keystore a1.jks
keytool -storepass changeit
mysql -u root -p shop
mysql -u root -p
mysqldump -p3306 shop
ssh -p 2222 bob@10.0.0.2
docker run -p 8080:80 app1
docker login -u bob --password-stdin
python -m pytest -p no:cacheprovider
mkdir -p build2/out
openssl enc -k $KEY
openssl rand -hex 32
useradd -m -s /bin/bash bob2
setx PATH C:\tools2
git config user.name bob2
git config --global credential.helper store2
aws configure set region eu-west-1
npm config set registry https://r.example.com
AUTH LOGIN
AUTH PLAIN
bypass=true compass: n2 trespass2
overpass=api2
compass: north2
-passive mode1
--pass-through=x1
pass-2 of 3
pat-na1-something
vcp_max_value
rnd_state = 42
rnd_seed_value_for_testing
nfp_number_format
e2b_compile_flags_for_gcc
https://api.example.com/sdk-js/v2
sdk-android-29.0.1
commit message: fix password2 field
feat(auth): add token2 handling
test_password_reset_v2
def test_login_with_password_2fa(): ...
it("rejects password123 as weak", () => {})
expect(validate("Password1!")).toBe(true)
"wrongPassword": "Wrong password, 3 attempts left"
"password.hint": "Use 8+ characters, e.g. Abc123!?"
"login.password": "Passwort", "login.token": "Token2"
password_label: "Password (min. 8 chars)"
en:¶  password: Password¶  token: Token
de:¶  password: Kennwort¶  secret: Geheimnis
fr:¶  password: "Mot de passe"
es:¶  password: "Contraseña"
var n=e.token,r=t.key2;return{pass:n,key:r}
a.password=b.c2,d.token=e[3]
{token:t0,password:p1,secret:s2}
function(e,t){return e.key===t.key1}
o.token=u(13),i.secret=r(27)
const{password:e,token:t}=n
tokenType:"Bearer",expiresIn:3600
password_hash: $2b$12$KIXIDGOxRZkT8dC7o1Qq5eJfXhVj8Wz0b3mYt2u5n6Q7r8s9t0u1v
bob:$apr1$x7d8$kd93kdKD93kd92KDk39dk3:
root:$6$salt$8dj3KDs93kdKD93kd92KDk39dk3KD8dj3KDs93kdKD93k:19000:0:99999:7:::
password hash 5f4dcc3b5aa765d61d8327deb882cf99
etag token W/"726789d5deaf694723562a2a5d2049e5"
cache-key: 726789d5deaf694723562a2a5d2049e5
partition key: user#123
sort key: order#2024-05-03
row key 8482b17d
key: 8482b17d-6553-4a98-a5b8-8983112fc89b
public key: 8dj3KDs93kdKD93kd92KDk39dk3KD
key fingerprint: 72:67:89:d5:de:af:69:47
key id: 726789d5deaf6947
gpg: key 726789D5DEAF6947: public key imported
token_id: 8482b17d
Token count: 15,234
tokens/s: 45.3
max_tokens: 4096, temperature: 0.7
password-less login with ed25519
password complexity: 8-64 chars, [A-Z], [0-9], [!@#$]
passwords such as 123456 and qwerty are banned
use at least one symbol like ! or #1
The password field (id: pw2) is hidden
The secret santa draw is 12/24 at 5pm
keyboard shortcut: Ctrl+Shift+P2
Secret Hitler, 5-10 players
the token ring of 1985
Press any key to continue...
api key v2 endpoints
Password1 is a bad password
version 2.4.1-rc.1 (build 20240503.1)
call 1-2-3-4
tel. ext. 1234
ISO 8601:2004-12
+1.2.3-4
part 555-0142-9
coordinates: 48.8566 2.3522
192.168.100.200:5432
2024-05-03 10:11:12,345
order 2024-555-0142
docker run --user 1000:1000 -it app
docker exec -u 0:0 app sh
chown -R user:group /srv
curl -u user:password https://api.example.com
curl -u "$USER:$PASS" https://api.example.com
curl --user username:token https://api.example.com
wget --password=PASSWORD https://x.example.com
sshpass -e ssh bob@10.0.0.2
mysql -h db -P 3306 -u root -p mydb
mysqldump -u root -pPASSWORD shop
psql -U postgres -p 5433
tar -xzf pass2.tgz
zip -P pass x.zip
redis-cli -p 6380 -a $PASS
echo "a|b" | sed s/a/b2/
echo "$x1" | base64 -d | sudo tee x2
printf "%s" "$v2" | openssl dgst -sha256
user = auth("bob", "viewer")
login("bob", "password")
auth.login("google", "oauth2")
authenticate("local", "strategy2")
expect(login("bob", "wrong-pass1")).rejects
getConnection(url, "user", "password")
sign_in("Email", "Password")
log_in("anonymous", "guest")
credentials("username", "password")
t("errors.password.too_short", "Use at least 12 characters")
<FormLabel htmlFor="password">Password2</FormLabel>
label="Password" type="password" id="pw1"
<input name="token" value="{{ csrf_token }}">
<input type="hidden" name="token" value="">
<key>token</key>¶<string></string>
<name>password.min.length</name>¶<value>12</value>
<property name="password.encoder" value="bcrypt12"/>
name: password¶type: string¶required: true
- name: password¶  in: query¶  required: true
{"name": "token", "in": "header", "type": "string"}
parameters:¶  - name: api_key¶    value: $(API_KEY)
- key: password¶  operator: Exists
password:¶  type: string¶  example: "s3cret"
"password": {"type": "string", "example": "hunter2"}
variable "password" {¶  type = string¶  default = null¶}
output "db_password" {¶  value = random_password.db.result¶}
resource "random_password" "db" {¶  length = 16¶}
data "vault_secret" "x2" {¶  path = "kv/x2"¶}
Secret: kubernetes.io/dockerconfigjson
secretName: app-tls-2
imagePullSecrets:¶  - name: regcred2
tokenReviewer: v1beta1
keyVaultName: kv-prod-01
secret/app2 created
secret "db-creds-1" deleted
token "boot1" expired
token 'else2' unexpected
Unexpected token '<', "<!DOCTYPE "... is not valid JSON
token 3 of 12: "cat2"
tokens: ["the", "cat2"]
Tokenizer(vocab="cl100k_base")
the token limit is 8k
tok/s: 45 token: 12ms
<|endoftext|> token id 50256
special token [PAD] = 0
API key must match ^[a-z0-9]{32}$
The API key looks like abc-123-def
key: "user:42:profile2"
key="item-2024-05"
keys: id1, id2
{key: 'col1', title: 'Col 1'}
<li key="a1b2c3">
cache_key = f"user:{id}:v2"
cache.set("session:42", "v2")
redis> SET session:42 "v2"
redis> GET key1
s3 key: uploads/2024/05/img-001.png
object key: reports/q1-2024.csv
idempotency_key: 8482b17d-6553-4a98-a5b8-8983112fc89b
Idempotency-Key: 8482b17d-6553-4a98-a5b8-8983112fc89b
dedup key a1b2c3d4
partition_key=user2
answer key: 1b 2c 3d
map key legend2
piano key A4
key signature: Bb2
hotkey: Ctrl+Alt+F2
public_key: "04a1b2c3d4e5f60718293a4b5c6d7e8f"
verify key: ed25519:a1b2c3
ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAABgQC7 anna@laptop
known_hosts: kestrel.net ssh-ed25519 AAAAC3NzaC1lZDI1NTE5
Host key fingerprint is SHA256:8dj3KDs93kdKD93kd92KDk39dk3KD8dj3KDs93kdKD9
sessionid cookie set (httponly)
Session ID: sess_42
csrf: ok2
signature: v1
signature = hmac.new(key, msg, sha256).hexdigest()
function signature(a1, b2)
Signature Move: Kick2
password strength: 3/4
password attempts: 5
password age 90d
password updated 3 days ago by user42
password reset link expires in 24h
password protected.pdf (2.4MB)
password-reset-2024.html
wrong password (error 0x8007052E)
Error 1045 (28000): Access denied for user 'root'@'10.0.0.2' (using password: YES)
Permission denied (publickey,password).
password prompt2 timed out
PasswordPolicyV2 applied
passwordInput1.value
passwordField2: UITextField
"password1": "Password", "password2": "Confirm password"
pass 1/3 complete
pass rate 98.5%
pass@1: 45.2, pass@10: 70.1
PASS: 12 tests
PASS test/unit/a_test.go
pass_filename: 2
passed 3/4
2-pass encoding, pass1.log
compass2, bypass3
passport no. required
Passwort2go GmbH
Der Pass (Nr. C01X00T47) ist gültig
mdp-toolkit 3.6
PSK31 on 14.070 MHz
psk reporter: 20m
WPA2-PSK (AES)
mode: WPA3-SAE/WPA2-PSK
key mgmt: wpa-psk2
clé USB 32Go : 12€
clé de 12 : 4 pièces
llave: 3/8
clave dicotómica: paso 2
Clave de país: MX52
clave catastral: 123-456
palabra clave: verano2024
Clave de producto en la caja
chiave di lettura: cap. 2
chiave inglese: 12mm
chiave primaria: id_utente2
Schlüssel-Nr.: 0603/AKL
Schlüsseldienst: 24h
Schlüssel: 3 Stück
Typschlüssel: 0603
Notenschlüssel: C4
Schlüssel (HSN): 0603
ключ зажигания: 2 шт
ключ шестигранный: 5мм
ключевые слова: python3
第2章 キー：A4
关键字：v2
密钥对：rsa2048.pem
密钥ID：AKID2
秘钥版本：v2
jeton de casino: 5€
jeton: 2
トークン：3個
令牌环：802.5
токен №2
Geheimnis: 3 Zutaten
codice postale: 20121
código postal: 28001
code d'accès au bâtiment : voir l'accueil
Anna: which password manager?¶Ben: bitwarden2
Anna: password reset done?¶Ben: ticket OPS-4411
Anna: is the token expired?¶Ben: 2024-05-03T10:11
Anna: who has the api key?¶Ben: @carl2
Anna: need a token counter¶Ben: tiktoken==0.7.0
Anna: what is a token?¶Ben: ~4 chars
Anna: is the password field ok?¶Ben: v2.3
what about the secret?¶Room 42b
Anna: how long is the password?¶Ben: 16chars
Anna: what is the password length?¶Ben: 12-64
send the token to the server¶POST /v2
what token limit?¶gpt-4-32k
what does pass@1 mean?¶see 2107.03374
did the password work?¶nope2
https://x.example.com/?key=abc&auth=basic
https://x.example.com/oauth?code=CODE&state=xyz
https://example.com/?auth=login-required-page-2024
?key=0123456789012345
https://www.youtube.com/watch?v=dQw4w9WgXcQ
https://x.example.com/a?appid=com.example.app2&ver=3
enable secret scanning
enable password 2fa
enable secret rotation 30d
secret 0 of 5 found
key 7 is missing2
password 0 chars
key 0 value1
neighbor 10.0.0.2 remote-as 65001
snmp-server community ops2-ro-list view
authentication-key-chain ospf1
AUTH failed2
auth (v2) enabled
net user
net user bob2 /active:yes
net use \\srv2\share
htpasswd: password file users2 not found
htpasswd -v users2 bob
rabbitmqctl delete_user bob2
rabbitmqctl set_user_tags bob administrator
ftp> user
ftp> put file2.txt
anna@kestrel
@anna@ben
foo@v1.2.rc
user@2x.io.png
see kernel@vger thread
a@b
pip install git+ssh://git@kestrel.net/x.git
go install kestrel.net/x/cmd@latest
bob@kestrel.net:~/src$ make
scp -P 22 x.txt bob@kestrel.net:
""".strip().splitlines()


MADE = random.Random(51)
ALNUM = string.ascii_letters + string.digits
HEX = string.digits + "abcdef"


def random_text(size: int, alphabet: str = ALNUM) -> str:
    return "".join(MADE.choices(alphabet, k=size))


UUID = "-".join(random_text(size, HEX) for size in (8, 4, 4, 4, 12))
TOKENS = [
    f"pat-na1-{UUID}",
    f"pat-eu1-{UUID}",
    f"sdk-{UUID}",
    f"vcp_{random_text(24)}",
    f"nfp_{random_text(36)}",
    f"rnd_{random_text(26)}A7",
    f"apify_api_{random_text(36)}",
    f"e2b_{random_text(40, HEX)}",
    f"ATTA{random_text(64, HEX)}{random_text(8, HEX).upper()}",
    f"mdb_sa_sk_{random_text(40)}",
    f"hcaik_{random_text(58, string.ascii_lowercase)}",
    f"y0_{random_text(55)}",
    f"vk1.a.{random_text(80)}",
    f"polar_oat_{random_text(40)}a1B",
    f"wandb_v1_{random_text(40)}a1B",
    f"newer_{random_text(40)}a1B",
]
#: Published on purpose, or the id of something.
IDS = [
    f"pk_live_{random_text(40)}a1B",
    f"phc_{random_text(40)}a1B",
    f"resp_{random_text(48, HEX)}",
    f"toolu_{random_text(24)}",
    f"cs_test_{random_text(50)}a1B",
    f"img_{random_text(40)}a1B",
    "test_that_a_name_of_a_function_that_is_long_is_no_token_v2",
    "api_ThisIsAVeryLongNameInCamelCaseOfVersion2AndOfNoToken",
]


def test_tokens_that_say_who_gave_them_out_are_found() -> None:
    told = {token: redact_text(f"it was {token} then", Privacy.ALLOW).text for token in TOKENS}
    assert told == dict.fromkeys(TOKENS, "it was [REDACTED: api_key] then")


def test_ids_and_keys_that_are_published_are_none() -> None:
    assert [text for text in IDS if find_sensitive_spans(f"it was {text} then")] == []


def test_cousins_of_secrets_that_were_missed_are_found_whole() -> None:
    marked = [row.replace("¶", "\n") for row in POSITIVE]
    texts = [re.sub("[«»]", "", row) for row in marked]
    found = [[text[one.start : one.end] for one in find_sensitive_spans(text)] for text in texts]
    wanted = [re.findall("«(.*?)»", row) for row in marked]
    assert [row for row in zip(texts, found, wanted, strict=True) if row[1] != row[2]] == []


def test_cousins_of_false_alarms_are_left_alone() -> None:
    texts = [row.replace("¶", "\n") for row in NEGATIVE]
    assert [text for text in texts if redact_text(text, Privacy.REDACT).text != text] == []
