"""The resources: the session, each of its entries, and the requests built from it; and the one prompt."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, unquote

from mcp_types import (
    GetPromptResult,
    ListResourcesResult,
    Prompt,
    PromptArgument,
    PromptMessage,
    Resource,
    ResourceTemplate,
    TextContent,
)

from acms.errors import NotFoundError, PermissionDeniedError, ValidationError
from acms.log import validation
from acms.mcp.memory import Memory
from acms.mcp.tools import drop_empty_values
from acms.model import Entry, Json
from acms.nouns import encode_noun
from acms.prompt_types import LoggedRender
from acms.text import chat_messages

__all__ = [
    "JSON",
    "PROMPT",
    "TEMPLATES",
    "build_question_prompt",
    "list_session_resources",
    "read_session_resource",
]

JSON = "application/json"
SESSION = "acms://session"
_INNER = ("batch", "chainHash", "digest", "salt", "total")
"""Fields of an entry that only prove the integrity of the log."""
PAGE = 50
"""Renders in one page of resources; clients show all pages."""

_ONE = re.compile(rf"{SESSION}/(entry|render)/([^/?#]+)")

TEMPLATES = [
    ResourceTemplate(
        uri_template=f"{SESSION}/entry/{{id}}",
        name="entry",
        description="One entry of the log, whole",
        mime_type=JSON,
    ),
    ResourceTemplate(
        uri_template=f"{SESSION}/render/{{id}}",
        name="render",
        description="One request that was sent to a model: what each message shows, and what was left out",
        mime_type=JSON,
    ),
]

PROMPT = Prompt(
    name="recall",
    description="Ask a question with what memory says about it",
    arguments=[PromptArgument(name="question", description="What to ask", required=True)],
)


async def list_session_resources(memory: Memory, cursor: str | None) -> ListResourcesResult:
    """List the session, and the newest logged requests if there is a log of renders."""
    session = memory.session
    session_resource = [
        Resource(uri=SESSION, name=session.session_id, description="The session in numbers", mime_type=JSON)
    ]
    try:
        renders = await session.renders(limit=PAGE, after=cursor)
    except PermissionDeniedError:  # the key may read the session, but not its renders
        renders = []
    links = [_resource_of_render(render) for render in renders]
    return ListResourcesResult(
        resources=links if cursor else session_resource + links,
        next_cursor=renders[-1].id if len(renders) == PAGE else None,
    )


def _resource_of_render(render: LoggedRender) -> Resource:
    created_at = render.created_at.isoformat(timespec="seconds")
    return Resource(
        uri=f"{SESSION}/render/{quote(render.id, safe='')}",
        name=f"{render.kind} {created_at}",
        description=f"{render.tokens} tokens, {render.left_out} left out",
        mime_type=JSON,
    )


async def read_session_resource(memory: Memory, uri: str) -> Mapping[str, Json]:
    """Return the content of a resource; `NotFoundError` for an unknown one."""
    session = memory.session
    if uri == SESSION:
        stats = await session.get_session_stats()
        return {
            "session": session.session_id,
            "namespace": session.namespace,
            **drop_empty_values(encode_noun(stats)),
        }
    match = _ONE.fullmatch(uri)
    if match is None:
        raise NotFoundError(
            f"there is no resource {uri[:256]!r}",
            options=(SESSION, *[template.uri_template for template in TEMPLATES]),
        )
    kind, id = match[1], unquote(match[2])
    if kind == "render":
        return encode_noun(await session.sent(id))
    entry = encode_noun(await memory.entry(id), Entry)
    return drop_empty_values({name: value for name, value in entry.items() if name not in _INNER})


async def build_question_prompt(
    memory: Memory, name: str, arguments: Mapping[str, str] | None
) -> GetPromptResult:
    """Build the prompt: recalled entries for the question as delimited data, and the question."""
    if name != PROMPT.name:
        raise NotFoundError(f"there is no prompt {name[:256]!r}", options=(PROMPT.name,))
    values: Mapping[str, Any] = arguments or {}
    if not (values.get("question") or "").strip():
        raise ValidationError("is required", field="question")
    question = validation.validate_text(values["question"], "question")
    items = await memory.session.recall(question)
    recalled = await asyncio.to_thread(items.text)
    block = chat_messages.render_recalled_text(recalled)["content"] if recalled else ""
    text = f"{block}\n\n{question}" if block else question
    return GetPromptResult(messages=[PromptMessage(role="user", content=TextContent(text=text))])
