"""The part `third` of `privacy_logs`: what agents read and write, written after the rules were repaired for `second`."""

# ruff: noqa: E501, S608  a template stays in one line

from __future__ import annotations

import base64
import json
from collections.abc import Iterator

from privacy_logs import ALNUM, BASE64, DIGITS, HEX, LOWER, UPPER, URLSAFE, Make, s


def _phrase(m: Make) -> str:
    """Return a password as the third author would choose one."""
    return m.one(
        f"{m.word().title()}{m.word().title()}{m.num(1, 99)}", f"{m.of(LOWER, 5)}{m.of(DIGITS, 3)}{m.of(UPPER, 2)}", f"{m.word()}.{m.word()}.{m.num(100, 999)}", f"I<3{m.word().title()}s", f"{m.of(ALNUM, 10)}{m.one('=', '~', '^', '+')}{m.of(DIGITS, 2)}",
        f"{m.word().upper()}_{m.num(1980, 2024)}", f"{m.num(10, 99)}{m.word().title()}&{m.word().title()}", f"{m.of(HEX, 12)}", f"{m.word()}4ever!", f"Wel{m.of(LOWER, 3)}0me{m.num(1, 99)}@{m.word()}"[:20],
    )  # fmt: skip


def positives(m: Make) -> Iterator[str]:
    """Yield one text of each setting."""
    first, last = m.person()
    user, w, site = first.lower(), m.word, f"{m.word()}{m.one('.io', '.dev', '.example.org', '-prod.local')}"
    k, v, p = (s("api_key", m.key()), m.random_value, s("password", _phrase(m)))
    # agents and their tools
    yield m.one(
        f"Tool `read_file` returned:\n1 | import os\n2 | client = make(api=\"{k}\")\n3 | client.run()", f'{{"role": "tool", "content": "export KEY={k}\\nexport DEBUG=1"}}', f"Observation: the file .env has one line: SERVICE={k}", f"I found a hard-coded credential in settings.py line {m.num(3, 99)}: {k}",
        f"Thought: use the token {k} from the earlier message.\nAction: http_get", f'"arguments": "{{\\"headers\\": {{\\"X-Key\\": \\"{k}\\"}}}}"', f"$ cat ~/.config/tool/config\n[auth]\nvalue = {k}\n", f"$ echo {k} | docker login --username bot --password-stdin", f"$ env | grep -i key\nTOOL_KEY={k}\nLANG=C",
        f"+ curl -sS -H 'X-Custom: {k}' https://{site}/v3", f"Traceback (most recent call last):\n  File \"a.py\", line 3\nValueError: bad key {k!s}", f"diff --git a/.env b/.env\n+KEY={k}\n", f"https://{site}/callback?code=ok&key={k}#done", f"[{m.time()}] payload={{'k': '{k}'}}", f"please rotate {k}, it leaked in #general",
        f"<code>{k}</code>", f"Can you check why {k} gives a 401?", f"**Key:** {k}", f"key1: {s('api_key', m.key())}, key2: {s('api_key', m.key())}", f"old={s('api_key', m.key())}\nnew={s('api_key', m.key())}", f"“{k}”", f"({k})", f"{k}.", f"{k}, thanks!", f"token:{k}", f"Token {k}\\n\\nBye",
    )  # fmt: skip
    # infrastructure as code, pipelines
    value = v()
    yield m.one(
        f'resource "aws_db_instance" "main" {{\n  username = "app"\n  password = "{p}"\n}}', f"services:\n  db:\n    environment:\n      MYSQL_ROOT_PASSWORD: '{p}'\n      MYSQL_DATABASE: app", f"      - name: POSTGRES_PASSWORD\n        value: {p}", f"env:\n  DB_PASS: {p}\n  DB_USER: app", f"- hosts: web\n  vars:\n    db_password: {p}",
        f"stringData:\n  username: app\n  password: {p}", f"# cloud-init\nchpasswd:\n  list: |\n    root:{p}", f"db.example.com:5432:app:{user}:{p}" if m.num(0, 9) > 9 else f"ADMIN_PASSWORD = \"{p}\"", f"--set auth.password={p} --namespace prod", f"jdbc.password = {p}", f"    'PASSWORD': '{p}',\n    'HOST': 'localhost',",
        f"<connectionStrings><add connectionString=\"Data Source=sql;Initial Catalog=app;User ID=sa;Password={p};\"/></connectionStrings>", f"Server=tcp:{site},1433;Uid=app;Pwd={p};Encrypt=yes", f"[client]\nuser={user}\npassword={p}\n", f"ftp_pass: \"{p}\"", f"LDAP_BIND_PASSWORD={p}", f"  admin_password                  = \"{p}\"", f"rabbitmqctl add_user app {p}" if m.num(0, 9) > 9 else f"RABBITMQ_DEFAULT_PASS={p}",
        f"$ export PGPASSWORD={p}", f"$env:DB_PASSWORD = \"{p}\"", f"set DB_PASSWORD={p}", f"os.environ.setdefault('DB_PASSWORD', '{p}')", f"conn = psycopg.connect(host='db', user='app', password='{p}')", f"new Pool({{ user: 'app', password: '{p}', max: 5 }})", f"DriverManager.getConnection(url, \"app\", \"x\"); props.setProperty(\"password\", \"{p}\");", f"createUser({{user: 'app', pwd: '{p}', roles: []}})",
        f"smtp.login('{user}', '{p}')" if m.num(0, 9) > 9 else f"EMAIL_HOST_PASSWORD = '{p}'", f"wpa_passphrase={p}", f"psk=\"{p}\"" if m.num(0, 9) > 9 else f"wifi-password: {p}",
    )  # fmt: skip
    # conversations about passwords
    yield m.one(
        f"hey the new pw is {p}", f"Password for the shared drive: {p}", f"Here are your credentials:\nUser: {user}\nPassword: {p}\nPlease sign in at https://{site}.", f"i forgot i changed it, password is now {p}", f"my old password was {p} but it doesn't work anymore", f"Hi {first}, the admin password for {site} is {p}. Best, {last}", f"she told me the password: {p}",
        f"Can you log in with user {user} and password {p}?", f"passwort = {p}", f"das neue Passwort ist {p}, bitte ändern", f"Zugangsdaten: Benutzer {user}, Passwort {p}", f"le mot de passe du wifi est {p}", f"mot de passe: {p}", f"la contraseña del router es {p}", f"La password del server è {p}", f"a senha do banco é {p}", f"hasło do serwera: {p}", f"het wachtwoord is {p}",
        f"пароль от сервера: {p}", f"登录密码：{p}", f"我的密码是{p}", f"パスワード: {p}", f"비밀번호는 {p}", f"user: {user} / password: {p}", f"{user}'s password is {p}", f"The password for user {user} has been reset to {p}", f"Passcode: {p}", f"Your one-time password is {s('password', m.of(DIGITS, 6))}" if m.num(0, 9) > 9 else f"the pass is {p}",
        f"I set the root password to `{p}`", f"password=\"{p}\" didn't work, \"wrong credentials\"", f"PASSWORD IS {p}", f"use {p} as your password", f"login {user}\npassword {p}\n", f"So my banking password, which is {p}, was in the breach." if m.num(0, 9) > 9 else f"My banking password is {p} and it was in the breach.",
    )  # fmt: skip
    # values named secret
    for name, kind in m.random.sample([("secretKey", "secret"), ("client-secret", "client_secret"), ("clientSecret", "client_secret"), ("X-API-KEY", "api_key"), ("OPENWEATHER_API_KEY", "api_key"), ("apikey", "api_key"), ("authToken", "token"), ("api_token", "token"), ("GITLAB_TOKEN", "token"), ("webhookSecret", "secret"), ("django_secret_key", "secret"), ("NEXTAUTH_SECRET", "secret"), ("cookie_secret", "secret"), ("app_secret", "secret"), ("shared_secret", "secret"), ("accessKey", "api_key"), ("secret_access_key", "api_key"), ("signing_key", "api_key"), ("refresh_token", "token"), ("user_token", "token"), ("push_token", "token"), ("sessionToken", "token"), ("storage_key", "api_key"), ("account_key", "api_key"), ("api-secret", "secret"), ("license_key", "api_key")], 4):  # fmt: skip
        value = s(kind, v())
        yield m.one(
            f"{{'{name}': '{value}'}}", f"{name}={value};", f"  \"{name}\" : \"{value}\"", f"{name} -> {value}", f"<add key=\"{name}\" value=\"{value}\"/>", f"{name}: >-\n  {value}" if m.num(0, 9) > 9 else f"{name}: '{value}'", f"await save({{ {name.replace('-', '_')}: \"{value}\" }})", f"https://{site}/x?{name}={value}", f"-H \"{name}: {value}\"", f"config.{name.replace('-', '_')} = '{value}'",
            f"the {name.replace('_', ' ').lower()} is {value}", f"settings({name}=\"{value}\", timeout=3)", f"{name}:{value}", f"+{name}={value}", f"`{name}`: `{value}`", f"echo \"{name}={value}\" >> .env", f"{name} = {value} # prod", f"  {name}: {value}\n  other: 1",
        )  # fmt: skip
    # requests and answers
    value = v()
    basic = base64.b64encode(f"{user}:{_phrase(m)}".encode()).decode()
    yield m.one(
        f"> Authorization: Bearer {s('bearer_token', value)}\n> Accept: */*", f"'Authorization': 'Bearer {s('bearer_token', value)}',", f"\"authorization\": [\"Bearer {s('bearer_token', value)}\"]", f"http GET {site} Authorization:\"Bearer {s('bearer_token', value)}\"", f"headers = {{'Authorization': 'Token {s('bearer_token', value)}'}}", f"authorization=Bearer%20{s('bearer_token', value)}", f"Authorization: Basic {s('password', basic)}", f"{{name: 'Authorization', value: 'Basic {s('password', basic)}'}}",
        f"cookie: _ga=GA1.2.3; session_token={s('token', value)}; theme=light", f"document.cookie = 'auth={s('token', value)}'", f"Set-Cookie: __Host-session={s('token', value)}; Secure", f"{{\"access_token\":\"{s('token', value)}\",\"expires_in\":3599,\"scope\":\"all\"}}", f"&access_token={s('token', value)}&v=5", f"grant_type=client_credentials&client_id=app&client_secret={s('client_secret', value)}", f"refresh_token={s('token', value)}&grant_type=refresh_token",
        f"grant_type=password&username={user}&password={s('password', m.of(ALNUM, 11) + '3')}", f"X-CSRF: none\nX-Session-Token: {s('token', value)}", f"wss://{site}/live?token={s('token', value)}", f"Bearer {s('bearer_token', value)}", f"401 for Bearer {s('bearer_token', value)} at /me", f"sessionId: '{s('token', value)}'",
    )  # fmt: skip
    token = s("jwt", m.jwt())
    yield m.one(f'{{"data":{{"login":{{"token":"{token}"}}}}}}', f"localStorage.setItem('jwt', '{token}')", f"wss://{site}/?t={token}", f"eyJ is how it starts: {token}.", f"Bearer {token}\n", f"$ jwt decode {token}", f"set-cookie: id={token}; HttpOnly", f"X-Goog-IAP-JWT-Assertion: {token}")  # fmt: skip
    pem = m.pem()
    yield m.one(
        f"ssh-add - <<'EOF'\n{s('private_key', pem)}\nEOF", f'{{"key": "{s("private_key", pem.replace(chr(10), chr(92) + "n"))}"}}', f"- path: /root/.ssh/id_rsa\n  content: |\n    {s('private_key', pem.replace(chr(10), chr(10) + '    '))}", f"here is my private key, is it valid?\n```\n{s('private_key', pem)}\n```", f"KEY = \"\"\"{s('private_key', pem)}\"\"\"", f"PRIVATE_KEY='{s('private_key', pem.replace(chr(10), chr(92) + 'n'))}'", f"> {s('private_key', pem.replace(chr(10), chr(10) + '> '))}", f"{s('private_key', pem)}{chr(10)}-----BEGIN CERTIFICATE-----\n{m.of(BASE64, 64)}\n-----END CERTIFICATE-----",
    )  # fmt: skip
    inside = m.one(
        m.of(ALNUM, 12),
        f"{w()}{m.num(1, 999)}",
        f"{w()}%21{m.num(1, 99)}",
        f"{m.of(ALNUM, 6)}-{m.of(ALNUM, 6)}",
        m.of(ALNUM, 20) + "_9",
    )
    url = s(
        "connection_string",
        f"{m.one('postgres', 'postgresql+asyncpg', 'mysql', 'mongodb', 'rediss', 'amqp', 'http', 'sftp', 'mariadb', 'cockroachdb', 'imap', 'rtsp', 'socks5')}://{m.one('svc', user, 'u_' + m.of(LOWER, 4))}:{inside}@{m.one(site, m.ip(), 'localhost')}{m.one('', ':5432', ':27017')}{m.one('', '/app', '/0', '/app?ssl=true&timeout=5')}",
    )
    yield m.one(f"SQLALCHEMY_DATABASE_URI = '{url}'", f"--dsn {url}", f"Using broker {url}.", f"engine = create_engine(\"{url}\")", f"proxy={url}", f'{{"uri":"{url}"}}', f"origin\t{url} (fetch)", f"we connect with {url} in staging", f"CELERY_BROKER_URL: {url}", f"[{url}]", f"wget {url}")  # fmt: skip
    # people, in documents
    mail, phone = s("email", m.mail()), s("phone", m.phone())
    yield m.one(
        f"BEGIN:VCARD\nFN:{first} {last}\nEMAIL;TYPE=work:{mail}\nEND:VCARD", f"INSERT INTO users VALUES (7, '{first}', '{mail}');", f"id,name,mail\n1,{first},{mail}\n", f"Reply-To: \"{first} {last}\" <{mail}>", f"assignee: {mail}", f"my e-mail is {mail}; my other one is {s('email', m.mail())}", f"@{w()} send the invoice to {mail} pls", f"* {first} {last} / {mail} / Berlin",
        f"GET /users?filter[email]={mail}", f"Maintainer: {first} <{mail}>", f"Kontakt: {mail}, {last} GmbH", f"correo: {mail}", f"邮箱 {mail}", f"contact:{mail}", f"[{mail}](mailto:{s('email', m.mail())})", f"\"to\":[\"{mail}\"]", f"bounced: {mail}: 550 no such user", f"ssh-rsa AAAAB3NzaC1yc2E{m.of(BASE64, 100)} {mail}" if m.num(0, 9) > 9 else f"{mail}:",
    )  # fmt: skip
    yield m.one(
        f"TEL;TYPE=cell:{phone}", f"INSERT INTO contacts VALUES (3, '{last}', '{phone}');" if m.num(0, 9) > 9 else f"phone: {phone}", f"My phone number is {phone}.", f"you can call {phone}", f"Handy: {phone}", f"Tél. {phone}", f"Mobile: {phone}, office: {s('phone', m.phone())}", f"📞 {phone}", f"whatsapp: {phone}", f"电话：{phone}", f"<a href=\"tel:{s('phone', '+49' + m.of('123456789', 10))}\">call</a>", f"please call me back at {phone} after 5pm",
        f"Telefon {phone}", f"{first}: my cell is {phone}", f"contact number: {phone}", f"phoneNumber={phone}", f"tel {phone}", f"Teléfono: {phone}", f"reach me on {phone}", f"\"mobile\":\"{phone}\"", f"Phone {phone} | Fax {s('phone', m.phone())}", f"dial {phone} and ask for {first}", f"customer_phone: \"{phone}\"", f"SMS sent to {phone}", f"Hotline {phone} (Mo-Fr)",
    )  # fmt: skip
    account, card = s("iban", m.iban()), s("credit_card", m.card())
    yield m.one(f"Bitte überweisen Sie auf {account}.", f"IBAN {account} BIC DEUTDEFF", f"\"account\": \"{account}\"", f"to: {account}", f"virement vers {account}", f"({account})", f"iban:{account}", f"my bank account is {account}, name {last}", f"{account}\n{first} {last}", f"debtor={account};amount=12.50")  # fmt: skip
    yield m.one(f"charge my visa {card} please", f"Card: {card}", f"card ending soon: {card} (exp 04/27)", f"\"pan\":\"{card}\"", f"payment_method[card][number]={card}", f"Karte {card}", f"tarjeta {card}", f"{card} 11/26 {m.of(DIGITS, 3)}", f"cc={card}", f"card no {card}", f"the customer read out {card} on the call", f"credit card: {card}, cvc {m.of(DIGITS, 3)}", f"我的卡号是 {card}", f"CARD_NUMBER='{card}'")  # fmt: skip


