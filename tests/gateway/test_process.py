"""The router as a process: start, requests, endpoint.json, ends."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import json
import os
import shutil
import signal
import stat
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from exaslurm.core.codec import dumps
from exaslurm.gateway.endpoint import read_endpoint
from exaslurm.keys.clients import add_key, remove_key
from exaslurm.rundir import RunDir
from exaslurm.util.files import write_atomic
from tests.tools.fleet import INNER, engines, wait_for
from tests.tools.gateway import Gateway, publish_engine


def ask(gateway: Gateway, key: str, **changes: object) -> httpx.Response:
    body = {"model": "chat", "prompt": "x", "max_tokens": 4, **changes}
    headers = {"Authorization": f"Bearer {key}"}
    return httpx.post(gateway.url + "/v1/completions", json=body, headers=headers, timeout=20)


def test_serves_keeps_secrets_and_ends_in_order(
    run_dir: RunDir, start: Callable[..., Gateway]
) -> None:
    gateway = start("--gen", "1")
    # The usual port, or the next one that is free on this host.
    assert 24950 <= int(gateway.url.rpartition(":")[2]) < 25000
    entry = read_endpoint(run_dir).routers[0]
    assert (entry.url, entry.pid) == (gateway.url, gateway.process.pid)
    assert stat.S_IMODE(run_dir.endpoint.stat().st_mode) == 0o600
    assert httpx.get(gateway.url + "/health").status_code == 200
    assert "no key exists yet" in ask(gateway, "x").json()["error"]["message"]

    key = add_key(run_dir, "tester")
    with engines(("--decode-tokens-per-s", "20")) as (engine,):
        publish_engine(run_dir, engine)
        answer = wait_for(lambda: (got := ask(gateway, key)).status_code == 200 and got)
        assert answer.json()["choices"][0]["text"]

        # A signal lets the request at hand finish; nothing new is taken.
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            long = pool.submit(ask, gateway, key, max_tokens=20, prompt="secret words")
            wait_for(lambda: engine.running == 1)
            gateway.process.send_signal(signal.SIGTERM)
            assert long.result().status_code == 200
        assert gateway.end() == 0
    assert read_endpoint(run_dir).routers == ()
    log = gateway.said
    assert gateway.url in log
    for secret in (key, INNER, "secret words"):
        assert secret not in log
    command = b" ".join(str(part).encode() for part in gateway.process.args)  # type: ignore[union-attr]
    assert key.encode() not in command
    assert INNER.encode() not in command


def test_a_second_signal_ends_it_at_once(run_dir: RunDir, start: Callable[..., Gateway]) -> None:
    gateway, key = start(), add_key(run_dir, "tester")
    with engines(("--prefill-tokens-per-s", "0.01")) as (engine,):
        publish_engine(run_dir, engine)
        wait_for(lambda: httpx.get(gateway.url + "/ready").status_code == 200)
        wait_for(lambda: ask(gateway, key, max_tokens=0).status_code == 400)
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            stuck = pool.submit(ask, gateway, key)
            wait_for(lambda: engine.running == 1)
            gateway.process.send_signal(signal.SIGINT)
            wait_for(lambda: "SIGINT" in gateway.said)
            assert gateway.process.poll() is None
            gateway.process.send_signal(signal.SIGTERM)
            assert gateway.end() == 0
            assert stuck.result().status_code == 503
            assert "shutting down" in stuck.result().json()["error"]["message"]
        assert "Traceback" not in gateway.said
        wait_for(lambda: engine.running == 0, timeout_s=1)


def test_ends_when_the_deployment_stops_or_is_removed(
    run_dir: RunDir, start: Callable[..., Gateway]
) -> None:
    write_atomic(run_dir.desired, '{"run": true, "generation": 1}')
    one, two = start(), start()
    assert one.url != two.url
    assert {entry.url for entry in read_endpoint(run_dir).routers} == {one.url, two.url}
    write_atomic(run_dir.desired, "{")  # damaged: nobody ends for that
    wait_for(lambda: "desired.json: not JSON" in one.said)
    write_atomic(run_dir.desired, '{"run": false, "generation": 1}')
    assert (one.end(), two.end()) == (0, 0)
    assert read_endpoint(run_dir).routers == ()

    write_atomic(run_dir.desired, '{"run": true, "generation": 1}')
    three = start()
    shutil.rmtree(run_dir.path)
    assert three.end() == 0
    assert not run_dir.path.exists()


def test_a_file_system_that_is_away_changes_nothing(
    run_dir: RunDir, start: Callable[..., Gateway], tmp_path: Path
) -> None:
    """For longer than it takes to see that a deployment was removed."""
    write_atomic(run_dir.desired, '{"run": true, "generation": 1}')
    key = add_key(run_dir, "tester")
    away = tmp_path.with_name(tmp_path.name + "-away")
    with engines(()) as (engine,):
        publish_engine(run_dir, engine)
        gateway = start()
        wait_for(lambda: ask(gateway, key).status_code == 200)
        tmp_path.rename(away)
        tmp_path.mkdir()  # the mount point
        try:
            end_s = time.monotonic() + 8
            while time.monotonic() < end_s:
                assert ask(gateway, key).status_code == 200
        finally:
            tmp_path.rmdir()
            away.rename(tmp_path)
        assert ask(gateway, key).status_code == 200
        other = add_key(run_dir, "later")
        wait_for(lambda: ask(gateway, other).status_code == 200)
        assert len(read_endpoint(run_dir).routers) == 1
        assert "is its file system mounted?" in gateway.said
        write_atomic(run_dir.desired, '{"run": false, "generation": 1}')
        assert gateway.end() == 0


def test_dead_routers_leave_the_list_and_lost_entries_come_back(
    run_dir: RunDir, start: Callable[..., Gateway]
) -> None:
    one = start()
    one.process.kill()
    one.end()
    assert len(read_endpoint(run_dir).routers) == 1
    two = start()
    assert [entry.url for entry in read_endpoint(run_dir).routers] == [two.url]
    elsewhere = dataclasses.replace(read_endpoint(run_dir).routers[0], host="another-host")
    kept = dataclasses.replace(read_endpoint(run_dir), routers=(elsewhere,))
    write_atomic(run_dir.endpoint, dumps(kept))
    wait_for(lambda: len(read_endpoint(run_dir).routers) == 2)
    assert elsewhere in read_endpoint(run_dir).routers


@pytest.mark.parametrize("workers", [1, 2])
def test_serves_though_it_cannot_make_itself_known(
    run_dir: RunDir, start: Callable[..., Gateway], workers: int
) -> None:
    """As where the disk is full, or the run directory may only be read."""
    key = add_key(run_dir, "tester")
    run_dir.endpoint.mkdir()
    with engines(()) as (engine,):
        publish_engine(run_dir, engine)
        gateway = start("--workers", workers)
        wait_for(lambda: ask(gateway, key).status_code == 200)
        assert "not entered in endpoint.json" in gateway.said
        run_dir.endpoint.rmdir()
        wait_for(lambda: [one.url for one in read_endpoint(run_dir).routers] == [gateway.url])
        gateway.process.terminate()
        assert gateway.end() == 0
    assert not read_endpoint(run_dir).routers


@pytest.mark.parametrize(
    ("spoil", "code", "words"),
    [
        (lambda run_dir: shutil.rmtree(run_dir.path / "gen"), 2, "holds no plan"),
        (lambda run_dir: run_dir.internal_key.chmod(0o644), 2, "can be used by others"),
        (lambda run_dir: run_dir.internal_key.unlink(), 2, "cannot read"),
        (lambda run_dir: run_dir.generation(1).plan.write_text("{}"), 2, "is missing"),
    ],
)
def test_does_not_start_without_what_it_needs(
    run_dir: RunDir,
    start: Callable[..., Gateway],
    spoil: Callable[[RunDir], object],
    code: int,
    words: str,
) -> None:
    spoil(run_dir)
    gateway = start()
    assert gateway.end() == code
    text = gateway.said
    assert words in text
    assert "Traceback" not in text


def test_a_port_in_use_is_one_clear_error(run_dir: RunDir, start: Callable[..., Gateway]) -> None:
    port = start().url.rsplit(":", 1)[1]
    second = start("--port", port)
    assert second.end() == 2
    assert f"port {port} is in use" in second.said
    third = start("--bind", "192.0.2.1")
    assert third.end() == 2
    assert "cannot listen on 192.0.2.1" in third.said


def test_elsewhere_than_on_loopback_it_says_the_hosts_name(
    run_dir: RunDir, start: Callable[..., Gateway]
) -> None:
    gateway = start("--bind", "0.0.0.0")
    assert gateway.url.startswith(f"http://{os.uname().nodename}:")
    assert "without TLS" in gateway.said
    assert json.loads(run_dir.endpoint.read_text())["routers"][0]["url"] == gateway.url


def test_damaged_files_keep_nobody_from_the_others(
    run_dir: RunDir, start: Callable[..., Gateway]
) -> None:
    write_atomic(run_dir.desired, '{"run": true, "generation": 1}')
    gateway = start()
    write_atomic(run_dir.desired, '{"run": 7}')
    key = add_key(run_dir, "late")
    headers = {"Authorization": f"Bearer {key}"}
    with httpx.Client(base_url=gateway.url, headers=headers, trust_env=False) as client:
        wait_for(lambda: client.get("/v1/models").status_code == 200)
        remove_key(run_dir, "late")
        wait_for(lambda: client.get("/v1/models").status_code == 401)
    write_atomic(run_dir.endpoint, b"\xff\xfe")
    wait_for(lambda: b"routers" in run_dir.endpoint.read_bytes())
    assert [entry.url for entry in read_endpoint(run_dir).routers] == [gateway.url]
    write_atomic(run_dir.client_keys, b"[")
    write_atomic(run_dir.desired, '{"run": false, "generation": 1}')
    assert gateway.end() == 0
