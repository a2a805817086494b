"""Prompts: requests to a model, composed from sessions, pins, tools and messages, within a token budget.

rendered = await (
    Prompt(OpenAIChat("gpt-5"))
    .system("You are the orders team's assistant.")
    .recall(session, "what did we choose for orders?", tokens=2000)
    .last(session, n=20)
    .user("Write the migration plan.")
    .render(budget=8000)
)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol, Self, cast

from acms.errors import ConfigurationError, ValidationError
from acms.knowledge import Scope as SearchScope
from acms.log import validation
from acms.model import Json, Part, Reasoning, Role, ToolResult
from acms.observability.events import Event
from acms.plan.nodes import (
    RECALL,
    SHRINKABLE,
    ComposedMessage,
    KeptEnd,
    MessageGroup,
    Node,
    Omit,
    Scope,
    Strategy,
    Truncate,
    Window,
)
from acms.ports import Codec, KVMemory, Summarizer
from acms.prompt import render as rendering
from acms.prompt import steps as contents
from acms.prompt.content import PARTS, Content, MessageContent, Recipe, steps_of, suggest_sync_import
from acms.prompt.manifest import Manifest
from acms.prompt.render import Rendered, Report, Request
from acms.prompt.selected import show_only
from acms.prompt.steps import (
    Hint,
    Inside,
    Log,
    PluginStep,
    Readable,
    RecallStep,
    SessionAtService,
    SessionOrView,
    ShrinkingContent,
    Step,
    SummarisedContent,
    WrittenMessage,
)
from acms.prompt.summaries import Summaries
from acms.prompt_types import PromptMessage, Tool
from acms.recall.request import parse_filter as parse_where

if TYPE_CHECKING:
    from acms.prompt.pins import PinRegistry

__all__ = ["Builder", "Content", "Plugin", "Prompt", "Rendered", "Report", "Request"]


_OPEN_SESSION = 'pass the session itself: ACMS("user_123", "sqlite:///memory.db")'


class Keeping(StrEnum):
    """How long a recall stays where it was shown."""

    TURNS = "turns"
    TURN = "turn"


class Plugin(Protocol):
    """Makes content at each render."""

    async def render(self, request: Request) -> Content:
        """Return the content to insert at this position of the prompt, or None for nothing.

        The plugins of one prompt run concurrently. An exception raised by one ends the render.
        """
        ...


class Builder(Recipe):
    """The steps of a prompt; `Prompt` awaits its render, that of `acms.sync` waits for it."""

    def __init__(
        self, codec: Codec | None = None, *, on_event: Callable[[Event], object] | None = None
    ) -> None:
        if codec is not None and (isinstance(codec, type) or not callable(getattr(codec, "parse", None))):
            raise ConfigurationError(
                f"{codec!r} is not a codec",
                options=("OpenAIChat(model)", "OpenAIResponses(model)", "AnthropicMessages(model)"),
            )
        super().__init__(codec)
        self._on_event = on_event

    def __repr__(self) -> str:
        binding = "unbound" if self.codec is None else f"{self.codec.name} {self.codec.model}"
        return f"<{type(self).__name__} {binding}, {len(self.steps)} steps>"

    # ── required content ────────────────────────────────────────────────────────────────────────────────────────────

    def system(self, content: MessageContent, *, name: str | None = None) -> Self:
        """Add a message of the system."""
        return self.message(Role.SYSTEM, content, name=name)

    def developer(self, content: MessageContent, *, name: str | None = None) -> Self:
        """Add a message of the developer; a provider without that role is given one of the system."""
        return self.message(Role.DEVELOPER, content, name=name)

    def user(self, content: MessageContent, *, name: str | None = None) -> Self:
        """Add a message of the user."""
        return self.message(Role.USER, content, name=name)

    def assistant(
        self,
        content: MessageContent = "",
        *,
        tool_calls: Sequence[Mapping[str, Json]] | None = None,
        reasoning: str | Reasoning | None = None,
        name: str | None = None,
    ) -> Self:
        """Add a message of the assistant; `tool_calls` as `ACMS.ingest` takes them."""
        messages = _parse_provider_content(Role.ASSISTANT, content, None)
        if messages is not None:
            content = [part for message in messages for part in message.parts]
        text, parts = _text_and_parts(content)
        message = contents.build_message(
            Role.ASSISTANT, text, parts=parts, tool_calls=tool_calls, reasoning=reasoning, name=name
        )
        return self._with_steps(WrittenMessage(message))

    def tool(self, call_id: str, output: str, is_error: bool = False) -> Self:
        """Add the answer to a tool call; it is shown together with the call, wherever that stands."""
        result = ToolResult(call_id, output, bool(is_error))
        return self._with_steps(WrittenMessage(contents.build_message(Role.TOOL, parts=[result])))

    def message(self, role: str | Role, content: MessageContent, *, name: str | None = None) -> Self:
        """Add a message of any role; the content is a text, a list of parts, or one in a provider's form."""
        messages = _parse_provider_content(role, content, name)
        if messages is None:
            text, parts = _text_and_parts(content)
            messages = [contents.build_message(role, text, parts=parts, name=name)]
        return self._with_steps(*map(WrittenMessage, messages))

    # ── shrinkable content ──────────────────────────────────────────────────────────────────────────────────────────

    def history(
        self,
        content: Content,
        *,
        only: Iterable[str] | None = None,
        first: Iterable[str] = (),
        priority: int = SHRINKABLE,
    ) -> Self:
        """Add the newest messages of a session, or of other content, that fit; a text alone is refused.

        The last message is always shown, and cut if it does not fit whole.

        When space is short, the first message moves in large steps, so that most requests begin with the same message
        and hit the provider's cache. Leading system messages of a log stay in front.

        For a session, `only` lists the ids of the entries to show; all others can be recalled. `first` lists entries
        that also stay in front, regardless of their age. Raises `FitError` if they leave no space for the newest
        message.
        """
        _refuse_text_as_log(content)
        if only is not None or first:
            content = self._select_entries(content, only, first)
        return self._with_shrinking("history", content, Window(), priority)

    def _select_entries(self, content: Content, only: Iterable[str] | None, first: Iterable[str]) -> Content:
        """Return a prompt that shows only some entries of a session (`only`), some of them in front (`first`)."""
        prompt, steps = self._read_content(content, "content")
        session = steps[0].session if len(steps) == 1 and isinstance(steps[0], Log) else None
        if session is None or isinstance(session, SessionAtService):
            raise ValidationError(
                "only and first need the history of one session of this process",
                field="content",
                options=("pass history(session, …) a session of this process",),
            )
        front = tuple(validation.validate_ids(first, "first"))
        if only is not None:
            session = show_only(session, {*validation.validate_ids(only, "only"), *front})
        return type(self)(prompt.codec)._with_steps(Log(session, first=front))

    def last(self, content: Content, n: int, *, priority: int = SHRINKABLE) -> Self:
        """Add the last n messages of a session, or of other content; a text alone is refused.

        If the first of them belongs to a tool call and its results, all of these are shown. If space is short, fewer
        than n are shown: as many as fit. `history` moves its start in larger steps, so the provider's cache is hit more
        often.
        """
        _refuse_text_as_log(content)
        n = validation.validate_integer(n, "n", minimum=1)
        return self._with_shrinking("last", content, Window(slack=0.0), priority, newest=n)

    def truncate(
        self,
        content: Content,
        tokens: int,
        *,
        keep: str | KeptEnd = KeptEnd.END,
        priority: int = SHRINKABLE,
        role: str | Role = Role.USER,
    ) -> Self:
        """Add a content with at most `tokens` tokens, and fewer when space is short.

        Whole messages are removed first, from the end that is not kept; the last one is cut. `role` is the role of
        plain texts.
        """
        cap = validation.validate_integer(tokens, "tokens", maximum=validation.BUDGET)
        strategy = Truncate(cap, validation.parse_choice(keep, KeptEnd, "keep"))
        return self._with_shrinking("truncate", content, strategy, priority, role=role)

    def omit(self, content: Content, *, priority: int = SHRINKABLE, role: str | Role = Role.USER) -> Self:
        """Add a content that is left out as a whole when space is short; `role` is the role of plain texts."""
        return self._with_shrinking("omit", content, Omit(), priority, role=role)

    def summary(
        self,
        content: Content,
        *,
        id: str,
        store: KVMemory | Inside,
        summarizer: Summarizer | None = None,
        tokens: int = 400,
        priority: int = SHRINKABLE,
        role: str | Role = Role.SYSTEM,
        pin: PinRegistry | Inside | None = None,
        metadata: Mapping[str, Json] = MappingProxyType({}),
    ) -> Self:
        """Add a content whose oldest messages are summarised when the budget is short; see `acms.prompt.summaries`.

        The summary is kept in `store` under `id`, with a record of the messages it covers. If the content has only
        grown, the summarizer reads only the new messages. The summary is stored after the prompt is rendered, and not
        if the render fails. Without a summarizer the extractive one writes it. With `pin` it is pinned too. The roles
        system and developer become user unless all covered messages have such a role.
        """
        prompt, steps = self._read_content(content, "content")
        step = SummarisedContent(
            steps,
            validation.validate_key(id, "id"),
            Summaries(self._unwrap(store), summarizer=summarizer, pin=self._unwrap(pin), metadata=metadata),
            validation.validate_integer(tokens, "tokens", minimum=1, maximum=validation.BUDGET),
            _validate_priority(priority),
            validation.parse_choice(role, Role, "role"),
        )
        return prompt._with_steps(step)

    def recall(
        self,
        session: Readable | SessionOrView | SessionAtService | Inside,
        query: str,
        *,
        tokens: int | None = None,
        budget: int | None = None,
        priority: int = RECALL,
        keep: str = "turns",
        in_place: bool = False,
        min_relevance: float = 0.0,
        exclude: Sequence[str] = (),
        scope: SearchScope | None = None,
        where: Mapping[str, Any] | None = None,
        limit: int | None = None,
        include_superseded: bool = False,
    ) -> Self:
        """Add passages of a session's past that match a query, within `tokens`; other options as for `ACMS.recall`.

        In a named namespace all its sessions are searched; `scope="session"` searches this one alone. Other sessions
        are shown whole while together they have at most 2,000 tokens and a quarter of the prompt's budget; beyond that,
        only messages above the cutoff are shown.

        Next to a `history` of the same session, the recalled text goes before the newest user message and stays there.
        Later requests grow at their end, so the provider reads the rest from its cache. They recall only content that
        they do not show yet. The positions are kept in the session's store, by ids; see
        `acms.prompt.history.cache_window`.

        With `keep="turn"`, at a past version, or without such a history, messages are selected again each time. They go
        before the newest user message, or with `in_place` where the caller put them.

        Content that the prompt already shows is not recalled. Without `tokens` (or its alias `budget`) history and
        recall share the budget: see `RecallConfig.effort`.
        """
        if tokens is not None and budget is not None:
            raise TypeError("recall() takes budget or tokens, not both: they are the same")
        max_tokens = tokens if budget is None else budget
        if max_tokens is not None:
            field = "tokens" if budget is None else "budget"
            max_tokens = validation.validate_integer(max_tokens, field, maximum=validation.BUDGET)
        if scope not in (None, "session", "namespace"):
            raise ValidationError(f"{scope!r} is not session or namespace", field="scope")
        query = validation.validate_query(query)
        options: dict[str, Any] = {
            "min_relevance": validation.validate_fraction(min_relevance, "min_relevance"),
            "exclude": _validate_excluded_ids(exclude),
            "scope": scope,
            "where": _validate_filter(where),
            "limit": None if limit is None else validation.validate_integer(limit, "limit", minimum=1),
            "include_superseded": bool(include_superseded),
        }
        step = RecallStep(
            session=_validate_session(self._unwrap(session)),
            query=query,
            tokens=max_tokens,
            priority=_validate_priority(priority),
            in_place=bool(in_place),
            keeps_position=validation.parse_choice(keep, Keeping, "keep") is Keeping.TURNS,
            options=options,
        )
        return self._with_steps(step)

    def pinned_kv(
        self,
        *,
        store: Any,
        namespace: str | None = None,
        registry: Any = None,
        max_pins: int = 20,
        strategy: str | Mapping[str, int] | None = None,
        role: str | Role = Role.DEVELOPER,
        priority: int = 1,
        format: Callable[..., str] | None = None,
        reserve: int = 0,
    ) -> Self:
        """Add the pins of a namespace as one message; see `acms.pins.PinnedKV`."""
        from acms.prompt.pins import PinnedKV

        options: dict[str, Any] = {} if strategy is None else {"strategy": strategy}
        return self.use(
            PinnedKV(
                store=self._unwrap(store),
                namespace=namespace,
                registry=self._unwrap(registry),
                max_pins=max_pins,
                role=role,
                priority=priority,
                format=format,
                reserve=reserve,
                **options,
            )
        )

    def section(
        self,
        name: str,
        content: Content | Callable[[Self], Self],
        *,
        floor: int = 0,
        ceiling: int | None = None,
        share: float | None = None,
        priority: int | None = None,
    ) -> Self:
        """Add a part with its own budget: at most `ceiling` tokens, and at most its `share` of the prompt's budget.

        Its content shrinks by its own rules, but never so far that the section has less than `floor` tokens. With a
        `priority` the section can be truncated as a whole once nothing in it can shrink further. If `content` is a
        function, it is called with an empty prompt to fill.
        """
        floor = validation.validate_integer(floor, "floor", maximum=validation.BUDGET)
        if ceiling is not None:
            ceiling = validation.validate_integer(ceiling, "ceiling", maximum=validation.BUDGET)
            if ceiling < floor:
                raise ValidationError(f"is less than the floor of {floor}", field="ceiling")
        if callable(content):
            content = _validate_prompt(content(type(self)(self.codec)), "content")
        name = validation.validate_name(name, "name")
        if "/" in name:
            raise ValidationError("must not contain a slash", field="name")
        if any(isinstance(step, ShrinkingContent) and step.name == name for step in self.steps):
            raise ValidationError(f"there is a section {name!r} already", field="name")
        prompt, steps = self._read_content(content, "content")
        strategy: Strategy | None = None
        if priority is not None:
            strategy, priority = Truncate(), _validate_priority(priority)
        if share is not None:
            share = validation.validate_fraction(share, "share")
        step = ShrinkingContent(
            name, steps, strategy, priority or 0, floor=floor, ceiling=ceiling, share=share
        )
        return prompt._with_steps(step)

    # ── composition ─────────────────────────────────────────────────────────────────────────────────────────────────

    def add(self, content: Content) -> Self:
        """Add any content as it is: a session whole, and only content that has a strategy of its own shrinks."""
        prompt, steps = self._read_content(content, "content")
        return prompt._with_steps(*steps)

    def when(self, condition: object, then: Callable[[Self], Self]) -> Self:
        """Return the result of a function of this prompt if a condition holds, else this prompt unchanged."""
        if not condition:
            return self
        prompt = then(self)
        _validate_prompt(prompt, "then")
        return prompt

    def use(self, plugin: Plugin) -> Self:
        """Add the content that a plugin returns at each render."""
        if isinstance(plugin, type | Builder) or not callable(getattr(plugin, "render", None)):
            raise ValidationError("must be an object with an async method render(request)", field="plugin")
        return self._with_steps(
            PluginStep(plugin, getattr(plugin, "name", None) or type(plugin).__name__.lower())
        )

    def raw(self, node: Node | PromptMessage) -> Self:
        """Add a message or a node of the prompt tree as it is."""
        if not isinstance(node, PromptMessage | Scope | MessageGroup | ComposedMessage):
            raise ValidationError(
                f"must be a PromptMessage, Scope, MessageGroup or ComposedMessage, not {type(node).__name__}",
                field="node",
            )
        prompt, steps = self._read_content(node, "node")
        return prompt._with_steps(*steps)

    def merge(self, *prompts: Builder) -> Self:
        """Add everything of other prompts in order, tools too; they must be bound to the same codec or to none."""
        merged = self
        for prompt in prompts:
            fragment = _validate_prompt(prompt, "prompts")
            merged = merged._bind_to_codec_of(fragment)._with_steps(*fragment.steps)
            new_tools = [tool for tool in fragment.offered if tool not in merged.offered]
            if new_tools:
                merged.offered = contents.parse_tools([*merged.offered, *new_tools])
        return merged

    def tools(self, tools: Sequence[Tool | Mapping[str, Json]]) -> Self:
        """Add functions the model may call: `Tool`, or mappings in neutral, OpenAI's or Anthropic's form."""
        prompt = self._with_steps()
        prompt.offered = contents.parse_tools([*self.offered, *contents.parse_tools(tools)])
        return prompt

    def cache_hint(self, *, id: str = "prompt", version: str = "", ttl: int | None = None) -> Self:
        """Mark the end of a prefix that the provider is asked to cache: everything before this call.

        `ttl` is in seconds. The key that goes with it carries a hash of the prefix, so a prefix that changes under the
        same version is never mistaken for the old one. Nothing recalled may stand before it.
        """
        if any(isinstance(step, Hint) and step.id == id for step in self.steps):
            raise ValidationError(f"there is a hint {id!r} already", field="id")
        id = validation.validate_name(id, "id")
        version = validation.validate_text(version, "version", limit=validation.NAME_CHARS)
        if ttl is not None:
            ttl = validation.validate_integer(ttl, "ttl", minimum=1)
        return self._with_steps(Hint(id, version, ttl))

    # ── inside ──────────────────────────────────────────────────────────────────────────────────────────────────────

    @staticmethod
    def _unwrap(value: Any) -> Any:
        """Return the object to read for a caller's session or store: itself, unless a blocking prompt unwraps it."""
        return value

    def _with_steps(self, *steps: Step) -> Self:
        """Return a copy with more steps."""
        prompt = object.__new__(type(self))
        prompt.__dict__.update(self.__dict__)
        prompt.steps = (*self.steps, *steps)
        # Nothing that moves may stand before the last cache hint.
        hints = [index for index, step in enumerate(prompt.steps) if isinstance(step, Hint)]
        if hints and any(map(contents.has_moving_content, prompt.steps[: hints[-1]])):
            raise ValidationError(
                "recalled text changes every turn and cannot be part of a cached prefix",
                field="cache_hint",
                options=("call cache_hint before recall",),
            )
        return prompt

    def _bind_to_codec_of(self, other: Recipe) -> Self:
        """Return the prompt, bound to the codec of another one if it has none; an error if their codecs differ."""
        codec = other.codec
        if codec is None or self.codec is codec:
            return self
        prompt = self._with_steps()
        if self.codec is None:
            prompt.codec = codec
        elif (self.codec.name, self.codec.model) != (codec.name, codec.model):
            raise ValidationError(
                f"is bound to {codec.name} {codec.model}, this prompt to {self.codec.name} {self.codec.model}",
                field="prompts",
                options=("build reusable parts with Prompt(), without a codec",),
            )
        return prompt

    def _with_shrinking(
        self,
        name: str,
        content: Content,
        strategy: Strategy,
        priority: int,
        *,
        newest: int | None = None,
        role: str | Role = Role.USER,
    ) -> Self:
        """Return a copy with a content that shrinks by a strategy; `role` is that of a plain text."""
        if isinstance(content, str):
            content = contents.build_message(role, content)
        prompt, steps = self._read_content(content, "content")
        if isinstance(strategy, Window) and any(map(contents.has_moving_content, steps)):
            raise ValidationError(
                "is recalled after the messages and cannot be placed among them",
                field="content",
                options=("call recall on the prompt itself",),
            )
        return prompt._with_steps(
            ShrinkingContent(name, steps, strategy, _validate_priority(priority), newest=newest)
        )

    def _read_content(self, content: object, field: str) -> tuple[Self, tuple[Step, ...]]:
        """Return this prompt, bound to the codec of prompts inside the content, and the content as checked steps."""
        nested_prompts: list[Recipe] = []
        steps = steps_of(self._unwrap(content), field, nested_prompts)
        prompt = self
        for nested in nested_prompts:
            prompt = prompt._bind_to_codec_of(nested)
        return prompt, tuple(steps)


