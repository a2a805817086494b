"""Detection, false alarms and cost of the privacy stage.

Run:  python benchmarks/privacy.py [--texts 2000] [--seed 1] [--show 5] [--json]
      python benchmarks/privacy.py --corpus FILE      … of labelled texts instead: JSON lines
                                                      {"text": …, "spans": [{"start": …, "end": …, "kind": …}], "format": …}
      python benchmarks/privacy.py --data FOLDER      … speed on the messages of JSON files, too
      python benchmarks/privacy.py --probes 10000 --size 1000000 --processes 2 [--seconds 3600]

Texts are drawn from a seed in two halves, as many with something sensitive as without: `tuned` may be looked at while rules
change, `held out` may not and is the measure (`--show` prints nothing of it). How such corpora are made and measured:
docs/decisions/0070.

Detected: at least half of the marked characters were taken out. Covered: all. False alarms: texts without anything sensitive
of which something was taken out. Precision: of what was taken out, the part that touches a marked stretch.

Probes are texts made to be slow, of random pieces of the rules, at two sizes: growth is how many times the CPU time per
character of the longer one is that of a quarter of it, 1 for linear time and 4 for quadratic. No new one is begun after
`--seconds`; each of `--processes` takes every Nth, on a core of its own.
"""

# ruff: noqa: E501  a piece of a rule stays in one line

from __future__ import annotations

import argparse
import json
import random
import re
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

from privacy_corpus import Draw, Span, templates

from acms.model import Privacy
from acms.privacy.detect import find_sensitive_spans, redact_text
from acms.privacy.rules import load_table_rows


@dataclass(frozen=True, kw_only=True)
class Case:
    """A text, and what is sensitive in it."""

    text: str
    gold: Sequence[Span] = ()
    format: str = ""
    part: str = "corpus"


# ── texts ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def generated(count: int, seed: int) -> Iterator[Case]:
    """Yield about `count` texts of each half, as many with something sensitive as without."""
    for part in ("tuned", "held out"):
        draw = Draw(seed)
        made = {True: 0, False: 0}
        while min(made.values()) * 2 < count:
            positive = made[True] < made[False]
            for heading, template in templates(draw, part, positive):
                text, gold = draw.text(template)
                yield Case(text=text, gold=gold, format=heading, part=part)
                made[positive] += 1


def labelled(path: Path) -> Iterator[Case]:
    """Yield the texts of a file of JSON lines."""
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        gold = [Span(one["start"], one["end"], one["kind"]) for one in row.get("spans", ())]
        yield Case(text=row["text"], gold=gold, format=row.get("format", ""))


# ── quality ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass
class Score:
    """What was found of all texts, of each kind and in each format."""

    total: Counter[str] = field(default_factory=Counter[str])
    kinds: dict[str, Counter[str]] = field(default_factory=dict[str, Counter[str]])
    formats: dict[str, Counter[str]] = field(default_factory=dict[str, Counter[str]])

    def add(self, case: Case, show: bool) -> bool:
        """Count a text; tell whether something was missed or found by mistake, and print it."""
        found = find_sensitive_spans(case.text)
        wrong: list[str] = []
        taken = bytearray(len(case.text))
        for one in found:
            taken[one.start : one.end] = b"\1" * (one.end - one.start)
            right = any(one.start < gold.end and gold.start < one.end for gold in case.gold)
            self._count(case, one.kind, found=1, right=int(right))
            wrong += [] if right else [f"alarm {one.kind}: {case.text[one.start : one.end][:60]!r}"]
        for gold in case.gold:
            share = sum(taken[gold.start : gold.end]) / max(1, gold.end - gold.start)
            self._count(case, gold.kind, marked=1, detected=int(share >= 0.5), covered=int(share == 1))
            wrong += [] if share == 1 else [f"missed {gold.kind}: {case.text[gold.start : gold.end][:60]!r}"]
        if not case.gold:
            self._count(case, "", negatives=1, alarms=int(bool(found)))
        if wrong and show:
            print(f"  {case.format}, {'; '.join(wrong)} in {case.text[:240]!r}")
        return bool(wrong)

    def _count(self, case: Case, kind: str, **figures: int) -> None:
        self.total.update(figures)
        self.formats.setdefault(case.format, Counter()).update(figures)
        if kind:
            self.kinds.setdefault(kind, Counter()).update(figures)

    def report(self) -> dict[str, object]:
        return {
            "all": row(self.total),
            "kinds": {name: row(self.kinds[name]) for name in sorted(self.kinds)},
            "formats": {name: row(self.formats[name]) for name in sorted(self.formats)},
        }


