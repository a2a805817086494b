"""Prompts drawn at random, as Hypothesis strategies: messages as logs and builders make them, and wilder ones.

`conversations` keeps what a log keeps: calls are the assistant's, results are in messages of the role tool. Everything
that goes wrong in practice is in it: parallel calls, results that are late, out of order, twice or without a call,
calls without a result, ids used again, and texts that are empty. `wild` puts any part into any message.
"""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from acms import Media, Raw, Reasoning, Role, Text, ToolCall, ToolResult
from acms.codecs import Count, Exactness, Tool
from acms.model import Json, Part
from acms.prompt_types import CacheMark, PromptMessage
from acms.providers.tokens import default_counter
from acms.text.chat_messages import wrap_passage

_CHARACTERS = st.characters(exclude_categories=("Cc", "Cs"))
_WORDS = (
    "deploy the orders service on Friday",
    "We chose PostgreSQL.",
    "naïve café über",
    "数据库在哪里？",
    "Где база данных?",
    "👍🏽 done 🎉",
    "def f(x):\n    return {'a': x}\n",
    "<tool_result>\nnot one\n</tool_result>",
    "<|endoftext|>",
    "a\n\nb",
    " leading",
    "trailing \n",
    "   ",
    "",
)

texts: st.SearchStrategy[str] = st.one_of(st.sampled_from(_WORDS), st.text(_CHARACTERS, max_size=40))
"""What somebody said: empty, blank, in several scripts, never a control character other than a line break."""

arguments: st.SearchStrategy[str] = st.sampled_from(
    (
        "{}",
        "",
        '{"q": "orders"}',
        '{ "q" : "数据", "n": 1.50, "deep": {"a": [1, null, true]} }',
        '{"q": "\\u00e9\\/", "q": "twice"}',
        '{"n": NaN}',
        '{"half": "\\ud83d"}',
        '{"big": 123456789012345678901234567890, "small": 1e-7, "huge": 1e400}',
        '["not", "an object"]',
        '"text"',
        '{"cut": "off',
        "not JSON",
    )
)
"""Arguments of tool calls as models write them: JSON objects, other JSON, and what is none."""

call_ids: st.SearchStrategy[str] = st.sampled_from(
    (
        "call_1",
        "call_2",
        "call_3",
        "toolu_01A",
        "functions.search:0",
        "id with spaces",
        "идентификатор",
        "x" * 80,
    )
)
names: st.SearchStrategy[str | None] = st.sampled_from(
    (None, None, "sam", "Ann-Marie", "José Núñez", "team/ops")
)
tool_names: st.SearchStrategy[str] = st.sampled_from(("search", "get_weather", "run-tests"))

_REFERENCES = {
    "https://example.com/a.png": 0,
    "data:image/png;base64,iVBORw0KGgo=": 85,
    "data:application/pdf;base64,JVBERi0=": 2_000,
    "file_011CNha8iCJcU1wXNR6q4V8w": 1_200,
    "file-abc123": 0,
    "s3://bucket/key": 700,
}
_MIMES = ("image/png", "image/jpeg", "application/pdf", "text/plain", "audio/wav", "video/mp4")

media: st.SearchStrategy[Media] = st.builds(
    lambda mime, ref: Media(mime, ref, "", _REFERENCES[ref]),
    st.sampled_from(_MIMES),
    st.sampled_from(sorted(_REFERENCES)),
)
"""Media kept in every way; what one costs is stated by its reference, or not known (0)."""

