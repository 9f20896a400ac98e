"""Routers as processes keep the audit log."""

from __future__ import annotations

import asyncio
import dataclasses
import signal
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from exaslurm.core.codec import dumps
from exaslurm.core.plan import PortPolicy
from exaslurm.gateway import process
from exaslurm.gateway.figures import Figures
from exaslurm.gateway.listeners import Listeners, listen_tcp
from exaslurm.gateway.options import parse
from exaslurm.gateway.process import Process
from exaslurm.gateway.service import service_of
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


async def test_it_is_closed_though_the_rest_of_the_end_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def write(*_: object, **__: object) -> None:
        raise RuntimeError("no figures")

    monkeypatch.setattr(Figures, "write", write)
    monkeypatch.setattr(process, "_FIGURES_S", 0.01)
    for name in ("_spare_the_collector", "_keep_memory"):
        monkeypatch.setattr(process, name, lambda: None)
    (tmp_path / "engines").write_text("http://127.0.0.1:9\n")
    directory = tmp_path / "log"
    words = ["--engines-file", tmp_path / "engines", "--no-auth", "--audit", directory]
    listeners = Listeners([listen_tcp("127.0.0.1", 0, PortPolicy())])
    url = f"http://127.0.0.1:{listeners.port}"
    ready = asyncio.Event()

    async def on_ready() -> None:
        ready.set()

    router = Process(
        service_of(parse([str(word) for word in words])),
        listeners,
        None,
        figures=tmp_path,
        on_ready=on_ready,
    )
    running = asyncio.create_task(router.run())
    await ready.wait()
    async with httpx.AsyncClient() as client:
        body = {"model": "m", "prompt": "x"}
        assert (await client.post(url + "/v1/completions", json=body)).status_code == 503
    said = "do not know this one's figures: no figures"
    await asyncio.to_thread(wait_for, lambda: said in caplog.text)
    router.stop("it is to")
    await running
    (report,) = verify(directory, None)
    assert (report.requests, report.findings) == (1, [])
    assert "is lost: no figures" in caplog.text


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
