"""The progress of ``submit --wait``: a live display on a terminal, a line per change elsewhere."""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Any

from exaslurm.cli.output import seconds, talk
from exaslurm.cli.status_text import ray_text
from exaslurm.core.cell import ReplicaState, ReplicaStatus
from exaslurm.status.model import CellStatus, DeploymentStatus

if TYPE_CHECKING:
    from rich.console import Console

    from exaslurm.rundir import RunDir

_WORDS: dict[ReplicaState, str] = {
    "pending": "waiting",
    "staging": "staging weights",
    "loading": "loading",
    "warming": "warming up",
    "ready": "ready",
    "failed": "failed",
}
_ON_THE_WAY: tuple[ReplicaState, ...] = ("failed", "pending", "staging", "loading", "warming")


def wait_ready(run_dir: RunDir, *, timeout_s: float) -> DeploymentStatus:
    """Wait until the deployment is ready, telling on stderr how far it is."""
    from exaslurm.slurm.client import Slurm
    from exaslurm.status.collect import Collector
    from exaslurm.status.wait import wait_ready as wait

    collector = Collector(run_dir, Slurm(dict(os.environ)))
    try:
        with make_display() as display:
            status = wait(collector, timeout_s=timeout_s, show=display.show)
    except KeyboardInterrupt:
        name = run_dir.deployment
        talk(f"\n{name} goes on: exaslurm status {name} --watch; exaslurm stop {name} ends it")
        raise
    talk(f"{status.deployment}: all {status.replicas_ready} replicas are ready")
    return status


def progress_line(status: DeploymentStatus) -> str:
    """One line that says how far a deployment is; equal as long as nothing changes."""
    parts: list[str] = [status.phase]
    waiting = [cell for cell in status.cells if cell.phase == "queued"]
    if waiting:
        parts.append(f"jobs queued {len(waiting)}/{len(status.cells)}")
    started = [cell for cell in status.cells if cell.source == "controller"]
    if started:
        joined = sum(cell.nodes_joined for cell in started)
        planned = sum(cell.nodes_planned for cell in status.cells)
        parts.append(f"nodes {joined}/{planned}")
        rays = [cell.ray for cell in started if cell.ray is not None and cell.ray.state != "off"]
        if rays:
            alive = sum(ray.nodes_alive for ray in rays)
            parts.append(f"Ray {alive}/{sum(ray.nodes_wanted for ray in rays)}")
        states = Counter(replica.state for cell in started for replica in cell.replicas)
        parts += [f"{_WORDS[state]} {states[state]}" for state in _ON_THE_WAY if states[state]]
    parts.append(f"ready {status.replicas_ready}/{status.replicas_planned}")
    text = ", ".join(parts)
    return f"{text} ({status.cause})" if status.cause else text


class PlainDisplay(AbstractContextManager["PlainDisplay"]):
    """A line on stderr whenever something has changed, with the time since the start."""

    def __init__(self) -> None:
        self._begin = time.monotonic()
        self._last = ""

    def show(self, status: DeploymentStatus) -> None:
        line = progress_line(status)
        if line != self._last:
            self._last = line
            minutes, rest = divmod(int(time.monotonic() - self._begin), 60)
            talk(f"[{minutes:02}:{rest:02}] {line}")

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        return None


class LiveDisplay(AbstractContextManager["LiveDisplay"]):
    """A table that is redrawn in place (rich): one line a cell, then one a replica."""

    def __init__(self, console: Console | None = None) -> None:
        from rich.console import Console
        from rich.live import Live

        self._begin = time.monotonic()
        self._status: DeploymentStatus | None = None
        self._live = Live(
            console=console or Console(stderr=True),
            get_renderable=self._draw,
            refresh_per_second=4,
            transient=False,
        )

    def __enter__(self) -> LiveDisplay:
        self._live.start()
        return self

    def show(self, status: DeploymentStatus) -> None:
        self._status = status

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._live.stop()

    def _draw(self) -> Any:
        from rich.console import Group
        from rich.spinner import Spinner
        from rich.text import Text

        elapsed = seconds(time.monotonic() - self._begin)
        status = self._status
        if status is None:
            return Spinner("line", Text(f" {elapsed}  asking"))
        title = Text(f" {elapsed}  {status.deployment}: {status.phase}")
        parts: list[Any] = [title if status.is_ready else Spinner("line", title)]
        parts += [_cell_line(cell) for cell in status.cells[:16]]
        if status.cause:
            parts.append(Text(f"  {status.cause}", style="yellow"))
        replicas = [replica for cell in status.cells for replica in cell.replicas]
        if 0 < len(replicas) <= 16:
            parts.append(_replica_table(replicas))
        return Group(*parts)


def _cell_line(cell: CellStatus) -> Any:
    from rich.text import Text

    job = f"job {cell.job.id} {cell.job.state.lower()}" if cell.job else "not submitted"
    line = Text(f"  {cell.name}  {job}")
    if cell.source == "controller":
        line.append(f"  nodes {cell.nodes_joined}/{cell.nodes_planned}  Ray {ray_text(cell)}")
    line.append(f"  ready {cell.replicas_ready}/{cell.replicas_planned}")
    return line


def _replica_table(replicas: list[ReplicaStatus]) -> Any:
    from rich.table import Table

    table = Table(box=None, padding=(0, 1), header_style="dim")
    for column in ("replica", "node", "state", "reserve", "stage", "load", "warm-up", "register"):
        table.add_column(column, no_wrap=True)
    for item in replicas:
        style = {"ready": "green", "failed": "red"}.get(item.state, "yellow")
        phases = item.phases
        table.add_row(
            item.id,
            item.node,
            f"[{style}]{_WORDS.get(item.state, item.state)}[/{style}]",
            seconds(phases.reserve_s),
            seconds(phases.stage_s),
            seconds(phases.load_s),
            seconds(phases.warm_up_s),
            seconds(phases.register_s),
        )
    return table


def make_display() -> PlainDisplay | LiveDisplay:
    """The live one on a terminal where rich is installed, else the plain one."""
    if not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        return PlainDisplay()
    try:
        import rich  # noqa: F401
    except ImportError:
        return PlainDisplay()
    return LiveDisplay()
