"""The container in which the processes of a node run, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Runtime = Literal["apptainer", "singularity", "podman-hpc", "pyxis", "container-engine"]

# Plugins of Slurm: srun itself starts the container. The others are commands that a task runs.
SRUN_RUNTIMES: tuple[Runtime, ...] = ("pyxis", "container-engine")

COMMANDS: Mapping[Runtime, str] = {
    "apptainer": "apptainer",
    "singularity": "singularity",
    "podman-hpc": "podman-hpc",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Bind:
    """A file or directory of the node that is visible in the container as ``target``.

    ``optional``: nodes may lack it (node-local storage, a fabric's devices), and then go without.
    """

    source: str
    target: str
    read_only: bool = False
    optional: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerPlan:
    """One container on each node of a cell: init, agent, Ray and engines all run in it.

    ``executable`` is the runtime's command (None for those that srun starts itself).
    ``host_python`` runs the batch script and starts the container, outside of it; the Python in it
    is ``NodeEnvironment.python``. ``package`` says which exaslurm runs in it: the host's own,
    bound into it, or one that the image has. ``binds`` come on top of those that every cell needs.
    ``args`` are added to the command line of the runtime (of srun, where there is no command).
    """

    runtime: Runtime
    image: str
    executable: str | None
    host_python: str
    package: Literal["host", "image"]
    home: str | None
    binds: tuple[Bind, ...] = ()
    args: tuple[str, ...] = ()
