"""The plan's seal, and the ports of a cell."""

from __future__ import annotations

import dataclasses

import pytest

from exaslurm.core import ports
from exaslurm.core.codec import dumps, loads
from exaslurm.core.plan import Plan, PortPolicy
from tests.tools import plans


def make_plan(ready_s: float = 60.0) -> Plan:
    component = plans.make_component(directives=(("nodes", "1"),))
    return plans.make_plan(
        layout="single",
        models=[plans.make_model()],
        cells=plans.make_cells(component, replicas=[("m", "base", 1)]),
        ready_s=ready_s,
    )


def test_a_seal_holds_through_the_file() -> None:
    plan = make_plan().sealed()
    again = loads(Plan, dumps(plan, indent=2), where="plan.json")
    assert again == plan
    assert again.is_sealed()


def test_a_seal_holds_where_a_whole_number_stood_for_a_float() -> None:
    plan = make_plan(ready_s=60).sealed()
    assert loads(Plan, dumps(plan), where="plan.json").is_sealed()
    assert plan.hash == make_plan(ready_s=60.0).sealed().hash


def test_a_changed_plan_is_not_sealed() -> None:
    plan = make_plan().sealed()
    assert not dataclasses.replace(plan, deployment="other").is_sealed()
    assert not make_plan().is_sealed()


def test_sealing_twice_changes_nothing() -> None:
    plan = make_plan().sealed()
    assert plan.sealed() == plan


def test_cells_and_models_by_name() -> None:
    plan = make_plan()
    assert plan.cell("c000") is plan.cells[0]
    assert plan.model("m") is plan.models[0]
    with pytest.raises(KeyError):
        plan.cell("c001")
    with pytest.raises(KeyError):
        plan.model("n")


def test_blocks_follow_the_job_id_and_come_round() -> None:
    policy = PortPolicy(first=20000, last=21999, block=500)
    bases = [ports.block_base(policy, 7, attempt) for attempt in range(5)]
    assert bases == [21500, 20000, 20500, 21000, 21500]


def test_offsets_of_a_block_do_not_meet() -> None:
    single = {
        ports.CONTROLLER, ports.RAY_GCS, ports.RAY_NODE_MANAGER, ports.RAY_OBJECT_MANAGER,
        ports.RAY_DASHBOARD_AGENT_HTTP, ports.RAY_DASHBOARD_AGENT_GRPC,
        ports.RAY_RUNTIME_ENV_AGENT, ports.RAY_METRICS_EXPORT, ports.RAY_CLIENT_SERVER,
        ports.RAY_DASHBOARD, ports.AGENT,
    }  # fmt: skip
    assert len(single) == 11
    engines = [
        ports.engine_port(0, slot) + extra
        for slot in range(ports.MAX_ENGINES)
        for extra in range(ports.ENGINE_STRIDE)
    ]
    workers = range(ports.RAY_WORKERS_FIRST, ports.RAY_WORKERS_LAST + 1)
    assert len(set(engines)) == len(engines)
    assert max(single) < min(engines)
    assert max(engines) < workers.start
    assert workers.stop <= PortPolicy().block


def test_a_slot_outside_the_block_is_refused() -> None:
    with pytest.raises(ValueError, match=r"slot 40 is outside 0\.\.39"):
        ports.engine_port(20000, ports.MAX_ENGINES)
