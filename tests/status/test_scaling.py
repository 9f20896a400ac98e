"""Of a deployment that is scaled, only what is wanted is waited for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from exaslurm.core.codec import dumps
from exaslurm.core.scale import Scale
from exaslurm.status.collect import collect

Make = Callable[..., Any]


def test_cells_that_are_not_wanted_are_not_missed(made: Make, controller: Any) -> None:
    hello = made(cells=3)
    hello.run_dir.scale.write_text(dumps(Scale(replicas={"m:base": 1})))
    hello.submit()
    hello.record(controller.url, True)
    controller.state["now"] = hello.state("serving", "ready")
    status = collect(hello.run_dir, None)
    assert (status.phase, status.replicas_ready, status.replicas_planned) == ("ready", 1, 1)
    assert [cell.name for cell in status.cells] == ["c000"]


def test_without_a_number_all_are(made: Make, controller: Any) -> None:
    hello = made(cells=2)
    hello.submit()
    hello.record(controller.url, True, True)
    controller.state["now"] = hello.state("serving", "ready", "ready")
    status = collect(hello.run_dir, None)
    assert status.phase != "ready"
    assert status.replicas_planned == 4


def test_none_at_all(made: Make) -> None:
    hello = made()
    hello.run_dir.scale.write_text(dumps(Scale(replicas={"m:base": 0})))
    hello.submit(state="stopped")
    status = collect(hello.run_dir, None)
    assert (status.phase, status.replicas_planned, status.cells) == ("ready", 0, ())
    assert status.cause is not None
    assert "'exaslurm scale' says how many" in status.cause
