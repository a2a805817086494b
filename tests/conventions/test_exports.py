"""The front doors: `__all__` is complete, importable and documented."""

from __future__ import annotations

import importlib
import inspect
import typing
from types import ModuleType
from typing import Any

import pytest

import acms
from acms import ACMS, Prompt, View, sync
from acms.client import RemoteSession, RemoteView
from acms.knowledge import Scope

DOORS = [
    "acms",
    "acms.acs",
    "acms.client",
    "acms.codecs",
    "acms.contract.engine",
    "acms.erasure",
    "acms.errors",
    "acms.kv",
    "acms.observability",
    "acms.pins",
    "acms.prompt",
    "acms.prompt.pins",
    "acms.providers",
    "acms.providers.codecs",
    "acms.providers.registry",
    "acms.storage",
    "acms.sync",
    "acms_eval",
]


def _is_alias(value: object) -> bool:
    return typing.get_origin(value) is not None


@pytest.fixture(params=DOORS)
def door(request: pytest.FixtureRequest) -> ModuleType:
    return importlib.import_module(request.param)


def test_no_name_is_listed_twice(door: ModuleType) -> None:
    assert len(door.__all__) == len(set(door.__all__))


def test_every_name_can_be_imported(door: ModuleType) -> None:
    missing = [name for name in door.__all__ if not hasattr(door, name)]
    assert not missing


def test_star_import_and_dir_agree(door: ModuleType) -> None:
    namespace: dict[str, object] = {}
    exec(f"from {door.__name__} import *", namespace)
    assert set(door.__all__) <= set(namespace)
    assert set(door.__all__) <= set(dir(door)), "a lazily loaded name must show up in dir()"


def test_dir_lists_no_name_that_only_the_code_of_the_package_uses() -> None:
    names = {name for name in dir(acms) if not name.startswith("__")}
    assert {name for name in names if not inspect.ismodule(getattr(acms, name))} == {*acms.__all__} - {
        "__version__"
    }


def test_all_is_complete(door: ModuleType) -> None:
    """Whatever of its own package can be seen through the door is meant to be."""
    seen = {
        name
        for name, value in vars(door).items()
        if not name.startswith("_")
        and (inspect.isclass(value) or inspect.isfunction(value))
        and value.__module__.startswith(door.__name__)
    }
    assert not seen - set(door.__all__)


def test_every_public_name_is_documented(door: ModuleType) -> None:
    bare: list[str] = []
    for name in door.__all__:
        value = getattr(door, name)
        if not (inspect.isclass(value) or inspect.isfunction(value)) or _is_alias(value):
            continue
        if not value.__doc__ or value.__doc__.startswith(f"{name}("):  # the signature dataclass writes
            bare.append(name)
        if inspect.isclass(value):
            for attribute, member in vars(value).items():
                public = inspect.isfunction(member) and not attribute.startswith("_")
                if public and member.__module__.startswith("acms") and not inspect.getdoc(member):
                    bare.append(f"{name}.{attribute}")
    assert not bare


@pytest.mark.parametrize(
    "session",
    [ACMS, View, RemoteSession, RemoteView, sync.ACMS, sync.View, sync.RemoteSession, sync.RemoteView],
)
def test_a_type_checker_knows_the_scopes_of_every_kind_of_session(session: Any) -> None:
    for method in (session.recall, session.facts, Prompt.recall):
        scope = typing.get_type_hints(inspect.unwrap(method))["scope"]
        assert scope in (Scope, Scope | None)


def test_every_error_is_exported_with_a_code_of_its_own() -> None:
    errors = importlib.import_module("acms.errors")
    family = {
        value
        for value in vars(errors).values()
        if inspect.isclass(value) and issubclass(value, errors.ACMSError)
    }
    assert {error.__name__ for error in family} <= set(errors.__all__)
    assert len({error.code for error in family}) == len(family)
    drawn = errors.__doc__
    assert [
        error.__name__ for error in family if f" {error.code} " not in drawn and error is not errors.ACMSError
    ] == []
