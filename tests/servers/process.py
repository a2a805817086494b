"""A program started for a test: in a folder of its own, as a user who may run it, gone when the tests are gone."""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

#: Who runs a server when we are root, since PostgreSQL and PgBouncer refuse to: "nobody", everywhere by this number.
NOBODY = 65534
#: Seconds within which a server answers or ends, on a machine that is very busy.
PATIENCE = 60.0

# Told the server's process id; when its input ends without a word, the tests died: end the server, then its folder.
_WATCHDOG = """
read -r pid && read -r word && exit
[ -z "$pid" ] || {
    kill -s "$1" "$pid"
    for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do kill -s 0 "$pid" || break; sleep 0.25; done
    kill -s KILL "$pid"
}
rm -rf -- "$2"
"""


class ServerError(Exception):
    """A server did not start or stop; the message ends with what it wrote."""


def is_root() -> bool:
    return os.geteuid() == 0


def new_folder(name: str) -> Path:
    """Make a private temporary folder for a server: short enough for a socket's path, owned by who runs the server."""
    for place in dict.fromkeys((tempfile.gettempdir(), "/tmp", "/var/tmp", "/dev/shm")):
        if (
            len(place) <= 60
            and os.access(place, os.W_OK | os.X_OK)
            and (not is_root() or _open_to_all(place))
        ):
            folder = Path(tempfile.mkdtemp(prefix=f"acms-{name}-", dir=place))
            if is_root():
                os.chown(folder, NOBODY, NOBODY)
            return folder
    raise ServerError("no temporary folder that other users may enter: set TMPDIR to one")


def _open_to_all(place: str | Path) -> bool:
    place = Path(place).resolve()
    return all(folder.stat().st_mode & stat.S_IXOTH for folder in (place, *place.parents))


def link_tree(source: Path, target: Path) -> None:
    """Put a tree of programs where the server's user may read it: hard links, or copies where a link cannot serve."""

    def link(old: str, new: str) -> None:
        mode = os.stat(old).st_mode
        open_to_all = mode & stat.S_IROTH and (mode & stat.S_IXOTH or not mode & stat.S_IXUSR)
        if open_to_all:
            try:
                return os.link(old, new)
            except OSError:  # another file system
                pass
        shutil.copyfile(old, new)
        os.chmod(new, 0o755 if mode & stat.S_IXUSR else 0o644)

    for folder, _, files in os.walk(source):
        made = target / Path(folder).relative_to(source)
        made.mkdir(parents=True)
        made.chmod(0o755)
        for file in files:
            link(os.path.join(folder, file), str(made / file))


class Port:
    """A free TCP port on 127.0.0.1, kept for one server from its first start to its end.

    Below the range from which outgoing connections take theirs, and held by the UDP port of the same number: so
    nobody takes it while the server is down, neither another test process nor the client that tries to connect.
    """

    def __init__(self) -> None:
        for _ in range(200):
            self.number = random.SystemRandom().randrange(15000, 32000)
            self._held = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            try:
                self._held.bind(("127.0.0.1", self.number))
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", self.number))
                return
            except OSError:
                self._held.close()
        raise ServerError("no free port between 15000 and 32000 on 127.0.0.1")

    def release(self) -> None:
        self._held.close()


class Process:
    """One running program with its watchdog; its output goes to `log`."""

    def __init__(
        self,
        command: Sequence[str | Path],
        folder: Path,
        *,
        ends_on: signal.Signals,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.log = folder / "log"
        self._watchdog = subprocess.Popen(
            ["/bin/sh", "-c", _WATCHDOG, "watchdog", ends_on.name.removeprefix("SIG"), str(folder)],
            stdin=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for pytest, which then stops the server in order
        )
        with self.log.open("ab") as log:
            self._popen = subprocess.Popen(
                list(map(str, command)),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=folder,
                env=environment(env),
                start_new_session=True,
                **as_nobody(),
            )
        self._tell(f"{self._popen.pid}\n")

    def _tell(self, words: str) -> None:
        assert self._watchdog.stdin
        self._watchdog.stdin.write(words.encode())
        self._watchdog.stdin.flush()

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def running(self) -> bool:
        return self._popen.poll() is None

    def wait_until(self, ready: Callable[[], bool]) -> None:
        """Wait until the server is ready. Raises ServerError when it ends instead."""
        deadline = time.monotonic() + PATIENCE
        while not ready():
            if not self.running or time.monotonic() > deadline:
                said = self.log.read_text(errors="replace")[-2000:]
                raise ServerError(f"{self._popen.args[0]} did not start; it said:\n{said}")  # type: ignore[index]
            time.sleep(0.005)

    def send(self, sign: signal.Signals) -> None:
        self._popen.send_signal(sign)

    def wait(self) -> None:
        """Wait until the program has ended by itself or by a signal sent to it; the watchdog goes with it."""
        try:
            self._popen.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._popen.kill()
            self._popen.wait()
            raise ServerError(f"{self._popen.args[0]} did not end; killed") from None  # type: ignore[index]
        finally:
            self._tell("done\n")
            self._watchdog.communicate()


def environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment of a server: nothing of ours, such as PGHOST or LD_PRELOAD, reaches it."""
    return {"PATH": "/usr/bin:/bin", "LC_ALL": "C", **(more or {})}


def as_nobody() -> dict[str, object]:
    """Return the arguments that make `subprocess` run a program as an ordinary user when we are root."""
    return {"user": NOBODY, "group": NOBODY, "extra_groups": []} if is_root() else {}
