"""Aim: what a query is about, apart from how it wants to be answered, and whose words it asks for.

"Can you list the order in which I brought up different aspects of the budget throughout our conversations? Mention only
five." is about the budget: every other word would find messages that list, order and mention. These are English rules;
a query in another language is about all of its words.
"""

from __future__ import annotations

import re
from functools import lru_cache

from acms.text.tokenizer import term, words

_ASKS = r"(?:please )?(?:can|could|would|will) you (?:please )?"
_TELLS = (
    r"(?:please )?(?:(?:give|show|tell|walk|remind|provide|help) (?:me|us)|provide|list|summari[sz]e|describe|explain"
    r"|recap|outline)(?= )(?: (?:through|with|of|about|in order))*"
    r"(?:(?: an?| the)?(?: (?:brief|clear|complete|comprehensive|detailed|full|quick|short|thorough))*"
    r" (?:account|history|list|outline|overview|recap|summary|timeline)(?: of)?)?"
    r"(?: everything we(?:'ve|\u2019ve| have)? \w+ (?:about|on))?"
)
_ORDER = (
    r"(?: ?(?:the )?(?:order|sequence) (?:in which|that|of how|how)| ?how) (?:i|we|you)"
    r" (?:brought up|covered|discussed|mentioned|raised|talked about)"
    r"(?: (?:the )?(?:different|various) (?:\w+ )?(?:aspects|concepts|elements|parts|points|stages|topics)"
    r"(?: (?:of|related to|about))?)?"
)
_FRAMES = re.compile(
    rf"^\s*(?:{_ASKS}(?:{_TELLS}(?:{_ORDER})?)?|{_TELLS}(?:{_ORDER})?)(?= )"
    r"|,? (?:throughout|across|in|over|during|from) (?:all |all of )?(?:our|my|these)"
    r" (?:(?:whole|past|previous|earlier) )?(?:conversation|chat|discussion|session|message)s\b"
    r"|,? in order(?=[?.,]|$)"
    r"|(?<=[.?!]) (?:please )?(?:answer|give|include|list|mention|name|reply|respond|use)\b"
    r"[^.?!]*\bonly\b[^.?!]*[.?!]?",
    re.I,
)
"""How a query asks to be answered, and where: in what was said, where all answers are."""
_REPLIED = re.compile(
    r"\b(?:did|have|had) you\b"
    r"|\byou(?:'ve|\u2019ve|'d|\u2019d| have| had)? (?:\w+ )?"
    r"(?:\w+ed|chose|found|gave|made|meant|said|sent|showed|thought|told|wrote)\b"
    r"|\byour (?:\w+ )?(?:advice|answer|explanation|opinion|proposal|recommendation|reply|response|suggestion)s?\b",
    re.I,
)
"""How a query asks for what the one said who is to answer it."""


@lru_cache(maxsize=64)
def subject(query: str) -> str:
    """Return a query without what it says about its answer; as it is when nothing else is left."""
    rest = _FRAMES.sub("", query)
    return " ".join(rest.split()) if rest != query and any(map(term, words(rest))) else query


def of_replies(query: str) -> bool:
    """Whether a query asks for what the assistant said before: "what did you recommend?"."""
    return _REPLIED.search(query) is not None
