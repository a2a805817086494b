"""Grounding of a model's proposals: only proposals that the turns support are passed on.

For reflectors over a model. A reflector of your own may have better reasons than the words of a turn, such as a fixed
vocabulary, and a fact that a person states by hand needs no turn.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from acms.knowledge import Decision, Outcome, Proposal, Reflection
from acms.model import Origin
from acms.ports import ReflectionRequest
from acms.providers.summary_repair import repair_summary
from acms.text.details import find_details
from acms.text.grounding import MIN_WORD_SHARE, Evidence, is_placeholder

_FIELDS = ("content", "subject", "attribute", "value")


class ProposalChecker:
    """The turns and known facts of a request, as evidence for or against proposals."""

    def __init__(self, request: ReflectionRequest) -> None:
        turns = request.turns
        statements = [(turn.text, turn.created_at) for turn in turns]
        speakers = [(turn.speaker, None) for turn in turns]
        facts = [(f"{fact.subject} {fact.attribute} {fact.content}", None) for fact in request.facts]
        #: All turns and facts: a proposal may replace a pronoun by a name from another turn or a known fact.
        self._all = Evidence([*statements, *speakers, *facts])
        other_turns = [turn for turn in turns if turn.origin is not Origin.ASSISTANT]
        #: The turns that are not the assistant's.
        self._others = Evidence((turn.text, turn.created_at) for turn in other_turns)
        self._last_created_at = turns[-1].created_at if turns else None
        self._assistant_versions = {turn.version for turn in turns if turn.origin is Origin.ASSISTANT}
        self._by_version = {turn.version: Evidence([(turn.text, turn.created_at)]) for turn in turns}

    def names_day(self, moment: datetime) -> bool:
        """Return whether a turn names the day of a moment."""
        return self._all.names_day(moment.date())

    def _names_something_new(self, content: str) -> bool:
        return not all(self._others.says(detail.text) for detail in find_details(content))

    def check(self, proposal: Proposal) -> Proposal | Decision:
        """Return a proposal with the turns that state it as its sources, or the decision that refuses it.

        A value must appear in a cited turn. If it appears only in other turns, those become its sources: they certainly
        state it, and the least trusted of them decides how far it is believed. A content may contain names from any
        turn or known fact, and no other number or coined name.

        A proposal taken from the assistant alone is refused as small talk unless it holds a name, a number, a path or
        the like that no other turn has: "Nice to meet you, Ada" against "I made the tag v2.4.1".
        """
        if proposal.action not in ("add", "update") or not proposal.content:  # it states nothing new
            return proposal
        for name in _FIELDS:
            if is_placeholder(getattr(proposal, name)):
                return _refuse(proposal, "placeholder", f"its {name} has no words")
        missing_details = self._all.missing_details(proposal.content)
        if missing_details:
            return _refuse(
                proposal, "ungrounded", f"its content names {missing_details[0]!r}, which no turn says"
            )
        saying = self._find_turns_saying(proposal)
        if not saying:
            grounded_field = "value" if proposal.value else "content"
            return _refuse(proposal, "ungrounded", f"its {grounded_field} stands in no turn")
        if proposal.value and not Evidence([(proposal.content, self._last_created_at)]).says(proposal.value):
            return _refuse(proposal, "ungrounded", "its content does not say its value")
        sources = [version for version in proposal.sources if version in saying]
        is_of_assistant = self._assistant_versions.issuperset(sources or saying)
        # The assistant's own words are evidence only for what it did or found out.
        if is_of_assistant and not self._names_something_new(proposal.content):
            reason = "it is taken from the assistant, and names nothing new"
            return _refuse(proposal, "small_talk", reason)
        if proposal.sources and not sources:  # it cites turns that do not say it: cite those that do
            return replace(proposal, sources=tuple(saying))
        return proposal

    def _find_turns_saying(self, proposal: Proposal) -> list[int]:
        """Return the versions of the turns that state the value of a proposal, or else its content."""
        if proposal.value:
            field = f"{proposal.subject} {proposal.attribute}"
            return [version for version, turn in self._by_version.items() if turn.says(proposal.value, field)]
        return [
            version
            for version, turn in self._by_version.items()
            if turn.share(proposal.content) >= MIN_WORD_SHARE
        ]


def _refuse(proposal: Proposal, outcome: Outcome, reason: str) -> Decision:
    return Decision(proposal=proposal, outcome=outcome, reason=reason)


def ground_reflection(reflection: Reflection, request: ReflectionRequest) -> Reflection:
    """Return an answer with only the proposals that its turns support; the others are `rejected`.

    A validity date counts only if a turn names that day: small models write the time of the turn. The summary is
    repaired. Parts removed from either are reported in `unreadable`.
    """
    grounds = ProposalChecker(request)
    summary, unreadable = reflection.summary, reflection.unreadable
    checked: list[Proposal | Decision] = []
    for number, proposal in enumerate(reflection.proposals, 1):
        for name in ("valid_from", "valid_to"):
            day = getattr(proposal, name)
            if day is not None and not grounds.names_day(day):
                proposal = replace(proposal, **{name: None})
                unreadable += (f"proposal {number}: {name} is a day that no turn names",)
        checked.append(grounds.check(proposal))
    if summary is not None:
        text, repairs = repair_summary(summary, request.turns)
        summary = None if is_placeholder(text) else text or None
        unreadable += tuple(f"summary: {count} {kind}" for kind, count in repairs.items())
    return Reflection(
        proposals=tuple(item for item in checked if isinstance(item, Proposal)),
        summary=summary,
        unreadable=unreadable,
        rejected=(*reflection.rejected, *(item for item in checked if isinstance(item, Decision))),
    )
