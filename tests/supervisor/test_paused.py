"""Paused at any step of anything, and woken after another has taken over, a supervisor does no
harm: what it does then is refused, or ends by itself."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from exaslurm.core.submission import why_stray
from exaslurm.errors import ExaslurmError, TakenOver
from exaslurm.submit import lock, records
from exaslurm.supervisor import act, loop
from exaslurm.supervisor.loop import Supervisor
from tests.supervisor.conftest import Site
from tests.supervisor.test_faults import EVENTS, cancelled, hangs, other_generation

# Longer than an unanswered submission is waited for, and a drained cell needs to end.
LONG_S = 360.0
# Than a job that was submitted late needs to come up, or to find that nobody waits for it.
LATE_S = 200.0
LOOK_S = 20.0
MOST_S = 60.0  # of a test that hangs
EFFECTS = {"before sbatch", "before scancel", "before drain", "before stop"}


class Paused:
    """Stops the thread of the old leader just before or after a step, until it is woken."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.names: list[str] = []
        self.reached, self.woken = threading.Event(), threading.Event()
        self.thread: threading.Thread | None = None
        self.refused = 0

    def __call__(self, name: str) -> None:
        if threading.current_thread() is not self.thread:
            return
        self.names.append(name)
        if len(self.names) - 1 == self.at:
            self.reached.set()
            assert self.woken.wait(MOST_S)

    def around(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any, **options: Any) -> Any:
            self(f"before {name}")
            result = function(*arguments, **options)
            self(f"after {name}")
            return result

        return wrapped

    def run(self, site: Site, old: Supervisor, begun: set[str]) -> None:
        """The old leader's life: up to the pause, and on to the end of that round."""
        self.thread = threading.current_thread()
        try:
            for _ in range(int(LONG_S / LOOK_S)):
                pass_time(site, begun)
                old.round()
                if self.reached.is_set():
                    return
        except TakenOver:
            self.refused += 1
        finally:
            self.reached.set()


def pass_time(site: Site, begun: set[str]) -> None:
    """As a job begins it looks whether it is waited for."""
    for job in site.cluster.live():
        if job.id in begun or job.start_s > site.cluster.now_s + LOOK_S:
            continue
        known = [site.run_dir.generation(n) for n in site.run_dir.generations()]
        found = [records.read_submissions(each).get(job.turn) for each in known]
        if any(item is not None and why_stray(item, job.name, job.id) for item in found):
            site.cluster.finish(job, "COMPLETED")
        else:
            begun.add(job.id)
    site.cluster.advance(LOOK_S, site.run_dir)


def go_on(site: Site, supervisor: Supervisor, begun: set[str], seconds: float) -> None:
    for _ in range(int(seconds / LOOK_S)):
        pass_time(site, begun)
        try:
            supervisor.round()
        except ExaslurmError:
            continue


def trial(
    site: Site, event: Callable[[Site], None], at: int, patch: pytest.MonkeyPatch
) -> tuple[Paused, set[str]]:
    for job in site.cluster.book.values():
        job.limit_s = 1e6
    site.run(100)
    begun = set(site.cluster.book)
    event(site)
    pause, old = Paused(at), site.supervisor
    site.start_supervisor()
    with patch.context() as inner:
        site.cluster.hook = pause
        for module, name in (
            (records, "write_atomic"),
            (act, "write_atomic"),
            (act, "remove_record"),
            (loop, "write_atomic"),
        ):
            label = f"{module.__name__.rpartition('.')[2]}.{name}"
            inner.setattr(module, name, pause.around(label, getattr(module, name)))
        thread = threading.Thread(target=pause.run, args=(site, old, begun))
        thread.start()
        assert pause.reached.wait(MOST_S)
        if thread.is_alive():
            go_on(site, site.supervisor, begun, LONG_S)
        pause.woken.set()
        thread.join(MOST_S)
        assert not thread.is_alive()
        go_on(site, site.supervisor, begun, LATE_S)
    site.cluster.hook = lambda _: None
    return pause, begun


@pytest.mark.timeout(900)
@pytest.mark.parametrize("event", [cancelled, hangs, other_generation])
def test_paused_at_every_step(
    tmp_path: Path, event: Callable[[Site], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is refused, or was done before: one job of each cell serves in the end, each job that
    served is written down, and none of them is there twice."""
    monkeypatch.setattr("tests.supervisor.conftest.LIMIT_S", 1e6)
    monkeypatch.setattr(lock, "LEASE_S", 0.03)
    monkeypatch.setattr(lock, "BEAT_S", 3600.0)  # who is paused gives no sign of life
    at, refused, steps = 0, 0, list[str]()
    while True:
        (tmp_path / str(at)).mkdir()
        site = Site(tmp_path / str(at))
        pause, begun = trial(site, event, at, monkeypatch)
        if at >= len(pause.names):
            break
        where = f"paused {pause.names[at]} (step {at})"
        steps.append(pause.names[at])
        refused += pause.refused
        if "records.write_atomic" in pause.names[at]:  # under the lock, before a check
            assert not EFFECTS & set(pause.names[at + 1 :]), f"{pause.names[at]} (step {at})"
        cells = sorted(job.turn.split(".")[0] for job in site.cluster.live())
        assert cells == sorted(turn.split(".")[0] for turn in EVENTS[event]), where
        serving = [job for cell in ("c000", "c001") for job in site.cluster.serving(cell)]
        assert len(serving) == len(cells), where
        live = {str(item.job_id) for item in site.turns().values() if item.state == "submitted"}
        assert live == {job.id for job in serving}, where
        served = Counter(site.cluster.book[ident].turn for ident in begun)
        assert set(served.values()) == {1}, f"{where}: two jobs of a turn served"
        at += 1
    assert {"before sbatch", "after sbatch"} <= set(steps)
    assert refused >= len(steps) / 4
