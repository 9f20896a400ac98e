"""Replicas apart: fast for a large deployment, and against brute force for many small ones."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from acceptance.lab import ROOT
from acceptance.runner import Line

if str(ROOT) not in sys.path:  # the nodes are those of the tests
    sys.path.insert(0, str(ROOT))

TITLE = "spread: 3,072 replicas planned fast; any two nodes, any switch, any cell outlived"

SHARDS, REPLICAS, NODES, CELLS = 8, 384, 256, 16
CPU_S = 2.0
TRIES = 500
TESTS = ("tests/plan/test_survival.py", "tests/bind/test_elsewhere.py")

Above = Mapping[str, tuple[str, ...]]


def run(line: Line) -> None:
    _large(line)
    env = {**os.environ, "EXASLURM_EXAMPLES": str(TRIES)}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-W", "error", *TESTS],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        timeout=3600,
    )
    line.ran(f"{4 * TRIES} small deployments and {4 * TRIES} trees of switches", done)
    line.note(done.stdout.strip().splitlines()[-1])


def _large(line: Line) -> None:
    from exaslurm.core.spread import prove
    from exaslurm.plan.planner import make_plan
    from exaslurm.spec.load import load_spec
    from tests.tools import apart

    text = (
        "schema: exaslurm/v1\ndeployment: large\nsite: s\n"
        f"workers: {{kind: gpu, nodes: {NODES}, nodes_per_cell: {NODES // CELLS}}}\n"
        "models:\n  - name: m\n    source: {package: p}\n    shards:\n"
        + "".join(f"      - {{name: s{i}, replicas: {REPLICAS}}}\n" for i in range(SHARDS))
    )
    site = apart.site_of({"gpu": {"cpus": 208, "mem_gib": 1024, "gpus": 12}})
    spec = load_spec(Path("/large.yaml"), text)
    began = time.process_time()
    plan = make_plan(spec, site, apart.CONTEXT)
    seconds = time.process_time() - began
    line.at_most(f"{SHARDS} x {REPLICAS} on {NODES} nodes: CPU to plan", seconds, CPU_S)
    line.need("cells", len(plan.cells) == CELLS, len(plan.cells))
    line.note("; ".join(plan.spread))
    # 8 nodes below a leaf, 8 leaves below a group, 4 groups below the spine.
    nodes = [
        (cell, apart.granted(cell, part, order, ("spine", f"group{n // 64}", f"leaf{n // 8}")))
        for n, (cell, part, order) in enumerate(apart.worker_places(plan))
    ]
    above = {facts.node: facts.switches for _, facts in nodes}
    began = time.process_time()
    replicas = apart.bound(plan, nodes)
    standings = [
        apart.standing(replica, replica.id.partition("-")[0], above) for replica in replicas
    ]
    proof = prove(standings, plan.survival, nodes=above.values())
    line.note(f"bound and proved below 3 levels of switches in {time.process_time() - began:.1f} s")
    line.check("replicas", len(replicas) == SHARDS * REPLICAS, len(replicas))
    line.check("proved on the nodes", not proof.weak, "; ".join(proof.sentences()))
    for what, losses in _losses(above, standings).items():
        ends = [loss for loss in losses if _ended(standings, loss)]
        line.check(
            f"tried: the loss of {what}", not ends, f"{len(losses)}, {len(ends)} end a shard"
        )


def _losses(above: Above, standings: Sequence[Any]) -> dict[str, list[frozenset[str]]]:
    """What is lost, as the nodes without which the deployment has to do."""
    everywhere = frozenset.intersection(*(frozenset(path) for path in above.values()))
    switches = sorted({name for path in above.values() for name in path} - everywhere)
    cells = sorted({standing.cell for standing in standings})
    return {
        "any two nodes": [frozenset(pair) for pair in itertools.combinations(above, 2)],
        "any switch": [
            frozenset(node for node, path in above.items() if name in path) for name in switches
        ],
        "any cell": [
            frozenset(node for one in standings if one.cell == cell for node in one.nodes)
            for cell in cells
        ],
    }


def _ended(standings: Sequence[Any], lost: frozenset[str]) -> bool:
    alive: set[str] = set()
    for standing in standings:
        if standing.shard not in alive and not standing.nodes & lost:
            alive.add(standing.shard)
            if len(alive) == SHARDS:
                return False
    return True
