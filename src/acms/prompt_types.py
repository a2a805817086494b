"""Provider-neutral types of a prompt: messages, tools, counts, cache marks, logged renders, and the text framing."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
    """One message of a prompt, independent of the provider's format."""

    role: Role
    parts: tuple[Part, ...] = ()
    #: The speaker, for providers that accept a name.
    name: str | None = None
    #: Ids of the entries whose text it shows, in order; empty for text of the caller.
    sources: tuple[str, ...] = ()
    #: Tool group of the log, which distinguishes calls with the same id.
    group: str | None = None
    #: Tokens of `text`, or of the output of a single tool result, if they were counted before, and the name of the
    #: counter.
    tokens: int | None = None
    counter: str = ""

    @property
    def text(self) -> str:
        """Its text parts, each on its own line."""
        return "\n".join([part.text for part in self.parts if isinstance(part, Text)])


def with_parts(message: PromptMessage, parts: Sequence[Part], role: Role | None = None) -> PromptMessage:
    """Return a message with these parts and role; if they are new to it, its stored token count does not apply."""
    role = role or message.role
    if message.role is role and message.parts == tuple(parts):
        return message
    return replace(message, role=role, parts=tuple(parts), tokens=None, counter="")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A function the model may call."""

    name: str
    description: str = ""
    #: JSON Schema of its arguments.
    parameters: Mapping[str, Json] = field(default_factory=lambda: MappingProxyType({"type": "object"}))
    strict: bool = False


class Exactness(StrEnum):
    """How reliable a count of tokens is."""

    #: By the provider's public tokenizer and framing: the sent request never has more.
    EXACT = "exact"
    #: By a quantile of the counts that the provider has reported; before the first report, by a published upper bound.
    CALIBRATED = "calibrated"
    #: By the number of bytes of the payload, without a measure of the text.
    BYTES = "bytes"
    #: Counted by the server that receives the request. Providers call their counts estimates.
    SERVER = "server"
    #: For an unknown vocabulary before the first report: usually enough, but not an upper bound.
    ESTIMATE = "estimate"


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """The tokens of a whole request, including roles, ids and tools."""

    #: Raw tokens, by the codec's counter and its framing.
    tokens: int
    exactness: Exactness
    #: The tokens that are compared with a budget; equal to `tokens` if the count is exact.
    upper_bound: int
    #: Tokens of the tools, which are included in `tokens`; always by the codec's own counter.
    tools: int = 0

    @property
    def margin(self) -> int:
        """Tokens of a budget that are kept free because the count is not exact."""
        return self.upper_bound - self.tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheMark:
    """The end of a prefix that a provider is asked to cache."""

    #: Messages in the prefix; 0 if it contains only the tools.
    messages: int
    id: str = "prompt"
    version: str = ""
    #: Seconds for which it should be cached; None leaves it to the provider.
    ttl: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheRates:
    """The prices of prompt tokens, in units of the price of uncached input."""

    #: Price of tokens that are read from the cache.
    cached: float = 0.1
    #: Price of tokens that are written to the cache, and of those that are cached for an hour or longer.
    write: float = 1.0
    long: float = 1.0


class Changed(StrEnum):
    """The part of a request that differs from the previous one."""

    MODEL = "model"
    #: The provider's key of the cache.
    KEY = "key"
    TOOLS = "tools"
    #: System text before all messages.
    SYSTEM = "system"
    MESSAGES = "messages"
    #: `SYSTEM` or `MESSAGES`, for a provider that does not distinguish them.
    INPUT = "input"
    #: Settings outside of the prompt: the format of the answer, the effort, the service tier.
    SETTINGS = "settings"


class Outcome(StrEnum):
    """The result of a provider's comparison of a request with an earlier one."""

    #: The cache of the earlier request could be read.
    HIT = "hit"
    MISS = "miss"
    #: The requests could not be compared, or have not been compared yet.
    UNKNOWN = "unknown"
    #: The provider reported nothing: there was no difference, or no diagnosis was requested.
    SILENT = "silent"


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """A provider's diagnosis of why it could not read the cache of an earlier request."""

    outcome: Outcome
    #: The first part that differs; None if there is none, or if the provider's reason is not a known one.
    changed: Changed | None = None
    #: The provider's word for the reason.
    reason: str = ""
    #: Tokens that were not read for this reason, as estimated by the provider.
    missed_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerEdit:
    """A change that a provider made to a request before the model saw it."""

    #: The provider's word for it: "clear_tool_uses_20250919", "thinking_dropped", "compaction".
    kind: str
    #: The changed part as the provider names it: a path in the request, or the id of an item.
    place: str = ""
    reason: str = ""
    #: Number of changed blocks, turns or tool calls, and their tokens, if the provider reports them.
    count: int = 1
    tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Tokens of a request as its provider reports them, and the changes it made to the request."""

    #: Tokens of the whole request, cached or not.
    input_tokens: int
    #: Tokens of these that were read from its prompt cache, and that were written to it.
    cached_tokens: int = 0
    written_tokens: int = 0
    #: Why no more were read, or None if the answer does not report it.
    diagnosis: Diagnosis | None = None
    #: Its changes to the request, in order.
    edits: tuple[ServerEdit, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """The first message of a prompt that differs from the previous prompt."""

    #: Its index among the messages; their number if the prompt ends before it.
    index: int
    role: Role | None
    #: Path of the scope it came from.
    path: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CachePrediction:
    """The part of a prompt that its provider can read from the prompt cache after an earlier prompt."""

    #: Tokens read by the provider's rules: it reads no short prefix, and some providers only read in steps.
    predicted_tokens: int = 0
    #: Raw tokens of the common beginning of both prompts, tools and frame included.
    shared_tokens: int = 0
    #: None if the earlier prompt is the beginning of this one, or if there is no earlier prompt.
    first_change: Change | None = None
    #: Description of that change.
    reason: str = ""
    #: Name of the provider's cache, if a cache hint set one.
    key: str = ""
    #: Raw tokens of the whole request.
    total_tokens: int = 0
    #: Whether there was an earlier prompt to compare with, and the first part of the request that differs from it, or
    #: None if the earlier prompt is the beginning of this one.
    compared: bool = False
    changed: Changed | None = None

    def paid(self, cached: float = 0.1, write: float = 1.0) -> float:
        """Return the cost of the request, in units of one token of uncached input.

        `cached` is the price of a token that is read from the cache, and `write` the price of every other token, which
        is written to it; `codec.rates` has the prices of the model.
        """
        return cached * self.predicted_tokens + write * (self.total_tokens - self.predicted_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """The raw tokens of a request by use, as the codec counts them."""

    #: Text of the caller with the role of the system or the developer, and all other text of the caller.
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
    #: The mode in which it was shown; in `block` all of its text was withheld.
    mode: Privacy
    #: Number of removed texts by kind.
    kinds: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The planner's decision about one candidate, and the rule that made it."""

    id: str
    version: int
    included: bool
    #: Name of the rule that decided, such as "latest", "score", "budget", "replaced".
    rule: str
    source: Source | None = None
    relevance: float = 0.0
    #: Amount that the markers add, as a share of the best relevance.
    boost: float = 0.0
    score: float = 0.0
    #: Amount that each signal adds to the relevance, by name.
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
    """A sent request in the log of renders: numbers and ids, without text."""

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
    #: The codec's count of the whole request, and the upper bound that was compared with the budget.
    tokens: int
    upper_bound: int
    messages: int
    #: Number of candidates and messages that were left out.
    left_out: int
    use: Use
    #: The part that the provider can read from its cache after the previous render; None if nothing is cached.
    cache: CachePrediction | None
    #: Its cost in tokens of uncached input, and the part of that cost that is due to a broken cache.
    paid: int
    lost: int
    #: Id of the render it is compared with: the previous one of the same kind.
    previous: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderBlock:
    """One message of a request that was sent."""

    #: Its index in the request, from 0.
    place: int
    role: Role
    #: A field of `Use`: "system", "written", "history", "recalled", "pins".
    part: str
    path: str
    tokens: int
    rendition: str
    #: Ids of the entries whose text it shows, and the versions of the first and last one; 0 for text of the caller.
    sources: tuple[str, ...]
    first: int
    last: int
    #: Change since the previous render: "same" up to the first change, then "moved" or "added"; "removed" for messages
    #: of the previous render only.
    change: str
    #: The caller's text, or the current text of the log; None if the content is gone.
    text: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderDetails(LoggedRender):
    """A sent request with its messages, the reason for each of them, and the entries that were left out."""

    blocks: Sequence[RenderBlock]
    #: Messages of the previous render that are not in this one.
    removed: Sequence[RenderBlock]
    verdicts: Sequence[Verdict]
    #: Beginnings of the entries that were left out, by id, with the current text of the log.
    previews: Mapping[str, str]
    #: The steps taken to make it fit: path, strategy, tokens before and after.
    steps: Sequence[Mapping[str, Json]]
    #: Number of texts that were redacted, by entry and by kind.
    redactions: Mapping[str, Mapping[str, int]]
    #: The request as it was sent to the provider, with system text and tools; None if it cannot be shown.
    payload: Mapping[str, Json] | None = None
    #: How `payload` differs from the sent request, or why it is None; "" if it is identical byte for byte.
    payload_note: str = ""


