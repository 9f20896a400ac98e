"""``python -m exaslurm.controller``: started and kept by the agent of the head node.

Exit code 0 after a stop, 75 (EX_TEMPFAIL) if its port is taken, 1 after anything else.
"""

from __future__ import annotations

import argparse
import asyncio
import errno
import logging
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn, TypeVar

from exaslurm.controller.cell import Cell
from exaslurm.controller.memory import ControllerMemory
from exaslurm.controller.server import Controller
from exaslurm.core import ports
from exaslurm.core.binding import CellBinding
from exaslurm.core.codec import dumps, loads
from exaslurm.core.marker import BootstrapMarker
from exaslurm.core.plan import Plan
from exaslurm.core.scale import Targets
from exaslurm.core.submission import Submission
from exaslurm.errors import ExaslurmError, StateError
from exaslurm.keys.secrets import read_secret
from exaslurm.rundir import GenerationDir, RunDir
from exaslurm.util.clock import MACHINE, Clock
from exaslurm.util.files import read_text, write_atomic
from exaslurm.util.iothread import IoThread
from exaslurm.util.logthread import LogThread, write_on

EX_TEMPFAIL = 75
T = TypeVar("T")
_START_FILES_S = 60.0

log = logging.getLogger("exaslurm.controller")


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """What the head's agent says."""
    parser = argparse.ArgumentParser(prog="exaslurm.controller")
    parser.add_argument("--gen-dir", type=Path, required=True)
    parser.add_argument("--run-dir", type=Path, required=True)
    parser.add_argument("--cell", required=True)
    parser.add_argument("--address", required=True)
    parser.add_argument("--port-base", type=int, required=True)
    parser.add_argument("--node", required=True)
    parser.add_argument("--node-dir", type=Path, required=True)
    parser.add_argument("--local", action="store_true")
    return parser.parse_args(argv)


def restore(options: argparse.Namespace, clock: Clock = MACHINE) -> tuple[Cell, str]:
    """The cell as it was left (or new), and the internal key. Reads the run directory."""
    gen_dir, run_dir = GenerationDir(options.gen_dir), RunDir(options.run_dir)
    plan = loads(Plan, read_text(gen_dir.plan), where=str(gen_dir.plan))
    if options.local:
        marker = _local_marker(options, gen_dir, plan)
    else:
        path = gen_dir.bootstrap_marker(options.cell)
        marker = loads(BootstrapMarker, read_text(path), where=str(path))
    if marker.plan_hash != plan.hash:
        raise StateError(
            f"{gen_dir.path}: the plan is not the one that bootstrap started "
            f"({plan.hash[:12]}, {marker.plan_hash[:12]})",
            remedy="submit again",
        )
    cell = Cell(
        plan,
        marker,
        generation=gen_dir.number,
        now=clock.monotonic(),
        submitted_s=_submitted_s(gen_dir, marker),
    )
    begun = _optional(Targets, gen_dir.targets(options.cell))
    cell.targets = begun.replicas if begun is not None else None
    binding = _optional(CellBinding, gen_dir.binding(options.cell))
    if binding is not None and binding.plan_hash == plan.hash:
        memory = _optional(ControllerMemory, gen_dir.controller_memory(options.cell))
        cell.recall(binding, memory, clock.monotonic())
    return cell, read_secret(run_dir.internal_key)


def _local_marker(
    options: argparse.Namespace, gen_dir: GenerationDir, plan: Plan
) -> BootstrapMarker:
    """Without Slurm there is no launch: the first controller of a process tree writes the marker.
    The node directory is new with each tree, and so tells it from an earlier one."""
    path = gen_dir.bootstrap_marker(options.cell)
    born = options.node_dir / "marked"
    found = _optional(BootstrapMarker, path) if born.exists() else None
    if found is not None:
        return found
    marker = BootstrapMarker(
        plan_hash=plan.hash,
        deployment=plan.deployment,
        cell=options.cell,
        job_id="local",
        job_name=f"exa-{plan.deployment}-{options.cell}",
        het_job_ids={"0": "local"},
        nodes={"0": (options.node,)},
        host=options.node,
        started_s=time.time(),
    )
    for old in (gen_dir.binding(options.cell), gen_dir.controller_memory(options.cell),
                gen_dir.failure(options.cell)):  # fmt: skip
        old.unlink(missing_ok=True)
    write_atomic(path, dumps(marker, indent=2))
    born.touch(mode=0o600)
    return marker


def _submitted_s(gen_dir: GenerationDir, marker: BootstrapMarker) -> float | None:
    submission = _optional(Submission, gen_dir.submission(marker.cell))
    if submission is None or submission.job_id not in (None, marker.job_id):
        return marker.job_start_s
    return submission.submitted_s or submission.created_s


def _optional(kind: type[T], path: Path) -> T | None:
    try:
        return loads(kind, read_text(path), where=str(path))
    except StateError as error:
        if path.exists():
            log.warning("%s", error)
        return None


async def serve(options: argparse.Namespace, environ: Mapping[str, str]) -> int:
    """Restore and run."""
    files = IoThread("files")
    write_on(files)
    clock = Clock.of(environ)
    cell, key = await files.run(restore, options, clock, timeout_s=_START_FILES_S)
    controller = Controller(
        cell,
        RunDir(options.run_dir),
        GenerationDir(options.gen_dir),
        key,
        address=options.address,
        port=options.port_base + ports.CONTROLLER,
        environ=environ,
        files=files,
        clock=clock,
    )
    try:
        await controller.run()
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            log.error("%s is taken", controller.url)
            return EX_TEMPFAIL
        raise
    return 0


def main(argv: Sequence[str], environ: Mapping[str, str]) -> NoReturn:
    """The process."""
    os.umask(0o077)
    lines = LogThread("controller")
    try:
        code = asyncio.run(serve(parse(argv), environ))
    except ExaslurmError as error:
        log.error("%s%s", error, f" ({error.remedy})" if error.remedy else "")
        code = 1
    except Exception:
        log.exception("unforeseen")
        code = 1
    lines.close()
    # Not sys.exit: a thread that hangs in a file call would be waited for.
    os._exit(code)


if __name__ == "__main__":
    main(sys.argv[1:], os.environ)
