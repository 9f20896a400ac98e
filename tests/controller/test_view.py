"""What routers ask for every second."""

from __future__ import annotations

import dataclasses
import json

from exaslurm.controller.view import router_view
from exaslurm.core.cell import CellState, EngineLoad, RayCellState, ReplicaStatus


def _state(running: int = 1, *, sleeping: bool = False, seq: int = 1) -> CellState:
    status = ReplicaStatus(
        id="c000-r0000",
        model="chat",
        shard="base",
        served_names=("chat", "chat:base"),
        state="ready",
        node="c1",
        url="http://127.0.0.1:20020",
        cores=(0, 1),
        load=EngineLoad(running=running, waiting=2, kv_use=0.5, sleeping=sleeping),
    )
    pending = dataclasses.replace(status, id="c000-r0001", state="pending", load=None)
    return CellState(
        deployment="hello",
        cell="c000",
        plan_hash="abc",
        job_id="17",
        seq=seq,
        phase="serving",
        cause=None,
        nodes=(),
        ray=RayCellState(state="off"),
        replicas=(status, pending),
    )


def test_replicas_are_told_once_and_figures_always() -> None:
    first = router_view(_state(), "")
    assert [item["state"] for item in first["replicas"]] == ["ready", "pending"]
    assert first["loads"] == [[1, 2, 0.5], None]
    again = router_view(_state(running=9, seq=2), first["tag"])
    assert "replicas" not in again
    assert again["loads"] == [[9, 2, 0.5], None]
    assert again["tag"] == first["tag"]


def test_a_change_is_told_whole() -> None:
    tag = router_view(_state(), "")["tag"]
    asleep = router_view(_state(sleeping=True), tag)
    assert asleep["tag"] != tag
    assert asleep["replicas"][0]["sleeping"] is True
    assert "replicas" in router_view(_state(), "another")


def test_it_holds_nothing_that_only_status_needs() -> None:
    assert "cores" not in json.dumps(router_view(_state(), ""))
