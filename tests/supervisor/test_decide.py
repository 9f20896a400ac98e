"""The rules themselves, on worlds that no cluster in memory would bring about."""

from __future__ import annotations

import ast
import inspect
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exaslurm.core.turns import cell_of, turn_of
from exaslurm.supervisor import decide as rules
from exaslurm.supervisor import timing
from exaslurm.supervisor.decide import (
    IDLE_S,
    LEARN_S,
    NODES_SHORT_S,
    SILENT_S,
    STUCK_S,
    decide,
)
from exaslurm.supervisor.model import (
    Cancel,
    CellView,
    Close,
    Decision,
    Drain,
    Effect,
    Remember,
    Resolve,
    Stop,
    Submit,
    Turn,
    World,
)
from exaslurm.supervisor.timing import (
    HAND_OVER_S,
    LEAD_FLOOR_S,
    MOST_REFUSED_S,
    MOST_RETRY_S,
    PROVEN_S,
    expected_s,
    failures,
    lead_s,
    next_try_s,
    percentile,
)

NOW_S = 100_000.0
DAY_S = 86_400.0


def turn(number: int = 1, **given: object) -> Turn:
    """A turn that runs for two hours of its day, and serves."""
    values: dict[str, object] = {
        "name": turn_of("c000", number),
        "number": number,
        "record": "submitted",
        "job": "running",
        "created_s": NOW_S - 7300,
        "submitted_s": NOW_S - 7300,
        "started_s": NOW_S - 7200,
        "served_s": NOW_S - 7000,
        "limit_end_s": NOW_S + DAY_S,
        "heard": True,
        "ready": 4,
        "serving": True,
        "busy": 2,
    }
    return Turn(**{**values, **given})  # type: ignore[arg-type]


def coming(number: int = 2, **given: object) -> Turn:
    """A turn that does not serve yet."""
    young = {"served_s": None, "ready": 0, "serving": False, "started_s": NOW_S - 60}
    return turn(number, **{**young, **given})


def ended(number: int = 1, *, ago_s: float = 5, served: bool = True, **given: object) -> Turn:
    gone: dict[str, object] = {"job": "ended", "record": "stopped", "end": "FAILED"}
    gone |= {"ended_s": NOW_S - ago_s, "heard": False, "served_s": NOW_S - 7000 if served else None}
    return turn(number, **{**gone, **given})


def world(*turns: Turn, **given: object) -> World:
    values: dict[str, object] = {
        "wanted": True,
        "cells": (CellView(name="c000", turns=turns),),
        "poll_s": 30.0,
        "drain_s": 60.0,
        "bring_up_s": 1200.0,
    }
    return World(**{**values, **given})  # type: ignore[arg-type]


def effects(*turns: Turn, **given: object) -> list[str]:
    return [effect.key for effect in decide(world(*turns, **given), NOW_S).effects]


def note(*turns: Turn, **given: object) -> str:
    return decide(world(*turns, **given), NOW_S).notes.get("c000", "")


# --- when a successor is needed -----------------------------------------------------------------


def test_nothing_where_all_is_well() -> None:
    assert decide(world(turn()), NOW_S) == Decision()


def test_a_newcomer_is_not_the_reason_for_itself() -> None:
    said = note(ended(), coming(2, job="pending", reason="Priority"))
    assert said.startswith("c000 has ended (FAILED); its successor c000.2 waits")


def test_a_cell_without_any_job() -> None:
    assert effects() == ["submit c000"]


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"limit_end_s": NOW_S + LEAD_FLOOR_S}, "time limit"),
        ({"notice_s": NOW_S - 1}, "warned"),
        ({"nodes_short_since_s": NOW_S - NODES_SHORT_S - 1}, "too many nodes"),
        ({"short_since_s": NOW_S - 1201}, "too few ready replicas"),
        ({"silent_since_s": NOW_S - SILENT_S - 1, "heard": False}, "no answer"),
    ],
)
def test_reasons(changed: dict[str, object], why: str) -> None:
    (effect,) = decide(world(turn(**changed)), NOW_S).effects
    assert isinstance(effect, Submit)
    assert effect.key == "submit c000.2"
    assert effect.newest == "c000"
    assert why in effect.reason


