"""Killed at any step of anything, a supervisor leaves what the next one brings to the same end."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from exaslurm.errors import SubmitAmbiguous
from exaslurm.submit import cell as starting
from exaslurm.submit import records
from exaslurm.supervisor import act, loop
from tests.supervisor.conftest import Site

# Past the time in which an unanswered submission may still turn up, and a drained cell end.
LONG_S = 500.0
LOOK_S = 20.0


class Killed(BaseException):
    """SIGKILL, at this point."""


class Steps:
    """Counts every step that changes something outside of the process, and dies at one of them:
    just before it (even numbers) or just after it."""

    def __init__(self, die_at: int | None) -> None:
        self.die_at = die_at
        self.names: list[str] = []

    def __call__(self, name: str) -> None:
        self.names.append(name)
        if len(self.names) - 1 == self.die_at:
            raise Killed(name)

    def around(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any, **options: Any) -> Any:
            self(f"before {name}")
            result = function(*arguments, **options)
            self(f"after {name}")
            return result

        return wrapped


def cancelled(site: Site) -> None:
    site.cluster.finish(site.only("c000"), "CANCELLED")


def unanswered(site: Site) -> None:
    cancelled(site)
    site.cluster.unclear = [SubmitAmbiguous("it is not known")]


def warned(site: Site) -> None:
    site.generation.notice("c000").write_text('{"signal":"USR1","time_s":1.0}')


def hangs(site: Site) -> None:
    """The old one does not end when it is asked to: it is cancelled."""
    warned(site)
    stop = site.cluster.stop

    def deaf(url: str, key: str, grace_s: float) -> None:
        try:
            stop(url, key, grace_s)
        finally:
            site.cluster.book[url.rpartition("/")[2]].stop_s = None

    site.cluster.stop = deaf  # type: ignore[method-assign]


def asked(site: Site) -> None:
    """Somebody wants the cell on other nodes."""
    item = site.turns()["c000"]
    site.write("c000", replace(item, asked_s=site.cluster.now_s, asked_by="ada"))


def other_generation(site: Site) -> None:
    site.plan_again()
    site.roll_out("rising", {"c000": (2,)})


def beside(site: Site) -> None:
    site.plan_again()
    site.roll_out("rising", {"c000": (1, 2)})


def scaled_away(site: Site) -> None:
    site.scale({"pretend:base": 1})


# And the jobs that live in the end.
EVENTS = {
    cancelled: ["c000.2", "c001"],
    unanswered: ["c000.2", "c001"],
    warned: ["c000.2", "c001"],
    hangs: ["c000.2", "c001"],
    asked: ["c000.2", "c001"],
    other_generation: ["c000.2", "c001"],
    beside: ["c000", "c000.2", "c001"],
    scaled_away: ["c000"],
}


def live_through(
    site: Site, event: Callable[[Site], None], die_at: int | None, patch: pytest.MonkeyPatch
) -> tuple[Any, list[str]]:
    """Come up, have the event, and go on to the end; what that end is, and the steps."""
    # Long jobs: only the event changes anything.
    for job in site.cluster.book.values():
        job.limit_s = 1e6
    site.run(100)
    event(site)
    steps = Steps(die_at)
    with patch.context() as inner:
        site.cluster.hook = steps
        for module, name in (
            (records, "write_atomic"),
            (records, "append_line"),
            (act, "write_atomic"),
            (act, "make_private_dir"),
            (act, "remove_record"),
            (loop, "write_atomic"),
        ):
            label = f"{module.__name__.rpartition('.')[2]}.{name}"
            inner.setattr(module, name, steps.around(label, getattr(module, name)))
        for _ in range(int(LONG_S / LOOK_S)):
            site.cluster.advance(LOOK_S, site.run_dir)
            _look(site)
    site.cluster.hook = lambda _: None
    turns = {name: (item.state, item.end) for name, item in site.turns().items()}
    live = sorted(job.turn for job in site.cluster.live())
    serving = sorted(j.turn for cell in ("c000", "c001") for j in site.cluster.serving(cell))
    published = sorted(path.stem for path in site.run_dir.registry.glob("[!.]*.json"))
    return (turns, live, serving, published), steps.names


def _look(site: Site) -> None:
    try:
        site.supervisor.round()
    except Killed:
        site.start_supervisor()


@pytest.mark.parametrize("event", EVENTS)
def test_killed_at_every_step(
    tmp_path: Path, event: Callable[[Site], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.supervisor.conftest.LIMIT_S", 1e6)
    monkeypatch.setattr(os, "fsync", lambda fd: None)  # nothing here loses power

    def fresh(name: str) -> Site:
        (tmp_path / name).mkdir()
        return Site(tmp_path / name)

    expected, steps = live_through(fresh("whole"), event, None, monkeypatch)
    assert len(steps) > 5
    assert expected[1] == EVENTS[event]
    assert expected[1] == expected[2] == expected[3]
    for number, step in enumerate(steps):
        site = fresh(str(number))
        end, _ = live_through(site, event, number, monkeypatch)
        assert end == expected, f"killed {step} (step {number})"
        once = Counter(job.turn for job in site.cluster.book.values())
        assert set(once.values()) == {1}, f"killed {step}: a job twice"


def test_the_steps_are_those_that_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.supervisor.conftest.LIMIT_S", 1e6)
    names = set[str]()
    for event in EVENTS:
        (tmp_path / event.__name__).mkdir()
        names |= set(live_through(Site(tmp_path / event.__name__), event, None, monkeypatch)[1])
    assert {"sbatch", "scancel", "drain", "stop", "retarget", "act.remove_record"} <= {
        name.partition(" ")[2] for name in names
    }


def test_starting_uses_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is patched above is what the starter of cells writes with."""
    assert starting.records is records
