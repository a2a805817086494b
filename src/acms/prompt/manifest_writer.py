"""Manifests: written from a laid-out prompt, converted back into its messages, and read as a ledger.

Every stretch of text is looked up in the entries that the message shows: a whole entry, the head and tail that a cut
left, the sentences of an excerpt. Text not found in them is kept verbatim. Time is linear in the text, except for texts
that contain repetitions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from itertools import islice
from typing import Any, NamedTuple, Protocol

from acms.errors import EntryNotFoundError, ValidationError
from acms.log.encoding import parse_entry_id, parts_from_json, parts_to_json
from acms.log.summary_levels import LEVELS, read_shorter_levels
from acms.model import Json, Part, Source, Text
from acms.plan.nodes import Left, Piece, Placed, Step
from acms.ports import Codec
from acms.privacy.modes import describe_redaction, list_redactions
from acms.prompt.manifest import (
    Manifest,
    Quote,
    Read,
    Scored,
    Segment,
    Sent,
    Tried,
    Unsent,
    Whole,
    Written,
    canonical,
)
from acms.prompt_types import CacheMark, Count, PromptMessage, Tool, omit_repeated_dates
from acms.results import UNSURE, Ledger, Verdict
from acms.text.chat_messages import ORPHAN, RECALLED, SUMMARY

_CUT = re.compile(r"(\s*\[…[^\]\n]*\]\s*)")
"""The mark a cut leaves between two stretches of a text, that of `plan.CUT`, and the blanks around it."""
_CLOSINGS = (RECALLED[1], SUMMARY[1], ORPHAN[1])
_LEAD = re.compile(r": |\n")
"""The end of any text before a quotation: a speaker's name, an opening mark."""
_LEADING = 300
"""Maximum characters of the text before a quotation."""
_AHEAD = 4
"""Texts in which a stretch is looked for, beginning with the one that was reached."""
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
    placed: Sequence[Placed],
    *,
    codec: Codec,
    count: Count,
    payload: Mapping[str, Json] | None = None,
    budget: int | None = None,
    limit: int | None = None,
    tools: Sequence[Tool] = (),
    marks: Sequence[CacheMark] = (),
    told: Mapping[str, Quotable] | None = None,
    reads: Sequence[Read] = (),
    left: Sequence[Left] = (),
    steps: Sequence[Step] = (),
) -> Manifest:
    """Return the manifest of a prompt as it was laid out and given to a codec; `considered` adds the candidates.

    `told` maps ids to the entries whose text is shown; the text of an entry missing there is kept verbatim.
    """
    known = told or {}
    messages = tuple([_build_sent(one, known) for one in placed])
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
        left=tuple([Unsent(*one) for one in left]),
        steps=tuple([Tried(*one) for one in steps]),
        redactions=list_redactions([id for one in messages for id in one.sources], known),
        payload="" if payload is None else hash_payload(payload),
        max_tokens=getattr(codec, "max_tokens", None),
    )


def add_candidates(manifest: Manifest, recalls: Sequence[Ledger]) -> Manifest:
    """Return a manifest with the candidates of the recalls that these ledgers are of.

    They take longer than all the rest: hundreds, and the ledger of a recall is written when it is first read.
    """
    shown = {source for one in manifest.messages for source in one.sources}
    found = [
        _build_scored(verdict)
        for one in recalls
        for verdict in one.candidates.values()
        if verdict.included or verdict.id not in shown  # what is shown anyway was no candidate
    ]
    return replace(manifest, candidates=tuple(found))


def hash_payload(payload: Mapping[str, Json]) -> str:
    """Return the SHA-256 of a payload's canonical JSON, in hex."""
    return sha256(canonical(payload).encode()).hexdigest()