@pytest.mark.parametrize(
    "changed",
    [
        {"limit_end_s": NOW_S + LEAD_FLOOR_S + 1},
        {"limit_end_s": None},
        {"nodes_short_since_s": NOW_S - NODES_SHORT_S},
        {"short_since_s": NOW_S - 1200},
        {"silent_since_s": NOW_S - SILENT_S, "heard": False},
        {"heard": False, "ready": 0},
    ],
)
def test_not_yet_reasons(changed: dict[str, object]) -> None:
    assert effects(turn(**changed)) == []


def test_one_successor_at_a_time() -> None:
    old = turn(notice_s=NOW_S - 1)
    assert effects(old, coming()) == []
    assert "comes up" in note(old, coming())
    waiting = coming(job="pending", started_s=None, heard=False, reason="Priority")
    assert effects(old, waiting) == []
    assert "waits behind jobs with a higher priority" in note(old, waiting)


def test_ended_is_closed_and_followed() -> None:
    over = ended(record="submitted", ago_s=1)
    assert effects(over) == ["close c000", "submit c000.2"]
    assert effects(replace(over, record="stopped")) == ["submit c000.2"]


def test_unknown_is_not_ended() -> None:
    unknown = turn(job="unknown", heard=False, ready=0, limit_end_s=None)
    assert effects(unknown, slurm_error="squeue failed") == []
    assert effects(unknown) == []


def test_nothing_new_while_slurm_is_silent() -> None:
    old = turn(notice_s=NOW_S - 1)
    assert effects(old, slurm_error="squeue failed") == []
    assert "nothing is submitted" in note(old, slurm_error="squeue failed")


def test_nothing_new_while_a_submission_is_open() -> None:
    old = turn(notice_s=NOW_S - 1)
    for record in ("intent", "ambiguous"):
        open_one = coming(record=record, job="none", heard=False, started_s=None)
        assert effects(old, open_one) == ["resolve c000.2"]
        assert effects(old, open_one, slurm_error="x") == []
        assert "looking for it" in note(old, open_one)


def test_nothing_where_it_is_not_wanted() -> None:
    assert effects(ended(record="submitted"), wanted=False) == []


# --- handing over -------------------------------------------------------------------------------


def test_handing_over() -> None:
    old, new = turn(), coming(ready=4, serving=True)
    assert effects(old, new) == ["remember c000.2"]
    new = replace(new, served_s=NOW_S - LEARN_S + 1)
    assert effects(old, new) == []
    new = replace(new, served_s=NOW_S - LEARN_S)
    assert effects(old, new) == ["drain c000"]
    old = replace(old, drain_s=NOW_S)
    assert effects(old, new) == ["drain c000"]  # not heard of it yet
    old = replace(old, draining=True)
    assert effects(old, new) == []
    old = replace(old, drain_s=NOW_S - IDLE_S - 1)
    assert effects(old, new) == []  # two requests are on their way
    assert effects(replace(old, busy=0), new) == ["stop c000"]
    assert effects(replace(old, drain_s=NOW_S - IDLE_S - 61), new) == ["stop c000"]
    old = replace(old, stopping=True, drain_s=NOW_S - IDLE_S - 61)
    assert effects(old, new) == []
    assert effects(replace(old, drain_s=NOW_S - 500), new) == ["cancel c000"]
    assert effects(replace(old, drain_s=NOW_S - 500), new, slurm_error="x") == []


def test_the_old_one_stays_while_the_new_one_is_not_fit() -> None:
    new = coming(served_s=NOW_S - 60)
    assert effects(turn(), replace(new, heard=False)) == []
    assert effects(turn(), replace(new, ready=0)) == []


