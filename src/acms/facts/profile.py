"""Which facts a log knows at a version."""

from __future__ import annotations

from acms.knowledge import Fact
from acms.log import facts as rules
from acms.log import read, validation
from acms.log.in_force import Cover
from acms.model import Kind
from acms.ports import StorageBackend
from acms.privacy.stage import OPEN, Stage


async def facts(
    storage: StorageBackend,
    context: str,
    at: int | None,
    *,
    subject: str | None = None,
    attribute: str | None = None,
    fact_type: str | None = None,
    history: bool = False,
    stage: Stage = OPEN,
) -> list[Fact]:
    """Return the facts in force at a version as they may leave, oldest first; with `history` the retired ones too.

    `subject` and `attribute` match as addresses do: case, articles, plurals and punctuation aside.
    """
    head = await storage.head(context)
    version = read.version_of(head, at)
    made = await storage.read(context, at=version, kinds=(Kind.FACT,))
    if not made:
        return []
    replacing = await storage.read(context, at=version, replacing=True) if head.rewrites else []
    found = stage.facts(rules.facts(made, Cover(replacing), replacing), made)
    about = rules.address(subject or "", attribute or "")
    return [
        fact
        for fact in found
        if (history or fact.retired is None)
        and (subject is None or rules.address(fact.subject, "")[0] == about[0])
        and (attribute is None or rules.address("", fact.attribute)[1] == about[1])
        and (fact_type is None or fact.fact_type == fact_type)
    ]


def check_filter(subject: str | None, attribute: str | None, fact_type: str | None) -> None:
    """Raise `ValidationError` for a filter that is not a text."""
    for field, value in (("subject", subject), ("attribute", attribute), ("fact_type", fact_type)):
        if value is not None:
            validation.text(value, field)
