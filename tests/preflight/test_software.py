"""The Python of the nodes."""

from __future__ import annotations

import importlib.metadata
import platform
import sys
from pathlib import Path

import pytest

from exaslurm import __version__
from exaslurm.core.checks import Check
from exaslurm.preflight import software


def checked(found: dict[str, str], **needed: bool) -> dict[str, Check]:
    checks = software.check_versions(found, version="1.0", needed=needed, python="/py")
    return {check.id: check for check in checks}


def test_a_real_one() -> None:
    found = software.probe(sys.executable)
    assert found["exaslurm"] == __version__
    assert found["python"] == software.own_versions()["python"]


@pytest.mark.parametrize(
    ("body", "says"),
    [("echo 'not a python' >&2; exit 1", "not a python"), ("sleep 9", "no answer in 0.2 s"),
     ("true", "it said nothing")],
)  # fmt: skip
def test_one_that_is_none(tmp_path: Path, body: str, says: str) -> None:
    path = tmp_path / "python"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    with pytest.raises(ValueError, match=says):
        software.probe(str(path), timeout_s=0.2 if "sleep" in body else 20.0)


def test_one_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="No such file"):
        software.probe(str(tmp_path / "python"))


def test_all_is_there() -> None:
    found = checked({"python": "3.12.1", "exaslurm": "1.0", "vllm": "0.32", "ray": "2.60"})
    assert {check.outcome for check in found.values()} == {"pass"}


def test_what_is_missing() -> None:
    found = checked({"python": "3.10.4"}, vllm=True, ray=True)
    assert {ident: check.outcome for ident, check in found.items()} == {
        "python.version": "fail",
        "python.exaslurm": "fail",
        "python.vllm": "fail",
        "python.ray": "warn",
    }


def test_another_version_of_ours() -> None:
    found = checked({"python": "3.11.2", "exaslurm": "0.9"})
    assert found["python.exaslurm"].value == "0.9; on the login node 1.0"
    assert found["python.vllm"].outcome == "skip"


def test_an_exaslurm_that_is_not_installed_is_known_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A clone, or the host's package that is bound into a container."""

    def version(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    assert software.own_versions() == {"python": platform.python_version(), "exaslurm": __version__}