def test_a_newcomer_in_part_counts_when_it_is_late() -> None:
    new = coming(ready=3)
    assert effects(turn(), new) == []
    new = replace(new, started_s=NOW_S - 1201)
    assert effects(turn(), new) == ["remember c000.2"]
    assert effects(turn(), replace(new, short_since_s=NOW_S - 1)) == []


def test_a_newcomer_that_never_serves_is_ended() -> None:
    assert effects(turn(), coming(started_s=NOW_S - 2399)) == []
    assert effects(turn(), coming(started_s=NOW_S - 2401)) == ["cancel c000.2"]
    assert effects(turn(), coming(started_s=NOW_S - 2401), slurm_error="x") == []


def test_an_old_one_that_still_waits_is_taken_back() -> None:
    waiting = turn(job="pending", served_s=None, drain_s=NOW_S - 1, heard=False)
    assert effects(waiting, coming(2, served_s=NOW_S - 60, ready=4)) == ["cancel c000"]


def test_a_successor_that_dies_is_followed_while_the_old_one_drains() -> None:
    old = turn(drain_s=NOW_S - 5, draining=True)
    assert effects(old, ended(2, served=True, served_s=NOW_S - 30)) == ["submit c000.3"]


def test_one_that_slurm_does_not_get_rid_of_is_not_waited_for() -> None:
    """A node that hangs keeps its job COMPLETING until somebody reboots it."""
    silent: dict[str, object] = {"heard": False, "ready": 0, "serving": False}
    for make in (turn, coming):
        new = make(1, **silent, ending_since_s=NOW_S - STUCK_S)
        assert effects(new) == []
        stuck = replace(new, ending_since_s=NOW_S - STUCK_S - 1)
        assert effects(stuck) == ["submit c000.2"]
        assert "c000 ends, which takes Slurm long" in note(stuck, refused(1, ago_s=1))
        assert effects(stuck, coming()) == []
    # One that never served has failed: the next ones are tried less and less often.
    stuck = coming(1, **silent, ending_since_s=NOW_S - STUCK_S - 1)
    again = coming(2, **silent, ending_since_s=NOW_S - STUCK_S - 1)
    assert failures([stuck, again, again]) == 3
    assert next_try_s([stuck, again, again]) > NOW_S - STUCK_S
    assert effects(turn(1, **silent, ending_since_s=NOW_S - 70), turn(2, served_s=None)) == [
        "remember c000.2"
    ]


# --- tries --------------------------------------------------------------------------------------


def test_the_first_failure_is_tried_again_at_once() -> None:
    assert effects(ended(served=False, ago_s=0)) == ["submit c000.2"]
    assert effects(ended(1, served=False), ended(2, served=False, ago_s=0)) == []
    assert "the next try is at" in note(ended(1, served=False), ended(2, served=False, ago_s=0))
    before = ended(1, served=False, ago_s=90)
    assert effects(before, ended(2, served=False, ago_s=30)) == ["submit c000.3"]


def test_failures_are_counted_from_the_newest() -> None:
    bad = ended(1, served=False)
    good = ended(2, served_s=NOW_S - PROVEN_S - 10)
    assert failures([]) == 0
    assert failures([bad]) == 1
    assert failures([bad, good]) == 0
    assert failures([good, bad, bad]) == 2
    assert failures([good, bad, turn(4)]) == 0
    assert failures([bad, ended(2, served=False, end="TIMEOUT")]) == 0
    assert failures([bad, ended(2, served=False, drain_s=NOW_S - 100)]) == 0


def refused(refusals: int, ago_s: float) -> Turn:
    return coming(
        record="refused", job="none", refusals=refusals, created_s=NOW_S - ago_s,
        heard=False, message="QOSMaxSubmitJobPerUserLimit", submitted_s=None, started_s=None,
    )  # fmt: skip


