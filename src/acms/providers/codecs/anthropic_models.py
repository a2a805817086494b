"""What is published about Claude models that a prompt depends on, as of November 2026.

Sources, all on platform.claude.com/docs: "Prompt caching" (least prefix), "Pricing" and "Tool use" (tokens of the
system prompt that comes with tools, the larger of those for `auto` and `any`), "Mid-conversation system messages",
"Errors" (prefill), "Token counting" (a newer tokenizer since Opus 4.7), "Troubleshooting thinking" (reasoning bound to
what precedes it). What is not published for a model is taken to be as in the most careful row.
"""

from __future__ import annotations

import re
from typing import NamedTuple

__all__ = ["Claude", "claude"]

OLD, NEW = 2.3, 2.4
"""Tokens of Claude for each of o200k_base, at most, until there are reports: by its earlier and its newer tokenizer.

The highest of 2 kB pieces of conversations, code and messages in fourteen languages were 2.27 (Thai) and 2.34; English
has 1.15-1.2 and 1.4-1.6, code up to 1.6 and 2.2. Measured with ctok 1.3.0, which reproduces the provider's own counts:
docs/decisions/0035-calibrated-counts.md.
"""


class Claude(NamedTuple):
    """What a prompt depends on in one family of models."""

    #: Tokens that a prefix must have to be cached.
    least: int = 4_096
    #: Tokens of the system prompt that comes with tools.
    tools: int = 804
    #: Tokens for each of o200k_base, at most and in English.
    ratio: float = NEW
    typical: float = 1.5
    #: Tokens of an image of unknown size, at most.
    image: int = 4_784
    #: Whether it goes on from a last message of the assistant.
    prefill: bool = False
    #: Whether it takes system messages behind the first message of the user.
    system: bool = False
    #: Whether reasoning can be sent back when what stood before it has changed.
    reasoning: bool = True


_4_8 = Claude(least=1_024, tools=410, system=True)
_4_5 = Claude(least=4_096, tools=588, ratio=OLD, typical=1.2, image=1_600, prefill=True)
_4 = _4_5._replace(least=1_024, tools=346)

_FAMILIES = (
    (r"(?:fable|mythos)-5-[1-9](?!\d)", Claude(least=512, system=True, reasoning=False)),
    (r"(?:fable|mythos)-5|opus-5-[1-9](?!\d)", Claude(least=512, system=True)),
    (r"opus-5", Claude(least=512, tools=410, system=True)),
    (r"mythos-preview", Claude(least=2_048)),
    (r"sonnet-5-[1-9](?!\d)", Claude(least=512)),
    (r"sonnet-5", Claude(least=1_024, tools=474)),
    (r"haiku-5", Claude()),
    (r"opus-4-8(?!\d)", _4_8),
    (r"opus-4-7(?!\d)", Claude(least=2_048)),
    (r"opus-4-6(?!\d)", _4_5._replace(tools=589, prefill=False)),
    (r"sonnet-4-6(?!\d)", _4_5._replace(least=1_024, tools=589, prefill=False)),
    (r"(?:opus|haiku)-4-5(?!\d)", _4_5),
    (r"sonnet-4-5(?!\d)", _4_5._replace(least=1_024)),
    (r"(?:opus|sonnet)-4", _4),
    (r"haiku-3|3-haiku|3-5-haiku", _4._replace(least=2_048, tools=340)),
    (r"opus-3|3-opus", _4._replace(tools=530)),
    (r"claude-3|sonnet-3", _4),
)
_DOT = re.compile(r"(?<=\d)\.(?=\d)")


def claude(model: str) -> Claude:
    """Return what is known of a model, also under the names that other platforms give it."""
    name = _DOT.sub("-", model.lower())
    for pattern, family in _FAMILIES:
        if re.search(pattern, name):
            return family
    return Claude(reasoning=False)
