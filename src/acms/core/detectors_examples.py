"""What documents show in the place of something sensitive: the names of things themselves, boxes that nobody has.

An example tells so by its words, not by where it stands, so every detector asks here.
"""

from __future__ import annotations

import re

from acms.core.detectors_values import PLACEHOLDER

#: Words for a secret, alone or with what it is of: `password`, `db_pass`, `myToken2`.
_NAMED = re.compile(
    r"(?i)(?:(?:your|my|the|some|new|old|db|database|user|root|admin|app|api|access|auth)[_.-]?){0,2}"
    r"(?:password|passwd|passwort|passw|pass|pwd|pw|secret|token|pat|(?:api[_.-]?)?key|credentials?|"
    r"kennwort|contrase(?:ñ|n)a|clave|senha|wachtwoord|has(?:ł|l)o|motdepasse|mdp|changeme|change[_-]me)"
)
_BOX = re.compile(
    r"(?i)(?:your?|name|e-?mail|(?:e-?mail|mail)[._-]?address|user[._-]?name|"
    r"(?:your|my|full|first|last|user|some)[._-]?(?:name|e?mail|address|user|id)|f(?:irst)?(?:name)?[._-]l(?:ast)?(?:name)?|"
    r"vorname[._-]nachname|pr[ée]nom[._-]nom|nom|nombre[._-]apellidos?|nombre|nome[._-]cognome|nome|someone|somebody|"
    r"anyone|local[._-]?part|recipient|foo|bar|x{2,}|abc)"
)
_SITE = re.compile(
    r"(?i)(?:[a-z]{2,6}\.)?(?:your|my|some)?[._-]?(?P<site>domain|company|example|site|website|host|hostname|mail|email|"
    r"provider|organi[sz]ation|org|server|service|firma|beispiel|exemple|ejemplo|esempio|empresa|entreprise|foo|bar)"
    r"(?:name)?\.(?:[a-z]{2,4}\.)?[a-z]{2,4}"
)
_UNREAD = re.compile(r"(?i)(?:no|do-?not|dont)[._-]?reply")


def names_itself(value: str) -> bool:
    """Tell whether a value says what should stand there, as in `user:password@host`."""
    return PLACEHOLDER.fullmatch(value) is not None or _NAMED.fullmatch(value) is not None


def nobodys(name: str, domain: str) -> bool:
    """Tell whether an email address shows how one is written, or that nobody reads what is sent there."""
    if domain.lower().endswith(".tld") or _UNREAD.fullmatch(name):
        return True
    site = _SITE.fullmatch(domain)
    if not site:
        return False
    return _BOX.fullmatch(name) is not None or (name.lower() == "user" and "exam" not in site["site"].lower())
