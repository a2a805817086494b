"""What a release promised holds: its names, operations and commands, its database, and the rules that judge it."""

from __future__ import annotations

from typing import Any

import pytest

from . import compatibility, stored


@pytest.mark.parametrize("release", compatibility.releases())
def test_who_called_a_release_still_can(release: str) -> None:
    assert compatibility.broken_since(release) == []


@pytest.mark.parametrize("release", compatibility.releases())
def test_a_release_left_a_database(release: str) -> None:
    """What is read from it is compared by test_golden, as from every stored file."""
    assert f"release-{release}" in stored.files()


def test_a_release_is_kept_once() -> None:
    with pytest.raises(FileExistsError):
        compatibility.keep(compatibility.releases()[0])


def _class(call: str = "()", **members: str) -> dict[str, Any]:
    return {"class": ["object"], "call": call, "members": members}


def _body(*required: str, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "required": list(required), "properties": properties}


def _get(*parameters: str, **gives: Any) -> dict[str, Any]:
    return {"id": "get", "parameters": list(parameters), "takes": {}, "gives": gives, "security": None}


TEXT, LIMIT = {"type": "string"}, {"type": "integer", "maximum": 9}

COMPATIBLE = {
    "a parameter more": ("name acms f", "(a: int) -> int", "(a: int, b: int = 1, *, c: str = 'x') -> int"),
    "a wider type": ("name acms f", "(a: int) -> int", "(a: int | str) -> int"),
    "a member more": ("name acms C", _class(x="property"), _class(x="property", y="(self)")),
    "a field that became a property": ("name acms C", _class(x="field int"), _class(x="property")),
    "a property more in an answer": ("schema Entry", _body("id", id=TEXT), _body("id", "at", id=TEXT, at=TEXT)),
    "less that is needed": ("schema AddBody", _body("a", "b", a=TEXT, b=TEXT), _body("a", a=TEXT, b=TEXT)),
    "a wider bound": ("schema AddBody", _body(a=LIMIT), _body(a={**LIMIT, "maximum": 10})),
    "a wider bound of what may be null": (
        "schema AddBody",
        _body(a={"anyOf": [LIMIT, {"type": "null"}]}),
        _body(a={"anyOf": [{**LIMIT, "maximum": 10}, {"type": "null"}]}),
    ),
    "a query parameter more": ("http GET /x", _get(), _get("query last {}")),
    "an option more": ("command acms/add", ["text str required"], ["text str required", "--json/-j bool"]),
    "a second spelling": ("command acms/add", ["--json bool"], ["--json/-j bool"]),
}  # fmt: skip
BROKEN = {
    "acms.f(b) is gone": ("name acms.f", "(a: int, b: int) -> int", "(a: int) -> int"),
    "acms.f needs b now": ("name acms.f", "(a: int) -> int", "(a: int, *, b: int) -> int"),
    "acms.f took a, b in this order, and takes b, a": ("name acms.f", "(a: int, b: int)", "(b: int, a: int)"),
    "acms.f is awaited now": ("name acms.f", "() -> int", "async () -> int"),
    "acms.C.x is gone": ("name acms.C", _class(x="property"), _class()),
    "acms.C.x was property, and is (self)": ("name acms.C", _class(x="property"), _class(x="(self)")),
    "acms.C.go(a) is gone": ("name acms.C", _class(go="(self, a: int)"), _class(go="(self)")),
    "acms.C is no longer a object": ("name acms.C", _class(), {**_class(), "class": []}),
    "acms.f was a function and no longer is": ("name acms.f", "()", _class()),
    "Entry.id may be missing now": ("schema Entry", _body("id", id=TEXT), _body(id=TEXT)),
    "Entry.properties: id is gone": ("schema Entry", _body(id=TEXT), _body()),
    "AddBody needs b now": ("schema AddBody", _body("a", a=TEXT), _body("a", "b", a=TEXT, b=TEXT)),
    "AddBody.a is bound by maxLength now": ("schema AddBody", _body(a=TEXT), _body(a={**TEXT, "maxLength": 9})),
    "AddBody.a.maximum was 9, and is 5": ("schema AddBody", _body(a=LIMIT), _body(a={**LIMIT, "maximum": 5})),
    "AddBody.a was {'type': 'null'}, and no longer is": (
        "schema AddBody",
        _body(a={"anyOf": [LIMIT, {"type": "null"}]}),
        _body(a={"anyOf": [LIMIT, TEXT]}),
    ),
    "GET /x no longer answers 200": ("http GET /x", _get(**{"200": {}}), _get(**{"204": {}})),
    "GET /x no longer takes query last": ("http GET /x", _get("query last {}"), _get()),
    "GET /x needs query last now": ("http GET /x", _get(), _get("query last! {}")),
    "acms/add needs text now": ("command acms/add", [], ["text str required"]),
    "acms/add no longer takes -j": ("command acms/add", ["-j bool"], ["--json bool"]),
}  # fmt: skip


@pytest.mark.parametrize("case", COMPATIBLE)
def test_more_is_compatible(case: str) -> None:
    key, was, now = COMPATIBLE[case]
    assert list(compatibility.broken({key: was}, {key: now})) == []


@pytest.mark.parametrize("said", BROKEN)
def test_less_is_said(said: str) -> None:
    key, was, now = BROKEN[said]
    assert said in list(compatibility.broken({key: was}, {key: now}))


def test_what_is_gone_is_said() -> None:
    assert list(compatibility.broken({"public http GET /x": _get()}, {})) == ["http GET /x is gone"]
    assert list(compatibility.broken({"names acms": ["a", "b"]}, {"names acms": ["b", "c"]})) == [
        "acms.a is no longer exported"
    ]