def negatives(m: Make) -> Iterator[tuple[str, str]]:
    """Yield (what, text) of texts that hold nothing sensitive and look as if."""
    d, w, n = m.of, m.word, m.num
    site = f"{w()}.example.org"
    yield (
        "tool",
        f'{{"tool_call_id": "call_{d(ALNUM, 24)}", "type": "function", "function": {{"name": "get_token_price", "arguments": "{{\\"symbol\\": \\"ETH\\"}}"}}}}',
    )
    yield (
        "tool",
        f'{{"id":"chatcmpl-{d(ALNUM, 29)}","object":"chat.completion","created":17{d(DIGITS, 8)},"usage":{{"prompt_tokens":{n(1, 9999)},"completion_tokens":{n(1, 999)}}},"system_fingerprint":"fp_{d(HEX, 10)}"}}',
    )
    yield (
        "tool",
        f'{{"thread_id": "thread_{d(ALNUM, 24)}", "assistant_id": "asst_{d(ALNUM, 24)}", "file_ids": ["file-{d(ALNUM, 24)}"]}}',
    )
    yield (
        "tool",
        f"Observation: 3 files changed, {n(10, 400)} insertions(+), {n(1, 90)} deletions(-); created mode 100755 scripts/rotate-secrets.sh",
    )
    yield (
        "tool",
        "Thought: the user wants to change the password; I should call reset_password(user_id) and never print the token.",
    )
    yield (
        "k8s",
        f"deployment.apps/{w()}-api configured\nsecret/{w()}-credentials unchanged\nconfigmap/{w()}-env created",
    )
    yield (
        "k8s",
        f"NAME                 TYPE     DATA   AGE\n{w()}-token-{d(LOWER + DIGITS, 5)}  Opaque   {n(1, 5)}      {n(1, 90)}d",
    )
    yield (
        "k8s",
        f"imagePullSecrets:\n- name: registry-{w()}\nserviceAccountName: {w()}-sa\nautomountServiceAccountToken: false",
    )
    yield "k8s", f'resourceVersion: "{d("123456789", 9)}"\nuid: {m.uuid()}\ncreationTimestamp: {m.time()}'
    yield (
        "ci",
        f"Run actions/checkout@{d(HEX, 40)}\n  with:\n    token: ***\n    persist-credentials: true\n    ssh-strict: true",
    )
    yield (
        "ci",
        "      env:\n        NPM_TOKEN: ${{ secrets.NPM_TOKEN }}\n        DB_PASSWORD: ${{ secrets.DB_PASSWORD }}\n        KEY: ${{ env.KEY }}",
    )
    yield "ci", f"cache key: linux-node-{d(HEX, 64)}\nCache restored from key: linux-node-{d(HEX, 64)}"
    yield "ci", f"==> Pushing {w()}:{d(HEX, 12)} digest: sha256:{d(HEX, 64)} size: {n(100, 9999)}"
    yield (
        "ci",
        f"✓ password.test.ts ({n(1, 20)} tests) {n(10, 999)}ms\n✓ rejects a wrong password\n✓ token expires after 15 minutes",
    )
    yield (
        "tf",
        f'  + password                = (sensitive value)\n  + id                      = (known after apply)\n  + kms_key_id              = "arn:aws:kms:eu-west-1:{d(DIGITS, 12)}:key/{m.uuid()}"',
    )
    yield (
        "tf",
        f"aws_security_group.{w()}: Refreshing state... [id=sg-0{d(HEX, 16)}] vpc-0{d(HEX, 16)} subnet-0{d(HEX, 16)} ami-0{d(HEX, 16)}",
    )
    yield (
        "tf",
        "secret_id = aws_secretsmanager_secret.db.id\nsecret_string = random_password.db.result\nkey_name = var.key_name",
    )
    yield (
        "lock",
        f'name = "{w()}"\nversion = "1.{n(0, 30)}.{n(0, 9)}"\nsource = "registry+https://github.com/rust-lang/crates.io-index"\nchecksum = "{d(HEX, 64)}"',
    )
    yield (
        "lock",
        f'"_id": "{w()}@2.{n(0, 9)}.{n(0, 9)}", "_shasum": "{d(HEX, 40)}", "gitHead": "{d(HEX, 40)}"',
    )
    yield (
        "lock",
        f"  {w()}:\n    specifier: ^{n(1, 9)}.0.0\n    version: {n(1, 9)}.{n(0, 20)}.{n(0, 9)}(react@18.2.0)\n    resolution: {{integrity: sha512-{d(BASE64, 86)}==}}",
    )
    yield (
        "web",
        f'<script src="https://cdn.example.org/a.js" integrity="sha384-{d(BASE64, 64)}" crossorigin="anonymous" nonce="{d(BASE64, 22)}=="></script>',
    )
    yield (
        "web",
        f'<meta name="csrf-param" content="authenticity_token"><link rel="preload" href="/_next/static/chunks/{n(100, 9999)}-{d(HEX, 16)}.js">',
    )
    yield (
        "web",
        f'<svg viewBox="0 0 24 24"><path d="M12 2C6.48 2 2 6.48 2 12s4.48 10 10 10 10-4.48 10-10S17.52 2 12 2zm0 {n(1, 9)}.{d(DIGITS, 2)}l-{n(1, 9)}.{d(DIGITS, 2)} 0 0 1-1.{d(DIGITS, 2)}"/></svg>',
    )
    yield (
        "web",
        f"*{{margin:0}}.a{{color:#{d(HEX, 6)};background:#{d(HEX, 6)};width:calc(100% - {n(10, 90)}px)}}.token.keyword{{color:#{d(HEX, 3)}}}",
    )
    yield (
        "web",
        f"webpackJsonp([{n(1, 9)}],{{{d(DIGITS, 4)}:function(t,e,n){{var r=n({d(DIGITS, 4)});t.exports=r.key,e.tokenize=r.password}}}});",
    )
    yield "web", f"utm_source=mail&utm_campaign={w()}&gclid={d(URLSAFE, 60)}&fbclid=IwAR{d(URLSAFE, 50)}"
    yield (
        "web",
        f"https://docs.google.com/document/d/1{d(URLSAFE, 43)}/edit and https://www.figma.com/file/{d(ALNUM, 22)}/Design",
    )
    yield (
        "web",
        f"https://{site}/reset-password?lang=de and https://{site}/docs/api-keys#rotate-your-secret-key",
    )
    yield (
        "web",
        f"grecaptcha.render('box', {{sitekey: '6L{d(URLSAFE, 38)}'}})"
        if m.num(0, 9) > 9
        else f"tracking id UA-{d(DIGITS, 8)}-{n(1, 9)}, G-{d(UPPER + DIGITS, 10)}, GTM-{d(UPPER + DIGITS, 7)}",
    )
    yield (
        "web",
        f"https://media.example.org/v/t51.2885-15/{d(DIGITS, 8)}_{d(DIGITS, 15)}_{d(DIGITS, 19)}_n.jpg?stp=dst-jpg",
    )
    yield (
        "code",
        "const [password, setPassword] = useState(''); const [token, setToken] = useState<string | null>(null);",
    )
    yield (
        "code",
        "password = forms.CharField(label='Password', strip=False, widget=forms.PasswordInput(attrs={'autocomplete': 'current-password'}))",
    )
    yield (
        "code",
        "if (req.headers.authorization && req.headers.authorization.startsWith('Bearer ')) { token = req.headers.authorization.split(' ')[1]; }",
    )
    yield (
        "code",
        "api_key = os.environ.get('API_KEY') or config['api_key']\nif not api_key:\n    raise RuntimeError('Set API_KEY first')",
    )
    yield (
        "code",
        "public String getPassword() { return this.password; }\npublic void setSecretKey(SecretKey secretKey) { this.secretKey = secretKey; }",
    )
    yield (
        "code",
        "func (c *Client) Token(ctx context.Context) (*oauth2.Token, error) { return c.tokenSource.Token() }",
    )
    yield (
        "code",
        'let key = keys.iter().max_by_key(|k| k.len()).unwrap(); let secret = Secret::new(env::var("SECRET")?);',
    )
    yield (
        "code",
        "SELECT token, COUNT(*) FROM token_usage WHERE key LIKE 'user:%' GROUP BY token; -- password is never selected",
    )
    yield "code", "ALTER TABLE users ADD COLUMN password_digest varchar(72), ADD COLUMN api_token_hash bytea;"
    yield (
        "code",
        '@Value("${spring.datasource.password}") private String password;\n@Column(name = "access_token") private String accessToken;',
    )
    yield (
        "code",
        "validates :password, length: { minimum: 12 }, confirmation: true\nhas_secure_token :auth_token\nhas_secure_password",
    )
    yield (
        "code",
        "for token in tokenizer.tokenize(text): vocab[token] = vocab.get(token, 0) + 1  # token: str",
    )
    yield (
        "code",
        "dict(password=None, token='', secret=True, key=lambda x: x.id, credentials=Depends(get_credentials))",
    )
    yield (
        "code",
        "export type Session = { accessToken: string; refreshToken?: string; expiresAt: number };\nexport const TOKEN_KEY = 'auth:token';",
    )
    yield (
        "code",
        "assert response.json() == {'detail': 'Invalid password'}; client.post('/login', data=payload)",
    )
    yield (
        "code",
        "args.add_argument('--token-file', type=Path); parser.add_option('-p', '--password-prompt', action='store_true')",
    )
    yield (
        "code",
        "z.object({ password: z.string().min(8), apiKey: z.string().optional(), secret: z.literal('none') })",
    )
    yield "code", 'String masked = password.replaceAll(".", "*"); log.info("token={}", mask(token));'
    yield (
        "code",
        "jwt.verify(token, process.env.JWT_SECRET, (err, user) => { if (err) return res.sendStatus(403); })",
    )
    yield (
        "code",
        "Rfc2898DeriveBytes(password, salt, 100000); hmac.new(key, message, hashlib.sha256).hexdigest()",
    )
    yield (
        "code",
        "password: !!secretRef, tokenCount: 0, keyBy: 'id', secretsManager: new SecretsManager({ region })",
    )
    yield (
        "shell",
        "read -s -p 'Password: ' PASSWORD; export PASSWORD; echo \"$PASSWORD\" | sudo -S true; unset PASSWORD",
    )
    yield (
        "shell",
        f"ssh -i ~/.ssh/id_ed25519 -p {n(1024, 9999)} deploy@10.0.{n(0, 9)}.{n(1, 99)} 'sudo systemctl restart {w()}'",
    )
    yield (
        "shell",
        f"docker run -d -p {n(1000, 9999)}:{n(1000, 9999)} -e POSTGRES_PASSWORD_FILE=/run/secrets/pg -u 1000:1000 {w()}:latest",
    )
    yield (
        "shell",
        f'mysql -u root -p {w()} < schema.sql; redis-cli -a "$REDIS_PASS" ping; curl -u "$USER:$PASS" https://{site}',
    )
    yield (
        "shell",
        f"gpg --recv-keys {d(HEX.upper()[:16], 40)}; apt-key adv --keyserver hkps://keys.example.org --recv {d('0123456789ABCDEF', 16)}",
    )
    yield (
        "shell",
        f"kubectl create secret generic {w()} --from-file=password=./pw.txt; vault kv get -field=password secret/{w()}",
    )
    yield (
        "placeholder",
        f"api_key: {m.one('your-api-key', 'YOUR_API_KEY', '<API_KEY>', 'xxxxxxxxxxxxxxxx', 'replace-with-your-key', 'my-api-key', 'API_KEY_HERE', 'abc...xyz', 'sk-...abcd', '****abcd', 'none', 'not-set', 'dummy', 'fake-key', '{api_key}', '$(API_KEY)')}",
    )
    yield (
        "placeholder",
        f"password: {m.one('your_password', '<your password>', 'xxxxxxxx', '*****', 'redacted', '[hidden]', '<redacted>', '{password}', '%s', 'null', 'None', '~', 'N/A', '(unchanged)', '{{ lookup(env, DB_PASS) }}', '$(cat /run/secrets/db)', 'env:DB_PASSWORD', '@Microsoft.KeyVault(SecretUri=x)')}",
    )
    yield (
        "placeholder",
        f"postgres://{m.one('$DB_USER:$DB_PASS', '${U}:${P}', '<user>:<password>', '{user}:{password}', 'user:*****', '%s:%s')}@{site}:5432/app",
    )
    yield "placeholder", "token=[MASKED]; secret=<hidden>; key=REDACTED; password=(redacted); apikey=…"
    yield (
        "number",
        f"| {d(DIGITS[1:], 3)},{d(DIGITS, 3)} | {n(1, 99)}.{d(DIGITS, 2)} % | {d(DIGITS[1:], 5)} | {n(1990, 2024)} | -{n(1, 99)}.{d(DIGITS, 3)} |",
    )
    yield (
        "number",
        f"Flight LH{d(DIGITS, 4)} on {n(10, 28)}JUN, PNR {d(UPPER + DIGITS, 6)}, ticket 220-{d(DIGITS, 10)}, seat {n(1, 40)}C, gate B{n(10, 60)}",
    )
    yield (
        "number",
        f"FedEx {d('123456789', 1)}{d(DIGITS, 11)}, La Poste 6A{d(DIGITS, 11)}, Royal Mail {d(UPPER, 2)}{d(DIGITS, 9)}GB, Amazon TBA{d(DIGITS, 12)}",
    )
    yield (
        "number",
        f"VIN WVWZZZ1J{d(UPPER + DIGITS, 3)}{d(DIGITS, 6)}, plate B-{d(UPPER, 2)} {d(DIGITS, 4)}, engine no. {d(DIGITS, 8)}",
    )
    yield (
        "number",
        f"frame {d(DIGITS, 6)} pts={d(DIGITS, 9)} dts={d(DIGITS, 9)} bitrate={n(1000, 9000)}kb/s q={n(1, 40)}.0 size={n(1000, 99999)}kB",
    )
    yield (
        "number",
        f"x=[{', '.join(f'{n(0, 9)}.{d(DIGITS, 8)}' for _ in range(6))}] loss={n(0, 3)}.{d(DIGITS, 6)} lr=3e-{n(3, 5)}",
    )
    yield (
        "number",
        f"{n(1, 9)}{d(DIGITS, 2)} {n(1, 9)}{d(DIGITS, 2)} {n(1, 9)}{d(DIGITS, 2)} inhabitants ({n(1990, 2024)}), area {n(100, 999)} {n(100, 999)} km², GDP $1 {d(DIGITS, 3)} {d(DIGITS, 3)} {d(DIGITS, 3)}",
    )
    yield (
        "number",
        f"PubMed PMID: {d('123456789', 8)}; NCT0{d(DIGITS, 7)}; CAS {n(50, 9999)}-{n(10, 99)}-{n(0, 9)}; EC 203-{d(DIGITS, 3)}-{n(0, 9)}; ORCID 0000-000{n(1, 3)}-{d(DIGITS, 4)}-{d(DIGITS, 4)}",
    )
    yield (
        "number",
        f"process {n(1000, 65000)} thread 0x{d(HEX, 12)} at 0x00007f{d(HEX, 10)}: rax {d(HEX, 16)} rip 0033:{d(HEX, 16)}",
    )
    yield (
        "number",
        f"Tor 1: 3-2, Tor 2: {n(1, 4)}:{n(0, 4)}; 19:30-21:15 Uhr, {n(1, 28)}.{n(1, 12)}.2025; Zeilen 1200-1345, Seite 33/120",
    )
    yield (
        "number",
        f"Aktenzeichen {n(1, 9)} C {n(100, 999)}/{n(10, 25)}, HRB {d(DIGITS, 6)} B, Az. 12-{d(DIGITS, 4)}/{n(20, 25)}, PLZ {d('123456789', 5)}",
    )
    yield (
        "number",
        f"recurring every 604800 s; TTL 86400; uid 100{d(DIGITS, 1)}; limit 2147483647; max 9223372036854775807; 4294967295; epoch 0{d(DIGITS, 11)}",
    )
    yield (
        "number",
        f"MAC 00:1A:2B:{d(HEX, 2)}:{d(HEX, 2)}:{d(HEX, 2)}, S/N: C02{d(UPPER + DIGITS, 9)}, FCC ID: BCG-E{d(DIGITS, 4)}A, Model A{d(DIGITS, 4)}",
    )
    yield (
        "number",
        f"2025-0{n(1, 9)}-{n(10, 28)} 0{n(1, 9)}:{n(10, 59)}:{n(10, 59)},{d(DIGITS, 3)} 2025/0{n(1, 9)}/{n(10, 28)} 20250{n(1, 9)}{n(10, 28)}T{n(10, 23)}{n(10, 59)}{n(10, 59)}Z 0{n(1, 9)}-{n(10, 28)}-2025",
    )
    yield (
        "number",
        f"BTC block {n(700000, 899999)}, tx {d(HEX, 64)}, address bc1q{d(LOWER + DIGITS, 38)}, contract 0x{d(HEX, 40)}",
    )
    yield (
        "card",
        f"loyalty {n(7, 9)}{d(DIGITS, 15)}, voucher {d(DIGITS, 4)}-{d(DIGITS, 4)}-{d(DIGITS, 4)}, gift {m.card(right=False)}",
    )
    yield "card", f"invoice_id={m.card(right=False)} order_id=4{d(DIGITS, 11)}"
    yield (
        "iban",
        f"code AT{d(DIGITS, 2)} {d(DIGITS, 4)}, batch NL{d(DIGITS, 2)}ABCD{d(DIGITS, 6)}, item IT{d(DIGITS, 2)}X{d(DIGITS, 10)}, ISIN DE000{d(UPPER + DIGITS, 6)}{n(0, 9)}, LEI {d(DIGITS, 4)}00{d(UPPER + DIGITS, 14)}",
    )
    yield (
        "encoded",
        "Content-Transfer-Encoding: base64\n\n" + "\n".join(d(BASE64, 76) for _ in range(6)) + "\n",
    )
    yield "encoded", f'{{"image": "iVBORw0KGgoAAAANSUhEUgAA{d(BASE64, 500)}"}}'
    yield (
        "encoded",
        f"\\u0068\\u0065 \\x{d(HEX, 2)}\\x{d(HEX, 2)} %E2%82%AC%20{d(HEX.upper()[:10], 2)} &#8364; =?UTF-8?B?{d(BASE64, 40)}?=",
    )
    yield (
        "encoded",
        f"-----BEGIN CERTIFICATE REQUEST-----\n{d(BASE64, 64)}\n{d(BASE64, 64)}\n-----END CERTIFICATE REQUEST-----\n-----BEGIN RSA PUBLIC KEY-----\n{d(BASE64, 64)}\n-----END RSA PUBLIC KEY-----",
    )
    yield "encoded", f"ssh-dss AAAAB3NzaC1kc3MAAACB{d(BASE64, 180)}== {w()}"
    yield (
        "encoded",
        f"github.com ecdsa-sha2-nistp256 AAAAE2VjZHNhLXNoYTItbmlzdHAyNTYAAAAIbmlzdHAyNTY{d(BASE64, 90)}=",
    )
    yield (
        "encoded",
        f"vector: [{d(HEX, 8)} {d(HEX, 8)} {d(HEX, 8)} {d(HEX, 8)}] guid {{{m.uuid().upper()}}} crc32 {d(HEX, 8)}",
    )
    yield (
        "prose",
        "To set a password, open Settings, then Security. A good password has at least 12 characters and is not used anywhere else.",
    )
    yield (
        "prose",
        f"Password requirements: 8-20 characters, 1 digit. Passwords expire every {n(30, 180)} days. Token limit: 128000. Key results: 3 of 5.",
    )
    yield (
        "prose",
        "The secret is out: the key ingredient is patience. My password manager asks for a passphrase every day, and that is fine.",
    )
    yield (
        "prose",
        f"Your token balance is {n(10, 999)}.{d(DIGITS, 2)} USDT; the token price is {n(1, 9)}.{d(DIGITS, 4)}; token supply: 21,000,000; secret ballot 2024.",
    )
    yield (
        "prose",
        "Ich habe mein Passwort vergessen. Das Passwort ist falsch. Passwort ändern? Kennwort: bitte eingeben. Schlüssel: unter der Matte.",
    )
    yield (
        "prose",
        "J'ai oublié mon mot de passe. Mot de passe incorrect. Olvidé mi contraseña; la contraseña es incorrecta. 密码错误，请重试。パスワードが違います。",
    )
    yield (
        "prose",
        f"Password: required. Username: required. Secret: optional. Token: see below. API key: none. Two-factor: enabled since {n(2015, 2024)}.",
    )
    yield (
        "prose",
        f"Password last changed: 2025-0{n(1, 9)}-{n(10, 28)}. Password strength: strong. Passwords match: yes. Login attempts: {n(1, 5)}.",
    )
    yield (
        "prose",
        "He passed: 85 %. Bus pass: valid. Boarding pass: gate B12. Pass rate: 97.5%. A hall pass is a pass to the hall.",
    )
    yield (
        "prose",
        "Please never share your password, your API key or your access token with anyone, not even with support staff.",
    )
    yield (
        "prose",
        f"chapter {n(1, 20)}: the token economy; see sections 4.1.2, 4.1.3 and 10.0.1; figures 3-1 to 3-9; call 1-2-3 to begin",
    )
    yield (
        "prose",
        "Contact the help desk or dial 0 for the front desk; emergency numbers are 112 and 911, the directory is 11880.",
    )
    yield (
        "log",
        f"{m.time()} INFO  [auth] password login ok user_id={n(1, 99999)} method=password mfa=totp session=new duration={n(1, 900)}ms",
    )
    yield (
        "log",
        f"{m.time()} ERROR token validation failed: kid={d(HEX, 16)} alg=RS256 reason=expired skew={n(1, 99)}s",
    )
    yield (
        "log",
        f"pam_unix(sshd:auth): authentication failure; logname= uid=0 euid=0 tty=ssh ruser= rhost={m.ip()} user=root",
    )
    yield (
        "log",
        f"WARN  key '{w()}:{n(1, 999)}' evicted from cache, keys={n(100, 9999)}, key_hits={n(100, 9999)}, secret rotation skipped",
    )
    yield (
        "log",
        f"vault: lease renewed path=database/creds/{w()} lease_id=database/creds/{w()}/{d(ALNUM, 24)} ttl=1h"
        if m.num(0, 9) > 9
        else f"vault: lease renewed path=database/creds/{w()} ttl=1h",
    )
    yield (
        "log",
        json.dumps(
            {
                "level": "info",
                "msg": "token issued",
                "token_type": "bearer",
                "expires_in": n(60, 86400),
                "scope": "read write",
                "client_id": f"{w()}-web",
            }
        ),
    )
    yield (
        "log",
        json.dumps(
            {
                "password": None,
                "token": "",
                "api_key": False,
                "secret": 0,
                "credentials": [],
                "authorization": "none",
            }
        ),
    )
    yield (
        "log",
        json.dumps(
            {
                "passwordPolicy": {"minLength": 12, "maxAge": 90},
                "tokenEndpointAuthMethod": "client_secret_basic",
                "keySize": 4096,
                "secretRotation": "30d",
            }
        ),
    )
