"""A cell runs as many replicas as it is told to; those that stay are not touched."""

from __future__ import annotations

import pytest

from exaslurm.controller.leaving import LEARN_S
from exaslurm.controller.targets import check_targets, settle
from exaslurm.errors import AllocationError
from tests.controller.conftest import bind, everybody, make_cell
from tests.controller.played import Played


def told(played: Played, count: int | None) -> None:
    played.cell.targets = None if count is None else {"m:a": count}


def serving(count: int | None = None, *, replicas: int = 3) -> Played:
    cell = make_cell(replicas=replicas)
    cell.targets = None if count is None else {"m:a": count}
    everybody(cell, 100.0)
    bind(cell, 100.0)
    played = Played(cell)
    settle(cell, played.now)
    played.until(played.all_ready)
    return played


def test_a_cell_starts_no_more_than_it_is_told_to() -> None:
    played = serving(2)
    assert len(played.replicas()) == len(played.started) == 2
    state = played.cell.state(played.now, 1)
    assert (state.phase, state.targets) == ("serving", {"m:a": 2})
    assert len(state.replicas) == len(played.cell.record("http://n1:1").replicas) == 2
    assert played.cell.binding is not None
    assert len(played.cell.binding.replicas) == 2


def test_more_are_started_on_free_places_and_the_others_go_on() -> None:
    played = serving(1)
    before = list(played.started)
    played.never_short.clear()
    told(played, 3)
    played.until(lambda: len(played.replicas()) == 3 and played.all_ready())
    assert played.started[:1] == before
    assert len(played.started) == 3
    assert len(set(played.where().values())) == 3
    assert min(played.never_short) >= 1


def test_without_a_word_it_runs_all_that_is_planned() -> None:
    played = serving()
    assert len(played.replicas()) == 3
    told(played, 1)
    played.until(lambda: len(played.replicas()) == 1)
    told(played, None)
    played.until(lambda: len(played.replicas()) == 3 and played.all_ready())


def test_one_that_goes_is_out_of_the_table_before_its_engine_ends() -> None:
    played = serving()
    played.drain_s = 5.0
    played.busy = {"c000-r0001": 1, "c000-r0002": 7, "c000-r0000": 3}
    played.step()
    told(played, 2)
    played.step()
    goes = played.cell.replicas["c000-r0001"]
    assert goes.state == "draining"
    assert not goes.record({}).ready
    assert played.running("c000-r0001")
    assert played.cell.phase(played.now) == "serving"
    took_s = played.until(lambda: "c000-r0001" not in played.cell.replicas)
    assert took_s >= LEARN_S
    assert not played.running("c000-r0001")
    # Nothing was started for it, and the others were never away.
    assert len(played.started) == 3
    assert min(played.never_short[-5:]) == 2
    assert played.cell.binding is not None
    assert {place.id for place in played.cell.binding.replicas} == {"c000-r0000", "c000-r0002"}


def test_those_that_do_not_serve_go_first() -> None:
    played = serving()
    played.busy = {"c000-r0000": 1}
    played.broken = lambda _node, replica: replica == "c000-r0000"
    played.step()
    told(played, 2)
    played.until(lambda: "c000-r0000" not in played.cell.replicas)
    assert set(played.cell.replicas) == {"c000-r0001", "c000-r0002"}


def test_of_equals_the_last_one_goes() -> None:
    played = serving()
    told(played, 1)
    played.until(lambda: len(played.replicas()) == 1)
    assert set(played.cell.replicas) == {"c000-r0000"}


def test_a_cell_may_run_none() -> None:
    played = serving()
    told(played, 0)
    played.until(lambda: not played.replicas())
    assert played.cell.phase(played.now) == "serving"
    told(played, 1)
    played.until(lambda: len(played.replicas()) == 1 and played.all_ready())


def test_the_next_controller_goes_on_with_it() -> None:
    played = serving()
    told(played, 2)
    played.step()
    binding, memory = played.cell.binding, played.cell.memory(played.now)
    assert binding is not None
    assert memory.targets == {"m:a": 2}
    cell = make_cell()
    cell.recall(binding, memory, played.now)
    played.cell = cell
    played.until(lambda: len(played.replicas()) == 2 and played.all_ready())
    assert len(played.started) == 3
    assert set(cell.replicas) == {"c000-r0000", "c000-r0001"}


@pytest.mark.parametrize(
    ("targets", "said"),
    [
        ({"m:b": 1}, "cell c000 has no shard 'm:b'; it has m:a"),
        ({"m:a": 4}, "has room for 0 to 3 replicas of m:a, not for 4"),
        ({"m:a": -1}, "not for -1"),
    ],
)
def test_what_cannot_be_is_refused(targets: dict[str, int], said: str) -> None:
    with pytest.raises(AllocationError, match=said):
        check_targets(make_cell(), targets)
