import pytest

from . import mutations


def test_each_seeded_fault_is_found_by_the_test_named_for_it(tmp_path):
    assert len(mutations.FAULTS) >= 14
    assert mutations.short(tmp_path) == []


@pytest.mark.slow
def test_no_seeded_fault_survives_the_suite_and_the_story(tmp_path):
    assert mutations.full(tmp_path) == []
