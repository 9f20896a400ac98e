"""``python -m exaslurm.simulate``: failures on a simulated cluster; one JSON line."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import signal
import sys
from pathlib import Path
from typing import Any

from exaslurm.errors import ExaslurmError
from exaslurm.simulate.layout import Layout
from exaslurm.simulate.soak import Run, soak


async def _until_told(run: Run) -> dict[str, Any]:
    """SIGTERM ends it, and everything that it has started."""
    task = asyncio.ensure_future(soak(run))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await task


def main() -> int:
    """Exit code: 0 if the run came to its end, whatever it found."""
    parser = argparse.ArgumentParser(prog="python -m exaslurm.simulate", allow_abbrev=False)
    add = parser.add_argument
    add("--directory", type=Path, required=True, help="an empty one, for all that is written")
    add("--failures", type=int, default=48)
    add("--factor", type=float, default=6.0, help="how much faster control loops run")
    add("--every-s", type=float, default=25.0, help="mean simulated time between failures")
    add("--nodes", type=int, default=64)
    add("--cells", type=int, default=8)
    add("--per-cell", type=int, default=7, help="nodes of a cell")
    add("--replicas-per-node", type=int, default=2)
    add("--load-s", type=float, default=20.0, help="simulated time of loading an engine")
    add("--seed", type=int, default=1)
    add("--concurrency", type=int, default=12, help="clients")
    add("--rate-per-s", type=float, default=12.0, help="requests of all clients together")
    add("--settle-s", type=float, default=1800.0, help="simulated time for the end")
    add("--no-shared", dest="shared", action="store_false", help="no file system that can stop")
    given = parser.parse_args()
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr
    )
    os.umask(0o077)
    layout = Layout(
        nodes=given.nodes,
        cells=given.cells,
        per_cell=given.per_cell,
        replicas_per_node=given.replicas_per_node,
        load_s=given.load_s,
    )
    run = Run(
        directory=given.directory.absolute(),
        layout=layout,
        failures=given.failures,
        factor=given.factor,
        every_s=given.every_s,
        seed=given.seed,
        concurrency=given.concurrency,
        rate_per_s=given.rate_per_s,
        shared=given.shared,
        settle_s=given.settle_s,
    )
    try:
        found = asyncio.run(_until_told(run))
    except asyncio.CancelledError:
        return 1
    except ExaslurmError as error:
        print(f"simulate: {error}", file=sys.stderr)
        return int(error.exit_code)
    print(json.dumps(found, separators=(",", ":")), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
