"""The planner: which units the model sees within a hard token budget, and why.

Counts of parts do not add up to the count of the joined text: byte-pair encodings are not additive, and estimators
round. So a plan is made with stored counts, its joined text is counted once, and while that is over the budget the
plan is made again with that much less (decision 0004).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC
from typing import Any, NamedTuple, TypeAlias, TypeVar

from acms.log import summary_levels, trust
from acms.log.encoding import parse_entry_id
from acms.log.in_force import FACT, Demotion, Doc, Lone, Unit, display_name_of, rendered_role
from acms.log.validity import attach_label
from acms.model import Entry, Kind, Media, Part, Privacy, Role, Source, Span, ToolCall, ToolResult
from acms.ports import Frame, TokenCounter
from acms.privacy.modes import Cleared
from acms.prompt_types import SEPARATOR, prefix_speaker
from acms.results import (
    UNSURE,
    Certainty,
    ContextItem,
    Ledger,
    Others,
    Verdict,
    format_item,
    is_external,
    join_items,
    new_days,
    resolve_speaker,
)
from acms.text.condense import condense_arguments, condense_output, find_level, split_records
from acms.text.tokenizer import content_terms, split_words

CUT = " […] "
"""Marks text left out because it did not fit."""


LABEL = 20
"""Estimated tokens of a label; its real tokens are counted with the text."""
COUNTED = 16_384
"""Entries whose count is kept."""


class TextFrame:
    """The frame of joined text: `speaker: ` before an item and a blank line after it."""

    def __init__(self, counter: TokenCounter) -> None:
        self._count = counter.count
        self._separator = counter.count(SEPARATOR)
        self._known: dict[str | None, int] = {}
        #: Whether the counts of paragraphs that begin with a letter add up, and those of such entries by id and text:
        #: entries shown again are not counted again, since counting reads a table of millions of bytes.
        self._adds = bool(getattr(counter, "paragraphs", False))
        self._counted: dict[tuple[str, Role | None, str | None, str | None, bool, int], int] = {}

    def cost(self, role: Role | None, parts: Sequence[Part], speaker: str | None = None) -> int:
        """Return the tokens of the speaker's name and the separator."""
        name = speaker or role
        cost = self._known.get(name)
        if cost is None:
            cost = self._known[name] = self._count(prefix_speaker(name, "")) + self._separator
        return cost

    def joined(self, items: Sequence[ContextItem]) -> int:
        """Return the tokens of the joined text of some items, exactly."""
        said = [item for item in items if item.content]
        if not self._adds or not all(map(_begins_with_letter, said[-1:])):
            return self._count(join_items(said))
        known = self._counted
        total = 0
        days = new_days(said)
        for item, day in zip(said[:-1], days, strict=False):
            # An entry may be cut, redacted or labelled, and a tool's answer be shown as text of the user.
            key = item.id, item.role, item.actor_id, day, is_external(item), hash(item.content)
            count = known.get(key)
            if count is None:
                if not _begins_with_letter(item):
                    return self._count(join_items(said))
                if len(known) >= COUNTED:
                    known.clear()
                count = known[key] = self._count(format_item(item, day) + SEPARATOR)
            total += count
        if not said:
            return 0
        last = said[-1]
        return total + self._count(format_item(last, days[-1]))


def _begins_with_letter(item: ContextItem) -> bool:
    first = (item.speaker or " ")[0]
    return first.isascii() and first.isalpha()


def _speaker_of_item(item: ContextItem) -> str | None:
    return FACT if item.source is Source.FACT else item.actor_id


NO_TRIMS: Mapping[str, Demotion] = {}
T = TypeVar("T")


class Pairs(NamedTuple):
    """A question to a reranker: how well each text answers the query."""

    query: str
    texts: tuple[str, ...]


class Scores(NamedTuple):
    """The answer of a reranker: a number in [0, 1] for each text, or why there is none."""

    values: tuple[float, ...] = ()
    warning: str = ""


class Rows(NamedTuple):
    """Entries that a plan asked for, by id, and the names of their sessions, by context."""

    entries: dict[str, Entry]
    sessions: dict[str, str]


NO_ROWS = Rows({}, {})
Steps: TypeAlias = Generator[list[str] | Pairs, Any, T]
"""A plan under way: it asks for entries by id and goes on with `Rows`, or for `Scores`."""

