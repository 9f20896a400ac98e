"""What Intel's library knows beyond the kernel: names, UUIDs, memory, order, tiles, Xe Links."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from exaslurm.core.topology import Gpu, GpuLink, NodeTopology
from exaslurm.topo.merge import Drivers, completed_by

log = logging.getLogger(__name__)

TIMEOUT_S = 20.0


def with_levelzero(topology: NodeTopology) -> Drivers:
    """The topology completed by Level Zero, where the kernel shows a GPU of Intel's; unchanged
    where the library or the driver is missing."""
    nothing = Drivers(topology=topology, accessible=None)
    if not any(gpu.vendor == "intel" for gpu in topology.gpus):
        return nothing
    cards = ask(os.environ)
    return completed_by(topology, described(cards, topology.host)) if cards else nothing


def ask(environ: Mapping[str, str]) -> list[dict[str, Any]]:
    """The cards that the probe finds."""
    env = {
        **environ,
        # Whole cards, whatever this step is shown of them.
        "ZE_FLAT_DEVICE_HIERARCHY": "COMPOSITE",
        "ZES_ENABLE_SYSMAN": "1",
    }
    env.pop("ZE_AFFINITY_MASK", None)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "exaslurm.topo.levelzero_probe"],
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=TIMEOUT_S,
            check=True,
        )
        return json.loads(done.stdout) or []
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        log.warning("Level Zero does not describe the GPUs: %s", error)
        return []


def described(cards: list[dict[str, Any]], host: str) -> NodeTopology:
    """The probe's answer as a topology."""
    links = [
        GpuLink(a=place, b=int(other), kind="xelink", lanes=count)
        for place, card in enumerate(cards)
        for other, count in card["links"].items()
        if place < int(other)
    ]
    return NodeTopology(
        host=host,
        sources=("Level Zero",),
        gpus=tuple(
            Gpu(
                index=place,
                vendor="intel",
                pci=card["pci"],
                uuid=card["uuid"],
                name=card["name"],
                mem_mib=card["mem_bytes"] >> 20 or None,
                tiles=card["tiles"],
            )
            for place, card in enumerate(cards)
        ),
        links=tuple(links),
    )