def row(counts: Counter[str]) -> dict[str, object]:
    def share(of: str, whole: str) -> float | None:
        return round(counts[of] / counts[whole], 4) if counts[whole] else None

    return {
        "marked": counts["marked"], "detected": share("detected", "marked"), "covered": share("covered", "marked"),
        "precision": share("right", "found"), "negatives": counts["negatives"], "false alarms": share("alarms", "negatives"),
    }  # fmt: skip


def quality(cases: Sequence[Case], show: int) -> dict[str, dict[str, object]]:
    scores: dict[str, Score] = {}
    for case in cases:
        shown = show > 0 and case.part != "held out"
        show -= scores.setdefault(case.part, Score()).add(case, shown) and shown
    return {part: score.report() for part, score in scores.items()}


# ── cost ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def seconds(text: str) -> float:
    """Return the CPU time of redacting a text."""
    begin = time.thread_time()
    redact_text(text, Privacy.REDACT)
    return time.thread_time() - begin


def pieces(texts: Sequence[str]) -> list[str]:
    """Return texts joined and cut to 2 KB."""
    whole = "\n".join(texts)
    return [whole[at : at + 2048] for at in range(0, len(whole) - 2048, 2048)]


def messages(folder: Path, seed: int) -> list[str]:
    """Return the texts of a folder of conversations in JSON files, in an order of the seed."""
    found: list[str] = []
    for path in sorted(folder.rglob("*.json")):
        body = path.read_text(encoding="utf-8")
        found += re.findall(r'"(?:content|text)": ?("(?:[^"\\]|\\.){40,4000}")', body)
    random.Random(seed).shuffle(found)
    return [json.loads(text) for text in found[:5000]]


def speed(cases: Sequence[Case], folder: Path | None, seed: int) -> dict[str, object]:
    """Return what a megabyte costs, and messages of 2 KB: dense with secrets, of look-alikes, and real ones."""
    texts = {
        "sensitive": [case.text for case in cases if case.gold],
        "look-alikes": [case.text for case in cases if not case.gold],
    }
    if folder is not None:
        texts["real"] = messages(folder, seed)
    report: dict[str, object] = {}
    for name, cut in ((name, pieces(some)) for name, some in texts.items()):
        if len(cut) < 2:
            continue
        for text in cut[:20]:
            redact_text(text, Privacy.REDACT)
        times = [seconds(text) * 1000 for text in cut]
        report[name] = {
            "messages": len(cut), "s per MB": round(sum(times) * 1000 / sum(map(len, cut)), 3),
            "median ms": round(statistics.median(times), 3), "p95 ms": round(statistics.quantiles(times, n=20)[-1], 3),
            "worst ms": round(max(times), 3),
        }  # fmt: skip
    return report


PIECES = (
    *"""password= token: secret key api_key= "password": ' " ` \\ \\n = : , ; | @ . - _ + / ( ) [ ] < > { } :// a: x@ 1 12 00 +49 0 ( 4111 DE89 A B a b
    -----BEGIN -----END PRIVATE KEY----- sk- ghp_ eyJ ey . eyJa.eyJ AKIA xoxb- 1- glpat- hvs. s. M. Bearer Authorization: Cookie: a=b; sess=
    identified by is for of to at dot curl -u mysql -p sshpass client pass pw [REDACTED: password] aaaaaaaaaaaaaaaa 1111111111111111
    tel: call me at phone é ñ пароль 密码 $ % ${ } === => :=""".split(),
    " ", "\n", "  ", "\t", " for ", " is ", "token for ", "password ", "pw ", " a b", "a1b2c3d4e5f6g7h8", "@a.b", "a.b.", "-a", "a-", "1.", "1 ", " 1", "(1", "A1 ", "=\n", "\\\"",
    "enable secret ", "key 7 ", "AUTH a ", 'variable "password" {\n a = b\n', 'login("a", ', "password?\n", "send token\n", "?key=a", "echo a | ", "printf %s ",
    "net user a ", "PASS a\n", "a_", "-pass ", "setx password ", "htpasswd -b a ", "Message-ID: <a> ", "ssh -a b ", "@a@b.cd", "schlüssel ", "clé ", "密钥：", "setPassword('",
    "a,password\nb,c1d2e3\n", "api key,b\nx1,y2\n", "login a@b.cd / a1", "passphrase: a b c ", "|password|\n|-|\n|a1|\n", "h:5432:a:b:c1\n",
    "door code ", "pin ", "the code for the door ", "log in as a with ", "seed phrase: abc abc ", "passphrase abc abc abc ", "type a1b2 ", "use a as the ", "暗証番号は", "をa1に",
    "name: password ", "password type: a, ", "auth(", "rabbitmqctl add_user ", "wlan key ", "mysqli_connect(a, ", '"assword: " send "', "token?\nhere: it's ",
)  # fmt: skip


