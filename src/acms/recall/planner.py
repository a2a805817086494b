"""The planner: which units the model sees within a hard token budget, and why.

Token counts of parts do not add up to the count of the joined text: byte-pair encodings are not additive, and
estimators round. So a plan is made with stored counts, and its joined text is counted. While that exceeds the budget,
the plan is made again with a budget reduced by the excess (decision 0004).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC
from enum import IntEnum
from typing import Any, NamedTuple, TypeAlias, TypeVar

from acms.log import summary_levels, trust
from acms.log.active_entries import (
    Demotion,
    EntryGroup,
    IndexedEntry,
    SingleEntryGroup,
    display_name_of,
    rendered_role,
)
from acms.log.encoding import parse_entry_id
from acms.log.validity import attach_label
from acms.model import Entry, Kind, Media, Part, Privacy, Source, Span
from acms.ports import Frame, TokenCounter
from acms.privacy.modes import RedactedEntry
from acms.recall.text_frame import CUT, TextFrame, speaker_of_item
from acms.results import (
    UNSURE,
    Certainty,
    ContextItem,
    Ledger,
    Others,
    Verdict,
    join_items,
    resolve_speaker,
)

LABEL_TOKENS = 20
"""Estimated tokens of a label; its real tokens are counted with the text."""
NO_TRIMS: Mapping[str, Demotion] = {}
T = TypeVar("T")


class RerankRequest(NamedTuple):
    """A question to a reranker: how well each text answers the query."""

    query: str
    texts: tuple[str, ...]


class RerankScores(NamedTuple):
    """The answer of a reranker: a number in [0, 1] for each text, or why there is none."""

    values: tuple[float, ...] = ()
    warning: str = ""


class LoadedEntries(NamedTuple):
    """Entries that a plan asked for, by id, and the names of their sessions, by context."""

    entries: dict[str, Entry]
    sessions: dict[str, str]


NOTHING_LOADED = LoadedEntries({}, {})
PlanSteps: TypeAlias = Generator[list[str] | RerankRequest, Any, T]
"""A plan under way: it asks for entries by id and goes on with `LoadedEntries`, or with `RerankScores`."""

SUMMARIES_SHARE = 0.25
"""Share of the tokens left by the latest message that is reserved for summaries of omitted ones (decision 0061)."""
MIN_BUDGET_TOKENS = 6
"""Tokens below which nothing is shown: they hold no more than a speaker's name and a cut mark."""
FRAME_TOKENS = 30
"""Tokens that any message costs in addition to its text: name, date, separators."""
MIN_EXCERPT_TOKENS = 48
"""Fewest tokens that are worth an excerpt."""


class Topic(IntEnum):
    """How near a candidate is to the topic of a query, the nearest first."""

    #: Words of the user in the log of an agent: rules that hold whatever the topic is.
    USER_WORDS = -1
    #: It shares a content word with the query, or is near to it in meaning.
    ON = 0
    #: It is next to a message on topic.
    BESIDE = 1
    OFF = 2
    #: Off topic, and without any content word.
    EMPTY = 3


class Candidate(NamedTuple):
    """A unit that may enter the prompt."""

    unit: EntryGroup[Entry] | EntryGroup[IndexedEntry] | SingleEntryGroup
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
    #: Score of the statement that it accompanies; 0 if it accompanies none.
    leader_score: float = 0.0
    #: A value of `Topic`.
    topic: int = Topic.ON

    @property
    def is_tool_group(self) -> bool:
        """Whether it is a tool call with its results."""
        return len(self.costs) > 1 and self.unit.entries[0].group is not None

    @property
    def is_exchange(self) -> bool:
        """Whether it is a question with its answer, see `acms.recall.exchanges`."""
        return len(self.costs) > 1 and self.unit.entries[0].group is None

    @property
    def markers(self) -> tuple[str, ...]:
        """Markers of all its entries."""
        return self.unit.markers


def version_in_id(id: str) -> int:
    """Return the version that an id contains; 0 for an id of another form."""
    parsed = parse_entry_id(id)
    return 0 if parsed is None else parsed[1]


def version_in_log(entry: Entry | IndexedEntry) -> int:
    """Return the version of an entry in its log: an index of many logs numbers its documents otherwise."""
    return version_in_id(entry.id) or entry.version


