"""How the nodes of a measurement find each other: one small file each in a directory that all see.

The directory belongs to one run and is private: it also holds the key by which the nodes know
each other.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from exaslurm.core.codec import dumps, loads
from exaslurm.errors import HeadTimeout
from exaslurm.fabric.probe import NodeResult, Peer
from exaslurm.keys.secrets import read_secret
from exaslurm.util.files import create_once, make_private_dir, read_text, write_atomic

T = TypeVar("T")

_KEY = "key"
_POLL_MIN_S, _POLL_MAX_S = 0.1, 1.0


class Meeting:
    """One run's directory, as one of ``nodes`` sees it."""

    def __init__(self, directory: Path, nodes: int) -> None:
        make_private_dir(directory)
        self._directory = directory
        self._nodes = nodes

    def key(self) -> bytes:
        """The run's key; whoever comes first makes it."""
        path = self._directory / _KEY
        if not path.exists():
            create_once(path, secrets.token_urlsafe(32))
        return read_secret(path).encode()

    def arrive(self, rank: int, peer: Peer) -> None:
        """Tell the others where this node listens."""
        write_atomic(self._directory / f"{rank}.peer", dumps(peer))

    def peers(self, *, timeout_s: float) -> list[Peer]:
        """Where all nodes listen, by rank. HeadTimeout names how many did not come."""
        return self._all("peer", Peer, timeout_s)

    def hand_in(self, result: NodeResult) -> None:
        """Leave what this node saw."""
        write_atomic(self._directory / f"{result.rank}.result", dumps(result))

    def results(self, *, timeout_s: float) -> list[NodeResult]:
        """What all nodes saw, by rank. HeadTimeout as of ``peers``."""
        return self._all("result", NodeResult, timeout_s)

    def close(self) -> None:
        """Remove the directory's own files, and the directory if nothing else is in it."""
        for path in [self._directory / _KEY, *self._directory.glob("[0-9]*.*")]:
            path.unlink(missing_ok=True)
        if not any(self._directory.iterdir()):
            self._directory.rmdir()

    def _all(self, suffix: str, kind: type[T], timeout_s: float) -> list[T]:
        names = [f"{rank}.{suffix}" for rank in range(self._nodes)]
        missing = _wait(lambda: self._missing(names), timeout_s)
        if missing:
            shown = ", ".join(missing[:8]) + (", ..." if len(missing) > 8 else "")
            raise HeadTimeout(
                f"{len(missing)} of {self._nodes} nodes did not come to {self._directory} in "
                f"{timeout_s:g} s ({shown})",
                remedy="start one task on each node, and give all the same directory, which each "
                "of them sees",
            )
        return [
            loads(kind, read_text(self._directory / name), where=str(self._directory / name))
            for name in names
        ]

    def _missing(self, names: list[str]) -> list[str]:
        # One look at the directory instead of one at each file; it also makes NFS look again.
        there = {path.name for path in self._directory.iterdir()}
        return [name for name in names if name not in there]


def _wait(missing: Callable[[], list[str]], timeout_s: float) -> list[str]:
    deadline = time.monotonic() + timeout_s
    pause_s = _POLL_MIN_S
    while left := missing():
        if time.monotonic() >= deadline:
            return left
        time.sleep(pause_s)
        pause_s = min(1.5 * pause_s, _POLL_MAX_S)
    return []
