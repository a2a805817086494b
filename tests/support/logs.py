"""Logs for tests of the core: entries made by hand, without a store."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from acms import Entry, EpisodeBoundaryConfig, Kind, Origin, Role, State, Text, ToolCall, ToolResult
from acms.log.active_entries import EntryGroup, Replacements, effective_sequence, fold_atomic_groups
from acms.log.encoding import entry_id
from acms.log.validation import canonical_text
from acms.model import Draft, Part, Span
from acms.recall.planner import media_tokens
from acms.write.episodes import Tail, assign_episode

CONTEXT = "c_0123456789abcdef"
NONCE = "0a1b2c"
NOON = datetime(2026, 3, 14, 12, tzinfo=UTC)

INSTRUCTING = (Role.SYSTEM, Role.DEVELOPER)
"""Roles of what the application says."""

_DRAFT = tuple(field.name for field in fields(Draft))


def make_entry(version: int, content: str = "", **given: Any) -> Entry:
    """One entry; everything a store would add is made up."""
    values: dict[str, Any] = {
        "kind": Kind.MESSAGE,
        "role": Role.USER if given.get("kind", Kind.MESSAGE) is Kind.MESSAGE else None,
        **({"origin": Origin.SYSTEM} if given.get("role") in INSTRUCTING else {}),
        "created_at": NOON + timedelta(seconds=version),
        "position": version,
        "id": entry_id(given.get("kind", Kind.MESSAGE), CONTEXT, version, NONCE),
        "context": CONTEXT,
        "batch": version,
        "total": 0,
        "salt": None,
        "digest": b"",
        "chain": b"",
    }
    return Entry(version=version, content=content, **{**values, **given})


class Log:
    """A log in the making: messages are placed by the rules a session uses."""

    def __init__(self, count: Any = len, rules: EpisodeBoundaryConfig | None = None) -> None:
        self.count = count
        self.rules = rules or EpisodeBoundaryConfig()
        self.tail = Tail()
        self.entries: list[Entry] = []
        self._time = NOON
        self._groups = 0

    @property
    def version(self) -> int:
        return len(self.entries)

    def add(self, draft: Draft) -> Entry:
        version = len(self.entries) + 1
        values = {name: getattr(draft, name) for name in _DRAFT}
        made = make_entry(version, **values)
        self.entries.append(made)
        return made

    def say(
        self,
        role: Role | str,
        content: str = "",
        *,
        calls: Sequence[str] = (),
        answers: str | Sequence[str] | None = None,
        parts: Sequence[Part] = (),
        markers: Sequence[str] = (),
        after: float = 1,
        actor: str | None = None,
    ) -> Entry:
        """Append a message `after` seconds; `calls` opens tool calls, `answers` answers one or several."""
        self._time += timedelta(seconds=after)
        made: list[Part] = list(parts)
        if answers is not None:
            made += [
                ToolResult(call, content) for call in ([answers] if isinstance(answers, str) else answers)
            ]
        elif content and (calls or parts):
            made.insert(0, Text(content))
        made += [ToolCall(call, "look", f'{{"at": "{call}"}}') for call in calls]
        text = canonical_text(made) if made else content
        self._groups += 1
        draft = Draft(
            content=text,
            role=Role(role),
            origin=Origin.SYSTEM if role in INSTRUCTING else Origin.USER,
            created_at=self._time,
            parts=tuple(made),
            markers=tuple(markers),
            actor=actor,
            tokens=self.count(text) + media_tokens(made),
        )
        found = assign_episode(self.tail, draft, self.rules, f"g{self._groups}")
        self.tail = found.tail
        return self.add(replace(draft, episode=found.episode, closes=found.closes, group=found.group))

    def fact(
        self,
        content: str,
        actor: str | None = None,
        *,
        replaces: Sequence[int] = (),
        sources: Sequence[int] = (),
        markers: Sequence[str] = (),
        **data: Any,
    ) -> Entry:
        """Append a fact; `demotes` maps a version to the part of that message that still holds."""
        if "demotes" in data:
            data["demotes"] = [
                [self.entries[version - 1].id, spans] for version, spans in data["demotes"].items()
            ]
        return self.add(
            Draft(
                kind=Kind.FACT,
                content=content,
                created_at=self._time,
                actor=actor,
                tokens=self.count(content),
                origin=Origin.DERIVED,
                markers=tuple(markers),
                replaces=tuple((version, version) for version in replaces),
                sources=tuple(self.entries[version - 1].id for version in sources),
                data=data,
            )
        )

    def close(self, reason: str = "manual") -> None:
        """End the open episode by hand; nothing happens when none is open."""
        if self.tail.episode and self.tail.closed is None:
            self.add(Draft(kind=Kind.EPISODE, created_at=self._time, data={"reason": reason}))
            self.tail = replace(self.tail, closed=reason)

    def edit(self, version: int, content: str) -> Entry:
        """Replace a message, as a session does: also what the message itself replaced."""
        old = self.entries[version - 1]
        return self.add(
            Draft(
                content=content,
                role=old.role,
                origin=old.origin,
                created_at=self._time,
                tokens=self.count(content),
                episode=old.episode,
                group=old.group,
                parts=tuple(
                    replace(part, output=content) if isinstance(part, ToolResult) else part
                    for part in old.parts
                ),
                replaces=(*old.replaces, (version, version)),
                sources=(old.id,),
            )
        )

    def retract(self, *versions: int) -> Entry:
        spans = tuple((version, version) for version in versions)
        return self.add(Draft(kind=Kind.RETRACTION, created_at=self._time, replaces=spans))

    def summarise(self, *spans: Span, content: str = "summary", state: State = State.LIVE) -> Entry:
        made = self.add(
            Draft(
                kind=Kind.SUMMARY,
                content=content,
                created_at=self._time,
                tokens=self.count(content),
                replaces=spans,
                covers=spans[0],
            )
        )
        if state is not State.LIVE:
            made = self.entries[-1] = replace(made, state=state)
        return made

    # ── what is in force ────────────────────────────────────────────────────────────────────────────────────────────

    def replacements(self, at: int | None = None) -> Replacements:
        return Replacements(
            entry for entry in self.entries[: len(self.entries) if at is None else at] if entry.replaces
        )

    def sequence(self, at: int | None = None) -> list[Entry]:
        return effective_sequence(
            self.entries[: len(self.entries) if at is None else at], self.replacements(at)
        )

    def versions(self, at: int | None = None) -> list[int]:
        return [entry.version for entry in self.sequence(at)]

    def units(self, at: int | None = None) -> list[EntryGroup]:
        return fold_atomic_groups(self.sequence(at), whole=True).units

    def shown(self, at: int | None = None) -> list[tuple[int, ...]]:
        """Versions of every unit that may be shown, in order."""
        return versions_of(self.units(at))


def versions_of(found: Iterable[EntryGroup]) -> list[tuple[int, ...]]:
    return [tuple(entry.version for entry in unit.entries) for unit in found]