def inactive_reason(replacing_version: int, kind: Kind | None) -> str:
    """Return why an entry is inactive: the version that covers it and its kind."""
    verbs = {Kind.RETRACTION: "retracted", Kind.SUMMARY: "summarised"}
    verb = "replaced" if kind is None else verbs.get(kind, "replaced")
    return f"{verb} by v{replacing_version}"


class Choice(NamedTuple):
    """A candidate, whether it is shown, and the rule that decided."""

    candidate: Candidate
    included: bool
    rule: str
    reason: str
    #: Tokens the candidate may use when the rule is "cut" or "excerpt".
    max_tokens: int = 0


def build_candidate(
    unit: EntryGroup[Entry] | EntryGroup[IndexedEntry], source: Source, frame: Frame
) -> Candidate:
    """Return a unit as an unranked candidate."""
    costs: list[int] = []
    for entry in unit.entries:
        framing = frame.cost(rendered_role(entry), entry.parts, display_name_of(entry))
        costs.append(entry.tokens + framing)
    return Candidate(unit, source, tuple(costs), sum(costs))


def append_label(candidate: Candidate, label: str) -> Candidate:
    """Return a candidate with a label beside its text; unchanged without a label, or if it has several entries."""
    if not label or len(candidate.costs) > 1:
        return candidate
    tokens = candidate.tokens + LABEL_TOKENS
    return candidate._replace(label=f"{candidate.label} {label}".lstrip(), costs=(tokens,), tokens=tokens)


def choose_newest_suffix(candidates: Sequence[Candidate], budget: int) -> list[Choice]:
    """Choose the newest contiguous candidates that fit a budget; the newest is always included, cut if necessary.

    If not all fit, a share of the budget is reserved for the summaries among them, which cover the omitted ones.
    """
    if not candidates:
        return []
    remaining = budget
    reserved_tokens: dict[int, int] = {}
    if sum([candidate.tokens for candidate in candidates]) > budget:
        newest = _fit_summary_level(candidates[-1], budget)
        candidates = [*candidates[:-1], newest]
        reserved_tokens = _reserve_summary_tokens(candidates, budget - newest.tokens)
        remaining -= sum(reserved_tokens.values())
    newest = candidates[-1]
    rule = "latest" if newest.tokens <= budget else "cut"
    newest_choice = Choice(newest, True, rule, "the latest message is always shown", budget)
    choices = {len(candidates) - 1: newest_choice}
    remaining -= newest.tokens
    is_full = False
    for index in reversed(range(len(candidates) - 1)):
        candidate = candidates[index]
        if index in reserved_tokens:
            continue
        if is_full:
            choices[index] = Choice(
                candidate, False, "contiguous", "older than the first message that did not fit"
            )
        elif candidate.tokens <= remaining:
            choices[index] = Choice(candidate, True, "window", "among the newest messages that fit")
            remaining -= candidate.tokens
        else:
            is_full = True
            reason = f"needs {candidate.tokens} tokens, {max(remaining, 0)} are left"
            choices[index] = Choice(candidate, False, "budget", reason)
    for index, share in reserved_tokens.items():
        choice = _choose_summary(candidates[index], share + max(0, remaining))
        used_tokens = min(choice.candidate.tokens, choice.max_tokens) if choice.included else 0
        remaining += share - used_tokens
        choices[index] = choice
    return [choices[index] for index in range(len(candidates))]


def _reserve_summary_tokens(candidates: Sequence[Candidate], available: int) -> dict[int, int]:
    """Return by index the tokens to reserve for each summary among the candidates: those of its shortest text.

    All summaries together get at most a share of the `available` tokens, which the latest message leaves. The longest
    summary comes first, because it covers most.
    """
    summaries = [
        index for index, candidate in enumerate(candidates[:-1]) if _level_of(candidate, 0) is not None
    ]
    summaries.sort(key=lambda index: (-candidates[index].tokens, -index))
    remaining = max(0, int(available * SUMMARIES_SHARE))
    reserved_tokens: dict[int, int] = {}
    for index in summaries:
        shortest = _fit_summary_level(candidates[index], 0).tokens
        reserved_tokens[index] = min(remaining, shortest) if remaining >= MIN_EXCERPT_TOKENS else 0
        remaining -= reserved_tokens[index]
    return reserved_tokens


