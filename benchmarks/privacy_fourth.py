"""The part `fourth` of `privacy_logs`: letters, tickets, forms and notebooks, written after the repairs for `third`."""

# ruff: noqa: E501, S608  a template stays in one line

from __future__ import annotations

import base64
from collections.abc import Iterator

from privacy_logs import ALNUM, BASE64, DIGITS, HEX, LOWER, UPPER, URLSAFE, Make, s


def positives(m: Make) -> Iterator[str]:
    """Yield one text of each setting."""
    first, last = m.person()
    w, user = m.word, m.person()[0].lower()
    host = f"{w()}-{m.num(1, 9)}.{m.one('corp', 'cloud', 'intra', 'example')}.net"
    secret = s(
        "password",
        m.one(
            f"{w().title()}{m.of('@!$', 1)}{m.num(10, 9999)}",
            f"{w()}{w().title()}{m.num(1, 999)}",
            m.of(ALNUM, 9) + "#1",
            f"{m.of(LOWER, 3)}_{m.of(DIGITS, 4)}_{m.of(UPPER, 2)}",
            f"{w()}!{w()}!{m.num(1, 9)}",
            f"{last}{m.num(1950, 2010)}$",
        ),
    )
    yield m.one(
        f"Dear {first},\n\nyour account is ready. Login: {user}, initial password: {secret}.\n\nRegards", f"TICKET-{m.num(1, 999)}: customer wrote 'my password {secret} does not work'", f"Note to self: bank pw {secret}", f"| host | user | password |\n| --- | --- | --- |\n| {host} | {user} | {secret} |" if m.num(0, 9) > 9 else f"| password | {secret} |", f"password ({host}): {secret}",
        f"Q: password?\nA: {secret}" if m.num(0, 9) > 9 else f"current password: {secret}", f"new password = {secret}, old password = {s('password', w() + str(m.num(100, 999)))}", f"db_pass: '{secret}'", f"user_password={secret}&submit=1", f"'password' => '{secret}'", f"password='{secret}' # change me later", f":password => \"{secret}\"", f"password = r'{secret}'", f"password: str = \"{secret}\"", f"PASSWORD: Final = '{secret}'",
        f"private static final String PASSWORD = \"{secret}\";", f"var dbPassword = \"{secret}\"", f"let password: String = \"{secret}\"", f"password := `{secret}`", f"<password>{secret}</password>", f"<input type=\"password\" value=\"{secret}\">", f"--db-password '{secret}' \\", f"-Djavax.net.ssl.keyStorePassword={secret}", f"password {secret}\nuser {user}" if m.num(0, 9) > 9 else f"proxy_password={secret}",
        f"{{\"auths\": {{}}, \"password\":\"{secret}\"}}", f"Das WLAN-Passwort ist {secret}", f"Ihr Passwort: {secret}", f"Votre mot de passe provisoire : {secret}", f"Su contraseña temporal es {secret}", f"Uw wachtwoord is {secret}", f"Ditt lösenord är {secret}", f"Twoje hasło to {secret}", f"Tu contraseña: {secret}", f"您的密码为 {secret}", f"初期パスワード：{secret}", f"Ваш пароль: {secret}", f"Parola: {secret}", f"Ο κωδικός: {secret}", f"she uses {secret} as her password everywhere",
        f"Their router password was {secret} until May.", f"the sudo password on {host} is {secret}", f"SSH password of {user}: {secret}", f"root:{secret}@{host}:22", f"BasicAuth('{user}', '{secret}')", f"requests.get(url, auth=('{user}', '{secret}'))", f"sudo mysql -u{user} -p'{secret}'", f"PGPASSWORD='{secret}' psql", f"expect \"Password:\"\nsend \"{secret}\\r\"" if m.num(0, 9) > 9 else f"password is:\n{secret}", f"*Password*: {secret}", f"**Password:** {secret}", f"Password » {secret}" if m.num(0, 9) > 9 else f"Password - {secret}",
    )  # fmt: skip
    key, value = s("api_key", m.key()), m.random_value()
    yield m.one(
        f"Our key is {key}; do not share.", f"In [3]: KEY = '{key}'\nOut[3]: None", f"%env API={key}", f"!pip install x --index-url https://__token__:{key}@pypi.{host}/simple" if m.num(0, 9) > 9 else f"%env K={key}", f"{{\"cells\": [{{\"source\": [\"k = '{key}'\\n\"]}}]}}", f"-----\n{key}\n-----", f"Mit dem Schlüssel {key} geht es.", f"key/{key}/end" if m.num(0, 9) > 9 else f"key={key}|end", f"'{key}'", f"<!-- {key} -->", f"# {key}", f"// {key}", f"/* {key} */", f"rem {key}", f"{key}:x" if m.num(0, 9) > 9 else f"{key} x", f"[{key}]", f"{{{key}}}", f"a={key}&b=2", f"\t{key}\r\n", f"{key}\\\"", f"msg=\"got {key}\"",
    )  # fmt: skip
    for text, kind in m.random.sample([
        ("The API key for the weather service is {v}", "api_key"), ("api-key={v}", "api_key"), ("x_api_key: {v}", "api_key"), ("  'apiKey': '{v}',", "api_key"), ("API Key: {v}", "api_key"), ("API_SECRET={v}", "secret"), ("client_secret: \"{v}\"", "client_secret"), ("\"clientSecret\":\"{v}\"", "client_secret"), ("OAuth client secret {v}", "client_secret"),
        ("secret = \"{v}\"", "secret"), ("SESSION_SECRET='{v}'", "secret"), ("jwt.secret={v}", "secret"), ("app.config['SECRET_KEY'] = '{v}'", "secret"), ("token = \"{v}\"", "token"), ("accessToken: '{v}'", "token"), ("\"refresh_token\": \"{v}\"", "token"), ("auth-token={v}", "token"), ("TOKEN: {v}", "token"), ("the access token is {v}", "token"), ("bearer {v}", "bearer_token"),
        ("Authorization: Bearer {v}", "bearer_token"), ("authorization: 'Bearer {v}'", "bearer_token"), ("Cookie: sid={v}", "token"), ("cookie: a=1; SESSION={v}", "token"), ("AWS_SESSION_TOKEN={v}", "token"), ("aws_secret_access_key={v}", "api_key"), ("\"SecretAccessKey\": \"{v}\"", "api_key"), ("encryptionKey={v}", "api_key"), ("PRIVATE_KEY={v}", "api_key"), ("webhook secret: {v}", "secret"), ("Api-Token: {v}", "token"),
    ], 5):  # fmt: skip
        yield text.format(v=s(kind, value))
    basic = s("password", base64.b64encode(f"{user}:{m.of(ALNUM, 12)}".encode()).decode())
    jwt, pem = s("jwt", m.jwt()), s("private_key", m.pem())
    yield m.one(f"Authorization: Basic {basic}", f"-H 'authorization: basic {basic}'", f"headers['Authorization'] = 'Basic {basic}'", f"Basic {basic} was refused by the proxy, Authorization header missing?" if m.num(0, 9) > 9 else f"Authorization=Basic {basic}")  # fmt: skip
    yield m.one(f"my session is {jwt}", f"Token: {jwt}", f"id_token={jwt}&state=1", f"('{jwt}')", f"{jwt}\n{jwt}", f"token|{jwt}|end", f"JWT={jwt};")  # fmt: skip
    yield m.one(f"{pem}", f"keep this safe:\n{pem}\nthanks", f"server.key:\n{pem}", f"tls.key: |\n{pem}", f"<key>\n{pem}\n</key>", f"\"\"\"\n{pem}\n\"\"\"")  # fmt: skip
    url = s(
        "connection_string",
        f"{m.one('postgres', 'mysql', 'mongodb', 'redis', 'amqp', 'https', 'ftp', 'ssh', 'jdbc:postgresql', 'kafka', 'smtps')}://{m.one(user, 'admin', 'a.b')}:{m.of(ALNUM, m.num(6, 24))}@{host}{m.one('', ':' + str(m.num(80, 9999)))}/{w()}",
    )
    yield m.one(f"URL is {url}", f"Connect to {url}", f"dsn='{url}'", f"ENV URL {url}", f"{url} (staging)", f"<a href=\"{url}\">", f"- {url}", f"curl {url}", f"verbunden mit {url}", f"`{url}`")  # fmt: skip
    mail, phone, account, card = (
        s("email", m.mail()),
        s("phone", m.phone()),
        s("iban", m.iban()),
        s("credit_card", m.card()),
    )
    yield m.one(f"Dear {first} <{mail}>,", f"email is {mail}.", f"\"{mail}\"", f"user {mail} not found", f"Email : {mail}", f"{mail}|{first}|{last}", f"({mail})", f"e-mail={mail}", f"sent to {mail}, {s('email', m.mail())} and others", f"@{mail}" if m.num(0, 9) > 9 else f"- {mail}", f"SELECT * FROM u WHERE mail = '{mail}'", f"Adresse : {mail}", f"courriel {mail}", f"メール: {mail}")  # fmt: skip
    yield m.one(f"Phone: {phone}", f"phone {phone}", f"Please call {phone}.", f"Telephone number: {phone}", f"Tel: {phone}", f"tel. {phone}", f"mobile {phone}", f"Cell: {phone}", f"Phone no. {phone}", f"his number is {phone}", f"contact phone: {phone}", f"Telefonnummer: {phone}", f"Mobilnummer {phone}", f"Téléphone : {phone}", f"Móvil: {phone}", f"Cellulare: {phone}", f"Telefone: {phone}", f"手机：{phone}", f"电话号码是{phone}", f"電話番号：{phone}", f"\"phone_number\": \"{phone}\"", f"phone='{phone}'", f"{first} can be reached at {phone}", f"call or text {phone}")  # fmt: skip
    yield m.one(f"My IBAN is {account}.", f"IBAN: {account}, BIC: X", f"Konto: {account}", f"IBAN={account}", f"send it to {account} please", f"Kontonummer {account}", f"RIB : {account}", f"{first} {last} {account}", f"'{account}'")  # fmt: skip
    yield m.one(f"My credit card number is {card}", f"card number: {card}", f"Visa {card}", f"cardNumber=\"{card}\"", f"card {card}, expires 10/27", f"Kreditkartennummer: {card}", f"Numéro de carte {card}", f"número de tarjeta: {card}", f"kort {card}", f"mastercard: {card}", f"{{'card': '{card}'}}", f"please refund {card}")  # fmt: skip


