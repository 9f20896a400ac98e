"""The processes beside a router that are killed on purpose: those that serve, and the supervisor.

They are looked for on this host; on another, only the process that has made itself known is known.
"""

from __future__ import annotations

import socket
from pathlib import Path

from exaslurm.chaos.victims import Victim
from exaslurm.core import codec
from exaslurm.core.submission import RouterAddress, SupervisorNotes
from exaslurm.errors import UserError
from exaslurm.rundir import RunDir
from exaslurm.util.files import read_text
from exaslurm.util.process import is_alive


def router_victims(router: RouterAddress) -> tuple[Victim, ...]:
    """The processes of a router that serve: its workers, for whom others are started, or itself."""
    if router.host == socket.gethostname():
        workers = _workers(router.pid)
        if workers:
            return tuple(Victim(host=router.host, pid=pid) for pid in workers)
    return (Victim(host=router.host, pid=router.pid),)


def supervisor_victim(run_dir: RunDir) -> Victim:
    """The supervisor that has written its notes last; UserError if none is known to live."""
    found = read_supervisor(run_dir)
    if found is None:
        raise UserError(f"no supervisor of {run_dir.deployment} is known to run")
    return Victim(host=found.host, pid=found.pid)


def read_supervisor(run_dir: RunDir) -> SupervisorNotes | None:
    """What the supervisor has written, if it lives as far as this host can tell."""
    if not run_dir.supervisor.exists():
        return None
    path = run_dir.supervisor
    notes = codec.loads(SupervisorNotes, read_text(path), where=str(path))
    here = notes.host == socket.gethostname()
    return None if here and not is_alive(notes.pid, notes.start_ticks) else notes


def _workers(parent: int) -> list[int]:
    """Children of a gateway that serve."""
    found = []
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            try:
                fields = (path / "stat").read_text(errors="replace").rpartition(")")[2].split()
                words = (path / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if int(fields[1]) == parent and b"--control-fd" in words:
                found.append(int(path.name))
    return sorted(found)
