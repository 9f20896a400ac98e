"""The hardware's own rates, by ``ib_write_lat`` and ``ib_write_bw`` where they are installed.

Command lines and output as in linux-rdma/perftest 24 and 25 (``src/perftest_parameters.{c,h}``).
They were checked against recorded output only: nobody has run this module on RDMA hardware yet.
The tools exchange their addresses over a TCP port that asks nobody for a key, so they run only
where that was asked for.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from exaslurm.errors import PreflightFailed

LATENCY, BANDWIDTH = "ib_write_lat", "ib_write_bw"
_PROC = Path("/proc")
_LISTEN = "0A"
_ITERATIONS = 1000
_START_S = 5.0
_BW_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class RdmaMeasured:
    """Of RDMA writes: half a round trip of 2 bytes in microseconds, and Gbit/s of blocks of
    1 MiB. ``latency_p99_us`` is None with versions that do not print it."""

    latency_us: float
    latency_p99_us: float | None
    gbps: float


def installed() -> bool:
    """Whether both tools are on PATH."""
    return all(shutil.which(tool) is not None for tool in (LATENCY, BANDWIDTH))


def argv(
    tool: str, device: str, ib_port: int, tcp_port: int, *, peer: str | None = None
) -> tuple[str, ...]:
    """The command line: without ``peer`` the side that waits, with it the one that calls."""
    return (
        tool,
        *("--ib-dev", device, "--ib-port", str(ib_port), "--port", str(tcp_port)),
        *("--iters", str(_ITERATIONS)),
        *(("--size", str(_BW_BYTES), "--report_gbits") if tool == BANDWIDTH else ()),
        "--CPU-freq",  # no warning where the clock of the cores may change
        *((peer,) if peer is not None else ()),
    )


def latency_us(output: str) -> tuple[float, float | None]:
    """(typical, 99th percentile) of ``ib_write_lat``. PreflightFailed if it has no result."""
    values = _columns(output, LATENCY)
    typical = values.get("t_typical[usec]")
    if typical is None:
        raise PreflightFailed(f"{LATENCY}: no t_typical in its result")
    return typical, values.get("99% percentile[usec]")


def bandwidth_gbps(output: str) -> float:
    """Average of ``ib_write_bw``, in whichever unit it was printed. PreflightFailed if it has no
    result."""
    values = _columns(output, BANDWIDTH)
    for unit, factor in (
        ("Gb/sec", 1.0),
        ("MB/sec", 8 * 2**20 / 1e9),  # it divides by 2^20 and calls that MB (newer: MiB)
        ("MiB/sec", 8 * 2**20 / 1e9),
    ):
        average = values.get(f"BW average[{unit}]")
        if average is not None:
            return average * factor
    raise PreflightFailed(f"{BANDWIDTH}: no BW average in its result")


@contextlib.contextmanager
def waiting(tool: str, device: str, ib_port: int, tcp_port: int) -> Iterator[bool]:
    """The side that waits: true once it listens. At the end it gets a moment to finish."""
    try:
        process = subprocess.Popen(
            argv(tool, device, ib_port, tcp_port),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    except OSError:
        yield False
        return
    try:
        yield wait_for_listener(tcp_port, timeout_s=_START_S)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_START_S)
    finally:
        process.kill()
        process.wait()


def call(
    tool: str, device: str, ib_port: int, tcp_port: int, peer: str, *, timeout_s: float
) -> str:
    """The side that calls: the tool's output. PreflightFailed with its last words if it fails."""
    return _run(argv(tool, device, ib_port, tcp_port, peer=peer), timeout_s)


def wait_for_listener(port: int, *, timeout_s: float, proc: Path = _PROC) -> bool:
    """Whether some process of this host listens on ``port`` within ``timeout_s``. Looked up, not
    tried: the tool would take the attempt for its partner."""
    deadline = time.monotonic() + timeout_s
    wanted = f":{port:04X}"
    while True:
        for table in ("net/tcp", "net/tcp6"):
            with contextlib.suppress(OSError):
                for line in (proc / table).read_text(encoding="ascii").splitlines()[1:]:
                    fields = line.split()
                    if fields[1].endswith(wanted) and fields[3] == _LISTEN:
                        return True
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.05)


def _run(command: Sequence[str], timeout_s: float) -> str:
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout_s
        )
    except FileNotFoundError as error:
        raise PreflightFailed(f"{command[0]} is not installed") from error
    except subprocess.TimeoutExpired as error:
        raise PreflightFailed(f"{command[0]}: no result in {timeout_s:g} s") from error
    if done.returncode != 0:
        words = (done.stderr or done.stdout).strip().splitlines()
        raise PreflightFailed(f"{command[0]} ended with {done.returncode}: {' '.join(words[-2:])}")
    return done.stdout


def _columns(output: str, tool: str) -> Mapping[str, float]:
    """The result line by the names above it. Columns are told apart by the bracket that ends
    each name, except the first two."""
    names: list[str] = []
    for line in output.splitlines():
        if line.lstrip().startswith("#bytes"):
            rest = re.split(r"#iterations", line, maxsplit=1)[-1]
            names = ["#bytes", "#iterations", *(n.strip() for n in re.findall(r"[^\]]+\]", rest))]
            continue
        fields = line.split()
        if names and fields and re.fullmatch(r"\d+", fields[0]):
            with contextlib.suppress(ValueError):
                return dict(zip(names, map(float, fields), strict=False))
    raise PreflightFailed(f"{tool}: no result in its output: {output.strip()[-200:]!r}")