SUMMARIES_SHARE = 0.25
"""Share of the tokens left by the latest message that is reserved for summaries of omitted ones (decision 0061)."""
LEAST_BUDGET = 6
"""Tokens below which nothing is shown: they hold no more than a speaker's name and a cut mark."""
LEAST = 48
"""Tokens that an excerpt is worth."""


class Candidate(NamedTuple):
    """A unit that may enter the prompt."""

    unit: Unit[Entry] | Unit[Doc] | Lone
    source: Source
    #: Tokens with frames: of each entry, and of all.
    costs: tuple[int, ...]
    tokens: int
    relevance: float = 0.0
    boost: float = 0.0
    score: float = 0.0
    #: Returns the contribution of each signal to its relevance.
    parts: Callable[[], Mapping[str, float]] = dict
    #: Text to show along with the content: for a fact, its period of validity.
    label: str = ""
    #: Whether it is external text, or was made from some.
    external: bool = False
    #: Score of the statement it stands beside, which it is chosen with; 0 when it stands alone.
    leader_score: float = 0.0
    #: How far it is from a message that shares a content word with the query, or its meaning, see `Ranking.distances`.
    distance: int = 0

    @property
    def markers(self) -> tuple[str, ...]:
        """Markers of all its entries."""
        return self.unit.markers


def version_of(id: str) -> int:
    """Return the version that an id tells; 0 when it tells none."""
    place = parse_entry_id(id)
    return 0 if place is None else place[1]


def version_in(entry: Entry | Doc) -> int:
    """Return the version of an entry in its log: an index of many logs numbers its documents otherwise."""
    return version_of(entry.id) or entry.version


class Choice(NamedTuple):
    """A candidate, whether it is shown, and the rule that decided."""

    candidate: Candidate
    included: bool
    rule: str
    reason: str
    #: Tokens the candidate may use when the rule is "cut" or "excerpt".
    room: int = 0


def build_candidate(unit: Unit[Entry] | Unit[Doc], source: Source, frame: Frame) -> Candidate:
    """Return a unit as an unranked candidate."""
    costs = [
        entry.tokens + frame.cost(rendered_role(entry), entry.parts, display_name_of(entry))
        for entry in unit.entries
    ]
    return Candidate(unit, source, tuple(costs), sum(costs))


def append_label(one: Candidate, told: str) -> Candidate:
    """Return a candidate of one entry that says something more beside its text; as it is when there is nothing."""
    if not told or len(one.costs) > 1:
        return one
    tokens = one.tokens + LABEL
    return one._replace(label=f"{one.label} {told}".lstrip(), costs=(tokens,), tokens=tokens)


def choose_newest_suffix(candidates: Sequence[Candidate], budget: int) -> list[Choice]:
    """Choose the newest contiguous candidates that fit; the newest is always included, cut if necessary.

    Where not all fit, summaries cover the omitted older ones, with a reserved share of the budget.
    """
    chosen: list[Choice] = []
    left = budget
    full = False
    places: dict[int, int] = {}
    if candidates and sum([one.tokens for one in candidates]) > budget:
        last = _fit_summary_level(candidates[-1], budget)
        candidates = [*candidates[:-1], last]
        places = _reserve_summary_tokens(candidates, budget - last.tokens)
        left -= sum(places.values())
    for index, one in enumerate(reversed(candidates)):
        if index == 0:
            rule = "latest" if one.tokens <= budget else "cut"
            chosen.append(Choice(one, True, rule, "the latest message is always shown", budget))
            left -= one.tokens
        elif places and len(candidates) - 1 - index in places:
            chosen.append(Choice(one, True, "summary", ""))
        elif not full and one.tokens <= left:
            chosen.append(Choice(one, True, "window", "among the newest messages that fit"))
            left -= one.tokens
        elif not full:
            full = True
            chosen.append(Choice(one, False, "budget", f"needs {one.tokens} tokens, {max(left, 0)} are left"))
        else:
            chosen.append(Choice(one, False, "contiguous", "older than the first message that did not fit"))
    chosen.reverse()
    for index, reserved in places.items():
        found = chosen[index] = _choose_summary(candidates[index], reserved + max(0, left))
        left += reserved - (min(found.candidate.tokens, found.room) if found.included else 0)
    return chosen


