"""Speed of selection, and what it finds: profile `quality` against `published`.

    python benchmarks/selection.py                              # made-up candidates, about half a minute
    python benchmarks/selection.py --json
    python benchmarks/selection.py --data ../shared/data        # real conversations, a few minutes

Speed: candidates as providers make them (three in four with other renditions), at 1,000 and 10,000. Wall and processor
time of one `select` in milliseconds; on a busy machine the second says more. Counting the tokens of texts is left out
of both and shown beside them: it depends on the tokenizer and on how much providers send. "render" is a whole reply
from the answers of four sources: its `planner_ms`, counting and redaction included, and the longest that it held the
event loop, garbage collections included (only on an idle machine is that of ours alone).

`--data` takes conversations with annotated evidence (see benchmarks/quality.py). Candidates are what our recall finds
for a question, with its score as relevance; entities and gaze are read off the texts. A long message also comes as a
shortened text and as a title. Figures are means over questions, in percent, at equal budgets of o200k_base tokens:

    full        share of the evidence that is shown word for word
    shown       the same, where a shorter rendition counts for its share of the tokens
    coverage    share of the gaze that the fragments cover

"judged" candidates carry the relevance, "unjudged" ones do not, as from a provider that gives none; "plain" ones have
no other renditions; among them "relevance" is the simplest choice that uses it: most relevant first, in full.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import random
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from acms import ACMS, open_storage
from acms.acs import ACS
from acms.contract import Candidate, Fragment, Layer, Lod, ProviderRequest, Variant
from acms.contract.entities import extract_entities
from acms.contract.selection import PROFILES, Selection, select_fragments
from acms.errors import ACMSError
from acms.providers.tokens import default_counter
from acms.text.tokenizer import find_sentence_spans
from acms_eval import Conversation, load
from acms_eval.retrieval import budgets_of_dataset

EVERYTHING = 1_000_000
"""The budget of a recall whose whole ranking is wanted."""
NOW = datetime(2026, 1, 1, tzinfo=UTC)


# ── speed ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def made_up(size: int, rng: random.Random) -> tuple[list[Candidate], list[str]]:
    """Return candidates as several providers might offer them, and the words they are made of, the common first."""
    vocabulary = [f"{rng.choice('bcdfgklmnprst')}{n:03x}" for n in range(2000)]
    weights = [1 / (n + 1) for n in range(len(vocabulary))]
    found: list[Candidate] = []
    for number in range(size):
        said = rng.choices(vocabulary, weights, k=rng.randint(10, 120))
        text = " ".join(said)
        variants: tuple[Variant, ...] = ()
        if number % 4:
            variants = (
                Variant(lod=Lod.MACRO, text=" ".join(said[:4]), cost_tokens=5),
                Variant(lod=Lod.MICRO, text=" ".join(said[: max(5, len(said) // 3)]), cost_tokens=20),
            )
        found.append(
            Candidate(
                id=f"item:{number}",
                source=rng.choice((Layer.L1, Layer.L2, Layer.L4)),
                lod=Lod.ATOMIC,
                text=text,
                entities=tuple(dict.fromkeys(said))[:12],
                cost_tokens=len(said),
                timestamp=NOW - timedelta(hours=rng.expovariate(1 / 300)),
                citations=("a", "b")[: rng.randrange(3)],
                variants=variants,
                relevance=rng.betavariate(1, 5) if number % 2 else None,
            )
        )
    return found, vocabulary


def speed(size: int, rounds: int) -> dict[str, Any]:
    """Return what a selection among so many candidates takes, by profile."""
    rng = random.Random(size)
    candidates, vocabulary = made_up(size, rng)
    gazes = [rng.sample(vocabulary[:200], 8) for _ in range(rounds)]
    counter = default_counter().count
    counter("the first count reads the vocabulary")
    texts = [text for one in candidates for text in (one.text, *(other.text for other in one.variants))]
    start = time.process_time()
    counts = {text: counter(text) for text in texts if text is not None}
    found: dict[str, Any] = {"counting": {"cpu": folded([time.process_time() - start])}}
    for profile in PROFILES:
        wall: list[float] = []
        cpu: list[float] = []
        for gaze in gazes:
            wall_from, cpu_from = time.perf_counter(), time.process_time()
            select_fragments(
                candidates,
                gaze=gaze,
                tokens_max=4000,
                now=NOW,
                count=counts.__getitem__,
                profile=profile,
            )
            wall.append(time.perf_counter() - wall_from)
            cpu.append(time.process_time() - cpu_from)
        found[profile] = {"wall": folded(wall), "cpu": folded(cpu)}
    return found


SOURCES = 4


class Offers:
    """A source that offers what it was given, as it would come off a wire."""

    layer = "L2"
    deadline_ms = 60_000

    def __init__(self, name: str, candidates: Sequence[Candidate]) -> None:
        self.name = name
        self._wire = [on_the_wire(one) for one in candidates]

    async def search(self, request: ProviderRequest) -> dict[str, Any]:
        return {"request_id": request.request_id, "candidates": self._wire, "latency_ms": 1}


def on_the_wire(one: Candidate) -> dict[str, Any]:
    """Return a candidate as JSON."""
    assert one.timestamp is not None
    return {
        "id": one.id,
        "source": "L2",
        "lod": one.lod.value,
        "text": one.text,
        "entities": list(one.entities),
        "cost_tokens": one.cost_tokens,
        "timestamp": one.timestamp.isoformat(),
        "citations": list(one.citations),
        "variants": [{"lod": v.lod.value, "text": v.text, "cost_tokens": 0} for v in one.variants],
        "relevance": one.relevance,
    }


async def whole(size: int, rounds: int) -> dict[str, Any]:
    """Return what a whole reply takes from answers of several sources, and how long it holds the event loop.

    "planner" is what the reply says of itself, counting and redaction included. "held" is the longest that another task
    waited for its turn, in each render: in wall time, and in processor time of this process, which a busy machine does
    not raise.
    """
    rng = random.Random(size)
    candidates, vocabulary = made_up(size, rng)
    acs = ACS([Offers(f"s{n}", candidates[n::SOURCES]) for n in range(SOURCES)])
    planner: list[float] = []
    wall: list[float] = []
    cpu: list[float] = []
    for number in range(rounds + 1):
        waits: list[tuple[float, float]] = []
        done = asyncio.Event()

        async def watch(waits: list[tuple[float, float]] = waits, done: asyncio.Event = done) -> None:
            while not done.is_set():
                wall_from, cpu_from = time.perf_counter(), time.process_time()
                await asyncio.sleep(0)
                waits.append((time.perf_counter() - wall_from, time.process_time() - cpu_from))

        body = {
            "version": "v0",
            "id": "6f3b6f21-7a5f-4e3f-9af0-1b2c3d4e5f60",
            "request_id": f"r{number}",
            "intent": " ".join(rng.sample(vocabulary[:200], 8)),
            "budgets": {"tokens_max": 4000, "time_ms": 60_000},
        }
        alone = await acs.render(body)
        watching = asyncio.create_task(watch())
        reply = await acs.render(body)
        done.set()
        await watching
        assert alone.metrics is not None
        assert reply.metrics is not None
        if number:  # the first one warms up
            planner.append(alone.metrics.planner_ms / 1000)
            wall.append(max(waits)[0])
            cpu.append(max(one for _, one in waits))
    return {"planner": folded(planner), "held": folded(wall), "held, cpu": folded(cpu)}


def folded(samples: Sequence[float]) -> dict[str, float]:
    """Return median, 95th percentile and the most, in milliseconds."""
    ordered = sorted(samples)
    return {
        "p50": round(1000 * statistics.median(ordered), 2),
        "p95": round(1000 * ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))], 2),
        "max": round(1000 * ordered[-1], 2),
    }


# ── evidence ────────────────────────────────────────────────────────────────────────────────────────────────────────

LONG = 60
"""Tokens from which on a message also comes shortened."""
TITLE = 10
"""Words of a title."""
KINDS = ("judged", "unjudged", "judged, plain")


class Counted:
    """Counts the tokens of texts, each once."""

    def __init__(self) -> None:
        self._count = default_counter().count
        self._known: dict[str, int] = {}

    def __call__(self, text: str) -> int:
        found = self._known.get(text)
        if found is None:
            found = self._known[text] = self._count(text)
        return found


def shortened(text: str, asked: frozenset[str], most: int, count: Callable[[str], int]) -> str:
    """Return the sentences that name most of what is asked for, in their order, within so many tokens."""
    sentences = [text[start:end].strip() for start, end in find_sentence_spans(text)]
    names = [asked.intersection(extract_entities(one)) for one in sentences]
    kept: set[int] = set()
    left = most
    for place in sorted(range(len(sentences)), key=lambda place: (-len(names[place]), place)):
        cost = count(sentences[place])
        if cost <= left:
            kept.add(place)
            left -= cost
    return " […] ".join(sentences[place] for place in sorted(kept))


def offered(
    texts: Sequence[str],
    about: Sequence[tuple[str, ...]],
    times: Sequence[datetime],
    ranked: Sequence[tuple[int, float]],
    gaze: Sequence[str],
    count: Callable[[str], int],
) -> list[Candidate]:
    """Return what was recalled as candidates."""
    asked = frozenset(gaze)
    found: list[Candidate] = []
    for index, score in ranked:
        text, variants = texts[index], list[Variant]()
        if (size := count(text)) >= LONG:
            variants.append(Variant(lod=Lod.MACRO, text=" ".join(text.split()[:TITLE]), cost_tokens=0))
            if short := shortened(text, asked, size // 3, count):
                variants.append(Variant(lod=Lod.MICRO, text=short, cost_tokens=0))
        found.append(
            Candidate(
                id=str(index),
                source=Layer.L4,
                lod=Lod.ATOMIC,
                text=text,
                entities=about[index],
                timestamp=times[index],
                variants=tuple(variants),
                relevance=min(1.0, score),
            )
        )
    return found


def of_kind(kind: str, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return the candidates as one kind of provider would offer them."""
    if kind == "unjudged":
        return [replace(one, relevance=None) for one in candidates]
    if kind == "judged, plain":
        return [replace(one, variants=()) for one in candidates]
    return list(candidates)