# ── paragraphs ────────────────────────────────────────────────────────────────────────────────────────────────────────

SEPARATOR = "\n\n"
"""Separator between two paragraphs."""

_SESSION = r", (?:session [^\n]{1,255}?|this session)"
_HEADING = re.compile(rf"([^\n:]{{1,300}}?)((?:, \d{{4}}-\d\d-\d\d)?(?:{_SESSION})?): ")
"""Heading of a paragraph; its groups are the speaker, and the day and session."""
_SPEAKERS = (*(role.value for role in Role), "fact", "summary", "tool call")


def prefix_speaker(speaker: str | None, content: str) -> str:
    """Return a text after the name of its speaker."""
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

    `place` names the session. Lines of the content that begin like such a paragraph are quoted. With an empty `speaker`
    the content has no heading; with None it is not quoted either.
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
    """Yield the paragraphs, without day and session if the previous paragraph has the same ones."""
    previous = ""
    for paragraph in paragraphs:
        match = _HEADING.match(paragraph)
        day_and_session = match[2] if match else ""
        if match and day_and_session and day_and_session == previous:
            speaker = match[1]
            yield f"{speaker}: {paragraph[match.end() :]}"
        else:
            yield paragraph
        previous = day_and_session


# ── escaping of texts ─────────────────────────────────────────────────────────────────────────────────────────────────
# A text must neither close the tag around it nor imitate another speaker, in any spelling. So characters are compared
# by their appearance: NFKC and case are folded, and invisible characters are ignored.

