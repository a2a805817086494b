"""Everything a store, a place of vectors and a key-value memory promise, as classes of tests; ours pass them."""

from tests.storage.suite.kv import KVMemoryTests
from tests.storage.suite.storage import StorageBackendTests
from tests.storage.suite.vectors import VectorTests

__all__ = ["KVMemoryTests", "StorageBackendTests", "VectorTests"]
