"""``exaslurm logs --audit`` and ``--verify``."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from exaslurm.keys.clients import KeyInfo
from exaslurm.keys.secrets import ensure_secrets, read_secret
from exaslurm.router.audit import Audit
from exaslurm.router.call import Call
from exaslurm.rundir import RunDir
from exaslurm.util.files import make_private_dir

Run = Callable[..., Any]


def record(
    run_dir: RunDir, *, key: str = "alice", model: str = "chat", age_s: float = 0.0, **more: object
) -> None:
    """One router that lives for one request."""
    audit = Audit(run_dir.audit, secret=read_secret(run_dir.internal_key), host="login1")
    audit.start()
    call = Call("/v1/completions", b"req-" + key.encode(), time.monotonic() - age_s)
    call.key = KeyInfo(name=key, created_s=0.0)
    call.model, call.replica, call.status = model, "c000-r0001", 200
    call.prompt_tokens, call.completion_tokens = 12, 34
    call.ended_s = call.started_s + 0.25
    for name, value in more.items():
        setattr(call, name, value)
    audit.record(call)
    assert audit.close() == 0


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    made = RunDir(tmp_path / "state" / "exaslurm" / "hello")
    for path in (made.path, made.path / "gen"):
        make_private_dir(path)
    ensure_secrets(made)
    return made


def test_records(exaslurm: Run, run_dir: RunDir) -> None:
    record(run_dir, age_s=7200)
    record(run_dir, key="bob", model="code", version="2", cause="engine_lost")
    done = exaslurm("logs", "hello", "--audit")
    first, second = done.out.splitlines()
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z  alice  chat  c000-r0001  200  12\+34 tokens  "
        r"0\.250 s  req-alice",
        first,
    )
    assert "  bob  code@2  c000-r0001  200  12+34 tokens  0.250 s  engine_lost  req-bob" in second


def test_grants(exaslurm: Run, run_dir: RunDir) -> None:
    audit = Audit(run_dir.audit, secret=read_secret(run_dir.internal_key))
    audit.start()
    key = KeyInfo(name="bulk", created_s=0.0)
    audit.granted(key, model="chat", replica="c000-r0001", expires_at_s=1_800_000_000)
    audit.close()
    (line,) = exaslurm("logs", "hello", "--audit", "--key", "bulk").out.splitlines()
    expected = "  bulk  chat  c000-r0001  may be asked directly until 2027-01-15T08:00:00.000Z"
    assert line.endswith(expected)
    assert exaslurm("logs", "hello", "--verify").code == 0


@pytest.mark.parametrize(
    ("options", "keys"),
    [
        ([], ["alice", "bob"]),
        (["-n", "1"], ["bob"]),
        (["--since", "1h"], ["bob"]),
        (["--since", "3h"], ["alice", "bob"]),
        (["--key", "alice"], ["alice"]),
        (["--model", "code"], ["bob"]),
        (["--model", "code", "--key", "alice"], []),
    ],
)
def test_filters(exaslurm: Run, run_dir: RunDir, options: list[str], keys: list[str]) -> None:
    record(run_dir, age_s=7200)
    record(run_dir, key="bob", model="code")
    done = exaslurm("logs", "hello", "--audit", "--json", *options)
    found = json.loads(done.out)
    assert found["schema"] == "exaslurm/audit/1"
    assert [item["key"] for item in found["records"]] == keys


def test_what_a_client_chose_does_not_reach_the_terminal(exaslurm: Run, run_dir: RunDir) -> None:
    record(run_dir, ident=b"\x1b[31mred")
    assert r"'\x1b[31mred'" in exaslurm("logs", "hello", "--audit").out


def test_verify(exaslurm: Run, run_dir: RunDir) -> None:
    record(run_dir)
    record(run_dir, key="bob")
    done = exaslurm("logs", "hello", "--verify")
    assert (done.code, done.err) == (0, "")
    assert re.fullmatch(r"login1-0: 6 records, 2 requests; last 6 [0-9a-f]{64}\n", done.out)
    path = min(run_dir.audit.glob("*.jsonl"))
    path.write_bytes(path.read_bytes().replace(b"alice", b"carol"))

    done = exaslurm("logs", "hello", "--verify")
    assert done.code == 6
    assert f"{path}:2: record 2 was edited" in done.out
    assert "is not as it was written: 1 finding" in done.err

    done = exaslurm("logs", "hello", "--verify", "--json")
    assert done.code == 6
    found = json.loads(done.out)
    assert not found["whole"]
    (chain,) = found["chains"]
    assert chain["findings"] == [
        {"path": str(path), "line": 2, "text": "record 2 was edited", "problem": True}
    ]


def test_no_log(exaslurm: Run, run_dir: RunDir) -> None:
    for option in ("--audit", "--verify"):
        done = exaslurm("logs", "hello", option)
        assert done.code == 2
        assert "has no audit log" in done.err


def test_a_directory_without_a_deployment(exaslurm: Run, tmp_path: Path) -> None:
    audit = Audit(tmp_path / "log", secret=None, host="login1")
    audit.start()
    audit.record(Call("/v1/completions", b"req", time.monotonic()))
    audit.close()
    assert "  -  -  -  0  ?+? tokens" in exaslurm("logs", tmp_path / "log", "--audit").out
    done = exaslurm("logs", tmp_path / "log", "--verify")
    assert done.code == 0
    assert "login1-0: 3 records, 1 requests" in done.out
    assert exaslurm("logs", tmp_path, "--verify").code == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--audit", "--verify"], "choose one of"),
        (["--key", "alice"], "go with --audit"),
        (["--audit", "-f"], "--follow does not go"),
    ],
)
def test_wrong_use(exaslurm: Run, run_dir: RunDir, options: list[str], message: str) -> None:
    done = exaslurm("logs", "hello", *options)
    assert done.code == 2
    assert message in done.err