class Prompt(Builder):
    """Build a prompt step by step: every method returns a new prompt, and nothing is read before `render`.

    The order of calls is the order of the prompt, except that recalled content goes before the newest user message.
    Content written by the caller is required. Content given to `history`, `last`, `truncate`, `omit`, `summary`,
    `recall` and `pinned_kv` shrinks when the budget is short, the highest priority number first.

    A prompt is bound to one codec. A prompt without a codec is a fragment, to be passed to other prompts or merged into
    them.
    """

    async def render(
        self,
        budget: int | None = None,
        *,
        after: Rendered | Manifest | None = None,
        on_event: Callable[[Event], object] | None = None,
    ) -> Rendered:
        """Return the request for the provider, with a reason for everything in it; no budget includes everything.

        The whole request is within the budget by the codec's own count, including roles, ids and tools. `after` is an
        earlier `Rendered` or its manifest, from which the part of this request that the provider can read from its
        cache is predicted. Raises `FitError` when the required content does not fit, `ValidationError` for an invalid
        budget, and any error of a store or plugin. The same prompt may be rendered many times concurrently.

        A prompt that reads sessions at a service is rendered by that service, which also emits its events. All of its
        sessions must come from one client, it needs a budget, and its content must be sendable; `ValidationError` names
        content that cannot be sent.
        """
        return await rendering.render_steps(
            self.steps,
            self.codec,
            budget,
            tools=self.offered,
            read_content=lambda content: self._read_content(content, "plugin")[1],
            after=after,
            listeners=[listener for listener in (self._on_event, on_event) if listener is not None],
        )