def by_relevance(candidates: Sequence[Candidate], tokens: int, count: Callable[[str], int]) -> Selection:
    """Return what the simplest choice would be: in full, most relevant first, passing over what does not fit."""
    left, found = tokens, list[Fragment]()
    for one in sorted(candidates, key=lambda one: -(one.relevance or 0)):
        if one.text is not None and (cost := count(one.text)) <= left:
            left -= cost
            found.append(
                Fragment(id=one.id, lod=one.lod, text=one.text, entities=one.entities, cost_tokens=cost)
            )
    return Selection(fragments=tuple(found), used_tokens=tokens - left)


def figures(
    chosen: Selection, gold: frozenset[int], texts: Sequence[str], count: Callable[[str], int]
) -> dict[str, float]:
    """Return the figures of one selection, in [0, 1]."""
    full = shown = 0.0
    for fragment in chosen.fragments:
        if (index := int(fragment.id)) in gold:
            full += fragment.lod is Lod.ATOMIC
            shown += min(1.0, fragment.cost_tokens / max(1, count(texts[index])))
    found = {"full": full / len(gold), "shown": shown / len(gold)}
    if chosen.coverage is not None:
        found["coverage"] = chosen.coverage
    return found


async def asked(
    conversation: Conversation, every: int, count: Callable[[str], int]
) -> list[tuple[list[Candidate], tuple[str, ...], frozenset[int]]]:
    """Tell a session a conversation; return for each question its candidates, its gaze and its evidence."""
    found: list[tuple[list[Candidate], tuple[str, ...], frozenset[int]]] = []
    async with ACMS("evaluation", open_storage("memory://"), None) as session:
        told: dict[str, int] = {}
        for said in conversation.said:
            id = await session.ingest(said.role, said.text, actor_id=said.speaker, created_at=said.created_at)
            told[id] = len(told)
        await session.wait_pending()
        texts = lines(conversation)
        about = [extract_entities(text) for text in texts]
        times = [said.created_at for said in conversation.said]
        questions = [one for one in conversation.questions if one.gold and one.answerable]
        for question in questions[::every]:
            items = await session.recall(
                question.text, token_budget=EVERYTHING, include_current_episode=False
            )
            ranked = [(told[item.id], item.score) for item in items if item.id in told]
            gaze = extract_entities(question.text)
            found.append((offered(texts, about, times, ranked, gaze, count), gaze, question.gold))
    return found


