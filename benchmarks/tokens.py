"""Throughput and per-message cost of the token counters.

Run:  python benchmarks/tokens.py [--data PATH] [--passes N] [--json]
      python benchmarks/tokens.py --bound PATH [PATH ...]

MB/s of UTF-8 on one thread and microseconds for one 60-token message, medians of interleaved passes. Needs
tiktoken for the comparison row; its vocabulary is rebuilt from toktok's wheel, so nothing is downloaded.
`--data` is a folder of conversations in JSON files, of which every string value counts as one message.
`--bound` compares the first bound for Claude with the counts of ctok (Python 3.12 or later), on 2 kB pieces of the text
files in each folder.
"""

from __future__ import annotations

import argparse
import inspect
import json
import statistics
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from acms.providers.tokens import BPETokenCounter, EstimatingTokenCounter, HeuristicTokenCounter

Count = Callable[[str], int]

MESSAGE = (
    "Yesterday I talked to Caroline about the adoption agency interviews, and she told me that it went well. "
    "She was nervous at first, but the panel asked her about her support network and her plans for the next "
    "year; we celebrated with dinner at the new place on 5th Street right afterwards too."
)


def tiktoken_count() -> Count | None:
    try:
        import tiktoken
        import toktok
        from tiktoken_ext import openai_public
    except ImportError:
        return None
    values = toktok._encoding("o200k_base").token_byte_values()
    openai_public.load_tiktoken_bpe = lambda *_, **__: {value: rank for rank, value in enumerate(values)}
    encoding = tiktoken.Encoding(**openai_public.o200k_base())
    return lambda text: len(encoding.encode_ordinary(text))


def sources(size: int) -> list[str]:
    texts: list[str] = []
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        texts.append(path.read_text(encoding="utf-8", errors="replace"))
        if sum(map(len, texts)) > size:
            break
    return texts


def chat(size: int) -> list[str]:
    """Messages of prose: the docstrings of the standard library, paragraph by paragraph."""
    texts: list[str] = []
    for source in sources(8 * size):
        texts += (
            part.strip() for part in source.split('"""')[1::2] for part in part.split("\n\n") if part.strip()
        )
    return texts


def records(size: int) -> list[str]:
    """Tool results in JSON: descriptions of functions, five a document, half of them indented."""
    rows = []
    for module in (argparse, inspect, json, statistics, time, Path):
        for name, value in inspect.getmembers(module):
            doc = (inspect.getdoc(value) or "")[:200]
            rows.append(
                {
                    "id": len(rows),
                    "name": name,
                    "kind": type(value).__name__,
                    "doc": doc,
                    "score": 1 / (len(name) + 1),
                }
            )
    documents = [json.dumps(rows[i : i + 5], indent=2 if i % 10 else None) for i in range(0, len(rows), 5)]
    return documents * max(1, size // sum(map(len, documents)))


def conversations(folder: Path) -> list[str]:
    def strings(value: object) -> Iterator[str]:
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict):
            for item in value.values():
                yield from strings(item)
        elif isinstance(value, list):
            for item in value:
                yield from strings(item)

    return [
        s for path in sorted(folder.glob("**/*.json")) for s in strings(json.loads(path.read_text("utf-8")))
    ]


def seconds(count: Count, texts: list[str]) -> float:
    start = time.perf_counter()
    for text in texts:
        count(text)
    return time.perf_counter() - start


