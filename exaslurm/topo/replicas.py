"""Which parts of a node belong to which replica, for the pictures of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from exaslurm.core.binding import CellBinding, ReplicaBinding
from exaslurm.core.topology import NodeTopology
from exaslurm.errors import UserError


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedReplica:
    """A replica on this node. ``gpus`` are places in ``NodeTopology.gpus``, ``ports`` are
    ``device:port``. Where it is not pinned, its ``cpus`` are others' too."""

    id: str
    shard: str
    cpus: tuple[int, ...]
    pinned: bool
    gpus: tuple[int, ...]
    ports: tuple[str, ...]

    @property
    def hcas(self) -> tuple[str, ...]:
        """The devices of its ports."""
        return tuple(port.rpartition(":")[0] or port for port in self.ports)


def replicas_on(
    binding: CellBinding, node: str | None, topology: NodeTopology
) -> tuple[PlacedReplica, ...]:
    """The replicas that the binding has on ``node`` (None: the topology's own host, or the only
    node there is). Raises UserError naming the nodes there are."""
    nodes = list(
        dict.fromkeys(part.node for replica in binding.replicas for part in replica.parts())
    )
    name = node or (topology.host if topology.host in nodes else None)
    if name is None and len(nodes) == 1:
        name = nodes[0]
    if name is None or name not in nodes:
        wanted = "which node" if name is None else f"no replica on node {name!r}"
        raise UserError(
            f"binding of cell {binding.cell}: {wanted}; it has {', '.join(nodes) or 'none'}",
            remedy="choose one with --node NAME",
        )
    parts = (part for replica in binding.replicas for part in replica.parts())
    return tuple(_placed(part, topology) for part in parts if part.node == name)


def _placed(replica: ReplicaBinding, topology: NodeTopology) -> PlacedReplica:
    return PlacedReplica(
        id=replica.id,
        shard=f"{replica.model}/{replica.shard}",
        cpus=replica.cores,
        pinned=replica.pinned,
        gpus=tuple(_places(replica.gpus, topology)),
        ports=tuple(replica.hca.split(",")) if replica.hca else (),
    )


def _places(ids: Iterable[str], topology: NodeTopology) -> Iterable[int]:
    """A number counts the node's GPUs, as on a node that is not shared; a UUID is itself."""
    for name in ids:
        for place, gpu in enumerate(topology.gpus):
            by_uuid = not name.isdigit() and (gpu.uuid or "").startswith(name)
            if by_uuid or (name.isdigit() and place == int(name)):
                yield place
                break
