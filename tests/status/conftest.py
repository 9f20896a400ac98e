"""A run directory as submit and a cell's controller leave it, and a controller that answers."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from exaslurm.core.cell import (
    CellRecord,
    CellState,
    RayCellState,
    ReplicaRecord,
    ReplicaStatus,
)
from exaslurm.core.codec import dumps
from exaslurm.core.plan import Plan
from exaslurm.core.submission import Submission
from exaslurm.keys.secrets import ensure_secrets, read_secret
from exaslurm.registry.write import write_record
from exaslurm.rundir import RunDir
from exaslurm.util.files import write_atomic
from tests.tools import plans


def make_plan(cells: int = 1, *, start_with_submit: bool = False, layout: Any = "het") -> Plan:
    component = plans.make_component(nodes=2, cpus_per_node=4)
    return plans.make_plan(
        deployment="hello",
        site="lab",
        layout=layout,
        models=[plans.make_model()],
        cells=plans.make_cells(component, count=cells, replicas=[("m", "base", 2)]),
        start_with_submit=start_with_submit,
        poll_floor_s=30.0,
    ).sealed()


@dataclass(frozen=True)
class Controller:
    """Answers ``/v1/state`` with what ``state`` holds, and ``/status`` as a router that has
    these replicas; notes what was asked."""

    url: str
    state: dict[str, CellState]
    asked: list[str]
    router: list[dict[str, bool]]


@dataclass(frozen=True)
class Made:
    """A deployment on disk."""

    run_dir: RunDir
    plan: Plan

    def submit(self, cell: str = "c000", **more: Any) -> None:
        fields: dict[str, Any] = {
            "deployment": "hello",
            "cell": cell,
            "generation": 1,
            "plan_hash": self.plan.hash,
            "token": "t",
            "job_name": f"exa-hello-{cell}-t",
            "state": "submitted",
            "created_s": 1.0,
            "submitted_s": 2.0,
            "job_id": "93",
            **more,
        }
        path = self.run_dir.generation(1).submission(cell)
        write_atomic(path, dumps(Submission(**fields)))

    def record(self, state_url: str, *ready: bool, cell: str = "c000") -> None:
        replicas = tuple(
            ReplicaRecord(
                id=f"{cell}-r{number:04}",
                model="m",
                shard="base",
                served_names=("m",),
                url="http://127.0.0.1:1",
                node="n1",
                ready=flag,
                simulated=True,
            )
            for number, flag in enumerate(ready)
        )
        record = CellRecord(
            deployment="hello",
            cell=cell,
            generation=1,
            plan_hash=self.plan.hash,
            job_id="93",
            seq=1,
            lease_s=15,
            state_url=state_url,
            replicas=replicas,
        )
        write_record(self.run_dir, record)

    def state(self, phase: Any, *states: Any, cell: str = "c000", **more: Any) -> CellState:
        replicas = tuple(
            ReplicaStatus(
                id=f"{cell}-r{number:04}",
                model="m",
                shard="base",
                served_names=("m",),
                state=state,
                node="n1",
                url="http://127.0.0.1:1",
            )
            for number, state in enumerate(states)
        )
        fields: dict[str, Any] = {"cause": None, "nodes": (), **more}
        return CellState(
            deployment="hello",
            cell=cell,
            plan_hash=self.plan.hash,
            job_id="93",
            seq=1,
            phase=phase,
            ray=RayCellState(state="off"),
            replicas=replicas,
            **fields,
        )


@pytest.fixture
def made(tmp_path: Path) -> Callable[..., Made]:
    def make(**options: Any) -> Made:
        plan = make_plan(**options)
        run_dir = RunDir.of(tmp_path / "exaslurm", "hello")
        run_dir.make()
        ensure_secrets(run_dir)
        generation = run_dir.generation(1)
        generation.make(tuple(cell.name for cell in plan.cells))
        write_atomic(generation.plan, dumps(plan))
        return Made(run_dir, plan)

    return make


@pytest.fixture
def controller(tmp_path: Path) -> Iterator[Controller]:
    states: dict[str, CellState] = {}
    asked: list[str] = []
    replicas: list[dict[str, bool]] = []
    key_file = RunDir.of(tmp_path / "exaslurm", "hello").internal_key

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            known = self.headers["Authorization"] == f"Bearer {read_secret(key_file)}"
            body = b"{}"
            if known and self.path == "/status":
                body = json.dumps({"replicas": replicas}).encode()
            elif known:
                body = dumps(states["now"]).encode()
            self.send_response(200 if known else 401)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            return

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        yield Controller(f"http://127.0.0.1:{server.server_port}", states, asked, replicas)
        server.shutdown()
        thread.join(5)
