"""A process to be killed in the middle of a merge: merges "theirs" into "ours" of a file, and says when it begins."""

from __future__ import annotations

import asyncio
import sys

from acms import ACMS, open_storage


async def merge_file(path: str) -> None:
    """Open the file, tell that the merge begins, and merge."""
    async with open_storage(f"sqlite:///{path}") as storage:
        ours, theirs = ACMS("ours", storage, None), ACMS("theirs", storage, None)
        await theirs.get_session_stats()
        print("go", flush=True)
        await ours.merge(theirs)
        print("done", flush=True)
        await ours.close()
        await theirs.close()


asyncio.run(merge_file(sys.argv[1]))