def _parse_provider_content(
    role: str | Role, content: MessageContent, name: str | None
) -> list[PromptMessage] | None:
    """Return the messages for a content in a provider's form; None for a text and for parts."""
    if not isinstance(content, list | tuple) or all(isinstance(item, PARTS) for item in content):
        return None
    message: dict[str, Any] = {"role": validation.parse_choice(role, Role, "role"), "content": content}
    if name is not None:
        message["name"] = name
    return contents.parse_message_mapping(message, "")


def _text_and_parts(content: MessageContent) -> tuple[str, list[Part] | None]:
    """Return the text and the parts of a message's content: a text, a list of parts, or a single part."""
    if isinstance(content, str):
        return content, None
    if isinstance(content, PARTS):
        return "", [content]
    if not isinstance(content, Sequence) or isinstance(content, bytes | bytearray):
        raise validation.content_type_error(content, "content")
    return "", list(cast("Sequence[Part]", content))


def _validate_session(value: object) -> Readable:
    """Return a session or view, of this process or of a service; `ValidationError` for anything else."""
    session = contents.find_readable(value)
    if session is not None:
        return session
    sync_import = suggest_sync_import(value)
    if sync_import:
        raise ValidationError(
            "this is a session of acms.sync: use Prompt of acms.sync with it",
            field="session",
            options=sync_import,
        )
    raise ValidationError(
        f"must be a session or a view, not {type(value).__name__}", field="session", options=(_OPEN_SESSION,)
    )


def _refuse_text_as_log(content: object) -> None:
    """Raise `ValidationError` for a text where messages are expected: most likely it is the name of a session."""
    if isinstance(content, str):
        raise ValidationError(
            "must be a session, a list of messages or a prompt, not a text",
            field="content",
            options=(_OPEN_SESSION, "user(text) adds a message of the user"),
        )


def _validate_excluded_ids(exclude: object) -> tuple[str, ...]:
    if isinstance(exclude, str) or not isinstance(exclude, Iterable):
        kind = "string" if isinstance(exclude, str) else type(exclude).__name__
        raise ValidationError(f"must be a list of ids, not a {kind}", field="exclude")
    return tuple(exclude)


def _validate_filter(where: Mapping[str, Any] | None) -> Any:
    if where is not None:
        parse_where(where)
    return dict(where) if isinstance(where, Mapping) else where


def _validate_prompt(value: object, field: str) -> Builder:
    if not isinstance(value, Builder):
        raise ValidationError(f"must be a Prompt, not {type(value).__name__}", field=field)
    return value


def _validate_priority(value: object) -> int:
    return validation.validate_integer(value, "priority", maximum=1_000_000)
