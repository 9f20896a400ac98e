"""A fleet of simulated engines under a recorded load, event by event; replicas come and go.

The engines are those of ``exaslurm.engines.simulated`` (its ``TimingModel``: first come, first
served; prompts that join a step are worked off in it; every step gives each running sequence one
token), without HTTP around them. A request goes to the less loaded of two replicas that are drawn;
without any it waits. A replica costs from its start to its end, and serves ``start_s`` after its
start. One that is taken away gets nothing new and ends when it has finished what it has.
"""

from __future__ import annotations

import csv
import datetime
import gzip
import heapq
import itertools
import random
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from exaslurm.autoscale.policy import Rules, Signals, State, begin, step
from exaslurm.engines.simulated.timing import TimingModel
from exaslurm.router.metrics import BUCKETS_S

# The supervisor looks so often where a deployment is scaled, and when a request waits.
EVERY_S, WAKE_S = 5.0, 2.0
_BOUNDS_S = (*BUCKETS_S, float("inf"))


@dataclass(frozen=True, slots=True)
class Request:
    at_s: float
    prompt_tokens: int
    answer_tokens: int

    def work_s(self, timing: TimingModel) -> float:
        """What it takes of a replica that works on as many as it can at a time."""
        many = timing.max_num_seqs
        prefill_s = self.prompt_tokens / timing.prefill_tokens_per_s
        return prefill_s + self.answer_tokens * timing.step_s(many, 0) / many


def azure_trace(path: Path, speed: float) -> list[Request]:
    """The requests of the trace, ``speed`` times as fast."""
    with gzip.open(path, "rt") as file:
        rows = list(csv.DictReader(file))
    # Seven digits of a second: one more than Python reads.
    times = [datetime.datetime.fromisoformat(row["TIMESTAMP"][:26]).timestamp() for row in rows]
    return [
        Request(
            (at_s - times[0]) / speed,
            int(row["ContextTokens"]),
            max(1, int(row["GeneratedTokens"])),
        )
        for at_s, row in zip(times, rows, strict=True)
    ]


Control = Callable[[Signals], int]
"""What is seen at a moment -> how many replicas shall be."""


@dataclass(slots=True)
class Outcome:
    """``ttft_s``: of every request, in order; ``cost_s``: seconds of replicas; ``wanted``: what was
    wanted from when on, the changes only."""

    ttft_s: list[float]
    cost_s: float = 0.0
    wanted: list[tuple[float, int]] = field(default_factory=list)

    def p95_s(self) -> float:
        ordered = sorted(self.ttft_s)
        return ordered[int(0.95 * len(ordered))]

    def turns_s(self) -> list[float]:
        """When it went the other way than before."""
        found: list[float] = []
        last = 0
        for (_, before), (at_s, count) in itertools.pairwise(self.wanted):
            way = 1 if count > before else -1
            if last and way != last:
                found.append(at_s)
            last = way
        return found


class _Engine:
    __slots__ = (
        "busy",
        "ends",
        "joined",
        "leaves",
        "queue",
        "running",
        "serves",
        "since_s",
        "steps",
    )

    def __init__(self, since_s: float, *, serves: bool) -> None:
        self.since_s = since_s
        self.serves = serves
        self.leaves = False
        self.busy = False
        self.queue: deque[int] = deque()
        self.running = 0
        self.steps = 0
        self.ends: list[int] = []
        self.joined: list[int] = []

    def load(self) -> int:
        return self.running + len(self.queue)


