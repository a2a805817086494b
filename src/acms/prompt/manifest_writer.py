"""Manifests: written from a laid-out prompt, converted back into its messages, and read as a ledger.

Every span of text is looked up in the entries that the message shows: a whole entry, the head and tail that a cut
left, the sentences of an excerpt. Text not found in them is kept verbatim. Time is linear in the text, except for texts
that contain repetitions.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from itertools import groupby, islice, product
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from acms.errors import EntryNotFoundError, ValidationError
from acms.log.encoding import parse_entry_id, parts_from_json, parts_to_json
from acms.log.summary_levels import LEVELS, read_shorter_levels
from acms.model import Json, Part, Text
from acms.plan.nodes import Omission, Piece, PlacedMessage, Step, is_path_inside
from acms.ports import Codec
from acms.privacy.modes import describe_redaction, list_redactions
from acms.prompt.manifest import (
    Manifest,
    Quote,
    Read,
    Segment,
    Sent,
    Whole,
    Written,
    canonical,
    version_of_id,
)
from acms.prompt_types import CacheMark, Count, PromptMessage, Tool, omit_repeated_dates
from acms.results import UNSURE, Ledger, Verdict
from acms.text.chat_messages import FRAMES

_CUT = re.compile(r"(\s*\[…[^\]\n]*\]\s*)")
"""The mark a cut leaves between two spans of a text, that of `plan.CUT`, and the blanks around it."""
_CLOSINGS = tuple(closing for _, closing in FRAMES)
_RECALLED_BEFORE = "recalled for an earlier request, which this one continues word for word"
_LEAD = re.compile(r": |\n")
"""The end of any text before a quotation: a speaker's name, an opening mark."""
_GRAM = 8
"""Characters that two texts must share before they are compared further."""
ACTOR = "actor"
"""Field of a quote that names who said an entry."""
_NAMES = frozenset(("call_id", "name", "mime", "sha256", "vendor"))
"""Fields of parts that are names and no text."""


class Quotable(Protocol):
    """Anything a manifest quotes: an `Entry`, or a `ContextItem` that was not cut.

    Its `redaction` is recorded if it has one.
    """

    @property
    def content(self) -> str:
        """Return its canonical text."""
        ...

    @property
    def parts(self) -> tuple[Part, ...]:
        """Return its parts."""
        ...


# ── writing ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def write_manifest(
    placed: Sequence[PlacedMessage],
    *,
    codec: Codec,
    count: Count,
    payload: Mapping[str, Json] | None = None,
    budget: int | None = None,
    limit: int | None = None,
    tools: Sequence[Tool] = (),
    marks: Sequence[CacheMark] = (),
    entries: Mapping[str, Quotable] = MappingProxyType({}),
    reads: Sequence[Read] = (),
    omissions: Sequence[Omission] = (),
    steps: Sequence[Step] = (),
) -> Manifest:
    """Return the manifest of a prompt as it was laid out and given to a codec, without the candidates of recalls.

    `entries` are those whose text is shown, by id; the text of an entry missing there is kept verbatim.
    """
    messages = tuple([_build_sent(placement, entries) for placement in placed])
    shown_ids = [id for message in messages for id in message.sources]
    return Manifest(
        codec=codec.name,
        model=codec.model,
        counter=codec.counter.name,
        budget=budget,
        limit=limit,
        tokens=count.tokens,
        upper_bound=count.upper_bound,
        tools=tuple(tools),
        marks=tuple(marks),
        messages=messages,
        reads=tuple(reads),
        left=tuple(omissions),
        steps=tuple(steps),
        redactions=list_redactions(shown_ids, entries),
        payload="" if payload is None else hash_payload(payload),
        max_tokens=getattr(codec, "max_tokens", None),
    )


def add_candidates(manifest: Manifest, recalls: Sequence[Ledger]) -> Manifest:
    """Return a manifest with the candidates of the recalls that these ledgers are of.

    The candidates are added separately because there are hundreds, and a recall's ledger is written only when it is
    first read.
    """
    shown_ids = {source for message in manifest.messages for source in message.sources}
    candidates: list[Verdict] = []
    for ledger in recalls:
        for verdict in ledger.candidates.values():
            if verdict.included or verdict.id not in shown_ids:  # what is shown anyway was no candidate
                candidates.append(_round_scores(verdict))
    return replace(manifest, candidates=tuple(candidates))


