"""Whether requests wait at a router for a first replica."""

from __future__ import annotations

import os

from exaslurm.rundir import RunDir


class WakeWatch:
    """Looks at the files that routers leave, see ``gateway/sleepers.py``."""

    def __init__(self, run_dir: RunDir) -> None:
        self._directory = run_dir.wake
        self._seen: frozenset[str] = frozenset()

    def is_new(self) -> bool:
        """Whether a router has said so of a shard of which none had said it before; what is only
        said again is nothing new. OSError if that cannot be found out."""
        try:
            with os.scandir(self._directory) as entries:
                names = {entry.name for entry in entries if entry.name.endswith(".json")}
        except FileNotFoundError:
            names = set()
        new = names - self._seen
        self._seen = frozenset(names)
        return bool(new)
