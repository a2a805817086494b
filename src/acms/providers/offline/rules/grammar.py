"""Grammar: the rules by which statements are found, in the order in which they are tried.

A rule reads a clause from its first word and returns its statements and where in the clause they end, or None. The
first that fits counts, so the order of the tables is part of the rules.
"""

from __future__ import annotations

from acms.providers.offline.rules import rules_changes, rules_choices, rules_personal, rules_values
from acms.providers.offline.rules.rules_changes import MOVED
from acms.providers.offline.rules.statement import Rule

_FAILS = "tried attempted tested experimented failed didn't doesn't did does kept crashed crashes timed times broke"
_MUST = "must mustn't need needs has have can't cannot can may should shouldn't won't shall"
_IS = "is are be was were remains remain stays stay becomes become became"
_BAN = "never always don't do under times allowed aren't isn't forbidden prohibited off banned mandatory required"
_MORE = "non-negotiable out permitted option acceptable"
_RUNS = (
    "uses use using runs run running relies sits live lives goes go log authenticate talk talks connect"
    " connects listen listens depend depends require requires support supports"
)
_SETS = (
    MOVED.replace("|", " ")
    + " move moves change changes goes went grew rose shrank switches migrate migrates slipped"
)

_DROPS = (
    "drop dropped dropping ditch ditched ditching abandon abandoned abandoning retire retired retiring remove"
    " removed removing stop stopped got gave longer"
)
_SWITCHES = (
    "switch switched switching switches move moved moving moves migrate migrated migrating change changed"
    " changing convert converted converting upgrade upgraded upgrading downgrade downgraded downgrading port"
    " ported porting transition transitioned transitioning replace replaced replacing swap swapped swapping"
    " exchange exchanged exchanging substitute substituted substituting leave leaving left give giving"
)
_ENDS = (
    "don't do quit cancel cancelled canceled canceling cancelling scrap scrapped scrapping discard discarded"
    " discarding done forget scratch lifted obsolete withdrawn off gone deprecated"
)
_USES = (
    "use uses using go going went gone choose choosing chose chosen pick picked picking select selected"
    " selecting adopt adopted adopting settle settled settling stick sticking stay staying take opt opted"
    " opting standardize standardized standardizing standardise standardised standardising rely relying relies"
    " depend landed run running put decided agreed voted resolved concluded elected made"
)
_PUTS = (
    "set raise raised raising increase increased increasing lower lowered lowering reduce reduced reducing"
    " bump bumped bumping cut cutting extend extended extending push pushed pushing move moved moving change"
    " changed changing update updated updating cap capped capping limit limited limiting shift shifted shifting"
    " postpone postponed postponing delay delayed delaying adjust adjusted adjusting rename renamed renaming"
    " keep keeping drop dropped dropping"
)

Entry = tuple[str, Rule, frozenset[str] | None]


def _entry(name: str, rule: Rule, *needs: str) -> Entry:
    return name, rule, frozenset(" ".join(needs).split()) or None


#: Rules that need the sentence from its beginning, and those of any clause; in the order in which they are tried. With
#: each the words of which one must be there, so that most rules are passed over at a glance.
WHOLE: tuple[Entry, ...] = (
    _entry("listed", rules_values.listed),
    _entry("apposed", rules_values.apposed, "that this which it that's it's"),
    _entry("which", rules_values.which, "which"),
    _entry("tried", rules_personal.failure, _FAILS),
)
RULES: tuple[Entry, ...] = (
    _entry("person", rules_personal.person),
    _entry("failure", rules_personal.failure, _FAILS),
    _entry("amount", rules_values.amount, _MUST, "team we we're of on at due launches ships goes"),
    _entry("rule", rules_personal.rule, _BAN, _MUST, _MORE),
    _entry("called", rules_choices.called, "called named call name rename renamed"),
    _entry("goal", rules_values.goal, "goal objective aim aiming mission target"),
    _entry("switch", rules_changes.switched, _DROPS, _SWITCHES),
    _entry("drop", rules_changes.dropped, _DROPS, _ENDS),
    _entry("chosen", rules_choices.chosen, "we i team let's we've we're we'll i'll i'm"),
    _entry("decide", rules_choices.used, _USES),
    _entry("does", rules_choices.does),
    _entry("inverted", rules_choices.inverted, _IS, "serves replaces"),
    _entry("passive", rules_choices.passive, _IS, "gets get"),
    _entry("uses", rules_choices.y_uses, _RUNS),
    _entry("set to", rules_changes.imperative, _PUTS),
    _entry("set", rules_changes.set, _SETS),
    _entry("prefers", rules_choices.prefers, "prefer prefers"),
    _entry("bare", rules_values.bare),
    _entry("copula", rules_values.copula, _IS),
    _entry("correction", rules_changes.corrected),
)
