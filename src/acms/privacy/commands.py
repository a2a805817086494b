"""Passwords in the options of commands, where no word says so: `curl -u`, `sshpass -p`, `mysql -p`, `chpasswd`."""

# ruff: noqa: E501  an alternative of a pattern stays in one line

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain

from acms.privacy.plausibility import DIGIT, LETTER, NOT_VALUES, ODD, names_itself, plausible
from acms.privacy.tokens import Found

_USER = re.compile(r"""(?<![\w-])(?:-u|--user)(?:=|[ \t]{0,4})["']?([^\s"':]{0,128}+):([^\s"']{3,256}+)""")
_ARGUMENT = re.compile(
    r"""(?:sshpass[ \t]{1,4}-p|redis-cli[ \t](?:[^\n]{0,60}?[ \t])?-a|zip[ \t](?:[^\n]{0,60}?[ \t])?-P|"""
    r"""(?:docker|podman|helm|skopeo|oc|az)[ \t](?:registry[ \t])?login[ \t](?:[^\n]{0,80}?[ \t])?-p|"""
    r"""(?:sqlcmd|osql|ipmitool|mosquitto_\w{3})[ \t](?:[^\n]{0,80}?[ \t])?-P|ldap\w{3,8}[ \t](?:[^\n]{0,120}?[ \t])?-w|"""
    r"""mongo(?:sh|dump|restore|export|import)?[ \t](?:[^\n]{0,80}?[ \t])?-p|requirepass|masterauth|rootpw|"""
    r"""(?:snowsql|psexec|cqlsh|rdesktop|useradd|usermod|evil-winrm)(?:\.exe)?[ \t](?:[^\n]{0,80}?[ \t])?-p(?=[ \t'"])|"""
    r"""openssl[ \t]enc[ \t][^\n]{0,80}?[ \t]-k|lftp[ \t](?:[^\n]{0,60}?[ \t])?-u[ \t][^\s,]{1,40}+,|"""
    r"""smbclient[ \t][^\n]{0,80}?-U[ \t]?[^\s%]{1,40}+%|wpa_passphrase[ \t]\S{1,40}[ \t]|"""
    r"""(?:sqlplus[ \t]|jdbc:oracle:\w{2,5}:)\w{1,32}/|7z\w?[ \t](?:[^\n]{0,60}?[ \t])?-p|"""
    r"""https?[ \t](?:[^\n]{0,60}?[ \t])?(?:-a|--auth)[ \t][\w.-]{1,40}:|"""
    r"""gh[ \t]secret[ \t]set[ \t][^\n]{0,60}?(?:-b|--body)|net[ \t]use[ \t][^\n]{0,80}?/user:[^\s]{1,60}+|"""
    r"""ConvertTo-SecureString[ \t](?:-String[ \t])?(?=["']))"""
    r"""[ \t]{0,4}["']?([^\s"'$-][^\s"']{2,127}+)|"""
    r"""mysql\w{0,8}[ \t](?:[^\n]{0,80}?[ \t])?-p["']?(?!\d{1,5}(?!\S))([^\s"'-][^\s"']{2,127})|"""
    r"""freerdp[ \t][^\n]{0,80}?/p:["']?([^\s"']{3,128}+)"""
)
#: A user and a password, one after the other.
_AFTER_USER = re.compile(
    r"""(?:htpasswd[ \t](?=-\w{0,5}b)(?:-\w{0,5}n\w{0,5}|-\w{1,6}+[ \t]{1,4}\S{1,80}+)|"""
    r"""rabbitmqctl[ \t](?:[^\n]{0,40}?[ \t])?(?:add_user|change_password|authenticate_user)|net[ \t]user|"""
    r"""net[ \t]use(?:[ \t]{1,4}\w:)?(?=[ \t]{1,4}[\\/])|^ftp>[ \t]?user)[ \t]{1,4}\S{1,80}+[ \t]{1,4}"""
    r"""["']?([^\s"'/$*-][^\s"']{2,127}+)""",
    re.MULTILINE,
)
_CHPASSWD = re.compile(
    r"""chpasswd:?[^\n]{0,80}\n(?:[ \t]{0,12}(?:list|expire|users)[^\n]{0,40}\n){0,3}[ \t]{0,12}(?:-[ \t])?"?"""
    r"""\w{1,32}:([^\s"']{3,128}+)|"""
    r"""echo[ \t]["']?\w{1,32}:([^\s"']{3,128}+)["']?[ \t]{0,4}\|[^\n]{0,40}chpasswd"""
)
#: What a command reads from another one, or is sent by a script when it asks.
_PIPED = re.compile(
    r"""(?:echo|printf)[ \t](?:-\w{1,3}[ \t])?(?:["']?%s\S{0,3}[ \t])?["']?([^\s"'$`|(-][^\s"'|]{3,127}+)["']?[ \t]{0,4}\|[ \t]{0,4}"""
    r"""(?:sudo[ \t][^\n|]{0,24}?-\w{0,4}S(?!\w)|kinit(?!\w)|[^\n|]{0,80}?[ \t]--(?:stdin|password-stdin|with-token|pw-stdin))|"""
    r"""assword[^"\n]{0,12}"[ \t]{0,4}\n?[ \t]{0,8}send(?:[ \t]--)?[ \t]"([^\s"$\\]{4,128}+)\\r"""
)
#: Commands with a password in an option, and those without one.
_COMMANDS = (
    "curl", "sshpass", "redis-cli", "zip ", "7z", " login", "sqlcmd", "osql", "ipmitool", "mosquitto", "cqlsh", "rdesktop", "ldap", "mongo", "snowsql", "smbclient", "http", "mysql",
    "gh secret", "htpasswd", "psexec", "useradd", "usermod", "winrm", "openssl enc", "lftp", "-securestring",
)  # fmt: skip
_OTHERS = (
    "net use", "requirepass", "masterauth", "rootpw", "wpa_pass", "sqlplus", "jdbc:oracle", "freerdp", "chpasswd",
    "auth=(", "auth = (", "auth(", "rabbitmqctl", "ftp>",
)  # fmt: skip
_OPTION = re.compile(r"[ \t]-{1,2}[A-Za-z]")
#: A user and a password, in this order.
_TUPLE = re.compile(
    r"""auth(?:=|[ ]=[ ])[(][ ]?["'][^"'\n]{1,64}["'],[ ]?["']([^"'\n]{3,128})["'][)]""", re.IGNORECASE
)
#: Settings of routers, switches and networks; 0 and 7 say how what follows is written.
_GEAR = re.compile(
    r"""(?<![\w-])(?:enable[ \t](?:secret|password)|(?:username|user)[ \t]\S{1,32}+[ \t](?:privilege[ \t]\d{1,2}[ \t])?"""
    r"""(?:secret|password)|(?:password|secret|key|passphrase|auth-key|authentication-key|ascii)(?=[ \t][07][ \t])|"""
    r"""(?:tacacs|radius)-server[ \t]key|isakmp[ \t]key|message-digest-key[ \t]\d{1,3}[ \t]md5|snmp-server[ \t]community|"""
    r"""set[ \t](?:psksecret|passwd)|neighbor[ \t]\S{1,40}+[ \t]password|option[ \t]key)[ \t]{1,4}(?:[0-9]{1,2}[ \t]{1,4})?"""
    r"""["']?([^\s"'$-][^\s"']{3,127}+)"""
)
#: What settings of devices are called, as stems of names.
_CALLED = frozenset(("pass", "secret", "key", "psk", "token"))
_DEVICES = (
    "enable ",
    "username ",
    " 0 ",
    " 7 ",
    "-server ",
    "isakmp",
    " md5 ",
    "psksecret",
    "neighbor ",
    "option key",
    "set passwd",
)
_PROMPT = re.compile(
    r"^(?:[\w.:-]{0,40}>[ \t]?)?AUTH[ \t](?:\w{1,32}[ \t])?([^\s<$]{6,128}+)[ \t]*$", re.MULTILINE
)


