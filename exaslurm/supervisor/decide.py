"""What is to be done for the cells of a deployment. Pure: the caller brings world and time."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from exaslurm.core.turns import turn_of
from exaslurm.slurm import reasons
from exaslurm.supervisor.model import (
    Cancel,
    CellView,
    Close,
    Decision,
    Drain,
    Effect,
    Relimit,
    Remember,
    Resolve,
    Retarget,
    Stop,
    Submit,
    Turn,
    World,
)
from exaslurm.supervisor.timing import lead_s, next_try_s, over_s

# Routers read the registry every 2 s and ask cells every second: after this time they know that a
# cell serves, or that another one drains.
LEARN_S = 6.0
# Figures of engines are up to two scrapes (5 s each) old: a drained cell that seems idle is.
IDLE_S = 15.0
# What a cell needs to end after its engines have.
ENDING_S = 60.0
# A job that Slurm ends for longer than that waits for a node that does not answer, or on which a
# process does not die: that may take hours, and nothing of it will ever serve.
STUCK_S = 60.0
# Nodes that Slurm still counts do not come back after this; engines may be restarting for longer.
NODES_SHORT_S = 60.0
# A job that has not started after this may not start soon.
WAITS_S = 20.0
SILENT_S = 600.0
# A job that does not serve after this many times its limits of bring-up never will.
PATIENCE = 2.0


def decide(world: World, now_s: float) -> Decision:
    """Everything to do at this moment. Nothing where the deployment is to stop: ``stop`` ends it,
    and what it does not know of must not appear."""
    if not world.wanted:
        return Decision()
    every = [turn for cell in world.cells for turn in cell.turns]
    effects: list[Effect] = []
    notes: dict[str, str] = {}
    for cell in world.cells:
        found = _Cell(world, cell, every, now_s)
        effects += found.effects()
        if found.note is not None:
            notes[cell.name] = found.note
    return Decision(effects=tuple(effects), notes=notes)


class _Cell:
    """The rules for one cell."""

    def __init__(self, world: World, cell: CellView, every: Sequence[Turn], now_s: float) -> None:
        self.world = world
        self.cell = cell
        self.now_s = now_s
        self.live = [turn for turn in cell.turns if turn.is_live]
        self.staying = [turn for turn in self.live if _stays(turn, now_s)]
        self.lanes = [_Lane(world, cell, number, every, now_s) for number in cell.lanes]
        self.unresolved = [t for t in cell.turns if t.record in ("intent", "ambiguous")]

    @property
    def note(self) -> str | None:
        if self.unresolved:
            names = ", ".join(turn.name for turn in self.unresolved)
            return f"it is not known yet whether Slurm has taken {names}; looking for it"
        return next((lane.note for lane in self.lanes if lane.note is not None), None)

    def effects(self) -> Iterator[Effect]:
        if self.world.slurm_error is None:
            yield from (Resolve(turn=turn.name) for turn in self.unresolved)
        yield from self._remember()
        yield from self._close()
        for lane in self.lanes:
            yield from lane.replace_old()
            yield from lane.leave_in_time()
        yield from self._retarget()
        yield from self._relimit()
        yield from self._end_requeued()
        yield from self._end_unwanted()
        yield from self._end_drained()
        if not self.unresolved:  # it may be the successor
            for lane in self.lanes:
                yield from lane.end_hopeless()
                yield from lane.succeed()

    # --- bookkeeping ---------------------------------------------------------------------------

    def _remember(self) -> Iterator[Effect]:
        for turn in self.live:
            if turn.served_s is None and _serves(turn, self.world, self.now_s):
                yield Remember(
                    turn=turn.name,
                    started_s=turn.started_s,
                    served_s=self.now_s,
                    gap_s=self._gap_s(),
                )

    def _gap_s(self) -> float | None:
        """For how long nothing of the cell has served; None if something does, or never did."""
        served = [turn for turn in self.cell.turns if turn.served_s is not None]
        ends = [
            min(at_s)
            for turn in served
            if (at_s := [s for s in (turn.drain_s, over_s(turn)) if s is not None])
        ]
        if not ends or any(turn.is_live and _stays(turn, self.now_s) for turn in served):
            return None
        return max(0.0, self.now_s - max(ends))

    def _close(self) -> Iterator[Effect]:
        for turn in self.cell.turns:
            if turn.record == "submitted" and turn.job == "ended":
                yield Close(turn=turn.name, end=turn.end, ended_s=turn.ended_s or self.now_s)

    def _retarget(self) -> Iterator[Effect]:
        for turn in self.staying:
            if turn.generation in self.cell.targets and turn.heard and not turn.stopping:
                wanted = self.cell.targets[turn.generation]
                if turn.targets != wanted:
                    yield Retarget(turn=turn.name, replicas=wanted)

    def _relimit(self) -> Iterator[Effect]:
        """A job that waits would run into a maintenance, and would wait until it is over."""
        for turn in self.staying:
            limit = turn.relimit
            if limit is None or turn.job != "pending" or self.world.slurm_error is not None:
                continue
            why = "no maintenance is in its way that is far enough to run before it"
            if limit.maintenance is not None:
                begins = _clock(limit.maintenance.start_s)
                why = f"the maintenance {limit.maintenance.name} begins at {begins}"
            yield Relimit(turn=turn.name, reason=why, limit=limit)

    def _end_requeued(self) -> Iterator[Effect]:
        """A job that served and waits again was requeued, against what was asked of Slurm: what is
        written down of it is of its first life, so another one takes its place."""
        for turn in self.staying:
            if turn.job == "pending" and turn.served_s is not None and not self.world.slurm_error:
                yield Cancel(turn=turn.name, reason="Slurm has requeued it")

    # --- what goes -------------------------------------------------------------------------------

    def _end_unwanted(self) -> Iterator[Effect]:
        """Jobs of generations that are not wanted go when the wanted ones serve, so at once where
        none is."""
        if not all(lane.is_fit for lane in self.lanes):
            return
        for turn in self.staying:
            if turn.generation not in self.cell.lanes:
                why = "its cell is not needed now"
                if self.lanes:
                    why = f"{self.lanes[-1].served[-1].name} serves in its place"
                yield Drain(turn=turn.name, reason=why)

    def _end_drained(self) -> Iterator[Effect]:
        why = "its successor serves" if self.lanes else "its cell is not needed now"
        for turn in self.live:
            if turn.drain_s is None:
                continue
            waited_s = self.now_s - turn.drain_s
            late = waited_s > IDLE_S + self.world.drain_s
            over = waited_s > IDLE_S + 2 * self.world.drain_s + ENDING_S
            deaf = turn.served_s is None and not turn.heard and waited_s > IDLE_S
            if turn.job == "pending" or deaf or over:
                if self.world.slurm_error is None and turn.job != "unknown":
                    yield Cancel(turn=turn.name, reason=why)
            elif turn.heard and not turn.stopping:
                if not turn.draining:  # its controller was started again since
                    yield Drain(turn=turn.name, reason=why)
                elif late or (waited_s > IDLE_S and turn.busy == 0):
                    yield Stop(turn=turn.name, reason=f"{why}, it is drained")


class _Lane:
    """The rules for the jobs that a cell has of one generation."""

    def __init__(
        self, world: World, cell: CellView, number: int, every: Sequence[Turn], now_s: float
    ) -> None:
        self.world = world
        self.cell = cell
        self.generation = number
        self.every = every
        self.now_s = now_s
        self.note: str | None = None
        self.turns = [turn for turn in cell.turns if turn.generation == number]
        live = [turn for turn in self.turns if turn.is_live]
        self.staying = [turn for turn in live if _stays(turn, now_s)]
        self.served = [turn for turn in self.staying if turn.served_s is not None]
        self.newcomers = [turn for turn in self.staying if turn.served_s is None]

    @property
    def is_fit(self) -> bool:
        """Whether its newest job has served for so long that all routers know it."""
        if not self.served:
            return False
        newest = self.served[-1]
        assert newest.served_s is not None
        return newest.heard and newest.ready > 0 and self.now_s - newest.served_s >= LEARN_S

    def replace_old(self) -> Iterator[Effect]:
        """The old one goes when the new one serves."""
        if not self.is_fit:
            return
        newest = self.served[-1]
        for turn in self.staying:
            if turn.number < newest.number:
                yield Drain(turn=turn.name, reason=f"{newest.name} serves in its place")

    def leave_in_time(self) -> Iterator[Effect]:
        """One that is about to be ended takes nothing new, so that what it has begun is finished:
        at Slurm's warning where others serve the same, else when its end is as near as that
        takes. While its successor may come up in time it goes on."""
        late = self._has_no_room()
        for turn in self.served:
            if self.is_fit and turn is not self.served[-1]:
                continue  # it goes anyhow
            end_s = turn.limit_end_s
            others = self._shards_of_others(turn)
            if turn.notice_s is not None and turn.shards and turn.shards <= others:
                why = f"Slurm has warned {turn.name} that it will end, and others serve the same"
                yield Drain(turn=turn.name, reason=why)
            elif (
                end_s is not None
                and end_s - self.now_s <= self.world.drain_s + IDLE_S
                and late
                and turn.ends_for is None  # it may well go on through the maintenance
                and turn.suspended_since_s is None
            ):
                why = f"it ends at {_clock(end_s)}, and nothing can take its place before"
                yield Drain(turn=turn.name, reason=why)

    def _has_no_room(self) -> bool:
        """Whether Slurm has refused the next job, or lets it wait."""
        if self.newcomers:
            newest = self.newcomers[-1]
            waits_s = self.now_s - (newest.submitted_s or newest.created_s)
            return newest.job == "pending" and waits_s > WAITS_S
        return bool(self.turns) and self.turns[-1].record == "refused"

    def _shards_of_others(self, turn: Turn) -> frozenset[str]:
        """The shards of which others than a job have ready replicas that stay."""
        found: frozenset[str] = frozenset()
        for other in self.every:
            stays = other.is_live and other.drain_s is None and other.notice_s is None
            if other is not turn and stays and other.served_s is not None:
                found |= other.shards
        return found

    # --- a new one comes when the old one will go -----------------------------------------------

    def end_hopeless(self) -> Iterator[Effect]:
        """A newcomer that has not come up in time makes room for another try."""
        for turn in self.newcomers:
            if self.world.slurm_error or turn.job != "running" or turn.started_s is None:
                continue
            up_s = self.now_s - turn.started_s
            if up_s > PATIENCE * self.world.bring_up_s and not _serves(
                turn, self.world, self.now_s
            ):
                why = f"it does not serve {up_s / 60:.0f} minutes after its start"
                yield Cancel(turn=turn.name, reason=why)

    def succeed(self) -> Iterator[Effect]:
        """Submit the next job, where one is needed."""
        if self.newcomers:
            self._note_newcomer(self.newcomers[-1])
            return
        why = self._why_successor()
        if why is None:
            return
        if self.world.slurm_error is not None:
            self.note = f"{why}; Slurm gives no answer now, so nothing is submitted"
            return
        newest = self.cell.turns[-1] if self.cell.turns else None
        due_s = next_try_s(self.turns)
        if self.now_s < due_s:
            self.note = f"{why}; the next try is at {_clock(due_s)}{_refusal(newest)}"
            return
        again = (
            newest is not None
            and newest.record == "refused"
            and newest.generation == self.generation
        )
        last = max(newest.number if newest is not None else 0, self.cell.past)
        number = newest.number if newest is not None and again else last + 1
        refused = self.turns[-1:] and self.turns[-1].record == "refused"
        yield Submit(
            turn=turn_of(self.cell.name, number),
            generation=self.generation,
            reason=why,
            newest=newest.name if newest is not None else None,
            refusals=self.turns[-1].refusals if refused else 0,
        )

    def _note_newcomer(self, turn: Turn) -> None:
        if not self.served and turn.number == 1:
            if turn.limited_by is not None:
                self.note = f"{turn.name} is shorter, to end before maintenance {turn.limited_by}"
            return  # the ordinary start: status tells it anyway
        why = self._why_successor() or "a successor is on its way"
        if turn.job == "pending" and turn.reason:
            self.note = f"{why}; its successor {turn.name} {reasons.explain(turn.reason)}"
        else:
            self.note = f"{why}; its successor {turn.name} comes up"

    def _why_successor(self) -> str | None:
        """Why the cell needs a new job; None if it does not."""
        if not self.served:
            earlier = (t for t in reversed(self.turns) if t not in self.newcomers)
            last = next((t for t in earlier if t.record != "refused"), None)
            if last is None and self.cell.turns:
                return f"generation {self.generation} is wanted"
            if last is None:
                return "it has no job"
            return f"{last.name} {_ended(last)}"
        turn = self.served[-1]
        if turn.notice_s is not None:
            return f"Slurm has warned {turn.name} that it will end"
        if turn.asked_s is not None:
            return f"{turn.asked_by or 'somebody'} asked {turn.name} to make room"
        end_s = turn.limit_end_s
        lead = lead_s(turn, self.every, self.world.poll_s)
        if self._since(turn.suspended_since_s, NODES_SHORT_S):
            return f"Slurm has suspended {turn.name}"
        if end_s is not None and end_s - self.now_s <= lead and turn.ends_for is not None:
            return f"the maintenance {turn.ends_for} takes nodes of {turn.name} at {_clock(end_s)}"
        if end_s is not None and end_s - self.now_s <= lead and turn.suspended_since_s is None:
            return f"{turn.name} reaches its time limit at {_clock(end_s)}"
        if self._since(turn.nodes_short_since_s, NODES_SHORT_S):
            return f"{turn.name} has lost too many nodes"
        if self._since(turn.short_since_s, self.world.bring_up_s):
            return f"{turn.name} has too few ready replicas"
        if self._since(turn.silent_since_s, SILENT_S):
            return f"the controller of {turn.name} gives no answer"
        return None

    def _since(self, since_s: float | None, patience_s: float) -> bool:
        return since_s is not None and self.now_s - since_s > patience_s


def _serves(turn: Turn, world: World, now_s: float) -> bool:
    """Whether a newcomer has come up: in full, or, after the time for that, in part."""
    if not turn.heard or turn.ready == 0 or turn.drain_s is not None:
        return False
    since_s = turn.started_s
    late = since_s is not None and now_s - since_s > world.bring_up_s
    return turn.serving or (late and turn.short_since_s is None)


def _stays(turn: Turn, now_s: float) -> bool:
    """Whether a job was not told to go, and may go on."""
    since_s = turn.ending_since_s
    return turn.drain_s is None and (since_s is None or now_s - since_s <= STUCK_S)


def _ended(turn: Turn) -> str:
    if turn.is_live:
        return "drains" if turn.drain_s is not None else "ends, which takes Slurm long"
    if turn.failure is not None:
        return f"failed: {turn.failure}"
    return f"has ended ({turn.end})" if turn.end else "has ended"


def _refusal(turn: Turn | None) -> str:
    """What Slurm said, where it is a refusal that is waited for."""
    if turn is None or turn.record != "refused" or not turn.message:
        return ""
    return f" ({turn.message})"


def _clock(at_s: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(at_s))
