"""Plans made by hand, for tests that are about what is done with a plan."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from exaslurm.core.container import ContainerPlan
from exaslurm.core.plan import ComponentPlan, Layout, Plan, Role
from tests.tools import plans

Directives = tuple[tuple[str, str | None], ...]

HEAD: Directives = (
    ("partition", "cpu"),
    ("nodes", "1"),
    ("ntasks-per-node", "1"),
    ("cpus-per-task", "1"),
    ("mem", "1024M"),
    ("time", "00:10:00"),
    ("no-kill", None),
    ("no-requeue", None),
    ("signal", "B:USR1@60"),
)
WORKERS: Directives = (
    ("partition", "gpu"),
    ("nodes", "2"),
    ("ntasks-per-node", "1"),
    ("cpus-per-task", "2"),
    ("mem", "2048M"),
    ("gres", "gpu:a100:2"),
    ("constraint", "a100&nvme"),
    ("time", "00:10:00"),
    ("no-kill", None),
    ("no-requeue", None),
)


def component(
    group: int, role: Role, nodes: int, directives: Directives, kind: str = "gpu"
) -> ComponentPlan:
    return plans.make_component(
        group,
        role,
        kind=kind,
        nodes=nodes,
        cpus_per_node=1 if role == "head" else 2,
        mem_mib_per_node=1024,
        gpus_per_node=0 if role == "head" else 2,
        directives=directives,
    )


def make_plan(
    layout: Layout = "het",
    *,
    deployment: str = "hello",
    cells: int = 1,
    head: Directives = HEAD,
    workers: Directives = WORKERS,
    python: str = "/opt/exaslurm/env/bin/python",
    env: Mapping[str, str] | None = None,
    modules: Sequence[str] = (),
    prologue: Sequence[str] = (),
    container: ContainerPlan | None = None,
    drain_s: float = 1.0,
    start_gateway: bool = False,
    first_port: int = 20000,
) -> Plan:
    if layout == "het":
        parts = (component(0, "head", 1, head, "cpu"), component(1, "worker", 2, workers))
    else:
        nodes = 2 if layout == "single" else 1
        parts = (component(0, "both", nodes, workers if layout == "single" else ()),)
    return plans.make_plan(
        deployment=deployment,
        site="lab",
        layout=layout,
        cells=plans.make_cells(*parts, count=cells),
        node=dataclasses.replace(
            plans.make_environment(
                python=python,
                shared="/exa/shared/scratch/exa1",
                interface="eth0",
                env=env,
                prologue=prologue,
            ),
            modules=tuple(modules),
            container=container,
        ),
        first_port=first_port,
        ray_start_timeout_s=60.0,
        object_store_mib=128,
        nodes_s=60.0,
        stage_s=60.0,
        ready_s=60.0,
        drain_s=drain_s,
        start_with_submit=start_gateway,
    ).sealed()
