"""Create files and folders that hold conversations, readable by their owner only from the first byte.

The mode is set at creation. Creating them with the process defaults and restricting them afterwards would leave them
readable in between, and the umask belongs to the host. Existing files and folders keep the mode their owner set.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path

#: POSIX: closing a file releases every lock this process holds on it. So no file is opened here during its creation.
_creation_lock = threading.Lock()


def create_file(path: str | os.PathLike[str]) -> bool:
    """Create an empty file unless it exists; return whether it was created.

    SQLite gives its journal, WAL and shared memory the mode of the database they belong to.
    """
    target = os.path.realpath(path)  # a link to a file that is yet to be made is followed, as SQLite does
    with _creation_lock:
        try:
            os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        except FileExistsError:
            return False
    return True


def create_folder(path: str | os.PathLike[str]) -> None:
    """Create a folder and its missing parents; leave existing ones unchanged."""
    target = Path(path)
    for folder in (*reversed(target.parents), target):
        folder.mkdir(0o700, exist_ok=True)
