"""Routers as processes keep the audit log."""

from __future__ import annotations

import dataclasses
import signal
from collections.abc import Callable
from pathlib import Path

import httpx

from exaslurm.core.codec import dumps
from exaslurm.router.audit_check import verify
from exaslurm.router.audit_read import read
from exaslurm.rundir import RunDir
from exaslurm.util.files import write_atomic
from tests.tools.fleet import INNER, wait_for
from tests.tools.gateway import PLAN, Gateway


def refused(url: str) -> None:
    answer = httpx.post(url + "/v1/completions", json={"model": "m", "prompt": "x"})
    assert answer.status_code == 401


def requests_of(directory: Path) -> int:
    return sum(record["kind"] == "request" for record in read(directory))


def test_of_a_deployment(run_dir: RunDir, start: Callable[..., Gateway]) -> None:
    gateway = start("--workers", "2")
    for _ in range(20):
        refused(gateway.url)
    # On disk while it runs, within a second.
    wait_for(lambda: requests_of(run_dir.audit) == 20)
    refused(gateway.url)
    gateway.process.send_signal(signal.SIGTERM)
    assert gateway.end() == 0
    reports = verify(run_dir.audit, INNER)
    assert sum(report.requests for report in reports) == 21
    assert len(reports) == 2
    assert all(not report.findings for report in reports)


def test_of_a_killed_router(run_dir: RunDir, start: Callable[..., Gateway]) -> None:
    gateway = start()
    for _ in range(5):
        refused(gateway.url)
    wait_for(lambda: requests_of(run_dir.audit) == 5)
    gateway.process.kill()
    gateway.process.wait(10)
    again = start()
    refused(again.url)
    again.process.send_signal(signal.SIGTERM)
    assert again.end() == 0
    (report,) = verify(run_dir.audit, INNER)
    assert (report.requests, report.problems) == (6, [])


def test_of_a_list_of_engines(tmp_path: Path, gateway: Callable[..., Gateway]) -> None:
    engines = tmp_path / "engines.txt"
    engines.write_text("http://127.0.0.1:9\n")
    directory = tmp_path / "some" / "log"
    options = ("--engines-file", engines, "--port", 0, "--audit", directory)
    router = gateway(*options, EXASLURM_ROUTER_KEY="a-key-of-the-tests-" + "x" * 20)
    refused(router.url)
    router.process.send_signal(signal.SIGTERM)
    assert router.end() == 0
    (report,) = verify(directory, None)
    assert (report.requests, report.findings) == (1, [])


def test_off(run_dir: RunDir, start: Callable[..., Gateway]) -> None:
    gateway = dataclasses.replace(PLAN.gateway, audit=False)
    plan = dataclasses.replace(PLAN, gateway=gateway).sealed()
    write_atomic(run_dir.generation(1).plan, dumps(plan))
    router = start()
    refused(router.url)
    router.process.send_signal(signal.SIGTERM)
    assert router.end() == 0
    assert not run_dir.audit.exists()


def test_a_deployment_s_log_is_where_it_is(start: Callable[..., Gateway], tmp_path: Path) -> None:
    router = start("--audit", tmp_path / "log")
    assert router.end() == 2
    assert "--audit is for --engines-file" in router.said
