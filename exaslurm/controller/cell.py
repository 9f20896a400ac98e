"""The cell as a state machine: reports and canary results in, desired states and answers out.

Pure: no I/O, and the caller brings the time (monotonic seconds). The server around it does what
is asked for here: writes the binding, pushes desired states, sends canaries, publishes records.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Literal

from exaslurm.controller.desired import DesiredBook
from exaslurm.controller.gangs import processes_of
from exaslurm.controller.leaving import LEARN_S
from exaslurm.controller.memory import ControllerMemory
from exaslurm.controller.nodes import SILENT_AFTER_S, Membership, Node
from exaslurm.controller.pressure import Pressure
from exaslurm.controller.ray_view import RayView
from exaslurm.controller.replicas import Process, Replica, make_replica
from exaslurm.core import ports
from exaslurm.core.binding import CellBinding, ReplicaBinding
from exaslurm.core.cell import AgentReport, CellRecord, CellState, DesiredState, PhaseTimes
from exaslurm.core.facts import NodeFacts
from exaslurm.core.marker import BootstrapMarker
from exaslurm.core.plan import Plan

LEASE_S = 30.0

Phase = Literal["nodes", "ray", "engines", "serving", "degraded", "stopping", "failed"]


class Cell:
    """Everything the controller knows."""

    def __init__(
        self,
        plan: Plan,
        marker: BootstrapMarker,
        *,
        generation: int,
        now: float,
        submitted_s: float | None = None,
    ) -> None:
        self.plan = plan
        self.cell = plan.cell(marker.cell)
        self.marker = marker
        self.generation = generation
        self.members = Membership(marker, self.cell, now=now, deadline_s=plan.timeouts.nodes_s)
        self.ray = RayView(plan.ray, epoch=1, now=now)
        self.book = DesiredBook()
        self.pressure = Pressure()
        self.replicas: dict[str, Replica] = {}
        self.targets: Mapping[str, int] | None = None
        self.binding: CellBinding | None = None
        self.stopping = False
        self.grace_s: float | None = None
        self.failure: str | None = None
        self._submitted_s = submitted_s if submitted_s is not None else marker.started_s
        self.engines_started = False
        self._served_once = False

    # -- what comes in

    def recall(self, binding: CellBinding, memory: ControllerMemory | None, now: float) -> None:
        """Go on where an earlier controller of this job was: engines that run are not touched,
        and those that served are ready until their node or their canary says otherwise."""
        self.bind(binding)
        self.engines_started = True
        if memory is None or memory.started_s != self.marker.started_s:
            return
        self.ray.recall(memory.ray_epoch, memory.ray_seconds)
        for name, remembered in memory.replicas.items():
            if name in self.replicas:
                trusted_until_s = now + SILENT_AFTER_S
                self.replicas[name].recall(remembered.process, remembered.phases, trusted_until_s)
                self.replicas[name].resume(remembered, now)
        self.members.drained.update(memory.drained)
        self.targets = memory.targets
        self._served_once = self._all_ready()

    def on_report(self, report: AgentReport, now: float) -> DesiredState:
        """Take a report; answers what the node shall run. AllocationError for a foreign node."""
        report = dataclasses.replace(report, facts=self.marker.complete(report.facts))
        node = self.members.on_report(report, now)
        self.book.seen(report.node, report.seen_version)
        self.pressure.on_report(report.node, report.memory, now)
        if node is self.members.head:
            facts = report.facts
            self.ray.on_head(report.ray, facts.address, facts.port_base + ports.RAY_GCS, now)
        for status in report.engines:
            replica = self.replicas.get(status.replica)
            if replica is None:
                continue
            successor = replica.successor
            if successor is not None and successor.binding.node == report.node:
                successor.on_engine(status, now)
            if report.node not in replica.binding.nodes:
                continue
            if replica.gang is not None:
                replica.gang.on_part(report.node, status, now)
                replica.on_gang(now)
                self._remember_place(replica.binding)
            elif status.port in (None, replica.binding.port):  # else of its place before this one
                replica.on_engine(status, now)
        self._note_gone(report)
        self._note_reserve()
        self.advance(now)
        return self.book.get(report.node)

    def bind(self, binding: CellBinding) -> None:
        """Take the places of all replicas."""
        self.binding = binding
        self.members.pardon(frozenset(name for place in binding.replicas for name in place.nodes))
        for place in binding.replicas:
            if place.id not in self.replicas:
                self.replicas[place.id] = make_replica(self.plan, place)
        self._note_reserve()

    def place(self, place: ReplicaBinding, now: float = 0.0) -> None:
        """Give a replica another place, or its first one."""
        replica = self.replicas.get(place.id)
        if replica is None:
            replica = self.replicas[place.id] = make_replica(self.plan, place)
        else:
            replica.move(place, now)
        self._remember_place(replica.binding)
        self._note_reserve()

    def _remember_place(self, place: ReplicaBinding) -> None:
        assert self.binding is not None
        if place in self.binding.replicas:
            return
        places = {old.id: old for old in self.binding.replicas} | {place.id: place}
        self.binding = dataclasses.replace(
            self.binding, replicas=tuple(places[name] for name in sorted(places))
        )

    def gang_lost(self, replica: Replica, cause: str, node: str, now: float) -> None:
        """A node of a gang is gone: end the rest."""
        if replica.gang is not None:
            replica.gang.fail(cause, node, now)
            replica.on_gang(now)
            self._remember_place(replica.binding)

    def begin_relay(self, replica: Replica, place: ReplicaBinding, now: float) -> None:
        """Have a replica's successor come up while it goes on."""
        replica.successor = make_replica(self.plan, place)
        replica.successor.phases = PhaseTimes(reserve_s=replica.phases.reserve_s)
        replica.succeeded_since_s = now

    def end_relay(self, replica: Replica) -> None:
        """Its successor does not come up."""
        replica.successor, replica.relay_failed = None, True

    def _hand_over(self, now: float) -> None:
        """Successors that serve take over, also where what they relieve does not serve any more."""
        for name, replica in self.replicas.items():
            if replica.relieved is not None and now - replica.relieved[1] >= LEARN_S:
                replica.relieved = None
            successor = replica.successor
            if successor is None or (successor.state != "ready" and replica.state == "ready"):
                continue
            if replica.state == "ready":
                successor.relieved = replica.binding, now
            successor.draining = replica.draining
            self.replicas[name] = successor
            self._remember_place(successor.binding)

    def restart_gangs(self, now: float) -> None:
        """Start those gangs again of which nothing is left, where they were. Those that need
        other nodes have been given them before, if there are any."""
        joined = {node.name for node in self.members.joined(now)}
        for replica in self.replicas.values():
            gang = replica.gang
            if gang is None or self.stopping or now < gang.due_s or not gang.is_over(joined):
                continue
            if replica.leaving is not None or replica.resting is not None:
                continue
            if joined.issuperset(replica.binding.nodes):
                replica.begin_gang(now)

    def _note_gone(self, report: AgentReport) -> None:
        """Of which gangs, and of which replicas that leave, nothing is left on a node that knows
        what it shall run."""
        desired = self.book.get(report.node)
        if report.seen_version < desired.version:
            return
        for one in self.replicas.values():
            if one.leaving is not None:
                one.leaving.on_report(one.id, report, desired)
        there = {status.replica for status in report.engines}
        for name in desired.kill:
            replica = self.replicas.get(name)
            if replica is not None and replica.gang is not None and name not in there:
                replica.gang.on_gone(report.node)

    def on_canary(self, replica: Replica, process: Process, cause: str | None, now: float) -> None:
        """The end of a canary."""
        replica.on_canary(process, cause, now)
        self._served_once = self._served_once or self._all_ready()

    def drain(self) -> None:
        """Nothing new shall be sent to the replicas; what they do they finish. It does not outlive
        the controller: who wants it says it again."""
        for replica in self.replicas.values():
            replica.draining = True

    def stop(self, grace_s: float | None = None) -> None:
        """Nothing shall run any more. ``grace_s``: requests in flight have so long to finish, if
        that is less than the plan's drain time. The first word on it stands."""
        if not self.stopping:
            self.grace_s = grace_s
        self.stopping = True
        self.drain()

    # -- what follows from it

    def wanted_in_ray(self, now: float) -> frozenset[str]:
        """Names of the nodes that should be in Ray."""
        return frozenset(n.name for n in self.members.joined(now) if not self._is_out(n))

    def wants_binding(self, now: float) -> list[NodeFacts] | None:
        """Facts of the nodes to bind to, if that is due; None otherwise."""
        if self.binding is not None or self.stopping or not self.members.settled(now):
            return None
        return [node.report.facts for node in self.members.usable() if node.report is not None]

    def advance(self, now: float) -> list[str]:
        """Bring the desired states up to date; names of the nodes whose state changed."""
        self.ray.advance(now)
        for replica in [*self.replicas.values(), *self._successors()]:
            replica.tick(now, self.plan.timeouts)
        self._hand_over(now)
        if self.binding is not None and not self.engines_started:
            self.engines_started = self.ray.gate_open(self.wanted_in_ray(now), now)
        self._let_go(now)
        places: dict[str, list[ReplicaBinding]] = {}
        kill: dict[str, list[str]] = {}
        if self.engines_started and not self.stopping:
            for replica in self.replicas.values():
                if replica.resting is not None:
                    continue
                if replica.gang is not None and replica.gang.failure is not None:
                    for name in replica.binding.nodes:
                        kill.setdefault(name, []).append(replica.id)
                    continue
                if replica.leaving is not None and replica.leaving.is_unwanted(now):
                    continue
                for part in processes_of(replica.binding, replica.model):
                    places.setdefault(part.node, []).append(part)
                for place in replica.others():
                    places.setdefault(place.node, []).append(place)
        return [
            node.name
            for node in self.members.known()
            if self.book.set(
                node.name,
                ray=None if self.stopping or self._is_out(node) else self.ray.target,
                engines=places.get(node.name, ()),
                stop=self.stopping,
                grace_s=self.grace_s,
                kill=kill.get(node.name, ()),
            )
        ]

    def _let_go(self, now: float) -> None:
        """Note which replicas have left their places."""
        joined = {node.name for node in self.members.joined(now)}
        for replica in self.replicas.values():
            leaving = replica.leaving
            if leaving is None or not leaving.look(now, joined):
                continue
            if leaving.then == "yield":
                replica.has_left()
                for name in leaving.nodes:
                    self.pressure.relieved(name, now)

    def _is_out(self, node: Node) -> bool:
        """Whether a node carries nothing, not even Ray (the head carries its Ray all the same)."""
        if node is self.members.head:
            return False
        if node.name in self.members.drained:
            return not any(
                node.name in place.nodes
                for replica in self.replicas.values()
                for place in (replica.binding, *replica.others())
            )
        return self.members.excluded(node) is not None

    def silent_replicas(self, now: float) -> list[Replica]:
        """Replicas on nodes whose agent says nothing any more; their engines may still serve."""
        if not self.engines_started:
            return []
        return [
            replica
            for replica in self.replicas.values()
            if self.silent_node(replica, now) is not None
        ]

    def silent_node(self, replica: Replica, now: float) -> str | None:
        """The first node of a replica whose agent says nothing."""
        for name in replica.binding.nodes:
            node = self.members.nodes.get(name)
            if node is not None and node.age_s(now) > SILENT_AFTER_S:
                return name
        return None

    def canaries_due(self, now: float) -> list[Replica]:
        """Replicas to send a real request now."""
        every = [*self.replicas.values(), *self._successors()]
        return [replica for replica in every if replica.wants_canary(now)]

    def _successors(self) -> list[Replica]:
        found = (replica.successor for replica in self.replicas.values())
        return [successor for successor in found if successor is not None]

    def _all_ready(self) -> bool:
        wanted = [replica for replica in self._wanted() if replica.resting is None]
        return bool(wanted) and all(replica.state == "ready" for replica in wanted)

    def _note_reserve(self) -> None:
        for replica in self.replicas.values():
            node = self.members.nodes.get(replica.binding.node)
            if replica.phases.reserve_s is None and node is not None and node.report is not None:
                # Two hosts' clocks: a small negative difference means "at once".
                seconds = max(0.0, node.report.started_s - self._submitted_s)
                replica.phases = dataclasses.replace(replica.phases, reserve_s=seconds)

    def wanted(self, model: str, shard: str) -> int:
        """How many replicas of a shard this cell shall run."""
        planned = sum(
            item.count
            for item in self.cell.replica_sets
            if (item.model, item.shard) == (model, shard)
        )
        if self.targets is None:
            return planned
        return min(planned, self.targets.get(f"{model}:{shard}", planned))

    def _wanted(self) -> list[Replica]:
        """The replicas without those that leave for good."""
        return [
            replica
            for replica in self.replicas.values()
            if replica.leaving is None or replica.leaving.then != "go"
        ]

    # -- what goes out

    def hopeless(self, now: float) -> str | None:
        """Why the cell cannot start: it is too late, and there are too few nodes."""
        return self.members.hopeless(now) if self.binding is None else None

    def phase(self, now: float) -> Phase:
        """How far the cell is."""
        if self.failure or self.hopeless(now):
            return "failed"
        if self.stopping:
            return "stopping"
        if self.binding is None:
            return "nodes"
        if not self.engines_started:
            return "ray"
        states = [replica.state for replica in self._wanted()]
        if all(state == "ready" for state in states):
            return "serving"
        if self._served_once or ("failed" in states and "ready" in states):
            return "degraded"
        return "engines"

    def cause(self, now: float) -> str | None:
        """The first cause of what is wrong, in the order of bring-up."""
        if self.failure or self.stopping:
            return self.failure
        hopeless = self.hopeless(now)
        if hopeless is not None:
            return hopeless
        problem = self.members.problem(now)
        if problem is not None:
            return problem
        for replica in self.replicas.values():
            if replica.cause is not None:
                return f"{replica.id} on {replica.binding.node}: {replica.cause}"
        return self.ray.cause if self.binding is not None and not self.engines_started else None

    def state(self, now: float, seq: int) -> CellState:
        """The answer to ``GET /v1/state``."""
        return CellState(
            deployment=self.plan.deployment,
            cell=self.cell.name,
            plan_hash=self.plan.hash,
            job_id=self.marker.job_id,
            seq=seq,
            phase=self.phase(now),
            cause=self.cause(now),
            nodes=self.members.states(now),
            ray=self.ray.state(self.wanted_in_ray(now), now),
            replicas=tuple(replica.status(self._facts) for replica in self.replicas.values()),
            notes=(
                *self.members.exclusions(),
                *self.members.differences(),
                *(self.binding.notes if self.binding else ()),
                *self._moved_far(),
                *self._relays(),
                *self._at_rest(),
                *self._off_plan(),
                *self._warnings(now),
            ),
            targets=self.targets,
        )

    def _facts(self, node: str) -> NodeFacts | None:
        member = self.members.nodes.get(node)
        return member.report.facts if member is not None and member.report is not None else None

    def _relays(self) -> list[str]:
        """Replicas that come up elsewhere while they still serve where they are."""
        return [
            f"{replica.id} serves on {replica.binding.node} until it does on "
            f"{replica.successor.binding.node}"
            for replica in self.replicas.values()
            if replica.successor is not None
        ]

    def _at_rest(self) -> list[str]:
        """Replicas that are down for a while, and why."""
        return [
            f"{replica.id}: {replica.resting}"
            for replica in self.replicas.values()
            if replica.resting is not None
        ]

    def _moved_far(self) -> list[str]:
        """Replicas whose new place is not as near as it should be; of the first places the
        binding has told."""
        told = {item.id: item.remark for item in self.binding.replicas} if self.binding else {}
        return [
            f"{replica.binding.node}: {replica.id}: {replica.binding.remark}"
            for replica in self.replicas.values()
            if replica.binding.remark not in (None, told.get(replica.id))
        ]

    def _off_plan(self) -> list[str]:
        """Replicas whose processes are not where they were planned to be."""
        return [
            f"{status.id} on {status.node} is not where it was planned to be: {status.off_plan}"
            for whole in (replica.status() for replica in self.replicas.values())
            for status in whole.parts or (whole,)
            if status.off_plan is not None
        ]

    def _warnings(self, now: float) -> list[str]:
        """What will come of the nodes that are silent."""
        if self.plan.layout != "het" or not self.engines_started:
            return []
        # Slurm 22.05 and 24.11 look at every component when a node of any is down, and end those
        # of one node in spite of --no-kill; without its head the rest of the job ends too.
        return [
            f"Slurm will end this heterogeneous job when it calls {node.name} down"
            for node in self.members.known()
            if node.age_s(now) > SILENT_AFTER_S
        ]

    def record(self, state_url: str) -> CellRecord:
        """What the registry shall say, with ``seq`` 0: the publisher counts."""
        return CellRecord(
            deployment=self.plan.deployment,
            cell=self.cell.name,
            generation=self.generation,
            plan_hash=self.plan.hash,
            job_id=self.marker.job_id,
            seq=0,
            lease_s=LEASE_S,
            state_url=state_url,
            replicas=tuple(
                replica.record(self._labels(replica.binding.node))
                for replica in self.replicas.values()
            ),
        )

    def _labels(self, node: str) -> dict[str, str]:
        """What routers shall know of a node: a retry goes to another switch."""
        known = self.members.nodes.get(node)
        switch = known.report.facts.switch if known and known.report else None
        return {"switch": switch} if switch else {}

    def memory(self, now: float) -> ControllerMemory:
        """What the next controller of this job must know."""
        return ControllerMemory(
            started_s=self.marker.started_s,
            ray_epoch=self.ray.epoch,
            ray_seconds=self.ray.seconds,
            replicas={replica.id: replica.memory(now) for replica in self.replicas.values()},
            drained=dict(self.members.drained),
            targets=self.targets,
        )
