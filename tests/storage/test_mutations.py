import pytest

from . import mutations, mutations_postgres


def test_each_seeded_fault_is_found_by_the_test_named_for_it(tmp_path, postgres):
    assert len(mutations.FAULTS) >= 14
    assert len(list(mutations_postgres.postgres_faults(mutations.edit_source))) >= 12
    assert mutations.survivors_of_named_tests(tmp_path, postgres) == []


def test_without_a_fault_several_handles_and_a_cut_wire_find_nothing(tmp_path, postgres):
    stores = mutations.Stores("postgres", tmp_path, postgres)
    for name in mutations_postgres.CHECKS:
        assert mutations.check_passes(name, stores)


@pytest.mark.slow
def test_no_seeded_fault_survives_the_suite_and_the_story(tmp_path, postgres):
    assert mutations.survivors_of_everything(tmp_path, postgres) == []