def lines(conversation: Conversation) -> list[str]:
    """Return the messages as they are shown."""
    return [f"{said.speaker or said.role}: {said.text}" for said in conversation.said]


async def evidence(conversations: Sequence[Conversation], every: int) -> dict[str, Any]:
    """Return the means in percent by set, kind, profile and budget."""
    sums: defaultdict[tuple[str, str, str, int, str], list[float]] = defaultdict(list)
    for conversation in conversations:
        count = Counted()
        texts = lines(conversation)
        now = max(said.created_at for said in conversation.said)
        for candidates, gaze, gold in await asked(conversation, every, count):
            for kind in KINDS:
                those = of_kind(kind, candidates)
                for profile in PROFILES:
                    for budget in budgets_of_dataset(conversation.dataset):
                        chosen = select_fragments(
                            those, gaze=gaze, tokens_max=budget, now=now, count=count, profile=profile
                        )
                        for name, value in figures(chosen, gold, texts, count).items():
                            sums[conversation.dataset, kind, profile, budget, name].append(value)
            for budget in budgets_of_dataset(conversation.dataset):
                chosen = by_relevance(candidates, budget, count)
                found_full = figures(chosen, gold, texts, count)["full"]
                sums[conversation.dataset, KINDS[-1], "relevance", budget, "full"].append(found_full)
        if sys.stderr.isatty():
            print(f"{conversation.dataset} {conversation.name}", file=sys.stderr)
    found: dict[str, Any] = {}
    for (dataset, kind, profile, budget, name), values in sums.items():
        by_kind = found.setdefault(dataset, {"questions": len(values)}).setdefault(kind, {})
        at = by_kind.setdefault(profile, {}).setdefault(str(budget), {})
        at[name] = round(100 * statistics.fmean(values), 1)
    return found


