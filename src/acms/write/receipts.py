"""Receipts: what each message of an append became, for whoever handed it over."""

from __future__ import annotations

from collections.abc import Sequence

from acms.model import Draft, Embedded
from acms.nouns import episode_id
from acms.results import MessageReceipt
from acms.write.queue import Delivered


def receipts_of(
    context: str,
    delivered: Delivered,
    embedded: Embedded,
    drafts: Sequence[Draft],
    versions: Sequence[int] | None,
) -> list[MessageReceipt]:
    """Return what each message became; without `versions` they follow the first of the append."""
    receipt, start = delivered.receipt, delivered.start
    found: list[MessageReceipt] = []
    for offset, draft in enumerate(drafts, start):
        position = receipt.positions[offset]
        assert position is not None  # only facts and the like have none
        one = MessageReceipt(
            message_id=receipt.ids[offset],
            version=receipt.versions[0] + offset if versions is None else versions[offset - start],
            position=position,
            chain_hash=receipt.chains[offset].hex(),
            episode_id=episode_id(context, draft.episode),
            tokens=draft.tokens,
            markers=draft.markers,
            durability=receipt.durability,
            embedded=embedded,
            repeated=receipt.repeated,
        )
        found.append(one)
    return found
