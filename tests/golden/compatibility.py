"""What a release promised to later ones: its names, operations and commands, and a database it wrote.

python -m tests.golden release 0.1.0      keep what this release can be called by, and a database of it

A change is compatible when whoever called the release still can: more may be there, nothing may be gone, and nothing
more may be asked. Answers may grow too: clients leave alone what they do not know (docs/compatibility.md).
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from . import book
from .book import Records

RELEASED = Path(__file__).parent / "released"
FAMILIES = ("names", "http", "commands")
_LEAST = {"minimum", "minLength", "minItems"}
_MOST = {"maximum", "maxLength", "maxItems"}
_NARROWER = _LEAST | _MOST | {"pattern", "enum", "const", "type"}


def releases() -> list[str]:
    """Return the releases whose surface is kept."""
    return sorted(file.stem for file in RELEASED.glob("*.json"))


def keep(release: str) -> Path:
    """Keep what is recorded of the surface as that of a release; one that is there is never written again."""
    target = RELEASED / f"{release}.json"
    if target.exists():
        raise FileExistsError(target)
    RELEASED.mkdir(exist_ok=True)
    lines = [
        f"{json.dumps(key)}: {json.dumps(value, sort_keys=True)}" for key, value in sorted(_now().items())
    ]
    target.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    return target


def broken_since(release: str) -> list[str]:
    """Say what a caller of a release could do and no longer can."""
    promised: Records = json.loads((RELEASED / f"{release}.json").read_text(encoding="utf-8"))
    return list(broken(promised, _now()))


def _now() -> Records:
    return {key: value for family in FAMILIES for key, value in book.read(family, "public").items()}


def broken(promised: Records, now: Records) -> Iterator[str]:
    """Yield a sentence for each promise that does not hold."""
    for key, was in promised.items():
        kind, _, name = key.removeprefix("public ").partition(" ")
        if key not in now:
            yield f"{kind} {name} is gone"
        elif kind == "names":
            yield from (f"{name}.{one} is no longer exported" for one in was if one not in now[key])
        elif kind == "name":
            yield from _value(name, was, now[key])
        elif kind == "command":
            yield from _asked(name, *({_option(one): one for one in side} for side in (was, now[key])))
        elif kind == "schema":
            yield from _shape(name, was, now[key], taken=name.endswith("Body"))
        elif isinstance(was, dict) and "gives" in was:
            yield from _operation(name, was, now[key])
        else:
            yield from _shape(name, was, now[key], taken=False)


# ── Python ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _value(name: str, was: Any, now: Any) -> Iterator[str]:
    if isinstance(was, dict) != isinstance(now, dict):
        yield f"{name} was a {'class' if isinstance(was, dict) else 'function'} and no longer is"
    elif isinstance(was, dict):
        yield from (f"{name} is no longer a {one}" for one in was["class"] if one not in now["class"])
        yield from _call(name, was["call"], now["call"])
        for member, said in was["members"].items():
            if member not in now["members"]:
                yield f"{name}.{member} is gone"
            else:
                yield from _member(f"{name}.{member}", said, now["members"][member])
    else:
        yield from _call(name, was, now)


def _member(name: str, was: Any, now: Any) -> Iterator[str]:
    if _is_call(was) and _is_call(now):
        yield from _call(name, was, now)
    elif _is_call(was) or _is_call(now) or (was != now and not str(was).startswith(("field", "property"))):
        yield f"{name} was {was}, and is {now}"


def _is_call(said: Any) -> bool:
    return isinstance(said, str) and "(" in said and not said.startswith("field")


def _call(name: str, was: str, now: str) -> Iterator[str]:
    """Compare two signatures: a caller of the first must be one of the second."""
    if was.startswith("async ") != now.startswith("async "):
        yield f"{name} is {'awaited now' if now.startswith('async ') else 'no longer awaited'}"
    old, new = _parameters(was), _parameters(now)
    if old is None or new is None:
        return
    yield from (f"{name}({one}) is gone" for one in old if one not in new and "**" not in new)
    places = [one for one, (place, _) in old.items() if place]
    now_at = [one for one, (place, _) in new.items() if place]
    if places != now_at[: len(places)]:
        yield f"{name} took {', '.join(places)} in this order, and takes {', '.join(now_at)}"
    for one, (_, needed) in new.items():
        if needed and not old.get(one, (False, False))[1]:
            yield f"{name} needs {one} now"


def _parameters(said: str) -> dict[str, tuple[bool, bool]] | None:
    """Return the parameters of a signature as it is recorded: whether each has a place, and is needed."""
    text = re.sub(r"<[^<>]*>", "...", said[said.index("(") :]) if "(" in said else ""
    try:
        function = ast.parse(f"def f{text}: ...").body[0]
    except SyntaxError:
        return None
    assert isinstance(function, ast.FunctionDef)
    given = function.args
    placed = [*given.posonlyargs, *given.args]
    bare = len(placed) - len(given.defaults)
    found = {one.arg: (True, number < bare) for number, one in enumerate(placed)}
    found |= {
        one.arg: (False, default is None)
        for one, default in zip(given.kwonlyargs, given.kw_defaults, strict=True)
    }
    return found | ({"**": (False, False)} if given.kwarg else {})


# ── HTTP and commands ───────────────────────────────────────────────────────────────────────────────────────────────


def _operation(name: str, was: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    if was["id"] != now["id"]:
        yield f"{name} was called {was['id']}, and is {now['id']}"
    yield from _asked(
        name,
        *({" ".join(one.split()[:2]).rstrip("!"): one for one in side["parameters"]} for side in (was, now)),
    )
    yield from _shape(f"{name} takes", was["takes"], now["takes"], taken=True)
    yield from (f"{name} no longer answers {code}" for code in was["gives"] if code not in now["gives"])
    for code, said in was["gives"].items():
        yield from _shape(f"{name} gives {code}", said, now["gives"].get(code, said), taken=False)


def _option(line: str) -> str:
    return line.split()[0]


def _asked(name: str, was: Mapping[str, str], now: Mapping[str, str]) -> Iterator[str]:
    """Compare arguments: none may be gone, none more may be needed."""
    spelled = {spelling for one in now for spelling in one.split("/")}
    yield from (f"{name} no longer takes {one}" for one in was if not set(one.split("/")) <= spelled)
    yield from (
        f"{name} needs {one} now"
        for one, line in now.items()
        if _needed(line) and not _needed(was.get(one, ""))
    )


def _needed(line: str) -> bool:
    words = line.split()
    return "required" in words or any(word.endswith("!") for word in words[1:2])


def _covered(name: str, was: Any, now: Any, taken: bool) -> bool:
    """Return whether a bound lets all through that an earlier one did."""
    if name == "enum":
        return set(map(str, was)) <= set(map(str, now))
    return taken and ((name in _LEAST and now <= was) or (name in _MOST and now >= was))


def _shape(where: str, was: Any, now: Any, *, taken: bool) -> Iterator[str]:
    """Compare two JSON schemas: what is taken may be asked less of, what is given may tell more."""
    if not (isinstance(was, dict) and isinstance(now, dict)):
        if was != now:
            yield f"{where} was {was}, and is {now}"
        return
    for name, said in was.items():
        if name == "required":
            less = set(said) - set(now.get(name, ()))
            yield from (f"{where}.{one} may be missing now" for one in sorted(less) if not taken)
        elif name in now and _covered(name, said, now[name], taken):
            continue
        elif name in ("anyOf", "oneOf", "allOf"):
            yield from (
                f"{where} was {one}, and no longer is"
                for one in said
                if all(list(_shape(where, one, other, taken=taken)) for other in now.get(name, ()))
            )
        elif name not in now:
            if not taken or name not in _NARROWER:
                yield f"{where}: {name} is gone"
        elif name != "default":
            yield from _shape(f"{where}.{name}".replace(".properties.", "."), said, now[name], taken=taken)
    if taken:
        more = (
            sorted(set(now.get("required", ())) - set(was.get("required", ()))) if "properties" in now else []
        )
        yield from (f"{where} needs {one} now" for one in more)
        yield from (f"{where} is bound by {name} now" for name in sorted(_NARROWER & {*now} - {*was}))
