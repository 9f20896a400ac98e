"""What the node adds to a replica's plan and binding before its engine can start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from exaslurm.core.facts import GpuFact
from exaslurm.core.topology import UNKNOWN, Hca, NodeTopology


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginePlace:
    """``log`` is the file that the engine writes, on the node; ``shown_log`` is where people find
    it (None: there). ``interface`` is the network interface that has the replica's address (None:
    unknown); ``key_file`` holds the deployment's internal key; ``hcas`` are the node's network
    devices; ``ray_env`` leads to the cell's Ray (empty where there is none); ``topology`` is the
    node's, ``gpus`` are those that Slurm granted, and ``numactl`` says whether that program is
    there."""

    node_dir: Path
    log: Path
    key_file: Path
    interface: str | None
    hcas: tuple[Hca, ...] = ()
    ray_env: Mapping[str, str] = field(default_factory=dict)
    topology: NodeTopology = UNKNOWN
    gpus: tuple[GpuFact, ...] = ()
    numactl: bool = False
    shown_log: Path | None = None
