"""The host that is examined: its files below a root, and what only a living one can tell."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path


def _lookup(name: str) -> str:
    """First IPv4 or IPv6 address of a host name; OSError if it does not resolve."""
    return str(socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)[0][4][0])


@dataclass(frozen=True, kw_only=True)
class Host:
    """``root``: where its ``sys``, ``proc`` and other directories begin. ``recorded``: the tree is
    a copy; what needs the living host is skipped. The rest is replaced in tests."""

    name: str
    root: Path = Path("/")
    recorded: bool = False
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    lookup: Callable[[str], str] = _lookup
    clock: Callable[[], float] = time.time
    timer: Callable[[], float] = time.monotonic

    @classmethod
    def here(cls, environ: Mapping[str, str] | None = None) -> Host:
        """The host that runs this, under the name that Slurm has for it."""
        env = dict(os.environ if environ is None else environ)
        name = env.get("SLURMD_NODENAME") or socket.gethostname().partition(".")[0]
        return cls(name=name, environ=env)

    @property
    def sys(self) -> Path:
        return self.root / "sys"

    @property
    def proc(self) -> Path:
        return self.root / "proc"

    def path(self, absolute: str) -> Path:
        """Where a path of the host lies for us."""
        return self.root / absolute.lstrip("/")

    def read(self, absolute: str) -> str | None:
        """Stripped text of one of its small files; None where it cannot be read."""
        try:
            return self.path(absolute).read_text(encoding="utf-8", errors="replace").strip()
        except OSError:
            return None
