"""What an agent must know of an engine that an earlier agent started."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

from exaslurm.core.binding import ReplicaBinding
from exaslurm.core.codec import dumps, loads
from exaslurm.errors import StateError
from exaslurm.util.files import make_private_dir, read_text, write_atomic


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineState:
    """``<node dir>/engines/<replica>.json``. ``started_s`` is Unix time; None as ``load_s``:
    not healthy yet."""

    binding: ReplicaBinding
    pid: int
    start: int
    started_s: float
    restarts: int
    stage_s: float | None
    load_s: float | None = None
    max_model_len: int | None = None


class StateFiles:
    """The state files of a node; they are node-local, so plain I/O is fine."""

    def __init__(self, node_dir: Path) -> None:
        self._directory = node_dir / "engines"

    def read(self, replica: str) -> EngineState | None:
        """The state of a replica's engine; None if there is none that can be read."""
        path = self._directory / f"{replica}.json"
        try:
            return loads(EngineState, read_text(path), where=str(path))
        except StateError:
            return None

    def write(self, state: EngineState) -> None:
        """Keep a state; a full disk must not stop the engine, so errors are dropped: the next
        agent would then start it anew."""
        with contextlib.suppress(StateError):
            make_private_dir(self._directory)
            write_atomic(self._directory / f"{state.binding.id}.json", dumps(state))

    def remove(self, replica: str) -> None:
        """Forget a replica."""
        with contextlib.suppress(OSError):
            (self._directory / f"{replica}.json").unlink()
