"""A log whose facts are what the rules make of proposals, without a store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from acms import Entry, Fact, Kind, Origin
from acms.facts.consolidate import Consolidated, Consolidation, FactLimits
from acms.knowledge import Outcome
from acms.log import facts
from acms.log.active_entries import Replacements, find_demotions
from acms.model import Draft
from acms.ports import Proposal
from tests.support.logs import NOON, Log

RULES = FactLimits(min_confidence=0.7, max_facts=10, max_tokens=200, max_active=100)


def make_proposal(content: str, **given: Any) -> Proposal:
    return Proposal(content=content, **given)


def single_value_proposal(attribute: str, value: str, **given: Any) -> Proposal:
    """A value of the only thing of its kind."""
    given.setdefault("cardinality", "one")
    return Proposal(
        content=f"The {attribute} is {value}.", subject="project", attribute=attribute, value=value, **given
    )


def consolidate_proposals(
    proposals: Sequence[Proposal],
    known: Sequence[Fact],
    log: Sequence[Entry],
    read: Sequence[Entry],
    rules: FactLimits,
    key: str = "reflect:1",
) -> Consolidated:
    """Consolidate, with the messages of a log as a runner reads them."""
    consolidation = Consolidation(
        proposals, known, read, rules, now=NOON, count=lambda text: len(text.split()), key=key
    )
    cited = set(consolidation.cited_ids)
    return consolidation.build_drafts([entry for entry in log if entry.id in cited])


class FactLog(Log):
    """A log that is talked in and reflected on."""

    def told(self, content: str, origin: Origin = Origin.USER, **given: Any) -> Entry:
        entry = replace(self.say("user", content), origin=origin, **given)
        self.entries[-1] = entry
        return entry

    def reflect(
        self, *proposals: Proposal, read: Sequence[Entry] | None = None, **rules: Any
    ) -> list[Outcome]:
        """Append what the rules make of proposals about some messages, the newest one if not said otherwise."""
        made = self.decide(*proposals, read=read, **rules)
        for draft in made.drafts:
            self.add(draft)
        return [decision.outcome for decision in made.decisions]

    def decide(self, *proposals: Proposal, read: Sequence[Entry] | None = None, **rules: Any) -> Consolidated:
        said = [entry for entry in self.entries if entry.kind is Kind.MESSAGE]
        return consolidate_proposals(
            proposals,
            self.known(),
            self.entries,
            said[-1:] if read is None else read,
            replace(RULES, **rules),
        )

    def known(self) -> list[Fact]:
        return [fact for fact in self.facts() if fact.retired is None]

    def facts(self, upto: int | None = None) -> list[Fact]:
        entries = self.entries[: self.version if upto is None else upto]
        replacing = [entry for entry in entries if entry.replaces]
        made = [entry for entry in entries if entry.kind is Kind.FACT]
        return facts.collect_facts(made, Replacements(replacing), replacing)

    def said(self) -> list[str]:
        """The active facts, in words."""
        return [fact.value or fact.content for fact in self.known()]

    def take_back(self, version: int, reason: str = "undo") -> Entry:
        spans = ((version, version),)
        return self.add(Draft(kind=Kind.RETRACTION, created_at=NOON, replaces=spans, data={"reason": reason}))

    def demoted(self) -> dict[str, list[str]]:
        """Content of the demoted messages → the part of each that still holds."""
        known = find_demotions(self.replacements())
        return {
            entry.content: [entry.content[start:end].strip() for start, end in found.spans]
            for entry in self.entries
            if (found := known.find_demotion([entry])) is not None
        }
