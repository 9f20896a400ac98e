"""Interfaces of recorded trees, real names and ports."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from exaslurm.preflight import network
from exaslurm.preflight.host import Host

HERE = Host(name="here")


@pytest.fixture
def tree(tmp_path: Path) -> Host:
    for name, state, mtu in (("lo", "unknown", 65536), ("ib0", "up", 4092), ("eth0", "down", 1500)):
        directory = tmp_path / "sys/class/net" / name
        directory.mkdir(parents=True)
        (directory / "operstate").write_text(f"{state}\n")
        (directory / "mtu").write_text(f"{mtu}\n")
    return Host(name="n1", root=tmp_path, recorded=True)


@pytest.mark.parametrize(
    ("pattern", "outcome", "says"),
    [
        (None, "pass", "the host's own name"),
        ("loopback", "pass", "loopback"),
        ("ib*", "pass", "ib0"),
        ("hsn0", "fail", "no hsn0 here (eth0, ib0)"),
        ("eth0", "fail", "eth0: down"),
    ],
)
def test_interfaces(tree: Host, pattern: str | None, outcome: str, says: str) -> None:
    found = network.check_interface(tree, pattern)
    assert (found.outcome, says in found.value) == (outcome, True)


def test_mtu(tree: Host) -> None:
    assert network.check_mtu(tree, "ib0").value == "ib0 4092"
    (tree.sys / "class/net/ib0/mtu").write_text("576\n")
    assert network.check_mtu(tree, "ib0").outcome == "fail"
    assert network.check_mtu(tree, "loopback").outcome == "skip"


@pytest.mark.parametrize(("text", "outcome"), [("32768 60999", "pass"), ("15000\t65000", "warn")])
def test_the_kernels_own_ports(tmp_path: Path, text: str, outcome: str) -> None:
    path = tmp_path / "proc/sys/net/ipv4/ip_local_port_range"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    host = Host(name="n1", root=tmp_path, recorded=True)
    assert network.check_port_range(host, 20000, 31999).outcome == outcome


def test_ports_in_use_are_seen() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        assert network.check_ports_free(HERE, port, port + 9, 500).outcome == "pass"
        listener.listen()
        found = network.check_ports_free(HERE, port, port + 9, 500)
        assert (found.outcome, str(port) in found.value) == ("fail", True)


def test_names_that_resolve() -> None:
    assert network.check_names(HERE, ["localhost"]).outcome == "pass"


def test_names_that_do_not() -> None:
    found = network.check_names(HERE, ["localhost", "nosuch.invalid"])
    assert found.outcome == "fail"
    assert "nosuch.invalid does not resolve" in found.value


@pytest.mark.parametrize(("took_s", "outcome"), [(0.1, "pass"), (1.0, "warn"), (5.0, "fail")])
def test_slow_names(took_s: float, outcome: str) -> None:
    times = iter((0.0, took_s))
    host = Host(name="here", lookup=lambda _: "10.0.0.1", timer=lambda: next(times))
    found = network.check_names(host, ["c1"])
    assert (found.outcome, "(c1)" in found.value) == (outcome, True)
