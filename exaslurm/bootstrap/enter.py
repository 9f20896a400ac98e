"""A node's task where init runs in a container: becomes the runtime's command, on the host.

``python -m exaslurm.bootstrap.enter`` with init's options. What only the node knows is decided
here: which devices it has, what its limits are. It is not used for runtimes that srun starts.
"""

from __future__ import annotations

import argparse
import contextlib
import glob
import os
import resource
import shutil
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from exaslurm.bootstrap import containers
from exaslurm.core.codec import loads
from exaslurm.core.container import Bind, ContainerPlan
from exaslurm.core.plan import Plan
from exaslurm.errors import AllocationError, ExaslurmError
from exaslurm.rundir import GenerationDir
from exaslurm.util.files import read_text, write_atomic

EX_CONFIG = 78
PACKAGE = Path(__file__).resolve().parent.parent


def check(container: ContainerPlan, binds: Sequence[Bind], path: str | None) -> str:
    """The runtime's command as a path; AllocationError where the node lacks what is needed."""
    name = container.executable or container.runtime
    found = shutil.which(name, path=path)
    if found is None:
        raise AllocationError(
            f"{name!r} is not on this node's PATH",
            remedy="load it in the site config's modules, or name it: container.executable",
        )
    if container.image.startswith("/") and not os.access(container.image, os.R_OK):
        raise AllocationError(
            f"the image {container.image} cannot be read",
            remedy="put it on a file system that all nodes mount: container.image",
        )
    missing = [b.source for b in binds if not b.optional and not os.path.exists(b.source)]
    if missing:
        raise AllocationError(
            f"not there, and to be visible in the container: {', '.join(missing)}",
            remedy="storage or container.binds in the site config",
        )
    return found


def unlock_memory() -> None:
    """The soft limit of locked memory up to the hard one, as init does: a runtime may make what it
    finds the most."""
    with contextlib.suppress(OSError, ValueError):
        hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)[1]
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (hard, hard))


def with_directories(environ: Mapping[str, str], instead: str) -> dict[str, str]:
    """``environ`` whose directories for the runtime's own files exist on this node."""
    result = dict(environ)
    for name, value in environ.items():
        ours = name.startswith(("APPTAINER_", "SINGULARITY_")) and name.endswith("DIR")
        if ours and not os.path.isdir(value):
            print(f"exaslurm: {name}: {value} is not there, {instead} is taken", file=sys.stderr)
            result[name] = instead
    return result


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Of init's options, those that are needed to enter; the others are init's business."""
    parser = argparse.ArgumentParser(prog="exaslurm.bootstrap.enter")
    parser.add_argument("--gen-dir", type=Path, required=True)
    parser.add_argument("--run-dir", type=Path, required=True)
    parser.add_argument("--cell", required=True)
    parser.add_argument("--het-group", type=int, required=True)
    return parser.parse_known_args(argv)[0]


def command(argv: Sequence[str], environ: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
    """Argv and environment of the runtime's command on this node; raises ExaslurmError."""
    options = parse(argv)
    gen_dir = GenerationDir(options.gen_dir)
    plan = loads(Plan, read_text(gen_dir.plan), where=str(gen_dir.plan))
    container = plan.node.container
    if container is None:
        raise AllocationError(f"{gen_dir.plan} has no container")
    component = next(
        part for part in plan.cell(options.cell).components if part.het_group == options.het_group
    )
    with contextlib.suppress(OSError):  # elsewhere it is made when there is something for it
        os.makedirs(plan.node.shared, exist_ok=True)
    binds = containers.mounts(plan, options.run_dir, gen_dir.path, PACKAGE)
    found = check(container, binds, environ.get("PATH"))
    words = containers.runtime_argv(
        plan, component, binds, containers.init_command(plan, argv), glob.glob
    )
    env = containers.runtime_environ(plan, with_directories(environ, plan.node.tmp))
    return [found, *words[1:]], env


def main(argv: Sequence[str], environ: Mapping[str, str]) -> NoReturn:
    """The task; an error of ours is one line, and the cell's reason where this is its head."""
    os.umask(0o077)
    unlock_memory()
    try:
        words, env = command(argv, environ)
        # Apptainer goes on where it was called; its option for that has had two names.
        os.chdir("/")
        os.execve(words[0], words, env)
    except ExaslurmError as error:
        reason = str(error) + (f" ({error.remedy})" if error.remedy else "")
    except OSError as error:
        reason = f"cannot run the container's runtime: {error}"
    reason = f"{environ.get('SLURMD_NODENAME') or socket.gethostname()}: {reason}"
    print(f"exaslurm: {reason}", file=sys.stderr, flush=True)
    options = parse(argv)
    if options.het_group == 0 and environ.get("SLURM_NODEID", "0") == "0":
        with contextlib.suppress(ExaslurmError, OSError):
            write_atomic(GenerationDir(options.gen_dir).failure(options.cell), reason + "\n")
    os._exit(EX_CONFIG)


if __name__ == "__main__":
    main(sys.argv[1:], os.environ)
