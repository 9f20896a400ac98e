"""Who is hit, and whether all is as before."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from exaslurm.chaos.kinds import BY_NAME, KINDS
from exaslurm.chaos.strength import Before, same_engines
from exaslurm.chaos.victims import Victim, Wanted, choose
from exaslurm.core.cell import NodeState, RayCellState, ReplicaStatus
from exaslurm.errors import UserError
from exaslurm.status.model import CellStatus, DeploymentStatus, JobStatus

RNG = random.Random(0)
RAY = RayCellState(state="complete", epoch=1, nodes_alive=3, nodes_wanted=3)


def replica(number: int, node: str, **more: object) -> ReplicaStatus:
    given = {
        "id": f"c000-r000{number}",
        "model": "m",
        "shard": "base",
        "served_names": ("m",),
        "state": "ready",
        "node": node,
        "url": f"http://10.0.0.{number}:2400{number}",
        "pid": 100 + number,
    }
    return ReplicaStatus(**{**given, **more})  # type: ignore[arg-type]


def cell(*replicas: ReplicaStatus, name: str = "c000", **more: object) -> CellStatus:
    given = {
        "name": name,
        "phase": "ready",
        "source": "controller",
        "cause": None,
        "remedy": None,
        "job": JobStatus(id="7;big", name="j", cluster="big", state="RUNNING", nodes=("c1", "c2")),
        "nodes_planned": 4,
        "nodes_joined": 4,
        "replicas_planned": len(replicas),
        "replicas_ready": sum(item.state == "ready" for item in replicas),
        "nodes": (
            NodeState(node="c1", het_group=0, state="joined", address="10.0.0.9"),
            *(
                NodeState(node=f"c{n}", het_group=1, state="joined", address=f"10.0.0.{n}")
                for n in (2, 3, 4)
            ),
        ),
        "ray": RAY,
        "replicas": replicas,
    }
    return CellStatus(**{**given, **more})  # type: ignore[arg-type]


def status(*cells: CellStatus) -> DeploymentStatus:
    return DeploymentStatus(
        deployment="d",
        generation=1,
        plan_hash="h",
        site="s",
        layout="het",
        run_dir="/d",
        phase="ready",
        cause=None,
        remedy=None,
        run_wanted=True,
        replicas_planned=sum(item.replicas_planned for item in cells),
        replicas_ready=sum(item.replicas_ready for item in cells),
        base_url=None,
        routers=(),
        cells=cells,
        slurm_error=None,
        collected_s=0.0,
    )


TWO = status(cell(replica(2, "c2"), replica(3, "c3")))


def test_an_engine_is_chosen_or_named() -> None:
    kind = BY_NAME["kill-engine"]
    (victim,) = choose(kind, TWO, Wanted(), random.Random(5))
    assert victim.replica in ("c000-r0002", "c000-r0003")
    (victim,) = choose(kind, TWO, Wanted(replica="c000-r0003"), RNG)
    assert (victim.node, victim.pid, victim.job_id) == ("c3", 103, "7")
    assert (victim.het_group, victim.address, victim.ports) == (1, "10.0.0.3", (24003,))
    with pytest.raises(UserError, match="no replica c9 is ready") as caught:
        choose(kind, TWO, Wanted(replica="c9"), RNG)
    assert "c000-r0002, c000-r0003" in str(caught.value.remedy)


def test_nodes_with_replicas_are_hit_and_heads_only_by_name() -> None:
    kind = BY_NAME["kill-node"]
    for seed in range(20):
        found = choose(kind, TWO, Wanted(count=2), random.Random(seed))
        assert {victim.node for victim in found} == {"c2", "c3"}
    (victim,) = choose(kind, TWO, Wanted(node="c1"), RNG)
    assert victim.node == "c1"
    found = choose(kind, TWO, Wanted(node="c4,c2"), RNG)
    assert {victim.node for victim in found} == {"c2", "c4"}
    with pytest.raises(UserError, match="2 nodes besides the heads' carry replicas, 3 are needed"):
        choose(kind, TWO, Wanted(count=3), RNG)
    with pytest.raises(UserError, match="no node c9"):
        choose(kind, TWO, Wanted(node="c2,c9"), RNG)


def test_the_head_is_where_the_controller_runs() -> None:
    (victim,) = choose(BY_NAME["kill-controller"], TWO, Wanted(), RNG)
    assert (victim.node, victim.het_group) == ("c1", 0)
    single = status(
        cell(
            replica(3, "c3"),
            job=JobStatus(id="7", name="j", cluster=None, state="RUNNING", nodes=("c3", "c2")),
            nodes=tuple(NodeState(node=n, het_group=0, state="joined") for n in ("c2", "c3")),
        )
    )
    (victim,) = choose(BY_NAME["kill-ray"], single, Wanted(), RNG)
    assert victim.node == "c3"


def test_what_cannot_be_hit_is_refused() -> None:
    silent = status(cell(replica(2, "c2"), source="registry"))
    with pytest.raises(UserError, match="controller gives no answer"):
        choose(BY_NAME["kill-engine"], silent, Wanted(), RNG)
    with pytest.raises(UserError, match="one at a time"):
        choose(BY_NAME["kill-engine"], TWO, Wanted(count=2), RNG)
    with pytest.raises(UserError, match="cell c007 is not there"):
        choose(BY_NAME["preempt"], TWO, Wanted(cell="c007"), RNG)


def before(fault: str, *victims: Victim, **processes: int) -> Before:
    return Before(kind=BY_NAME[fault], status=TWO, victims=victims, processes=processes)


def test_a_dead_engine_is_back_as_another_process() -> None:
    it = before("kill-engine", Victim(replica="c000-r0002", node="c2", pid=102))
    assert "same process" in str(it.missing(TWO, {}, held=True))
    gone = status(cell(replica(2, "c2", state="failed", pid=None), replica(3, "c3")))
    assert it.missing(gone, {}, held=True) == "1 of 2 replicas are ready"
    back = status(cell(replica(2, "c2", pid=202), replica(3, "c3")))
    assert it.missing(back, {}, held=True) is None
    assert same_engines(TWO, back) == (1, 1)


def test_a_hung_engine_may_wake_up() -> None:
    it = before("hang-engine", Victim(replica="c000-r0002", node="c2", pid=102))
    assert it.missing(TWO, {}, held=True) is not None
    assert it.missing(TWO, {}, held=False) is None


def test_replicas_of_a_lost_node_are_to_be_elsewhere() -> None:
    for fault in ("kill-node", "cut-link"):
        it = before(fault, Victim(node="c2"))
        assert "lost nodes" in str(it.missing(TWO, {}, held=True))
        # Ray of the lost node is missed, too, and no reason to wait.
        ray = replace(RAY, state="partial", nodes_alive=2)
        moved = status(cell(replica(2, "c4"), replica(3, "c3"), ray=ray))
        assert it.missing(moved, {}, held=True) is None


def test_what_was_killed_comes_back_as_another_process() -> None:
    it = before("kill-agent", Victim(node="c2"), agent=7)
    assert it.missing(TWO, {"agent": 7}, held=True) == "no other agent runs yet"
    assert it.missing(TWO, {}, held=True) == "no other agent runs yet"
    assert it.missing(TWO, {"agent": 8}, held=True) is None


def test_ray_is_to_be_rebuilt() -> None:
    it = before("kill-ray", Victim(node="c1"), ray=7)
    assert "the one that was killed" in str(it.missing(TWO, {"ray": 8}, held=True))
    part = status(cell(replica(2, "c2"), replica(3, "c3"), ray=replace(RAY, state="starting")))
    assert "not complete" in str(it.missing(part, {"ray": 8}, held=True))
    new = status(cell(replica(2, "c2"), replica(3, "c3"), ray=replace(RAY, epoch=2)))
    assert it.missing(new, {"ray": 8}, held=True) is None


def test_a_cell_is_to_be_replaced() -> None:
    it = before("preempt", Victim(cell="c000", job_id="7"))
    assert it.missing(TWO, {}, held=True) == "c000 is still there"
    later = status(cell(replica(2, "c2"), replica(3, "c3"), name="c000.2"))
    assert it.missing(later, {}, held=True) is None


def test_every_fault_has_a_name_of_its_own_and_says_what_it_does() -> None:
    assert len(BY_NAME) == len(KINDS) == 19
    assert all(kind.does for kind in KINDS)
