"""Nodes that measure each other: here, as threads of one process."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from exaslurm.core.checks import NodeChecks, PeerMeasure
from exaslurm.core.uniform import compare
from exaslurm.preflight import peers
from exaslurm.preflight.host import Host


def met(place: Path, hosts: list[Host]) -> dict[str, tuple[PeerMeasure, ...]]:
    names = [host.name for host in hosts]
    found: dict[str, tuple[PeerMeasure, ...]] = {}

    def one(host: Host) -> None:
        found[host.name] = peers.meet(host, names, place, "127.0.0.1", [0])

    threads = [threading.Thread(target=one, args=(host,)) for host in hosts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    return found


def test_each_measures_the_next_two(tmp_path: Path) -> None:
    found = met(tmp_path, [Host(name=name) for name in "abcd"])
    assert {name: [p.peer for p in each] for name, each in found.items()} == {
        "a": ["b", "c"], "b": ["c", "d"], "c": ["d", "a"], "d": ["a", "b"],
    }  # fmt: skip
    for measure in (peer for each in found.values() for peer in each):
        assert measure.error is None
        assert measure.rtt_us is not None
        assert measure.ahead_s is not None
        assert abs(measure.ahead_s) < 0.1


def test_a_wrong_clock_is_found(tmp_path: Path) -> None:
    import time

    late = Host(name="b", clock=lambda: time.time() - 90)
    found = met(tmp_path, [Host(name="a"), late, Host(name="c")])
    nodes = [NodeChecks(host=name, checks=(), peers=each) for name, each in found.items()]
    skews = {
        host: check.outcome
        for host, checks in compare(nodes).items()
        for check in checks
        if check.id == "clock.skew"
    }
    assert skews == {"a": "pass", "b": "fail", "c": "pass"}


def test_one_that_does_not_come_holds_up_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "MEET_S", 2.0)
    monkeypatch.setattr(peers, "CONNECT_S", 0.5)
    names = list("abcd")
    found: dict[str, tuple[PeerMeasure, ...]] = {}

    def one(name: str) -> None:
        host = Host(name=name)
        found[name] = peers.meet(host, names, tmp_path, "127.0.0.1", [0])

    threads = [threading.Thread(target=one, args=(name,)) for name in "abd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    errors = {name + p.peer: p.error for name, each in found.items() for p in each}
    assert {pair for pair, error in errors.items() if error} == {"ac", "bc"}
    assert errors["bc"] == "it did not come within 2 s"
    assert errors["bd"] is None


def test_nobody_there(tmp_path: Path) -> None:
    closed = peers.Echo(Host(name="a"), "127.0.0.1", [0])
    closed.close()
    found = peers.measure(Host(name="b"), "a", "127.0.0.1", closed.port)
    assert (found.rtt_us, found.error) == (None, "Connection refused")