raws: st.SearchStrategy[Raw] = st.sampled_from(
    (
        Raw("anthropic", '{"type":"redacted_thinking","data":"EmwKAhgBEgy3va3pzix"}'),
        Raw("openai", '{"type":"reasoning","id":"rs_1","summary":[],"encrypted_content":"gAAAAAB"}'),
        Raw("other", '{"anything":1}'),
        Raw("anthropic", "not JSON"),
        Raw("anthropic", '{"type": "compaction", "content": "They met.", "signature": "c2ln"}'),
        Raw("anthropic", '{"type": "compaction", "content": "They parted."}'),
        Raw("anthropic", '{"type":"compaction","content":null}'),
        Raw("anthropic", '{"type":"server_tool_use","id":"s_1","name":"web_search","input":{}}'),
        Raw("anthropic", '{"type":"web_search_tool_result","tool_use_id":"s_1","content":[]}'),
        Raw("anthropic", '{"type":"container_upload","file_id":"file_1"}'),
        Raw("gemini", '{"thoughtSignature":"c2ln"}'),
        Raw("gemini", '{"executableCode":{"language":"PYTHON","code":"1"}}'),
        Raw("openai-responses", '{"type":"compaction","id":"cmp_1","encrypted_content":"gAAAAAB"}'),
    )
)
reasoning: st.SearchStrategy[Reasoning] = st.builds(
    Reasoning, texts, st.sampled_from((None, "EqoBCkgIARABGAIiQL8v", "sig=="))
)


def _spoken_messages(role: Role) -> st.SearchStrategy[PromptMessage]:
    return st.builds(
        PromptMessage,
        role=st.just(role),
        parts=st.lists(st.builds(Text, texts), min_size=0, max_size=2).map(tuple),
        name=names,
    )


@st.composite
def generated_conversations(draw: st.DrawFn, max_steps: int = 8) -> list[PromptMessage]:
    """Messages as a log and a builder make them."""
    found: list[PromptMessage] = []
    open_: list[tuple[str | None, str]] = []
    for step in range(draw(st.integers(0, max_steps))):
        kind = draw(
            st.sampled_from(
                ("user", "assistant", "rules", "call", "answer", "answer", "stray", "media", "think", "past")
            )
        )
        if kind in ("user", "assistant"):
            found.append(draw(_spoken_messages(Role(kind))))
        elif kind == "rules":
            found.append(draw(_spoken_messages(draw(st.sampled_from((Role.SYSTEM, Role.DEVELOPER))))))
        elif kind == "call":
            group = draw(st.sampled_from((None, f"g{step}")))
            ids = draw(st.lists(call_ids, min_size=1, max_size=3, unique=True))
            parts: list[Part] = draw(st.lists(st.one_of(reasoning, st.builds(Text, texts)), max_size=2))
            parts += [ToolCall(one, draw(tool_names), draw(arguments)) for one in ids]
            found.append(PromptMessage(role=Role.ASSISTANT, parts=tuple(parts), group=group))
            open_ += [(group, one) for one in ids]
        elif kind == "answer" and open_:
            group, one = open_.pop(draw(st.integers(0, len(open_) - 1)))
            results = [ToolResult(one, draw(texts), draw(st.booleans()))]
            others = [at for at, (of, _) in enumerate(open_) if of == group]
            if others and draw(st.booleans()):
                results.append(ToolResult(open_.pop(others[0])[1], draw(texts)))
            found.append(PromptMessage(role=Role.TOOL, parts=tuple(results), group=group))
        elif kind == "stray":
            result = ToolResult(draw(call_ids), draw(texts), draw(st.booleans()))
            found.append(PromptMessage(role=Role.TOOL, parts=(result,)))
        elif kind == "media":
            shown = (draw(media), *draw(st.lists(st.builds(Text, texts), max_size=1)))
            found.append(PromptMessage(role=Role.USER, parts=shown))
        elif kind == "past":
            said = draw(st.lists(texts, min_size=1, max_size=3))
            recalled = "\n".join(
                [wrap_passage(draw(st.sampled_from(("m_1", "m_1 m_2"))), one) for one in said]
            )
            found.append(PromptMessage(role=Role.USER, parts=(Text(recalled),)))
        elif kind == "think":
            thought = draw(st.one_of(reasoning, raws))
            spoken = draw(st.lists(st.builds(Text, texts), max_size=1))
            found.append(PromptMessage(role=Role.ASSISTANT, parts=(thought, *spoken)))
    return [draw(_stored_message(message, at)) for at, message in enumerate(found)]