def pieces(folder: Path, size: int = 2_000, most: int = 200) -> list[str]:
    """Up to `most` pieces of the text files in a folder, evenly spread."""
    found: list[str] = []
    for path in sorted(folder.glob("**/*")):
        if not path.is_file():
            continue
        try:
            data = path.read_bytes()
            data.decode("utf-8")
        except (OSError, UnicodeDecodeError):
            continue
        starts = range(0, len(data) - size // 2, size)
        found += [data[start : start + size].decode("utf-8", "ignore") for start in starts]
    return found[:: -(-len(found) // most)] if found else []


def bounds(folders: list[Path]) -> None:
    """Print the bound for Claude over the count of ctok, for both tokenizers."""
    from ctok import token_count

    from acms.providers.codecs.anthropic import AnthropicMessages

    print(f"{'folder':40}{'tokenizer':>11}{'pieces':>8}{'median':>8}{'least':>8}{'over':>8}")
    for folder in folders:
        texts = pieces(folder)
        for model, version in (("claude-opus-4-5", "3.0"), ("claude-opus-5", "4.8")):
            codec = AnthropicMessages(model)
            factor = codec.calibration.default * (1 + codec.calibration.margin)
            frame = token_count("a", version) - 1
            counts = [token_count(text, version) - frame for text in texts]
            ratios = [
                factor * codec.counter.count(text) / count for text, count in zip(texts, counts, strict=True)
            ]
            if not ratios:
                continue
            over = sum(ratio < 1 for ratio in ratios) / len(ratios)
            row = f"{statistics.median(ratios):8.2f}{min(ratios):8.2f}{over:8.1%}"
            print(f"{folder.name[:39]:40}{version:>11}{len(ratios):8}{row}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, help="folder of conversations in JSON files")
    parser.add_argument("--passes", type=int, default=5)
    parser.add_argument(
        "--size", type=int, default=1_000_000, help="characters of each generated corpus, about"
    )
    parser.add_argument("--json", action="store_true")
    parser.add_argument(
        "--bound", type=Path, nargs="+", help="folders of texts: measure the bound for Claude"
    )
    args = parser.parse_args()
    if args.bound:
        bounds(args.bound)
        return

    counters: dict[str, Count] = {"BPETokenCounter": BPETokenCounter().count}
    if reference := tiktoken_count():
        counters["tiktoken"] = reference
    counters["EstimatingTokenCounter"] = EstimatingTokenCounter().count
    counters["HeuristicTokenCounter"] = HeuristicTokenCounter().count

    corpora = {"chat": chat(args.size), "code": sources(args.size), "json": records(args.size)}
    if args.data:
        corpora["conversations"] = conversations(args.data)
    elif not args.json:
        print("no --data: conversation corpora left out", file=sys.stderr)
    corpora = {name: texts for name, texts in corpora.items() if texts}

    times: dict[tuple[str, str], list[float]] = {(c, k): [] for c in counters for k in corpora}
    message: dict[str, list[float]] = {c: [] for c in counters}
    for _ in range(args.passes):
        for corpus, texts in corpora.items():
            for name, count in counters.items():
                times[name, corpus].append(seconds(count, texts))
        for name, count in counters.items():
            message[name] += (seconds(count, [MESSAGE] * 100) / 100 for _ in range(20))

    sizes = {corpus: sum(len(text.encode()) for text in texts) for corpus, texts in corpora.items()}
    rows = [
        {
            "counter": name,
            "mb_per_s": {k: round(sizes[k] / 1e6 / statistics.median(times[name, k]), 1) for k in corpora},
            "message_us": round(statistics.median(message[name]) * 1e6, 2),
        }
        for name in counters
    ]
    tokens = counters["BPETokenCounter"](MESSAGE)
    if args.json:
        corpus_info = {k: {"bytes": sizes[k], "texts": len(texts)} for k, texts in corpora.items()}
        print(json.dumps({"message_tokens": tokens, "corpora": corpus_info, "counters": rows}, indent=2))
        return
    print(f"{'MB/s':24}" + "".join(f"{k:>15}" for k in corpora) + f"{f'us/{tokens} tokens':>15}")
    for row in rows:
        print(
            f"{row['counter']:24}"
            + "".join(f"{v:15,.1f}" for v in row["mb_per_s"].values())
            + f"{row['message_us']:15.2f}"
        )


if __name__ == "__main__":
    main()
