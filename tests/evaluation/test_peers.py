"""The systems beside ACMS: what each makes of a few messages, and that each answers by the same protocol."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from zlib import crc32

import numpy as np
import pytest

from acms import ConfigurationError, ProviderError, ValidationError
from acms_eval import (
    CachedEmbedder,
    MostRecent,
    PlainBM25,
    PlainVectors,
    Probe,
    Recalled,
    ReciprocalRankFusion,
    Said,
    Scenario,
    System,
    measure,
    systems,
)
from acms_eval.baselines import stem_text
from acms_eval.peers import open_gleanr

AT = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)
TEXTS = (
    "The kayak leaks at the bow.",
    "Rye bread needs a warm kitchen.",
    "We paddle on the lake behind the mill.",
    "My sister sold her kayak in April.",
    "The mill was built in 1890.",
)


class Bag:
    """An embedder that counts stems: near in meaning is what shares them."""

    dimension = 64
    model = "bag"

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        self.asked += texts
        found = np.zeros((len(texts), self.dimension))
        for row, text in enumerate(texts):
            for stem in stem_text(text):
                found[row, crc32(stem.encode()) % self.dimension] += 1
        return found.tolist()


async def tell_texts(system: System, texts: Sequence[str] = TEXTS, speaker: str | None = "Ines") -> System:
    for text in texts:
        await system.tell(Said(role="user", text=text, speaker=speaker, created_at=AT))
    await system.settle()
    return system


def indexes_by_score(items: Sequence[Recalled]) -> list[int | None]:
    return [item.index for item in sorted(items, key=lambda item: -item.score)]


@pytest.mark.parametrize(
    "name",
    [
        *("most recent window", "plain BM25", "plain vectors", "RRF", "chroma", "acms"),
        pytest.param("gleanr", marks=pytest.mark.needs("gleanr")),
    ],
)
async def test_every_system_answers_with_messages_it_was_told_within_the_budget(name: str) -> None:
    found, left_out = systems(Bag(), names=[name])
    assert not left_out
    async with found[name]() as system:
        assert system.name == name
        assert await system.ask("Whose kayak leaks?", 100) == []
        await tell_texts(system)
        items = await system.ask("Whose kayak leaks?", 10_000)
        assert len({item.index for item in items}) == len(items) > 0
        for item in items:
            assert item.index is not None
            assert TEXTS[item.index] in item.text
        assert sum(item.tokens for item in await system.ask("Whose kayak leaks?", 24)) <= 24
        confidence = getattr(system, "confidence", None)
        assert confidence is None or 0 <= confidence <= 1


async def test_the_newest_are_shown_oldest_first_and_ranked_newest_first() -> None:
    system = await tell_texts(MostRecent())
    items = await system.ask("anything", 36)
    assert [item.index for item in items] == [2, 3, 4]
    assert indexes_by_score(items) == [4, 3, 2]


def textbook_bm25(question: str, texts: Sequence[str]) -> list[float]:
    """BM25 as the formula stands, message by message."""
    counts = [list(stem_text(text)) for text in texts]
    average = sum(map(len, counts)) / len(counts)
    scores: list[float] = []
    for count in counts:
        score = 0.0
        for term in set(stem_text(question)):
            having = sum(term in other for other in counts)
            times = count.count(term)
            weight = np.log(1 + (len(counts) - having + 0.5) / (having + 0.5))
            score += weight * times * 2.2 / (times + 1.2 * (0.25 + 0.75 * len(count) / average))
        scores.append(float(score))
    return scores


async def test_bm25_is_that_of_the_textbook_after_every_message() -> None:
    system = PlainBM25()
    for count in range(1, len(TEXTS) + 1):
        await tell_texts(system, TEXTS[count - 1 : count])
        for question in ("Where is the kayak?", "the mill by the lake", "bread bread and kayaks", "snow"):
            found = {item.index: item.score for item in await system.ask(question, 1000)}
            expected = {
                place: score
                for place, score in enumerate(textbook_bm25(question, TEXTS[:count]))
                if score > 0
            }
            assert found == pytest.approx(expected)


async def test_bm25_is_as_sure_as_its_best_message_matches() -> None:
    system = PlainBM25()
    await tell_texts(system)
    await system.ask("kayak", 1000)
    some = system.confidence or 0
    await system.ask("kayak snow glacier", 1000)
    assert 0 < (system.confidence or 0) < some < 1
    await system.ask("snow", 1000)
    assert system.confidence == 0
    await system.ask("the", 1000)
    assert system.confidence == 0


async def test_what_does_not_fit_is_skipped_and_of_equals_the_oldest_comes_first() -> None:
    system = await tell_texts(PlainBM25(), ("kayak " * 40, "kayak lake", "kayak lake"))
    items = await system.ask("kayak", 20)
    assert [item.index for item in items] == [1, 2]


async def test_plain_vectors_compare_speaker_and_text_and_embed_a_message_once() -> None:
    embedder = Bag()
    system = await tell_texts(PlainVectors(embedder))
    assert embedder.asked == [f"Ines: {text}" for text in TEXTS]
    assert indexes_by_score(await system.ask("a kayak that leaks at the bow", 1000))[0] == 0
    await tell_texts(system, ["Bread again."])
    assert embedder.asked[5:] == ["a kayak that leaks at the bow", "Ines: Bread again."]
    items = await system.ask("bread", 1000)
    assert len(items) == 6  # all of them are ranked
    assert indexes_by_score(items)[0] == 5


async def test_fusion_adds_the_reciprocal_ranks_of_both() -> None:
    system = await tell_texts(ReciprocalRankFusion(Bag()))
    words_alone = indexes_by_score(await (await tell_texts(PlainBM25())).ask("the kayak in April", 1000))
    meaning = indexes_by_score(await (await tell_texts(PlainVectors(Bag()))).ask("the kayak in April", 1000))
    items = await system.ask("the kayak in April", 1000)
    for item in items:
        ranks = [ranked.index(item.index) + 1 for ranked in (words_alone, meaning) if item.index in ranked]
        assert item.score == pytest.approx(sum(1 / (60 + rank) for rank in ranks))


async def test_chroma_finds_what_plain_vectors_find() -> None:
    found, _ = systems(Bag(), names=["chroma", "plain vectors"])
    answers: list[list[tuple[int | None, float]]] = []
    async with AsyncExitStack() as stack:
        for opened in found.values():
            system = await tell_texts(await stack.enter_async_context(opened()))
            items = await system.ask("kayak on the lake", 1000)
            answers.append(sorted((item.index, round(item.score, 4)) for item in items))
    assert answers[0] == answers[1]


@pytest.mark.needs("gleanr")
async def test_a_probe_is_not_ingested_by_gleanr() -> None:
    async with open_gleanr(Bag())() as system:
        await tell_texts(system)
        for _ in range(3):
            items = await system.ask("Who has a zeppelin?", 10_000)
            assert all("zeppelin" not in item.text for item in items)
            assert {item.index for item in items} <= set(range(5))


@pytest.mark.needs("gleanr")
async def test_a_text_gleanr_refuses_is_cut_and_what_it_raises_names_it() -> None:
    async with open_gleanr()() as system:
        await tell_texts(system, ["kayak " * 20_000])
        with pytest.raises(ProviderError, match="ValidationError") as failed:
            await tell_texts(system, [""], None)
        assert failed.value.provider == "gleanr"


def test_what_is_missing_is_left_out_with_its_reason() -> None:
    found, left_out = systems()
    assert {"most recent window", "plain BM25", "acms"} <= set(found)
    assert left_out["plain vectors"] == left_out["RRF"] == "needs an embedder"
    assert not any(name.startswith("acms,") for name in found)
    if find_spec("gleanr") is None:
        assert left_out["gleanr"] == "gleanr is not installed"
        with pytest.raises(ConfigurationError, match="not installed"):
            open_gleanr()
    with pytest.raises(ValidationError, match="no known system"):
        systems(names=["acms", "oracle"])


async def test_variants_of_acms_see_no_current_episode_or_have_facts() -> None:
    found, _ = systems(names=["acms", "acms, past only", "acms, offline"])
    shown: dict[str, Sequence[Recalled]] = {}
    for name, opened in found.items():
        async with opened() as system:
            await tell_texts(system, ["My name is Ines Okafor.", *TEXTS], None)
            shown[name] = await system.ask("What is the user's name?", 1000)
            assert system.name == name
    assert any(item.current for item in shown["acms"])
    assert not any(item.current for item in shown["acms, past only"])


async def test_every_baseline_runs_a_scenario_too() -> None:
    said = tuple(Said(role="user", text=text, created_at=AT) for text in TEXTS)
    probe = Probe(question="When was the mill built?", expected=("1890",), after=5)
    found, _ = systems(Bag())
    for opened in found.values():
        async with opened() as system:
            scenario = Scenario(name="mill", said=said, probes=(probe,))
            report = await measure(scenario, system, budget=500)
            assert report.scores[0].hit


async def test_vectors_are_made_once_and_found_again_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "vectors.db"
    first = Bag()
    async with CachedEmbedder(first, path) as cached:
        assert (cached.dimension, cached.model) == (64, "bag")
        vectors = await cached.embed(["kayak", "lake", "kayak"])
        assert vectors[0] == vectors[2] == (await Bag().embed(["kayak"]))[0]
        assert await cached.embed([]) == []
        assert (first.asked, cached.embedded) == (["kayak", "lake"], 2)
    second = Bag()
    async with CachedEmbedder(second, path) as cached:
        assert await cached.embed(["lake", "kayak"]) == [vectors[1], vectors[0]]
        assert second.asked == []
    other = Bag()
    other.model = "another"
    async with CachedEmbedder(other, path) as cached:
        await cached.embed(["lake"])
        assert other.asked == ["lake"]


class Asymmetric(Bag):
    """Embeds questions in another way than passages."""

    async def embed_query(self, text: str) -> list[float]:
        return (await self.embed([f"question {text}"]))[0]


async def test_questions_are_embedded_as_questions_and_kept_apart(tmp_path: Path) -> None:
    inner = Asymmetric()
    async with CachedEmbedder(inner, tmp_path / "vectors.db") as cached:
        question, passage = await cached.embed_query("lake"), (await cached.embed(["lake"]))[0]
        assert question == await inner.embed_query("lake") != passage
        asked = len(inner.asked)
        assert await cached.embed_query("lake") == question
        assert len(inner.asked) == asked
    async with CachedEmbedder(Bag(), tmp_path / "plain.db") as cached:
        assert await cached.embed_query("lake") == (await cached.embed(["lake"]))[0]


def test_a_file_that_holds_no_vectors_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "vectors.db"
    path.write_text("this is prose, and rather more of it than a header of a database would ever take")
    with pytest.raises(ValidationError, match="no file of vectors"):
        CachedEmbedder(Bag(), path)
