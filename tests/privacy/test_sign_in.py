"""Sign-in details apart from their names, numbers to call and what looks alike: cousins of what the ninth part showed.

In a row a line ends at ¶. Nothing here is real.
"""

from __future__ import annotations

import re

from acms import Privacy
from acms.privacy.detect import find_sensitive_spans, redact_text

#: What is sensitive stands between « and »; an address of mail beside it may be found, too.
POSITIVE = r"""
ipmitool -I lanplus -H 10.0.0.2 -U ADMIN -P «garnet-juniper-66» sol activate
xfreerdp /u:ann /p:'«qwerty871»' /v:10.0.0.2
wlfreerdp /u:ann /p:«juniper!20» /v:10.0.0.2
mosquitto_pub -h broker -u app -P «juniper!20» -t a -m b
cqlsh -u app -p «juniper!20» 10.0.0.2
rdesktop -u app -p «juniper!20» 10.0.0.2
lftp -u ann,«juniper!20» sftp://files.example.net
plink -ssh ann@10.0.0.2 -pw «juniper!20»
name,login,password¶Ann,ann,«yVx9K3ewXQXl»¶Bob,bob,«tsf6QfbUydrq»¶
user;password;role¶ann;«kestrel!52»;admin¶
user	password¶ann	«kestrel!52x»
"login","password","mail"¶"ann","«kestrel!52x»","x"
| User | Password |¶|---|---|¶| ann | `«kestrel!52x»` |¶| bob | «garnet9120» |
db.internal:5432:shop:app:«NZBickNyg0YX2MfI»
*:*:*:app:«NZBickNyg0YX2MfI»
can you log in with ann@example.net / «qwerty2091» and look?
Zugang: ann@example.de / «Keller#15»
test account: `ann@example.net` | `«Keller1520»`
wifi passphrase: «pebble indigo onyx 67»
The passphrase is «quartz willow willow 90»
Ich habe das Passwort auf «onyx!33» zurückgesetzt.
Das Passwort wurde auf «onyx3344» geändert.
He cambiado la contraseña a «onyx3344»
J'ai changé le mot de passe en «onyx3344»
Ik heb het wachtwoord gewijzigd naar «onyx3344»
Mudei a senha para «onyx3344»
kubeadm join 10.0.0.2:6443 --token «bf425d.c35f09983104137e» --x
./config.sh --url https://x.example --token «AVOMRGZOGCATSNNOSAYLUDCWDRRLY»
DBI->connect("dbi:Pg:dbname=shop", "app", "«onyx3344»")
new NetworkCredential("app", "«onyx3344»", "corp")
ServerConfig.builder().password("«onyx3344»").build()
mdp : «onyx3344»
la clave del wifi es «onyx3344»
初期パスワードは「«onyx3344»」です
初始密码为«onyx3344»
das WLAN-Passwort lautet «onyx3344»
メールは«anna-rossi@example.fr»です。
邮箱是«anna@orange.fr»，谢谢
mail me: «willow.anchor (at) fjord (dot) com»
reach me at «willow [at] fjord [dot] co [dot] uk» please
write to «willow at fjord dot com»
Sie erreichen mich unter «0176 339 85110».
Rufen Sie an: «0176 339 85110»
Mi móvil es el «602 176 424», llámame.
Je kunt me bellen op «06 62334461».
Vous pouvez me joindre au «06 12 34 56 78».
T «0532 285 64 36»¶M «082 390 5054»
https://wa.me/«4917359462757» ping me
psk=«onyx3344»
INSERT INTO users (id, login, password) VALUES (1, 'ann', '«onyx!3344»');
Login;Passwort¶ann;«kestrel!52»
| Nutzer | Kennwort |¶|---|---|¶| ann | «kestrel!52» |
| utilisateur | mot de passe |¶|---|---|¶| ann | «kestrel!52» |
ssid,psk¶home,«kestrel5299»
email,password,plan¶ann@example.net,«kestrel!52»,free
host	user	passwd¶10.0.0.2	ann	«kestrel!52»
unzip -P '«kestrel!52»' a.zip
openssl pkcs12 -in a.p12 -passin pass:«kestrel!52»
cmdkey /add:srv /user:ann /pass:«kestrel!52»
net use Z: \\srv\share «kestrel!52» /user:ann
imapsync --host1 a --user1 ann --password1 «kestrel!52»
ansible-playbook site.yml -e ansible_become_pass=«kestrel!52»
mount -t cifs //srv/share /mnt -o username=ann,password=«kestrel!52»
DriverManager.getConnection("jdbc:x", "ann", "«kestrel!52»")
pymysql.connect("10.0.0.2", "ann", "«kestrel!52»", "shop")
das Passwort vom Server ist «kestrel!52»
Le code wifi : «kestrel!52»
le mot de passe du wifi c'est «kestrel!52»
la password del wifi è «kestrel!52»
o pass do wifi é «kestrel!52»
hasło do wifi: «kestrel!52»
WiFi密码是«kestrel52ab»
비밀번호는 «kestrel!52» 입니다
пароль от вайфая: «kestrel!52»
Call me on «0171 2345678»
Ring mig på «070-123 45 67»
mój numer to «601 234 567»
Il mio cellulare è «347 123 4567»
Meu celular é «(11) 91234-5678»
Meine Handynummer: «0171 2345678»
mein Handy ist die «0171 2345678»
chiamami al «347 1234567»
WhatsApp: «07911 123456»
https://api.whatsapp.com/send?phone=«4917359462757»
""".strip("\n").split("\n")