class Fleet:
    """One run. ``every_s``: how often ``control`` is asked; it begins with ``replicas`` that
    serve."""

    def __init__(
        self,
        trace: Sequence[Request],
        timing: TimingModel,
        control: Control,
        *,
        start_s: float,
        replicas: int,
        every_s: float = EVERY_S,
        until_s: float | None = None,
    ) -> None:
        self._trace = trace
        self._timing = timing
        self._control = control
        self._start_s = start_s
        self._every_s = every_s
        self._until_s = trace[-1].at_s if until_s is None else until_s
        self._rng = random.Random(1)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()
        self._now_s = self._looked_s = self._moved_s = 0.0
        self._engines = [_Engine(0.0, serves=True) for _ in range(replicas)]
        self._waiting: deque[int] = deque()
        self._in_flight = 0
        self._busy_s = 0.0
        self._counts = [0] * len(_BOUNDS_S)
        self._wake_due = False
        self._done = Outcome([0.0] * len(trace), wanted=[(0.0, replicas)])

    def run(self) -> Outcome:
        for index, request in enumerate(self._trace):
            self._at(request.at_s, lambda index=index: self._arrive(index))  # type: ignore[misc]
        looks = int(self._until_s / self._every_s)
        for number in range(1, looks + 1):
            self._at(number * self._every_s, self._look)
        while self._events:
            now_s, _, act = heapq.heappop(self._events)
            self._busy_s += self._in_flight * (now_s - self._moved_s)
            self._now_s = self._moved_s = now_s
            act()
        for engine in self._engines:
            self._done.cost_s += max(self._until_s, engine.since_s) - engine.since_s
        return self._done

    def _at(self, at_s: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._events, (at_s, next(self._count), act))

    def _arrive(self, index: int) -> None:
        self._in_flight += 1
        self._route(index)

    def _route(self, index: int) -> None:
        serving = [e for e in self._engines if e.serves and not e.leaves]
        if not serving:
            self._waiting.append(index)
            if not self._wake_due:
                self._wake_due = True
                self._at(self._now_s + WAKE_S, self._look)
            return
        two = self._rng.sample(serving, 2) if len(serving) > 1 else serving
        engine = min(two, key=_Engine.load)
        engine.queue.append(index)
        if not engine.busy:
            self._step(engine)

    def _step(self, engine: _Engine) -> None:
        prefill = 0
        while engine.queue and engine.running < self._timing.max_num_seqs:
            index = engine.queue.popleft()
            engine.running += 1
            engine.joined.append(index)
            heapq.heappush(engine.ends, engine.steps + self._trace[index].answer_tokens)
            prefill += self._trace[index].prompt_tokens
        engine.busy = engine.running > 0
        if engine.busy:
            took_s = self._timing.step_s(engine.running, prefill)
            self._at(self._now_s + took_s, lambda: self._stepped(engine))
        elif engine.leaves:
            self._end(engine)

    def _stepped(self, engine: _Engine) -> None:
        engine.steps += 1
        for index in engine.joined:
            took_s = self._now_s - self._trace[index].at_s
            self._done.ttft_s[index] = took_s
            self._counts[bisect_left(_BOUNDS_S, took_s)] += 1
        engine.joined.clear()
        while engine.ends and engine.ends[0] <= engine.steps:
            heapq.heappop(engine.ends)
            engine.running -= 1
            self._in_flight -= 1
        self._step(engine)

    def _look(self) -> None:
        passed_s = self._now_s - self._looked_s
        if passed_s <= 0:
            return
        staying = [engine for engine in self._engines if not engine.leaves]
        signals = Signals(
            now_s=self._now_s,
            ready=sum(engine.serves for engine in staying),
            in_flight=max(self._busy_s / passed_s, len(self._waiting)),
            first_tokens=tuple(zip(_BOUNDS_S, self._counts, strict=True)),
            bring_up_s=self._start_s,
        )
        self._looked_s, self._busy_s, self._wake_due = self._now_s, 0.0, False
        self._counts = [0] * len(_BOUNDS_S)
        wanted = self._control(signals)
        if wanted != self._done.wanted[-1][1]:
            self._done.wanted.append((self._now_s, wanted))
        for _ in range(wanted - len(staying)):
            engine = _Engine(self._now_s, serves=False)
            self._engines.append(engine)
            self._at(self._now_s + self._start_s, lambda engine=engine: self._serve(engine))  # type: ignore[misc]
        # As a controller takes them: those that do not serve first, then the emptiest.
        staying.sort(key=lambda engine: (engine.serves, engine.load()))
        for engine in staying[: max(0, len(staying) - wanted)]:
            engine.leaves = True
            if not engine.busy:
                self._end(engine)

    def _serve(self, engine: _Engine) -> None:
        engine.serves = True
        waiting, self._waiting = self._waiting, deque()
        for index in waiting:
            self._route(index)

    def _end(self, engine: _Engine) -> None:
        if engine in self._engines:
            self._engines.remove(engine)
            self._done.cost_s += self._now_s - engine.since_s