def negatives(m: Make) -> Iterator[tuple[str, str]]:
    """Yield (what, text) of texts that hold nothing sensitive and look as if."""
    d, w, n = m.of, m.word, m.num
    first, last = m.person()
    yield (
        "letter",
        f"Dear {first},\n\nyou asked us to reset your password. Click the button below within {n(10, 60)} minutes. If it was not you, ignore this mail.\n\nThe {w()} team",
    )
    yield (
        "letter",
        f"Your verification was successful. Session ended at {n(10, 23)}:{n(10, 59)}. Password unchanged since {n(1, 28)} May 20{n(10, 25)}.",
    )
    yield (
        "letter",
        f"Ihre Bestellung {d(DIGITS, 3)}-{d(DIGITS, 7)} vom {n(1, 28)}.{n(1, 12)}.2025 über {n(10, 999)},{d(DIGITS, 2)} € wurde versandt. Sendungsnummer: 00340{d(DIGITS, 15)}.",
    )
    yield (
        "letter",
        f"Vol AF{d(DIGITS, 4)}, siège {n(1, 40)}A, dossier {d(UPPER, 6)}, {n(1, 28)}/{n(1, 12)}/2025 à {n(10, 23)}h{n(10, 59)}, bagage {n(10, 23)} kg.",
    )
    yield (
        "ticket",
        f"TICKET-{d(DIGITS, 5)}: password field is empty after autofill; steps: 1. open login 2. press tab 3. see error E{d(DIGITS, 4)}",
    )
    yield (
        "ticket",
        f"JIRA {w().upper()}-{d(DIGITS, 4)} (P{n(1, 4)}): refresh token is not rotated; fixed in {n(1, 9)}.{n(0, 20)}.{n(0, 9)}, build {d(DIGITS, 8)}",
    )
    yield (
        "ticket",
        f"Kundennummer: {d(DIGITS, 10)}\nVertragsnummer: {d(DIGITS, 4)} {d(DIGITS, 4)} {d(DIGITS, 2)}\nZählernummer: 1{d(UPPER, 3)}{d(DIGITS, 10)}\nZählerstand: {d(DIGITS[1:], 6)}",
    )
    yield (
        "ticket",
        f"error 0x8007{d(HEX, 4)} at offset {d(DIGITS[1:], 7)}; see KB{d(DIGITS, 7)} and CVE-2024-{d(DIGITS, 5)}, CWE-{n(20, 900)}",
    )
    yield (
        "ticket",
        "Steps: enter user name, enter password, press OK. Expected: token is stored. Actual: token is null. Severity: minor.",
    )
    yield "form", "Name: ____  Password: ____  Repeat password: ____  [ ] Remember me   (Forgot password?)"
    yield (
        "form",
        f"Username\nPassword\nLog in\nForgot your password?\nCreate new account\nEnglish (UK) Deutsch Français\n© {n(2015, 2025)}",
    )
    yield (
        "form",
        "Password *\nMust contain 1 uppercase letter, 1 number and 1 symbol (!@#$%^&*). Maximum: 64 characters.",
    )
    yield (
        "form",
        f"Card number: •••• •••• •••• {d(DIGITS, 4)}, Expiry: **/**, CVC: ***. IBAN: DE** **** **** **** **{d(DIGITS, 2)} {d(DIGITS, 2)}",
    )
    yield (
        "form",
        f"Phone: +49 *** ****{d(DIGITS, 2)} | Email: j***@e*****.com | Card ending in {d(DIGITS, 4)} | Token: ••••{d(HEX, 4)}",
    )
    yield (
        "form",
        "Phone: (NNN) NNN-NNNN. Card: NNNN-NNNN-NNNN-NNNN. IBAN: DENN NNNN NNNN NNNN NNNN NN. Password: NNNNNNNN.",
    )
    yield (
        "notebook",
        f"In [{n(1, 99)}]: df.token.value_counts()\nOut[{n(1, 99)}]:\nthe    {d(DIGITS[1:], 6)}\nof     {d(DIGITS[1:], 6)}\nName: token, dtype: int64",
    )
    yield (
        "notebook",
        f"model: {w()}-7b  max_tokens: {n(100, 9000)}  temperature: 0.{n(1, 9)}  seed: {d(DIGITS[1:], 10)}  top_p: 0.9{n(1, 9)}",
    )
    yield (
        "notebook",
        f"epoch {n(1, 99)}/100 loss 0.{d(DIGITS, 16)} acc 0.{d(DIGITS, 16)} [00:{n(10, 59)}<01:{n(10, 59)}, {n(1, 99)}.{d(DIGITS, 2)}it/s]",
    )
    yield (
        "notebook",
        f"array([[{n(0, 9)}.{d(DIGITS, 8)}, -{n(0, 9)}.{d(DIGITS, 8)}],\n       [{n(0, 9)}.{d(DIGITS, 8)}e-0{n(1, 9)}, {n(10, 99)}.{d(DIGITS, 7)}]])",
    )
    yield (
        "notebook",
        "token_ids = [101, 7592, 2088, 102, 0, 0, 0]\nattention_mask = [1, 1, 1, 1, 0, 0, 0]\nkeys = ['q', 'k', 'v']",
    )
    yield (
        "csv",
        "\n".join(
            f"{d(DIGITS, 8)};{n(1, 28):02}.{n(1, 12):02}.2024;{w()};{n(1, 999)},{d(DIGITS, 2)};{d(DIGITS, 13)}"
            for _ in range(3)
        ),
    )
    yield "csv", "\n".join(f"{m.uuid()},{n(1000, 9999)},{m.time()},{m.ip()},{w()},ok" for _ in range(3))
    yield (
        "csv",
        "\n".join(
            f"{n(1, 99)}\t{d(DIGITS[1:], 3)}\t{d(DIGITS[1:], 3)}\t{d(DIGITS[1:], 4)}\t{w()}" for _ in range(5)
        ),
    )
    yield "csv", f"username,password,role\n# passwords are hashed, see {w()}.md\n"
    yield (
        "csv",
        f"sku,ean,price\n{d(UPPER, 3)}-{d(DIGITS, 4)}-{d(UPPER, 2)},{d('4', 1)}{d(DIGITS, 12)},{n(1, 99)}.{d(DIGITS, 2)}\n",
    )
    yield (
        "config",
        "password_authentication: no\npermit_root_login: prohibit-password\npubkey_authentication: yes\ntoken_auth: disabled",
    )
    yield (
        "config",
        "PasswordAuthentication no\nPermitEmptyPasswords no\nAuthorizedKeysFile .ssh/authorized_keys\nIdentityFile ~/.ssh/id_ed25519",
    )
    yield (
        "config",
        f"ssl_certificate /etc/ssl/certs/{w()}.pem;\nssl_certificate_key /etc/ssl/private/{w()}.key;\nssl_session_cache shared:SSL:10m;",
    )
    yield (
        "config",
        f"keepalive_timeout 65; client_max_body_size 20m; limit_req zone=login burst={n(1, 20)}; proxy_set_header Authorization $http_authorization;",
    )
    yield (
        "config",
        "auth:\n  type: oauth2\n  tokenUrl: /oauth/token\n  clientId: web\n  scopes: [read, write]\n  passwordGrant: false",
    )
    yield (
        "config",
        "passwordEncoder: bcrypt\npasswordStrength: 12\ntokenTtl: 3600s\nsecretProvider: vault\nkeyRotation: P30D",
    )
    yield (
        "config",
        f"[merge]\n\tconflictstyle = diff3\n[credential]\n\thelper = osxkeychain\n[user]\n\tsigningkey = {d('0123456789ABCDEF', 16)}",
    )
    yield "config", f"apiVersion: v1\nkind: Secret\nmetadata:\n  name: {w()}-password\ntype: Opaque"
    yield (
        "config",
        "  api_key:\n    type: string\n    description: Key of the account, see the console\n    example: null",
    )
    yield (
        "config",
        "securitySchemes:\n  ApiKeyAuth:\n    type: apiKey\n    in: header\n    name: X-API-Key\n  BearerAuth:\n    scheme: bearer\n    bearerFormat: JWT",
    )
    yield (
        "config",
        f"features:\n  - name: password_reset\n    value: enabled\n  - name: token_refresh\n    value: true\n  - name: api_key_ui\n    value: {n(1, 99)}",
    )
    yield (
        "config",
        f'- name: SECRET_NAME\n  value: {w()}-{w()}\n- name: TOKEN_TTL\n  value: "3600"\n- name: PASSWORD_FILE\n  value: /run/secrets/{w()}',
    )
    yield "code", "assert hash_password(password) != password and verify(password, digest) is True"
    yield (
        "code",
        "def test_password_is_required(client): assert client.post('/login', json={'user': 'a'}).status_code == 422",
    )
    yield (
        "code",
        "password = password.strip() if password else None; token = token or self.token; key = key or self.default_key",
    )
    yield (
        "code",
        'System.out.println("Password: " + mask(password)); logger.debug("token {}", token.substring(0, 4));',
    )
    yield (
        "code",
        "const PASSWORD_REGEX = /^(?=.*[a-z])(?=.*[A-Z])(?=.*\\d).{8,}$/; const TOKEN_PREFIX = 'tok_';",
    )
    yield (
        "code",
        "enum TokenKind { Ident, Number, String, LParen, RParen, Keyword, Eof } struct Token { kind: TokenKind, span: Span }",
    )
    yield (
        "code",
        "key = f'{tenant}:{user_id}:{version}'; secret = await secrets.get(name); password = input('password: ')",
    )
    yield (
        "code",
        "case Key.F5: case Key.Enter: keyDown(event.keyCode, event.ctrlKey); keymap['Ctrl-S'] = 'save'",
    )
    yield (
        "code",
        "foreach ($tokens as $token) { echo $token['password'] ?? 'none'; } $secret = getenv('APP_SECRET');",
    )
    yield (
        "code",
        "fn password(&self) -> &str { &self.password } impl Drop for Secret { fn drop(&mut self) { self.0.zeroize() } }",
    )
    yield "code", "if (passwordInput.value !== confirmInput.value) showError('passwords do not match');"
    yield "code", "public record LoginRequest(string UserName, string Password, string? Token = null);"
    yield (
        "code",
        "with open(token_path) as file: token = file.read().strip(); headers = {'Authorization': f'Bearer {token}'}",
    )
    yield "code", "mock.patch.dict(os.environ, {'API_KEY': 'test', 'TOKEN': ''}, clear=True)"
    yield (
        "code",
        "password: passwordSchema, token: tokenSchema.nullable(), apiKey: apiKeySchema, secret: secretSchema.optional()",
    )
    yield (
        "prose",
        "The password problem is as old as computing; a token of appreciation, a secret handshake, a skeleton key: all are keys to something.",
    )
    yield (
        "prose",
        f"Chapter {n(1, 30)}, in which the secret is: nobody knows. The pass: closed since {n(1990, 2020)}. Password: the film, 2.5 stars.",
    )
    yield (
        "prose",
        "Is the password correct? Yes. Is the token valid? No. Was the key lost? Perhaps. The secret was well kept.",
    )
    yield (
        "prose",
        "Use a passphrase of four words as your password. Use your e-mail as the password hint. He said it is a password.",
    )
    yield (
        "prose",
        f"We sold {n(1, 9)} {d(DIGITS, 3)} {d(DIGITS, 3)} units, up {n(1, 99)}.{n(0, 9)}% on {n(2010, 2024)}; revenue was €{n(1, 9)}.{d(DIGITS, 3)}.{d(DIGITS, 3)},{d(DIGITS, 2)} and cost {n(100, 999)}.{d(DIGITS, 3)}.",
    )
    yield (
        "prose",
        f"Call me Ishmael. Call {n(1, 9)} people at {n(1, 12)}:{n(10, 59)} and text them 2 photos; dial it back a notch, mobile first, cell {d(UPPER, 1)}{n(1, 99)}.",
    )
    yield (
        "prose",
        f"Born {n(1, 28)}/{n(1, 12)}/19{n(50, 99)}, height 1{n(50, 99)} cm, blood pressure {n(100, 140)}/{n(60, 90)}, pulse {n(50, 100)}, room {n(100, 999)}, bed {n(1, 4)}, case no. {d(DIGITS, 9)}.",
    )
    yield (
        "prose",
        "パスワードは8文字以上で入力してください。密码必须包含数字。비밀번호를 잊으셨나요? Пароль должен содержать цифры. Hasło jest za krótkie.",
    )
    yield (
        "prose",
        "Wachtwoord vergeten? Het wachtwoord is onjuist. Lösenordet är fel. Adgangskoden er forkert. Parola errata. Heslo je špatné. Şifre yanlış.",
    )
    yield (
        "prose",
        f"Postleitzahl {d('123456789', 5)} {last}stadt, Hausnummer {n(1, 200)}, Telefonzelle, Telefonkonferenz um {n(8, 18)}:00 Uhr, Raum 0{n(100, 999)}.",
    )
    yield (
        "number",
        f"GPS 5{n(0, 3)}°{n(10, 59)}'{n(10, 59)}.{n(0, 9)}\"N 01{n(0, 3)}°{n(10, 59)}'{n(10, 59)}\"E, heading 0{n(10, 99)}, QNH 10{n(10, 29)}, FL{n(100, 400)}, squawk {d('01234567', 4)}",
    )
    yield (
        "number",
        f"chess 1. e4 e5 2. Nf3 Nc6; tennis 6-4 6-7(5) 7-6(3); lotto {' '.join(str(n(1, 49)) for _ in range(6))} + {n(0, 9)}",
    )
    yield (
        "number",
        f"resistor {n(1, 9)}.{n(1, 9)}k 1% 0{n(402, 805)}, part CRCW0603{d(DIGITS, 2)}K0FKEA, digikey 541-{d(DIGITS, 4)}-1-ND, lot {d(DIGITS, 10)}, date code {n(10, 52)}24",
    )
    yield (
        "number",
        f"SWIFT message :20:{d(UPPER + DIGITS, 16)} :32A:2506{n(10, 28)}EUR{d(DIGITS[1:], 6)},00 :71A:SHA",
    )
    yield (
        "number",
        f"barcode {d('123', 1)}{d(DIGITS, 12)}, isbn 978{d(DIGITS, 10)}, issn {d(DIGITS, 4)}-{d(DIGITS, 3)}X, asin B0{d(UPPER + DIGITS, 8)}, pzn {d(DIGITS, 8)}",
    )
    yield (
        "number",
        f"dmesg: [{d(DIGITS[1:], 5)}.{d(DIGITS, 6)}] pci 0000:0{n(1, 9)}:00.0: [{d(HEX, 4)}:{d(HEX, 4)}] type 00 class 0x{d(HEX, 6)}; mem 0x{d(HEX, 8)}-0x{d(HEX, 8)}",
    )
    yield (
        "number",
        f"2025-{n(10, 12)}-{n(10, 28)} 1{n(0, 9)}:{n(10, 59)}:{n(10, 59)}.{d(DIGITS, 6)}+02:00 P{n(1, 9)}DT{n(1, 9)}H W{n(10, 52)} Q{n(1, 4)} 0{n(100, 365)}",
    )
    yield (
        "number",
        f"rack {n(1, 42)}U, vlan {n(100, 4000)}, asn {n(1000, 65000)}, cidr {m.ip()}/{n(8, 30)}, ports 8000-8999,9090, mtu 1500, fe80::{d(HEX, 4)}:{d(HEX, 4)}:fe{d(HEX, 2)}:{d(HEX, 4)}%eth0",
    )
    yield (
        "number",
        f"steps {d(DIGITS[1:], 5)}, kcal {d(DIGITS[1:], 4)}, km {n(1, 20)}.{d(DIGITS, 2)}, bpm {n(50, 190)}, lap 0:{n(10, 59)}.{d(DIGITS, 3)}, id {d(DIGITS[1:], 11)}",
    )
    yield "blob", f"Cg{d(BASE64, 90)}\n{d(BASE64, 76)}\n{d(BASE64, 40)}=="
    yield "blob", f"0x{d(HEX, 130)}"
    yield "blob", f"PK\\x03\\x04\\x14\\x00 JFIF\\x00 ELF {' '.join(d(HEX, 4) for _ in range(12))}"
    yield "blob", f"H4sIAAAAAAAAA{d(BASE64, 200)}="
    yield (
        "blob",
        f"<ds:X509Certificate>MIID{d(BASE64, 300)}</ds:X509Certificate><ds:DigestValue>{d(BASE64, 27)}=</ds:DigestValue>",
    )
    yield (
        "blob",
        f"mQINB{d(BASE64, 59)}\n{d(BASE64, 64)}\n=x{d(BASE64, 3)}\n-----END PGP PUBLIC KEY BLOCK-----",
    )
    yield (
        "blob",
        f"v=DKIM1; k=rsa; p=MIGfMA0GCSqGSIb3DQEBAQUAA4GNADCB{d(BASE64, 180)}QIDAQAB; DKIM-Signature: v=1; a=rsa-sha256; bh={d(BASE64, 43)}=; b={d(BASE64, 100)}",
    )
    yield (
        "blob",
        f"?v={d(HEX, 8)}&h={d(HEX, 32)}&cb={d(DIGITS[1:], 13)}&rev={d(HEX, 40)}&sri=sha256-{d(BASE64, 43)}=",
    )
    yield (
        "public",
        f"minisign public key: RW{d(BASE64, 54)}; age1{d(LOWER + DIGITS, 58)}; ssh key fingerprint SHA256:{d(BASE64, 43)}",
    )
    yield (
        "public",
        f"pk_test_{d(ALNUM, 24)}, pub-c-{m.uuid()}, sentry dsn https://{d(HEX, 32)}@o{d(DIGITS[1:], 6)}.ingest.example.io/{d(DIGITS[1:], 7)}"
        if n(0, 9) > 9
        else f"publishable key: pk_test_{d(ALNUM, 24)}",
    )
    yield (
        "public",
        f"client_id={d(DIGITS[1:], 12)}-{d(LOWER + DIGITS, 32)}.apps.example.com&response_type=code&scope=openid",
    )
    yield (
        "public",
        f"tenant_id: {m.uuid()}\nsubscription_id: {m.uuid()}\nclient_id: {m.uuid()}\nobject_id: {m.uuid()}",
    )
    yield (
        "public",
        f"aws_account_id={d(DIGITS[1:], 12)} bucket={w()}-{w()} region=eu-central-1 key=uploads/{n(2020, 2025)}/{m.uuid()}.png version_id={d(URLSAFE, 32)}",
    )
