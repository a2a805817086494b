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
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

#: Who runs a server when we are root, since PostgreSQL and PgBouncer refuse to: "nobody", everywhere by this number.
NOBODY = 65534
#: Seconds within which a server answers or ends, on a machine that is very busy.
PATIENCE = 60.0

# Told the server's process id; when its input ends without another word, the tests died: end the server, then its
# folder.
_WATCHDOG = """
read -r pid && read -r word && exit
[ -z "$pid" ] || {
    kill -s "$1" "$pid"
    for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
        sleep 0.1
        kill -s 0 "$pid" || break
        grep -q ") Z " "/proc/$pid/stat" && break  # ended; in a container nobody may ask how
        sleep 0.2
    done
    kill -s KILL "$pid"
}
rm -rf -- "$2"
"""


class ServerError(Exception):
    """A server did not start or stop, or its program is missing; the message has the remedy, or its output."""


def is_root() -> bool:
    return os.geteuid() == 0


def as_user() -> dict[str, Any]:
    """Return the arguments that make `subprocess` run a program as an ordinary user when we are root."""
    return {"user": NOBODY, "group": NOBODY, "extra_groups": []} if is_root() else {}


def server_environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment of a server: nothing of ours, such as PGHOST or LD_PRELOAD, reaches it."""
    return {"PATH": "/usr/bin:/bin", "LC_ALL": "C", **(more or {})}


# ── folders ─────────────────────────────────────────────────────────────────────────────────────────────────────────


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


def _open_to_all(place: str) -> bool:
    path = Path(place).resolve()
    return all(folder.stat().st_mode & stat.S_IXOTH for folder in (path, *path.parents))


def link_tree(source: Path, target: Path) -> None:
    """Put a tree of programs where the server's user may read it: hard links, or copies where a link cannot serve."""
    for folder, folders, files in os.walk(source):
        made = target / Path(folder).relative_to(source)
        made.mkdir(parents=True)
        made.chmod(0o755)
        for name in (*folders, *files):
            _link_tree(Path(folder, name), made / name)


def _link_tree(old: Path, new: Path) -> None:
    if old.is_symlink():
        return new.symlink_to(os.readlink(old))
    if old.is_dir():
        return None
    mode = old.stat().st_mode
    program = bool(mode & stat.S_IXUSR)
    if mode & stat.S_IROTH and (mode & stat.S_IXOTH or not program):
        try:
            return new.hardlink_to(old)
        except OSError:  # another file system, or a file that is not ours
            pass
    shutil.copyfile(old, new)
    new.chmod(0o755 if program else 0o644)
    return None


# ── ports ───────────────────────────────────────────────────────────────────────────────────────────────────────────


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

    def takes_connections(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.number)) == 0

    def release(self) -> None:
        self._held.close()


# ── processes ───────────────────────────────────────────────────────────────────────────────────────────────────────


class Process:
    """One running program with its watchdog; its output goes to `log`."""

    def __init__(
        self, command: Sequence[str | Path], folder: Path, *, env: Mapping[str, str], ends_on: signal.Signals
    ) -> None:
        self._name = str(command[0])
        self._log = folder / "log"
        self._watchdog = subprocess.Popen(
            ["/bin/sh", "-c", _WATCHDOG, "watchdog", ends_on.name.removeprefix("SIG"), str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for pytest, which then stops the server in order
        )
        with self._log.open("ab") as log:
            self._popen = subprocess.Popen(
                [str(word) for word in command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=folder,
                env=server_environment(env),
                start_new_session=True,
                **as_user(),
            )
        self._tell(f"{self._popen.pid}\n")

    def _tell(self, words: str) -> None:
        assert self._watchdog.stdin
        with suppress(BrokenPipeError):  # somebody ended the watchdog
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
                raise ServerError(
                    f"{self._name} did not start; it said:\n{self._log.read_text(errors='replace')}"
                )
            time.sleep(0.003)

    def send(self, sign: signal.Signals) -> None:
        self._popen.send_signal(sign)

    def wait(self) -> None:
        """Wait until the program has ended, by itself or by a signal sent before; the watchdog goes with it."""
        try:
            self._popen.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._popen.kill()
            self._popen.wait()
            raise ServerError(f"{self._name} did not end; killed") from None
        finally:
            self._tell("done\n")
            self._watchdog.communicate()


class Service:
    """A server on 127.0.0.1 in a temporary folder; it keeps port and data from start() to close().

    `with` starts and closes it. Not for two threads at once.
    """

    #: The beginning of the folder's name.
    NAME: str
    #: The signal that shuts it down in order.
    STOPS_ON = signal.SIGTERM
    #: The signal that ends it when its data are no longer wanted.
    ENDS_ON = signal.SIGKILL

    def __init__(self) -> None:
        self._port = Port()
        self._folder: Path | None = None
        self._process: Process | None = None
        self._env: dict[str, str] = {}

    def _prepare(self, folder: Path) -> None:
        """Before the first start: find the program, write its files."""
        raise NotImplementedError

    def _command(self) -> Sequence[str | Path]:
        raise NotImplementedError

    def _ready(self) -> bool:
        return self._port.takes_connections()

    @property
    def port(self) -> int:
        return self._port.number

    @property
    def folder(self) -> Path:
        """The temporary folder: data, sockets and `log`."""
        if self._folder is None:
            raise ServerError("the server was never started: call start()")
        return self._folder

    @property
    def pid(self) -> int | None:
        """The process id of the server while it runs."""
        return self._process.pid if self._process else None

    def start(self) -> Self:
        """Start the server and wait until it takes connections; the data of an earlier start are still there."""
        if self._process is not None:
            raise ServerError("the server was started already: call restart()")
        if self._folder is None:
            self._folder = new_folder(self.NAME)
            try:
                self._prepare(self._folder)
            except BaseException:
                self.close()
                raise
        self._process = Process(self._command(), self.folder, env=self._env, ends_on=self.ENDS_ON)
        try:
            self._process.wait_until(self._ready)
        except BaseException:
            self.close()
            raise
        return self

    def stop(self) -> None:
        """Shut the server down in order: connections are cut, committed data stays."""
        self._end(self.STOPS_ON)

    def restart(self) -> None:
        """Start again on the same port with the same data, after stop() if it runs."""
        self.stop()
        self.start()

    def kill(self) -> None:
        """End every process of the server with SIGKILL; written files stay."""
        self._end(signal.SIGKILL)

    def close(self) -> None:
        """End the server, give back its port, delete its folder. The last call."""
        try:
            self._end(self.ENDS_ON)
        finally:
            if self._folder is not None:
                self._free(self._folder)
                shutil.rmtree(self._folder, ignore_errors=True)
            self._port.release()

    def _free(self, folder: Path) -> None:
        """Before its folder is deleted: free what the ended server holds outside of it."""

    def _end(self, sign: signal.Signals) -> None:
        if self._process is not None:
            process, self._process = self._process, None
            process.send(sign)
            process.wait()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()
