"""Passwords in the options of commands, where no word says so: `curl -u`, `sshpass -p`, `mysql -p`, `chpasswd`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain

from acms.core.detectors import Found
from acms.core.detectors_values import NOT_VALUES, PLACEHOLDER

_USER = re.compile(r"""(?<![\w-])(?:-u|--user)(?:=|[ \t]{0,4})["']?([^\s"':]{0,128}+):([^\s"']{3,256}+)""")
_ARGUMENT = re.compile(
    r"""(?:sshpass[ \t]{1,4}-p|redis-cli[ \t](?:[^\n]{0,60}?[ \t])?-a|zip[ \t](?:[^\n]{0,60}?[ \t])?-P|"""
    r"""(?:docker|podman|helm|skopeo|oc|az)[ \t](?:registry[ \t])?login[ \t](?:[^\n]{0,80}?[ \t])?-p|"""
    r"""sqlcmd[ \t](?:[^\n]{0,80}?[ \t])?-P|ldap\w{3,8}[ \t](?:[^\n]{0,120}?[ \t])?-w|"""
    r"""mongo(?:sh|dump|restore|export|import)?[ \t](?:[^\n]{0,80}?[ \t])?-p|requirepass|masterauth|rootpw|"""
    r"""snowsql[ \t](?:[^\n]{0,80}?[ \t])?-p|smbclient[ \t][^\n]{0,80}?-U[ \t]?[^\s%]{1,40}+%|"""
    r"""wpa_passphrase[ \t]\S{1,40}[ \t]|"""
    r"""(?:sqlplus[ \t]|jdbc:oracle:\w{2,5}:)\w{1,32}/|7z\w?[ \t](?:[^\n]{0,60}?[ \t])?-p|"""
    r"""https?[ \t](?:[^\n]{0,60}?[ \t])?(?:-a|--auth)[ \t][\w.-]{1,40}:|"""
    r"""gh[ \t]secret[ \t]set[ \t][^\n]{0,60}?(?:-b|--body)|"""
    r"""net[ \t]use[ \t][^\n]{0,80}?/user:[^\s]{1,60}+|htpasswd[ \t]-\w{0,4}b\w{0,4}[ \t]\S{1,80}[ \t]\S{1,40})"""
    r"""[ \t]{0,4}["']?([^\s"'-][^\s"']{2,127}+)|"""
    r"""mysql\w{0,8}[ \t](?:[^\n]{0,80}?[ \t])?-p["']?([^\s"'-][^\s"']{2,127})|"""
    r"""xfreerdp[ \t][^\n]{0,80}?/p:([^\s"']{3,128}+)"""
)
_CHPASSWD = re.compile(
    r"""chpasswd:?[^\n]{0,80}\n(?:[ \t]{0,12}(?:list|expire|users)[^\n]{0,40}\n){0,3}[ \t]{0,12}(?:-[ \t])?"?"""
    r"""\w{1,32}:([^\s"']{3,128}+)|"""
    r"""echo[ \t]["']?\w{1,32}:([^\s"']{3,128}+)["']?[ \t]{0,4}\|[^\n]{0,40}chpasswd"""
)
_COMMANDS = (
    "curl", "sshpass", "redis-cli", "zip -", "zip ", " login", "sqlcmd", "ldap", "mongo", "net use", "requirepass",
    "masterauth", "rootpw", "snowsql", "smbclient", "wpa_pass", "sqlplus", "jdbc:oracle", "7z", "http -", "gh secret",
    "https -", "htpasswd", "mysql", "xfreerdp", "auth=(", "auth(",
    "chpasswd",
)  # fmt: skip
#: A user and a password, in this order.
_TUPLE = re.compile(
    r"""auth(?:=|[ ]=[ ])?[(][ ]?["'][^"'\n]{1,64}["'],[ ]?["']([^"'\n]{3,128})["'][)]""", re.IGNORECASE
)


def commands(text: str) -> Iterator[Found]:
    """Find passwords in options of commands: `curl -u user:password`, `sshpass -p …`, `mysql -p…`."""
    low = text.lower()
    if not any(map(low.__contains__, _COMMANDS)):
        return
    for match in _USER.finditer(text):
        if not PLACEHOLDER.fullmatch(match[2]) and match[2].lower() not in NOT_VALUES:
            yield Found(match.start(2), match.end(2), "password")
    for match in chain(_ARGUMENT.finditer(text), _TUPLE.finditer(text), _CHPASSWD.finditer(text)):
        group = match.lastindex or 1
        value = match[group]
        if not PLACEHOLDER.fullmatch(value) and value.lower() not in NOT_VALUES:
            yield Found(match.start(group), match.end(group), "password")