def _choose_summary(candidate: Candidate, budget: int) -> Choice:
    """Choose the longest text of a summary that fits a budget; if none does, cut the shortest or omit the summary."""
    fitted_candidate = _fit_summary_level(candidate, budget)
    description = f"the summary of what is older, {candidate.tokens} tokens"
    if fitted_candidate.tokens <= budget:
        reason = (
            description
            if fitted_candidate is candidate
            else f"{description}, in a text of {fitted_candidate.tokens}"
        )
        return Choice(fitted_candidate, True, "summary", reason, budget)
    reason = f"{description}, {fitted_candidate.tokens} in its shortest text, {budget} are left"
    is_worth_cutting = budget >= MIN_EXCERPT_TOKENS
    rule = "cut" if is_worth_cutting else "budget"
    return Choice(fitted_candidate, is_worth_cutting, rule, reason, budget)


def _level_of(candidate: Candidate, budget: int) -> tuple[Entry, summary_levels.Level] | None:
    """Return the summary in a candidate and its longest text that fits a budget; None if it is no summary."""
    entry = candidate.unit.entries[0]
    if entry.kind is not Kind.SUMMARY or not isinstance(entry, Entry):
        return None
    framing = candidate.tokens - entry.tokens
    return entry, summary_levels.choose_level(entry, budget - framing)


def _fit_summary_level(candidate: Candidate, budget: int) -> Candidate:
    """Return a summary in the longest of its texts that fits, else in the shortest; other candidates unchanged."""
    summary = _level_of(candidate, budget)
    if summary is None:
        return candidate
    entry, level = summary
    if level.tokens == entry.tokens:
        return candidate
    tokens = candidate.tokens - entry.tokens + level.tokens
    return candidate._replace(
        unit=EntryGroup((summary_levels.summary_at_level(entry, level),)), costs=(tokens,), tokens=tokens
    )


def fit_to_budget(
    choose: Callable[[int], list[Choice]],
    budget: int,
    counter: TokenCounter,
    frame: Frame,
    query: str = "",
    trims: Mapping[str, Demotion] = NO_TRIMS,
    *,
    with_days: bool = False,
) -> PlanSteps[tuple[list[ContextItem], list[Choice]]]:
    """Choose and render items until their joined text fits the budget; return the items and the choices.

    `choose` is called with the budget, and again with a smaller one while the joined text is too long. Items are in the
    order of the choices; an item that must be shown is cut if it does not fit even alone. The generator yields the ids
    of chosen entries whose text is not loaded yet, and must be sent `LoadedEntries`. `trims` has by id the messages of
    which only a part is shown; `with_days` adds the day to messages.
    """
    if budget < MIN_BUDGET_TOKENS:
        return [], [_reject_for_small_budget(choice, budget) for choice in choose(budget)]
    limit = budget
    loaded = LoadedEntries({}, {})
    while True:
        choices = choose(limit)
        if trims:
            choices = [_explain_trim(choice, trims) for choice in choices]
        included = [choice for choice in choices if choice.included]
        missing = _find_missing_entries(included, loaded)
        if missing:
            newly_loaded: LoadedEntries = yield missing
            loaded.entries.update(newly_loaded.entries)
            loaded.sessions.update(newly_loaded.sessions)
            for id in trims.keys() & missing:
                loaded.entries[id] = trim_entry(loaded.entries[id], trims[id].spans)
        items: list[ContextItem] = []
        for choice in included:
            items += render_choice(choice, counter, frame, loaded, query, with_days=with_days)
        joined_tokens = _count_joined(items, counter, frame)
        summed_tokens = sum([item.token_count for item in items])
        excess = max(joined_tokens, summed_tokens) - budget
        if excess <= 0 or limit < 0:
            if limit < budget and joined_tokens > summed_tokens:
                choices = [_explain_days(choice, joined_tokens - summed_tokens) for choice in choices]
            return items, choices
        # With a limit of -1, only items that must be shown are chosen: there is no smaller choice.
        limit = max(-1, limit - excess)


def _count_joined(items: Sequence[ContextItem], counter: TokenCounter, frame: Frame) -> int:
    if isinstance(frame, TextFrame):
        return frame.count_joined(items)
    return counter.count(join_items(items))


