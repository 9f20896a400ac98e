"""A router for a list of engines, without a deployment: whom it answers, where it listens."""

from __future__ import annotations

import os
import signal
import socket
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from exaslurm.keys.clients import add_key
from exaslurm.rundir import RunDir
from tests.tools.fleet import INNER, Engine, engines, wait_for
from tests.tools.gateway import Gateway, Load

Start = Callable[..., Gateway]
KEY = "the-one-key"


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with engines(()) as (one,):
        yield one


@pytest.fixture
def listed(tmp_path: Path, engine: Engine) -> Path:
    key = tmp_path / "engine.key"
    key.write_text(INNER)
    key.chmod(0o600)
    path = tmp_path / "engines.yaml"
    path.write_text(f"key_file: {key}\nengines: ['{engine.url}']\n")
    return path


@pytest.fixture
def run(gateway: Start, listed: Path) -> Start:
    def make(*arguments: object, **environ: str) -> Gateway:
        return gateway("--engines-file", listed, *arguments, **environ)

    return make


def ask(url: str, key: str | None = KEY, **client: object) -> httpx.Response:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    with httpx.Client(base_url=url, trust_env=False, timeout=20, **client) as http:  # type: ignore[arg-type]
        wait_for(lambda: http.get("/ready").status_code == 200)
        body = {"model": "chat", "prompt": "x", "max_tokens": 2}
        return http.post("/v1/completions", json=body, headers=headers)


def test_one_key_from_the_environment(run: Start) -> None:
    gateway = run(EXASLURM_ROUTER_KEY=KEY)
    assert ask(gateway.url).status_code == 200
    assert ask(gateway.url, "another").status_code == 401
    assert ask(gateway.url, None).status_code == 401
    gateway.process.send_signal(signal.SIGTERM)
    assert gateway.end() == 0
    assert KEY not in gateway.said


def test_one_key_from_a_file_that_changes(run: Start, tmp_path: Path) -> None:
    file = tmp_path / "client.key"
    file.write_text(KEY)
    file.chmod(0o600)
    gateway = run("--key-file", file)
    assert ask(gateway.url).status_code == 200
    file.write_text("fresh-key")
    wait_for(lambda: ask(gateway.url, "fresh-key").status_code == 200)
    assert ask(gateway.url).status_code == 401
    file.chmod(0o644)
    assert run("--key-file", file).end() == 2


def test_several_keys_from_a_store(run: Start, tmp_path: Path) -> None:
    store = RunDir(tmp_path / "keys")
    store.make()
    key = add_key(store, "ada")
    gateway = run("--keys-file", store.client_keys)
    assert ask(gateway.url, key).status_code == 200
    assert ask(gateway.url).status_code == 401
    assert run("--keys-file", tmp_path / "none").end() == 2


def test_no_key_is_asked_for_only_where_nobody_else_gets(run: Start, tmp_path: Path) -> None:
    gateway = run("--no-auth")
    assert ask(gateway.url, None).status_code == 200
    for arguments in (
        ("--no-auth", "--bind", "0.0.0.0"),
        ("--no-auth", "--bind", "::"),
        ("--no-auth", "--bind", ""),
        ("--no-auth", "--key-file", "x"),
        (),
        ("--bind", "0.0.0.0"),
    ):
        refused = run(*arguments)
        assert refused.end() == 2, refused.said
        assert "Traceback" not in refused.said
    socket_path = tmp_path / "r.sock"
    assert run("--no-auth", "--bind", "0.0.0.0", "--no-tcp", "--uds", socket_path).url


@pytest.mark.parametrize("workers", [1, 2])
def test_a_unix_socket_alone(run: Start, tmp_path: Path, workers: int) -> None:
    path = tmp_path / "router.sock"
    options = ["--uds", path, "--no-tcp", "--uds-mode", "0660", "--workers", workers]
    gateway = run(*options, EXASLURM_ROUTER_KEY=KEY)
    assert gateway.url == f"unix:{path}"
    assert stat.S_IMODE(path.stat().st_mode) == 0o660
    transport = httpx.HTTPTransport(uds=str(path))
    assert ask("http://router", transport=transport).status_code == 200
    again = run(*options, EXASLURM_ROUTER_KEY=KEY)
    assert again.end() == 2
    assert "another process listens" in again.said
    # Killed, it leaves a file, which the next one replaces; at its end that one removes it.
    gateway.process.kill()
    gateway.end()
    assert path.exists()
    wait_for(lambda: not is_listening(path))
    third = run(*options, EXASLURM_ROUTER_KEY=KEY)
    third.process.terminate()
    assert third.end() == 0
    assert not path.exists()


def is_listening(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(os.fspath(path)) == 0


def test_both_sockets_are_handed_over(run: Start, tmp_path: Path) -> None:
    path = tmp_path / "router.sock"
    options = ["--uds", path, "--workers", 2]
    one = run(*options, EXASLURM_ROUTER_KEY=KEY)
    assert ask(one.url).status_code == 200
    load, other = Load(one.url, KEY, plain=2), Load("http://router", KEY, streams=0, uds=path)
    try:
        load.more()
        two = run(*options, "--replace", EXASLURM_ROUTER_KEY=KEY)
        assert two.url == one.url
        assert one.end() == 0
        load.more()
        other.more()
        assert path.exists()
    finally:
        failures = load.stop() + other.stop()
    assert failures == []


def test_wrong_options_are_one_line_each(gateway: Start, run: Start, listed: Path) -> None:
    for arguments, words in (
        (["--workers", "0"], "--workers 0"),
        (["--workers", "x"], "--workers"),
        (["--limit", "speed=1"], "no limit 'speed'"),
        (["--limit", "max_waiting=many"], "no number"),
        (["--policy", "best"], "--policy"),
        (["--uds", "/tmp/x", "--uds-mode", "0666"], "nobody else"),
        (["--no-tcp"], "nothing to listen on"),
    ):
        refused = run(*arguments, EXASLURM_ROUTER_KEY=KEY)
        assert refused.end() == 2
        assert words in refused.said
        assert "Traceback" not in refused.said
    missing = gateway("--engines-file", "/nowhere/engines", EXASLURM_ROUTER_KEY=KEY)
    assert missing.end() == 2
    assert "cannot read /nowhere/engines" in missing.said