def fingerprint_message(message: PromptMessage) -> str:
    """Return the `Sent.hash` of a message: equal for messages with equal content."""
    parts = message.parts
    if len(parts) == 1 and isinstance(parts[0], Text):
        said = f"t\0{message.role.value}\0{message.name or ''}\0{parts[0].text}"
    else:
        said = f"p\0{message.role.value}\0{message.name or ''}\0{canonical(parts_to_json(parts))}"
    return sha256(said.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _build_scored(verdict: Verdict) -> Scored:
    return Scored(
        verdict.id,
        verdict.included,
        verdict.rule,
        verdict.reason,
        float(round(verdict.score, 4)),  # not 0: it would be written in another way than it is read back
        float(round(verdict.relevance, 4)),
        float(round(verdict.boost, 4)),
        verdict.tokens,
        verdict.source.value if verdict.source is not None else "",
        tuple([(name, float(round(value, 4))) for name, value in sorted(verdict.parts.items())]),
    )


def _build_sent(one: Placed, told: Mapping[str, Quotable]) -> Sent:
    message = one.message
    sources = _merge_sources(message.sources, one.pieces)
    known = [source for source in sources if source in told]
    return Sent(
        path=one.path,
        role=message.role,
        hash=fingerprint_message(message),
        tokens=one.tokens,
        parts=tuple([_build_part(part, known, one.pieces, told) for part in message.parts]),
        name=message.name,
        group=message.group,
        rendition=one.rendition,
        sources=sources,
        pieces=tuple([piece.id for piece in one.pieces]),
        moves=one.moves,
        first=one.first,
        last=one.last,
    )


def _merge_sources(sources: Sequence[str], pieces: Sequence[Piece]) -> tuple[str, ...]:
    if not pieces:
        return tuple(sources)
    return tuple(dict.fromkeys([*sources, *[source for piece in pieces for source in piece.sources]]))


def _build_part(
    part: Part, known: Sequence[str], pieces: Sequence[Piece], told: Mapping[str, Quotable]
) -> Whole | Written:
    for source in known:
        parts = told[source].parts
        if part in parts:
            return Whole(source, parts.index(part))
    (fields,) = parts_to_json([part])
    found: list[tuple[str, tuple[Segment, ...] | int | None]] = []
    for name, value in fields.items():
        if name == "type":
            continue
        if not isinstance(value, str):
            found.append((name, value))
        elif name in _NAMES:
            found.append((name, (value,)))
        else:
            found.append(
                (
                    name,
                    _quote_composed(value, pieces, known, told) if pieces else quote_text(value, known, told),
                )
            )
    return Written(fields["type"], tuple(sorted(found)))


def _quote_composed(
    text: str, pieces: Sequence[Piece], known: Sequence[str], told: Mapping[str, Quotable]
) -> tuple[Segment, ...]:
    """Quote a text written from pieces: each piece from its own entries, a cut piece from the text in between."""
    out = _Segments()
    place = 0
    waiting: list[str] = []
    for piece, shown in zip(pieces, omit_repeated_dates(one.text for one in pieces), strict=True):
        said = piece.text
        at = text.find(said, place) if said else -1
        if at < 0 and shown != said:
            said, at = shown, text.find(shown, place)
        own = [source for source in piece.sources if source in told]
        if at < 0:
            waiting += own
            continue
        out.extend(quote_text(text[place:at], waiting, told))
        out.extend(quote_text(said, own, told))
        place, waiting = at + len(said), []
    rest = waiting or (known if not pieces else [])
    out.extend(quote_text(text[place:], rest, told))
    return out.done()


class _Segments:
    """Segments that are being put together: literal ones beside each other are one."""

    def __init__(self) -> None:
        self._found: list[Segment] = []
        self._said: list[str] = []

    def add(self, segment: Segment) -> None:
        """Put a segment at the end."""
        if isinstance(segment, str):
            self._said.append(segment)
        elif segment.end > segment.start:
            self._flush()
            self._found.append(segment)

    def extend(self, segments: Iterable[Segment]) -> None:
        """Put segments at the end."""
        for segment in segments:
            self.add(segment)

    def done(self) -> tuple[Segment, ...]:
        """Return them all."""
        self._flush()
        return tuple(self._found)

    def _flush(self) -> None:
        said = "".join(self._said)
        self._said.clear()
        if said:
            self._found.append(said)


class _Place(NamedTuple):
    """A text of an entry: its content, or a field of one of its parts."""

    entry: str
    field: str
    text: str


def _texts_of_entry(entry: str, told: Quotable) -> list[_Place]:
    found = [_Place(entry, "", told.content)] if told.content else []
    if told.parts:
        for index, fields in enumerate(parts_to_json(told.parts)):
            for name, value in fields.items():
                if name != "type" and name not in _NAMES and isinstance(value, str) and value:
                    found.append(_Place(entry, f"{index}.{name}", value))
    levels = _list_level_texts(told)
    return found + [_Place(entry, f"{LEVELS}.{index}", one) for index, one in enumerate(levels)]


def _list_level_texts(told: Quotable) -> list[str]:
    """Return the shorter texts of a summary."""
    return [one.content for one in read_shorter_levels(getattr(told, "data", {}))]


def quote_text(text: str, sources: Sequence[str], told: Mapping[str, Quotable]) -> tuple[Segment, ...]:
    """Return a text as quotations of entries, which it shows in order; text from none of them stays verbatim."""
    if not text:
        return ()
    if len(sources) == 1 and text == told[sources[0]].content:  # most of them
        return (Quote(sources[0], 0, len(text)),)
    out = _Segments()
    place = 0
    cut: list[_Place] = []
    for number, source in enumerate(sources):
        texts = _texts_of_entry(source, told[source])
        last = number == len(sources) - 1
        for one in texts:
            at = len(text) - len(one.text)
            if not (last and at >= place and text.endswith(one.text)):
                at = text.find(one.text, place)
            if at >= 0:
                out.extend(_quote_fragments(text[place:at], cut))
                out.add(Quote(source, 0, len(one.text), one.field))
                place, cut = at + len(one.text), []
                break
        else:
            cut += texts
    out.extend(_quote_fragments(text[place:], cut))
    return out.done()


def _quote_fragments(text: str, places: Sequence[_Place]) -> Iterator[Segment]:
    """Yield the stretches of a text that shows some texts in part, with marks of a cut in between."""
    if not places or not text:
        yield text
        return
    reached = (0, 0)
    grams: dict[str, tuple[_Place, int]] | None = None
    for index, fragment in enumerate(_CUT.split(text)):
        if index % 2 or not fragment:
            yield fragment
            continue
        found = _find_fragment(fragment, places, *reached)
        if found is not None:
            *segments, reached = found
            yield from segments
            continue
        if grams is None:
            grams = _index_grams(places)
        yield from _quote_longest_matches(fragment, grams)


def _find_fragment(
    fragment: str, places: Sequence[_Place], reached: int, end: int
) -> tuple[str, Quote, str, tuple[int, int]] | None:
    """Find a fragment in one of the texts, perhaps after a lead and before a closing mark.

    The search begins in the text reached so far, from `end` on, and continues in the next ones. The last item of the
    result is the new position.
    """
    starts = [0, *[lead.end() for lead in islice(_LEAD.finditer(fragment, 0, _LEADING), 8)]]
    stops = [len(fragment), *[len(fragment) - len(mark) for mark in _CLOSINGS if fragment.endswith(mark)]]
    for start in starts:
        for stop in stops:
            said = fragment[start:stop]
            for place in range(reached, min(reached + _AHEAD, len(places))) if said else ():
                one = places[place]
                at = one.text.find(said, end if place == reached else 0)
                if at >= 0:
                    quote = Quote(one.entry, at, at + len(said), one.field)
                    return fragment[:start], quote, fragment[stop:], (place, quote.end)
    return None


def _index_grams(places: Sequence[_Place]) -> dict[str, tuple[_Place, int]]:
    grams: dict[str, tuple[_Place, int]] = {}
    for one in places:
        for at in range(0, len(one.text) - _GRAM + 1, _GRAM):
            grams.setdefault(one.text[at : at + _GRAM], (one, at))
    return grams


def _quote_longest_matches(fragment: str, grams: Mapping[str, tuple[_Place, int]]) -> Iterator[Segment]:
    """Yield a fragment as the longest stretches that begin where it meets one of the texts."""
    said = at = 0
    while at <= len(fragment) - _GRAM:
        met = grams.get(fragment[at : at + _GRAM])
        if met is None:
            at += 1
            continue
        one, start = met
        while at > said and start and fragment[at - 1] == one.text[start - 1]:
            at, start = at - 1, start - 1
        length = _common_prefix_length(fragment, at, one.text, start)
        yield fragment[said:at]
        yield Quote(one.entry, start, start + length, one.field)
        said = at = at + length
    yield fragment[said:]


def _common_prefix_length(left: str, at: int, right: str, start: int) -> int:
    """Return how many characters two texts have in common from two places on."""
    low, high = 0, min(len(left) - at, len(right) - start)
    step = 64
    while low < high:
        size = min(step, high - low)
        if left[at + low : at + low + size] == right[start + low : start + low + size]:
            low += size
            step *= 2
        elif size == 1:
            return low
        else:
            high, step = low + size - 1, max(1, size // 2)
            if left[at + low] != right[start + low]:
                return low
    return low


# ── reading ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def revive_messages(manifest: Manifest, told: Mapping[str, Quotable]) -> tuple[PromptMessage, ...]:
    """Return the messages that were given to the codec; `told` has every entry that the manifest quotes.

    `ValidationError` when one does not read as it did.
    """
    found: list[PromptMessage] = []
    for number, one in enumerate(manifest.messages):
        try:
            message = revive_message(one, told)
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise ValidationError(
                f"quotes what its entry does not have: {error!r}", field=f"messages[{number}]"
            ) from error
        if fingerprint_message(message) != one.hash:
            raise ValidationError(
                f"does not read as it did when it was sent (from {one.path})",
                field=f"messages[{number}]",
                options=("replay it from the store it was rendered from",),
            )
        found.append(message)
    return tuple(found)


def revive_message(sent: Sent, told: Mapping[str, Quotable]) -> PromptMessage:
    """Return a message as it was given to the codec; a `LookupError` or `ValueError` if an entry does not hold it."""
    parts = tuple([_revive_part(part, told) for part in sent.parts])
    return PromptMessage(role=sent.role, parts=parts, name=sent.name, sources=sent.sources, group=sent.group)


def _revive_part(part: Whole | Written, told: Mapping[str, Quotable]) -> Part:
    if isinstance(part, Whole):
        return told[part.entry].parts[part.part]
    fields: dict[str, Any] = {"type": part.kind}
    for name, value in part.fields:
        fields[name] = join_segments(value, told) if isinstance(value, tuple) else value
    return parts_from_json([fields])[0]


def join_segments(segments: tuple[Segment, ...], told: Mapping[str, Quotable]) -> str:
    """Return the text of some stretches."""
    said: list[str] = []
    for segment in segments:
        if isinstance(segment, str):
            said.append(segment)
            continue
        text = told[segment.entry].content
        if segment.field == ACTOR:
            text = getattr(told[segment.entry], "actor", None) or ""
        elif segment.field:
            index, _, name = segment.field.partition(".")
            if index == LEVELS:
                text = _list_level_texts(told[segment.entry])[int(name)]
            else:
                text = getattr(told[segment.entry].parts[int(index)], name)
        said.append(text[segment.start : segment.end])
    return "".join(said)


# ── the ledger ──────────────────────────────────────────────────────────────────────────────────────────────────────


def ledger_of_manifest(
    manifest: Callable[[], Manifest],
    recalls: Sequence[Ledger] = (),
    warnings: Sequence[str] = (),
    *,
    omitted: int = 0,
) -> Ledger:
    """Return the ledger of a prompt, by entry id, pin key and scope path.

    The manifest is built when the ledger is first read. `recalls` answer for the other entries of their logs; for a log
    that was only read, the ledger reports the range of versions read.
    """
    return Ledger(
        lambda: _collect_verdicts(manifest()),
        tuple(warnings),
        _Rest(manifest, recalls),
        omitted=omitted,
        certainty=lambda: recalls[0].certainty if recalls else UNSURE,
    )


class _Rest:
    """Entries of the logs of a prompt that nothing was decided about."""

    def __init__(self, manifest: Callable[[], Manifest], recalls: Sequence[Ledger]) -> None:
        self._manifest = manifest
        self._recalls = recalls

    def why(self, id: str) -> Verdict | None:
        """Return why an entry was no candidate; None when it is of none of the logs."""
        for one in self._recalls:
            try:
                return one.why(id)
            except EntryNotFoundError:
                continue
        found = parse_entry_id(id)
        if found is None:
            return None
        context, version = found
        for read in self._manifest().reads:
            upto = read.version if context == read.context else dict(read.lineage).get(context, 0)
            if version <= upto:
                return _verdict_of_unread(id, version, read)
            if context == read.context:
                reason = f"said after v{read.version}, which is what was read"
                return Verdict(id=id, version=version, included=False, rule="later", reason=reason)
        return None

    def __iter__(self) -> Iterator[Verdict]:
        """Say it of everything that a recall knows."""
        for one in self._recalls:
            yield from one


def _verdict_of_unread(id: str, version: int, read: Read) -> Verdict:
    """Return the verdict on an entry of a log that was not handed to the fit."""
    rule, reason = "unread", f"not in force at v{read.version}, or nothing that a history shows"
    if version < read.first and read.summary:
        rule, reason = "summary", f"the stored summary {read.summary!r} stands for it"
    elif version < read.first:
        reason = f"older than v{read.first}: what is older could not fit, and no recall asked for it"
    return Verdict(id=id, version=version, included=False, rule=rule, reason=reason)


def _collect_verdicts(manifest: Manifest) -> dict[str, Verdict]:
    """Return a verdict on everything a manifest names; being shown takes precedence over being omitted."""
    scored = {one.id: one for one in manifest.candidates}
    found = {one.id: _verdict_of_candidate(one) for one in manifest.candidates}
    left: dict[str, Unsent] = {}
    for one in manifest.left:
        for id in one.ids:
            left[id] = one
            found[id] = _build_verdict(
                id, scored.get(id), included=not one.gone, rule=one.rule, reason=one.reason
            )
    redacted = {one.entry: describe_redaction(one) for one in manifest.redactions}
    paths: dict[str, list[Sent]] = {}
    for number, message in enumerate(manifest.messages, 1):
        shown = dict.fromkeys([*message.sources, *message.pieces])
        for id in shown:
            score = scored.get(id)
            rule = _rule_of_message(message, score)
            reason = f"in message {number} ({message.path})"
            if rule == "recall" and score is not None:
                reason = f"{score.reason}; {reason}"
            cut = left.get(id)
            if cut is not None and not cut.gone:
                reason = f"{reason}, in part: {cut.reason}"
            if id in redacted:
                reason = f"{reason}; {redacted[id]}"
            tokens = message.tokens if len(shown) == 1 else 0
            found[id] = _build_verdict(id, score, included=True, rule=rule, reason=reason, tokens=tokens)
        steps = message.path.split("/")
        for depth in range(1, len(steps) + 1):
            paths.setdefault("/".join(steps[:depth]), []).append(message)
    for path, sent in paths.items():
        tokens = sum([message.tokens for message in sent])
        missing = [one for one in manifest.left if one.gone and f"{one.path}/".startswith(f"{path}/")]
        reason = f"{_format_count(len(sent), 'message')} of it"
        if missing:
            gone = sum([len(one.ids) for one in missing])
            reason = f"{reason}; {gone} left out ({', '.join(dict.fromkeys(one.rule for one in missing))})"
        rule = "required" if not missing else "shrunk"
        found.setdefault(
            path, _build_verdict(path, None, included=True, rule=rule, reason=reason, tokens=tokens)
        )
    return found


def _format_count(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _rule_of_message(message: Sent, score: Scored | None) -> str:
    """Return the rule that brought a text into a prompt."""
    if message.pieces:
        return "recall" if score is not None or message.sources else "pin"
    return "history" if message.first else "required"


def _verdict_of_candidate(one: Scored) -> Verdict:
    """Return the verdict on a recall candidate; one that was chosen but not sent counts as not shown."""
    if one.included:
        reason = "chosen by the recall, and left out of the prompt"
        return _build_verdict(one.id, one, included=False, rule="fit", reason=reason)
    return _build_verdict(one.id, one, included=False, rule=one.rule, reason=one.reason)


def _build_verdict(
    id: str, score: Scored | None, *, included: bool, rule: str, reason: str, tokens: int = 0
) -> Verdict:
    place = parse_entry_id(id)
    version = 0 if place is None else place[1]
    if score is None:
        return Verdict(id=id, version=version, included=included, rule=rule, reason=reason, tokens=tokens)
    return Verdict(
        id=id,
        version=version,
        included=included,
        rule=rule,
        source=Source(score.source) if score.source else None,
        relevance=score.relevance,
        boost=score.boost,
        score=score.score,
        parts=dict(score.parts),
        tokens=score.tokens or tokens,
        reason=reason,
    )
