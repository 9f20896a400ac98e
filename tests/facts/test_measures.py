"""What is measured on a node: reads from storage, round trips."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from exaslurm.facts.rtt import rtt_us
from exaslurm.facts.storage import storage_read_ms


def ticks(*seconds: float) -> Iterator[float]:
    """A clock on which each read takes one of these times."""
    now = 10.0
    for each in seconds:
        yield now
        now += each
        yield now


def test_the_median_of_a_handful_of_reads(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    file.write_text("{}")
    clock = ticks(0.5, 0.002, 0.001, 0.003, 0.002)
    found = storage_read_ms([file], clock=lambda: next(clock))
    assert found == pytest.approx(2.0)
    assert next(clock, None) is None  # five reads, and no more


def test_a_real_read(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_bytes(os.urandom(100_000))
    found = storage_read_ms([tmp_path / "missing", file])
    assert found is not None
    assert 0 < found < 5000


def test_nothing_to_read(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert storage_read_ms([tmp_path / "missing", tmp_path]) is None
    assert storage_read_ms([]) is None
    assert storage_read_ms([pipe]) is None  # and no wait for somebody who writes to it


def test_a_round_trip() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        found = rtt_us("127.0.0.1", port, source="127.0.0.2")
        assert found is not None
        assert 0 < found < 1e6
    # Nobody listens any more: the refusal took a round trip as well.
    assert rtt_us("localhost", port) is not None


def test_no_answer() -> None:
    assert rtt_us("no-such-host.invalid", 1) is None
    assert rtt_us("127.0.0.1", 9, source="192.0.2.1") is None  # an address that we do not have
