from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from exaslurm.gateway import endpoint
from exaslurm.gateway.endpoint import own_address, publish, read_endpoint, withdraw
from exaslurm.rundir import RunDir
from exaslurm.util.lock import file_lock


def urls(run_dir: RunDir) -> list[str]:
    return [item.url for item in read_endpoint(run_dir).routers]


def test_a_gateways_job_takes_the_place_of_those_before_it(tmp_path: Path) -> None:
    """One of them runs at a time; routers of other hosts stay."""
    run_dir = RunDir(tmp_path)
    own = own_address("http://10.0.0.3:20000", job_id="8")
    fixed = dataclasses.replace(own, url="http://login:8000", host="login", job_id="")
    lost = dataclasses.replace(own, url="http://10.0.0.2:20000", host="c2", job_id="7")
    publish(run_dir, fixed)
    publish(run_dir, lost)
    assert urls(run_dir) == [fixed.url, lost.url]
    publish(run_dir, own)
    assert urls(run_dir) == [fixed.url, own.url]
    again = dataclasses.replace(fixed, url="http://login:9000", pid=fixed.pid + 1)
    publish(run_dir, again)
    assert urls(run_dir) == [fixed.url, own.url, again.url]
    withdraw(run_dir, own)
    assert urls(run_dir) == [fixed.url, again.url]


def test_a_lock_that_a_dead_host_holds_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint, "_LOCK_S", 0.05)
    run_dir = RunDir(tmp_path)
    with file_lock(tmp_path / ".endpoint.lock"):
        publish(run_dir, own_address("http://10.0.0.3:20000"))
    assert urls(run_dir) == ["http://10.0.0.3:20000"]
