"""A deployment on the cluster in memory, whose supervisor knows of rollouts, and whose routers
count what a steady traffic would make them count."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from exaslurm.core.cell import CellState
from exaslurm.core.rollout import Answers, Rollout
from exaslurm.core.versions import versions_of
from exaslurm.rollout.figures import Counts
from exaslurm.rollout.judge import added
from exaslurm.rollout.manager import RolloutManager
from exaslurm.rollout.records import read_canary
from exaslurm.rollout.routers import Said
from exaslurm.rollout.start import PolicyOptions, Started, rollout
from exaslurm.router.canary import share_of
from exaslurm.router.metrics import BUCKETS_S
from exaslurm.rundir import RunDir
from exaslurm.submit.records import read_plan
from exaslurm.supervisor.loop import Manager
from exaslurm.supervisor.rolling import Rolling
from tests.supervisor.conftest import SPEC, Site

QUICK = PolicyOptions(steps_percent=(20.0, 100.0), hold_s=30.0, min_requests=50)
NEW_SPEC = SPEC.replace("{kind: simulated}", "{kind: simulated, env: {COLOUR: blue}}")
RATE = 10.0


@dataclass
class Traffic:
    """What routers have counted: ``RATE`` requests a second, divided as the shares say. Of the new
    version every answer takes ``slower`` times as long, and every ``fails``-th fails."""

    site: Site
    clock_s: float = 0.0
    slower: float = 1.0
    fails: int = 0
    counted: dict[str, Answers] = field(default_factory=dict)
    silent: bool = False

    def ask(self, run_dir: RunDir) -> Said:
        now_s = self.site.cluster.now_s
        passed_s, self.clock_s = now_s - (self.clock_s or now_s), now_s
        numbers = run_dir.generations()
        plans = [read_plan(run_dir.generation(number)) for number in numbers]
        versions = [versions_of(plan)["pretend"] for plan in plans if plan is not None]
        old, new = versions[0], versions[-1]
        shares = share_of(read_canary(run_dir), "pretend", [old, new])
        for version, share in zip((old, new), shares, strict=True):
            count = round(passed_s * RATE * share / sum(shares))
            self.counted[version] = added(
                self.counted.get(version, Answers()), self._answers(count, new=version == new)
            )
        if self.silent:
            return Said(counts={}, started_s={}, silent=("http://gw:1",))
        counts: Counts = {"pretend": dict(self.counted), "pretend:base": {}}
        return Said(counts={"http://gw:1": counts}, started_s={"http://gw:1": 1.0})

    def _answers(self, count: int, *, new: bool) -> Answers:
        took_s = 0.2 * (self.slower if new else 1.0)
        place = sum(bound < took_s for bound in BUCKETS_S)
        times = tuple(count if place == number else 0 for number in range(len(BUCKETS_S) + 1))
        return Answers(
            requests=count,
            failed=count // self.fails if new and self.fails else 0,
            first=times,
            first_s=took_s * count,
            whole=times,
            whole_s=took_s * count,
        )


@dataclass
class Rolled(Site):
    """``broken``: the canary request of the new version fails."""

    traffic: Traffic = field(init=False)
    broken: bool = False

    def __post_init__(self) -> None:
        self.traffic = Traffic(self)
        self.cluster.limit_s = 1e6
        super().__post_init__()

    def copy_to(self, directory: Path) -> Rolled:
        """The same in another directory, with a supervisor that knows nothing yet."""
        shutil.copytree(self.directory, directory)
        other: Rolled = object.__new__(Rolled)
        other.directory = directory
        other.cluster = copy.deepcopy(self.cluster)
        other.traffic = replace(self.traffic, site=other, counted=dict(self.traffic.counted))
        other.broken = self.broken
        other.start_supervisor()
        return other

    def managers(self) -> Sequence[Manager]:
        return [Rolling(RolloutManager(run_dir=self.run_dir, ask=self.traffic.ask))]

    def ask(self, urls: Mapping[str, str], key: str) -> dict[str, CellState]:
        states = self.cluster.ask(urls, key)
        if not self.broken:
            return states
        new = {name for name, item in self.turns().items() if item.generation > 1}
        return {name: _broken(state) if name in new else state for name, state in states.items()}

    def begin(self, spec: str = NEW_SPEC, options: PolicyOptions = QUICK) -> Started:
        path = self.directory / "new.yaml"
        path.write_text(spec)
        return rollout(path, options=options, environ=self.environ, slurm=self.cluster)

    @property
    def rollout(self) -> Rollout:
        found = self.run_dir.read_rollout()
        assert found is not None
        return found

    def until(self, *states: str, within_s: float = 2000.0) -> Rollout:
        """Let time pass until the rollout is in one of these states. Somebody serves all the
        time."""
        end_s = self.cluster.now_s + within_s
        while self.rollout.state not in states:
            assert self.cluster.now_s < end_s, self.rollout
            self.run(10)
            for cell in ("c000", "c001"):
                assert self.cluster.serving(cell), (cell, self.rollout)
        return self.rollout

    def live(self) -> list[str]:
        return sorted(job.turn for job in self.cluster.live())


def _broken(state: CellState) -> CellState:
    cause = "/v1/completions answered 500: no such operator"
    replicas = tuple(replace(replica, state="warming", cause=cause) for replica in state.replicas)
    return replace(state, replicas=replicas, phase="engines")


@pytest.fixture
def rolled(tmp_path: Path) -> Rolled:
    site = Rolled(tmp_path)
    site.run(100)
    return site


def verbs(site: Site) -> list[str]:
    """What the history says of the rollout."""
    lines: list[dict[str, Any]] = [
        json.loads(line) for line in site.run_dir.history.read_text().splitlines()
    ]
    return [line["verb"] for line in lines if line["verb"].startswith("roll")]
