"""The site and the deployment of a simulation, as files."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

_SITE = """\
schema: exaslurm/site/v1
name: simulated
description: Nodes that a simulation makes up
slurm: {{hetjobs: false, memory: per_node, poll_floor_s: 5, ray: {{enabled: false}}}}
node_kinds:
  plain:
    partition: plain
    cpus: 16
    mem_gib: 64
    device: cpu
    per_replica: {{cores: 2, mem_gib: 8}}
partitions:
  plain: {{max_time: 30-00:00:00}}
head: {{kind: plain, cpus: 1, mem_gib: 4}}
workers: {{kind: plain}}
interface: loopback
storage: {{state: {state}, shared: {state}, ram: /tmp}}
python: {python}
limits: {{default_time: 7-00:00:00}}
gateway: {{homes: [service], background: false}}
timeouts: {{nodes_s: 180, stage_s: 120, ready_s: 180, drain_s: 30, ray_s: 60}}
"""

_SPEC = """\
schema: exaslurm/v1
deployment: soak
site: simulated
workers: {{nodes: {nodes}, nodes_per_cell: {per_cell}, min_nodes: {least}}}
gateway: {{home: service, workers: 2}}
models:
  - name: pretend
    engine:
      kind: simulated
      args: {{load-s: {load_s}, decode-tokens-per-s: 100, max-num-seqs: 64}}
    max_replicas_per_node: 4
    shards: [{{name: base, replicas: {replicas}}}]
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How large the simulated cluster is. ``cells`` of ``per_cell`` nodes each; what is left of
    ``nodes`` is for successors. ``load_s``: what loading the weights would take."""

    nodes: int = 64
    cells: int = 8
    per_cell: int = 7
    replicas_per_node: int = 2
    load_s: float = 20.0

    @property
    def replicas(self) -> int:
        return self.cells * self.per_cell * self.replicas_per_node

    def names(self) -> list[str]:
        return [f"s{number:03}" for number in range(1, self.nodes + 1)]

    def site(self, state: Path) -> str:
        return _SITE.format(state=state, python=sys.executable)

    def spec(self) -> str:
        least = max(1, self.per_cell - 2)
        return _SPEC.format(
            nodes=self.cells * self.per_cell,
            per_cell=self.per_cell,
            least=self.cells * least,
            replicas=self.replicas,
            load_s=self.load_s,
        )
