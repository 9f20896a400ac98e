"""What routers and engines tell becomes what is wanted, and is written down."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from exaslurm.autoscale.figures import parse, shards_of_names
from exaslurm.autoscale.manager import AutoscaleManager, Sight
from exaslurm.core.codec import dumps
from exaslurm.core.plan import AutoscalePlan, Plan, ShardScale
from exaslurm.core.scale import Asked, Scale
from exaslurm.registry.router_pages import RouterPage
from exaslurm.router.call import Call
from exaslurm.router.metrics import Metrics
from exaslurm.rundir import RunDir
from exaslurm.submit.records import write_desired, write_scale
from exaslurm.util.files import make_private_dir
from tests.tools import plans

CHAT = "/v1/chat/completions"


def make_plan(*, idle_s: float | None = None, per_model: int = 1) -> Plan:
    shards = {"m:a": ShardScale(start=2, least=1, most=4, capacity=10, ttft_p95_s=2.0)}
    return replace(
        plans.make_plan(
            models=[plans.make_model(shard="a")],
            cells=plans.make_cells(plans.make_component(0, "head"), replicas=[("m", "a", 4)]),
        ),
        autoscale=AutoscalePlan(
            shards=shards,
            up_at=0.75,
            down_at=0.25,
            cooldown_s=60.0,
            least_per_model=per_model,
            idle_s=idle_s,
        ),
    ).sealed()


@dataclass
class World:
    """A deployment whose router has counted what the test says."""

    run_dir: RunDir
    plan: Plan
    now_s: float = 1000.0
    busy_s: float = 0.0
    late: int = 0
    ready: int = 2
    load: float = 0.0
    silent: bool = False
    ahead_s: float = 0.0
    manager: AutoscaleManager = field(init=False)

    def __post_init__(self) -> None:
        self.manager = AutoscaleManager(run_dir=self.run_dir, ask=self.pages)

    def pages(self, _run_dir: RunDir) -> Mapping[str, RouterPage]:
        text = f'exaslurm_router_busy_seconds_total{{model="m"}} {self.busy_s / 2}\n'
        text += f'exaslurm_router_busy_seconds_total{{model="m:a"}} {self.busy_s / 2}\n'
        for bound, count in (("0.5", 0), ("2.0", 0), ("5.0", self.late), ("+Inf", self.late)):
            text += (
                f'exaslurm_router_first_token_seconds_bucket{{model="m",le="{bound}"}} {count}\n'
            )
        return {"r1": RouterPage(text=None if self.silent else text, started_s=1.0)}

    def step(self, in_flight: float = 0.0, seconds: float = 5.0) -> bool:
        self.now_s += seconds
        self.busy_s += in_flight * seconds
        return self.manager.step(
            Sight(
                now_s=self.now_s,
                wall_s=self.now_s + self.ahead_s,
                generation=1,
                plan=self.plan,
                scale=self.run_dir.read_scale(),
                living=frozenset({"c000"}),
                ready={"m:a": self.ready},
                load={"m:a": self.load},
            )
        )

    def run(self, seconds: float, in_flight: float = 0.0) -> None:
        for _ in range(int(seconds / 5)):
            self.step(in_flight)

    @property
    def wanted(self) -> int:
        scale = self.run_dir.read_scale()
        assert scale is not None
        return scale.replicas["m:a"]


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    run_dir = RunDir(tmp_path / "d")
    run_dir.make()
    write_desired(run_dir, run=True, generation=1)
    return run_dir


def test_the_first_look_says_nothing_of_what_was_counted_before(run_dir: RunDir) -> None:
    world = World(run_dir, make_plan(), busy_s=1e6)
    world.step()
    assert world.wanted == 2
    world.step()
    assert world.wanted == 2


def test_more_and_fewer_and_the_history_says_why(run_dir: RunDir) -> None:
    world = World(run_dir, make_plan())
    world.run(60, 25.0)
    assert world.wanted == 4
    assert run_dir.read_scale() == Scale(replicas={"m:a": 4}, cells={"c000": {"m:a": 4}})
    lines = run_dir.history.read_text().splitlines()
    assert len(lines) == 1
    assert '"shard": "m:a"' in lines[0]
    assert "of the capacity is in use" in lines[0]
    world.ready = 4
    world.run(100, 1.0)
    assert world.wanted == 3
    assert not world.step(1.0)


def test_late_tokens(run_dir: RunDir) -> None:
    world = World(run_dir, make_plan())
    for _ in range(12):
        world.late += 30
        world.step(5.0)
    assert world.wanted == 3


def test_what_a_person_has_said_stays(run_dir: RunDir) -> None:
    world = World(run_dir, make_plan())
    world.step()
    write_scale(run_dir, Scale(replicas={"m:a": 1}, fixed=("m:a",)))
    world.run(120, 50.0)
    assert world.wanted == 1
    write_scale(run_dir, Scale(replicas={"m:a": 1}))
    world.run(60, 50.0)
    assert world.wanted == 4


@pytest.mark.parametrize("jump_s", [-3600.0, 3600.0])
def test_a_clock_that_jumps_is_no_load_and_no_quiet(run_dir: RunDir, jump_s: float) -> None:
    world = World(run_dir, make_plan())
    world.run(60, 10.0)
    world.ahead_s = jump_s
    world.run(50, 10.0)
    assert world.wanted == 2


def test_a_model_has_at_least_so_many(run_dir: RunDir) -> None:
    world = World(run_dir, make_plan(per_model=2))
    world.run(600, 0.1)
    assert world.wanted == 2


class TestZero:
    def test_nobody_asks_and_then_somebody_does(self, run_dir: RunDir) -> None:
        world = World(run_dir, make_plan(idle_s=30.0))
        world.run(20, 1.0)
        world.run(40)
        assert world.wanted == 0
        scale = run_dir.read_scale()
        assert scale is not None
        assert scale.cells == {}
        world.ready = 0
        world.run(60)
        assert world.wanted == 0
        make_private_dir(run_dir.wake)
        asked = Asked(shard="m:a", count=12, time_s=world.now_s + 1)
        (run_dir.wake / "m:a.json").write_text(dumps(asked))
        assert world.step(seconds=1.0)
        assert world.wanted == 2

    def test_it_wakes_also_for_a_supervisor_that_has_just_started(self, run_dir: RunDir) -> None:
        write_scale(run_dir, Scale(replicas={"m:a": 0}))
        make_private_dir(run_dir.wake)
        asked = Asked(shard="m:a", count=1, time_s=1004.0)
        (run_dir.wake / "m:a.json").write_text(dumps(asked))
        world = World(run_dir, make_plan(idle_s=30.0), ready=0)
        world.step()
        assert world.wanted == 1

    def test_an_old_word_wakes_nobody(self, run_dir: RunDir) -> None:
        write_scale(run_dir, Scale(replicas={"m:a": 0}))
        make_private_dir(run_dir.wake)
        path = run_dir.wake / "m:a.json"
        path.write_text(dumps(Asked(shard="m:a", count=1, time_s=900.0)))
        world = World(run_dir, make_plan(idle_s=30.0), ready=0)
        world.run(20)
        assert world.wanted == 0
        assert not path.exists()

    @pytest.mark.parametrize("ahead_s", [-3600.0, 3600.0])
    def test_it_wakes_also_for_a_router_whose_clock_differs(
        self, run_dir: RunDir, ahead_s: float
    ) -> None:
        write_scale(run_dir, Scale(replicas={"m:a": 0}))
        make_private_dir(run_dir.wake)
        path = run_dir.wake / "m:a.json"
        world = World(run_dir, make_plan(idle_s=30.0), ready=0, ahead_s=ahead_s)
        for _ in range(2):  # a router repeats it
            path.write_text(dumps(Asked(shard="m:a", count=1, time_s=world.now_s)))
            world.step()
        assert world.wanted == 1
        # And when it does not any more, nobody waits.
        world.ready = 1
        world.run(100)
        assert world.wanted == 0
        assert not path.exists()

    def test_a_router_that_says_nothing_lets_nothing_fall_asleep(self, run_dir: RunDir) -> None:
        world = World(run_dir, make_plan(idle_s=30.0))
        world.run(20, 1.0)
        world.silent = True
        world.run(600)
        assert world.wanted >= 1


def test_a_deployment_that_is_not_scaled_is_left_alone(run_dir: RunDir) -> None:
    world = World(run_dir, replace(make_plan(), autoscale=None).sealed())
    assert not world.step()
    assert run_dir.read_scale() is None


def test_figures_of_a_real_page() -> None:
    metrics = Metrics([CHAT])
    for name, stream, took_s in (("m", True, 0.3), ("m:a", True, 1.2), ("m", False, 9.0)):
        call = Call(CHAT, b"x", 100.0)
        call.model, call.status, call.stream = name, 200, stream
        call.first_byte_s, call.ended_s = 100.0 + took_s, 110.0
        metrics.begun += 1
        metrics.done(call)
    metrics.watch(lambda: metrics.busy([], 0.0))
    counts = parse(metrics.render().decode(), shards_of_names(make_plan()))
    assert counts["m:a"].busy_s == pytest.approx(30.0)
    tokens = {bound: n for bound, n in counts["m:a"].first_tokens.items() if n}
    assert tokens == {0.5: 1, 1.5: 1}