class Policy:
    """The real policy as a control."""

    def __init__(self, rules: Rules, replicas: int) -> None:
        self._rules = rules
        self.state: State = begin(replicas, 0.0)
        self.reasons: list[tuple[float, int, str]] = []

    def __call__(self, signals: Signals) -> int:
        before = self.state.wanted
        self.state = step(self.state, signals, self._rules)
        if self.state.wanted != before:
            self.reasons.append((signals.now_s, self.state.wanted, self.state.reason))
        return self.state.wanted


@dataclass(frozen=True, slots=True, kw_only=True)
class Oracle:
    """The cheapest plan of replicas that was found by somebody who knows the trace."""

    constant: int
    constant_cost_s: float
    cost_s: float
    plan: tuple[int, ...]


def find_oracle(
    trace: Sequence[Request],
    timing: TimingModel,
    *,
    start_s: float,
    ttft_s: float,
    slot_s: float = 10.0,
    tries: int = 300,
) -> Oracle:
    """Replicas for every ``slot_s`` of the trace, at the least cost that keeps the 95th percentile
    of the time to the first token. It begins with any number that serve; the same engines, start-up
    and rules hold as for the policy.

    A search: from the least constant number on, replicas are taken from long, then from short
    stretches of time as long as the promise is kept; then it is tried to take some here and add
    some there. What it finds is feasible, and not more than the true least by what a better
    search would find.
    """
    slots = int(trace[-1].at_s / slot_s) + 1
    left = tries
    best: list[int] = []
    cost_s = float("inf")

    def run(plan: Sequence[int]) -> tuple[bool, float]:
        nonlocal left
        left -= 1

        def control(signals: Signals) -> int:
            return plan[min(int(signals.now_s / slot_s + 0.5), slots - 1)]

        done = Fleet(
            trace, timing, control, start_s=start_s, replicas=plan[0], every_s=slot_s
        ).run()
        return done.p95_s() <= ttft_s, done.cost_s

    def better(plan: Sequence[int]) -> bool:
        nonlocal best, cost_s
        kept, found_s = run(plan)
        if kept and found_s < cost_s - 1e-6:
            best, cost_s = list(plan), found_s
            return True
        return False

    constant = 1
    while not run([constant] * slots)[0]:
        constant += 1
    best = [constant] * slots
    cost_s = constant_cost_s = run(best)[1]
    rng = random.Random(1)
    length = slots
    while length and left > tries // 4:
        improved = False
        starts = list(range(0, slots - length + 1, max(1, length // 2)))
        rng.shuffle(starts)
        for start in starts:
            while left > tries // 4:
                fewer = list(best)
                for slot in range(start, start + length):
                    fewer[slot] = max(1, fewer[slot] - 1)
                if fewer == best or not better(fewer):
                    break
                improved = True
        if not improved:
            length //= 2
    while left > 0:
        other = list(best)
        for length, change in ((rng.choice((1, 2, 3, 5, 8)), -1), (rng.choice((1, 2)), 1)):
            start = rng.randrange(slots - length + 1)
            for slot in range(start, start + length):
                other[slot] = max(1, other[slot] + change * rng.choice((1, 2)))
        better(other)
    return Oracle(
        constant=constant, constant_cost_s=constant_cost_s, cost_s=cost_s, plan=tuple(best)
    )


def peaks(
    trace: Sequence[Request], timing: TimingModel, *, ratio: float, slot_s: float = 10.0
) -> list[tuple[float, float]]:
    """The load peaks of a trace: from where a trough ends to where the next one begins.

    The load is the work that arrives in each ``slot_s``. A peak begins where it has come to
    ``ratio`` times the least since the last peak, and is over where it has fallen to the
    ``ratio``-th part of the most since; what moves less is no peak and no trough. It lasts until
    the next one begins.
    """
    slots = [0.0] * (int(trace[-1].at_s / slot_s) + 1)
    for request in trace:
        slots[int(request.at_s / slot_s)] += request.work_s(timing)
    begins: list[float] = []
    rising, least, most = False, float("inf"), 0.0
    for number, work_s in enumerate(slots):
        # Less than a tenth of one replica's time is nothing.
        load = max(work_s, 0.1 * slot_s)
        least, most = min(least, load), max(most, load)
        if not rising and load >= ratio * least:
            begins.append(number * slot_s)
            rising, most = True, load
        elif rising and load <= most / ratio:
            rising, least = False, load
    ends = [*begins[1:], len(slots) * slot_s]
    return list(zip(begins, ends, strict=True))