#: Nothing is found in these but an address of mail.
NEGATIVE = r"""
10:15 [error] 12#12: *7 user "ann": password mismatch, client: 10.0.0.2
auth failed for ann, password: mismatched
password: locked
pam_unix: password: failure for ann
use Illuminate\Support\Facades\Password;¶Password::min(12)->mixedCase()->uncompromised();
Token::parse($input2)
password::reset_v2
| Setting | Password | Token |¶|---|---|---|¶| length | 12 chars | 32 |¶| hash | argon2id | sha256 |
| Feature | Password | SSO |¶|---|---|---|¶| Pro | yes | v2 |
id,user,password_hash¶1,ann,$2b$12$abcdefghijklmnopqrstuv
id,user,password¶1,ann,***¶2,bob,<hidden>
key,en,de¶login.password,Password,Passwort
user,password,remember_me¶
root:x:0:0:root:/root:/bin/bash
main.c:12:5:error:undefined1
src:10:5:warning:unused_x2
10.0.0.2:5432:shop:app
Signed-off-by: Ann <ann@example.net> / 2024-05-01
login was ann@example.net / ticket ABC-123
log in at ann@example.net | 2024-05-01T10:00:00Z
Account ann@example.net / Berlin
passphrase: must be at least 12
The passphrase is stored in vault 3
Das Passwort wurde auf 12 Zeichen geändert
He cambiado la contraseña a las 10:30
password changed to sha256 in v2
J'ai changé le mot de passe en 2024
deploy --token YOURTOKENGOESHEREPLEASEADD
GitHub Personal Access Token: raven/settings.py:32
Token: src/auth/jwt.ts:118:9
wa.me/ links are short
Step 1: M 20 30 40
appel d'offres 2024 12 34
see you at noon, not dot com
bestell-nr 0176 33985110
Look at the file at src dot
Passwort auf dem Server 3 geändert
token,count¶the,120394¶of,98234
token,logprob¶hello2,0.1¶
key,value¶timeout,30s¶retry2,a1
Key | Value¶--- | ---¶build | a1b2c3d4
passwords,tokens¶12a4b6,34
password: expiring in 3 days
password: OK
password: not matched
Password: bcrypt
password: n/a (SSO2)
"password": "Passwort vergessen?"
password mismatch2
level;password;min_len¶1;abc;12
function,password,line¶login2,check_pw,42
test,password,ok¶test_login2,False,yes
| Flag | Password | Meaning |¶|---|---|---|¶| -p | --pass2 | x |
| Route | Token | Status |¶|---|---|---|¶| /v1/login2 | none | 200 |
| Type | Password |¶|---|---|¶| field | VARCHAR(50) |
2024-05-01 10:00:00:54:foo:bar:baz1
10.0.0.2:5432:up
*:*:*:*
log in at https://example.net / v2.3.1
login from ann@example.net / 10.0.0.2
sign in as ann@example.net / role-admin2
erreichen Sie Ziel 12 345 678
rufen Sie die Seite 2024 12 34 auf
T 1000 2000 3000
M 10 20 30 40 50
""".strip("\n").split("\n")


def test_secrets_apart_from_their_names_are_found_whole() -> None:
    missed: list[tuple[str, set[str]]] = []
    for row in POSITIVE:
        marked = row.replace("¶", "\n")
        text = re.sub("[«»]", "", marked)
        left = set(re.findall("«([^»]+)»", marked)) - {
            text[one.start : one.end] for one in find_sensitive_spans(text)
        }
        once = redact_text(text, Privacy.REDACT).text
        if left or redact_text(once, Privacy.REDACT).text != once:
            missed.append((text, left))
    assert missed == []


def test_what_only_looks_like_sign_in_details_is_left_alone() -> None:
    texts = [row.replace("¶", "\n") for row in NEGATIVE]
    assert [text for text in texts if any(one.kind != "email" for one in find_sensitive_spans(text))] == []
