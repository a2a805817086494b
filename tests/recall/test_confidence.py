"""Where the bands of a confidence begin."""

from __future__ import annotations

import pytest

from acms import Band
from acms.results import POSSIBLE_FROM, STRONG_FROM


@pytest.mark.parametrize(
    ("confidence", "band"),
    [
        (0.0, Band.NONE),
        (POSSIBLE_FROM - 1e-9, Band.NONE),
        (POSSIBLE_FROM, Band.POSSIBLE),
        (STRONG_FROM - 1e-9, Band.POSSIBLE),
        (STRONG_FROM, Band.STRONG),
        (1.0, Band.STRONG),
    ],
)
def test_a_band_begins_at_its_least_confidence(confidence: float, band: Band) -> None:
    assert Band.of(confidence) is band
