"""Snapshots of deployments, from real files, a real HTTP answer and Slurm's real commands' text."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from exaslurm.core.codec import dumps, from_jsonable, to_jsonable
from exaslurm.core.submission import Endpoint, RouterAddress
from exaslurm.errors import NotReadyError, WaitTimeout
from exaslurm.slurm.client import Slurm
from exaslurm.slurm.parse import gone
from exaslurm.slurm.types import JobInfo
from exaslurm.status.collect import Collector, collect
from exaslurm.status.model import DeploymentStatus
from exaslurm.status.wait import wait_ready
from exaslurm.util.files import write_atomic
from exaslurm.util.process import start_ticks

Make = Callable[..., Any]


@pytest.fixture
def squeue(tmp_path: Path) -> Callable[[str], Slurm]:
    """A Slurm whose squeue fails as the real one does when slurmctld is away."""

    def make(body: str) -> Slurm:
        folder = tmp_path / "bin"
        folder.mkdir(exist_ok=True)
        calls = tmp_path / "calls"
        for name in ("squeue", "sacct"):
            path = folder / name
            path.write_text(f"#!/bin/sh\necho {name} >> {calls}\n{body}\n")
            path.chmod(0o755)
        return Slurm({"PATH": f"{folder}:{os.environ['PATH']}"})

    return make


def test_everything_ready(made: Make, controller: Any) -> None:
    hello = made()
    hello.submit()
    hello.record(controller.url, False, False)
    controller.state["now"] = hello.state("serving", "ready", "ready")
    status = collect(hello.run_dir, None)
    assert (status.phase, status.replicas_ready, status.replicas_planned) == ("ready", 2, 2)
    assert status.cells[0].source == "controller"
    assert status.cause is None
    assert status.simulated


def test_the_answer_survives_json(made: Make, controller: Any) -> None:
    hello = made()
    hello.submit()
    hello.record(controller.url, True, True)
    controller.state["now"] = hello.state("serving", "ready", "loading")
    status = collect(hello.run_dir, None)
    assert from_jsonable(DeploymentStatus, _lists(to_jsonable(status)), where="x") == status


def _lists(value: Any) -> Any:
    import json

    return json.loads(json.dumps(value))


def test_a_silent_controller_leaves_the_last_record(made: Make) -> None:
    with socket.socket() as listener:  # it accepts nobody and answers nobody
        listener.bind(("127.0.0.1", 0))
        hello = made()
        hello.submit()
        hello.record(f"http://127.0.0.1:{listener.getsockname()[1]}", True, False)
        status = collect(hello.run_dir, None)
    assert (status.phase, status.cells[0].source) == ("degraded", "registry")
    assert "gives no answer now" in (status.cause or "")


def test_a_controller_that_never_answers_costs_a_bounded_time(made: Make) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        hello = made()
        hello.submit()
        hello.record(f"http://127.0.0.1:{listener.getsockname()[1]}", True, True)
        begin = time.monotonic()
        status = collect(hello.run_dir, None)
        assert time.monotonic() - begin < 8
    assert status.phase == "ready"


def test_a_record_of_another_plan_does_not_count(made: Make) -> None:
    hello = made()
    hello.submit()
    hello.record("http://127.0.0.1:1", True, True)
    other = hello.run_dir.record("c000").read_text().replace(hello.plan.hash, "f" * 64)
    write_atomic(hello.run_dir.record("c000"), other)
    assert collect(hello.run_dir, None).replicas_ready == 0


def test_slurm_that_gives_no_answer_is_said_and_not_taken_for_an_end(
    made: Make, squeue: Any
) -> None:
    hello = made()
    hello.submit()
    slurm = squeue("echo 'slurm_load_jobs error: Invalid user id' >&2; exit 1")
    status = collect(hello.run_dir, slurm)
    assert status.phase == "unknown"
    assert "Invalid user id" in (status.slurm_error or "")
    assert status.cells[0].job.state == "UNKNOWN"  # type: ignore[union-attr]


def test_a_job_of_another_cluster_is_asked_for_there(made: Make) -> None:
    hello = made()
    hello.submit(cluster="big")
    asked: list[str] = []

    class Two(Slurm):
        def jobs(self, ids: Sequence[str]) -> dict[str, JobInfo]:
            asked.extend(ids)
            return {ident: replace(gone("93"), state="RUNNING") for ident in ids}

    status = collect(hello.run_dir, Two({}))
    assert asked == ["93;big"]
    assert status.cells[0].job is not None
    assert status.cells[0].job.state == "RUNNING"


def test_slurm_is_not_asked_more_often_than_the_site_allows(
    made: Make, squeue: Any, tmp_path: Path
) -> None:
    hello = made()
    hello.submit()
    now = [100.0]
    slurm = squeue("echo 'slurm_load_jobs error: Invalid user id' >&2; exit 1")
    collector = Collector(hello.run_dir, slurm, clock=lambda: now[0])

    def calls() -> int:
        return len((tmp_path / "calls").read_text().splitlines())

    collector.collect()
    first = calls()
    now[0] += 29
    collector.collect()
    assert calls() == first
    now[0] += 2
    collector.collect()
    assert calls() > first


def test_a_local_cell_lives_as_long_as_its_process(made: Make) -> None:
    hello = made(layout="local")
    me = os.getpid()
    hello.submit(job_id="local", pid=me, start_ticks=start_ticks(me), host=socket.gethostname())
    assert collect(hello.run_dir, None).phase == "nodes"
    hello.submit(job_id="local", pid=me, start_ticks=1, host=socket.gethostname())
    status = collect(hello.run_dir, None)
    assert (status.phase, status.cells[0].job.state) == ("ended", "ENDED")  # type: ignore[union-attr]


def test_the_loopback_address_of_another_host_is_not_asked(made: Make, controller: Any) -> None:
    hello = made(layout="local")
    hello.record(controller.url, True)
    controller.state["c000"] = hello.state("serving", "ready")
    hello.submit(job_id="local", pid=1, start_ticks=1, host="login9")
    collect(hello.run_dir, None)
    assert controller.asked == []


def test_why_a_cell_ended_itself_is_the_first_cause(made: Make) -> None:
    hello = made(layout="local")
    hello.submit(job_id="local", pid=os.getpid(), start_ticks=1, host=socket.gethostname())
    write_atomic(hello.run_dir.generation(1).failure("c000"), "node c3 did not report\n")
    assert "node c3 did not report" in (collect(hello.run_dir, None).cause or "")


def test_a_deployment_that_was_stopped(made: Make) -> None:
    hello = made(layout="local")
    hello.submit(job_id="local", pid=os.getpid(), start_ticks=1, host=socket.gethostname())
    write_atomic(hello.run_dir.desired, '{"run": false, "generation": 1}')
    assert collect(hello.run_dir, None).phase == "stopped"


def test_ready_without_the_router_that_was_asked_for_is_degraded(
    made: Make, controller: Any
) -> None:
    hello = made(start_with_submit=True)
    hello.submit()
    hello.record(controller.url, True, True)
    controller.state["now"] = hello.state("serving", "ready", "ready")
    status = collect(hello.run_dir, None)
    assert status.phase == "degraded"
    assert (status.cause or "").endswith("no router runs")
    hello.run_dir.router_log.write_text(
        "INFO serving\nexaslurm: error: port 8000 is in use\n  remedy: choose another port\n"
    )
    assert (collect(hello.run_dir, None).cause or "").endswith(
        "no router runs: port 8000 is in use"
    )

    now = iter(range(1000))
    with pytest.raises(NotReadyError, match="no router runs: port 8000 is in use"):
        wait_ready(
            Collector(hello.run_dir, None),
            timeout_s=900,
            clock=lambda: float(next(now)),
            sleep=lambda _: None,
        )
    assert next(now) < 100, "nobody starts another router: waiting for one is in vain"


def test_ready_is_what_the_router_knows_too(made: Make, controller: Any) -> None:
    hello = made(start_with_submit=True)
    hello.submit()
    hello.record(controller.url, True, True)
    controller.state["now"] = hello.state("serving", "ready", "ready")
    me, host = os.getpid(), socket.gethostname()
    ticks = start_ticks(me)
    assert ticks is not None
    router = RouterAddress(url=controller.url, host=host, pid=me, start_ticks=ticks, started_s=1.0)
    dead = RouterAddress(url="http://127.0.0.1:1", host=host, pid=me, start_ticks=1, started_s=1)
    write_atomic(
        hello.run_dir.endpoint, dumps(Endpoint(deployment="hello", routers=(dead, router)))
    )
    controller.router.append({"takes_requests": True})
    status = collect(hello.run_dir, None)
    assert (status.phase, status.cause) == ("engines", "the router knows 1 of 2 replicas so far")
    controller.router.append({"takes_requests": True})
    status = collect(hello.run_dir, None)
    assert (status.phase, status.base_url) == ("ready", f"{controller.url}/v1")


def test_one_cell_of_two_is_gone(made: Make, controller: Any) -> None:
    hello = made(cells=2)
    hello.submit()
    hello.submit("c001", state="refused", job_id=None, message="Invalid account")
    hello.record(controller.url, True, True)
    controller.state["now"] = hello.state("serving", "ready", "ready")
    status = collect(hello.run_dir, None)
    assert (status.phase, status.cause) == (
        "degraded",
        "cell c001: it was not started: Invalid account",
    )


def test_waiting_ends_when_it_is_in_vain(made: Make) -> None:
    hello = made()
    hello.submit(state="refused", job_id=None, message="Invalid account")
    with pytest.raises(NotReadyError, match="Invalid account"):
        wait_ready(Collector(hello.run_dir, None), timeout_s=60)


def test_waiting_ends_in_time(made: Make) -> None:
    hello = made()
    hello.submit()
    now = [0.0]
    slept: list[float] = []

    def sleep(duration_s: float) -> None:
        slept.append(duration_s)
        now[0] += duration_s

    seen: list[DeploymentStatus] = []
    with pytest.raises(WaitTimeout, match="0 of 2 replicas"):
        wait_ready(
            Collector(hello.run_dir, None),
            timeout_s=2.5,
            show=seen.append,
            clock=lambda: now[0],
            sleep=sleep,
        )
    assert sum(slept) == 2.5
    assert len(seen) == 4


def test_what_was_found_out_and_measured_is_told(made: Make, controller: Any) -> None:
    hello = made()
    hello.submit(gap_s=24.6)
    hello.record(controller.url, True, True)
    controller.state["now"] = hello.state("serving", "ready", "ready")
    hello.run_dir.generation(1).notes.write_text(
        "a cell's next job cannot start before the cell ends\n"
    )
    status = collect(hello.run_dir, None)
    assert status.notes == ("a cell's next job cannot start before the cell ends",)
    assert status.cells[0].notes == ("nothing of its cell served for 25 s before c000 did",)
