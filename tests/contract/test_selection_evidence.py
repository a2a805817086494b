"""A guard: on a real conversation `quality` shows more of the evidence than `published` at the same budget."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

import pytest

from acms import ACMS, open_storage
from acms.contract import Candidate, Layer, Lod
from acms.contract.entities import extract_entities
from acms.contract.selection import PROFILES, select_fragments
from acms.providers.tokens import default_counter
from acms_eval import load

BUDGET = 1000
#: With the relevance of our recall and without: the least share of the evidence, and how much more than `published`, in
#: percent. Figures to quote come from benchmarks/selection.py.
FLOORS = {"judged": (84.0, 20.0), "unjudged": (57.0, 2.0)}


@pytest.mark.parametrize("every", [4, pytest.param(2, marks=pytest.mark.slow)])
async def test_quality_shows_more_evidence_than_published(data_dir: Path, every: int) -> None:
    (conversation,) = load(data_dir / "locomo-dev" / "conv-30.json")
    texts = [f"{said.speaker}: {said.text}" for said in conversation.said]
    shown: dict[tuple[str, str], list[float]] = {}
    async with ACMS("evidence", open_storage("memory://")) as session:
        told: dict[str, int] = {}
        for said in conversation.said:
            id = await session.ingest(said.role, said.text, actor_id=said.speaker, created_at=said.created_at)
            told[id] = len(told)
        await session.wait_pending()
        for question in [one for one in conversation.questions if one.gold and one.answerable][::every]:
            items = await session.recall(question.text, token_budget=1_000_000, include_current_episode=False)
            for kind in FLOORS:
                candidates = [
                    Candidate(
                        id=str(told[item.id]),
                        source=Layer.L4,
                        lod=Lod.ATOMIC,
                        text=texts[told[item.id]],
                        entities=extract_entities(texts[told[item.id]]),
                        timestamp=item.created_at,
                        relevance=min(1.0, item.score) if kind == "judged" else None,
                    )
                    for item in items
                    if item.id in told
                ]
                for profile in PROFILES:
                    chosen = select_fragments(
                        candidates,
                        gaze=extract_entities(question.text),
                        tokens_max=BUDGET,
                        now=conversation.said[-1].created_at,
                        count=default_counter().count,
                        profile=profile,
                    )
                    found = {int(one.id) for one in chosen.fragments} & question.gold
                    shown.setdefault((kind, profile), []).append(len(found) / len(question.gold))
    means = {key: 100 * fmean(values) for key, values in shown.items()}
    for kind, (floor, more) in FLOORS.items():
        assert means[kind, "quality"] > means[kind, "published"] + more, means
        assert means[kind, "quality"] > floor, means
