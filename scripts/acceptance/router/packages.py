"""The environment of the clients: packages that nothing else of the project needs."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from acceptance.lab import ROOT
from acceptance.runner import Line, LineFailed

_PINS = ROOT / "requirements" / "clients.txt"
_BUILD_S = 900


def client_python(line: Line) -> str:
    """The Python that has them. It is built where it is missing, or its pins have changed."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    home = Path(base) / "exaslurm-acceptance"
    home.mkdir(parents=True, exist_ok=True)
    pins = _PINS.read_bytes()
    stamp = hashlib.sha256(pins + sys.version.encode()).hexdigest()
    env = home / "clients"
    with (home / "clients.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = env / "stamp"
        if not done.exists() or done.read_text() != stamp:
            line.note(f"installing the clients in {env}")
            _build(env)
            done.write_text(stamp)
    return str(env / "bin" / "python")


def _build(env: Path) -> None:
    shutil.rmtree(env, ignore_errors=True)
    python = str(env / "bin" / "python")
    install = [python, "-m", "pip", "install", "-q", "-r", str(_PINS)]
    for command in ([sys.executable, "-m", "venv", str(env)], install):
        done = subprocess.run(command, capture_output=True, text=True, timeout=_BUILD_S)
        if done.returncode:
            raise LineFailed(f"{' '.join(command)}: {done.stderr[-1000:]}")
