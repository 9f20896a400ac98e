"""Processes of a benchmark: kept to cores, watched, and ended in any case."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parent.parent
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_END_S = 5.0
# Short beside a measurement, and no multiple of the clock by which the kernel counts who is busy.
_PERIOD_US = 7000
# Below those that the kernel gives to connections, where it can be helped.
_PORTS = range(10240, 32000)


def told(script: str) -> str:
    """What one of the project's scripts prints."""
    program = ROOT / "scripts" / script
    return subprocess.run([program], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


@contextlib.contextmanager
def on_cores(cores: Iterable[int]) -> Iterator[None]:
    """What is started meanwhile runs on these cores, and believes that there are no others."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def free_port() -> int:
    """A port that nobody listens on now."""
    for port in random.sample(_PORTS, 200):
        with socket.socket() as sock:
            try:
                sock.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise OSError("no free port")


def tree(pid: int) -> list[int]:
    """The process and all that it and its children started, as far as they live."""
    found = [pid]
    for one in found:
        for task in _listed(f"/proc/{one}/task"):
            with contextlib.suppress(OSError):
                text = Path(f"/proc/{one}/task/{task}/children").read_text()
                found += [int(child) for child in text.split()]
    return found


def _listed(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def cpu_s(pids: Iterable[int]) -> float:
    """CPU seconds, of user and system, that they have used."""
    ticks = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
    return ticks / TICKS_PER_S


def busy_s() -> float:
    """CPU seconds that the machine has spent on anything since it runs."""
    with open("/proc/stat") as file:
        user, nice, system, _idle, _wait, irq, soft, steal = map(int, file.readline().split()[1:9])
    return (user + nice + system + irq + soft + steal) / TICKS_PER_S


def rss_mb(pids: Iterable[int]) -> float:
    """Resident memory in MB, all of them together."""
    pages = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            pages += int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


@contextlib.contextmanager
def held(pids: Iterable[int], cores: float) -> Iterator[None]:
    """Each of these processes gets at most so many cores, on whichever it runs: groups of the
    kernel's (cgroups), which root can make. OSError if that cannot be had here."""
    root = Path("/sys/fs/cgroup")
    if (root / "cgroup.controllers").exists():
        if "cpu" not in (root / "cgroup.subtree_control").read_text().split():
            raise OSError(f"{root} does not divide the CPU")
        limits = {"cpu.max": f"{int(_PERIOD_US * cores)} {_PERIOD_US}"}
    else:
        root /= "cpu"
        limits = {
            "cpu.cfs_period_us": str(_PERIOD_US),
            "cpu.cfs_quota_us": str(int(_PERIOD_US * cores)),
        }
    with contextlib.ExitStack() as stack:
        for pid in pids:
            group = root / f"exaslurm-benchmark-{pid}"
            group.mkdir()
            stack.callback(group.rmdir)
            for name, value in limits.items():
                (group / name).write_text(value)
            before = root / _group(pid) / "cgroup.procs"
            (group / "cgroup.procs").write_text(str(pid))
            stack.callback(_put_back, pid, before)
        yield


def _group(pid: int) -> str:
    """The group that divides the CPU for a process, below where groups are."""
    lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    paths = {controllers: path for _, controllers, path in (line.split(":", 2) for line in lines)}
    of_cpu = (path for controllers, path in paths.items() if "cpu" in controllers.split(","))
    return next(of_cpu, paths.get("", "/")).strip("/")


def _put_back(pid: int, group: Path) -> None:
    with contextlib.suppress(ProcessLookupError):
        group.write_text(str(pid))


class Running:
    """A process and its children, from its start to the end of the ``with`` block."""

    def __init__(
        self,
        command: Sequence[str | Path],
        *,
        cores: Iterable[int],
        log: IO[bytes],
        env: Mapping[str, str] | None = None,
        folder: Path | None = None,
        piped: bool = False,
    ) -> None:
        pipe = subprocess.PIPE if piped else None
        with on_cores(cores):
            # Ctrl-C is for us, who end them one after the other.
            self.process = subprocess.Popen(
                command,
                stdin=pipe or subprocess.DEVNULL,
                stdout=pipe or log,
                stderr=log,
                env={**os.environ, **(env or {})},
                cwd=folder,
                start_new_session=True,
            )

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    @property
    def pids(self) -> list[int]:
        return tree(self.process.pid) if self.process.poll() is None else []

    def end(self) -> None:
        """SIGTERM, and after some seconds SIGKILL to what is left of it and its children."""
        born = {pid: _born(pid) for pid in self.pids}
        if born:
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(_END_S)
            born |= {pid: _born(pid) for pid in self.pids}
            for pid, when in born.items():
                # A number may by now be that of another process.
                if when is not None and _born(pid) == when:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()


def _born(pid: int) -> str | None:
    """When it was started; None: there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return None
