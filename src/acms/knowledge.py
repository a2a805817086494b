"""Facts distilled from a log, the changes that a reflector proposes to them, and the decisions on these proposals.

A `Fact` is an entry of the log as its readers see it. Its *address* is (subject, attribute), normalised: at an address
of cardinality one at most one fact is in force, at one of cardinality many they add up (rule 1.16).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal, TypeAlias

from acms.model import Origin

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
"""Whether an address holds one value at a time, which a newer one replaces, or several."""

Scope: TypeAlias = Literal["session", "namespace"]
"""Whether a fact belongs to one conversation or to everything its namespace (a user, a project) talks about."""

Action: TypeAlias = Literal["add", "update", "remove", "keep"]
"""What a proposal asks for."""

Outcome: TypeAlias = Literal[
    "added", "updated", "removed", "kept", "duplicate", "overridden", "unknown_id", "low_confidence", "too_long",
    "untrusted", "over_limit", "invalid", "placeholder", "ungrounded", "small_talk",
]  # fmt: skip
"""What the rules made of a proposal: the first three changed something, the others did not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retired:
    """Why a fact is no longer in force."""

    #: updated (a newer fact replaces it), removed (it is no longer true), archived (too many facts), revoked (a source
    #: was retracted or edited), or the reason given with the retraction.
    reason: str
    #: Version and id of the entry that did it: taking that one back brings the fact back.
    version: int
    by: str
    #: Ids of the entries that were the reason.
    evidence: tuple[str, ...] = ()
    #: When that was said.
    at: datetime | None = None


DOUBT = "[in doubt:"
"""How the label begins of what may not be so any more."""
_ENDED = {"updated": "replaced", "removed": "ended"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Doubt:
    """Why an active fact may no longer be true: a premise of it is no longer active."""

    #: Id and version of the premise, on which it rests directly or through others.
    premise: str
    premise_version: int
    #: Id and version of the entry that put that out of force, and the reason as `Retired` has it.
    by: str
    version: int
    reason: str

    @classmethod
    def of(cls, premise: Fact) -> Doubt:
        """Return the doubt about facts that rest on a retired fact."""
        gone = premise.retired
        assert gone is not None
        return cls(
            premise=premise.id,
            premise_version=premise.version,
            by=gone.by,
            version=gone.version,
            reason=gone.reason,
        )

    @property
    def label(self) -> str:
        """What a reader is told beside the statement."""
        did = _ENDED.get(self.reason, "took back")
        return f"{DOUBT} rests on v{self.premise_version}, which v{self.version} {did}]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """A distilled statement, with its address, its evidence and how long it was in force."""

    #: Empty for one that is not stored yet: what a seed-shaped reflector returns.
    id: str = ""
    version: int = 0
    content: str
    subject: str = ""
    attribute: str = ""
    value: str = ""
    cardinality: Cardinality = "many"
    #: decision, constraint, failure, goal, preference, event… Those that are markers weigh like them in recall.
    fact_type: str = "fact"
    #: In [0, 1], as the reflector sees it.
    confidence: float = 1.0
    #: It says that something is not so, or must not be done.
    negative: bool = False
    scope: Scope = "session"
    #: Other names of its subject, under which it is found too.
    names: tuple[str, ...] = ()
    #: When it is or was so, where that was said: from the first moment on, until before the second.
    valid_from: datetime | None = None
    valid_to: datetime | None = None
    #: When the newest of its sources was said.
    stated_at: datetime | None = None
    #: Where the least trusted of its sources came from.
    trust: Origin = Origin.USER
    #: Ids of the messages it was made from.
    sources: tuple[str, ...] = ()
    #: Ids of the facts it stands in for.
    replaces: tuple[str, ...] = ()
    #: Ids of the earlier facts it rests on, as its reflector said or as it names them itself.
    depends_on: tuple[str, ...] = ()
    #: Why it may no longer be so although it is in force; None without a reason.
    doubt: Doubt | None = None
    #: Id of the context whose log it is in; the profile of the namespace for one of scope namespace.
    context: str = ""
    tokens: int = 0
    created_at: datetime | None = None
    #: None while it is in force.
    retired: Retired | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """One change to the facts, as a reflector proposes it; rules decide whether it is applied."""

    action: Action = "add"
    #: The statement, to be understood without the conversation; current state only.
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
    #: Start and end (exclusive) of its validity; `acms.text.moments` parses them from the statement.
    valid_from: datetime | None = None
    valid_to: datetime | None = None
    #: Id of the known fact that an update replaces, a remove ends, or a keep confirms.
    fact_id: str | None = None
    #: Ids of known facts it follows from: should one of them end, it is in doubt.
    depends_on: tuple[str, ...] = ()
    #: Versions of the turns it was made from; all that were read when empty.
    sources: tuple[int, ...] = ()
    #: Why, in the reflector's words.
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reflection:
    """A reflector's answer: proposals in the order in which they apply, and a summary of the turns it read."""

    proposals: tuple[Proposal, ...] = ()
    #: What the turns were about; None leaves the extractive one.
    summary: str | None = None
    #: Parts of the answer that could not be read, in words; they were passed over.
    unreadable: tuple[str, ...] = ()
    #: Proposals that the reflector itself refused, such as values its model made up: they are reported, not stored.
    rejected: tuple[Decision, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """A proposal and what the rules made of it."""

    proposal: Proposal
    outcome: Outcome
    #: The rule, in words.
    reason: str = ""
    #: Id of the fact it added, or of the one it ended, kept or repeats; None when there is none.
    fact_id: str | None = None
    #: Place of the draft it became among those of its append; None when it became none.
    draft: int | None = None