@st.composite
def tidy_conversations(draw: st.DrawFn, max_turns: int = 4) -> list[PromptMessage]:
    """Messages that any provider takes as they are: rules first, then turns, every call with its results."""
    said = st.builds(Text, texts.filter(str.strip).map(str.strip))
    calls = st.builds(ToolCall, st.just(""), tool_names, st.just('{"q": "orders"}'))
    found: list[PromptMessage] = []
    if draw(st.booleans()):
        found.append(PromptMessage(role=Role.SYSTEM, parts=(draw(said),)))
    for turn in range(draw(st.integers(1, max_turns))):
        found.append(PromptMessage(role=Role.USER, parts=(draw(said),)))
        for step in range(draw(st.integers(0, 2))):
            made = draw(st.lists(calls, min_size=1, max_size=2))
            made = [replace(call, call_id=f"call_{turn}_{step}_{at}") for at, call in enumerate(made)]
            found.append(PromptMessage(role=Role.ASSISTANT, parts=tuple(made), group=f"g{turn}_{step}"))
            results = [ToolResult(call.call_id, draw(said).text) for call in made]
            found += [PromptMessage(role=Role.TOOL, parts=(one,), group=f"g{turn}_{step}") for one in results]
        found.append(PromptMessage(role=Role.ASSISTANT, parts=(draw(said),)))
    found.append(PromptMessage(role=Role.USER, parts=(draw(said),)))
    return [draw(_stored_message(message, at)) for at, message in enumerate(found)]


def _stored_message(message: PromptMessage, at: int) -> st.SearchStrategy[PromptMessage]:
    """The message as it is, or as it comes from a log: with its source and the tokens of its text."""
    counter = default_counter()
    kept = replace(message, sources=(f"m_{at}",), tokens=counter.count(message.text), counter=counter.name)
    return st.sampled_from((message, kept))


_parts: st.SearchStrategy[Part] = st.one_of(
    st.builds(Text, texts),
    reasoning,
    st.builds(ToolCall, call_ids, tool_names, arguments),
    st.builds(ToolResult, call_ids, texts, st.booleans()),
    media,
    raws,
)

wild: st.SearchStrategy[list[PromptMessage]] = st.lists(
    st.builds(
        PromptMessage,
        role=st.sampled_from(Role),
        parts=st.lists(_parts, max_size=3).map(tuple),
        name=names,
        group=st.sampled_from((None, "g1")),
    ),
    max_size=6,
)
"""Any part in any message."""

_SCHEMAS = (
    {"type": "object"},
    {
        "type": "object",
        "properties": {"q": {"type": "string", "description": "What to look for."}},
        "required": ["q"],
    },
    {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
        },
        "required": ["city", "unit"],
        "additionalProperties": False,
    },
)


def _make_tool(name: str, description: str, parameters: dict[str, Json], strict: bool) -> Tool:
    closed = parameters.get("additionalProperties") is False
    return Tool(name=name, description=description, parameters=parameters, strict=strict and closed)


tools: st.SearchStrategy[list[Tool]] = st.lists(
    st.builds(
        _make_tool,
        tool_names,
        st.sampled_from(("", "Looks things up.", "Gets the weather of a city.")),
        st.sampled_from(_SCHEMAS),
        st.booleans(),
    ),
    max_size=3,
    unique_by=lambda tool: tool.name,
)
"""Tools that every provider takes; only those that rule out further properties are strict."""


def cache_marks(messages: int) -> st.SearchStrategy[list[CacheMark]]:
    """Up to six ends of prefixes of so many messages."""
    return st.lists(
        st.builds(
            CacheMark,
            messages=st.integers(0, messages),
            id=st.sampled_from(("prompt", "rules")),
            version=st.sampled_from(("", "v1")),
            ttl=st.sampled_from((None, 60, 300, 3600, 86_400)),
        ),
        max_size=6,
    )


def make_count(tokens: int, tools: int = 0) -> Count:
    """Return a count that a report can be compared with."""
    return Count(tokens=tokens, exactness=Exactness.CALIBRATED, upper_bound=tokens, tools=tools)
