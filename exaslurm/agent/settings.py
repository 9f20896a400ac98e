"""What an agent is told when it starts."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from exaslurm.core import ports
from exaslurm.core.codec import loads
from exaslurm.core.plan import CellPlan, ComponentPlan, Plan
from exaslurm.errors import StateError
from exaslurm.rundir import GenerationDir, RunDir
from exaslurm.util.files import read_text


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Intervals and limits in seconds. An engine that was healthy is ended and started again when
    its /health gives no answer for ``hung_s``, or when it has had requests for ``stall_s`` and has
    shown no sign of work."""

    probe_s: float = 0.5
    watch_s: float = 2.0
    scrape_s: float = 5.0
    report_s: float = 5.0
    hung_s: float = 60.0
    stall_s: float = 120.0
    probe_timeout_s: float = 10.0
    restart_min_s: float = 1.0
    restart_max_s: float = 60.0
    port_free_s: float = 5.0
    options_s: float = 240.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """One node's part in a cell. ``grace_s`` is how long init waits after SIGTERM."""

    node_dir: Path
    run_dir: RunDir
    gen_dir: GenerationDir
    cell_name: str
    het_group: int
    head_host: str
    port_base: int
    local: bool
    grace_s: float
    plan: Plan
    environ: Mapping[str, str]
    times: Times = Times()

    @property
    def cell(self) -> CellPlan:
        return self.plan.cell(self.cell_name)

    @property
    def component(self) -> ComponentPlan:
        """The component that this node belongs to."""
        return next(part for part in self.cell.components if part.het_group == self.het_group)

    @property
    def is_head(self) -> bool:
        """Whether this node runs the controller and Ray's head: the first of component 0."""
        first = self.environ.get("SLURM_NODEID", "0") == "0"
        return self.het_group == 0 and (self.local or first)

    @property
    def runs_engines(self) -> bool:
        """Whether engines may be placed here."""
        return self.component.role != "head"

    @property
    def controller_url(self) -> str:
        """Base address of the cell's controller."""
        return f"http://{self.head_host}:{self.port_base + ports.CONTROLLER}"


def parse(argv: Sequence[str], environ: Mapping[str, str] = os.environ) -> Settings:
    """Settings from the command line that init made; reads and checks the plan (StateError)."""
    parser = argparse.ArgumentParser(prog="exaslurm.agent")
    parser.add_argument("--node-dir", type=Path, required=True)
    parser.add_argument("--gen-dir", type=Path, required=True)
    parser.add_argument("--run-dir", type=Path, required=True)
    parser.add_argument("--cell", required=True)
    parser.add_argument("--het-group", type=int, required=True)
    parser.add_argument("--head-host", required=True)
    parser.add_argument("--port-base", type=int, required=True)
    parser.add_argument("--local", action="store_true")
    parser.add_argument("--grace-s", type=float, default=20.0)
    options = parser.parse_args(argv)
    gen_dir = GenerationDir(options.gen_dir)
    plan = loads(Plan, read_text(gen_dir.plan), where=str(gen_dir.plan))
    if not plan.is_sealed():
        raise StateError(
            f"{gen_dir.plan} was changed after it was made (its hash does not fit)",
            remedy="render or submit again instead of editing the plan",
        )
    return Settings(
        node_dir=options.node_dir,
        run_dir=RunDir(options.run_dir),
        gen_dir=gen_dir,
        cell_name=options.cell,
        het_group=options.het_group,
        head_host=options.head_host,
        port_base=options.port_base,
        local=options.local,
        grace_s=options.grace_s,
        plan=plan,
        environ=environ,
        times=Times(
            hung_s=plan.timeouts.hung_s,
            stall_s=plan.timeouts.stall_s,
            probe_timeout_s=min(Times().probe_timeout_s, plan.timeouts.hung_s / 3),
        ),
    )
