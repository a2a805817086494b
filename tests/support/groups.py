"""Messages as the groups of a prompt."""

from __future__ import annotations

from collections.abc import Sequence

from acms.plan.nodes import MessageGroup
from acms.plan.tool_groups import join_answers
from acms.prompt_types import PromptMessage


def group_messages(messages: Sequence[PromptMessage]) -> list[MessageGroup]:
    """Return messages with every tool call and its answers in one group."""
    return join_answers([MessageGroup((message,)) for message in messages])
