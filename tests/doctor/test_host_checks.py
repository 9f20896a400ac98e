"""What this host offers."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

from exaslurm import __version__
from exaslurm.doctor import host_checks as checks


def test_the_python_of_the_nodes() -> None:
    found = {check.name: check for check in checks.check_python(sys.executable, __version__)}
    assert found["exaslurm on nodes"].outcome == "pass"
    assert (found["node python"].outcome == "pass") == (sys.version_info >= (3, 11))


def test_another_version_on_the_nodes() -> None:
    found = {check.name: check for check in checks.check_python(sys.executable, "0.0.1")}
    assert found["exaslurm on nodes"].outcome == "warn"


def test_a_python_that_is_not_here(tmp_path: Path) -> None:
    (found,) = checks.check_python(str(tmp_path / "python"), __version__)
    assert found.outcome == "warn"
    assert "No such file" in found.value


def test_a_python_that_is_none(tmp_path: Path) -> None:
    path = tmp_path / "python"
    path.write_text("#!/bin/sh\necho 'not a python' >&2\nexit 1\n")
    path.chmod(0o755)
    (found,) = checks.check_python(str(path), __version__)
    assert (found.outcome, "not a python" in found.value) == ("fail", True)


def test_a_directory_that_can_be_written(tmp_path: Path) -> None:
    found = checks.check_directory("state", tmp_path, min_free_gib=0)
    assert found.outcome == "pass"
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_is_not_there_yet(tmp_path: Path) -> None:
    found = checks.check_directory("state", tmp_path / "a" / "b", min_free_gib=0)
    assert found.outcome == "pass"
    assert f"below {tmp_path}" in found.value
    assert list(tmp_path.iterdir()) == []


def test_a_directory_with_little_room(tmp_path: Path) -> None:
    assert checks.check_directory("state", tmp_path, min_free_gib=1e9).outcome == "warn"


def test_a_directory_that_cannot_be_written() -> None:
    found = checks.check_directory("state", Path("/sys/kernel"), min_free_gib=0)
    assert found.outcome == "fail"
    assert found.remedy


def test_a_directory_that_cannot_be_made_is_named_itself() -> None:
    found = checks.check_directory("state", Path("/sys/kernel/a/b"), min_free_gib=0)
    assert found.outcome == "fail"
    assert "/sys/kernel/a/b is not there" in found.value


@pytest.mark.parametrize(
    ("pattern", "outcome"),
    [(None, "pass"), ("loopback", "pass"), ("ib*", "pass"), ("hsn0", "warn")],
)
def test_interfaces(tmp_path: Path, pattern: str | None, outcome: str) -> None:
    for name in ("lo", "ib0", "eth0"):
        (tmp_path / name).mkdir()
    assert checks.check_interface(pattern, tmp_path).outcome == outcome


def test_ports_below_the_ephemeral_range() -> None:
    assert checks.check_ports(20000, 31999, local_range="32768 60999").outcome == "pass"


def test_ports_in_the_ephemeral_range() -> None:
    found = checks.check_ports(20000, 31999, local_range="15000 65000")
    assert found.outcome == "warn"
    assert "15000-65000" in found.value


def test_listening_ports_are_seen() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        assert port not in checks.listening_ports()
        listener.listen()
        assert port in checks.listening_ports()


def test_names_that_resolve() -> None:
    assert checks.check_names(["localhost"]).outcome == "pass"


def test_names_that_do_not() -> None:
    found = checks.check_names(["localhost", "nosuch.invalid"])
    assert found.outcome == "fail"
    assert "nosuch.invalid does not resolve" in found.value


@pytest.mark.parametrize(
    ("environ", "outcome"),
    [
        ({}, "skip"),
        ({"http_proxy": "http://proxy:3128"}, "warn"),
        ({"http_proxy": "http://proxy:3128", "no_proxy": "localhost,.cluster"}, "pass"),
    ],
)
def test_web_proxies(environ: dict[str, str], outcome: str) -> None:
    assert checks.check_proxy(environ).outcome == outcome


@pytest.mark.parametrize(("path", "outcome"), [("/tmp", "pass"), ("/scratch/local/me", "fail")])
def test_room_for_socket_paths(path: str, outcome: str) -> None:
    assert checks.check_tmp(path).outcome == outcome


def test_limits_have_a_line_each() -> None:
    assert [check.name for check in checks.check_limits()] == ["open files", "locked memory"]
