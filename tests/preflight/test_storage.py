"""Directories, real ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from exaslurm.preflight import storage
from exaslurm.preflight.host import Host
from exaslurm.preflight.storage import check_directory, check_speed, check_tmp

HERE = Host(name="here")


def test_a_directory_that_can_be_written(tmp_path: Path) -> None:
    found = check_directory(HERE, "storage.state", str(tmp_path), min_free_gib=0)
    assert found.outcome == "pass"
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_is_not_there_yet(tmp_path: Path) -> None:
    found = check_directory(HERE, "storage.state", str(tmp_path / "a/b"), min_free_gib=0)
    assert found.outcome == "pass"
    assert f"in {tmp_path}" in found.value
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_must_be_there(tmp_path: Path) -> None:
    place = str(tmp_path / "a/b")
    found = check_directory(HERE, "storage.local", place, min_free_gib=0, must_exist=True)
    assert (found.outcome, found.value) == ("fail", f"{place} is not there (nearest: {tmp_path})")


def test_little_room(tmp_path: Path) -> None:
    found = check_directory(HERE, "storage.state", str(tmp_path), min_free_gib=1e9)
    assert found.outcome == "warn"


def test_a_directory_that_cannot_be_written() -> None:
    found = check_directory(HERE, "storage.state", "/sys/kernel/a/b", min_free_gib=0)
    assert found.outcome == "fail"
    assert "/sys/kernel/a/b is not there, and cannot write to /sys/kernel" in found.value
    assert found.remedy


@pytest.mark.parametrize(("content", "outcome"), [("word", "pass"), ("other", "fail")])
def test_what_another_host_wrote_must_be_seen(tmp_path: Path, content: str, outcome: str) -> None:
    (tmp_path / "witness").write_text(content)
    witness = (str(tmp_path / "witness"), "word")
    found = check_directory(HERE, "storage.shared", str(tmp_path), min_free_gib=0, witness=witness)
    assert found.outcome == outcome


def test_speed_is_measured_and_leaves_nothing(tmp_path: Path) -> None:
    found = check_speed(HERE, "storage.speed", str(tmp_path))
    assert found.outcome in ("pass", "warn")  # whatever else this machine does
    assert "MiB/s" in found.value
    assert list(tmp_path.iterdir()) == []


def test_a_slow_directory(tmp_path: Path) -> None:
    """A clock that runs a thousand times too fast makes it one."""
    ticks = iter(range(1000))
    slow = Host(name="here", timer=lambda: next(ticks) * 3.0)
    found = check_speed(slow, "storage.speed", str(tmp_path))
    assert found.outcome == "fail"
    assert "a small file 3000.0 ms, write 1 MiB/s, read 1 MiB/s" in found.value


def test_a_hung_directory_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "HUNG_S", 0.05)
    stopped = Host(name="here", root=Stopped())
    found = check_directory(stopped, "storage.state", "/any", min_free_gib=0)
    assert (found.outcome, found.value) == ("fail", "/any: no answer in 0.05 s")


class Stopped(type(Path())):  # type: ignore[misc]
    """A root of which nothing comes back."""

    def __truediv__(self, other: str) -> Path:
        import threading

        threading.Event().wait(5)
        return Path("/")


@pytest.mark.parametrize(("path", "outcome"), [("/tmp", "pass"), ("/scratch/local/me", "fail")])
def test_room_for_socket_paths(path: str, outcome: str) -> None:
    assert check_tmp(path, HERE).outcome == outcome
