"""Layout ``local``: a cell without Slurm is one detached process tree on this host."""

from __future__ import annotations

import contextlib
import os
import socket
import zlib
from collections.abc import Mapping
from pathlib import Path

from exaslurm.core import ports
from exaslurm.core.plan import Plan
from exaslurm.errors import PlanError, StateError
from exaslurm.rundir import GenerationDir, RunDir
from exaslurm.slurm.environ import outside
from exaslurm.submit.detach import spawn_detached
from exaslurm.util.process import start_ticks

_HOST = "127.0.0.1"
_MODULE = "exaslurm.bootstrap.init"


def require_engine(plan: Plan) -> None:
    """Raises PlanError if vLLM is asked for and not where the nodes' Python is.

    Nodes of a cluster may see other files than the login node; here there is only this host.
    """
    vllm = Path(plan.node.python).with_name("vllm")
    if any(model.engine.kind == "vllm" for model in plan.models) and not os.access(vllm, os.X_OK):
        raise PlanError(
            f"the environment of {plan.node.python} has no vLLM ({vllm} is missing)",
            remedy="install 'exaslurm[node]' there, or set 'python' in the site config; for "
            "processors, scripts/env of a clone makes an environment with all that is needed",
        )


def start_init(
    plan: Plan,
    cell: str,
    generation: GenerationDir,
    run_dir: RunDir,
    *,
    environ: Mapping[str, str],
) -> tuple[int, int]:
    """Start the cell's init in a session of its own; its pid and start ticks."""
    base = free_block(plan)
    argv = [
        plan.node.python,
        "-m",
        _MODULE,
        *("--gen-dir", str(generation.path)),
        *("--run-dir", str(run_dir.path)),
        *("--cell", cell),
        *("--het-group", "0"),
        *("--head-host", _HOST),
        *("--port-base", str(base)),
        "--local",
    ]
    # A job that this shell may be in is none of the deployment's business.
    env = {**outside(environ), **plan.node.env}
    return spawn_detached(argv, environ=env, log=generation.logs(cell) / "local.init.log")


def find_init(generation: GenerationDir, cell: str) -> tuple[int, int] | None:
    """The living init of a cell of this user on this host: pid and start ticks."""
    # --local: an init that Slurm has started on this host is its job's.
    wanted = [_MODULE, "--gen-dir", str(generation.path), "--cell", cell, "--local"]
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            if entry.stat().st_uid != os.getuid():
                continue
            words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
            ticks = start_ticks(int(entry.name))
            if ticks is not None and all(word in words for word in wanted):
                return int(entry.name), ticks
    return None


def free_block(plan: Plan) -> int:
    """First port of a block whose control ports are free on loopback.

    The first one tried follows from the deployment's name, so that several deployments of a user
    do not meet. Raises StateError if no block is free.
    """
    seed = zlib.crc32(plan.deployment.encode())
    blocks = max(1, (plan.ports.last - plan.ports.first + 1) // plan.ports.block)
    for attempt in range(blocks):
        base = ports.block_base(plan.ports, seed, attempt)
        if all(_is_free(base + offset) for offset in range(ports.CONTROLLER, ports.AGENT + 1)):
            return base
    raise StateError(
        f"no block of {plan.ports.block} ports between {plan.ports.first} and {plan.ports.last} "
        f"is free on {_HOST}",
        remedy="stop other deployments on this host, or widen 'ports' in the site config",
    )


def _is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As servers do: a port whose last connection is in TIME_WAIT is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((_HOST, port))
        except OSError:
            return False
    return True
