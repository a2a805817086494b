"""Grammar: the rules by which statements are found, in the order in which they are tried.

A rule reads a clause from its first word and returns its statements and where in the clause they end, or None. The
first that fits counts, so the order of the tables is part of the rules.
"""

from __future__ import annotations

from acms.core import changes, choices, values
from acms.core.personal import PERSONAL
from acms.core.said import Rule

#: Rules that need the sentence from its beginning, and those of any clause; in the order in which they are tried.
WHOLE: tuple[tuple[str, Rule], ...] = (
    ("listed", values.listed),
    ("apposed", values.apposed),
    ("which", values.which),
    *PERSONAL["whole"],
)
RULES: tuple[tuple[str, Rule], ...] = (
    *PERSONAL["clause"],
    ("amount", values.amount),
    *PERSONAL["rule"],
    ("called", choices.called),
    ("goal", values.goal),
    ("switch", changes.switched),
    ("drop", changes.dropped),
    ("chosen", choices.chosen),
    ("decide", choices.used),
    ("does", choices.does),
    ("inverted", choices.inverted),
    ("passive", choices.passive),
    ("uses", choices.y_uses),
    ("set to", changes.imperative),
    ("set", changes.set),
    ("prefers", choices.prefers),
    ("bare", values.bare),
    ("copula", values.copula),
    ("correction", changes.corrected),
)
