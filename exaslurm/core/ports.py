"""Ports of a cell: blocks by job, fixed offsets in a block.

Two jobs on one node must not collide, and a kernel must not hand one of our ports to somebody's
outgoing connection, so ports come in blocks below the ephemeral range; the first block tried is
the leader's job id modulo the number of blocks, the next one after a failed bind.
"""

from __future__ import annotations

from exaslurm.core.plan import PortPolicy

CONTROLLER = 0
RAY_GCS = 1
RAY_NODE_MANAGER = 2
RAY_OBJECT_MANAGER = 3
RAY_DASHBOARD_AGENT_HTTP = 4
RAY_DASHBOARD_AGENT_GRPC = 5
RAY_RUNTIME_ENV_AGENT = 6
RAY_METRICS_EXPORT = 7
RAY_CLIENT_SERVER = 8
RAY_DASHBOARD = 9
AGENT = 10
ENGINES = 20
ENGINE_STRIDE = 4
# Of an engine over several nodes: where its processes meet, on the node of rank 0.
GANG_OFFSET = 1
MAX_ENGINES = 40
RAY_WORKERS_FIRST = 200
RAY_WORKERS_LAST = 449


def block_base(policy: PortPolicy, job_id: int, attempt: int = 0) -> int:
    """First port of the ``attempt``-th block to try for a job."""
    blocks = max(1, (policy.last - policy.first + 1) // policy.block)
    return policy.first + ((job_id + attempt) % blocks) * policy.block


def engine_port(base: int, slot: int) -> int:
    """HTTP port of the engine in a node's slot; the next three belong to it too."""
    if not 0 <= slot < MAX_ENGINES:
        raise ValueError(f"slot {slot} is outside 0..{MAX_ENGINES - 1}")
    return base + ENGINES + slot * ENGINE_STRIDE
