"""Cascades: what follows from a decision that is changed or dropped, asked about later.

In the manner of MEME (arXiv 2605.12477): premises, decisions that follow from them in one or two steps, and decisions
that follow from nothing. One premise gets another value, another one is dropped; then everything is asked about. What
followed is still stored, and nobody said that it ended: an answer has to say that it may not be so any more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from acms.knowledge import DOUBT, Fact, Proposal
from acms.model import Source
from acms.ports import Reflector
from acms.results import ContextItem
from acms.session import ACMS
from acms.storage import open_storage
from acms_eval.nouns import Probe, Scenario
from acms_eval.reflectors import PerfectReflector
from acms_eval.running import CURRENT, Remembering
from acms_eval.scenarios.writer import Decided, Statement, Writer
from acms_eval.sweeps import Words
from acms_eval.topics import Chain, Phrases, drawn
from acms_eval.topics import phrases as _phrases

__all__ = ["Cascades", "Tier", "cascades", "changed_premises"]

Tier = Literal["offline", "perfect"]
"""Who distils facts: the reflector without a model, or one that makes no mistake and says of none what it rests on."""

CHANGES = (
    "Decision: we are switching from {old} to {v}.",
    "Decision: we replace {old} with {v}.",
    "Decision: {v} instead of {old}, after all.",
    "Decision: we moved from {old} to {v}, the trial convinced everybody.",
)
DROPS = (
    "Decision: {old} is out, nothing takes its place yet.",
    "Decision: we drop {old} and decide next month.",
)
OTHERS = 6
"""Decisions that follow from nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cascades:
    """What became of the decisions that followed from one that was changed or dropped; shares in [0, 1]."""

    tier: str
    #: Decisions that followed from a changed premise, and from a dropped one.
    dependants: int
    orphans: int
    #: Of each: those that the list of facts flags.
    flagged: float
    flagged_orphans: float
    #: Of all: those that a recall shows outside the current episode, and with the doubt wherever it does.
    shown: float
    caveated: float
    #: Of those that are flagged: shown without the doubt. It has to be 0.
    certain: float
    #: Of the decisions that follow from nothing: flagged all the same.
    mistaken: float


