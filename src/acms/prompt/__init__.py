"""Prompts: requests to a model, composed from sessions, pins, tools and messages, within a token budget.

The order of the calls is the order of the prompt:

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

from typing import TYPE_CHECKING

from acms.runtime.lazy import lazy_attributes

if TYPE_CHECKING:
    from acms.prompt.builder import Plugin, Prompt
    from acms.prompt.content import Content
    from acms.prompt.render import Rendered, Report, Request
    from acms.prompt_types import LoggedRender, RenderBlock, RenderDetails

__all__ = [
    "Content",
    "LoggedRender",
    "Plugin",
    "Prompt",
    "RenderBlock",
    "RenderDetails",
    "Rendered",
    "Report",
    "Request",
]

_LOGGED = ("LoggedRender", "RenderBlock", "RenderDetails")

__getattr__, __dir__ = lazy_attributes(
    __name__,
    dict.fromkeys(__all__, "acms.prompt.builder") | dict.fromkeys(_LOGGED, "acms.prompt_types"),
)