def groups(text: str, names: tuple[str, ...]) -> frozenset[str]:
    """Return the groups of rules of which a text has a literal at all; `names` are its stems of names of secrets."""
    low = text.lower()
    here: set[str] = set()
    if any(map(low.__contains__, _OTHERS)) or (
        any(map(low.__contains__, _COMMANDS)) and _OPTION.search(text)
    ):
        here.add("options")
    if ("|" in text and ("echo " in low or "printf " in low)) or ("assword" in text and "send" in text):
        here.add("piped")
    set_up = not _CALLED.isdisjoint(names) or "community" in text
    if set_up and any(map(text.__contains__, _DEVICES)):
        here.add("gear")
    if "AUTH " in text:
        here.add("prompt")
    if "(" in text and any(map(low.__contains__, _SIGNS)):
        here.add("calls")
    return frozenset(here)


def commands(text: str, here: frozenset[str]) -> Iterator[Found]:
    """Find passwords in options of commands: `curl -u user:password`, `sshpass -p …`, `mysql -p…`."""
    if "options" in here:
        for match in _USER.finditer(text):
            if _given(match[2]):
                yield Found(match.start(2), match.end(2), "password")
    for group, rules, judge in _RULES:
        if group in here:
            for match in chain(*(rule.finditer(text) for rule in rules)):
                at = match.lastindex or 1
                if judge(text, match, at):
                    yield Found(match.start(at), match.end(at), "password")


def _given(value: str) -> bool:
    return not names_itself(value) and value.lower() not in NOT_VALUES


def _stands(_text: str, match: re.Match[str], at: int) -> bool:
    return _given(match[at])


def _made_up(text: str, match: re.Match[str], at: int) -> bool:
    """Tell whether a value has letters and what people put beside them in passwords."""
    value = match[at]
    mixed = not value.islower() and not value.isupper() and DIGIT.search(value) is not None
    return (
        (mixed or ODD.search(value) is not None or sum(map(str.isdigit, value)) > 1)
        and LETTER.search(value) is not None
        and not names_itself(value.rstrip("0123456789"))
        and plausible(text, value, match.start(at), "password", "=", True, False)
    )


#: Calls that sign somebody in, with a user and a password: `smtp.login("ann", "…")`.
_SIGN_IN = re.compile(
    r"""(?:log_?in|sign_?in|logon|auth(?:enticate)?|basic_?auth|credentials?|"""
    r"""(?:mysqli|connect|getconnection|pdo)[ \t]?\([^,()\n]{1,120}+)[ \t]?[(,][ \t\n]{0,4}"""
    r"""(?:["'][^"'\n]{1,64}["']|[a-z_][\w.]{0,40}+),[ \t\n]{0,4}["']([^"'\n\s]{4,128})["'][ \t]{0,2}[,)]""",
    re.IGNORECASE,
)
_SIGNS = (
    "login(", "log_in(", "signin(", "sign_in(", "logon(", "auth(", "authenticate(", "credential(", "credentials(", "mysqli(",
    "connect(", "connection(", "pdo(",
)  # fmt: skip
#: Group, rules, and what a value must be.
_RULES = (
    ("options", (_ARGUMENT, _AFTER_USER, _TUPLE, _CHPASSWD), _stands),
    ("piped", (_PIPED,), _stands),
    ("gear", (_GEAR,), _made_up),
    ("prompt", (_PROMPT,), _made_up),
    ("calls", (_SIGN_IN,), _made_up),
)
