"""What every test may ask for."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from acms import compose

ROOT = Path(__file__).parent.parent

pytest_plugins = ["tests.servers.fixtures", "tests.servers.stores", "tests.support.fixtures"]

# Before any test imports a part of it: pytest explains failed assertions only of what it loads itself.
pytest.register_assert_rewrite("acms.testing")

# CI tries the same examples each time, so a red run can be run again; elsewhere every run tries new ones.
EXAMPLES = 50
settings.register_profile(
    "ci", deadline=None, max_examples=EXAMPLES, print_blob=True, derandomize=True, database=None
)
settings.register_profile("dev", deadline=None, max_examples=EXAMPLES, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "dev")


# A test that ranks by meaning names its embedder; all others rank by words, also in processes they start.
os.environ["ACMS_EMBEDDER"] = "none"
os.environ.pop("COLUMNS", None)  # workers of a parallel run have a terminal's; a pipe has none


def pytest_collection_finish() -> None:
    """Let the garbage collector pass over thousands of collected tests: some tests call it, and each call reads all."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _no_model() -> Iterator[None]:
    """Let `embedder="auto"` be no model, whatever is installed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compose, "default_embedder", lambda: None)
        yield


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Async tests run on asyncio, the one loop ACMS promises."""
    return "asyncio"


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of real conversations: $ACMS_DATA, or shared/data beside the repository."""
    folder = Path(os.environ.get("ACMS_DATA") or ROOT.parent / "shared" / "data")
    if not folder.is_dir():
        pytest.skip(f"no conversations in {folder}: set ACMS_DATA to a folder that has them")
    return folder