def _find_missing_entries(choices: Sequence[Choice], loaded: LoadedEntries) -> list[str]:
    """Return the ids of the chosen entries that have not been read yet."""
    return [
        entry.id
        for choice in choices
        for entry in choice.candidate.unit.entries
        if not isinstance(entry, Entry) and entry.id not in loaded.entries
    ]


def _reject_for_small_budget(choice: Choice, budget: int) -> Choice:
    """Return a choice as not included, because the whole budget is too small to show anything."""
    reason = f"a recall needs at least {MIN_BUDGET_TOKENS} tokens, and has {budget}"
    return choice._replace(included=False, rule="budget", reason=reason)


def _explain_days(choice: Choice, tokens: int) -> Choice:
    """Return a choice that did not fit with the tokens of the days between the shown messages, which no item counts."""
    if choice.rule != "budget" or choice.included:
        return choice
    return choice._replace(reason=f"{choice.reason}, besides {tokens} for the days of the shown messages")


def _explain_trim(choice: Choice, trims: Mapping[str, Demotion]) -> Choice:
    """Return a choice with the rule "trimmed" if it would show a whole message of which only a part is valid."""
    shows_whole_message = choice.included and choice.rule == "score" and len(choice.candidate.costs) == 1
    if not shows_whole_message:
        return choice
    demotion = trims.get(choice.candidate.unit.entries[0].id)
    if demotion is None:
        return choice
    return choice._replace(rule="trimmed", reason=f"{choice.reason}, without what {demotion.by} replaced")


def trim_entry(entry: Entry, spans: Sequence[Span]) -> Entry:
    """Return a message reduced to its still valid spans, with marks where text is omitted.

    The spans are those of the stored text; for a redacted entry they are mapped to the redacted text.
    """
    if isinstance(entry, RedactedEntry):  # its text is redacted
        if entry.privacy is Privacy.BLOCK:
            return entry
        spans = entry.map_spans(spans)
    content = _join_spans(entry.content, spans)
    return replace(entry, content=content.strip(), parts=())


def _join_spans(text: str, spans: Sequence[Span]) -> str:
    """Join spans of a text in order, with a mark wherever text before, between or after them is omitted."""
    joined_text = ""
    previous_end = 0
    for start, end in spans:
        part = text[start:end]
        if start > previous_end:
            joined_text = (joined_text.rstrip() + CUT).lstrip() + part.lstrip()
        else:
            joined_text += part
        previous_end = end
    if text[previous_end:].strip():
        joined_text = joined_text.rstrip() + CUT.rstrip()
    return joined_text


def finish_plan(steps: PlanSteps[T]) -> T:
    """Return the result of a plan that has all its entries already, so that it requests none."""
    try:
        next(steps)
    except StopIteration as end:
        result: T = end.value
        return result
    raise AssertionError("the plan asks for entries")


PARTIAL_RULES = frozenset(("trimmed", "excerpt", "cut"))
"""Rules by which a part of a unit is shown."""


def render_choice(
    choice: Choice,
    counter: TokenCounter,
    frame: Frame,
    loaded: LoadedEntries = NOTHING_LOADED,
    query: str = "",
    *,
    with_days: bool = False,
) -> list[ContextItem]:
    """Render a chosen unit as items, cut if necessary."""
    candidate = choice.candidate
    items: list[ContextItem] = []
    for entry, cost in zip(candidate.unit.entries, candidate.costs, strict=True):
        full_entry = entry if isinstance(entry, Entry) else loaded.entries[entry.id]
        session_id = loaded.sessions.get(full_entry.context)
        items.append(_build_item(choice, full_entry, cost, frame, session_id, with_days=with_days))
    if choice.rule in PARTIAL_RULES:
        items = _shorten_items(choice, items, counter, frame, query)
    return [_apply_label(items[0], candidate, counter, frame)] if candidate.label else items


