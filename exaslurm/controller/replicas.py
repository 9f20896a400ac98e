"""What each replica is for clients, from what its agent says and what the canary found. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from exaslurm.controller.gangs import Gang
from exaslurm.controller.leaving import LEARN_S, Leaving, Then
from exaslurm.controller.memory import LeavingMemory, ReplicaMemory
from exaslurm.core.binding import ReplicaBinding
from exaslurm.core.cell import (
    EnginePhase,
    EngineStatus,
    PhaseTimes,
    ReplicaRecord,
    ReplicaState,
    ReplicaStatus,
)
from exaslurm.core.facts import NodeFacts
from exaslurm.core.plan import ModelPlan, Plan, ShardPlan, TimeoutPlan
from exaslurm.core.versions import version_of

# An engine that ended this often without having served in between is tried on another node.
MAX_FAILURES = 4
CANARY_PAUSE_S = 2.0
# One that has served so long since it came back has not come back in vain.
_LASTED_S = 3600.0

_STATES: dict[EnginePhase, ReplicaState] = {
    "waiting": "pending",
    "staging": "staging",
    "loading": "loading",
    "healthy": "warming",
    "failed": "failed",
    "stopping": "draining",
    "stopped": "stopped",
}

Process = tuple[int, int]


@dataclass(slots=True)
class Replica:
    """One replica of the cell. ``verified`` is the process that answered a canary; ``presumed``
    one that answered an earlier controller's. ``trusted_until_s`` is how long it counts as ready
    without a word from its node, after this controller's start. ``gang``: it runs on several
    nodes, and ``engine`` is the whole of it. ``leaving``: it is on its way out of its place;
    ``resting``: it is down until a node has memory for it, and that is why (``returns``: how often
    it was back in vain). ``successor``: one of the
    same name that comes up elsewhere to take its place; ``relieved``: the place of the one that it
    took over from, and when. Times are monotonic seconds."""

    binding: ReplicaBinding
    model: ModelPlan
    shard: ShardPlan
    version: str = ""
    phases: PhaseTimes = field(default_factory=PhaseTimes)
    engine: EngineStatus | None = None
    verified: Process | None = None
    presumed: Process | None = None
    trusted_until_s: float | None = None
    healthy_s: float | None = None
    ready_s: float | None = None
    canary_due_s: float = 0.0
    canary_runs: bool = False
    canary_cause: str | None = None
    unreachable: str | None = None
    draining: bool = False
    late: str | None = None
    state_seen: tuple[ReplicaState, float] = ("pending", 0.0)
    failures_forgiven: int = 0
    failed_on: frozenset[str] = frozenset()
    failed_places: tuple[ReplicaBinding, ...] = ()
    gang: Gang | None = None
    leaving: Leaving | None = None
    resting: str | None = None
    returns: int = 0
    mem_mib: int = 0
    successor: Replica | None = None
    succeeded_since_s: float = 0.0
    relay_failed: bool = False
    relieved: tuple[ReplicaBinding, float] | None = None

    @property
    def id(self) -> str:
        return self.binding.id

    @property
    def url(self) -> str:
        """The advertised address of the engine."""
        host = self.binding.address
        return (
            f"http://[{host}]:{self.binding.port}"
            if ":" in host
            else (f"http://{host}:{self.binding.port}")
        )

    @property
    def process(self) -> Process | None:
        """The engine's process, if it has one."""
        if self.engine is None or self.engine.pid is None or self.engine.start_ticks is None:
            return None
        return self.engine.pid, self.engine.start_ticks

    @property
    def requests(self) -> int:
        """Requests that its engine is at, as far as it is known."""
        load = self.engine.load if self.engine is not None else None
        return load.running + load.waiting if load is not None else 0

    @property
    def size_mib(self) -> int:
        """Memory that it needs on its node: the most that was seen, or what was planned."""
        return self.mem_mib or round(self.model.slot.mem_gib * 1024)

    @property
    def failures(self) -> int:
        """How often the engine ended since it last served."""
        return max(0, (self.engine.restarts if self.engine else 0) - self.failures_forgiven)

    @property
    def is_healthy(self) -> bool:
        """Whether its agent gets 200 from /health."""
        return self.engine is not None and self.engine.phase == "healthy"

    def on_engine(self, status: EngineStatus, now: float) -> None:
        """What the agent says about the engine."""
        before = self.process
        was_healthy = self.is_healthy
        self.engine = status
        self.mem_mib = max(self.mem_mib, status.mem_mib or 0)
        self.unreachable = None
        self.trusted_until_s = None
        stage_s, load_s = status.stage_s, status.load_s
        self.phases = dataclasses.replace(
            self.phases,
            stage_s=self.phases.stage_s if stage_s is None else stage_s,
            load_s=self.phases.load_s if load_s is None else load_s,
        )
        if self.is_healthy and (not was_healthy or self.process != before):
            self.healthy_s = now
            self.canary_due_s = now
            self.canary_cause = None

    def wants_canary(self, now: float) -> bool:
        """Whether a real request is due."""
        return (
            self.is_healthy
            and not self.canary_runs
            and not self.draining
            and self.leaving is None
            and self.process is not None
            and self.process != self.verified
            and now >= self.canary_due_s
        )

    def on_canary(self, process: Process, cause: str | None, now: float) -> None:
        """The end of a canary: ``cause`` is None if the process answered."""
        self.canary_runs = False
        if process != self.process or not self.is_healthy:
            return
        self.presumed = None
        self.canary_cause = cause
        if cause is not None:
            self.canary_due_s = now + CANARY_PAUSE_S
            return
        self.verified = process
        self.ready_s = now
        self.failures_forgiven = self.engine.restarts if self.engine else 0
        self.failed_on, self.failed_places = frozenset(), ()
        if self.phases.warm_up_s is None and self.healthy_s is not None:
            self.phases = dataclasses.replace(self.phases, warm_up_s=now - self.healthy_s)

    def on_published(self, now: float) -> None:
        """A record that calls it ready is in the registry."""
        if self.phases.register_s is None and self.ready_s is not None:
            self.phases = dataclasses.replace(self.phases, register_s=now - self.ready_s)

    @property
    def state(self) -> ReplicaState:
        """What it is for clients."""
        if self.resting is not None:
            return "stopped"
        if self.draining:
            return "draining"
        if self.leaving is not None:
            return "pending" if self.leaving.over else "draining"
        if self.unreachable is not None:
            return "failed"
        if self.engine is None:
            return "ready" if self.trusted_until_s is not None else "pending"
        answered = self.process is not None and self.process in (self.verified, self.presumed)
        if self.is_healthy and answered:
            return "ready"
        return _STATES[self.engine.phase]

    @property
    def cause(self) -> str | None:
        """Why it is not ready, if there is a reason other than time."""
        if self.leaving is not None or self.resting is not None:
            return self.leaving.reason if self.leaving is not None else self.resting
        if self.unreachable is not None:
            return self.unreachable
        if self.engine is not None and self.engine.cause and not self.is_healthy:
            return self.engine.cause
        return (self.canary_cause if self.state == "warming" else None) or self.late

    def recall(self, process: Process | None, phases: PhaseTimes, trusted_until_s: float) -> None:
        """What an earlier controller knew."""
        self.phases = phases
        self.presumed = process
        self.trusted_until_s = trusted_until_s if process is not None else None

    def tick(self, now: float, timeouts: TimeoutPlan) -> None:
        """Time passes."""
        if self.trusted_until_s is not None and now >= self.trusted_until_s:
            self.trusted_until_s = None
        state, since_s = self.state_seen
        if state != self.state:
            self.state_seen = state, since_s = self.state, now
        limit_s = timeouts.stage_s if state == "staging" else timeouts.ready_s
        self.late = None
        if state in ("staging", "loading", "warming") and now - since_s > limit_s:
            self.late = (
                f"{state} since {now - since_s:.0f} s, it should take {limit_s:.0f} s at most"
            )

    def on_gang(self, now: float) -> None:
        """Something has become known of a part: what it means for the whole."""
        if self.gang is None:
            return
        self.binding = self.gang.binding
        status = self.gang.status()
        if status is not None:
            self.on_engine(status, now)

    def begin_gang(self, now: float) -> None:
        """Start all parts again, where they were."""
        if self.gang is not None:
            self.gang.begin(self.gang.binding, now)
            self.engine = None

    def others(self) -> list[ReplicaBinding]:
        """Where engines of its name run besides its own place: its successor, and the one that it
        has relieved."""
        found = [] if self.successor is None else [self.successor.binding]
        return found if self.relieved is None else [*found, self.relieved[0]]

    def leave(self, reason: str, now: float, then: Then = "move") -> None:
        """Drain, and end. One that leaves already does so for the reason that came first."""
        if self.leaving is None and self.resting is None:
            # Of one that does not serve there is nothing for routers to learn.
            since_s = now if self.state == "ready" else now - LEARN_S
            nodes = self.binding.nodes
            self.leaving = Leaving(reason=reason, nodes=nodes, since_s=since_s, then=then)
            self.successor = None
            if self.ready_s is not None and now - self.ready_s > _LASTED_S:
                self.returns = 0

    def resume(self, memory: ReplicaMemory, now: float) -> None:
        """Leave, or rest, as an earlier controller had it."""
        self.resting = memory.resting
        self.returns = memory.returns
        if memory.leaving is not None:
            self.leave(memory.leaving.reason, now, memory.leaving.then)
            if self.leaving is not None and memory.leaving.unwanted:
                self.leaving.since_s = now - LEARN_S

    def memory(self, now: float) -> ReplicaMemory:
        """What the next controller of this job must know of it."""
        leaving = None
        if self.leaving is not None:
            leaving = LeavingMemory(
                reason=self.leaving.reason,
                then=self.leaving.then,
                unwanted=self.leaving.is_unwanted(now),
            )
        return ReplicaMemory(
            process=self.verified or self.presumed,
            phases=self.phases,
            leaving=leaving,
            resting=self.resting,
            returns=self.returns,
        )

    def has_left(self) -> None:
        """Nothing of it is left where it was, and it shall rest."""
        if self.leaving is not None:
            self.resting = self.leaving.reason
            self.leaving = None
            self._forget_engine()

    def move(self, binding: ReplicaBinding, now: float = 0.0) -> None:
        """Start anew in another place, or in the same one after it has left that."""
        if self.gang is not None:
            if self.gang.failed_node is not None:
                self.failed_on |= {self.gang.failed_node}
            attempt = self.gang.binding.attempt + (self.gang.failure is None)
            binding = dataclasses.replace(binding, attempt=attempt)
            self.gang.begin(binding, now)
        elif self.unreachable is None and self.leaving is None and self.resting is None:
            self.failed_on |= {self.binding.node}
            self.failed_places = (*self.failed_places, self.binding)
        self.binding = binding
        self.returns += self.resting is not None
        self.leaving = self.resting = self.successor = None
        self.relay_failed = False
        self.failures_forgiven = binding.attempt
        self._forget_engine()

    def _forget_engine(self) -> None:
        """Whatever engine there is next is another one."""
        self.engine = None
        self.verified = self.presumed = self.trusted_until_s = None
        self.healthy_s = self.ready_s = None
        self.canary_cause = self.unreachable = None
        self.canary_runs = False
        self.phases = PhaseTimes(reserve_s=self.phases.reserve_s)

    def status(self, facts_of: Callable[[str], NodeFacts | None] = lambda _: None) -> ReplicaStatus:
        """For ``CellState``; ``facts_of`` gives those of a node."""
        whole = self._status(self.binding, self.engine, facts_of(self.binding.node))
        if self.gang is None:
            return whole
        parts = tuple(
            self._status(part, self.gang.part(part.node), facts_of(part.node))
            for part in self.binding.parts()
        )
        return dataclasses.replace(whole, parts=parts)

    def _status(
        self, binding: ReplicaBinding, engine: EngineStatus | None, facts: NodeFacts | None
    ) -> ReplicaStatus:
        return ReplicaStatus(
            id=self.id,
            model=binding.model,
            shard=binding.shard,
            served_names=self.shard.served_names,
            state=self.state,
            node=binding.node,
            nodes=binding.nodes,
            url=self.url,
            restarts=self.engine.restarts if self.engine else 0,
            cause=self.cause,
            phases=self.phases,
            max_model_len=engine.max_model_len if engine else None,
            load=engine.load if engine else None,
            cores=binding.cores,
            cores_actual=engine.cpus_actual if engine else None,
            gpus=binding.gpus,
            pid=engine.pid if engine else None,
            simulated=self.model.engine.kind == "simulated",
            pinned=binding.pinned,
            cores_granted=facts.cpus if facts else (),
            gpus_granted=tuple(gpu.visible_id for gpu in facts.gpus) if facts else (),
            mem_nodes=binding.mem_nodes,
            mem_nodes_actual=engine.mems_actual if engine else None,
            hca=binding.hca,
            remark=binding.remark,
            off_plan=engine.off_plan if engine else None,
            version=self.version,
        )

    def record(self, labels: Mapping[str, str]) -> ReplicaRecord:
        """For the registry; ``labels`` are those of its node."""
        return ReplicaRecord(
            id=self.id,
            model=self.binding.model,
            shard=self.binding.shard,
            served_names=self.shard.served_names,
            url=self.url,
            node=self.binding.node,
            ready=self.state == "ready",
            max_model_len=self.engine.max_model_len if self.engine else None,
            weight=self.shard.weight,
            priority=self.shard.priority,
            simulated=self.model.engine.kind == "simulated",
            labels=labels,
            version=self.version,
        )


def make_replica(plan: Plan, binding: ReplicaBinding) -> Replica:
    """A replica that has not started; KeyError if the plan lacks its model or shard."""
    model = plan.model(binding.model)
    for shard in model.shards:
        if shard.name == binding.shard:
            gang = Gang(binding) if binding.ranks else None
            version = version_of(plan, model.name, shard.name)
            return Replica(binding, model, shard, version, gang=gang)
    raise KeyError(binding.shard)