def test_a_refusal_is_waited_for_and_told() -> None:
    old = turn(notice_s=NOW_S - 1)
    assert effects(old, refused(1, 10)) == []
    assert "QOSMaxSubmitJobPerUserLimit" in note(old, refused(1, 10))
    (effect,) = decide(world(old, refused(3, 121)), NOW_S).effects
    assert isinstance(effect, Submit)
    assert (effect.turn, effect.newest, effect.refusals) == ("c000.2", "c000.2", 3)


def test_room_that_an_end_makes_is_used_at_once() -> None:
    assert effects(ended(end="TIMEOUT", ago_s=1), refused(9, 10)) == ["submit c000.2"]
    assert effects(ended(end="TIMEOUT", ago_s=20), refused(9, 10)) == []


@given(st.integers(1, 10_000), st.integers(2, 60))
def test_waits_have_an_end(refusals: int, bad: int) -> None:
    assert next_try_s([refused(refusals, 0)]) <= NOW_S + MOST_REFUSED_S
    turns = [ended(number, served=False, ago_s=0) for number in range(1, bad + 1)]
    assert next_try_s(turns) <= NOW_S + MOST_RETRY_S


# --- how early ----------------------------------------------------------------------------------


def test_percentile() -> None:
    assert percentile([], 0.9) == 0.0
    assert percentile([5.0], 0.9) == 5.0
    assert percentile([float(n) for n in range(1, 11)], 0.9) == 9.0
    assert percentile([3.0, 1.0, 2.0], 0.5) == 2.0


def test_lead() -> None:
    young = turn(submitted_s=NOW_S - 7300, started_s=NOW_S - 7200, served_s=NOW_S - 7000)
    assert expected_s([young]) == 300
    assert lead_s(young, [young], 30) == LEAD_FLOOR_S
    slow = replace(young, submitted_s=NOW_S - 7200 - 3600)
    assert lead_s(young, [young, slow], 30) == 1.25 * (3800 + HAND_OVER_S) + 60
    drained = replace(slow, served_s=slow.started_s, drain_s=NOW_S - 300, ended_s=NOW_S - 100)
    assert lead_s(young, [drained], 30) == 1.25 * (3600 + 200) + 60
    short = replace(young, limit_end_s=NOW_S - 7200 + 300)
    assert lead_s(short, [], 2) == 150
    assert lead_s(short, [slow], 2) == 300  # as soon as it starts, not before
    assert lead_s(replace(young, limit_end_s=None), [], 30) == LEAD_FLOOR_S


# --- whatever the world -------------------------------------------------------------------------

times = st.one_of(st.none(), st.floats(NOW_S - 10_000, NOW_S + 10_000))
past = st.one_of(st.none(), st.floats(NOW_S - 10_000, NOW_S))


@st.composite
def any_turn(draw: st.DrawFn, number: int) -> Turn:
    record = draw(st.sampled_from(["intent", "submitted", "refused", "ambiguous", "stopped"]))
    job = "none"
    if record == "submitted":
        job = draw(st.sampled_from(["pending", "running", "ended", "unknown"]))
    elif record == "stopped":
        job = "ended"
    return turn(
        number,
        record=record,
        job=job,
        created_s=draw(st.floats(NOW_S - 10_000, NOW_S)),
        started_s=draw(past),
        served_s=draw(past),
        drain_s=draw(past),
        ended_s=draw(past) if job == "ended" else None,
        end=draw(st.sampled_from(["FAILED", "TIMEOUT", "COMPLETED", None])),
        refusals=draw(st.integers(0, 5)),
        limit_end_s=draw(times),
        heard=draw(st.booleans()),
        ready=draw(st.integers(0, 4)),
        serving=draw(st.booleans()),
        busy=draw(st.one_of(st.none(), st.integers(0, 3))),
        draining=draw(st.booleans()),
        stopping=draw(st.booleans()),
        nodes_short_since_s=draw(past),
        short_since_s=draw(past),
        silent_since_s=draw(past),
        notice_s=draw(past),
    )


