"""Whether a deployment is back at full strength after a fault. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from exaslurm.chaos.kinds import Kind
from exaslurm.chaos.victims import Victim
from exaslurm.status.model import DeploymentStatus

# What of a part of a cell is looked at besides replicas: the processes that are to come back.
PARTS: Mapping[str, tuple[str, ...]] = {
    "kill-agent": ("agent",),
    "kill-controller": ("controller",),
    "kill-ray": ("ray",),
    "kill-head": ("agent", "controller", "ray"),
    "skew-clock": ("agent",),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Before:
    """The deployment before the fault: its status, who was hit, and the processes (pid by name)
    that a fault ends and that are to come back as others."""

    kind: Kind
    status: DeploymentStatus
    victims: tuple[Victim, ...]
    processes: Mapping[str, int] = field(default_factory=dict)

    def missing(
        self, now: DeploymentStatus, processes: Mapping[str, int], *, held: bool
    ) -> str | None:
        """What is not as before, in a few words; None: full strength. ``processes`` are those that
        run now; ``held``: the fault is not mended yet."""
        if now.replicas_ready < self.status.replicas_ready:
            return f"{now.replicas_ready} of {self.status.replicas_ready} replicas are ready"
        for cell in now.cells:
            if cell.source != "controller" and cell.replicas_ready:
                return f"the controller of {cell.name} gives no answer"
        gone = {victim.node for victim in self.victims}
        away = self.kind.name == "kill-node" or (self.kind.name == "cut-link" and held)
        if away and any(replica.node in gone for cell in now.cells for replica in cell.replicas):
            return "replicas are still said to be on the lost nodes"
        if self.kind.hits == "cell" and any(
            cell.name == victim.cell for cell in now.cells for victim in self.victims
        ):
            return f"{self.victims[0].cell} is still there"
        ended = self.kind.name == "kill-engine" or (self.kind.name == "hang-engine" and held)
        if ended and _same_engine(now, self.victims[0]):
            return f"{self.victims[0].replica} is the same process still"
        for name, pid in self.processes.items():
            if processes.get(name, pid) == pid:
                return f"no other {name} runs yet"
        return self._ray(now)

    def _ray(self, now: DeploymentStatus) -> str | None:
        """Ray of every cell that had all of it, but for nodes that are lost."""
        if self.kind.name in ("kill-node", "cut-link"):
            return None
        for cell in self.status.cells:
            if cell.ray is None or cell.ray.state != "complete":
                continue
            later = next((item for item in now.cells if item.name == cell.name), None)
            if later is not None and (later.ray is None or later.ray.state != "complete"):
                return f"Ray of {cell.name} is not complete"
            if later is not None and self.kind.name in ("kill-ray", "kill-head"):
                assert later.ray is not None
                if later.ray.epoch <= cell.ray.epoch:
                    return f"Ray of {cell.name} is the one that was killed"
        return None


def _same_engine(now: DeploymentStatus, victim: Victim) -> bool:
    return any(
        replica.id == victim.replica and replica.pid == victim.pid
        for cell in now.cells
        for replica in cell.replicas
    )


def engines_of(status: DeploymentStatus) -> dict[str, tuple[str, int | None]]:
    """Node and pid of every replica's engine, by replica."""
    return {
        replica.id: (replica.node, replica.pid)
        for cell in status.cells
        for replica in cell.replicas
    }


def same_engines(before: DeploymentStatus, after: DeploymentStatus) -> tuple[int, int]:
    """How many engines are the same processes, and how many are others or gone."""
    was, now = engines_of(before), engines_of(after)
    same = sum(now.get(key) == value for key, value in was.items())
    return same, len(was) - same