def hostile(count: int, seed: int) -> Iterator[tuple[str, ...]]:
    """Yield pieces to repeat: every literal of a rule alone, then two to six drawn ones."""
    chance = random.Random(seed)
    every = (*PIECES, *(head for row in load_table_rows("tokens") for head in row.get("heads", ())[:1]))
    shapes: list[tuple[str, ...]] = [(piece,) for piece in every]
    while len(shapes) < count:
        shapes.append(tuple(chance.choice(every) for _ in range(chance.randint(2, 6))))
    chance.shuffle(shapes)
    yield from shapes[:count]


class Probe(NamedTuple):
    """What a text made to be slow took."""

    seconds: float
    growth: float
    pieces: tuple[str, ...]


def probed(size: int, some: tuple[str, ...]) -> Probe:
    """Redact a text of pieces: all of them over and over, or, of some, the first once and the second repeated."""
    head, unit = "", "".join(some)
    if len(some) > 1 and len(unit) % 5 == 0:
        head, unit = some[:2]
    text = (head + unit * (size // len(unit) + 1))[:size]
    short, whole = seconds(text[: size // 4]), seconds(text)
    return Probe(whole, whole / max(short, 0.001) / 4, some)


def share(count: int, size: int, seed: int, until: float, process: int, step: int) -> list[Probe]:
    """Return the probes whose number is `process` modulo `step`."""
    end = time.monotonic() + until
    done: list[Probe] = []
    for some in islice(hostile(count, seed), process, None, step):
        if done and time.monotonic() > end:
            break
        done.append(probed(size, some))
    return done


def probes(count: int, size: int, seed: int, until: float, processes: int) -> dict[str, object]:
    each = partial(share, count, size, seed, until, step=processes)
    if processes > 1:
        with ProcessPoolExecutor(processes) as pool:
            done = list(chain.from_iterable(pool.map(each, range(processes))))
    else:
        done = each(0)
    slow, grown = sorted(done, reverse=True), sorted(done, key=lambda probe: probe.growth, reverse=True)
    return {
        "texts": len(done), "characters": size, "median s": round(statistics.median(one.seconds for one in done), 4),
        "worst s": round(slow[0].seconds, 3), "worst growth": round(grown[0].growth, 2),
        "slowest": [f"{one.seconds:.3f} s {one.pieces}" for one in slow[:5]],
        "steepest": [f"x{one.growth:.2f} {one.seconds:.3f} s {one.pieces}" for one in grown[:5]],
    }  # fmt: skip


# ── report ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--texts", type=int, default=2000, help="drawn texts of each part")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--corpus", type=Path, metavar="FILE", help="labelled texts instead of drawn ones")
    parser.add_argument("--data", type=Path, metavar="FOLDER", help="conversations whose messages are timed")
    parser.add_argument("--probes", type=int, default=300, help="texts made to be slow")
    parser.add_argument("--size", type=int, default=100_000, help="characters of each probe")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="of the probes")
    parser.add_argument("--processes", type=int, default=1, help="that share the probes")
    parser.add_argument("--show", type=int, default=0, help="texts to print that were judged wrongly")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    cases = list(labelled(args.corpus) if args.corpus else generated(args.texts, args.seed))
    report: dict[str, dict[str, object]] = quality(cases, args.show)
    report["speed"] = speed(cases, args.data, args.seed)
    if args.probes:
        report["probes"] = probes(args.probes, args.size, args.seed, args.seconds, args.processes)
    if args.json:
        json.dump(report, sys.stdout, indent=1)
        print()
        return
    for part, figures in report.items():
        print(part)
        for title, found in figures.items():
            if isinstance(found, dict) and title in ("kinds", "formats"):
                print(f"  by {title[:-1]}")
                for name, one in found.items():
                    print(f"    {name:18} {one}")
            else:
                print(f"  {title:18} {found}")


if __name__ == "__main__":
    main()
