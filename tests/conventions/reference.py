"""Write docs/reference.md and docs/reference/ from the docstrings: `python -m tests.conventions.reference`."""

from __future__ import annotations

import dataclasses
import enum
import importlib
import inspect
import re
from pathlib import Path
from types import ModuleType
from typing import Any

MODULES = (
    "acms",
    "acms.sync",
    "acms.errors",
    "acms.observability",
    "acms.storage",
    "acms.prompt",
    "acms.codecs",
    "acms.prompt.summaries",
    "acms.prompt.replay",
    "acms.acs",
    "acms.contract",
    "acms.kv",
    "acms.pins",
    "acms.client",
    "acms.erasure",
    "acms.server",
    "acms.branches.export",
    "acms.branches.copying",
    "acms.branches.importers",
    "acms.integrations.openai_agents",
    "acms.providers",
    "acms.providers.registry",
    "acms.ports",
    "acms.testing",
)


DOCS = Path(__file__).parents[2] / "docs"


def write_pages() -> None:
    """Write the pages, and remove those of modules that are gone."""
    pages = build_pages()
    (DOCS / "reference").mkdir(exist_ok=True)
    for page in (DOCS / "reference").glob("*.md"):
        page.unlink()
    for name, text in pages.items():
        (DOCS / name).write_text(text, encoding="utf-8")


def build_pages() -> dict[str, str]:
    """Return the index and the page of each module, by their paths in docs/."""
    index = [
        "# Reference",
        "",
        "At the end of this page you know which module has the name that you look for. Every public name is listed,",
        "written from the docstrings by `python -m tests.conventions.reference`. The commands are in [the command",
        "line](how-to/cli.md).",
        "",
    ]
    pages: dict[str, str] = {}
    seen: set[int] = set()
    for name in MODULES:
        module = importlib.import_module(name)
        summary, _, _ = _clean_docstring(module.__doc__).partition("\n")
        names: list[str] = []
        lines = [f"# {name}", "", _clean_docstring(module.__doc__), ""]
        for public in listed_by(module):
            value = getattr(module, public)
            if id(value) not in seen:
                seen.add(id(value))
                names.append(f"`{public}`")
                lines += _member_lines(module, public, value)
        path = f"reference/{name}.md"
        pages[path] = "\n".join(lines)
        index += [f"## [{name}]({path})", "", summary, "", ", ".join(names), ""]
    pages["reference.md"] = "\n".join([*index, *_limit_lines()])
    return pages


def listed_by(module: ModuleType) -> list[str]:
    """Return the public names of a module; those of `acms` are put together from parts, and stand in one order here."""
    return sorted(module.__all__) if module.__name__ == "acms" else list(module.__all__)


def _clean_docstring(doc: str | None) -> str:
    text = inspect.cleandoc(doc or "")
    fenced: list[str] = []
    inside = False
    for line in text.splitlines():
        indented = line.startswith("    ") or (inside and not line.strip())
        if indented != inside:
            fenced.append("```text" if indented else "```")
            inside = indented
        fenced.append(line[4:] if inside else line)
    if inside:
        fenced.append("```")
    return re.sub(r"\n\n```\n", "\n```\n\n", "\n".join(fenced))


def _signature_of(value: Any) -> str:
    try:
        shown = str(inspect.signature(value))
    except (TypeError, ValueError):
        return ""
    objects = (
        r"<factory>|<function .*? at 0x[0-9a-f]+>|<built-in (?:function|method) [^>]*>|<bound method [^<]*<[^>]*>>"
        r"|<\S* object at 0x[^>]*>"
    )
    shown = re.sub(objects, "…", shown)
    return re.sub(r"((?:: |-> ))'([^']*)'", r"\1\2", shown)


def _member_lines(module: ModuleType, name: str, value: Any) -> list[str]:
    lines = [f"## {name}", ""]
    if isinstance(value, enum.EnumMeta):
        lines += [_clean_docstring(value.__doc__), "", ", ".join(f"`{member.value}`" for member in value), ""]
    elif inspect.isclass(value):
        lines += [_clean_docstring(value.__doc__), ""]
        if dataclasses.is_dataclass(value):
            comments = _field_comments(value)
            for field in dataclasses.fields(value):
                note = comments.get(field.name, "")
                lines.append(f"- `{field.name}: {field.type}`" + (f": {note}" if note else ""))
            lines.append("")
        else:
            if not issubclass(value, Exception):
                lines += ["```text", f"{name}{_signature_of(value)}", "```", ""]
        for method, function in inspect.getmembers(value):
            own = any(method in base.__dict__ for base in value.__mro__ if base.__module__.startswith("acms"))
            if (
                method.startswith("_")
                or not own
                or not inspect.getdoc(function)
                or isinstance(value, enum.EnumMeta)
            ):
                continue
            if inspect.isfunction(function):
                asynchronous = "async " if inspect.iscoroutinefunction(function) else ""
                lines += [
                    f"**{asynchronous}{method}**`{_signature_of(function)}`",
                    "",
                    _clean_docstring(function.__doc__),
                    "",
                ]
            elif isinstance(function, property):
                lines += [f"**{method}** (property)", "", _clean_docstring(function.__doc__), ""]
    elif callable(value):
        lines += ["```text", f"{name}{_signature_of(value)}", "```", "", _clean_docstring(value.__doc__), ""]
    return lines


def _field_comments(of: type) -> dict[str, str]:
    """Return the `#:` comments in front of the fields of a dataclass and its bases."""
    found: dict[str, str] = {}
    for base in of.__mro__:
        if base is object or not dataclasses.is_dataclass(base):
            continue
        notes: list[str] = []
        for line in inspect.getsource(base).splitlines():
            text = line.strip()
            if text.startswith("#:"):
                notes.append(text[2:].strip())
            elif match := re.match(r"(\w+): ", text):
                if notes:
                    found.setdefault(match[1], " ".join(notes))
                notes = []
    return found


def _limit_lines() -> list[str]:
    validate = importlib.import_module("acms.log.validation")
    lines = ["## Limits", "", "What the border refuses above; sizes in bytes of UTF-8, counts in items.", ""]
    for name in ("MESSAGE_BYTES", "NAME_CHARS", "PARTS", "MARKERS", "BATCH", "METADATA_BYTES", "METADATA_KEYS",
                 "METADATA_DEPTH", "KEY_CHARS", "VALUE_BYTES", "VALUE_DEPTH", "PAGE", "BUDGET"):  # fmt: skip
        lines.append(f"- `{name}` {getattr(validate, name):,}")
    return [*lines, ""]


if __name__ == "__main__":
    write_pages()