def _reserve_summary_tokens(candidates: Sequence[Candidate], left: int) -> dict[int, int]:
    """Return the tokens reserved for each summary among some candidates, by index: those of its shortest text.

    Together they have at most their share of the tokens that the latest message leaves. The longest comes first,
    because it covers most.
    """
    places = [
        index
        for index, one in enumerate(candidates[:-1])
        if one.unit.entries[0].kind is Kind.SUMMARY and _level_of(one, 0) is not None
    ]
    share = max(0, int(left * SUMMARIES_SHARE))
    found: dict[int, int] = {}
    for index in sorted(places, key=lambda index: (-candidates[index].tokens, -index)):
        found[index] = min(share, _fit_summary_level(candidates[index], 0).tokens) if share >= LEAST else 0
        share -= found[index]
    return found


def _choose_summary(one: Candidate, room: int) -> Choice:
    """Return the choice of a summary in the longest of its texts that fits, the shortest cut when none does."""
    found = _fit_summary_level(one, room)
    whole = f"the summary of what is older, {one.tokens} tokens"
    if found.tokens > room:
        why = f"{whole}, {found.tokens} in its shortest text, {room} are left"
        return Choice(found, room >= LEAST, "cut" if room >= LEAST else "budget", why, room)
    reason = whole if found is one else f"{whole}, in a text of {found.tokens}"
    return Choice(found, True, "summary", reason, room)


def _level_of(one: Candidate, room: int) -> tuple[Entry, summary_levels.Level] | None:
    """Return the summary that a candidate is, and the text of it that fits a room; None of anything else."""
    entry = one.unit.entries[0]
    if entry.kind is not Kind.SUMMARY or not isinstance(entry, Entry):
        return None
    return entry, summary_levels.choose_level(entry, room - (one.tokens - entry.tokens))


def _fit_summary_level(one: Candidate, room: int) -> Candidate:
    """Return a summary in the longest of its texts that fits a room, or in the shortest; anything else as it is."""
    found = _level_of(one, room)
    if found is None or found[1].tokens == found[0].tokens:
        return one
    entry, level = found
    tokens = one.tokens - entry.tokens + level.tokens
    return one._replace(unit=Unit((summary_levels.at_level(entry, level),)), costs=(tokens,), tokens=tokens)


def fit_to_budget(
    choose: Callable[[int], list[Choice]],
    budget: int,
    counter: TokenCounter,
    frame: Frame,
    query: str = "",
    trims: Mapping[str, Demotion] = NO_TRIMS,
    *,
    dated: bool = False,
) -> Steps[tuple[list[ContextItem], list[Choice]]]:
    """Choose, write and count until the items and their joined text both fit the budget.

    `choose` is called with a budget and called again with a smaller one when the joined text is over. Items come out
    in the order of the choices; the one that must be shown is cut when even alone it does not fit. Entries that are
    known by their place only are asked for once they are chosen. `trims` names messages of which only a part is shown;
    `dated` tells of messages the day.
    """
    if budget < LEAST_BUDGET:
        return [], [_leave_out(choice) for choice in choose(budget)]
    limit = budget
    rows = Rows({}, {})
    while True:
        choices = choose(limit)
        if trims:
            choices = [_explain_trim(choice, trims) for choice in choices]
        chosen = [choice for choice in choices if choice.included]
        wanted = [
            one.id
            for choice in chosen
            for one in choice.candidate.unit.entries
            if not isinstance(one, Entry) and one.id not in rows.entries
        ]
        if wanted:
            found: Rows = yield wanted
            rows.entries.update(found.entries)
            rows.sessions.update(found.sessions)
            for id in trims.keys() & wanted:
                rows.entries[id] = trim_entry(rows.entries[id], trims[id].spans)
        items = [
            item
            for choice in chosen
            for item in render_choice(choice, counter, frame, rows, query, dated=dated)
        ]
        together = frame.joined(items) if isinstance(frame, TextFrame) else counter.count(join_items(items))
        over = max(together, sum([item.token_count for item in items])) - budget
        if over <= 0 or limit < 0:
            return items, choices
        limit = max(-1, limit - over)


def _leave_out(choice: Choice) -> Choice:
    """Return a choice of a budget that shows nothing."""
    reason = f"a budget below {LEAST_BUDGET} tokens shows nothing"
    return choice._replace(included=False, rule="budget", reason=reason)


