"""Messages as the atoms of a prompt."""

from __future__ import annotations

from collections.abc import Sequence

from acms.plan.nodes import Atom
from acms.plan.tool_groups import join_answers
from acms.prompt_types import PromptMessage


def group_messages(messages: Sequence[PromptMessage]) -> list[Atom]:
    """Return messages with every tool call and its answers in one atom."""
    return join_answers([Atom((message,)) for message in messages])
