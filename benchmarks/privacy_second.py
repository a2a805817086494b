"""The part `second` of `privacy_logs`: what real places hold, sensitive and not."""

# ruff: noqa: E501  a template stays in one line

from __future__ import annotations

import base64
from collections.abc import Iterator

from privacy_logs import ALNUM, BASE64, DIGITS, HEX, LOWER, UPPER, URLSAFE, Make, s


def positives(m: Make) -> Iterator[str]:
    """Yield one text of each layout."""
    k, p, v = m.key, m.password, m.random_value
    first, last = m.person()
    host = f"{m.word()}.{m.one('internal', 'example.com', 'svc.cluster.local')}"

    # keys of known services, wherever people put them
    key = s("api_key", k())
    yield m.one(
        f"OPENAI_API_KEY={key}", f"export SERVICE_TOKEN='{key}'", f"  api_key: {key}  # rotate in March", f'{{"credentials": {{"key": "{key}", "region": "eu-west-1"}}}}', f"-e TOKEN={key} \\\n  -p 8080:80 app:latest",
        f"[default]\nkey = {key}\noutput = json", f"key = \"{key}\"\n[server]\nport = 80", f"<entry key=\"token\">{key}</entry>", f"client = Client('{key}')", f"new Client({{ token: `{key}` }});",
        f"curl https://api.{host}/v1/items -H \"X-Token: {key}\"", f"GET /v2/items?limit=10&access={key} HTTP/1.1", f"{m.time()} DEBUG http: > authorization: {key}", f"+    token: {key}\n-    token: ${{TOKEN}}",
        f"Step 7/9 : ENV TOKEN {key}\n ---> Running in {m.of(HEX, 12)}", f"::debug::token is {key}", f"{first}: hey, can you try with {key}? mine has no quota left", f"Der Schlüssel ist {key}, bitte nicht weitergeben.",
        f"Voici la clé : {key}", f"这是密钥：{key}", f"> {key}\n\nthis was in the old repo", f"| prod | {key} | 2025-01-01 |", f"//registry.npmjs.org/:_authToken={key}", f"machine {host}\n  login bot\n  password {key}",
        f"\"env\": [{{\"name\": \"TOKEN\", \"value\": \"{key}\"}}]", f"remote: https://oauth2:{key}@gitlab.{host}/team/app.git", f"Bot token: {key}", f"window.__KEY__=\"{key}\";(function(){{}})()", f"raise AuthError('rejected key {key}')", f"{key}\n",
    )  # fmt: skip
    # random values that only a name calls secret
    value = v()
    for name, kind in m.random.sample(
        [("AWS_SECRET_ACCESS_KEY", "api_key"), ("client_secret", "client_secret"), ("API_KEY", "api_key"), ("apiKey", "api_key"), ("STRIPE_WEBHOOK_SECRET", "secret"), ("JWT_SECRET", "secret"), ("access_token", "token"), ("refreshToken", "token"), ("AUTH_TOKEN", "token"),
         ("SECRET_KEY", "secret"), ("encryption-key", "api_key"), ("signing_secret", "secret"), ("DATADOG_API_KEY", "api_key"), ("consumer_secret", "client_secret"), ("bot_token", "token"), ("x-api-key", "api_key"), ("session_secret", "secret"), ("AZURE_CLIENT_SECRET", "client_secret"),
         ("oauth_token_secret", "token"), ("private_key_id_secret", "secret"), ("subscription-key", "api_key"), ("id_token", "token"), ("sas_token", "token"), ("deploy_token", "token"), ("TWILIO_AUTH_TOKEN", "token"), ("master_key", "api_key"), ("hmac_secret", "secret"), ("service_account_key", "api_key")], 4):  # fmt: skip
        value = s(kind, v())
        yield m.one(
            f"{name}={value}", f"{name} = '{value}'", f"export {name}=\"{value}\"", f'"{name}": "{value}",', f"{name}: {value}\nregion: eu", f"    - {name}={value}", f"set {name} {value}" if "_" in name else f"{name}: \"{value}\"",
            f"ENV {name}={value}", f"{name} := \"{value}\"", f"--{name.lower().replace('_', '-')}={value} --verbose", f"--{name.lower().replace('_', '-')} {value}", f"?{name}={value}&page=1", f"<{name}>{value}</{name}>", f"'{name}' => '{value}',",
            f"[INFO] loaded {name}: {value}", f"const {name.replace('-', '_')} = '{value}';", f"os.environ['{name}'] = '{value}'", f"{{\\\"{name}\\\":\\\"{value}\\\"}}", f"| {name} | {value} |", f"{name}\t{value}" if "KEY" in name else f"{name}: {value}",
        )  # fmt: skip
    # passwords: configuration, code, shells
    secret = s("password", p())
    yield m.one(
        f"DB_PASSWORD={secret}\nDB_HOST={host}", f"password: {secret}", f'password: "{secret}"', f"  POSTGRES_PASSWORD: {secret}", f"spring.datasource.password={secret}", f"$config['password'] = '{secret}';", f"PGPASSWORD={secret} pg_dump -h {host} app",
        f"mysql -u root -p{secret} app < dump.sql", f"sshpass -p {secret} ssh admin@{m.ip()}", f"redis-cli -h {host} -a {secret} ping", f"curl -u {first.lower()}:{secret} https://{host}/", f"wget --user=bot --password={secret} https://{host}/f.zip",
        f"docker login -u bot -p {secret} registry.{host}", f"net use Z: \\\\srv\\share /user:{last.lower()} {secret}", f"ALTER USER app WITH PASSWORD '{secret}';", f"CREATE USER 'app'@'%' IDENTIFIED BY '{secret}';", f"requirepass {secret}", f"ansible_become_pass: {secret}",
        f"define('DB_PASSWORD', '{secret}');", f"auth=('bot', '{secret}')", f'{{"user":"{first.lower()}","pass":"{secret}"}}', f'<property name="password" value="{secret}"/>', f"ConnectionStrings__Main=Server={host};User Id=sa;Password={secret};", f"smtp_password = {secret}",
        f"login: {first.lower()}\npwd: {secret}", f"{first.lower()}:{secret}@{host}:22", f"POST /login username={first.lower()}&password={secret}", f"keystore.password={secret}", f"unzip -P {secret} backup.zip", f"openssl enc -aes-256-cbc -pass pass:{secret} -in a -out b",
    )  # fmt: skip
    # passwords: people talking
    secret = s("password", p())
    yield m.one(
        f"my password is {secret}", f"the password's {secret} btw", f"pw: {secret}", f"use admin / {secret} for the staging login, password included", f"I've set your password to {secret}, change it after logging in", f"password is still {secret} right?", f"wifi password: {secret}",
        f"username {first.lower()} password {secret}", f"Your temporary password is: {secret}\nIt expires in 24 hours.", f"pass = {secret}, user = {first.lower()}", f"ok the vpn password is '{secret}'", f"try \"{secret}\" as the password", f"Login: {first.lower()}@{host}, Password: {secret}",
        f"Mein Passwort lautet {secret}.", f"Das Passwort für den Router ist {secret}", f"Kennwort: {secret}", f"Benutzer: {last}, Passwort: {secret}", f"Mon mot de passe est {secret}", f"mot de passe : {secret}", f"La contraseña es {secret}", f"contraseña: {secret}",
        f"A senha é {secret}", f"密码是 {secret}", f"密码：{secret}", f"パスワードは {secret} です", f"пароль: {secret}", f"La password è {secret}", f"hasło: {secret}", f"wachtwoord: {secret}", f"비밀번호: {secret}", f"Şifre: {secret}", f"lösenord: {secret}", f"The passphrase is {secret}",
        f"PIN and password: see below\npassword = {secret}", f"root password -> {secret}", f"I always use {secret} as my password",
    )  # fmt: skip
    # headers, cookies, sessions
    value = v()
    pair = base64.b64encode(f"{first}:{p()}".encode()).decode()
    yield m.one(
        f"Authorization: Bearer {s('bearer_token', value)}", f"curl -H 'Authorization: Bearer {s('bearer_token', value)}' https://{host}/me", f"authorization: Basic {s('password', pair)}", f'"Authorization": "Basic {s("password", pair)}"', f"Proxy-Authorization: Basic {s('password', pair)}",
        f"Cookie: theme=dark; sessionid={s('token', value)}; lang=de", f"Set-Cookie: session={s('token', value)}; Path=/; HttpOnly", f"Set-Cookie: auth_token={s('token', value)}; Secure", f"X-Auth-Token: {s('token', value)}", f"X-Amz-Security-Token: {s('token', value)}", f"PHPSESSID={s('token', m.of(LOWER + DIGITS, 26))}",
        f"connect.sid={s('token', 's%3A' + m.of(URLSAFE, 32) + '.' + m.of(BASE64, 43))}", f"JSESSIONID={s('token', m.of(HEX.upper()[:16], 32))}; Path=/", f"X-Vault-Token: {s('token', value)}", f"ocp-apim-subscription-key: {s('api_key', m.of(HEX, 32))}", f"headers: {{ 'x-api-key': '{s('api_key', value)}' }}",
        f"req.setHeader('Authorization', 'Bearer {s('bearer_token', value)}')", f"session_id={s('token', value)}", f"Private-Token: {s('token', value)}", f"access_token: {s('token', value)}, expires_in: 3600",
    )  # fmt: skip
    token = s("jwt", m.jwt())
    yield m.one(f"Authorization: Bearer {token}", f"token={token}", f'{{"id_token":"{token}","token_type":"Bearer"}}', f"jwt: {token}", f"{m.time()} WARN rejected {token}: expired", f"https://{host}/cb#access_token={token}&state=x", f"Cookie: jwt={token}", f"decoded {token}")  # fmt: skip
    pem = m.pem()
    yield m.one(
        f"cat id_rsa\n{s('private_key', pem)}\n", s("private_key", pem), f"key: |\n  {s('private_key', pem.replace(chr(10), chr(10) + '  '))}\ncert: none", '{"type":"service_account","private_key":"' + s("private_key", pem.replace("\n", "\\n")) + '\\n"}', f"KEY=\"{s('private_key', pem)}\"",
        f"my key:\n\n{s('private_key', pem[: len(pem) // 2])}", f"const k = `{s('private_key', pem)}`;",
    )  # fmt: skip
    # addresses with credentials
    inside = p().replace("@", "%40").replace("#", "%23").replace("/", "%2F").replace("?", "%3F")
    scheme = m.one(
        "postgresql",
        "mysql+pymysql",
        "mongodb+srv",
        "redis",
        "amqps",
        "https",
        "ftp",
        "mssql",
        "clickhouse",
        "ldap",
        "smtp",
        "nats",
    )
    url = s(
        "connection_string",
        f"{scheme}://{m.one('app', 'root', first.lower())}:{inside}@{host}:{m.num(1000, 9999)}/{m.word()}",
    )
    yield m.one(f"DATABASE_URL={url}", f"url: {url}", f"git clone {url}", f"connecting to {url} ...", f'"dsn": "{url}"', f"psql '{url}'", f"it's {url}, I think", f"<{url}>", f"ERROR could not connect to {url}: timeout")  # fmt: skip
    yield m.one(
        f"DefaultEndpointsProtocol=https;AccountName={m.word()};AccountKey={s('api_key', m.of(BASE64, 86) + '==')};EndpointSuffix=core.windows.net", f"https://hooks.slack.com/services/{s('api_key', f'T{m.of(UPPER + DIGITS, 10)}/B{m.of(UPPER + DIGITS, 10)}/{m.of(ALNUM, 24)}')}",
        f"Endpoint=sb://{m.word()}.servicebus.windows.net/;SharedAccessKeyName=Root;SharedAccessKey={s('api_key', m.of(BASE64, 43) + '=')}", f"https://{m.word()}.blob.core.windows.net/c/f?sv=2024-08-04&sr=b&sig={s('secret', m.of(ALNUM, 43) + '%3D')}", f"aws_secret_access_key = {s('api_key', m.of(BASE64, 39) + '5')}",
        f"https://discord.com/api/webhooks/{s('api_key', m.of('123456789', 18) + '/' + m.of(URLSAFE, 68))}", f"https://api.telegram.org/bot{s('api_key', m.of('123456789', 10) + ':AA' + m.of(URLSAFE, 33))}/getMe", f"Seed phrase: {s('secret', ' '.join(m.word() for _ in range(12)))}",
    )  # fmt: skip
    # people
    mail, phone = s("email", m.mail()), s("phone", m.phone())
    yield m.one(
        f"Author: {first} {last} <{mail}>", f"reach me at {mail} any time", f"From: {mail}\nTo: list", f'{{"email":"{mail}","plan":"pro"}}', f"mailto:{mail}?subject=hi", f"{first} ({mail}) joined", f"user={mail} action=login ip={m.ip()}", f"{last},{first},{mail},Berlin", f"Schreib mir an {mail}!",
        f"écrivez à {mail}, merci", f"联系我：{mail}", f"E-Mail: {mail}", f"to=<{mail}>, relay=none, status=bounced", f"https://{host}/invite?email={mail}&x=1", f"Signed-off-by: {first} <{mail}>", f"cc {mail}; {s('email', m.mail())}",
    )  # fmt: skip
    yield m.one(
        f"Call me at {phone} tomorrow.", f"Tel.: {phone}", f'"phone": "{phone}"', f"mobile={phone}", f"{first} {last}, {phone}", f"Ruf mich an: {phone}", f"mon numéro : {phone}", f"我的电话是 {phone}", f"WhatsApp {phone}", f"| {last} | {phone} | Berlin |", f"text {phone} when you're here", f"sms to {phone} failed",
        f"my number is {phone}", f"Kontakt\n{first} {last}\n{phone}\n", f"Telefon: {phone}", f"customer {first} ({phone}) asked for a refund", f"please dial {phone}, ext. 12", f"emergency contact - {phone}", f"phone_number: '{phone}'", f"Fax {phone}",
    )  # fmt: skip
    account = s("iban", m.iban())
    yield m.one(f"IBAN: {account}", f"please transfer 40 EUR to {account} by Friday", f'{{"iban":"{account}","bic":"COBADEFF"}}', f"Konto {account} bei der Bank", f"compte {account}.", f"SEPA debit from {account} failed: AC04", f"{last};{account};12,50", f"iban={account}&amount=3")  # fmt: skip
    card = s("credit_card", m.card())
    yield m.one(f"my card is {card} exp 09/28 cvv 123", f"card_number={card}", f'{{"number": "{card}", "exp_month": 4}}', f"Kreditkarte {card}, gültig bis 11/27", f"charge to {card} declined", f"PAN: {card}", f"{first} {last},{card},12/29", f"cc: {card}", f"numéro de carte : {card}", f"I paid with {card} yesterday")  # fmt: skip


