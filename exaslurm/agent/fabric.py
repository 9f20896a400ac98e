"""What an agent measures on its node: the network's ports all the time, a few figures once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path

from exaslurm.agent.settings import Settings
from exaslurm.core import ports
from exaslurm.core.fabric import PortFigures, usable_ports
from exaslurm.core.topology import Hca
from exaslurm.errors import ExaslurmError
from exaslurm.fabric.counters import SYS
from exaslurm.fabric.figures import Sampler
from exaslurm.facts.rtt import rtt_us
from exaslurm.facts.storage import storage_read_ms
from exaslurm.util.iothread import IoThread

log = logging.getLogger(__name__)

SAMPLE_S = 10.0
_READ_S = 5.0
_MEASURE_S = 10.0


class FabricWatch:
    """Figures of the ports that engines may use, on a thread of its own: some drivers ask the
    card for each counter, and a sick card takes its time."""

    def __init__(self, settings: Settings, *, every_s: float = SAMPLE_S, sys: Path = SYS) -> None:
        self.figures: tuple[PortFigures, ...] = ()
        self._settings = settings
        self._every_s = every_s
        self._sys = sys
        self._thread = IoThread("fabric")

    async def measures(self, address: str, files: IoThread) -> dict[str, float]:
        """Figures of this node for conditions, each left out if it cannot be had: a small read of
        shared storage (``files``: the thread for that) and a round trip to the cell's head."""
        settings = self._settings
        found: dict[str, float | None] = {}
        try:
            found["storage_read_ms"] = await files.run(
                storage_read_ms, _small_files(settings), timeout_s=_MEASURE_S
            )
        except ExaslurmError as error:
            log.warning("shared storage: %s", error)
        try:
            port = settings.port_base + ports.CONTROLLER
            found["rtt_us"] = await self._thread.run(
                lambda: rtt_us(settings.head_host, port, source=address), timeout_s=_MEASURE_S
            )
        except ExaslurmError as error:
            log.warning("round trip to %s: %s", settings.head_host, error)
        return {name: value for name, value in found.items() if value is not None}

    async def run(self, hcas: Sequence[Hca]) -> None:
        """For ever: bring ``figures`` up to date."""
        plan = self._settings.plan.node.fabric
        sampler = Sampler(
            usable_ports(hcas, plan.hcas), self._sys, xmit_wait_bytes=plan.xmit_wait_bytes
        )
        while True:
            try:
                self.figures = await self._thread.run(sampler.sample, timeout_s=_READ_S)
            except (ExaslurmError, OSError) as error:
                self.figures = ()
                log.warning("counters of the network: %s", error)
            await asyncio.sleep(self._every_s)


def _small_files(settings: Settings) -> list[Path]:
    """What is on shared storage anyway, the models' own directories first."""
    sources = [model.source for model in settings.plan.models]
    return [
        *(Path(source.value) / "config.json" for source in sources if source.kind == "path"),
        settings.gen_dir.plan,
    ]
