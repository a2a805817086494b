"""What follows from a premise that was changed or dropped is flagged, and never shown as certain."""

from __future__ import annotations

import pytest

from acms_eval.cascades import Tier, changed_premises, measure_cascades


def test_a_conversation_says_what_follows_before_what_it_follows_from_changes() -> None:
    scenario = changed_premises(seed=3)
    assert [probe.topic for probe in scenario.probes].count("other") == 6
    assert {"changed", "dropped"} <= {probe.topic for probe in scenario.probes}
    last = [proposal.action for _, proposal in scenario.proposals[-2:]]
    assert sorted(last) == ["remove", "update"]
    assert changed_premises(seed=3) == scenario


@pytest.mark.parametrize("tier", ["offline", "perfect"])
async def test_most_of_what_followed_is_flagged_and_none_of_it_is_shown_as_certain(tier: Tier) -> None:
    (row,) = await measure_cascades(tiers=[tier], seeds=range(3))
    assert (row.dependants, row.orphans, row.shown) == (6, 6, 1.0)
    assert row.flagged >= 0.5
    assert row.flagged_orphans >= 0.5
    assert row.certain == 0.0
    assert row.mistaken <= 0.1
