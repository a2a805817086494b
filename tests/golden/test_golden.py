"""Every verb still gives what was recorded; `python -m tests.golden record` writes it anew.

pytest -m slow tests/golden      every question of every development conversation, and the long ones with every verb
"""

from __future__ import annotations

import asyncio

import pytest

from acms import MissingExtraError
from acms.providers import LocalEmbedder

from . import book, stored
from .areas import Area, areas
from .sources import SETS

AREAS = [pytest.param(area, marks=[pytest.mark.slow] if area.slow else [], id=str(area)) for area in areas()]


@pytest.mark.parametrize("area", AREAS)
def test_results_are_as_recorded(area: Area, request: pytest.FixtureRequest) -> None:
    if area.given:
        folder = request.getfixturevalue("data_dir")
        missing = [path for path in SETS.get(area.source, (area.source,)) if not (folder / path).exists()]
        if missing:
            pytest.skip(f"{missing[0]} is not among the conversations")
    if area.family == "model":
        try:
            LocalEmbedder()
        except MissingExtraError as missing:
            pytest.skip(str(missing))
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
