"""Facts distilled from a log, the changes that a reflector proposes to them, and the decisions on these proposals.

A `Fact` is an entry of the log as its readers see it. Its *address* is (subject, attribute), normalised: an address of
cardinality "one" has at most one active fact, and an address of cardinality "many" has any number (rule 1.16).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal, TypeAlias

from acms.model import Origin, show_in_repr

__all__ = [
    "Action",
    "Cardinality",
    "Decision",
    "Doubt",
    "Fact",
    "Outcome",
    "Proposal",
    "Reflection",
    "Retired",
    "Scope",
]

Cardinality: TypeAlias = Literal["one", "many"]
"""Whether an address has one value at a time, which a newer one replaces, or several."""

Scope: TypeAlias = Literal["session", "namespace"]
"""Whether a fact belongs to one conversation, or to all conversations of its namespace (a user, a project)."""

Action: TypeAlias = Literal["add", "update", "remove", "keep"]
"""The change that a proposal requests."""

Outcome: TypeAlias = Literal[
    "added", "updated", "removed", "kept", "duplicate", "overridden", "unknown_id", "low_confidence", "too_long",
    "untrusted", "over_limit", "invalid", "placeholder", "ungrounded", "small_talk",
]  # fmt: skip
"""The decision of the rules about a proposal: the first three outcomes change facts, the others do not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retired:
    """Why a fact is no longer active."""

    #: updated (a newer fact replaces it), removed (it is no longer true), archived (too many facts), revoked (a source
    #: was retracted or edited), or the reason given with the retraction.
    reason: str
    #: Version and id of the entry that retired it: when that entry is undone, the fact is active again.
    version: int
    by: str
    #: Ids of the entries that were the reason.
    evidence: tuple[str, ...] = ()
    #: When the reason was stated.
    at: datetime | None = None


DOUBT = "[in doubt:"
"""Start of the label of a statement that may no longer be true."""
_VERB_OF_REASON = {"updated": "replaced", "removed": "ended"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Doubt:
    """Why an active fact may no longer be true: a premise of it is no longer active."""

    #: Id and version of the premise, on which it rests directly or through others.
    premise: str
    premise_version: int
    #: Id and version of the entry that retired the premise, and the reason, as in `Retired`.
    by: str
    version: int
    reason: str

    @classmethod
    def of(cls, premise: Fact) -> Doubt:
        """Return the doubt about facts that rest on a retired fact."""
        retired = premise.retired
        assert retired is not None
        return cls(
            premise=premise.id,
            premise_version=premise.version,
            by=retired.by,
            version=retired.version,
            reason=retired.reason,
        )

    @property
    def label(self) -> str:
        """The label that readers see next to the statement."""
        verb = _VERB_OF_REASON.get(self.reason, "took back")
        return f"{DOUBT} rests on v{self.premise_version}, which v{self.version} {verb}]"


@show_in_repr("version", "id", "confidence", "retired", "content")
@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """A distilled statement, with its address, its evidence and the time for which it was active."""

    #: Empty for a fact that is not stored yet, such as one that a reflector returns instead of a proposal.
    id: str = ""
    version: int = 0
    content: str
    subject: str = ""
    attribute: str = ""
    value: str = ""
    cardinality: Cardinality = "many"
    #: decision, constraint, failure, goal, preference, event… A type that is also a marker raises the rank in recall.
    fact_type: str = "fact"
    #: Confidence of the reflector, in [0, 1].
    confidence: float = 1.0
    #: Whether it states that something is not true, or must not be done.
    negative: bool = False
    scope: Scope = "session"
    #: Other names of its subject, by which it is found too.
    names: tuple[str, ...] = ()
    #: Start and end (exclusive) of the time for which it is true, if stated.
    valid_from: datetime | None = None
    valid_to: datetime | None = None
    #: When the newest of its sources was written.
    stated_at: datetime | None = None
    #: Origin of the least trusted of its sources.
    trust: Origin = Origin.USER
    #: Ids of the messages it was made from.
    sources: tuple[str, ...] = ()
    #: Ids of the facts it replaces.
    replaces: tuple[str, ...] = ()
    #: Ids of the earlier facts it rests on: those that its reflector reported, and those that its words name.
    depends_on: tuple[str, ...] = ()
    #: Why it may no longer be true although it is active, or None.
    doubt: Doubt | None = None
    #: Id of the context whose log it is in; for the scope "namespace", the profile of the namespace.
    context: str = ""
    tokens: int = 0
    created_at: datetime | None = None
    #: None while it is active.
    retired: Retired | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """One change to the facts, as a reflector proposes it; rules decide whether it is applied."""

    action: Action = "add"
    #: The statement, which must be clear without the conversation and state only the current situation.
    content: str = ""
    subject: str = ""
    attribute: str = ""
    value: str = ""
    #: None: the cardinality of the active fact at the address, else "many".
    cardinality: Cardinality | None = None
    fact_type: str = "fact"
    confidence: float = 1.0
    negative: bool = False
    scope: Scope = "session"
    #: Other names of its subject.
    names: tuple[str, ...] = ()
    #: Start and end (exclusive) of its validity; `acms.text.date_phrases` parses them from the statement.
    valid_from: datetime | None = None
    valid_to: datetime | None = None
    #: Id of the known fact that an update replaces, a remove ends, or a keep confirms.
    fact_id: str | None = None
    #: Ids of known facts it follows from: if one of them is retired, it is in doubt.
    depends_on: tuple[str, ...] = ()
    #: Versions of the turns it was made from; empty for all turns that were read.
    sources: tuple[int, ...] = ()
    #: The reason, in the words of the reflector.
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reflection:
    """A reflector's answer: proposals in the order in which they apply, and a summary of the turns it read."""

    proposals: tuple[Proposal, ...] = ()
    #: A summary of the turns; None for an extractive one.
    summary: str | None = None
    #: Descriptions of the parts of the answer that could not be read and were skipped.
    unreadable: tuple[str, ...] = ()
    #: Proposals that the reflector itself rejected, such as values its model made up: they are reported, not stored.
    rejected: tuple[Decision, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """A proposal and the decision of the rules about it."""

    proposal: Proposal
    outcome: Outcome
    #: The rule that decided, in words.
    reason: str = ""
    #: Id of the fact that it added, ended, kept or repeats, or None.
    fact_id: str | None = None
    #: Index of its draft among the drafts of the append, or None if it has no draft.
    draft: int | None = None