# ── the page ────────────────────────────────────────────────────────────────────────────────────────────────────────


def page(document: dict[str, Any]) -> Iterator[str]:
    """Return the lines to print."""
    for size, profiles in document.get("speed", {}).items():
        yield f"{int(size):,} candidates, milliseconds"
        for name, measures in profiles.items():
            cells = (
                f"{kind} {key} {value:8.2f}"
                for kind, found in measures.items()
                for key, value in found.items()
            )
            yield f"  {name:10} {'   '.join(cells)}"
    for dataset, kinds in document.get("evidence", {}).items():
        yield f"\n{dataset}: {kinds['questions']} questions"
        for kind in KINDS:
            for name in ("full", "shown", "coverage"):
                if name == "shown" and kind.endswith("plain"):
                    continue
                for profile, by_budget in kinds[kind].items():
                    if not all(name in at for at in by_budget.values()):
                        continue
                    cells = "  ".join(f"{budget:>6}: {at[name]:5.1f}" for budget, at in by_budget.items())
                    yield f"  {kind:14} {name:9} {profile:10} {cells}"


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", type=int, nargs="+", default=[1000, 10_000], metavar="N")
    parser.add_argument("--rounds", type=int, default=60, help="selections of each size")
    parser.add_argument("--data", type=Path, nargs="+", metavar="PATH", help="measure evidence instead")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="ask every nth question only")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    document: dict[str, Any] = {"python": platform.python_version()}
    if options.data:
        try:
            conversations = [one for path in options.data for one in load(path)]
        except ACMSError as error:
            raise SystemExit(str(error)) from error
        document["evidence"] = asyncio.run(evidence(conversations, options.every))
    else:
        document["speed"] = {
            str(size): {**speed(size, options.rounds), "render": asyncio.run(whole(size, options.rounds))}
            for size in options.sizes
        }
    if options.json:
        print(json.dumps(document, indent=2))
    else:
        print("\n".join(page(document)))


if __name__ == "__main__":
    main()
