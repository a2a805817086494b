"""What a merge of two branches gives back: what comes, what changes, and where both sides disagree."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from acms.model import Entry
from acms.results import LINE, Change, speak

__all__ = ["MergeConflict", "MergeStrategy", "Merged"]

MergeStrategy: TypeAlias = Literal["refuse", "ours", "theirs"]
"""What becomes of conflicts: nothing is merged, or this side or the other one has its way in each of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeConflict:
    """One thing that both sides changed since they last knew of each other, and not to the same."""

    #: What they disagree about: a message, a tool group, a fact, or what was said under a caller's key.
    kind: Literal["message", "tool_group", "fact", "key"]
    #: What each side did, as git says it; where one deleted, its side is empty.
    type: Literal["modify/modify", "modify/delete", "add/add"]
    #: Which one: the id of the message or the group, the key, or the address of the fact as "subject / attribute".
    subject: str
    #: As it was when the sides last knew of each other, on this side now, and on the other side now; by their own ids.
    base: tuple[Entry, ...] = ()
    ours: tuple[Entry, ...] = ()
    theirs: tuple[Entry, ...] = ()
    #: Which side had its way; None while the strategy is to refuse.
    resolution: Literal["ours", "theirs"] | None = None
    #: Why it was not the side that was asked for; "" where it was.
    reason: str = ""

    def __str__(self) -> str:
        took = f": {self.resolution}" if self.resolution else ""
        why = f" ({self.reason})" if self.reason else ""
        return f"{self.kind} {self.subject} ({self.type}){took}{why}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """What a merge did, or would do: entries of the other side under their own ids, and what they meet here."""

    #: Name of each side with its version, such as "user_123 v12"; this one as it was before.
    ours: str
    theirs: str
    #: Newest version up to which both sides are one and the same log: the fork point.
    common: int
    strategy: MergeStrategy
    dry_run: bool
    #: Messages and facts of the other side that are appended here, in its order.
    appended: tuple[Entry, ...] = ()
    #: Messages and facts of this side that say something else now: as they were here, and as they are there.
    changed: tuple[Change, ...] = ()
    #: Messages and facts of this side that are put out of force.
    retracted: tuple[Entry, ...] = ()
    conflicts: tuple[MergeConflict, ...] = ()
    #: Entries of the other side that stay away since this side has lost their content: erased, or expired.
    gone: int = 0
    #: Version of the record of the merge, which `undo` takes back; None where nothing was written.
    version: int | None = None

    def __bool__(self) -> bool:
        """Whether anything changes here, or both sides disagree."""
        return bool(self.appended or self.changed or self.retracted or self.conflicts)

    def __str__(self) -> str:
        """Show it as a difference: what comes, what changes, what goes, and the conflicts."""
        lines = [f"--- {self.ours}", f"+++ {self.theirs}"]
        if not self:
            lines.append(
                "    already up to date" if self.version is None else "    both sides changed the same"
            )
        for title, rows in (
            ("appended", [("+", entry) for entry in self.appended]),
            ("changed", [row for one in self.changed for row in (("-", one.before), ("+", one.after))]),
            ("retracted", [("-", entry) for entry in self.retracted]),
        ):
            if rows:
                lines += [
                    f"@@ {title} @@",
                    *(f"{sign} v{entry.version} {_line(entry)}" for sign, entry in rows),
                ]
        for conflict in self.conflicts:
            lines.append(f"!! {conflict}")
            for name, entries in (("ours", conflict.ours), ("theirs", conflict.theirs)):
                lines += [f"   {name}: v{entry.version} {_line(entry)}" for entry in entries] or [
                    f"   {name}: gone"
                ]
        return "\n".join(lines)


def _line(entry: Entry) -> str:
    """Return who says what on one line, shortened."""
    said = " ".join(speak(entry.actor or entry.role, entry.content).split())
    return said if len(said) <= LINE else said[: LINE - 1].rstrip() + "…"