def _explain_trim(choice: Choice, trims: Mapping[str, Demotion]) -> Choice:
    """Return a choice that says that only a part of a message is shown, where that is so."""
    if not choice.included or choice.rule != "score" or len(choice.candidate.costs) > 1:
        return choice
    demotion = trims.get(choice.candidate.unit.entries[0].id)
    if demotion is None:
        return choice
    return choice._replace(rule="trimmed", reason=f"{choice.reason}, without what {demotion.by} replaced")


def trim_entry(entry: Entry, spans: Sequence[Span]) -> Entry:
    """Return a message reduced to its still valid stretches, with marks where text was left out.

    The stretches are those of the stored text: in a redacted text they are looked up.
    """
    if isinstance(entry, Cleared):
        if entry.privacy is Privacy.BLOCK:
            return entry
        spans = entry.moved(spans)
    content = ""
    end = 0
    for start, stop in spans:
        text = entry.content[start:stop]
        content = (content.rstrip() + CUT).lstrip() + text.lstrip() if start > end else content + text
        end = stop
    if entry.content[end:].strip():
        content = content.rstrip() + CUT.rstrip()
    return replace(entry, content=content.strip(), parts=())


def finish_plan(steps: Steps[T]) -> T:
    """Return the result of a plan whose entries are all at hand."""
    try:
        next(steps)
    except StopIteration as end:
        result: T = end.value
        return result
    raise AssertionError("the plan asks for entries")


PARTIAL = frozenset(("trimmed", "excerpt", "cut"))
"""Rules by which a part of a unit is shown."""


def render_choice(
    choice: Choice,
    counter: TokenCounter,
    frame: Frame,
    rows: Rows = NO_ROWS,
    query: str = "",
    *,
    dated: bool = False,
) -> list[ContextItem]:
    """Write a chosen unit as items, cut when it must be."""
    one = choice.candidate
    items: list[ContextItem] = []
    for entry, cost in zip(one.unit.entries, one.costs, strict=True):
        row = entry if isinstance(entry, Entry) else rows.entries[entry.id]
        items.append(_build_item(choice, row, cost, frame, rows.sessions.get(row.context), dated=dated))
    if choice.rule in PARTIAL:
        items = _shorten_items(choice, items, counter, frame, query)
    return [_apply_label(items[0], one, counter, frame)] if one.label else items


def _shorten_items(
    choice: Choice, items: list[ContextItem], counter: TokenCounter, frame: Frame, query: str
) -> list[ContextItem]:
    """Return the items of a unit of which only a part is shown."""
    if choice.rule == "trimmed":
        (item,) = items
        tokens = counter.count(item.content) + frame.cost(item.role, (), _speaker_of_item(item))
        return [replace(item, token_count=tokens, truncated=True)]
    if choice.rule == "excerpt" and len(items) > 1:
        return _excerpt_group(items, choice.room, counter, frame, query)
    if choice.rule == "excerpt":
        return [_excerpt_item(items[0], choice.room, counter, frame, query)]
    return cut_group(items, choice.room, counter, frame)


def _apply_label(item: ContextItem, one: Candidate, counter: TokenCounter, frame: Frame) -> ContextItem:
    """Add the label of a candidate to its item, unless the item was cut to nothing."""
    if not item.content:
        return item
    content = attach_label(item.content, one.label)
    tokens = counter.count(content) + frame.cost(item.role, item.parts, _speaker_of_item(item))
    return replace(item, content=content, token_count=tokens)


def _excerpt_item(
    item: ContextItem, budget: int, counter: TokenCounter, frame: Frame, query: str
) -> ContextItem:
    """Show the sentences of an item that share the most words with the query, in their order, within a budget."""
    asked = set(content_terms(split_words(query)))
    framing = frame.cost(item.role, (), _speaker_of_item(item))
    found = split_records(item.content)
    best = sorted(
        range(len(found)),
        key=lambda index: (
            -len(asked.intersection(content_terms(split_words(item.content[slice(*found[index])])))),
            index,
        ),
    )
    kept: list[int] = []
    content = ""
    for index in best:
        wider = _join_records(item.content, found, sorted([*kept, index]))
        if counter.count(wider) > budget - framing:
            break
        kept, content = [*kept, index], wider
    if not content:  # not even the best one fits whole
        answer = item.content[slice(*found[best[0]])].strip() if best else ""
        content = cut_middle(answer, budget - framing, counter)
        if not content:
            return replace(item, content="", parts=(), token_count=0, truncated=True)
    tokens = counter.count(content) + framing
    return replace(item, content=content, parts=(), token_count=tokens, truncated=True)


