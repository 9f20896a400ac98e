"""Models that may have no replica: which these are, and telling the supervisor that one is asked
for."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping

from exaslurm.core.codec import dumps, loads
from exaslurm.core.plan import Plan
from exaslurm.core.scale import Asked
from exaslurm.rundir import RunDir
from exaslurm.util.files import is_there, make_private_dir, read_text, write_atomic

log = logging.getLogger(__name__)

_AGAIN_S = 5.0


class Sleepers:
    """Tells ``found`` the served names (with their models) that are started when somebody asks,
    whenever they are others than before; and leaves a file for each shard that somebody waits for
    (``asked``: how many wait, by served name)."""

    def __init__(
        self,
        run_dir: RunDir,
        found: Callable[[Mapping[str, str]], None],
        asked: Callable[[], Mapping[str, int]],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._run_dir = run_dir
        self._found = found
        self._asked = asked
        self._clock = clock
        self._generation = 0
        self._shards: Mapping[str, str] = {}
        self._told_s: dict[str, float] = {}

    def refresh(self) -> None:
        """Look, and tell. StateError if a file cannot be read or written."""
        self._look()
        now_s = self._clock()
        waiting: dict[str, int] = {}
        for name, count in self._asked().items():
            shard = self._shards.get(name)
            if shard is not None:
                waiting[shard] = waiting.get(shard, 0) + count
        for shard, count in waiting.items():
            # Also where the clock was put back.
            if not 0 <= now_s - self._told_s.get(shard, 0.0) < _AGAIN_S:
                self._told_s[shard] = now_s
                make_private_dir(self._run_dir.wake)
                asked = Asked(shard=shard, count=count, time_s=now_s)
                write_atomic(self._run_dir.wake / f"{shard}.json", dumps(asked))
        for shard in self._told_s.keys() - waiting.keys():
            del self._told_s[shard]

    def _look(self) -> None:
        desired = self._run_dir.read_desired()
        if desired is None or desired.generation == self._generation:
            return
        path = self._run_dir.generation(desired.generation).plan
        if not is_there(path):
            return
        plan = loads(Plan, read_text(path), where=str(path))
        self._generation = desired.generation
        self._shards = {}
        models: dict[str, str] = {}
        if plan.autoscale is not None and plan.autoscale.idle_s is not None:
            for model in plan.models:
                for shard in model.shards:
                    for name in shard.served_names:
                        self._shards = {**self._shards, name: f"{model.name}:{shard.name}"}
                        models[name] = model.name
        if models:
            log.info("started when somebody asks: %s", ", ".join(models))
        self._found(models)
