"""Provider-neutral types of a prompt: messages, tools, counts, cache marks; the sent requests and their reasons."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from functools import lru_cache
from types import MappingProxyType
from typing import Literal, NamedTuple

from acms.model import Json, Part, Privacy, Role, Source, Text

__all__ = [
    "CacheMark",
    "CachePrediction",
    "CacheRates",
    "Change",
    "Changed",
    "Count",
    "Diagnosis",
    "Exactness",
    "LoggedRender",
    "Outcome",
    "PromptMessage",
    "Redacted",
    "RenderBlock",
    "RenderDetails",
    "ServerEdit",
    "Tool",
    "Usage",
    "Verdict",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptMessage:
    """One message of a prompt, in no provider's format."""

    role: Role
    parts: tuple[Part, ...] = ()
    #: Who spoke, for providers that take a name.
    name: str | None = None
    #: Ids of the entries whose text it shows, in order; empty for what the caller wrote.
    sources: tuple[str, ...] = ()
    #: Tool group of the log, which tells apart calls with the same id.
    group: str | None = None
    #: Tokens of `text`, or of the output of a tool result that stands alone, by the counter of this name, where they
    #: were counted before.
    tokens: int | None = None
    counter: str = ""

    @property
    def text(self) -> str:
        """Its text parts, a line each."""
        return "\n".join([part.text for part in self.parts if isinstance(part, Text)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A function the model may call."""

    name: str
    description: str = ""
    #: JSON Schema of its arguments.
    parameters: Mapping[str, Json] = field(default_factory=lambda: MappingProxyType({"type": "object"}))
    strict: bool = False


class Exactness(StrEnum):
    """How far a count of tokens can be relied on."""

    #: By the provider's public tokenizer and framing: the sent request never has more.
    EXACT = "exact"
    #: A stated quantile of what the provider has reported, or a published upper bound until it has.
    CALIBRATED = "calibrated"
    #: So many tokens for each byte of the payload, which relies on no measure of the text.
    BYTES = "bytes"
    #: Counted by the server that receives the request. Providers call their counts estimates.
    SERVER = "server"
    #: The vocabulary is unknown and nothing was reported yet: usually enough, but no bound.
    ESTIMATE = "estimate"


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """The tokens of a whole request: roles, ids, tools and all."""

    #: Raw: by the codec's counter and its idea of framing; the truth when exact.
    tokens: int
    exactness: Exactness
    #: What a budget is compared with; equals `tokens` when exact.
    upper_bound: int
    #: Tokens of the tools, which `tokens` include; always by the codec's own counter.
    tools: int = 0

    @property
    def margin(self) -> int:
        """Tokens of a budget that are kept free because the count is not exact."""
        return self.upper_bound - self.tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheMark:
    """The end of a prefix that a provider is asked to cache."""

    #: Messages in the prefix; 0 when it holds the tools only.
    messages: int
    id: str = "prompt"
    version: str = ""
    #: Seconds it should be kept; None leaves it to the provider.
    ttl: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheRates:
    """What a provider charges for prompt tokens, in units of uncached input without a cache."""

    #: For those read from its cache.
    cached: float = 0.1
    #: For those written to it, and for those that it is to keep for long: an hour or more.
    write: float = 1.0
    long: float = 1.0


class Changed(StrEnum):
    """The part of a request that differs from the one before it."""

    MODEL = "model"
    #: The key that the provider keeps the cache under.
    KEY = "key"
    TOOLS = "tools"
    #: Text of the system that stands before all messages.
    SYSTEM = "system"
    MESSAGES = "messages"
    #: Either of these two, where the provider does not tell them apart.
    INPUT = "input"
    #: What no prompt holds: the form of the answer, the effort, the service tier.
    SETTINGS = "settings"


class Outcome(StrEnum):
    """What a provider found when it compared a request with an earlier one."""

    #: Nothing that kept it from reading what the earlier request had cached.
    HIT = "hit"
    MISS = "miss"
    #: It could not compare them, or has not done so yet.
    UNKNOWN = "unknown"
    #: It reports nothing: there was no difference, or no diagnosis was requested.
    SILENT = "silent"


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """Why a provider could not read from its cache what an earlier request had put there, in its own words."""

    outcome: Outcome
    #: The first thing that differs; None when nothing does, and for a reason that is not known here.
    changed: Changed | None = None
    #: The provider's word for it.
    reason: str = ""
    #: Tokens that were not read for this reason; an estimate of the provider's.
    missed_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerEdit:
    """Something that a provider changed in a request before the model saw it."""

    #: The provider's word for it: "clear_tool_uses_20250919", "thinking_dropped", "compaction".
    kind: str
    #: The changed place as the provider names it: a path in the request, or the id of an item.
    place: str = ""
    reason: str = ""
    #: How many blocks, turns or tool calls it was, and how many tokens they had, where that is told.
    count: int = 1
    tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Tokens of a request as its provider reports them, and the changes it made to the request."""

    #: Tokens of the whole request, cached or not.
    input_tokens: int
    #: How many of them were read from its prompt cache, and how many were written to it.
    cached_tokens: int = 0
    written_tokens: int = 0
    #: Why it read no more; None when the answer was not given, or says nothing of the kind.
    diagnosis: Diagnosis | None = None
    #: Its changes to the request, in order.
    edits: tuple[ServerEdit, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """The first message of a prompt that is not as it was in the one before."""

    #: Its place among the messages; their number when the prompt ends before.
    index: int
    role: Role | None
    #: Scope it came from.
    path: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CachePrediction:
    """The part of a prompt that its provider can read from the prompt cache after an earlier prompt."""

    #: By the provider's rules: it reads no short prefix, and some only in steps.
    predicted_tokens: int = 0
    #: Raw tokens of the common beginning of both, tools and frame included.
    shared_tokens: int = 0
    #: None when the earlier prompt is the beginning of this one, and when there is none.
    first_change: Change | None = None
    #: Description of that change.
    reason: str = ""
    #: Name under which the provider keeps it, where a cache hint gave one.
    key: str = ""
    #: Raw tokens of the whole request.
    total_tokens: int = 0
    #: Whether there was an earlier prompt to compare with, and the part of the request that differs first from it;
    #: None when the earlier prompt is the beginning of this one.
    compared: bool = False
    changed: Changed | None = None

    def paid(self, cached: float = 0.1, write: float = 1.0) -> float:
        """Return what the request costs, in units of one token of uncached input.

        `cached` is the price of a token read from the cache, `write` that of every other one, which is written to it:
        `codec.rates` has those of the model.
        """
        return cached * self.predicted_tokens + write * (self.total_tokens - self.predicted_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """What the tokens of a request are used for, in raw tokens of the codec."""

    #: What the caller wrote for the system or the developer, and everything else that the caller wrote.
    system: int = 0
    written: int = 0
    #: Messages and summaries of a log.
    history: int = 0
    recalled: int = 0
    pins: int = 0
    #: Offered functions, and the overhead of the format itself.
    tools: int = 0
    #: Tokens left of the budget; 0 without one.
    free: int = 0


class Redacted(NamedTuple):
    """An entry that is shown redacted, and the kinds of text that were removed from it."""

    entry: str
    #: The mode it was shown under; under `block` all of its text was withheld.
    mode: Privacy
    #: Number of removed texts by kind.
    kinds: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the planner decided about one candidate, and by which rule."""

    id: str
    version: int
    included: bool
    #: Name of the rule that decided, such as "latest", "score", "budget", "replaced".
    rule: str
    source: Source | None = None
    relevance: float = 0.0
    #: What the markers add, as a share of the best relevance.
    boost: float = 0.0
    score: float = 0.0
    #: What each signal adds to the relevance, by name.
    parts: Mapping[str, float] = field(default_factory=dict)
    tokens: int = 0
    #: The reason in words.
    reason: str = ""

    def __str__(self) -> str:
        verb = "shown" if self.included else "left out"
        name = f"v{self.version}" if self.version else self.id  # a pin and a section have no version
        scores = ""
        if self.score or self.relevance or self.boost:  # what is not ranked has none
            scores = f"score {self.score:.2f}; relevance {self.relevance:.2f}, markers add {self.boost:.2f}; "
        return f"{name} {verb} ({self.rule}): {self.reason} [{scores}{self.tokens} tokens]"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedRender:
    """A request that was really sent, as the log of renders keeps it: numbers and ids, no text."""

    id: str
    #: The request id of the service, or the correlation id of the call; "" without one.
    request_id: str
    kind: Literal["prompt", "messages", "acs"]
    created_at: datetime
    #: Version of the log that was read.
    version: int
    codec: str
    model: str
    budget: int | None
    #: The codec's count of the whole request, and what the budget was compared with.
    tokens: int
    upper_bound: int
    messages: int
    #: Candidates and messages that are not in it.
    left_out: int
    use: Use
    #: The part that the provider could read from its cache after the render before it; None where nothing is cached.
    cache: CachePrediction | None
    #: Its cost in tokens of uncached input, and the part of that cost due to a broken cache.
    paid: int
    lost: int
    #: Id of the render it is compared with: the one of the same kind before it.
    previous: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderBlock:
    """One message of a request that was sent."""

    #: Its place in the request, from 0.
    place: int
    role: Role
    #: As `Use` names it: "system", "written", "history", "recalled", "pins".
    part: str
    path: str
    tokens: int
    rendition: str
    #: Entries whose text it shows, and the versions of the first and last of them; 0 for what the caller wrote.
    sources: tuple[str, ...]
    first: int
    last: int
    #: Against the render before: "same" up to the first change, then "moved" or "added"; "removed" of the other one.
    change: str
    #: The caller's text, or the log's current text there; None if the content is gone.
    text: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderDetails(LoggedRender):
    """A sent request with its messages, the reason for each of them, and the entries that were left out."""

    blocks: Sequence[RenderBlock]
    #: Messages of the render before that are not in this one.
    removed: Sequence[RenderBlock]
    verdicts: Sequence[Verdict]
    #: Beginnings of the entries that were left out, by id, as the log has them now.
    previews: Mapping[str, str]
    #: The steps taken to make it fit: path, strategy, tokens before and after.
    steps: Sequence[Mapping[str, Json]]
    #: What privacy took out, by entry: how often, by kind.
    redactions: Mapping[str, Mapping[str, int]]
    #: The request as it was given to the provider, system text and tools included; None if it cannot be shown.
    payload: Mapping[str, Json] | None = None
    #: How `payload` differs from the sent request, or why it is None; "" if it is identical byte for byte.
    payload_note: str = ""


# ── texts as paragraphs of one ────────────────────────────────────────────────────────────────────────────────────────

SEPARATOR = "\n\n"
"""Separator between two paragraphs."""

_PLACE = r", (?:session [^\n]{1,255}?|this session)"
_DATED = re.compile(rf"([^\n:]{{1,300}}?)((?:, \d{{4}}-\d\d-\d\d)?(?:{_PLACE})?): ")
_SPEAKERS = (*(role.value for role in Role), "fact", "summary", "tool call")


def prefix_speaker(speaker: str | None, content: str) -> str:
    """Write who said something before it."""
    return f"{speaker}: {content}" if speaker else content


def format_paragraph(
    speaker: str | None,
    content: str,
    day: str | None = None,
    *,
    place: str | None = None,
    external: bool = False,
) -> str:
    """Format a message as a paragraph: "speaker, day, place: content".

    Lines of the content that begin like such a paragraph are quoted. An empty `speaker` gives the content without a
    heading; with None it is not quoted either.
    """
    if speaker is None:
        return content
    quoted = quote_speakers(content, _SPEAKERS)
    if not speaker:
        return quoted
    name = " ".join(speaker.split())
    if external:
        name += " (external text)"
    heading = ", ".join([part for part in (name, day, place) if part])
    return prefix_speaker(heading, quoted)


def omit_repeated_dates(paragraphs: Iterable[str]) -> Iterator[str]:
    """Yield the paragraphs, without day and session if the paragraph before has the same ones."""
    previous = ""
    for paragraph in paragraphs:
        match = _DATED.match(paragraph)
        day_and_session = match[2] if match else ""
        if match and day_and_session and day_and_session == previous:
            speaker = match[1]
            yield f"{speaker}: {paragraph[match.end() :]}"
        else:
            yield paragraph
        previous = day_and_session


# ── texts in a frame ──────────────────────────────────────────────────────────────────────────────────────────────────
# Nothing in a text may end the frame it is put into or pass for another speaker, however it is spelt: characters are
# compared as a reader sees them. NFKC and case are folded, and invisible characters are ignored.

BREAKS = r"\n\r\v\f\x1c-\x1e\x85\u2028\u2029"
"""Characters that end a line, inside a class of a regular expression."""

OPENING = "<\uff1c\ufe64"
"""Characters that look like the opening bracket of a tag."""

_OPENING = re.compile(f"[{OPENING}]")
_SLASHES = dict.fromkeys("\u2044\u2215\u29f8", "/")
_BLANK = frozenset("\u115f\u1160\u2800\u3164\uffa0")
"""Characters that show nothing although they count as letters or symbols."""
_INVISIBLE = ("Cc", "Cf", "Mn", "Me")
"""Unicode categories of what shows nothing by itself."""

_COLONS = ":\uff1a\ufe55\ufe13\u2236\ua789"
_LINE = re.compile(rf"(?<=[{BREAKS}])(?=([^{BREAKS}{_COLONS}]+)[{_COLONS}])")
LONGEST = 120
"""Visible characters before the colon of a line that may begin with a speaker, at most."""


@lru_cache(maxsize=4096)
def fold_character(char: str) -> str:
    """Fold a character to its appearance: "" for an invisible one, " " for any space, lower case for letters."""
    if char.isspace():
        return " "
    if unicodedata.category(char) in _INVISIBLE or char in _BLANK:
        return ""
    return unicodedata.normalize("NFKC", _SLASHES.get(char, char)).casefold()


def open_closing_tags(text: str, name: str) -> str:
    """Return a text in which no closing tag of a name is left: each has lost its opening bracket."""
    return _replace_brackets(text, (name,), "", closing=True)


def escape_tags(text: str, names: Sequence[str]) -> str:
    """Return a text in which no opening or closing tag of some names is left: their brackets are escaped."""
    return _replace_brackets(text, names, "&lt;", closing=False)


def _replace_brackets(text: str, names: Sequence[str], by: str, *, closing: bool) -> str:
    def replace_if_tag(bracket: re.Match[str]) -> str:
        is_tag = any(_is_tag(text, bracket.end(), name, closing=closing) for name in names)
        return by if is_tag else bracket[0]

    return _OPENING.sub(replace_if_tag, text)


def _is_tag(text: str, index: int, name: str, *, closing: bool) -> bool:
    """Return whether a tag of this name continues at an index, right after its opening bracket.

    Only its slash and its name are compared, as a reader sees them. A closing tag must have the slash.
    """
    rest_of_name = name
    may_begin_name = not closing
    while index < len(text):
        folded = fold_character(text[index])
        index += 1
        if folded == "/" and rest_of_name == name:
            may_begin_name = True
        elif folded.strip():
            if not may_begin_name or not rest_of_name.startswith(folded):
                return False
            rest_of_name = rest_of_name[len(folded) :]
            if not rest_of_name:
                following = fold_character(text[index]) if index < len(text) else ""
                name_goes_on = re.match(r"[\w-]", following) is not None
                return not name_goes_on
    return False


def quote_speakers(text: str, speakers: Sequence[str]) -> str:
    """Return a text with a quote prefix before each line that begins like a speaker's, except the first line."""
    return _LINE.sub(_build_line_quoter(tuple(speakers)), text)


@lru_cache(maxsize=8)
def _build_line_quoter(speakers: tuple[str, ...]) -> Callable[[re.Match[str]], str]:
    """Return a function for `re.sub`: the quote prefix if the first group, a line up to its colon, names a speaker."""
    brackets = r"[(\[{<\u3010\u3014\u300c\u300e\u300a\u3008]"
    ends = r"[)\]}>\u3011\u3015\u300d\u300f\u300b\u3009]"
    names = "|".join(speakers)
    attribute = rf"(?:, \d{{4}}-\d\d-\d\d|, (?:this )?session[^:]*|{brackets}[^:]*{ends})"
    pattern = re.compile(rf"[\s*_#]*{brackets}*\s*(?:{names})[\s*_]*{ends}*(?:\s*{attribute})*[\s*_]*\Z")

    def quote(line: re.Match[str]) -> str:
        return "> " if pattern.match(_fold_visible_prefix(line[1])) else ""

    return quote


def _fold_visible_prefix(text: str) -> str:
    """Return the first visible characters of a text, folded, with single spaces: about `LONGEST` of them."""
    if text.isprintable() and text.isascii():
        return " ".join(text.split())[: LONGEST + 1].lower()
    visible: list[str] = []
    for char in text:
        folded = fold_character(char)
        is_repeated_space = folded == " " and visible[-1:] == [" "]
        if folded and not is_repeated_space:
            visible.append(folded)
        if len(visible) > LONGEST:
            break
    return "".join(visible)
