"""Programs of Debian's packages: those of the system, or unpacked into a cache without touching the system.

`apt-get download` and `dpkg -x` need no root; lists of packages and downloads are kept beside what was unpacked. What
is unpacked is the packages named here and the libraries that the system lacks for them, not all they depend on.
"""

from __future__ import annotations

import fcntl
import os
import platform
import re
import shutil
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path

from tests.servers.process import ServerError, is_root, link_tree

# Where a program lies in Debian → the packages that bring it.
_PACKAGES = {
    "usr/bin/redis-server": ("redis-server", "redis-tools"),  # the first is a link to a file of the second
    "usr/sbin/pgbouncer": ("pgbouncer",),
    "usr/lib/postgresql/15/bin/postgres": ("postgresql-15", "postgresql-client-15"),
    "usr/lib/chromium/chromium": ("chromium", "chromium-common", "fonts-dejavu-core"),
}
_LIBRARIES = (
    "usr/lib/*-linux-gnu*",
    "usr/lib/*-linux-gnu*/nss",
    "usr/lib/*-linux-gnu*/pulseaudio",
    "lib/*-linux-gnu*",
)
# Large, and loaded only by what we do not use (the JIT compiler of PostgreSQL).
_WITHOUT = {"libllvm14"}


def find_program(place: str, folder: Path) -> tuple[Path, dict[str, str]]:
    """Return a program and the environment it needs.

    From the PATH, from its place in the system, or fetched; what was fetched is put into `folder` when we are root,
    since who runs it may not read our cache. Raises ServerError naming the package to install.
    """
    packages = _PACKAGES.get(place)
    if packages is None:
        raise ServerError(f"no package is known for /{place}; those known are {sorted(_PACKAGES)}")
    if (found := installed_program(place)) is not None:
        return found, {}
    root = unpacked_packages(packages)
    if is_root():
        link_tree(root, folder / "debian")
        root = folder / "debian"
    libraries = [str(path) for pattern in _LIBRARIES for path in root.glob(pattern)]
    return root / place, {"LD_LIBRARY_PATH": os.pathsep.join(libraries)}


def installed_program(place: str) -> Path | None:
    """Return a program that the machine has."""
    path = Path("/", place)
    if not path.exists() and "/lib/" not in place:  # there a folder holds one version of many programs
        path = Path(shutil.which(path.name) or path)
    return path if path.exists() else None


def unpacked_packages(packages: tuple[str, ...]) -> Path:
    """Return the folder in which packages are unpacked; fetch them if they are not there yet."""
    cache = _cache_folder()
    root = cache / packages[0]
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another test process may be fetching them right now
        if not root.exists():
            with tempfile.TemporaryDirectory(dir=cache) as unfinished:
                for file in _download_packages(packages, cache, Path(unfinished)):
                    _run_command("dpkg", "-x", file.name, "root", folder=file.parent)
                Path(unfinished, "root").rename(root)
    return root


def _cache_folder() -> Path:
    """Return the folder of what we fetched for this release of the system: the user's, or the environment's."""
    release = platform.freedesktop_os_release() if Path("/etc/os-release").exists() else {}
    name = f"{release.get('ID', 'unknown')}-{release.get('VERSION_ID', '')}-{platform.machine()}"
    user = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    temporary = os.path.join(tempfile.gettempdir(), f"acms-tests-{os.geteuid()}")
    for place in (Path(user, "acms-tests", name), Path(temporary, name)):
        with suppress(OSError):
            if not place.is_absolute():  # a user without a home
                continue
            place.mkdir(parents=True, exist_ok=True, mode=0o700)
            if os.access(place, os.W_OK) and place.parent.stat().st_uid == os.geteuid():
                return place
    raise ServerError(
        "no folder to keep Debian's programs in: set XDG_CACHE_HOME to one that you may write to"
    )


def _download_packages(packages: tuple[str, ...], cache: Path, into: Path) -> list[Path]:
    if not shutil.which("apt-get") or not shutil.which("dpkg"):
        raise ServerError(
            f"install {' and '.join(packages)}: they are not there, and there is no apt-get to fetch them"
        )
    private = (
        *("-o", f"Dir::Cache={cache / 'apt'}"),
        *(
            "-o",
            "Dir::Cache::pkgcache=packages",
        ),  # images switch it off; without it every call reads all lists
        *("-o", "Dir::Cache::srcpkgcache=sources"),
        *("-o", "APT::Sandbox::User=root"),  # root's downloads too: the user _apt may not enter our cache
    )
    ours = ("-o", f"Dir::State::Lists={cache / 'lists'}")
    (cache / "apt" / "archives" / "partial").mkdir(parents=True, exist_ok=True)
    (cache / "lists" / "partial").mkdir(parents=True, exist_ok=True)
    try:
        return _fetch_packages(packages, private, into)
    except ServerError:  # no lists, as on a fresh machine, or so old that their files are gone
        try:
            _run_command("apt-get", "update", "-qq", *private, *ours, folder=into)
            return _fetch_packages(packages, (*private, *ours), into)
        except ServerError as error:
            raise ServerError(
                f"install {' and '.join(packages)}: they could not be fetched: {error}"
            ) from None


def _fetch_packages(packages: tuple[str, ...], options: tuple[str, ...], into: Path) -> list[Path]:
    said = _run_command("apt-cache", "show", "--no-all-versions", *options, *packages, folder=into)
    depends = re.findall(r"^Depends: (.*)$", said, re.MULTILINE)
    libraries = {name for line in depends for name in re.findall(r"(?:^|, )(lib[^\s,:]+)", line)} - _WITHOUT
    # Without doing anything, apt says what it would install: of the libraries, what the system lacks, not upgrades.
    plan = _run_command(
        "apt-get", "install", "-s", "--no-install-recommends", *options, *sorted(libraries), folder=into
    )
    lacking = sorted(set(re.findall(r"^Inst (lib\S+) \(", plan, re.MULTILINE)))
    _run_command("apt-get", "download", "-qq", *options, *packages, *lacking, folder=into)
    return sorted(into.glob("*.deb"))


def _run_command(*command: str, folder: Path) -> str:
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "LC_ALL": "C"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=600,
    )
    if done.returncode:
        raise ServerError(f"`{' '.join(command)}` failed: {done.stderr.strip()[-1000:]}")
    return done.stdout