def _excerpt_group(
    items: Sequence[ContextItem], budget: int, counter: TokenCounter, frame: Frame, query: str
) -> list[ContextItem]:
    """Show the parts of a tool call and its answers that share the most words with the query; short items whole."""
    order = sorted(range(len(items)), key=lambda index: items[index].token_count)
    shown = list(items)
    left = budget
    for waiting, index in zip(range(len(items), 0, -1), order, strict=True):
        item = items[index]
        if item.token_count > left // waiting:
            excerpt = _excerpt_item(item, left // waiting, counter, frame, query)
            item = _restore_result_part(excerpt, item) if item.role is Role.TOOL else excerpt
        shown[index] = item
        left -= item.token_count
    return shown if left >= 0 else cut_group(shown, budget, counter, frame)


def _restore_result_part(item: ContextItem, whole: ContextItem) -> ContextItem:
    """Restore a cut item as a tool result, so that the call it answers is still known."""
    parts = tuple(
        [replace(part, output=item.content) for part in whole.parts if isinstance(part, ToolResult)][:1]
    )
    return replace(item, parts=parts)


def _join_records(content: str, found: Sequence[tuple[int, int]], kept: Sequence[int]) -> str:
    written = ""
    for place, index in enumerate(kept):
        text = content[slice(*found[index])]
        gap = index != (kept[place - 1] + 1 if place else 0)
        written = (written.rstrip() + CUT).lstrip() + text.lstrip() if gap else written + text
    return written.rstrip() + (CUT.rstrip() if kept and kept[-1] != len(found) - 1 else "")


def _build_item(
    choice: Choice, entry: Entry, tokens: int, frame: Frame, session_id: str | None, *, dated: bool
) -> ContextItem:
    one = choice.candidate
    role = rendered_role(entry)
    redaction = day = None
    if isinstance(entry, Cleared):  # the index knows the entry as it was stored
        redaction = entry.redaction
        tokens = entry.tokens + frame.cost(role, entry.parts, display_name_of(entry))
    # The day on which a fact or a summary was written is not the day of its content.
    if dated and one.source is not Source.FACT and resolve_speaker(entry.actor, role) is not None:
        day = entry.created_at.astimezone(UTC).date().isoformat()
    return ContextItem(
        id=entry.id,
        version=entry.version,
        position=entry.position,
        role=role,
        content=entry.content,
        source=one.source,
        score=one.score,
        relevance=one.relevance,
        token_count=tokens,
        markers=entry.markers,
        parts=entry.parts,
        group=entry.group,
        actor_id=entry.actor,
        metadata=entry.metadata,
        created_at=entry.created_at,
        day=day,
        session_id=session_id,
        why=choice.reason,
        redaction=redaction,
        trust=trust.trust_of_entry(entry),
    )


def cut_group(
    items: list[ContextItem], budget: int, counter: TokenCounter, frame: Frame
) -> list[ContextItem]:
    """Cut the items of one unit to a budget: the longest to an equal length, results and arguments of calls alike.

    A unit that does not fit even so stays as empty items that cost nothing: it is still whole, and flagged.
    """
    level = find_level([item.token_count for item in items], budget)
    found = [item if item.token_count <= level else _cut_part(item, level, counter, frame) for item in items]
    over = sum(item.token_count for item in found) - budget
    for index in sorted(range(len(found)), key=lambda index: -found[index].token_count):
        item = found[index]
        if over > 0 and (item.role is Role.TOOL or len(items) == 1):
            shorter = _cut_item(item, max(0, item.token_count - over), counter, frame)
            over -= item.token_count - shorter.token_count
            found[index] = shorter
    if over > 0 or (len(items) > 1 and not all(item.content or item.parts for item in found)):
        return [replace(item, content="", parts=(), token_count=0, truncated=True) for item in items]
    return found


def _cut_part(item: ContextItem, budget: int, counter: TokenCounter, frame: Frame) -> ContextItem:
    if any(isinstance(part, ToolCall) for part in item.parts):
        return _cut_arguments(item, budget, counter, frame)
    return _cut_item(item, budget, counter, frame)


def _cut_item(item: ContextItem, budget: int, counter: TokenCounter, frame: Frame) -> ContextItem:
    results = [part for part in item.parts if isinstance(part, ToolResult)]
    parts: tuple[Part, ...] = tuple(replace(part, output="") for part in results)
    framing = frame.cost(item.role, parts, _speaker_of_item(item))
    content = ""
    if budget > framing and results:
        content = condense_output(item.content, budget - framing, counter, entry=item.id)
    elif budget > framing:
        content = cut_middle(item.content, budget - framing, counter)
    if not content and framing > budget:
        return replace(item, content="", parts=(), token_count=0, truncated=True)
    if results:
        parts = (replace(results[0], output=content), *parts[1:])
    tokens = counter.count(content) + framing if content else (framing if parts else 0)
    return replace(item, content=content, parts=parts, token_count=tokens, truncated=True)


def _cut_arguments(item: ContextItem, budget: int, counter: TokenCounter, frame: Frame) -> ContextItem:
    """Return an item whose calls have shorter arguments, inside valid JSON; itself when that does not help."""
    costs = [counter.count(part.arguments) for part in item.parts if isinstance(part, ToolCall)]
    most = max(1, find_level(costs, sum(costs) - (item.token_count - budget)))
    content = item.content
    parts: list[Part] = []
    for part in item.parts:
        if isinstance(part, ToolCall):
            shorter = replace(part, arguments=condense_arguments(part.arguments, most, counter))
            said = f"{part.name}({part.arguments})"
            content = content.replace(said, f"{part.name}({shorter.arguments})", 1)
            part = shorter
        parts.append(part)
    tokens = counter.count(content) + frame.cost(item.role, parts, _speaker_of_item(item))
    if tokens >= item.token_count:
        return item
    return replace(item, content=content, parts=tuple(parts), token_count=tokens, truncated=True)


def cut_middle(text: str, budget: int, counter: TokenCounter) -> str:
    """Return the longest head and tail of a text, joined by a mark, that fit a budget; "" when nothing fits.

    Two thirds of the kept text is head. The longest such text is found by bisection, so it ends on token boundaries.
    """

    def at(kept: int) -> str:
        tail = kept // 3
        return text[: kept - tail] + CUT + (text[-tail:] if tail else "")

    if budget <= 0:
        return ""
    if len(text) <= 16 * budget and counter.count(text) <= budget:
        return text
    low, high = 0, min(len(text), 4)
    while high < len(text) and counter.count(at(high)) <= budget:
        low, high = high, min(len(text), high * 2)
    while low < high:
        middle = (low + high + 1) // 2
        if counter.count(at(middle)) <= budget:
            low = middle
        else:
            high = middle - 1
    return at(low) if low and counter.count(at(low)) <= budget else ""


def build_choice_ledger(
    choices: Sequence[Choice],
    hidden: Sequence[tuple[Entry, str]],
    warnings: Sequence[str] = (),
    others: Others | None = None,
    certainty: Callable[[], Certainty] = lambda: UNSURE,
) -> Ledger:
    """Write down, when asked, every choice and every entry that was no candidate; `others` answers for the rest."""

    def write() -> dict[str, Verdict]:
        verdicts = {
            entry.id: Verdict(
                id=entry.id,
                version=entry.version,
                included=False,
                rule="hidden",
                tokens=entry.tokens,
                reason=reason,
            )
            for entry, reason in hidden
        }
        for choice in choices:
            one = choice.candidate
            for entry in one.unit.entries:
                verdicts[entry.id] = Verdict(
                    id=entry.id,
                    version=version_in(entry),
                    included=choice.included,
                    rule=choice.rule,
                    source=one.source,
                    relevance=one.relevance,
                    boost=one.boost,
                    score=one.score,
                    parts=one.parts(),
                    tokens=one.tokens,
                    reason=choice.reason,
                )
        return verdicts

    omitted = sum([len(choice.candidate.costs) for choice in choices if not choice.included])
    return Ledger(write, tuple(warnings), others, omitted=omitted + len(hidden), certainty=certainty)


def media_tokens(parts: Sequence[Part]) -> int:
    """Return the stated tokens of the media among some parts."""
    return sum(part.tokens for part in parts if isinstance(part, Media))
