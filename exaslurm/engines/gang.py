"""Options and environment of an engine that runs on several nodes.

vLLM 0.32 knows two ways. ``mp``: the same command on each node, which meet at an address of rank 0
(``--nnodes``); all but rank 0 are headless and have no HTTP surface. ``ray``: one command, and Ray
starts the workers; vLLM refuses it on CPUs.
"""

from __future__ import annotations

from exaslurm.core.binding import ReplicaBinding
from exaslurm.core.plan import ModelPlan
from exaslurm.core.ports import GANG_OFFSET
from exaslurm.engines.place import EnginePlace
from exaslurm.errors import ReplicaError

# Given by the binding; a second value would contradict it.
MANAGED = frozenset({"--nnodes", "--node-rank", "--master-addr", "--master-port", "--headless"})
BACKEND = "--distributed-executor-backend"


def gang_argv(replica: ReplicaBinding, model: ModelPlan) -> list[str]:
    """What a part of a replica over several nodes is told; nothing for one on one node."""
    if not replica.ranks:
        return []
    argv = [BACKEND, model.executor]
    if model.executor == "ray":
        return argv
    first = replica.ranks[0]
    argv += [
        *("--nnodes", str(len(replica.ranks)), "--node-rank", str(replica.rank)),
        *("--master-addr", first.address, "--master-port", str(first.port + GANG_OFFSET)),
    ]
    return argv if replica.rank == 0 else [*argv, "--headless"]


def gang_env(model: ModelPlan, place: EnginePlace) -> dict[str, str]:
    """The way to the cell's Ray for an engine whose workers Ray starts; ReplicaError without."""
    if model.nodes == 1 or model.executor != "ray":
        return {}
    if not place.ray_env:
        raise ReplicaError(
            f"model {model.name!r} is run by vLLM's Ray executor, and the cell has no Ray (yet)",
            remedy="see `status` for what Ray does, or use parallel: {executor: mp}",
        )
    return dict(place.ray_env)


def internal_port(replica: ReplicaBinding) -> int:
    """The first of the ports that an engine may use within itself: vLLM counts on from there if
    one is taken, so the port where ranks meet comes before it."""
    return replica.port + GANG_OFFSET + (1 if replica.ranks else 0)
