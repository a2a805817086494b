"""Every verb still gives what was recorded; `python -m tests.golden record` writes it anew.

pytest -m data tests/golden      also of the development conversations; the slow ones with every question and every verb
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from . import book, stored
from .areas import Area, areas


def marked(area: Area) -> Any:
    """Return an area as a parameter with its marks."""
    marks = [pytest.mark.slow] * area.slow + [pytest.mark.data] * area.given
    return pytest.param(area, marks=marks, id=str(area))


@pytest.mark.parametrize("area", [marked(area) for area in areas()])
def test_results_are_as_recorded(area: Area, request: pytest.FixtureRequest) -> None:
    if area.given:
        request.getfixturevalue("data_dir")
    found = book.normal(area.records())
    apart = book.differences(book.read(area.family, area.source), found)
    if apart:
        pytest.fail(f"{area}: {apart}", pytrace=False)


def test_nothing_else_is_recorded() -> None:
    """A family or a source that is no longer made leaves nothing behind."""
    known = {(area.family, area.source) for area in areas()}
    for file in book.RECORDED.glob("*.json"):
        assert {(file.stem, source) for source in book.sources(file.stem)} <= known


def test_recorded_files_are_small() -> None:
    files = list(book.RECORDED.glob("*.json"))
    assert sum(file.stat().st_size for file in files) < 1_700_000


def test_stored_databases_are_small_and_one_is_never_written_again() -> None:
    names = stored.files()
    assert {"before-restructuring", "before-recall"} <= set(names)
    assert all((stored.STORED / f"{name}.db.gz").stat().st_size < stored.MOST_BYTES for name in names)
    with pytest.raises(FileExistsError):
        asyncio.run(stored.write(names[0]))


def test_a_difference_names_the_result_and_shows_both_values() -> None:
    was = {"locomo conv recall 0300 q001": {"items": ["m1 x", "m2 y"]}, "locomo conv stats": 1}
    now = {"locomo conv recall 0300 q001": {"items": ["m1 x", "m3 y"]}, "locomo conv stats": 1}
    assert book.differences(was, was) == ""
    told = book.differences(was, now)
    assert "locomo conv recall 0300 q001" in told
    assert "items[1]" in told
    assert '"m2 y"' in told
    assert '"m3 y"' in told
    assert "it is missing" in book.differences(was, {"locomo conv stats": 1})
