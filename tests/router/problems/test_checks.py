"""How engines are watched, and a router that starts before them."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from exaslurm.registry import probe
from exaslurm.registry.engines_file import of_urls
from exaslurm.registry.probe import PolledSource
from exaslurm.registry.scrape import parse
from exaslurm.registry.watched import Watched
from tests.tools.farm import FarmThread
from tests.tools.fleet import INNER, Engine, Router, wait_for
from tests.tools.served import Served

MakeFarm = Callable[..., FarmThread]
PAGE = Path(__file__).parents[2] / "simulated" / "vllm-0.32-metrics.txt"


def test_thousands_of_engines_are_asked_seldom_and_evenly(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM's ``/metrics`` costs its API server time: asked often, it does not answer anyone else.

    https://github.com/llm-d/llm-d-router/issues/1842
    """
    asked: list[float] = []

    async def check(self: Watched) -> None:
        asked.append(time.monotonic())
        self.checks += 1
        self.replica = self._replica("ready", None)

    monkeypatch.setattr(Watched, "check", check)

    async def run() -> None:
        urls = [f"http://10.0.{number // 250}.{number % 250 + 1}:8000" for number in range(3072)]
        source = PolledSource(of_urls(urls))
        task = asyncio.create_task(source.run())
        started_s = time.monotonic()
        while len(asked) < 3072:
            assert time.monotonic() < started_s + 10, "each once, at the start"
            await asyncio.sleep(0.02)
        begin_s = time.monotonic()
        before = len(asked)
        await asyncio.sleep(2)
        rate = (len(asked) - before) / (time.monotonic() - begin_s)
        assert 0.5 * probe.CHECKS_PER_S < rate < 1.5 * probe.CHECKS_PER_S
        # No engine is asked more than once in many seconds, and not all in one breath.
        assert source.every_s > 10
        late = [at_s for at_s in asked if at_s > begin_s]
        halves = sum(at_s < begin_s + 1 for at_s in late), sum(at_s >= begin_s + 1 for at_s in late)
        assert min(halves) > 0.5 * max(halves)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    asyncio.run(run())


def test_pages_of_figures_leave_nothing_behind() -> None:
    """The parser of Prometheus pages, 50 ms apart, used so much memory that the router was killed.

    https://github.com/llm-d/llm-d/pull/2118
    """
    page = PAGE.read_bytes()
    assert parse(page) is not None
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for _ in range(3072):
            parse(page)
        after, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 64 * 1024
    assert peak - before < 2 * len(page) + 256 * 1024


async def test_one_failed_check_does_not_end_the_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop of health checks met an exception and was gone, without a word; from then on the
    router knew only what it had known.

    https://github.com/vllm-project/production-stack/issues/815
    """
    asked: list[str] = []

    async def check(self: Watched) -> None:
        asked.append(self.engine.id)
        self.checks += 1
        if self.engine.id.endswith(":1"):
            raise RuntimeError("a bug of ours")

    monkeypatch.setattr(Watched, "check", check)
    monkeypatch.setattr(probe, "TROUBLED_EVERY_S", 0.1)
    source = PolledSource(of_urls(["http://127.0.0.1:1", "http://127.0.0.1:2"]))
    task = asyncio.create_task(source.run())
    deadline_s = time.monotonic() + 5
    while min(asked.count("127.0.0.1:1"), asked.count("127.0.0.1:2")) < 4:
        assert time.monotonic() < deadline_s, asked
        assert not task.done()
        await asyncio.sleep(0.02)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


def test_checks_show_the_engines_key(
    tmp_path: Path, make_farm: MakeFarm, serve: Callable[..., Served]
) -> None:
    """Health checks went without the key that the engine asks for, so that it never became ready.

    https://github.com/vllm-project/router/issues/159
    """
    key_file = tmp_path / "engine.key"
    key_file.touch(mode=0o600)
    key_file.write_text("engine-key\n")
    farm = make_farm(1)
    farm.key = b"engine-key"
    served = serve([f"engines: [{{url: '{farm.urls[0]}', key_file: {key_file}}}]"])
    served.wait_ready(1)
    answer = served.http.post("/v1/completions", json={"model": "chat", "prompt": "x"})
    assert answer.status_code == 200
    assert farm.refused == 0


def test_not_ready_without_an_engine(
    make_farm: MakeFarm, make_router: Callable[..., Router]
) -> None:
    """The router said that it was ready while it had nobody to send requests to.

    https://github.com/sgl-project/sglang/issues/12248
    """
    farm = make_farm(1)
    router = make_router()
    answers: list[Any] = []
    for replicas in ([], [farm.replica(0, ready=False)], [farm.replica(0, draining=True)]):
        router.replace(*replicas)
        answers.append(router.stranger.get("/ready").status_code)
    assert answers == [503, 503, 503]
    assert router.stranger.get("/health").status_code == 200
    router.replace(farm.replica(0))
    assert router.stranger.get("/ready").status_code == 200


def test_starts_without_all_engines(
    tmp_path: Path, make_farm: MakeFarm, serve: Callable[..., Served]
) -> None:
    """One listed engine was down, and the router did not start.

    https://github.com/sgl-project/sglang/issues/3802
    """
    key_file = tmp_path / "engine.key"
    key_file.touch(mode=0o600)
    key_file.write_text(INNER)
    with socket.socket() as late:
        late.bind(("127.0.0.1", 0))  # nobody listens there yet
        port = late.getsockname()[1]
        urls = [f"http://127.0.0.1:{port}", *make_farm(1).urls]
        served = serve([f"{{key_file: {key_file}, engines: {urls}}}"])
        served.wait_ready(1)
        answer = served.http.post("/v1/completions", json={"model": "chat", "prompt": "x"})
        assert answer.status_code == 200
    with contextlib.closing(Engine(port=port)):
        served.wait_ready(2)

        def used() -> bool:
            body = {"model": "chat", "prompt": str(time.monotonic()), "max_tokens": 1}
            answer = served.http.post("/v1/completions", json=body)
            assert answer.status_code == 200
            return bool(answer.headers["x-exaslurm-replica"] == f"127.0.0.1:{port}")

        wait_for(used, timeout_s=5)
