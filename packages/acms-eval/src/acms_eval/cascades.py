"""Cascades: questions about decisions whose premise was changed or dropped.

In the manner of MEME (arXiv 2605.12477): premises, decisions that follow from them in one or two steps, and decisions
that follow from nothing. One premise gets another value, another one is dropped; then everything is asked about. The
decisions that followed are still stored, and no message ended them: an answer has to say that they may no longer hold.
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
from acms_eval.scenarios.writer import Decision, Statement, Writer
from acms_eval.sweeps import Words
from acms_eval.topics import Chain, Phrases, phrases_of_seed
from acms_eval.topics import phrases as _phrases

__all__ = ["Cascades", "Tier", "changed_premises", "measure_cascades"]

Tier = Literal["offline", "perfect"]
"""The reflector: the one without a model, or a perfect one that names no premises for its facts."""

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
    """How the decisions are shown that followed from a changed or dropped premise; shares in [0, 1]."""

    tier: str
    #: Decisions that followed from a changed premise, and from a dropped one.
    dependants: int
    orphans: int
    #: The shares of the dependants and of the orphans that the list of facts flags as doubtful.
    flagged: float
    flagged_orphans: float
    #: The share of both that a recall shows outside the current episode, and of these the share with the doubt.
    shown: float
    caveated: float
    #: The share of the flagged ones that are shown without the doubt. It has to be 0.
    certain: float
    #: The share of the decisions that follow from nothing and are flagged all the same.
    mistaken: float


def changed_premises(*, turns: int = 120, seed: int = 0, phrases: Phrases | None = None) -> Scenario:
    """Return two chains of decisions, the first premise changed later, the second dropped, and others beside them.

    Probes ask about the decisions that followed (topic "changed" or "dropped") and about the others (topic "other").
    """
    writer = Writer.for_scenario("changed_premises", turns, seed, phrases or _phrases(), least=60)
    random = writer.random
    chains = random.sample(writer.phrases.chains, 2)
    drawn_options = [random.sample(chain.options, 2) for chain in chains]
    writer.reserve_words(value for options in drawn_options for option in options for value in option)
    decided = writer.decide(random.sample(writer.phrases.topics, OTHERS))
    statements: list[Statement] = []
    probes: list[Probe] = []
    for chain, (option, _), topic in zip(chains, drawn_options, ("changed", "dropped"), strict=True):
        statements += [_state_step(writer, chain, option, step) for step in range(len(option))]
        probes += [
            Probe(question=random.choice(chain.questions[step]), expected=(value,), after=0, topic=topic)
            for step, value in enumerate(option)
            if step
        ]
    for decision in decided:
        statements.insert(random.randrange(len(statements) + 1), decision.state(random, marked=True))
        probes.append(replace(decision.probe(random.choice(decision.topic.questions)), topic="other"))
    stated = dict(zip(writer.draw_places(len(statements), 0, turns // 4), statements, strict=True))
    (old_option, new_option), (dropped_option, _) = drawn_options
    changes = [
        _change_premise(chains[0], random.choice(CHANGES), old_option[0], new_option[0]),
        _change_premise(chains[1], random.choice(DROPS), dropped_option[0], ""),
    ]
    stated.update(zip(writer.draw_places(2, turns // 4 + 2, turns // 2 - 8), changes, strict=True))
    bystanders = [Decision(topic=topic, values=(), rivals=topic.values) for topic in writer.phrases.topics]
    return writer.write(
        f"changed_premises-{turns}-{seed}",
        turns=turns,
        stated=stated,
        probes=probes,
        noise=0.3,
        about=bystanders,
    )


def _state_step(writer: Writer, chain: Chain, option: Sequence[str], step: int) -> Statement:
    return Statement(
        topic=chain.steps[step],
        text=writer.random.choice(chain.said[step]).format(*option),
        value=option[step],
        part="fact",
        proposal=_build_proposal(chain, step, option[step], chain.contents[step].format(*option)),
    )


def _change_premise(chain: Chain, text: str, old_value: str, new_value: str) -> Statement:
    """Return the statement that changes a premise, or drops it if `new_value` is empty."""
    proposal = _build_proposal(chain, 0, new_value, chain.contents[0].format(new_value))
    return Statement(
        topic=chain.steps[0],
        text=text.format(old=old_value, v=new_value),
        value=new_value or old_value,
        part="correction",
        proposal=replace(proposal, action="update" if new_value else "remove"),
    )


def _build_proposal(chain: Chain, step: int, value: str, content: str) -> Proposal:
    return Proposal(
        content=content,
        subject=chain.subject,
        attribute=chain.steps[step],
        value=value,
        cardinality="one",
        fact_type="decision",
    )


async def measure_cascades(
    *,
    tiers: Sequence[Tier] = ("offline", "perfect"),
    turns: int = 120,
    seeds: Sequence[int] = range(10),
    phrases: Words = None,
    budget: int = 1000,
) -> list[Cascades]:
    """Tell conversations with changed premises, ask about what followed, and return one row for each tier.

    Of several word lists every seed takes the next one.
    """
    rows: list[Cascades] = []
    for tier in tiers:
        outcomes: list[_Outcome] = []
        for seed in seeds:
            scenario = changed_premises(turns=turns, seed=seed, phrases=phrases_of_seed(phrases, seed))
            outcomes += await _ask_scenario(scenario, tier, budget)
        rows.append(_summarize_tier(tier, outcomes))
    return rows


@dataclass(frozen=True, slots=True)
class _Outcome:
    """How one probe was answered."""

    topic: str
    flagged: bool
    #: Whether each item that shows the value says its doubt.
    shown: tuple[bool, ...]
    #: Whether a flagged fact, or a message it comes from, was shown without the doubt.
    certain: bool


async def _ask_scenario(scenario: Scenario, tier: Tier, budget: int) -> list[_Outcome]:
    from acms.providers import OfflineReflector

    reflector: Reflector = OfflineReflector() if tier == "offline" else PerfectReflector(scenario)
    async with ACMS(scenario.name, open_storage("memory://"), None, reflector=reflector) as session:
        system = Remembering(session)
        for message in scenario.said:
            await system.tell(message)
        await session.close_episode()
        await system.settle()
        facts = await session.facts()
        outcomes: list[_Outcome] = []
        for probe in scenario.probes:
            items = [
                item
                for item in await session.recall(probe.question, budget=budget)
                if item.source not in CURRENT and _item_states(item, probe)
            ]
            doubted = [fact for fact in facts if fact.doubt is not None and _fact_says(fact, probe)]
            doubted_ids = {id for fact in doubted for id in (fact.id, *fact.sources)}
            certain = any(item.id in doubted_ids and DOUBT not in item.content for item in items)
            doubt_shown = tuple(DOUBT in item.content for item in items)
            outcomes.append(_Outcome(probe.topic, bool(doubted), doubt_shown, certain))
        return outcomes


def _fact_says(fact: Fact, probe: Probe) -> bool:
    return all(word in (fact.value or fact.content) or word in fact.content for word in probe.expected)


def _item_states(item: ContextItem, probe: Probe) -> bool:
    """Whether an item is a fact or a statement of the user with the value: an acknowledgement states nothing."""
    stated = item.source is Source.FACT or "decision" in item.markers
    return stated and all(word in item.content for word in probe.expected)


def _summarize_tier(tier: str, outcomes: Sequence[_Outcome]) -> Cascades:
    changed = [outcome for outcome in outcomes if outcome.topic == "changed"]
    dropped = [outcome for outcome in outcomes if outcome.topic == "dropped"]
    followed = [*changed, *dropped]
    return Cascades(
        tier=tier,
        dependants=len(changed),
        orphans=len(dropped),
        flagged=_share_of_true([outcome.flagged for outcome in changed]),
        flagged_orphans=_share_of_true([outcome.flagged for outcome in dropped]),
        shown=_share_of_true([bool(outcome.shown) for outcome in followed]),
        caveated=_share_of_true([all(outcome.shown) for outcome in followed if outcome.shown]),
        certain=_share_of_true([outcome.certain for outcome in followed if outcome.flagged]),
        mistaken=_share_of_true([outcome.flagged for outcome in outcomes if outcome.topic == "other"]),
    )


def _share_of_true(flags: Sequence[bool]) -> float:
    return sum(flags) / len(flags) if flags else 0.0
