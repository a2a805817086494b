import pytest

from acms.storage import MemoryStorage
from acms.testing import run_story
from tests.storage.suite import StorageBackendTests


class TestMemory(StorageBackendTests):
    takes_clock = True

    @pytest.fixture
    async def store(self, clock):
        async with MemoryStorage(clock=clock) as store:
            yield store


def test_the_memory_store_and_plain_lists_tell_the_same_story():
    run_story(MemoryStorage, max_examples=10, steps=40)


@pytest.mark.soak
def test_the_memory_store_and_plain_lists_tell_the_same_long_story():
    run_story(MemoryStorage, max_examples=3000, steps=60)
