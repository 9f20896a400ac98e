"""A Debian 13 with Slurm 24.11 in a directory, and Debian 12's Python in it."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Sequence
from pathlib import Path

from labkit import layout, mirror, prerequisites, record
from labkit.enter import ROOT_PATH
from labkit.errors import LabError, PrerequisiteError

SUITE = "trixie"
PACKAGES = (
    "bindfs",
    "ca-certificates",
    "hostname",
    "iproute2",
    "libgomp1",
    "libnuma1",
    "mariadb-client-core",
    "mariadb-server-core",
    "munge",
    "openssl",
    "procps",
    "python3",
    "slurm-wlm",
    "slurmdbd",
)
# The software environment of the nodes is made from this Python, which Debian 13 has not.
PYTHON = "python3.11"
PYTHON_CHECK = "import ssl, sqlite3, ctypes, bz2, lzma, readline, zlib, hashlib, uuid"
MARK = ".exaslurm-lab-chroot"
DEBOOTSTRAP_TIMEOUT_S = 1800.0


def _run(argv: Sequence[str], timeout_s: float = 120) -> str:
    """Run and return stdout. Raises LabError with the end of what the command said."""
    result = subprocess.run(
        argv,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={"PATH": ROOT_PATH, "LANG": "C.UTF-8"},
        timeout=timeout_s,
    )
    if result.returncode:
        tail = "\n".join(result.stdout.splitlines()[-8:])
        raise LabError(f"`{' '.join(argv)}` failed ({result.returncode}):\n{tail}")
    return result.stdout


def _debootstrap(directory: Path) -> None:
    """Make the system in a draft directory and rename it, so that no half one is ever used."""
    draft = directory.with_name(directory.name + ".partial")
    if draft.exists():
        shutil.rmtree(draft)
    draft.parent.mkdir(parents=True, exist_ok=True)
    address = mirror.debian_mirror(mirror.read_sources())
    include = f"--include={','.join(PACKAGES)}"
    argv = ["debootstrap", "--variant=minbase", include, SUITE, str(draft), address]
    print(f"Debian {SUITE} from {address}: a minute or two", file=sys.stderr, flush=True)
    try:
        _run(argv, DEBOOTSTRAP_TIMEOUT_S)
    except LabError as error:
        log = draft / "debootstrap/debootstrap.log"
        raise LabError(f"{error}\nIts log is {log}") from error
    shutil.rmtree(draft / "var/cache/apt/archives", ignore_errors=True)
    (draft / MARK).write_text("\n".join(PACKAGES) + "\n")
    draft.rename(directory)


def needed_libraries(objects: Iterable[Path]) -> dict[str, Path]:
    """Names and files of all shared libraries that these ELF files load, by ldd."""
    found = {}
    for path in objects:
        result = subprocess.run(["ldd", str(path)], capture_output=True, text=True, timeout=30)
        for name, file in re.findall(r"^\s*(\S+) => (/\S+)", result.stdout, re.MULTILINE):
            found[name] = Path(file)
    return found


def _copy_python(directory: Path) -> None:
    """Copy the machine's Python, and the libraries it needs that the chroot lacks."""
    library = Path("/usr/lib") / PYTHON
    program = Path("/usr/bin") / PYTHON
    if not program.is_file() or not library.is_dir():
        raise PrerequisiteError(
            f"no {program} here: `apt-get install {PYTHON}` (Debian 12) brings it"
        )
    shutil.copy2(program, directory / "usr/bin")
    for source in (library, Path("/etc") / PYTHON):
        if source.is_dir():
            target = directory / source.relative_to("/")
            skip = shutil.ignore_patterns("__pycache__", "test")
            shutil.copytree(source, target, symlinks=True, dirs_exist_ok=True, ignore=skip)
    (directory / "usr/local/lib").mkdir(parents=True, exist_ok=True)
    places = [directory / "usr/lib" / _multiarch(), directory / "usr/lib"]
    objects = [program, *(library / "lib-dynload").glob("*.so")]
    for name, file in sorted(needed_libraries(objects).items()):
        if not any((place / name).exists() for place in places):
            shutil.copy2(file, directory / "usr/local/lib" / name)
    _run(["chroot", str(directory), "ldconfig"])
    _run(["chroot", str(directory), PYTHON, "-c", PYTHON_CHECK])


def _multiarch() -> str:
    """Directory name of this architecture's libraries, such as x86_64-linux-gnu."""
    return str(sysconfig.get_config_var("MULTIARCH"))


def _has_system(directory: Path) -> bool:
    mark = directory / MARK
    return mark.is_file() and mark.read_text().split() == list(PACKAGES)


def _has_python(directory: Path) -> bool:
    argv = ["chroot", str(directory), PYTHON, "-c", PYTHON_CHECK]
    environment = {"PATH": ROOT_PATH}
    return subprocess.run(argv, capture_output=True, env=environment, timeout=60).returncode == 0


def _make_system(directory: Path, may_install: bool) -> None:
    if not prerequisites.has_command("debootstrap"):
        prerequisites.require_packages(["debootstrap"], may_install)
    if (directory / MARK).is_file():
        users = [lab for lab in map(record.load, layout.lab_names()) if lab and lab.any_alive()]
        names = [lab.config.name for lab in users if lab.config.slurm_root == str(directory)]
        if names:
            raise LabError(f"{directory} must be made anew: take down {', '.join(names)} first")
        shutil.rmtree(directory)
    if directory.exists():
        if not directory.is_dir() or any(directory.iterdir()):
            raise LabError(f"{directory}: not made by `scripts/lab chroot`, so it is left alone")
        directory.rmdir()
    _debootstrap(directory)


def make(directory: Path, may_install: bool) -> bool:
    """Make the chroot; return False if it was complete already.

    Raises LabError if `directory` holds anything that this function did not make.
    """
    made = False
    if not _has_system(directory):
        _make_system(directory, may_install)
        made = True
    if not _has_python(directory):
        _copy_python(directory)
        made = True
    return made
