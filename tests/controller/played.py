"""A cell whose agents and engines the test plays, second by second of a time that it makes up."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from exaslurm.controller.cell import Cell
from exaslurm.controller.relay import given_up, relays_due
from exaslurm.controller.relief import reliefs_due
from exaslurm.controller.replace import moves_due
from exaslurm.controller.targets import settle
from exaslurm.core.binding import ReplicaBinding
from exaslurm.core.cell import DesiredState, EngineLoad, EngineStatus, MemoryFigures
from tests.controller.conftest import WORKERS, bind, engine, everybody, make_cell, report


class Played:
    """Nodes that do what they are told: an engine that is wanted is healthy two seconds later
    (``load_s``), one that is not is gone after ``drain_s``."""

    def __init__(self, cell: Cell | None = None, **options: Any) -> None:
        self.cell = cell or make_cell(**options)
        self.now = 100.0
        self.load_s = 2.0
        self.drain_s = 1.0
        self.dead: set[str] = set()
        self.memory: dict[str, MemoryFigures] = {}
        self.busy: Mapping[str, int] = {}
        self.sizes: Mapping[str, int] = {}
        self.broken: Callable[[str, str], bool] = lambda node, replica: False
        self.started: list[tuple[str, str]] = []
        self.never_short: list[int] = []
        self.bad_slots: set[int] = set()
        self._engines: dict[tuple[str, str], tuple[float, int, ReplicaBinding]] = {}
        self._ends: dict[tuple[str, str], float] = {}
        self._pid = 100
        self._desired: dict[str, DesiredState] = {}
        if cell is None:
            everybody(self.cell, self.now)
            bind(self.cell, self.now)

    def step(self) -> None:
        """One second: agents report, the controller does what its server does in a round."""
        self.now += 1.0
        for node in ("n1", *WORKERS):
            if node not in self.dead:
                self._report(node)
        cell, now = self.cell, self.now
        for relief in reliefs_due(cell, now):
            relief.replica.leave(relief.reason, now, then="yield")
            cell.pressure.relieved(relief.node, now)
        settle(cell, now)
        for move in moves_due(cell, now):
            cell.place(move.place, now)
        for replica in list(cell.replicas.values()):
            if given_up(cell, replica, now) is not None:
                cell.end_relay(replica)
        while relays := relays_due(cell, now):
            for relay in relays:
                if relay.place is None:
                    relay.replica.leave(relay.reason, now)
                else:
                    cell.begin_relay(relay.replica, relay.place, now)
        cell.restart_gangs(now)
        cell.advance(now)
        for replica in cell.canaries_due(now):
            assert replica.process is not None
            cell.on_canary(replica, replica.process, None, now)
        self.never_short.append(sum(r.state == "ready" for r in cell.replicas.values()))

    def run(self, seconds: float) -> None:
        for _ in range(int(seconds)):
            self.step()

    def until(self, condition: Callable[[], bool], limit_s: float = 120.0) -> float:
        """Step until it holds; the seconds that it took."""
        began = self.now
        while not condition():
            assert self.now - began < limit_s, {r.id: (r.state, r.cause) for r in self.replicas()}
            self.step()
        return self.now - began

    def replicas(self) -> list[Any]:
        return list(self.cell.replicas.values())

    def all_ready(self) -> bool:
        return all(replica.state == "ready" for replica in self.replicas())

    def running(self, replica: str) -> list[str]:
        """The nodes on which an engine of that name runs."""
        return sorted(node for node, name in self._engines if name == replica)

    def where(self) -> dict[str, str]:
        return {replica.id: replica.binding.node for replica in self.replicas()}

    def _report(self, node: str) -> None:
        desired = self._desired.get(node, DesiredState(version=0, ray=None, engines=()))
        wanted = {place.id: place for place in desired.engines}
        for key in list(self._engines):
            if key[0] == node and (
                key in self._ends or wanted.get(key[1]) != self._engines[key][2]
            ):
                ends_s = self._ends.setdefault(key, self.now + self.drain_s)
                if self.now >= ends_s:
                    del self._engines[key], self._ends[key]
        for name, place in wanted.items():
            if (node, name) not in self._engines:
                self._pid += 1
                self._engines[node, name] = (self.now, self._pid, place)
                self.started.append((node, name))
        statuses = [self._status(node, name) for where, name in self._engines if where == node]
        said = dataclasses.replace(
            report(node, *statuses, seen=desired.version), memory=self.memory.get(node)
        )
        answer = self.cell.on_report(said, self.now)
        if answer.version >= desired.version:
            self._desired[node] = answer

    def _status(self, node: str, name: str) -> EngineStatus:
        since_s, pid, place = self._engines[node, name]
        busy = self.busy.get(name, 0)
        phase = "healthy" if self.now - since_s >= self.load_s else "loading"
        if (node, name) in self._ends:
            phase = "stopping"
        if self.broken(node, name) or place.slot in self.bad_slots:
            return engine(
                name, "failed", pid=pid, restarts=4, cause="it is broken there", port=place.port
            )
        return engine(
            name, phase, pid=pid, port=place.port, mem_mib=self.sizes.get(name),
            load=EngineLoad(running=busy, waiting=0, kv_use=0.0),
        )  # fmt: skip
