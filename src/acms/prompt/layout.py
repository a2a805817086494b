"""Layout: what changes from turn to turn stands behind everything that does not, so that a prefix can be cached."""

from __future__ import annotations

from collections.abc import Sequence

from acms.model import Role, ToolCall
from acms.plan.nodes import Placed


def laid_out(placed: Sequence[Placed]) -> tuple[Placed, ...]:
    """Return messages with those that move behind the last one that does not, each kind in its order.

    Messages of an assistant that end the prompt without a tool call stay last: the model goes on writing them.
    """
    stable = [one for one in placed if not one.moves]
    moving = [one for one in placed if one.moves]
    if not moving:
        return tuple(placed)
    end = len(stable)
    while end and _begins_answer(stable[end - 1]):
        end -= 1
    while 0 < end < len(stable) and stable[end - 1].atom == stable[end].atom:
        end += 1
    return (*stable[:end], *moving, *stable[end:])


def _begins_answer(one: Placed) -> bool:
    message = one.message
    return message.role is Role.ASSISTANT and not any(isinstance(part, ToolCall) for part in message.parts)
