"""Files and folders that hold what was said: only their owner may read them, from their first byte.

The mode is given as they are made. To make them by the habits of the process and to narrow them afterwards would let
others in meanwhile, and the umask belongs to the host. What is there already keeps the mode its owner gave it.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path

#: POSIX: who closes a file gives up every lock this process has on it. Nobody opens a file here that is being made.
_making = threading.Lock()


def create_file(path: str | os.PathLike[str]) -> bool:
    """Make an empty file, or leave alone what is there; return whether it was made.

    SQLite gives its journal, WAL and shared memory the mode of the database they belong to.
    """
    place = os.path.realpath(path)  # a link to a file that is yet to be made is followed, as SQLite does
    with _making:
        try:
            os.close(os.open(place, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        except FileExistsError:
            return False
    return True


def create_folder(path: str | os.PathLike[str]) -> None:
    """Make a folder with those above it that are missing, or leave alone what is there."""
    place = Path(path)
    for folder in (*reversed(place.parents), place):
        folder.mkdir(0o700, exist_ok=True)