@st.composite
def any_world(draw: st.DrawFn) -> World:
    numbers = sorted(draw(st.sets(st.integers(1, 12), max_size=5)))
    turns = [draw(any_turn(number)) for number in numbers]
    return world(
        *turns,
        wanted=draw(st.sampled_from([True, True, True, False])),
        slurm_error=draw(st.sampled_from([None, None, "squeue failed"])),
    )


def of(kind: type[Effect], decision: Decision) -> list[Effect]:
    return [effect for effect in decision.effects if isinstance(effect, kind)]


@settings(max_examples=1000, deadline=None)
@given(any_world())
def test_what_always_holds(world: World) -> None:
    decision = decide(world, NOW_S)
    assert decide(world, NOW_S) == decision
    turns = {item.name: item for item in world.cells[0].turns}
    live = [item for item in turns.values() if item.is_live]
    open_ones = [item for item in turns.values() if item.record in ("intent", "ambiguous")]
    if not world.wanted:
        assert decision == Decision()
    assert len({effect.key for effect in decision.effects}) == len(decision.effects)

    for effect in of(Submit, decision):
        assert world.slurm_error is None
        assert not open_ones
        assert not [item for item in live if item.drain_s is None and item.served_s is None]
        assert len([item for item in live if item.drain_s is None]) <= len(turns)
        assert cell_of(effect.turn) == "c000"
        there = turns.get(effect.turn)
        assert there is None or there.record == "refused"
        assert effect.reason
    assert len(of(Submit, decision)) <= 1

    for effect in decision.effects:
        item = turns.get(effect.turn)
        if isinstance(effect, Submit):
            continue
        assert item is not None
        if isinstance(effect, Close):
            assert item.job == "ended"
            assert item.record == "submitted"
        elif isinstance(effect, Resolve):
            assert item.record in ("intent", "ambiguous")
        else:
            assert item.is_live
        if isinstance(effect, Remember):
            assert item.heard
            assert item.ready
        if isinstance(effect, Cancel):
            assert item.job in ("pending", "running")
            assert world.slurm_error is None
        if isinstance(effect, Stop):
            assert item.drain_s is not None
            assert item.heard
        if isinstance(effect, Drain) and item.drain_s is None and not ends_soon(item, world):
            # Never the newest that serves, and only while that one is heard to.
            newer = [o for o in live if o.number > item.number and o.served_s and o.drain_s is None]
            assert newer[-1].heard
            assert newer[-1].ready
        if isinstance(effect, Cancel) and item.drain_s is None:
            assert item.served_s is None or item.job == "pending"  # requeued


def ends_soon(item: Turn, world: World) -> bool:
    """Whether Slurm ends it before it could finish what it begins now."""
    end_s = item.limit_end_s
    return end_s is not None and end_s - NOW_S <= world.drain_s + IDLE_S


@settings(max_examples=300, deadline=None)
@given(any_world())
def test_one_that_serves_is_never_taken_away_without_another(world: World) -> None:
    turns = [t for t in world.cells[0].turns if t.is_live and t.drain_s is None and t.served_s]
    turns = [t for t in turns if t.job != "pending"]  # requeued
    if not turns:
        return
    taken = {e.turn for e in decide(world, NOW_S).effects if isinstance(e, Drain | Stop | Cancel)}
    assert turns[-1].name not in taken or ends_soon(turns[-1], world)