BREAKS = r"\n\r\v\f\x1c-\x1e\x85\u2028\u2029"
"""Characters that end a line, inside a class of a regular expression."""

OPENING = "<\uff1c\ufe64"
"""Characters that look like the opening bracket of a tag."""

_OPENING_BRACKET = re.compile(f"[{OPENING}]")
_SLASHES = dict.fromkeys("\u2044\u2215\u29f8", "/")
_INVISIBLE_CHARACTERS = frozenset("\u115f\u1160\u2800\u3164\uffa0")
"""Invisible characters that Unicode classifies as letters or symbols."""
_INVISIBLE_CATEGORIES = ("Cc", "Cf", "Mn", "Me")
"""Unicode categories of characters that are invisible alone."""

_COLONS = ":\uff1a\ufe55\ufe13\u2236\ua789"
_LINE_WITH_COLON = re.compile(rf"(?<=[{BREAKS}])(?=([^{BREAKS}{_COLONS}]+)[{_COLONS}])")
"""Start of a line; its group is the line up to the first colon."""
MAX_HEADING_CHARS = 120
"""Visible characters of a line before its colon above which it cannot begin with a speaker."""


@lru_cache(maxsize=4096)
def fold_character(char: str) -> str:
    """Fold a character to its appearance: "" for an invisible one, " " for any space, lower case for letters."""
    if char.isspace():
        return " "
    if unicodedata.category(char) in _INVISIBLE_CATEGORIES or char in _INVISIBLE_CHARACTERS:
        return ""
    return unicodedata.normalize("NFKC", _SLASHES.get(char, char)).casefold()


def open_closing_tags(text: str, name: str) -> str:
    """Return a text without closing tags of a name: the opening bracket of each is removed."""
    return _replace_brackets(text, (name,), "", closing=True)


def escape_tags(text: str, names: Sequence[str]) -> str:
    """Return a text without opening and closing tags of some names: the opening bracket of each is escaped."""
    return _replace_brackets(text, names, "&lt;", closing=False)


def _replace_brackets(text: str, names: Sequence[str], replacement: str, *, closing: bool) -> str:
    """Replace the opening brackets of all tags of some names; with `closing` only those of closing tags."""

    def replace_if_tag(bracket: re.Match[str]) -> str:
        is_tag = any(_is_tag(text, bracket.end(), name, closing=closing) for name in names)
        return replacement if is_tag else bracket[0]

    return _OPENING_BRACKET.sub(replace_if_tag, text)


def _is_tag(text: str, index: int, name: str, *, closing: bool) -> bool:
    """Return whether a tag of this name continues at an index, right after its opening bracket.

    Only its slash and its name are compared, by their appearance. A closing tag must have the slash.
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
                is_longer_name = re.match(r"[\w-]", following) is not None
                return not is_longer_name
    return False


def quote_speakers(text: str, speakers: Sequence[str]) -> str:
    """Return a text with a quote prefix before each line that begins like a speaker's, except the first line."""
    return _LINE_WITH_COLON.sub(_build_line_quoter(tuple(speakers)), text)


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
    """Return the first visible characters of a text, folded, with single spaces: just over `MAX_HEADING_CHARS`."""
    if text.isprintable() and text.isascii():
        return " ".join(text.split())[: MAX_HEADING_CHARS + 1].lower()
    visible: list[str] = []
    for char in text:
        folded = fold_character(char)
        is_repeated_space = folded == " " and visible[-1:] == [" "]
        if folded and not is_repeated_space:
            visible.append(folded)
        if len(visible) > MAX_HEADING_CHARS:
            break
    return "".join(visible)
