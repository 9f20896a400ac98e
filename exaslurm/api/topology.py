"""The topology of a node, and pictures of it."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from exaslurm.errors import StateError, UserError

if TYPE_CHECKING:
    from exaslurm.core.topology import NodeTopology
    from exaslurm.topo.replicas import PlacedReplica


@dataclass(frozen=True, slots=True, kw_only=True)
class Granted:
    """What of this machine the process may use: logical CPUs, places of GPUs (None: no driver
    tells)."""

    cpus: tuple[int, ...]
    gpus: tuple[int, ...] | None


def load_topology(source: Path) -> NodeTopology:
    """What ``source`` holds (see ``read_any``). Raises UserError."""
    from exaslurm.topo.source import read_any

    return read_any(source)


def this_machine() -> tuple[NodeTopology, Granted]:
    """The machine, and what of it this process may use."""
    from exaslurm.topo.node import read_node

    found = read_node(host=socket.gethostname().partition(".")[0])
    topology = found.topology
    mine = found.accessible
    gpus = None
    if mine is not None:
        gpus = tuple(place for place, gpu in enumerate(topology.gpus) if gpu in mine)
    return topology, Granted(cpus=tuple(sorted(os.sched_getaffinity(0))), gpus=gpus)


def load_binding(path: Path, node: str | None, topology: NodeTopology) -> tuple[PlacedReplica, ...]:
    """The replicas of one node of a ``binding.json``. Raises UserError."""
    from exaslurm.core.binding import CellBinding
    from exaslurm.core.codec import loads
    from exaslurm.topo.replicas import replicas_on

    try:
        binding = loads(CellBinding, path.read_bytes(), where=str(path))
    except OSError as error:
        raise UserError(
            f"cannot read {path}",
            remedy="give the binding.json of a cell, in cells/<cell> of the run directory",
        ) from error
    except StateError as error:
        raise UserError(str(error), remedy="give the binding.json of a cell") from error
    return replicas_on(binding, node, topology)


def write_png(svg: str, path: Path) -> None:
    """Raises UserError where the library for it is not installed."""
    try:
        import cairosvg
    except (ImportError, OSError) as error:  # OSError: the package without the C library
        raise UserError(
            f"cannot draw a PNG: {error}",
            remedy="pip install 'exaslurm[picture]' (and the system's cairo), or use --svg",
        ) from error
    cairosvg.svg2png(bytestring=svg.encode(), write_to=str(path))
