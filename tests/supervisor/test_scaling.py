"""Cells come and go with the load, and Slurm is asked no more often for that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from exaslurm.autoscale.manager import AutoscaleManager
from exaslurm.core.codec import dumps
from exaslurm.core.scale import Asked
from exaslurm.registry.router_pages import RouterPage
from exaslurm.rundir import RunDir
from exaslurm.slurm.types import JobInfo
from exaslurm.supervisor.loop import Manager
from exaslurm.supervisor.scaling import Scaling
from exaslurm.supervisor.waking import WakeWatch
from exaslurm.util.files import make_private_dir
from tests.supervisor.conftest import SPEC, Cluster, Site

SCALED = SPEC.replace("time_limit: 00:10:00", "time_limit: 10:00:00").replace(
    "    shards: [{name: base, replicas: 2}]\n",
    "    max_replicas_per_node: 1\n"
    "    shards: [{name: base, replicas: 1}]\n"
    "autoscale: {max: 2, requests_per_replica: 10, scale_to_zero: true, idle_s: 300}\n",
)


class Counting(Cluster):
    asked = 0

    def jobs(self, ids: Sequence[str]) -> dict[str, JobInfo]:
        self.asked += 1
        return super().jobs(ids)


class Scaled(Site):
    busy_s = 0.0

    def managers(self) -> Sequence[Manager]:
        manager = AutoscaleManager(run_dir=self.run_dir, ask=self.pages)
        return [Scaling(manager, self.cluster.monotonic)]

    def pages(self, _run_dir: RunDir) -> Mapping[str, RouterPage]:
        text = f'exaslurm_router_busy_seconds_total{{model="pretend"}} {self.busy_s}\n'
        return {"r": RouterPage(text=text, started_s=0.0)}

    def live(self, seconds: float, in_flight: float = 0.0, *, every_s: float = 10.0) -> None:
        for _ in range(int(seconds / every_s)):
            self.busy_s += in_flight * every_s
            for job in self.cluster.book.values():
                job.limit_s = 1e6  # roll-over is not the matter here
            self.cluster.advance(every_s, self.run_dir)
            self.supervisor.round()

    @property
    def wanted(self) -> int:
        scale = self.run_dir.read_scale()
        return -1 if scale is None else scale.replicas["pretend:base"]

    def cells(self) -> list[str]:
        return sorted(job.turn for job in self.cluster.live())


@pytest.fixture
def site(tmp_path: Path) -> Scaled:
    return Scaled(tmp_path, cluster=Counting(), spec=SCALED)


def test_a_cell_comes_with_the_load_and_goes_with_it(site: Scaled) -> None:
    site.live(100, 1.0)
    assert site.cells() == ["c000"]
    site.live(100, 9.0)
    assert (site.wanted, site.cells()) == (2, ["c000", "c001"])
    site.live(300, 1.0)
    assert (site.wanted, site.cells()) == (1, ["c000"])
    assert site.generation.targets("c000").exists()
    assert not site.generation.targets("c001").exists()  # it began with all that it has


def test_asleep_and_awake(site: Scaled) -> None:
    site.live(100, 1.0)
    site.live(500)
    assert (site.wanted, site.cells()) == (0, [])
    watch = WakeWatch(site.run_dir)
    assert not watch.is_new()
    make_private_dir(site.run_dir.wake)
    asked = Asked(shard="pretend:base", count=1, time_s=site.cluster.now_s)
    (site.run_dir.wake / "pretend:base.json").write_text(dumps(asked))
    assert watch.is_new()
    assert not watch.is_new()
    before = site.cluster.asked  # type: ignore[attr-defined]
    site.cluster.advance(1.0, site.run_dir)
    site.supervisor.round()
    assert site.cells() == ["c000.2"]
    assert site.cluster.asked == before  # type: ignore[attr-defined]


def test_slurm_is_asked_at_its_pace_though_looks_are_more_frequent(site: Scaled) -> None:
    site.live(200, 1.0, every_s=10.0)
    before = site.cluster.asked  # type: ignore[attr-defined]
    site.live(200, 1.0, every_s=0.5)
    poll_s = site.supervisor._observer.plan_of(1).poll_floor_s
    assert site.cluster.asked - before <= 200 / poll_s + 1  # type: ignore[attr-defined]


def test_a_new_supervisor_changes_nothing(site: Scaled) -> None:
    site.live(200, 9.0)
    assert site.cells() == ["c000", "c001"]
    site.start_supervisor()
    site.live(100, 5.0)
    assert (site.wanted, site.cells()) == (2, ["c000", "c001"])


def test_a_cell_that_fails_is_replaced_where_it_is_wanted(site: Scaled) -> None:
    site.live(200, 9.0)
    site.cluster.finish(site.only("c000"), "NODE_FAIL")
    site.live(100, 9.0)
    assert site.cells() == ["c000.2", "c001"]


def test_slurm_is_asked_though_the_clock_was_put_back(site: Scaled) -> None:
    site.live(100, 1.0)
    site.cluster.jumped_s = -3600.0
    before = site.cluster.asked  # type: ignore[attr-defined]
    site.live(60, 1.0)
    assert site.cluster.asked > before  # type: ignore[attr-defined]
