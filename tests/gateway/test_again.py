"""A router in one process that starts again on SIGHUP, while something goes wrong."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import os
import signal
import stat
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path

import httpx
import pytest

from exaslurm.core.codec import dumps
from exaslurm.gateway.endpoint import read_endpoint
from exaslurm.keys.clients import add_key
from exaslurm.rundir import RunDir
from exaslurm.util.files import write_atomic
from tests.tools.fleet import INNER, Engine, engines, wait_for
from tests.tools.gateway import PLAN, Gateway, publish_engine, wait_ready

Start = Callable[..., Gateway]


@pytest.fixture(scope="module")
def slow() -> Iterator[Engine]:
    with engines(("--decode-tokens-per-s", "5")) as (one,):
        yield one


@pytest.fixture
def key(run_dir: RunDir, slow: Engine) -> str:
    """Of a deployment with 1 second of drain time."""
    plan = dataclasses.replace(PLAN, timeouts=dataclasses.replace(PLAN.timeouts, drain_s=1.0))
    write_atomic(run_dir.generation(1).plan, dumps(plan.sealed()))
    publish_engine(run_dir, slow)
    return add_key(run_dir, "tester")


class Asker:
    """Asks for streams, five tokens a second, in threads."""

    def __init__(
        self, gateway: Gateway, key: str, engine: Engine, pool: concurrent.futures.Executor
    ) -> None:
        self._gateway, self._key, self._engine, self._pool = gateway, key, engine, pool
        self._asked: list[Future[str]] = []

    def ask(self, tokens: int) -> Future[str]:
        """The text of a stream that has begun."""
        running = sum(not item.done() for item in self._asked)
        self._asked.append(self._pool.submit(self._read, tokens))
        wait_for(lambda: self._engine.running == running + 1)
        return self._asked[-1]

    def _read(self, tokens: int) -> str:
        body = {"model": "chat", "prompt": "x", "max_tokens": tokens, "ignore_eos": True}
        headers = {"Authorization": f"Bearer {self._key}"}
        url = self._gateway.url + "/v1/completions"
        return httpx.post(
            url, json={**body, "stream": True}, headers=headers, timeout=60
        ).text.strip()


@contextlib.contextmanager
def asking(gateway: Gateway, key: str, engine: Engine) -> Iterator[Asker]:
    wait_for(lambda: engine.running == 0)
    wait_ready(gateway)
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        try:
            yield Asker(gateway, key, engine, pool)
        except BaseException:
            gateway.process.kill()  # nobody waits for the rest of the streams
            raise


def is_whole(stream: Future[str]) -> bool:
    """Whether it ends as it should; one that is cut off has its last line, too."""
    text = stream.result(20)
    return text.endswith("data: [DONE]") and "shutting down" not in text


def hang_up(gateway: Gateway) -> None:
    """Return when its helper serves and it takes nothing new."""
    words = "ending when the requests at hand are done: starting again"
    before = gateway.said.count(words)
    assert listens(gateway)
    gateway.process.send_signal(signal.SIGHUP)
    wait_for(lambda: gateway.said.count(words) > before, timeout_s=20)
    wait_for(lambda: not listens(gateway))


def listens(gateway: Gateway) -> bool:
    """Whether the router's own process takes connections: its listening sockets are open twice
    then, one is kept for the next program."""
    folder = f"/proc/{gateway.pid}/fd"
    links: list[str] = []
    for fd in os.listdir(folder):
        with contextlib.suppress(FileNotFoundError):
            links.append(os.readlink(f"{folder}/{fd}"))
    sockets = [link for link in links if link.startswith("socket:")]
    return len(sockets) > len(set(sockets))


def serves_again(gateway: Gateway) -> bool:
    return "it serves again, in place of its helper" in gateway.said


def test_streams_at_the_helper_outlast_its_dismissal(start: Start, key: str, slow: Engine) -> None:
    gateway = start("--workers", 1)
    with asking(gateway, key, slow) as asker:
        short = asker.ask(15)
        hang_up(gateway)
        long = asker.ask(40)  # at the helper; several times the drain time beyond its dismissal
        assert is_whole(short)
        wait_for(lambda: serves_again(gateway), timeout_s=20)
        assert not long.done()
        assert is_whole(long)
        wait_for(lambda: gateway.workers() == [])
    gateway.process.terminate()
    assert gateway.end() == 0


@pytest.mark.parametrize("restarts", [0, 2])
def test_streams_at_a_dismissed_helper_end_with_the_router(
    start: Start, key: str, slow: Engine, restarts: int
) -> None:
    gateway = start("--workers", 1)
    with asking(gateway, key, slow) as asker:
        short = asker.ask(15)
        hang_up(gateway)
        long = asker.ask(1000)
        assert is_whole(short)
        wait_for(lambda: serves_again(gateway), timeout_s=20)
        (helper,) = gateway.workers()
        words = "it serves again, in place of its helper"
        for times in range(restarts):  # further ones do not change that
            gateway.process.send_signal(signal.SIGHUP)
            aim = 2 + times
            wait_for(lambda aim=aim: gateway.said.count(words) == aim, timeout_s=20)
            wait_for(lambda: gateway.workers() == [helper])
        assert not long.done()
        gateway.process.terminate()
        assert gateway.end() == 0
        assert not Path(f"/proc/{helper}").exists()
        assert "shutting down" in long.result(10)


@contextlib.contextmanager
def broken_meanwhile(gateway: Gateway, key: str, slow: Engine, path: Path) -> Iterator[None]:
    """The file is broken while the old one drains: inside, the new one cannot serve."""
    with asking(gateway, key, slow) as asker:
        short = asker.ask(15)
        hang_up(gateway)
        whole = path.read_bytes()
        path.write_bytes(b"nonsense: [")
        assert is_whole(short)
        wait_for(lambda: "cannot serve again yet, the helper goes on" in gateway.said)
        assert is_whole(asker.ask(3))
        yield
        path.write_bytes(whole)


@pytest.mark.parametrize("broken", ["list", "plan"])
def test_a_file_that_is_broken_meanwhile_is_waited_for(
    run_dir: RunDir,
    gateway: Callable[..., Gateway],
    key: str,
    slow: Engine,
    tmp_path: Path,
    broken: str,
) -> None:
    if broken == "plan":
        path, options = run_dir.generation(1).plan, ["--run-dir", run_dir.path]
    else:
        path, engine_key = tmp_path / "engines.yaml", tmp_path / "engine.key"
        engine_key.write_text(INNER)
        engine_key.chmod(0o600)
        path.write_text(f"key_file: {engine_key}\nengines: ['{slow.url}']\n")
        options = ["--engines-file", path]
    router = gateway(*options, "--workers", 1, EXASLURM_ROUTER_KEY=key)
    with broken_meanwhile(router, key, slow, path):
        assert not serves_again(router)
    wait_for(lambda: serves_again(router), timeout_s=20)
    wait_for(lambda: router.workers() == [])
    wait_ready(router)
    assert router.said.count("cannot serve again yet") == 1
    router.process.terminate()
    assert router.end() == 0


@pytest.mark.parametrize("how", ["signal", "desired"])
def test_one_that_waits_for_a_broken_file_can_be_ended(
    run_dir: RunDir, start: Start, key: str, slow: Engine, tmp_path: Path, how: str
) -> None:
    uds = tmp_path / "s.sock"
    gateway = start("--workers", 1, "--uds", uds)
    with broken_meanwhile(gateway, key, slow, run_dir.generation(1).plan):
        (helper,) = gateway.workers()
        if how == "signal":
            gateway.process.terminate()
        else:
            write_atomic(run_dir.desired, '{"run": false, "generation": 1}')
        assert gateway.end() == 0
        assert not Path(f"/proc/{helper}").exists()
    assert not uds.exists()
    assert read_endpoint(run_dir).routers == ()


def test_a_broken_file_without_a_helper_ends_it(
    run_dir: RunDir, start: Start, key: str, slow: Engine
) -> None:
    gateway = start("--workers", 1)
    with broken_meanwhile(gateway, key, slow, run_dir.generation(1).plan):
        (helper,) = gateway.workers()
        os.kill(helper, signal.SIGKILL)
        assert gateway.end() == 2
    assert read_endpoint(run_dir).routers == ()


def test_a_helper_that_dies_is_replaced_while_the_old_one_drains(
    start: Start, key: str, slow: Engine
) -> None:
    gateway = start("--workers", 1)
    with asking(gateway, key, slow) as asker:
        long = asker.ask(40)
        hang_up(gateway)
        for _ in range(2):
            (helper,) = gateway.workers()
            os.kill(helper, signal.SIGKILL)
            wait_for(lambda helper=helper: gateway.workers() not in ([], [helper]))
            assert httpx.get(gateway.url + "/health", timeout=10).status_code == 200
        assert not long.done()
        assert is_whole(long)
        wait_for(lambda: serves_again(gateway), timeout_s=20)
        wait_for(lambda: gateway.workers() == [])
    wait_ready(gateway)
    assert "Traceback" not in gateway.said
    gateway.process.terminate()
    assert gateway.end() == 0


def test_one_whose_helper_has_died_can_be_ended(start: Start, key: str, slow: Engine) -> None:
    gateway = start("--workers", 1)
    with asking(gateway, key, slow) as asker:
        long = asker.ask(1000)
        hang_up(gateway)
        (helper,) = gateway.workers()
        os.kill(helper, signal.SIGKILL)
        wait_for(lambda: "has ended, starting another one: SIGKILL" in gateway.said)
        gateway.process.terminate()
        assert gateway.end() == 0
        assert "shutting down" in long.result(10)
    assert "Traceback" not in gateway.said


def over_unix(uds: Path) -> int:
    with httpx.Client(transport=httpx.HTTPTransport(uds=str(uds))) as client:
        return client.get("http://router/health").status_code


@pytest.mark.parametrize("lost", ["file", "directory"])
def test_a_sockets_file_that_was_removed_comes_again(
    start: Start, key: str, tmp_path: Path, lost: str
) -> None:
    folder = tmp_path / "sockets"
    folder.mkdir()
    uds = folder / "s.sock"
    gateway = start("--workers", 1, "--uds", uds)
    wait_ready(gateway)
    uds.unlink()
    if lost == "directory":
        folder.rmdir()
    gateway.process.send_signal(signal.SIGHUP)
    wait_for(lambda: serves_again(gateway), timeout_s=20)
    wait_for(lambda: gateway.workers() == [])
    wait_ready(gateway)
    if lost == "file":
        assert stat.S_IMODE(uds.stat().st_mode) == 0o600
        assert over_unix(uds) == 200
    gateway.process.terminate()
    assert gateway.end() == 0
    assert not uds.exists()


@pytest.mark.parametrize("workers", [1, 2])
def test_a_router_in_place_of_another_finds_the_sockets_file_removed(
    start: Start, key: str, tmp_path: Path, workers: int
) -> None:
    uds = tmp_path / "s.sock"
    one = start("--workers", 1, "--uds", uds)
    uds.unlink()
    two = start("--workers", workers, "--uds", uds, "--replace")
    assert two.url == one.url
    assert one.end() == 0
    assert over_unix(uds) == 200


def test_more_workers_by_the_plan_take_the_helpers_place(
    run_dir: RunDir, start: Start, key: str, slow: Engine
) -> None:
    gateway = start()
    plan = dataclasses.replace(PLAN, gateway=dataclasses.replace(PLAN.gateway, workers=2))
    with asking(gateway, key, slow) as asker:
        short = asker.ask(15)
        write_atomic(run_dir.generation(1).plan, dumps(plan.sealed()))
        hang_up(gateway)
        (helper,) = gateway.workers()
        long = asker.ask(35)
        assert is_whole(short)
        wait_for(lambda: serves_again(gateway), timeout_s=20)
        assert len(gateway.workers()) == 3
        assert is_whole(long)
    wait_for(lambda: helper not in gateway.workers())
    # From now on it is a request to replace the workers.
    before = set(gateway.workers())
    gateway.process.send_signal(signal.SIGHUP)
    wait_for(lambda: "all workers are replaced" in gateway.said, timeout_s=20)
    wait_for(lambda: len(gateway.workers()) == 2)
    assert not before & set(gateway.workers())
    (entry,) = read_endpoint(run_dir).routers
    assert (entry.url, entry.pid) == (gateway.url, gateway.pid)
    gateway.process.terminate()
    assert gateway.end() == 0
    assert "Traceback" not in gateway.said
