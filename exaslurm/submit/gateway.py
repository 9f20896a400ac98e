"""The router process that ``submit`` starts beside itself, and its end."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import sys
import time
from collections.abc import Mapping

from exaslurm.core.submission import RouterAddress
from exaslurm.errors import StateError
from exaslurm.rundir import RunDir
from exaslurm.slurm.environ import outside
from exaslurm.submit.detach import reap, spawn_detached
from exaslurm.submit.talk import Talk
from exaslurm.util.files import make_private_dir, write_atomic
from exaslurm.util.process import is_alive, send_signal

_PAUSE_S = 0.1
_TERM_S = 5.0
_START_S = 10.0


def ensure_gateway(
    run_dir: RunDir, generation: int, *, environ: Mapping[str, str], talk: Talk
) -> None:
    """Start the gateway in the background unless one runs on this host."""
    host = socket.gethostname()
    if any(is_alive(pid, ticks) for pid, ticks in _on_this_host(run_dir, host)):
        return
    make_private_dir(run_dir.gateway)
    pid, ticks = spawn_detached(
        [
            *(sys.executable, "-m", "exaslurm.gateway"),
            *("--run-dir", str(run_dir.path), "--gen", str(generation), "--supervise"),
        ],
        environ=outside(environ),
        log=run_dir.router_log,
        is_up=lambda pid: any(item.pid == pid for item in _routers(run_dir) if item.host == host),
        watch_s=_START_S,
    )
    # Should it be slow to listen, and to enter endpoint.json, a second submit must see it earlier.
    started = {"host": host, "pid": pid, "start_ticks": ticks, "started_s": time.time()}
    write_atomic(run_dir.gateway / "started.json", json.dumps(started) + "\n")
    talk(f"gateway started on {host} (process {pid}, log {run_dir.router_log})")


def stop_gateways(run_dir: RunDir, *, timeout_s: float, talk: Talk) -> list[str]:
    """Wait until this host's gateways have drained and ended, as ``desired.json`` asks of them,
    then end them. Returns what could not be ended. Those of other hosts end by themselves.
    """
    host = socket.gethostname()
    mine = _on_this_host(run_dir, host)
    _until_gone(mine, timeout_s)
    for number in (signal.SIGTERM, signal.SIGKILL):
        for pid, ticks in mine:
            send_signal(pid, ticks, number)
        if _until_gone(mine, _TERM_S):
            break
    for pid, _ in mine:
        reap(pid)
    left = [f"gateway process {pid} on {host}" for pid, ticks in mine if is_alive(pid, ticks)]
    for router in _routers(run_dir):
        if router.host != host:
            talk(f"the gateway on {router.host} (process {router.pid}) drains and ends by itself")
    # What is left of them is known to be dead by its pid, should the directory take no change.
    with contextlib.suppress(OSError):
        (run_dir.gateway / "started.json").unlink()
    with contextlib.suppress(StateError):
        _forget_dead(run_dir, host)
    return left


def _on_this_host(run_dir: RunDir, host: str) -> list[tuple[int, int]]:
    """Pid and start ticks of every gateway that says it runs here."""
    found = [(item.pid, item.start_ticks) for item in _routers(run_dir) if item.host == host]
    started = run_dir.gateway / "started.json"
    try:
        data = json.loads(started.read_text(encoding="utf-8"))
        if data["host"] == host:
            found.append((int(data["pid"]), int(data["start_ticks"])))
    except (OSError, ValueError, KeyError, TypeError):
        pass  # none was started from here
    return list(dict.fromkeys(found))


def _routers(run_dir: RunDir) -> tuple[RouterAddress, ...]:
    try:
        return run_dir.read_routers()
    except StateError:
        return ()


def _forget_dead(run_dir: RunDir, host: str) -> None:
    """Take entries of this host's ended gateways out of endpoint.json."""
    routers = _routers(run_dir)
    alive = tuple(
        item for item in routers if item.host != host or is_alive(item.pid, item.start_ticks)
    )
    if alive != routers:
        run_dir.write_routers(alive)


def _until_gone(processes: list[tuple[int, int]], timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while any(is_alive(pid, ticks) for pid, ticks in processes):
        if time.monotonic() >= deadline:
            return False
        time.sleep(_PAUSE_S)
    return True