def hash_payload(payload: Mapping[str, Json]) -> str:
    """Return the SHA-256 of a payload's canonical JSON, in hex."""
    return sha256(canonical(payload).encode()).hexdigest()


def fingerprint_message(message: PromptMessage) -> str:
    """Return the `Sent.hash` of a message: equal for messages with equal content."""
    parts = message.parts
    kind, text = "p", ""
    if len(parts) == 1 and isinstance(parts[0], Text):
        kind, text = "t", parts[0].text
    else:
        text = canonical(parts_to_json(parts))
    identity = f"{kind}\0{message.role.value}\0{message.name or ''}\0{text}"
    return sha256(identity.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _round_scores(verdict: Verdict) -> Verdict:
    """Return a verdict with rounded scores and the version of its id, as it is stored."""
    return replace(
        verdict,
        version=version_of_id(verdict.id),
        score=_round(verdict.score),
        relevance=_round(verdict.relevance),
        boost=_round(verdict.boost),
        parts={name: _round(value) for name, value in sorted(verdict.parts.items())},
    )


def _round(value: float) -> float:
    return float(round(value, 4))  # an integer would be written in another way than it is read back


def _build_sent(placement: PlacedMessage, entries: Mapping[str, Quotable]) -> Sent:
    """Return the record of a message: its parts as quotations of the entries that it shows."""
    message = placement.message
    sources = message.sources
    if placement.pieces:
        piece_sources = [id for piece in placement.pieces for id in piece.sources]
        sources = tuple(dict.fromkeys([*sources, *piece_sources]))
    known_ids = [source for source in sources if source in entries]
    return Sent(
        path=placement.path,
        role=message.role,
        hash=fingerprint_message(message),
        tokens=placement.tokens,
        parts=tuple([_build_part(part, known_ids, placement.pieces, entries) for part in message.parts]),
        name=message.name,
        group=message.group,
        rendition=placement.rendition,
        sources=tuple(sources),
        pieces=tuple([piece.id for piece in placement.pieces]),
        moves=placement.moves,
        first=placement.first,
        last=placement.last,
    )


def _build_part(
    part: Part, known_ids: Sequence[str], pieces: Sequence[Piece], entries: Mapping[str, Quotable]
) -> Whole | Written:
    """Return a part by reference if an entry has the same part (`Whole`), else its texts as quotations (`Written`)."""
    for source in known_ids:
        parts = entries[source].parts
        if part in parts:
            return Whole(source, parts.index(part))
    (values,) = parts_to_json([part])
    fields: list[tuple[str, tuple[Segment, ...] | int | None]] = []
    for name, value in values.items():
        if name == "type":
            continue
        if not isinstance(value, str):
            fields.append((name, value))
        elif name in _NAMES:
            fields.append((name, (value,)))
        elif pieces:
            fields.append((name, _quote_pieces(value, pieces, entries)))
        else:
            fields.append((name, quote_text(value, known_ids, entries)))
    return Written(values["type"], tuple(sorted(fields)))


def _quote_pieces(text: str, pieces: Sequence[Piece], entries: Mapping[str, Quotable]) -> tuple[Segment, ...]:
    """Quote a text written from pieces: each piece from its own entries, a cut piece from the text in between.

    A piece that is not found in the text was cut: its entries are looked up in the text before the next piece.
    """
    segments: list[Segment] = []
    position = 0
    skipped_ids: list[str] = []
    shown_texts = omit_repeated_dates(piece.text for piece in pieces)
    for piece, shown_text in zip(pieces, shown_texts, strict=True):
        known_ids = [source for source in piece.sources if source in entries]
        piece_text = piece.text
        start = text.find(piece_text, position) if piece_text else -1
        if start < 0 and shown_text != piece_text:
            piece_text = shown_text
            start = text.find(piece_text, position)
        if start < 0:
            skipped_ids += known_ids
            continue
        segments += quote_text(text[position:start], skipped_ids, entries)
        segments += quote_text(piece_text, known_ids, entries)
        position = start + len(piece_text)
        skipped_ids = []
    segments += quote_text(text[position:], skipped_ids, entries)
    return _join_literals(segments)


def _join_literals(segments: Iterable[Segment]) -> tuple[Segment, ...]:
    """Return segments with adjacent literal texts joined, without empty texts."""
    joined_segments: list[Segment] = []
    for is_literal, run in groupby(segments, lambda segment: isinstance(segment, str)):
        if is_literal:
            text = "".join(map(str, run))
            joined_segments += [text] if text else []
        else:
            joined_segments += run
    return tuple(joined_segments)


class _EntryText(NamedTuple):
    """A text of an entry: its content, or a field of one of its parts."""

    entry: str
    field: str
    text: str


def _texts_of_entry(id: str, entry: Quotable) -> list[_EntryText]:
    """Return all texts of an entry that can be quoted: its content, texts of its parts, levels of a summary."""
    texts = [_EntryText(id, "", entry.content)] if entry.content else []
    for index, fields in enumerate(parts_to_json(entry.parts) if entry.parts else ()):
        for name, value in fields.items():
            is_text = name != "type" and name not in _NAMES
            if is_text and isinstance(value, str) and value:
                texts.append(_EntryText(id, f"{index}.{name}", value))
    for index, text in enumerate(_list_level_texts(entry)):
        texts.append(_EntryText(id, f"{LEVELS}.{index}", text))
    return texts


def _list_level_texts(entry: Quotable) -> list[str]:
    """Return the shorter texts of a summary."""
    return [level.content for level in read_shorter_levels(getattr(entry, "data", {}))]


def quote_text(text: str, sources: Sequence[str], entries: Mapping[str, Quotable]) -> tuple[Segment, ...]:
    """Return a text as quotations of entries, which it shows in order; text from none of them stays verbatim."""
    if not text:
        return ()
    if len(sources) == 1:  # most of them
        content = entries[sources[0]].content
        if content and text.endswith(content):
            quote = Quote(sources[0], 0, len(content))
            return (quote,) if text == content else (text[: -len(content)], quote)
    segments: list[Segment] = []
    position = 0
    # Texts of entries that were not found whole, to be searched in the text that follows.
    unmatched_texts: list[_EntryText] = []
    for number, source in enumerate(sources, 1):
        texts = _texts_of_entry(source, entries[source])
        match = _find_whole_text(text, position, texts, is_last=number == len(sources))
        if match is None:
            unmatched_texts += texts
            continue
        start, entry_text = match
        segments += _quote_fragments(text[position:start], unmatched_texts)
        segments.append(Quote(source, 0, len(entry_text.text), entry_text.field))
        position = start + len(entry_text.text)
        unmatched_texts = []
    segments += _quote_fragments(text[position:], unmatched_texts)
    return _join_literals(segments)


def _find_whole_text(
    text: str, position: int, texts: Sequence[_EntryText], *, is_last: bool
) -> tuple[int, _EntryText] | None:
    """Find the first of the texts of an entry that a text shows whole, from a position on; the last one at its end."""
    for entry_text in texts:
        start = len(text) - len(entry_text.text)
        at_end = is_last and start >= position and text.endswith(entry_text.text)
        if not at_end:
            start = text.find(entry_text.text, position)
        if start >= 0:
            return start, entry_text
    return None


def _quote_fragments(text: str, texts: Sequence[_EntryText]) -> Iterator[Segment]:
    """Yield quotations for the spans of a text that occur in some texts, and literal text for all others.

    The text is split at the marks of a cut; each fragment is looked up as a whole before it is matched by its spans.
    """
    if not texts or not text:
        yield text
        return
    search_start = (0, 0)  # index of the text in which the last fragment was found, and where it ended there
    grams: dict[str, tuple[_EntryText, int]] | None = None
    for index, fragment in enumerate(_CUT.split(text)):
        is_mark = index % 2 == 1
        if is_mark or not fragment:
            yield fragment
            continue
        match = _find_fragment(fragment, texts, *search_start)
        if match is not None:
            *segments, search_start = match
            yield from segments
            continue
        if grams is None:
            grams = _index_grams(texts)
        yield from _quote_longest_matches(fragment, grams)


def _find_fragment(
    fragment: str, texts: Sequence[_EntryText], first_number: int, first_offset: int
) -> tuple[str, Quote, str, tuple[int, int]] | None:
    """Find a fragment in one of the texts, perhaps after a lead and before a closing mark.

    The search begins in the text `first_number`, where the last fragment was found, at `first_offset`, and continues in
    the next three texts. The last item of the result is the position after the fragment: a text and an offset.
    """
    leads = islice(_LEAD.finditer(fragment, 0, 300), 8)  # no text before a quotation is longer
    starts = [0, *[lead.end() for lead in leads]]
    stops = [len(fragment), *[len(fragment) - len(mark) for mark in _CLOSINGS if fragment.endswith(mark)]]
    for start, stop in product(starts, stops):
        quoted = fragment[start:stop]
        if not quoted:
            continue
        for number, entry_text in enumerate(texts[first_number : first_number + 4], first_number):
            offset = entry_text.text.find(quoted, first_offset if number == first_number else 0)
            if offset >= 0:
                quote = Quote(entry_text.entry, offset, offset + len(quoted), entry_text.field)
                return fragment[:start], quote, fragment[stop:], (number, quote.end)
    return None


def _index_grams(texts: Sequence[_EntryText]) -> dict[str, tuple[_EntryText, int]]:
    """Return the first position of each run of `_GRAM` characters; only runs at multiples of `_GRAM` are indexed."""
    grams: dict[str, tuple[_EntryText, int]] = {}
    for entry_text in texts:
        for offset in range(0, len(entry_text.text) - _GRAM + 1, _GRAM):
            grams.setdefault(entry_text.text[offset : offset + _GRAM], (entry_text, offset))
    return grams


def _quote_longest_matches(fragment: str, grams: Mapping[str, tuple[_EntryText, int]]) -> Iterator[Segment]:
    """Yield a fragment as quotations of the longest spans it shares with the texts, and the literal text between."""
    yielded_end = position = 0
    while position <= len(fragment) - _GRAM:
        match = grams.get(fragment[position : position + _GRAM])
        if match is None:
            position += 1
            continue
        entry_text, start = match
        # The match may begin earlier than at this multiple: go back while the characters are equal.
        while position > yielded_end and start and fragment[position - 1] == entry_text.text[start - 1]:
            position, start = position - 1, start - 1
        length = _common_prefix_length(fragment, position, entry_text.text, start)
        yield fragment[yielded_end:position]
        yield Quote(entry_text.entry, start, start + length, entry_text.field)
        yielded_end = position = position + length
    yield fragment[yielded_end:]


def _common_prefix_length(left: str, left_start: int, right: str, right_start: int) -> int:
    """Return how many characters are equal in `left` from `left_start` on and in `right` from `right_start` on.

    Compares slices, which is much faster than comparing single characters.
    """
    limit = min(len(left) - left_start, len(right) - right_start)

    def differ_within(size: int) -> bool:
        return left[left_start : left_start + size] != right[right_start : right_start + size]

    size = 64
    while size < limit and not differ_within(size):
        size *= 2
    return bisect_left(range(1, min(size, limit) + 1), True, key=differ_within)


# ── reading ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def revive_messages(manifest: Manifest, entries: Mapping[str, Quotable]) -> tuple[PromptMessage, ...]:
    """Return the messages that were given to the codec; `entries` has every entry that the manifest quotes.

    `ValidationError` when the text of a message differs from the text that was sent.
    """
    messages: list[PromptMessage] = []
    for number, sent in enumerate(manifest.messages):
        try:
            message = revive_message(sent, entries)
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise ValidationError(
                f"quotes text that its entry does not have: {error!r}", field=f"messages[{number}]"
            ) from error
        if fingerprint_message(message) != sent.hash:
            raise ValidationError(
                f"is not the text that was sent (from {sent.path})",
                field=f"messages[{number}]",
                options=("replay it from the store it was rendered from",),
            )
        messages.append(message)
    return tuple(messages)


def revive_message(sent: Sent, entries: Mapping[str, Quotable]) -> PromptMessage:
    """Return a message as it was given to the codec; a `LookupError` or `ValueError` if an entry does not hold it."""
    parts = tuple([_revive_part(part, entries) for part in sent.parts])
    return PromptMessage(role=sent.role, parts=parts, name=sent.name, sources=sent.sources, group=sent.group)


def _revive_part(part: Whole | Written, entries: Mapping[str, Quotable]) -> Part:
    """Return a part as it was sent, with its quotations read from the entries."""
    if isinstance(part, Whole):
        return entries[part.entry].parts[part.part]
    fields: dict[str, Any] = {"type": part.kind}
    for name, value in part.fields:
        fields[name] = join_segments(value, entries) if isinstance(value, tuple) else value
    return parts_from_json([fields])[0]


def join_segments(segments: tuple[Segment, ...], entries: Mapping[str, Quotable]) -> str:
    """Return the text of some segments."""
    texts: list[str] = []
    for segment in segments:
        texts.append(segment if isinstance(segment, str) else _quoted_text(segment, entries[segment.entry]))
    return "".join(texts)


def _quoted_text(quote: Quote, entry: Quotable) -> str:
    """Return the span of the content, the speaker, a summary's level ("levels.0") or a part ("0.text") of an entry."""
    index, _, name = quote.field.partition(".")
    if not quote.field:
        text = entry.content
    elif quote.field == ACTOR:
        text = getattr(entry, "actor", None) or ""
    elif index == LEVELS:
        text = _list_level_texts(entry)[int(name)]
    else:
        text = getattr(entry.parts[int(index)], name)
    return text[quote.start : quote.end]


# ── the ledger ──────────────────────────────────────────────────────────────────────────────────────────────────────


def ledger_of_manifest(
    manifest: Callable[[], Manifest],
    recalls: Sequence[Ledger] = (),
    warnings: Sequence[str] = (),
    *,
    omitted: int = 0,
    is_unsearched: bool = False,
) -> Ledger:
    """Return the ledger of a prompt, by entry id, pin key and scope path.

    The manifest is built when the ledger is first read. Entries that it does not name are explained by the ledgers of
    `recalls`, or for a log that was only read, by the range of versions that was read. `is_unsearched` says that the
    prompt has a recall which searched nothing for this request.
    """
    return Ledger(
        lambda: _collect_verdicts(manifest()),
        tuple(warnings),
        _UndecidedEntries(manifest, recalls, is_unsearched=is_unsearched),
        omitted=omitted,
        certainty=lambda: recalls[0].certainty if recalls else UNSURE,
    )


class _UndecidedEntries:
    """Entries of the logs of a prompt that nothing was decided about."""

    def __init__(
        self, manifest: Callable[[], Manifest], recalls: Sequence[Ledger], *, is_unsearched: bool
    ) -> None:
        self._manifest = manifest
        self._recalls = recalls
        self._is_unsearched = is_unsearched

    def why(self, id: str) -> Verdict | None:
        """Return why an entry was no candidate; None when it is of none of the logs."""
        for ledger in self._recalls:
            try:
                return ledger.why(id)
            except EntryNotFoundError:
                continue
        parsed = parse_entry_id(id)
        if parsed is None:
            return None
        context, version = parsed
        manifest = self._manifest()
        for read in manifest.reads:
            last_version = read.version if context == read.context else dict(read.lineage).get(context, 0)
            if version <= last_version:
                return _verdict_of_unread(id, version, read, has_excerpts=_has_excerpts(manifest))
            if context == read.context:
                reason = f"stored after v{read.version}, at which the log was read"
                return Verdict(id=id, version=version, included=False, rule="later", reason=reason)
        if not self._is_unsearched:
            return None
        reason = "of another session: the rest of the request left no tokens to search for it"
        if _has_excerpts(manifest):
            reason = "of another session: the excerpts are those of an earlier request, which searched for it"
        return Verdict(id=id, version=version, included=False, rule="unread", reason=reason)

    def __iter__(self) -> Iterator[Verdict]:
        """Yield the verdicts of the recalls."""
        for ledger in self._recalls:
            yield from ledger


def _has_excerpts(manifest: Manifest) -> bool:
    """Return whether a prompt shows excerpts of a log."""
    return any(message.pieces and message.sources for message in manifest.messages)


def _verdict_of_unread(id: str, version: int, read: Read, *, has_excerpts: bool) -> Verdict:
    """Return the verdict on an entry of a log that was not handed to the fit."""
    rule, reason = "unread", f"not active at v{read.version}, or of a kind that no history shows"
    if version < read.first and read.summary:
        rule, reason = "summary", f"the stored summary {read.summary!r} replaces it"
    elif version < read.first:
        recall = "the excerpts are those of an earlier request" if has_excerpts else "no recall asked for it"
        reason = f"older than v{read.first}: older messages could not fit, and {recall}"
    return Verdict(id=id, version=version, included=False, rule=rule, reason=reason)


def _collect_verdicts(manifest: Manifest) -> dict[str, Verdict]:
    """Return a verdict on everything a manifest names; being shown takes precedence over being omitted."""
    candidates_by_id = {candidate.id: candidate for candidate in manifest.candidates}
    verdicts = {candidate.id: _verdict_of_candidate(candidate) for candidate in manifest.candidates}
    omissions_by_id: dict[str, Omission] = {}
    for omission in manifest.left:
        for id in omission.ids:
            omissions_by_id[id] = omission
            verdicts[id] = _build_verdict(
                id,
                candidates_by_id.get(id),
                included=not omission.gone,
                rule=omission.rule,
                reason=omission.reason,
            )
    redactions_by_id = {
        redacted_entry.entry: describe_redaction(redacted_entry) for redacted_entry in manifest.redactions
    }
    for number, message in enumerate(manifest.messages, 1):
        ids = dict.fromkeys([*message.sources, *message.pieces])
        tokens = message.tokens if len(ids) == 1 else 0
        for id in ids:
            candidate = candidates_by_id.get(id)
            rule = _rule_of_message(message, candidate)
            reasons = [_reason_to_show(message, number, rule, candidate, omissions_by_id.get(id))]
            reasons += [redactions_by_id[id]] if id in redactions_by_id else []
            verdicts[id] = _build_verdict(
                id, candidate, included=True, rule=rule, reason="; ".join(reasons), tokens=tokens
            )
    for path, verdict in _verdicts_of_scopes(manifest).items():
        verdicts.setdefault(path, verdict)
    return verdicts


def _reason_to_show(
    message: Sent, number: int, rule: str, candidate: Verdict | None, omission: Omission | None
) -> str:
    """Return why an entry is in a message, and why only in part."""
    reason = f"in message {number} ({message.path})"
    if rule == "recall":
        why = _RECALLED_BEFORE if candidate is None else candidate.reason
        reason = f"{why}; {reason}"
    if omission is not None and not omission.gone:
        reason = f"{reason}, in part: {omission.reason}"
    return reason


def _verdicts_of_scopes(manifest: Manifest) -> dict[str, Verdict]:
    """Return a verdict on each scope that shows something, by path."""
    messages_by_path: dict[str, list[Sent]] = {}
    for message in manifest.messages:
        path = ""
        for name in message.path.split("/"):
            path = f"{path}/{name}" if path else name
            messages_by_path.setdefault(path, []).append(message)
    verdicts: dict[str, Verdict] = {}
    for path, messages in messages_by_path.items():
        tokens = sum([message.tokens for message in messages])
        reason = f"{_format_count(len(messages), 'message')} of it"
        omissions = [left for left in manifest.left if left.gone and is_path_inside(left.path, path)]
        if omissions:
            rules = dict.fromkeys(omission.rule for omission in omissions)
            number = sum([len(omission.ids) for omission in omissions])
            reason = f"{reason}; {number} left out ({', '.join(rules)})"
        rule = "shrunk" if omissions else "required"
        verdicts[path] = _build_verdict(path, None, included=True, rule=rule, reason=reason, tokens=tokens)
    return verdicts


def _format_count(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _rule_of_message(message: Sent, candidate: Verdict | None) -> str:
    """Return the rule that brought a text into a prompt."""
    if message.pieces:
        return "recall" if candidate is not None or message.sources else "pin"
    return "history" if message.first else "required"


def _verdict_of_candidate(candidate: Verdict) -> Verdict:
    """Return the verdict on a recall candidate; one that was chosen but not sent counts as not shown."""
    if not candidate.included:
        return candidate
    reason = "chosen by the recall, and left out of the prompt"
    return replace(candidate, included=False, rule="fit", reason=reason)


def _build_verdict(
    id: str, candidate: Verdict | None, *, included: bool, rule: str, reason: str, tokens: int = 0
) -> Verdict:
    if candidate is None:
        candidate = Verdict(id=id, version=version_of_id(id), included=included, rule=rule)
    tokens = candidate.tokens or tokens
    return replace(candidate, included=included, rule=rule, reason=reason, tokens=tokens)
