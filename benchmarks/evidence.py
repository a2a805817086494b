"""How much of the annotated evidence of LoCoMo questions a recall returns, by token budget.

    python benchmarks/evidence.py --data ../shared/data/locomo-dev
    python benchmarks/evidence.py --data ../shared/data/locomo-dev --reflect

The conversations are research data (LoCoMo, snap-research, CC BY-NC 4.0) and not part of this repository: give their
folder. For each question with evidence, evidence recall is |gold ∩ recalled| / |gold|; the table shows macro means over
questions, categories 1 to 4 together and each apart (1 multi-hop, 2 temporal, 3 open-domain, 4 single-hop), and 5
(adversarial) apart. Budgets are tokens of o200k_base, frames included, hard. "default" is `recall(question)`;
"past only" is `include_current_episode=False`, which spends the whole budget on what answers the question.

With `--reflect` everything is run again with facts distilled by `OfflineReflector`, and both tables and their
difference are printed: a fact takes room, and is itself no evidence, so evidence recall must not fall.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
from pathlib import Path
from typing import Any

from acms import ACMS, open_storage
from acms.imports import read_chat
from acms.providers import OfflineReflector

BUDGETS = (500, 1000, 2000, 4000)


def gold(question: dict[str, Any], known: dict[str, str]) -> set[str]:
    """Return the entry ids of a question's evidence; ids of turns that do not exist are dropped."""
    named = " ".join(question.get("evidence", ())).replace(";", " ").split()
    return {known[name] for name in named if name in known}


async def conversation(path: Path, reflect: bool) -> list[dict[str, Any]]:
    """Return one row per question: category and evidence recall by mode and budget."""
    source = json.loads(path.read_text(encoding="utf-8"))[0]
    rows: list[dict[str, Any]] = []
    reflector = OfflineReflector() if reflect else None
    async with ACMS(path.stem, open_storage("memory://"), reflector=reflector) as session:
        messages = list(read_chat(path))
        known: dict[str, str] = {}
        for start in range(0, len(messages), 500):
            part = messages[start : start + 500]
            for message, receipt in zip(part, await session.ingest_many(part), strict=True):
                known[message["metadata"]["dia_id"]] = receipt.message_id
        await session.wait_pending()
        for question in source["qa"]:
            wanted = gold(question, known)
            if not wanted:
                continue
            row: dict[str, Any] = {"category": question["category"]}
            for mode, current in (("default", True), ("past only", False)):
                for budget in BUDGETS:
                    items = await session.recall(
                        question["question"], token_budget=budget, include_current_episode=current
                    )
                    assert items.tokens <= budget
                    row[f"{mode} {budget}"] = len(wanted & {item.id for item in items}) / len(wanted)
            rows.append(row)
    return rows


GROUPS = {"all (1-4)": (1, 2, 3, 4), "1": (1,), "2": (2,), "3": (3,), "4": (4,), "5 adversarial": (5,)}
HEADS = [f"{mode} {budget}" for mode in ("default", "past only") for budget in BUDGETS]


def means(rows: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the number of questions and the mean of every column in percent, by group of categories."""
    report: dict[str, dict[str, Any]] = {}
    for name, categories in GROUPS.items():
        chosen = [row for row in rows if row["category"] in categories]
        report[name] = {"questions": len(chosen)}
        for head in HEADS:
            report[name][head] = round(100 * statistics.mean(row[head] for row in chosen), 1)
    return report


def show(report: dict[str, dict[str, Any]]) -> None:
    """Print one table."""
    print(f"{'category':<14} {'n':>5}  " + "  ".join(f"{head:>14}" for head in HEADS))
    for name, found in report.items():
        print(f"{name:<14} {found['questions']:>5}  " + "  ".join(f"{found[head]:>14.1f}" for head in HEADS))


async def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=Path("../shared/data/locomo-dev"))
    parser.add_argument("--reflect", action="store_true", help="run again with facts")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    files = sorted(options.data.glob("*.json"))
    if not files:
        raise SystemExit(f"{options.data} holds no LoCoMo conversations: give their folder with --data")
    reports: dict[str, dict[str, dict[str, Any]]] = {}
    seconds: dict[str, float] = {}
    for reflect in (False, True) if options.reflect else (False,):
        name = "with reflection" if reflect else "evidence"
        start = time.perf_counter()
        reports[name] = means([row for path in files for row in await conversation(path, reflect)])
        seconds[name] = round(time.perf_counter() - start, 1)
    if options.reflect:
        plain, reflected = reports.values()
        reports["difference"] = {
            group: {
                "questions": found["questions"],
                **{head: round(reflected[group][head] - found[head], 1) for head in HEADS},
            }
            for group, found in plain.items()
        }
    if options.json:
        print(json.dumps({"conversations": len(files), "seconds": seconds, **reports}, indent=2))
        return
    for name, report in reports.items():
        questions = sum(report[group]["questions"] for group in ("all (1-4)", "5 adversarial"))
        took = f", {seconds[name]:.0f} s" if name in seconds else ""
        print(
            f"{len(files)} conversations, {questions} questions{took}; {name}, evidence recall in percent\n"
        )
        show(report)
        print()


if __name__ == "__main__":
    asyncio.run(main())