def changed_premises(*, turns: int = 120, seed: int = 0, phrases: Phrases | None = None) -> Scenario:
    """Return two chains of decisions, the first premise changed later, the second dropped, and others beside them.

    The probes are of what followed, their topic "changed" or "dropped", and of the others, their topic "other".
    """
    writer = Writer.named("changed_premises", turns, seed, phrases or _phrases(), least=60)
    random = writer.random
    chains = random.sample(writer.phrases.chains, 2)
    drawn = [random.sample(chain.options, 2) for chain in chains]
    writer.keep(value for options in drawn for option in options for value in option)
    decided = writer.decide(random.sample(writer.phrases.topics, OTHERS))
    early: list[Statement] = []
    probes: list[Probe] = []
    for chain, (option, _), topic in zip(chains, drawn, ("changed", "dropped"), strict=True):
        early += [_step(writer, chain, option, step) for step in range(len(option))]
        probes += [
            Probe(question=random.choice(chain.questions[step]), expected=(value,), after=0, topic=topic)
            for step, value in enumerate(option)
            if step
        ]
    for one in decided:
        early.insert(random.randrange(len(early) + 1), one.state(random, marked=True))
        probes.append(replace(one.probe(random.choice(one.topic.questions)), topic="other"))
    stated = dict(zip(writer.places(len(early), 0, turns // 4), early, strict=True))
    (old, new), (gone, _) = drawn
    late = [
        _changed(chains[0], random.choice(CHANGES), old[0], new[0]),
        _changed(chains[1], random.choice(DROPS), gone[0], ""),
    ]
    stated.update(zip(writer.places(2, turns // 4 + 2, turns // 2 - 8), late, strict=True))
    others = [Decided(topic=topic, values=(), rivals=topic.values) for topic in writer.phrases.topics]
    return writer.write(
        f"changed_premises-{turns}-{seed}", turns=turns, stated=stated, probes=probes, noise=0.3, about=others
    )


def _step(writer: Writer, chain: Chain, option: Sequence[str], step: int) -> Statement:
    return Statement(
        topic=chain.steps[step],
        text=writer.random.choice(chain.said[step]).format(*option),
        value=option[step],
        part="fact",
        proposal=_proposal(chain, step, option[step], chain.contents[step].format(*option)),
    )


def _changed(chain: Chain, text: str, old: str, new: str) -> Statement:
    """Return how a premise is changed, or dropped where nothing is new."""
    proposal = _proposal(chain, 0, new, chain.contents[0].format(new))
    return Statement(
        topic=chain.steps[0],
        text=text.format(old=old, v=new),
        value=new or old,
        part="correction",
        proposal=replace(proposal, action="update" if new else "remove"),
    )


def _proposal(chain: Chain, step: int, value: str, content: str) -> Proposal:
    return Proposal(
        content=content,
        subject=chain.subject,
        attribute=chain.steps[step],
        value=value,
        cardinality="one",
        fact_type="decision",
    )


async def cascades(
    *,
    tiers: Sequence[Tier] = ("offline", "perfect"),
    turns: int = 120,
    seeds: Sequence[int] = range(10),
    phrases: Words = None,
    token_budget: int = 1000,
) -> list[Cascades]:
    """Tell conversations with changed premises, ask about what followed, and return one row for each tier.

    Of several word lists every seed takes the next one.
    """
    found: list[Cascades] = []
    for tier in tiers:
        asked: list[_Asked] = []
        for seed in seeds:
            scenario = changed_premises(turns=turns, seed=seed, phrases=drawn(phrases, seed))
            asked += await _asked(scenario, tier, token_budget)
        found.append(_row(tier, asked))
    return found


@dataclass(frozen=True, slots=True)
class _Asked:
    """A probe, and what came of it."""

    topic: str
    flagged: bool
    #: Whether each item that shows the value says its doubt.
    shown: tuple[bool, ...]
    #: Whether a fact that is flagged, or what alone said it, was shown without its doubt.
    certain: bool


async def _asked(scenario: Scenario, tier: Tier, budget: int) -> list[_Asked]:
    from acms.providers import OfflineReflector

    reflector: Reflector = OfflineReflector() if tier == "offline" else PerfectReflector(scenario)
    async with ACMS(scenario.name, open_storage("memory://"), None, reflector=reflector) as session:
        system = Remembering(session)
        for said in scenario.said:
            await system.tell(said)
        await session.close_episode()
        await system.settle()
        facts = await session.facts()
        found: list[_Asked] = []
        for probe in scenario.probes:
            items = [
                item
                for item in await session.recall(probe.question, token_budget=budget)
                if item.source not in CURRENT and _states(item, probe)
            ]
            doubted = [fact for fact in facts if fact.doubt is not None and _says(fact, probe)]
            ids = {id for fact in doubted for id in (fact.id, *fact.sources)}
            certain = any(item.id in ids and DOUBT not in item.content for item in items)
            shown = tuple(DOUBT in item.content for item in items)
            found.append(_Asked(probe.topic, bool(doubted), shown, certain))
        return found


def _says(fact: Fact, probe: Probe) -> bool:
    return all(word in (fact.value or fact.content) or word in fact.content for word in probe.expected)


def _states(item: ContextItem, probe: Probe) -> bool:
    """Whether an item is a fact or a statement of the user with the value: an acknowledgement states nothing."""
    stated = item.source is Source.FACT or "decision" in item.markers
    return stated and all(word in item.content for word in probe.expected)


def _row(tier: str, asked: Sequence[_Asked]) -> Cascades:
    changed = [one for one in asked if one.topic == "changed"]
    dropped = [one for one in asked if one.topic == "dropped"]
    both = [*changed, *dropped]
    return Cascades(
        tier=tier,
        dependants=len(changed),
        orphans=len(dropped),
        flagged=_share([one.flagged for one in changed]),
        flagged_orphans=_share([one.flagged for one in dropped]),
        shown=_share([bool(one.shown) for one in both]),
        caveated=_share([all(one.shown) for one in both if one.shown]),
        certain=_share([one.certain for one in both if one.flagged]),
        mistaken=_share([one.flagged for one in asked if one.topic == "other"]),
    )


def _share(found: Sequence[bool]) -> float:
    return sum(found) / len(found) if found else 0.0
