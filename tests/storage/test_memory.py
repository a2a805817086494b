import pytest

from acms.storage import MemoryStorage
from acms.testing import StorageBackendTests


class TestMemory(StorageBackendTests):
    takes_clock = True

    @pytest.fixture
    async def store(self, clock):
        async with MemoryStorage(clock=clock) as store:
            yield store
