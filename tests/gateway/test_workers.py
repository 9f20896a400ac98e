"""Several processes on one port: under load, one killed, all replaced, another router in place."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from exaslurm.core.codec import dumps
from exaslurm.gateway.endpoint import read_endpoint
from exaslurm.keys.clients import add_key
from exaslurm.rundir import RunDir
from exaslurm.util.files import write_atomic
from tests.tools.fleet import Engine, engines, wait_for
from tests.tools.gateway import PLAN, Gateway, Load, publish_engine, wait_ready

Start = Callable[..., Gateway]


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with engines(("--decode-tokens-per-s", "400")) as (one,):
        yield one


@pytest.fixture
def key(run_dir: RunDir, engine: Engine) -> str:
    publish_engine(run_dir, engine)
    return add_key(run_dir, "tester")


@contextlib.contextmanager
def loaded(gateway: Gateway, key: str, **options: int) -> Iterator[Load]:
    """Load on a gateway whose workers all know the engine."""
    for _ in range(8):  # a connection each, spread over the workers
        wait_ready(gateway)
    load = Load(gateway.url, key, **options)
    try:
        load.more()
        yield load
    finally:
        load.stop()


def test_they_share_the_port_and_the_parent_is_the_router(
    run_dir: RunDir, start: Start, key: str
) -> None:
    write_atomic(run_dir.desired, '{"run": true, "generation": 1}')
    gateway = start("--workers", 3)
    assert len(gateway.workers()) == 3
    (entry,) = read_endpoint(run_dir).routers
    assert (entry.url, entry.pid) == (gateway.url, gateway.pid)
    # Few connections may all come to one of them by chance.
    with loaded(gateway, key, plain=16) as load:
        for pid in gateway.workers():
            assert key not in Path(f"/proc/{pid}/cmdline").read_text()
        wait_for(lambda: sum(bool(connections_of(pid)) for pid in gateway.workers()) >= 2)
    assert load.failures == []
    write_atomic(run_dir.desired, '{"run": false, "generation": 1}')
    assert gateway.end() == 0
    assert read_endpoint(run_dir).routers == ()


def connections_of(pid: int) -> int:
    """Sockets that a process has open besides those that it was given."""
    links = [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]
    return sum(link.startswith("socket:") for link in links) - 4


def test_a_killed_worker_costs_its_own_requests_at_most(start: Start, key: str) -> None:
    gateway = start("--workers", 2)
    with loaded(gateway, key, may_reconnect=True) as load:
        for _ in range(2):
            victim, others = gateway.workers()[0], gateway.workers()[1:]
            os.kill(victim, signal.SIGKILL)
            wait_for(lambda others=others: len(set(gateway.workers()) - set(others)) == 1)
            load.more()
    # Whoever was connected to it connects again; that is never refused.
    assert load.failures == []
    assert load.reconnects <= 2 * 5
    assert "SIGKILL" in gateway.said


def test_a_worker_that_hangs_is_replaced(start: Start, key: str) -> None:
    gateway = start("--workers", 2)
    with loaded(gateway, key, may_reconnect=True) as load:
        victim, other = gateway.workers()
        os.kill(victim, signal.SIGSTOP)
        wait_for(lambda: victim not in gateway.workers(), timeout_s=60)
        wait_for(lambda: len(set(gateway.workers()) - {victim, other}) == 1, timeout_s=20)
        load.more()
    assert load.failures == []
    assert "hangs" in gateway.said
    assert other in gateway.workers()


@pytest.mark.parametrize("workers", [1, 3])
def test_hangup_replaces_them_without_a_failure(
    run_dir: RunDir, start: Start, key: str, workers: int
) -> None:
    gateway = start("--workers", workers)
    with loaded(gateway, key) as load:
        for _ in range(2):
            before = set(gateway.workers())
            gateway.process.send_signal(signal.SIGHUP)
            if workers == 1:  # a helper comes, and goes when it is itself again
                wait_for(lambda: len(gateway.workers()) == 1)
                wait_for(lambda: gateway.workers() == [], timeout_s=20)
            else:
                wait_for(
                    lambda before=before: (
                        len(set(gateway.workers()) - before) == workers
                        and not set(gateway.workers()) & before
                    ),
                    timeout_s=30,
                )
            load.more()
            (entry,) = read_endpoint(run_dir).routers
            assert (entry.url, entry.pid) == (gateway.url, gateway.pid)
    assert load.failures == []
    gateway.process.terminate()
    assert gateway.end() == 0
    assert read_endpoint(run_dir).routers == ()


@pytest.mark.parametrize("workers", [1, 2])
def test_long_answers_outlast_a_replacement_but_not_the_end(
    run_dir: RunDir, start: Start, workers: int
) -> None:
    """Drain time is 2 seconds here; the answer takes longer."""
    key = hurried(run_dir)
    with engines(("--decode-tokens-per-s", "5")) as (slow,):
        publish_engine(run_dir, slow)
        gateway = start("--workers", workers)
        for _ in range(8):
            wait_ready(gateway)
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            short = pool.submit(ask_slowly, gateway.url, key, 30)  # six seconds
            wait_for(lambda: slow.running == 1)
            gateway.process.send_signal(signal.SIGHUP)
            if workers == 1:
                wait_for(lambda: len(gateway.workers()) == 1)
            else:
                wait_for(lambda: "all workers are replaced" in gateway.said)
            long = pool.submit(ask_slowly, gateway.url, key, 1000)
            wait_for(lambda: slow.running == 2)
            assert short.result(20).endswith("data: [DONE]")
            gateway.process.terminate()
            assert gateway.end(timeout_s=20) == 0
            assert "shutting down" in long.result(20)


@pytest.mark.parametrize("workers", [1, 2])
def test_one_that_was_replaced_can_be_hurried(run_dir: RunDir, start: Start, workers: int) -> None:
    key = hurried(run_dir)
    with engines(("--decode-tokens-per-s", "5")) as (slow,):
        publish_engine(run_dir, slow)
        one = start("--workers", workers)
        for _ in range(8):
            wait_ready(one)
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            long = pool.submit(ask_slowly, one.url, key, 1000)
            wait_for(lambda: slow.running == 1)
            two = start("--workers", workers, "--replace")
            wait_for(lambda: "another router has taken its place" in one.said)
            with pytest.raises(subprocess.TimeoutExpired):
                one.end(timeout_s=3)
            one.process.terminate()
            assert one.end() == 0
            assert "shutting down" in long.result(10)
        assert [entry.pid for entry in read_endpoint(run_dir).routers] == [two.pid]


def hurried(run_dir: RunDir) -> str:
    """A plan with 2 seconds of drain time, and a key."""
    plan = dataclasses.replace(PLAN, timeouts=dataclasses.replace(PLAN.timeouts, drain_s=2.0))
    write_atomic(run_dir.generation(1).plan, dumps(plan.sealed()))
    return add_key(run_dir, "tester")


def ask_slowly(url: str, key: str, tokens: int) -> str:
    body = {"model": "chat", "prompt": "x", "max_tokens": tokens, "stream": True}
    headers = {"Authorization": f"Bearer {key}"}
    answer = httpx.post(url + "/v1/completions", json=body, headers=headers, timeout=60)
    return answer.text.strip()


@pytest.mark.parametrize("workers", [1, 2])
def test_what_cannot_start_again_goes_on_as_before(
    run_dir: RunDir, start: Start, key: str, workers: int
) -> None:
    gateway = start("--workers", workers)
    with loaded(gateway, key) as load:
        before = gateway.workers()
        run_dir.internal_key.chmod(0o644)
        gateway.process.send_signal(signal.SIGHUP)
        wait_for(lambda: "ended at its start (exit code 2)" in gateway.said)
        wait_for(lambda: gateway.workers() == before)
        load.more()
        # Mended, the next one succeeds.
        run_dir.internal_key.chmod(0o600)
        gateway.process.send_signal(signal.SIGHUP)
        done = "worker 2 (process" if workers > 1 else "starting again"
        wait_for(lambda: gateway.said.count(done) >= 2, timeout_s=20)
        load.more()
    assert load.failures == []


@pytest.mark.parametrize("nohup", [False, True])
@pytest.mark.parametrize("workers", [1, 2])
def test_it_ends_with_its_terminal_unless_under_nohup(
    run_dir: RunDir, tmp_path: Path, workers: int, nohup: bool
) -> None:
    """A hang-up that is one: the window was closed."""
    log = tmp_path / "terminal.log"
    pid, terminal = pty.fork()
    if pid == 0:
        os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT, 0o600), 2)
        # Either way: these tests may run under nohup themselves.
        signal.signal(signal.SIGHUP, signal.SIG_IGN if nohup else signal.SIG_DFL)
        command = [sys.executable, "-m", "exaslurm.gateway", "--run-dir", str(run_dir.path)]
        os.execv(sys.executable, [*command, "--workers", str(workers)])

    def ended() -> bool:
        return os.waitpid(pid, os.WNOHANG) == (pid, 0)

    def says(words: str) -> bool:
        return words in log.read_text()

    try:
        wait_for(lambda: log.exists() and says("serving hello on"), timeout_s=20)
        os.close(terminal)
        if nohup:
            wait_for(lambda: says("SIGHUP: its terminal was closed"))
            os.kill(pid, signal.SIGHUP)  # from now on it is a request, as without a terminal
            done = "all workers are replaced" if workers > 1 else "it serves again"
            wait_for(lambda: says(done), timeout_s=20)
            os.kill(pid, signal.SIGTERM)
        wait_for(ended, timeout_s=20)
    except BaseException:
        os.kill(pid, signal.SIGKILL)
        raise
    assert nohup or says("SIGHUP")
    assert read_endpoint(run_dir).routers == ()


@pytest.mark.parametrize("workers", [1, 2])
def test_figures_are_those_of_all_processes_and_never_fall(
    start: Start, key: str, workers: int
) -> None:
    gateway = start("--workers", workers)
    with loaded(gateway, key, may_reconnect=True) as load:
        gateway.process.send_signal(signal.SIGHUP)
        if workers == 1:
            wait_for(lambda: len(gateway.workers()) == 1)
            wait_for(lambda: gateway.workers() == [], timeout_s=20)
        else:
            wait_for(lambda: "all workers are replaced" in gateway.said, timeout_s=30)
            wait_for(lambda: len(gateway.workers()) == workers)
        load.more()
        load.stop()
        # Every request of every process before and after, whoever is asked.
        wait_for(lambda: load.scrape() == (load.done, workers))
        for _ in range(5):
            assert load.scrape() == (load.done, workers)
        if workers > 1:  # what a killed one had told stays, and all have told all by now
            os.kill(gateway.workers()[0], signal.SIGKILL)
            wait_for(lambda: "SIGKILL" in gateway.said)
            wait_for(lambda: len(gateway.workers()) == workers, timeout_s=20)
            wait_for(lambda: load.scrape() == (load.done, workers))


@pytest.mark.parametrize(("old", "new"), [(1, 2), (3, 1)])
def test_another_router_takes_over_without_a_failure(
    run_dir: RunDir, start: Start, key: str, old: int, new: int
) -> None:
    one = start("--workers", old)
    with loaded(one, key) as load:
        two = start("--workers", new, "--replace")
        assert two.url == one.url
        assert one.end() == 0
        assert [entry.pid for entry in read_endpoint(run_dir).routers] == [two.pid]
        load.more()
    assert load.failures == []
    assert "another router has taken its place" in one.said


def test_a_router_that_cannot_start_takes_nothing_over(
    run_dir: RunDir, start: Start, key: str
) -> None:
    one = start()
    with loaded(one, key) as load:
        run_dir.internal_key.chmod(0o644)
        assert start("--replace").end() == 2
        two = start("--replace", "--workers", 2)
        assert two.end() == 2
        run_dir.internal_key.chmod(0o600)
        load.more()
    assert load.failures == []
    assert one.process.poll() is None


def test_which_router_to_replace_must_be_clear(start: Start, key: str) -> None:
    one, two = start(), start()
    third = start("--replace")
    assert third.end() == 2
    assert "2 routers could be replaced" in third.said
    port = two.url.rsplit(":", 1)[1]
    assert start("--replace", "--port", port).url == two.url
    assert two.end() == 0
    assert one.process.poll() is None


def test_nothing_to_replace_is_a_plain_start(start: Start) -> None:
    gateway = start("--replace")
    assert gateway.url
    assert "no router to take over from" in gateway.said


def test_workers_finish_what_is_begun(start: Start, key: str) -> None:
    gateway = start("--workers", 2)
    wait_ready(gateway)
    with loaded(gateway, key, may_reconnect=True):
        gateway.process.send_signal(signal.SIGTERM)
        assert gateway.end() == 0
    assert "Traceback" not in gateway.said


def test_workers_end_with_their_parent(start: Start, key: str) -> None:
    gateway = start("--workers", 2)
    workers = gateway.workers()
    gateway.process.kill()
    gateway.end()
    wait_for(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in workers))


def test_what_no_worker_could_use_is_told_at_the_start(run_dir: RunDir, start: Start) -> None:
    run_dir.client_keys.write_text("{}")
    gateway = start("--workers", 2)
    assert gateway.end() == 2
    assert "Traceback" not in gateway.said
    assert read_endpoint(run_dir).routers == ()
