"""Recorded files: one JSON object per family of verbs, one result a line, keys sorted."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

RECORDED = Path(__file__).parent / "recorded"

Records = dict[str, Any]


def _line(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))


def path(family: str) -> Path:
    """Return the file of a family."""
    return RECORDED / f"{family}.json"


def read(family: str, source: str) -> Records:
    """Return what was recorded of a family for a source."""
    file = path(family)
    found: Records = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    return {key: value for key, value in found.items() if key.partition(" ")[0] == source}


def write(family: str, source: str, records: Records) -> None:
    """Replace what is recorded of a family for a source."""
    file = path(family)
    found: Records = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    kept = {key: value for key, value in found.items() if key.partition(" ")[0] != source}
    lines = [f"{_line(key)}: {_line(value)}" for key, value in sorted({**kept, **records}.items())]
    file.parent.mkdir(exist_ok=True)
    file.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def normal(records: Mapping[str, Any]) -> Records:
    """Return records as they read back from a file."""
    found: Records = json.loads(_line(dict(records)))
    return found


def differences(recorded: Records, found: Records) -> str:
    """Say in words how what is found differs from what was recorded; "" when it does not."""
    keys = sorted({*recorded, *found})
    changed = [key for key in keys if (key in recorded) != (key in found) or recorded[key] != found[key]]
    if not changed:
        return ""
    areas = Counter(" ".join(key.split()[:2]) for key in changed)
    counted = ", ".join(f"{area} ({count})" for area, count in areas.most_common(12))
    first = changed[0]
    lines = [f"{len(changed)} of {len(keys)} results are not as recorded: {counted}", f"first: {first}"]
    if first not in recorded or first not in found:
        lines.append("  it was not recorded" if first not in recorded else "  it is missing")
    else:
        lines += _apart(recorded[first], found[first], "")
    return "\n".join(lines)


def _apart(was: Any, now: Any, where: str) -> list[str]:
    """Return lines that show two values from the place where they differ."""
    if isinstance(was, dict) and isinstance(now, dict):
        for key in sorted({*was, *now}):
            if was.get(key) != now.get(key) or (key in was) != (key in now):
                return _apart(was.get(key), now.get(key), f"{where}.{key}" if where else key)
    if isinstance(was, list) and isinstance(now, list):
        place = next(
            (n for n, (a, b) in enumerate(zip(was, now, strict=False)) if a != b), min(len(was), len(now))
        )
        if len(was) == len(now):
            return _apart(was[place], now[place], f"{where}[{place}]")
        return [
            f"  at {where or 'top'}: {len(was)} recorded, {len(now)} now, apart from {place}",
            f"  recorded: {_line(was[place : place + 5])}",
            f"  now:      {_line(now[place : place + 5])}",
        ]
    return [f"  at {where or 'top'}", f"  recorded: {_line(was)}", f"  now:      {_line(now)}"]


def sources(family: str) -> set[str]:
    """Return the sources of which a family has anything recorded."""
    return {key.partition(" ")[0] for key in json.loads(path(family).read_text(encoding="utf-8"))}
