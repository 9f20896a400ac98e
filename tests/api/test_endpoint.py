"""Which router to use, and from where."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from exaslurm.api.endpoint import (
    find_endpoint,
    reachable_endpoint,
    routers_in_reach,
    ssh_line,
)
from exaslurm.core.codec import dumps
from exaslurm.core.submission import Endpoint, RouterAddress
from exaslurm.errors import NotReadyError
from exaslurm.rundir import RunDir
from exaslurm.util.files import write_atomic
from exaslurm.util.process import start_ticks

HERE = socket.gethostname()


def router(url: str, host: str = HERE, *, alive: bool = True, age: float = 1.0) -> RouterAddress:
    pid = os.getpid()
    ticks = start_ticks(pid) if alive else 1
    assert ticks is not None
    return RouterAddress(url=url, host=host, pid=pid, start_ticks=ticks, started_s=age)


def test_a_socket_of_another_host_is_not_one_of_this(run_dir: RunDir) -> None:
    listed = Endpoint(deployment="hello", routers=(router("unix:/tmp/r.sock", "login9"),))
    write_atomic(run_dir.endpoint, dumps(listed))
    with pytest.raises(NotReadyError, match="listens on login9 only") as caught:
        reachable_endpoint(run_dir)
    assert caught.value.remedy == "do this on login9"
    assert routers_in_reach(run_dir) == []


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    made = RunDir(tmp_path / "hello")
    made.make()
    return made


def listed(run_dir: RunDir, *routers: RouterAddress) -> RunDir:
    write_atomic(run_dir.endpoint, dumps(Endpoint(deployment="hello", routers=routers)))
    return run_dir


def test_no_router(run_dir: RunDir) -> None:
    with pytest.raises(NotReadyError, match="no router serves hello"):
        find_endpoint(run_dir)


def test_a_dead_router_is_none(run_dir: RunDir) -> None:
    with pytest.raises(NotReadyError):
        find_endpoint(listed(run_dir, router("http://127.0.0.1:1", alive=False)))


def test_those_of_this_host_come_first_the_newest_of_them(run_dir: RunDir) -> None:
    far = router("http://far:1/", "far", age=9)
    old, new = router("http://127.0.0.1:2/"), router("http://127.0.0.1:3/", age=2)
    found = find_endpoint(listed(run_dir, far, old, new))
    assert [item.url for item in found] == [
        "http://127.0.0.1:3",
        "http://127.0.0.1:2",
        "http://far:1",
    ]


def test_loopback_of_another_host_is_out_of_reach(run_dir: RunDir) -> None:
    listed(run_dir, router("http://127.0.0.1:31950", "login7"))
    assert routers_in_reach(run_dir) == []
    with pytest.raises(NotReadyError, match="listens on login7 only") as error:
        reachable_endpoint(run_dir)
    assert "ssh -N -L 31950:127.0.0.1:31950 login7" in (error.value.remedy or "")


def test_another_host_that_listens_for_all_is_in_reach(run_dir: RunDir) -> None:
    listed(run_dir, router("http://login7:31950", "login7"))
    assert reachable_endpoint(run_dir).url == "http://login7:31950"
    assert len(routers_in_reach(run_dir)) == 1


@pytest.mark.parametrize(
    ("url", "line"),
    [
        ("http://127.0.0.1:31950", "ssh -N -L 31950:127.0.0.1:31950 login7"),
        ("http://localhost:80", "ssh -N -L 80:localhost:80 login7"),
        ("http://[::1]:31950", "ssh -N -L 31950:[::1]:31950 login7"),
        ("http://10.0.0.7:31950", None),
        ("http://login7:31950", None),
    ],
)
def test_a_tunnel_where_one_is_needed(url: str, line: str | None) -> None:
    assert ssh_line(router(url, "login7")) == line


def test_base_urls() -> None:
    assert router("http://127.0.0.1:80/").base_url == "http://127.0.0.1:80/v1"
    assert router("unix:/run/llm.sock").base_url == "unix:/run/llm.sock"
