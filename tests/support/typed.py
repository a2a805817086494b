"""Values of the types that an SDK declares, made by chance: what a provider accepts, field by field."""

from __future__ import annotations

import random
import types
from collections.abc import Iterable
from itertools import count
from typing import Annotated, Any, Literal, NotRequired, Required, Union, get_args, get_origin, get_type_hints

from typing_extensions import is_typeddict

BYTES = "aGVsbG8gd29ybGQ="
"""What stands wherever bytes are inline."""

NO_BYTES = {
    ("RedactedThinkingBlockParam", "data"),
    ("PlainTextSourceParam", "data"),
    ("ProgramOutput", "result"),
}
"""Fields that are called like those of media and hold none."""


class Values:
    """Makes values of types; every text says something that nothing else says."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self._numbers = count(1)

    def of(self, kind: Any, name: str = "", depth: int = 0) -> Any:
        """Return a value of a type; `name` is the field it is for."""
        origin, arguments = get_origin(kind), get_args(kind)
        if is_typeddict(kind):
            return self._mapping(kind, depth)
        if origin in (Required, NotRequired, Annotated):
            return self.of(arguments[0], name, depth)
        if origin is Literal:
            return self._rng.choice(arguments)
        if origin in (Union, types.UnionType):
            chosen = [one for one in arguments if one is not type(None)]
            if len(chosen) < len(arguments) and self._rng.random() < 0.3:
                return None
            return self.of(self._rng.choice(chosen), name, depth)
        if origin is not None and isinstance(origin, type) and issubclass(origin, dict):
            return {self.text("k"): self.text("x")}
        if origin is not None and isinstance(origin, type) and issubclass(origin, Iterable):
            return [self.of(arguments[0], name, depth + 1) for _ in range(self._rng.randint(1, 2))]
        return self._plain(kind, name)

    def text(self, start: str) -> str:
        """Return a text that was never made before."""
        return f"{start}{next(self._numbers)}-z"

    def _plain(self, kind: Any, name: str) -> Any:
        if kind is str:
            if name in ("image_url", "url", "file_url"):
                return f"https://example.org/{self.text('u')}"
            return BYTES if name == "bytes" else self.text("t")
        if kind is bool:
            return True
        if kind in (int, float):
            return kind(next(self._numbers))
        if name == "bytes":
            return BYTES
        return {self.text("k"): self.text("x")} if name in ("input", "parameters") else self.text("o")

    def _mapping(self, kind: Any, depth: int) -> dict[str, Any]:
        hints = get_type_hints(kind, include_extras=True)
        found: dict[str, Any] = {}
        for name, hint in hints.items():
            total = kind.__total__ and get_origin(hint) is not NotRequired
            wanted = total or get_origin(hint) is Required
            if wanted or self._rng.random() < (0.4 if depth < 4 else 0.0):
                inline = (kind.__name__, name) not in NO_BYTES and name in ("data", "file_data", "result")
                found[name] = self.of(hint, "bytes" if inline else name, depth + 1)
        return found
