"""Rules of providers, checked before a request is sent, so that an error names the field at fault."""

from __future__ import annotations

from typing import NoReturn

from acms.errors import PayloadError

__all__ = ["refuse", "require"]


def require(condition: object, problem: str, *path: str | int) -> None:
    """Raise `PayloadError` for the field at a path, such as ("messages", 2, "role"), unless a condition holds."""
    if not condition:
        refuse(problem, *path)


def refuse(problem: str, *path: str | int) -> NoReturn:
    """Raise `PayloadError` for the field at a path, which the error writes as "messages[2].role"."""
    field = ""
    for step in path:
        if isinstance(step, int):
            field += f"[{step}]"
        else:
            field += f".{step}" if field else step
    raise PayloadError(problem, field=field)


def reject_constant(constant: str) -> NoReturn:
    """Raise `ValueError` for a constant that JSON does not have, such as NaN."""
    raise ValueError(f"{constant} is not JSON")
