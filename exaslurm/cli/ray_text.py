"""What a cell's Ray lacks, and why, for a person."""

from __future__ import annotations

from exaslurm.core.cell import NodeState
from exaslurm.status.model import CellStatus


def ray_lines(cell: CellStatus) -> list[str]:
    """Sentences on a Ray that is not complete though the cell serves; nothing while it comes up, or
    where all is well: replicas need no Ray, users of it do."""
    ray = cell.ray
    if ray is None or ray.state in ("off", "complete") or cell.phase not in ("ready", "degraded"):
        return []
    lines = [
        f"Ray has {ray.nodes_alive} of {ray.nodes_wanted} nodes ({ray.state})"
        + (f": {ray.cause}" if ray.cause else "")
    ]
    return lines + [f"Ray on {node.node}: {_why(node)}" for node in cell.nodes if _lacks(node)]


def _lacks(node: NodeState) -> bool:
    return node.ray is not None and node.ray.state in ("starting", "failed")


def _why(node: NodeState) -> str:
    assert node.ray is not None
    return node.ray.cause or f"{node.ray.state}, its log is {node.node}.ray.log"