def negatives(m: Make) -> Iterator[tuple[str, str]]:
    """Yield (what, text) of texts that hold nothing sensitive and look as if."""
    d, w, n = m.of, m.word, m.num
    host = f"{w()}.example.com"
    # identifiers
    yield (
        "git",
        f"* {d(HEX, 7)} (HEAD -> main, tag: v{n(0, 9)}.{n(0, 30)}.{n(0, 9)}) Merge pull request #{n(100, 9999)}\n* {d(HEX, 40)} fix: reset token counter",
    )
    yield (
        "git",
        f"index {d(HEX, 7)}..{d(HEX, 7)} 100644\n--- a/src/auth/password.ts\n+++ b/src/auth/password.ts\n@@ -{n(1, 90)},7 +{n(1, 90)},9 @@ export class PasswordService {{",
    )
    yield "git", f"Submodule path 'vendor/{w()}': checked out '{d(HEX, 40)}'"
    yield "id", f"trace_id={d(HEX, 32)} span_id={d(HEX, 16)} parent_id={d(HEX, 16)} sampled=1"
    yield "id", f"arn:aws:iam::{d(DIGITS, 12)}:role/{w()}-{w()} assumed by {m.uuid()}"
    yield "id", f"ObjectId('{d(HEX, 24)}') in collection users, _id: {d(HEX, 24)}"
    yield "id", f"msg_{d(ALNUM, 24)} req_{d(ALNUM, 24)} run_{d(ALNUM, 24)} call_{d(ALNUM, 24)}"
    yield "id", f"tweet {n(1, 9)}{d(DIGITS, 18)}, channel {n(1, 9)}{d(DIGITS, 17)}, page 1000{d(DIGITS, 11)}"
    yield "id", f"customer cus_{d(ALNUM, 14)} paid invoice in_{d(ALNUM, 24)} with pi_{d(ALNUM, 24)}"
    yield (
        "id",
        f'{{"idempotency_key": "{m.uuid()}", "cache_key": "user:{n(1, 9999)}:v2", "partition_key": "{d(HEX, 16)}"}}',
    )
    yield "id", f'nonce={d(HEX, 16)} etag=W/"{d(HEX, 27)}" x-request-id: {m.uuid()}'
    yield "id", f"kid: {d(URLSAFE, 27)}, thumbprint {':'.join(d(HEX.upper()[:16], 2) for _ in range(20))}"
    yield "id", f"container {d(HEX, 64)} exited (137), image sha256:{d(HEX, 64)}"
    yield (
        "id",
        f"pod {w()}-{d(HEX, 9)}-{d(LOWER + DIGITS, 5)} on ip-10-{n(0, 99)}-{n(0, 99)}-{n(0, 99)}.ec2.internal",
    )
    yield "hash", f"{d(HEX, 32)}  {w()}.iso\n{d(HEX, 128)}  {w()}.tar.xz"
    yield (
        "hash",
        f'"resolved": "https://registry.npmjs.org/{w()}/-/{w()}-1.2.3.tgz",\n"integrity": "sha512-{d(BASE64, 86)}=="',
    )
    yield "hash", f"{w()}=={n(0, 9)}.{n(0, 30)}.{n(0, 9)} \\\n    --hash=sha256:{d(HEX, 64)}"
    yield "hash", f"golang.org/x/{w()} v0.{n(1, 30)}.0 h1:{d(BASE64, 43)}="
    yield "hash", f'checksum = "{d(HEX, 64)}"\ndependencies = ["{w()}"]'
    yield "hash", f"SHA256:{d(BASE64, 43)} (ED25519)\nMD5:{':'.join(d(HEX, 2) for _ in range(16))}"
    # encoded things
    yield "image", f"data:image/jpeg;base64,/9j/4AAQSkZJRgABAQ{d(BASE64, 600)}"
    yield "image", f"background:url(data:font/woff2;base64,d09GMgABAAAAA{d(BASE64, 400)}==) format('woff2')"
    yield (
        "map",
        f"//# sourceMappingURL=data:application/json;base64,eyJ2ZXJzaW9uIjozLCJzb3VyY2VzIjpb{d(BASE64, 300)}",
    )
    yield (
        "map",
        '{"version":3,"sources":["webpack:///src/token.ts"],"mappings":"'
        + ";".join(d("ABCDEGIKMQSUYace", n(4, 12)) for _ in range(40))
        + '"}',
    )
    yield (
        "hexdump",
        "\n".join(
            f"{row * 16:08x}  {' '.join(d(HEX, 2) for _ in range(8))}  {' '.join(d(HEX, 2) for _ in range(8))}  |{d(ALNUM + '...', 16)}|"
            for row in range(6)
        ),
    )
    yield (
        "js",
        f"!function(e,t){{'use strict';var n=t.token,r=e.password||'',o={{key:n,value:r}};function a(e){{return e.secret?e.secret.id:null}}}}({d(LOWER, 1)},{d(LOWER, 1)});",
    )
    yield (
        "js",
        "const{apiKey:a,secretKey:s}=c.credentials;if(!a||!s)throw Error('apiKey and secretKey are required');",
    )
    yield "public", f"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI{d(BASE64, 43)} {w()}@laptop"
    yield (
        "public",
        "-----BEGIN CERTIFICATE-----\n"
        + "\n".join(d(BASE64, 64) for _ in range(8))
        + "\n-----END CERTIFICATE-----",
    )
    yield (
        "public",
        "-----BEGIN PGP PUBLIC KEY BLOCK-----\n\n"
        + "\n".join(d(BASE64, 64) for _ in range(5))
        + "\n-----END PGP PUBLIC KEY BLOCK-----",
    )
    yield (
        "public",
        f"-----BEGIN PGP SIGNATURE-----\n\niQIzBAEBCAAdFiEE{d(BASE64, 48)}\n{d(BASE64, 64)}\n-----END PGP SIGNATURE-----",
    )
    yield "public", f"pk_live_{d(ALNUM, 24)} is the publishable key of the shop"
    yield "public", f"{host} ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAABAQ{d(BASE64, 200)}"
    # numbers
    yield "number", f"EAN {d('4569', 1)}{d(DIGITS, 12)}, GTIN-14 {d(DIGITS, 14)}, UPC {d(DIGITS, 12)}"
    yield (
        "number",
        f"{d('4569', 1)}{d(DIGITS, 12)}  {w().title()} tea 100 g  3,49\n{d('4569', 1)}{d(DIGITS, 12)}  {w().title()} oil 1 l   7,99",
    )
    yield (
        "number",
        f"ISBN-13: 978-{n(0, 9)}-{d(DIGITS, 4)}-{d(DIGITS, 4)}-{n(0, 9)}, ISBN-10: {n(0, 9)}-{d(DIGITS, 3)}-{d(DIGITS, 5)}-X",
    )
    yield "number", f"IMEI: 35{d(DIGITS, 13)}, ICCID 89{d(DIGITS, 17)}"
    yield (
        "number",
        f"UPS 1Z{d(UPPER + DIGITS, 16)}, DHL {d(DIGITS, 20)}, USPS 9400 1{d(DIGITS, 3)} {d(DIGITS, 4)} {d(DIGITS, 4)} {d(DIGITS, 4)} {d(DIGITS, 2)}",
    )
    yield (
        "number",
        f"Order {d(DIGITS, 3)}-{d(DIGITS, 7)}-{d(DIGITS, 7)} has shipped; your return code is {d(UPPER, 2)}{d(DIGITS, 9)}",
    )
    yield (
        "number",
        f"Rechnung Nr. 2024-{d(DIGITS, 6)}, Kundennummer {d(DIGITS, 8)}, Steuernummer {d(DIGITS, 2)}/{d(DIGITS, 3)}/{d(DIGITS, 5)}, USt-IdNr. DE{d(DIGITS, 9)}",
    )
    yield (
        "number",
        f"lat=48.{d(DIGITS, 6)}&lon=11.{d(DIGITS, 6)} (WGS 84), UTM 32U {d(DIGITS, 6)} {d(DIGITS, 7)}",
    )
    yield (
        "number",
        f"POINT(-{n(10, 99)}.{d(DIGITS, 8)} {n(10, 60)}.{d(DIGITS, 8)}), bbox=[{n(1, 9)}.{d(DIGITS, 5)},{n(40, 60)}.{d(DIGITS, 5)},{n(1, 9)}.{d(DIGITS, 5)},{n(40, 60)}.{d(DIGITS, 5)}]",
    )
    yield (
        "number",
        f"1 {d(DIGITS, 3)} {d(DIGITS, 3)},00 € on {n(1, 28):02}.{n(1, 12):02}.2024, 12 {d(DIGITS, 3)} {d(DIGITS, 3)} Kč, CHF 1'{d(DIGITS, 3)}'{d(DIGITS, 3)}.50, ₹12,34,{d(DIGITS, 3)}",
    )
    yield "number", f"iat=17{d(DIGITS, 8)} exp=17{d(DIGITS, 8)} ms=17{d(DIGITS, 11)} ns=17{d(DIGITS, 17)}"
    yield (
        "number",
        f"from 10.{n(0, 9)}.0.0/16 port {n(1024, 65535)} to {m.ip()}:{n(1, 65535)} len {n(40, 1500)} seq {d('123456789', 10)} ack {d('123456789', 10)}",
    )
    yield (
        "number",
        "\n".join(
            f"{n(1, 9)}{d(DIGITS, 2)} {n(1, 9)}{d(DIGITS, 3)} {n(1, 9)}{d(DIGITS, 2)} 0.{d(DIGITS, 6)} -{d(DIGITS, 2)}"
            for _ in range(4)
        ),
    )
    yield "number", f"Item # {n(200, 999)}-{n(200, 999)}-{d(DIGITS, 4)} | Qty {n(1, 9)} | $ {n(1, 99)}.99"
    yield (
        "number",
        f"results: {n(10, 99)}-{n(10, 99)}, {n(10, 99)}-{n(10, 99)}, {n(10, 99)}-{n(10, 99)}; sets 6-4 3-6 7-6",
    )
    yield (
        "number",
        f"dimensions 0{n(100, 999)} x 0{n(100, 999)} x 0{n(100, 999)}, serial no. {d(DIGITS, 4)} {d(DIGITS, 4)} {d(DIGITS, 4)}, P/N {n(10, 99)}-{d(DIGITS, 5)}-{d(DIGITS, 3)}",
    )
    yield (
        "number",
        f"pi = 3.14159265358979323846, e = 2.718281828459045, {n(2, 9)}^{n(60, 99)} = {d('123456789', 1)}{d(DIGITS, 24)}",
    )
    yield (
        "number",
        f"processed {n(1, 9)},{d(DIGITS, 3)},{d(DIGITS, 3)} rows in {n(1, 9)}{d(DIGITS, 4)} ms ({d(DIGITS, 3)} 000 000 bytes)",
    )
    yield (
        "number",
        f"backup-2024{n(1, 12):02}{n(1, 28):02}-{n(0, 23):02}{n(0, 59):02}{n(0, 59):02}.sql.gz 20240{n(1, 9)}{n(10, 28)}{n(10, 23)}{n(10, 59)}",
    )
    yield (
        "number",
        f"RFC 7519 section 4.1.{n(1, 7)}, ISO 8601-1:2019, IEC 61000-4-{n(2, 30)}, DIN EN 12{d(DIGITS, 3)}-{n(1, 9)}",
    )
    yield (
        "number",
        f"pages 1020-1034, vol. {n(10, 99)}, no. {n(1, 12)}, doi:10.{d('123456789', 4)}/{w()}.2024.{d(DIGITS, 7)}, arXiv:24{n(1, 12):02}.{d(DIGITS, 5)}",
    )
    yield (
        "number",
        f"https://www.youtube.com/watch?v={d(URLSAFE, 11)}&t={n(10, 999)}s and https://x.com/{w()}/status/1{d(DIGITS, 18)}",
    )
    yield "card", f"reference {m.card(right=False)} was not found"
    yield (
        "card",
        f"tracking 4{d(DIGITS, 3)}-{d(DIGITS, 4)}-{d(DIGITS, 4)} and sku 5{d(DIGITS, 3)} {d(DIGITS, 4)}",
    )
    yield (
        "card",
        f"account no. {n(7, 9)}{d(DIGITS, 3)} {d(DIGITS, 4)} {d(DIGITS, 4)} {d(DIGITS, 4)}, meter 1{d(DIGITS, 15)}",
    )
    yield "card", f'{{"user_id": {d("456", 1)}{d(DIGITS, 15)}, "snowflake": {d("456", 1)}{d(DIGITS, 17)}}}'
    yield (
        "iban",
        f"part DE{d(DIGITS, 2)} {d(DIGITS, 4)} {d(DIGITS, 4)} {d(DIGITS, 2)} X, model GB{d(DIGITS, 2)}{d(UPPER, 4)}{d(DIGITS, 10)}, SE{d(DIGITS, 10)}01",
    )
    yield "iban", f"Seriennummer FR{d(DIGITS, 2)}{d(UPPER + DIGITS, 12)} und CH{d(DIGITS, 4)}-{d(DIGITS, 4)}"
    # placeholders
    yield (
        "placeholder",
        f"{m.one('OPENAI_API_KEY', 'ANTHROPIC_API_KEY', 'STRIPE_KEY', 'GITHUB_TOKEN')}={m.one('<your-api-key>', 'your_api_key_here', 'xxxxx', 'sk-...', 'sk-xxxxxxxxxxxxxxxx', 'changeme', '', '***', 'REPLACE_ME', 'insert-key-here', 'sk-your-key', 'ghp_xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx')}",
    )
    yield (
        "placeholder",
        f"password: {m.one('<password>', 'changeme', '********', '${PASSWORD}', '{{ vault_password }}', '$DB_PASS', '(hidden)', '[FILTERED]', '...', 'null', '••••••••', '<set in CI>', 'ENC[AES256,...]', '!vault |', '%PASSWORD%', 'YOUR_PASSWORD')}\nhost: {host}",
    )
    yield (
        "placeholder",
        f"Authorization: Bearer {m.one('<token>', '{token}', '$TOKEN', '***', 'YOUR_TOKEN', '${{ secrets.GITHUB_TOKEN }}', '[REDACTED]', '<access-token>', 'xxx')}",
    )
    yield (
        "placeholder",
        f"https://{m.one('user:password', 'username:****', '<user>:<pass>', '${USER}:${PASS}', 'user:***')}@{host}/path"
        if m.num(0, 1) == 2
        else f"https://{m.one('<user>:<pass>', '${USER}:${PASS}', 'user:***')}@{host}/path",
    )
    yield (
        "placeholder",
        "env:\n  - name: DB_PASSWORD\n    valueFrom:\n      secretKeyRef:\n        name: app-secrets\n        key: db-password",
    )
    yield "placeholder", "AWS_ACCESS_KEY_ID=\nAWS_SECRET_ACCESS_KEY=\nSLACK_TOKEN=\n# fill these in"
    yield (
        "placeholder",
        f"set the variables GITHUB_TOKEN, NPM_TOKEN and {w().upper()}_API_KEY before you run make release",
    )
    yield (
        "placeholder",
        "secret: !Ref DatabaseSecret\npassword: '{{resolve:secretsmanager:prod/db:SecretString:password}}'",
    )
    # code
    yield (
        "code",
        f"def get_password(user_id: int) -> str:\n    return vault.read(f'secret/{w()}/{{user_id}}')['password']",
    )
    yield (
        "code",
        "user.setPassword(passwordEncoder.encode(request.getPassword()));\nString token = jwtService.generateToken(user);",
    )
    yield (
        "code",
        "if (!password) return res.status(400).json({ error: 'password is required', code: 'E_PASSWORD' });",
    )
    yield "code", 'token := r.Header.Get("Authorization")\nif token == "" { return ErrMissingToken }'
    yield (
        "code",
        "password = getpass.getpass('Password: ')\nsecret = secrets.token_hex(32)\nkey = Fernet.generate_key()",
    )
    yield (
        "code",
        f"expect(screen.getByLabelText('Password')).toBeVisible(); cy.get('#password').type(Cypress.env('{w()}'))",
    )
    yield (
        "code",
        "SELECT id, email, password_hash FROM users WHERE api_key = :api_key AND reset_token IS NULL;",
    )
    yield (
        "code",
        "CREATE TABLE tokens (id serial PRIMARY KEY, token varchar(64) NOT NULL, secret text, expires_at timestamptz);",
    )
    yield (
        "code",
        "interface Credentials { username: string; password: string; apiKey?: string; token: string | null }",
    )
    yield (
        "code",
        'type Config struct {\n\tPassword string `json:"password" env:"DB_PASSWORD"`\n\tToken    string `json:"token"`\n}',
    )
    yield (
        "code",
        "let key = event.key; if (key === 'Enter') submit(); const primaryKey = 'id'; const cacheKey = `${ns}:${id}`;",
    )
    yield (
        "code",
        "tokenizer = AutoTokenizer.from_pretrained('bert-base-uncased'); tokens = tokenizer.encode(text); pad_token_id=0, eos_token='</s>'",
    )
    yield "code", '#define PASSWORD_MAX 64\nstatic const char *TOKEN_FILE = "/var/run/secrets/token";'
    yield (
        "code",
        'variable "db_password" {\n  type      = string\n  sensitive = true\n}\npassword = var.db_password',
    )
    yield "code", "parser.add_argument('--api-key', default=None, help='API key (default: $API_KEY)')"
    yield (
        "code",
        "public_key = load_public_key(path); key_size = 2048; key_id = 'alias/app'; sort_key = 'created_at'",
    )
    yield (
        "code",
        "validate: password => password.length >= 12 || 'Password too short', secretOrPrivateKey must have a value",
    )
    yield (
        "code",
        "raise ValueError(f'token {token!r} is not valid') from error  # password: str = Field(min_length=8)",
    )
    yield (
        "code",
        '<label for="pwd">Password:</label>\n<input id="pwd" type="password" name="pwd" required autocomplete="new-password">',
    )
    yield "code", "grep -rn 'password' src/ | wc -l; passwd --status; sudo -k; ssh-keygen -t ed25519 -C build"
    yield (
        "i18n",
        '{"login.password": "Passwort", "login.forgot": "Passwort vergessen?", "password.hint": "Mindestens 8 Zeichen", "token.expired": "Der Link ist abgelaufen"}',
    )
    yield (
        "i18n",
        '{"password": "Mot de passe", "passwordConfirm": "Confirmez le mot de passe", "apiKey": "Clé API", "secret": "Clé secrète"}',
    )
    yield (
        "i18n",
        'password: "Contraseña"\npasswordPlaceholder: "Escribe tu contraseña"\ntoken: "Código de acceso"',
    )
    # logs and documents
    yield (
        "log",
        f"{m.time()} INFO usage prompt_tokens={n(100, 9999)} completion_tokens={n(10, 999)} total_tokens: {n(100, 9999)} cached_tokens=0",
    )
    yield (
        "log",
        f"{m.time()} WARN auth: invalid token for user {n(1, 9999)}: token expired at 2025-01-{n(10, 28)}T00:00:00Z",
    )
    yield (
        "log",
        f"sshd[{n(100, 99999)}]: Failed password for invalid user admin from {m.ip()} port {n(1024, 65535)} ssh2",
    )
    yield (
        "log",
        f"sshd[{n(100, 99999)}]: Accepted publickey for deploy from {m.ip()} port {n(1024, 65535)} ssh2: RSA SHA256:{d(BASE64, 43)}",
    )
    yield (
        "log",
        f'{m.ip()} - - [12/Mar/2025:10:11:12 +0000] "POST /api/token/refresh HTTP/1.1" 200 {n(100, 9999)} "-" "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36"',
    )
    yield (
        "log",
        f"npm notice total files: {n(10, 99)}; npm http fetch GET 200 https://registry.npmjs.org/@{w()}%2f{w()} {n(10, 999)}ms",
    )
    yield (
        "log",
        f"password changed for user {w()} (uid={n(1000, 9999)}); password policy: min 12 chars, history 5",
    )
    yield (
        "log",
        f"Set-Cookie: theme=dark; Path=/; Max-Age=31536000\nCookie: lang=en; consent=true; _ga=GA1.2.{d(DIGITS, 9)}.17{d(DIGITS, 8)}",
    )
    yield (
        "log",
        f"nextPageToken: null, next_page_token: '', token_type=Bearer, expires_in=3600, token_endpoint=https://{host}/oauth/token",
    )
    yield (
        "log",
        f"root@{w()}-01:~# apt-get install {w()}={n(1, 9)}.{n(0, 20)}.{n(0, 9)}-{n(0, 9)}ubuntu{n(1, 9)}.22.04.{n(1, 9)}",
    )
    yield "log", f"{w()}@{w()}:~/src$ npm i @{w()}/{w()}@^{n(1, 9)}.{n(0, 20)}.{n(0, 9)} react@18.{n(0, 3)}.0"
    yield "log", f"session {m.uuid()} started; session timeout: 30m; session_count={n(1, 99)}"
    yield (
        "doc",
        "Lorem ipsum dolor sit amet, consectetur adipiscing elit, sed do eiusmod tempor incididunt ut labore et dolore magna aliqua.",
    )
    yield (
        "doc",
        "Basic authentication sends the user name and password with each request. Bearer tokens are safer. API keys identify the project.",
    )
    yield (
        "doc",
        "Passwords: never reuse them. Secrets: keep them in a vault. Keys: rotate them every 90 days. Tokens: short-lived.",
    )
    yield (
        "doc",
        "What is the difference between an access token and a refresh token? The password grant is deprecated in OAuth 2.1.",
    )
    yield (
        "doc",
        "Das Passwort muss mindestens zwölf Zeichen haben. Ihr Kennwort wurde geändert. Passwort vergessen? Hier klicken.",
    )
    yield (
        "doc",
        "Le mot de passe doit contenir au moins 8 caractères. La contraseña no puede estar vacía. 密码不能为空。パスワードを忘れた場合",
    )
    yield (
        "doc",
        f"I keep forgetting my password, can you reset it? The token ring network was slow, the secret garden is a book, keynote at {n(9, 12)}:30.",
    )
    yield (
        "doc",
        "The bypass is closed, passing lane ahead; his passport and compass were in the passenger seat. Monkey: banana. Turkey: 85 million.",
    )
    yield (
        "doc",
        f"password: string (required), 8-64 characters\ntoken: string, see Authentication\nkey: integer, the primary key\nsecret_name: {w()}-tls",
    )
    yield (
        "doc",
        f"host={host} sslmode=require user=app dbname={w()} application_name=worker-{n(1, 9)} connect_timeout=10",
    )
    yield (
        "doc",
        "Ask @team-security or ping @alice on Slack; 50% off @ $9.99; meeting @ 10:30 @ room B; see foo@bar",
    )
    yield (
        "doc",
        f"Meeting ID: {n(100, 999)} {d(DIGITS, 4)} {d(DIGITS, 4)}, room {n(100, 999)}, 2 PM - 3:30 PM, {n(1, 28)} March 2025, agenda items 1-2-3",
    )