def _shorten_items(
    choice: Choice, items: list[ContextItem], counter: TokenCounter, frame: Frame, query: str
) -> list[ContextItem]:
    """Shorten the rendered items of a unit as the rule of its choice says: trimmed, excerpt or cut."""
    from acms.recall.shortening import cut_group, excerpt_group, excerpt_item

    budget = choice.max_tokens
    if choice.rule == "trimmed":
        (item,) = items
        tokens = counter.count(item.content) + frame.cost(item.role, (), speaker_of_item(item))
        return [replace(item, token_count=tokens, truncated=True)]
    if choice.rule != "excerpt":
        return cut_group(items, budget, counter, frame, query)
    if len(items) > 1:
        return excerpt_group(items, budget, counter, frame, query)
    return [excerpt_item(items[0], budget, counter, frame, query)]


def _apply_label(item: ContextItem, candidate: Candidate, counter: TokenCounter, frame: Frame) -> ContextItem:
    """Add the label of a candidate to its item, unless the item was cut to nothing."""
    if not item.content:
        return item
    content = attach_label(item.content, candidate.label)
    tokens = counter.count(content) + frame.cost(item.role, item.parts, speaker_of_item(item))
    return replace(item, content=content, token_count=tokens)


def _build_item(
    choice: Choice, entry: Entry, tokens: int, frame: Frame, session_id: str | None, *, with_days: bool
) -> ContextItem:
    """Return a chosen entry as an item, uncut; `tokens` are those of its stored text with its frame."""
    candidate = choice.candidate
    role = rendered_role(entry)
    redaction = day = None
    if isinstance(entry, RedactedEntry):  # redacted: `tokens` are those of the original text
        redaction = entry.redaction
        tokens = entry.tokens + frame.cost(role, entry.parts, display_name_of(entry))
    # The day on which a fact or a summary was written is not the day of its content.
    if with_days and candidate.source is not Source.FACT and resolve_speaker(entry.actor, role) is not None:
        day = entry.created_at.astimezone(UTC).date().isoformat()
    return ContextItem(
        id=entry.id,
        version=entry.version,
        position=entry.position,
        role=role,
        content=entry.content,
        source=candidate.source,
        score=candidate.score,
        relevance=candidate.relevance,
        token_count=tokens,
        markers=entry.markers,
        parts=entry.parts,
        group=entry.group,
        exchange=candidate.unit.entries[0].id if candidate.is_exchange else None,
        actor_id=entry.actor,
        metadata=entry.metadata,
        created_at=entry.created_at,
        day=day,
        session_id=session_id,
        why=choice.reason,
        redaction=redaction,
        trust=trust.trust_of_entry(entry),
    )


def build_choice_ledger(
    choices: Sequence[Choice],
    hidden: Sequence[tuple[Entry, str]],
    warnings: Sequence[str] = (),
    others: Others | None = None,
    certainty: Callable[[], Certainty] = lambda: UNSURE,
) -> Ledger:
    """Build the ledger of a plan, which explains every entry on demand; `others` explains entries without a choice."""

    def explain() -> dict[str, Verdict]:
        verdicts = {entry.id: build_rejection(entry, "hidden", reason) for entry, reason in hidden}
        for choice in choices:
            verdicts.update(_explain_choice(choice))
        return verdicts

    omitted_count = sum([len(choice.candidate.costs) for choice in choices if not choice.included])
    return Ledger(explain, tuple(warnings), others, omitted=omitted_count + len(hidden), certainty=certainty)


def build_rejection(entry: Entry | IndexedEntry, rule: str, reason: str) -> Verdict:
    """Return the verdict on an entry that was not a candidate."""
    version = version_in_log(entry)
    return Verdict(
        id=entry.id, version=version, included=False, rule=rule, tokens=entry.tokens, reason=reason
    )


def _explain_choice(choice: Choice) -> Iterator[tuple[str, Verdict]]:
    """Yield the verdict on each entry of a choice, by id."""
    candidate = choice.candidate
    for entry in candidate.unit.entries:
        verdict = Verdict(
            id=entry.id,
            version=version_in_log(entry),
            included=choice.included,
            rule=choice.rule,
            source=candidate.source,
            relevance=candidate.relevance,
            boost=candidate.boost,
            score=candidate.score,
            parts=candidate.parts(),
            tokens=candidate.tokens,
            reason=choice.reason,
        )
        yield entry.id, verdict


def media_tokens(parts: Sequence[Part]) -> int:
    """Return the stated tokens of the media among some parts."""
    return sum(part.tokens for part in parts if isinstance(part, Media))