@pytest.mark.parametrize("module", [rules, timing])
def test_the_rules_have_no_clock_and_no_files(module: object) -> None:
    tree = ast.parse(inspect.getsource(module))  # type: ignore[arg-type]
    imported = {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
    } | {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert not imported & {"os", "random", "socket", "subprocess", "asyncio", "pathlib"}
    called = {
        f"{node.value.id}.{node.attr}"
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
    }
    assert not called & {"time.time", "time.monotonic", "time.sleep"}


# --- generations side by side --------------------------------------------------------------------


def lanes(*numbers: int, turns: tuple[Turn, ...], **given: object) -> list[str]:
    cell = CellView(name="c000", turns=turns, lanes=numbers, **given)  # type: ignore[arg-type]
    return effects(cells=(cell,))


def test_another_generation_is_wanted_beside() -> None:
    (effect,) = decide(
        world(cells=(CellView(name="c000", turns=(turn(),), lanes=(1, 2)),)), NOW_S
    ).effects
    assert isinstance(effect, Submit)
    assert (effect.turn, effect.generation, effect.newest) == ("c000.2", 2, "c000")
    both = (turn(), turn(2, generation=2))
    assert lanes(1, 2, turns=both) == []
    # Each lane has successors of its own; they share the numbers.
    ending = (turn(notice_s=NOW_S - 1), turn(2, generation=2))
    assert lanes(1, 2, turns=ending) == ["submit c000.3"]
    replaced = (turn(), turn(2, generation=2), turn(3))
    assert lanes(1, 2, turns=replaced) == ["drain c000"]


def test_another_generation_is_wanted_instead() -> None:
    assert lanes(2, turns=(turn(),)) == ["submit c000.2"]
    assert lanes(2, turns=(turn(), coming(generation=2))) == []
    served = coming(generation=2, ready=4, serving=True, served_s=NOW_S - LEARN_S)
    assert lanes(2, turns=(turn(), served)) == ["drain c000"]
    assert lanes(2, turns=(turn(), replace(served, served_s=NOW_S - LEARN_S + 1))) == []


def test_back_to_the_old_generation() -> None:
    """The newer job goes, although it has the higher number, and at once where the old serves."""
    assert lanes(1, turns=(turn(), turn(2, generation=2))) == ["drain c000.2"]
    pending = coming(2, generation=2, job="pending", heard=False, started_s=None)
    assert lanes(1, turns=(turn(), pending)) == ["drain c000.2"]
    assert lanes(1, turns=(turn(), replace(pending, drain_s=NOW_S))) == ["cancel c000.2"]
    # Without the old one, what serves stays until there is another one.
    gone = (ended(1), turn(2, generation=2))
    assert lanes(1, turns=gone) == ["submit c000.3"]


def test_a_refusal_of_another_generation_takes_no_number_from_this_one() -> None:
    refused = coming(2, generation=2, record="refused", job="none", refusals=3, created_s=NOW_S)
    ending = turn(notice_s=NOW_S - 1)
    assert lanes(1, 2, turns=(ending, refused)) == ["submit c000.3"]


def test_a_cell_that_is_not_wanted() -> None:
    assert lanes(turns=()) == []
    assert lanes(turns=(turn(),)) == ["drain c000"]
    idle = turn(drain_s=NOW_S - IDLE_S - 1, draining=True, busy=0)
    assert lanes(turns=(idle,)) == ["stop c000"]
    deaf = coming(1, drain_s=NOW_S - IDLE_S - 1, heard=False)
    assert lanes(turns=(deaf,)) == ["cancel c000"]


def test_targets_are_told_until_they_are_heard() -> None:
    wish = {1: {"pretend:base": 1}}
    assert lanes(1, turns=(turn(),), targets=wish) == ["retarget c000"]
    told = turn(targets={"pretend:base": 1})
    assert lanes(1, turns=(told,), targets=wish) == []
    assert lanes(1, turns=(told,), targets={1: None}) == ["retarget c000"]
    assert lanes(1, turns=(turn(heard=False),), targets=wish) == []


def test_asked_to_make_room() -> None:
    (effect,) = decide(world(turn(asked_s=NOW_S, asked_by="ada")), NOW_S).effects
    assert isinstance(effect, Submit)
    assert "ada asked c000" in effect.reason
