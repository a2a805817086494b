"""Families of secrets and of what looks like one: each row is a cousin of a text that was missed or taken for one.

In a row a line ends at ¶. Nothing here is real.
"""

from __future__ import annotations

import random
import re
import string

import pytest

from acms.core.privacy import redact, spans
from acms.model import Privacy

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
consul kv put app/db/password «garnet704!»
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
INSERT INTO users (login, pass) VALUES ('bob', '«garnet!704»');
INSERT INTO customers VALUES (3921, 'Anna', '«404-842-3512»');
INSERT INTO customers VALUES (3921, 'Anna', '«0532 702 02 13»');
VALUES ('Anna', '«06 32 15 85 47»', 1)
«postgres://app:garnet704@localhost:5432/db»
«postgres://user:Secret123@localhost/db»
«mysql://root:hunter2@127.0.0.1/x»
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
SSN format: XXX-XX-XXXX
coordinates: 48.8566 2.3522
192.168.100.200:5432
2024-05-03 10:11:12,345
order 2024-555-0142
""".strip().splitlines()


MADE = random.Random(51)
ALNUM = string.ascii_letters + string.digits
HEX = string.digits + "abcdef"


def made(size: int, alphabet: str = ALNUM) -> str:
    return "".join(MADE.choices(alphabet, k=size))


UUID = "-".join(made(size, HEX) for size in (8, 4, 4, 4, 12))
TOKENS = [
    f"pat-na1-{UUID}",
    f"pat-eu1-{UUID}",
    f"sdk-{UUID}",
    f"vcp_{made(24)}",
    f"nfp_{made(36)}",
    f"rnd_{made(26)}A7",
    f"apify_api_{made(36)}",
    f"e2b_{made(40, HEX)}",
    f"ATTA{made(64, HEX)}{made(8, HEX).upper()}",
    f"mdb_sa_sk_{made(40)}",
    f"hcaik_{made(58, string.ascii_lowercase)}",
    f"y0_{made(55)}",
    f"vk1.a.{made(80)}",
    f"polar_oat_{made(40)}a1B",
    f"wandb_v1_{made(40)}a1B",
    f"newer_{made(40)}a1B",
]
#: Published on purpose, or the id of something.
IDS = [
    f"pk_live_{made(40)}a1B",
    f"phc_{made(40)}a1B",
    f"resp_{made(48, HEX)}",
    f"toolu_{made(24)}",
    f"cs_test_{made(50)}a1B",
    f"img_{made(40)}a1B",
    "test_that_a_name_of_a_function_that_is_long_is_no_token_v2",
    "api_ThisIsAVeryLongNameInCamelCaseOfVersion2AndOfNoToken",
]


@pytest.mark.parametrize("place", range(len(TOKENS)))
def test_a_token_that_says_who_gave_it_out_is_found(place: int) -> None:
    token = TOKENS[place]
    assert redact(f"it was {token} then", Privacy.ALLOW).text == "it was [REDACTED: api_key] then"


@pytest.mark.parametrize("place", range(len(IDS)))
def test_ids_and_keys_that_are_published_are_none(place: int) -> None:
    assert spans(f"it was {IDS[place]} then") == []


@pytest.mark.parametrize("row", POSITIVE, ids=range(len(POSITIVE)))
def test_a_cousin_of_a_secret_that_was_missed_is_found_whole(row: str) -> None:
    row = row.replace("¶", "\n")
    text = re.sub("[«»]", "", row)
    found = [text[one.start : one.end] for one in spans(text)]
    assert found == re.findall("«(.*?)»", row)


@pytest.mark.parametrize("row", NEGATIVE, ids=range(len(NEGATIVE)))
def test_a_cousin_of_a_false_alarm_is_left_alone(row: str) -> None:
    text = row.replace("¶", "\n")
    assert redact(text, Privacy.REDACT).text == text
