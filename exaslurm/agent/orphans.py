"""The last duty of an agent whose init was killed: nobody else can end what init had started."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterable
from pathlib import Path

from exaslurm.agent.children import Child


def kill_sessions(children: Iterable[Child]) -> int:
    """SIGKILL every process in the sessions that init made for these children; how many."""
    sessions = {child.pid: child.start for child in children}
    killed = 0
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        with contextlib.suppress(OSError, ValueError, IndexError):
            text = Path(f"/proc/{entry}/stat").read_text(encoding="utf-8", errors="replace")
            fields = text[text.rfind(")") + 2 :].split()
            session, start = int(fields[3]), int(fields[19])
            # A later process may have got the number of a session that is gone.
            if session in sessions and start >= sessions[session]:
                os.kill(int(entry), signal.SIGKILL)
                killed += 1
    return killed
