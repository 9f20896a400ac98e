"""Finding logs and their last words."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from exaslurm.cli.follow import _added, _Followed
from exaslurm.errors import DeploymentError
from exaslurm.status.logs import LogFile, all_logs, last_words, select_logs, tail


@pytest.fixture
def logs(made: Callable[..., Any]) -> Any:
    """The logs of a cell with two replicas, the second one on two nodes."""
    hello = made()
    generation = hello.run_dir.generation(1)
    for path in (
        generation.logs("c000") / "batch.log",
        generation.logs("c000") / "n1.init.log",
        generation.logs("c000") / "n2.init.log",
        generation.logs("c000") / "controller.log",
        generation.replica_log("c000-r0000"),
        generation.replica_log("c000-r0012"),
        generation.replica_log("c000-r0012.1"),
        hello.run_dir.router_log,
    ):
        path.write_text(f"{path.name} says\n")
    return hello.run_dir


def labels(found: list[LogFile]) -> list[str]:
    return sorted(log.label for log in found)


def test_all_of_them(logs: Any) -> None:
    assert len(all_logs(logs)) == 8


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        # Of a replica over several nodes, each part has a log.
        ({"replica": "12"}, ["replicas/c000-r0012.1.log", "replicas/c000-r0012.log"]),
        ({"replica": "r0012"}, ["replicas/c000-r0012.1.log", "replicas/c000-r0012.log"]),
        ({"replica": "c000-r0000"}, ["replicas/c000-r0000.log"]),
        ({"node": "n2"}, ["c000/n2.init.log"]),
        ({"controller": True}, ["c000/controller.log"]),
        ({"batch": True}, ["c000/batch.log"]),
        ({"router": True}, ["router"]),
    ],
)
def test_those_that_were_asked_for(logs: Any, wanted: dict[str, Any], found: list[str]) -> None:
    assert labels(select_logs(logs, **wanted)) == found


def test_none_of_that_kind_names_what_there_is(logs: Any) -> None:
    with pytest.raises(DeploymentError) as error:
        select_logs(logs, replica="7")
    assert "c000/batch.log" in (error.value.remedy or "")


def test_the_tail_of_a_long_file(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("".join(f"line {number}\n" for number in range(20_000)))
    assert tail(path, 2) == ["line 19998", "line 19999"]
    assert len(tail(path, 300)) == 300
    assert tail(path, 0) == []


def test_a_crash_on_a_node_says_more_than_the_batch_script(tmp_path: Path) -> None:
    (tmp_path / "batch.log").write_text(
        "2026-11-29T21:47:50 launch: the head's step ended with 1\n"
    )
    assert last_words(tmp_path) == "2026-11-29T21:47:50 launch: the head's step ended with 1"
    remark = "launch: component 1: srun: cluster configuration lacks support for cpu binding"
    with (tmp_path / "batch.log").open("a") as file:
        file.write(f"2026-11-29T21:47:51 {remark}\n")
    (tmp_path / "n1.init.log").write_text("2026-11-29T21:47:50 init: agent is pid 3\n")
    assert "head's step" in (last_words(tmp_path) or "")
    (tmp_path / "n2.init.log").write_text("Traceback:\n  x\nModuleNotFoundError: no exaslurm\n\n")
    assert last_words(tmp_path) == "n2: ModuleNotFoundError: no exaslurm"


def test_no_logs_no_words(tmp_path: Path) -> None:
    assert last_words(tmp_path / "nothing") is None


def test_following_sees_what_is_added_and_a_file_begun_anew(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("old\n")
    item = _Followed(LogFile("log", path), position=4)
    assert _added(item) == ""
    with path.open("a") as file:
        file.write("new\n")
    assert _added(item) == "new\n"
    path.write_text("x\n")
    assert _added(item) == "x\n"
    os.unlink(path)
    assert _added(item) == ""
