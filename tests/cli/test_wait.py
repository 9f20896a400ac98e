"""Progress: one line per change off a terminal, a table on one."""

from __future__ import annotations

import io
import re
from typing import Any

import pytest

from exaslurm.cli import wait
from exaslurm.cli.status_text import status_text
from exaslurm.core.cell import NodeState, PhaseTimes, RayCellState, ReplicaStatus
from exaslurm.status.model import CellStatus, DeploymentStatus, JobStatus


def replica(number: int, state: Any) -> ReplicaStatus:
    return ReplicaStatus(
        id=f"c000-r{number:04}",
        model="m",
        shard="base",
        served_names=("m",),
        state=state,
        node=f"n{number}",
        url="http://127.0.0.1:1",
        phases=PhaseTimes(reserve_s=1.5, stage_s=12.0, load_s=187.0),
        cores=(0, 1),
        cores_actual=(0, 1, 2, 3),
    )


def status(phase: Any, states: tuple[Any, ...] = (), **more: Any) -> DeploymentStatus:
    ready = sum(state == "ready" for state in states)
    cell: dict[str, Any] = {
        "name": "c000",
        "phase": phase,
        "source": "controller" if states else "submission",
        "cause": None,
        "remedy": None,
        "job": JobStatus(id="93", name="exa-hello-c000", cluster=None, state="RUNNING"),
        "nodes_planned": 3,
        "nodes_joined": 3 if states else 0,
        "replicas_planned": 2,
        "replicas_ready": ready,
        "nodes": (NodeState(node="n1", het_group=0, state="joined"),),
        "ray": RayCellState(state="complete", nodes_alive=3, nodes_wanted=3) if states else None,
        "replicas": tuple(replica(number, state) for number, state in enumerate(states)),
    }
    fields: dict[str, Any] = {
        "deployment": "hello",
        "generation": 1,
        "plan_hash": "h",
        "site": "lab",
        "layout": "het",
        "run_dir": "/x",
        "phase": phase,
        "cause": None,
        "remedy": None,
        "run_wanted": True,
        "replicas_planned": 2,
        "replicas_ready": ready,
        "base_url": None,
        "routers": (),
        "cells": (CellStatus(**cell),),
        "slurm_error": None,
        "collected_s": 1.0,
        **more,
    }
    return DeploymentStatus(**fields)


def test_a_line_says_how_far_it_is() -> None:
    waiting = status("queued", cause="job 93 waits behind jobs with a higher priority")
    assert wait.progress_line(waiting) == (
        "queued, jobs queued 1/1, ready 0/2 (job 93 waits behind jobs with a higher priority)"
    )
    assert wait.progress_line(status("engines", ("loading", "ready"))) == (
        "engines, nodes 3/3, Ray 3/3, loading 1, ready 1/2"
    )


def test_off_a_terminal_there_is_a_line_per_change(capsys: pytest.CaptureFixture[str]) -> None:
    with wait.PlainDisplay() as display:
        for item in (
            status("nodes"),
            status("nodes"),
            status("engines", ("loading", "loading")),
            status("engines", ("loading", "loading")),
            status("ready", ("ready", "ready")),
        ):
            display.show(item)
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = captured.err.splitlines()
    assert len(lines) == 3
    assert all(re.match(r"\[\d\d:\d\d\] ", line) for line in lines)


def test_on_a_terminal_there_is_a_table() -> None:
    console = pytest.importorskip("rich.console")
    out = io.StringIO()
    with wait.LiveDisplay(console.Console(file=out, force_terminal=True, width=120)) as display:
        display.show(status("engines", ("loading", "ready"), cause="the router is slow"))
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", out.getvalue())
    assert "job 93 running  nodes 3/3  Ray 3/3  ready 1/2" in text
    assert "c000-r0000" in text
    assert "03:07" in text
    assert "the router is slow" in text


def test_the_plain_display_is_taken_off_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(wait.make_display(), wait.PlainDisplay)


def test_the_whole_status_for_a_person() -> None:
    text = status_text(status("degraded", ("failed", "ready"), cause="replica c000-r0000 is dead"))
    lines = text.splitlines()
    assert lines[0] == "hello: degraded, 1 of 2 replicas ready (generation 1, site lab)"
    assert lines[1] == "  cause:    replica c000-r0000 is dead"
    row = next(line for line in lines if line.startswith("c000-r0000"))
    assert row.split() == ["c000-r0000", "m:base", "n0", "failed", "1.5", "s", "12", "s", "03:07",
                           "-", "-", "0", "0-1", "(runs", "on", "0-3)"]  # fmt: skip
    assert "replicas per node: n0 1, n1 1" in text
