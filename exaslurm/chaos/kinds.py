"""The faults there are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

# What a fault hits: one replica, one worker node, the head node of a cell, the router or the
# supervisor, a cell's job, or Slurm itself.
Hits = Literal["engine", "node", "head", "router", "supervisor", "cell", "slurm"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One fault. ``held_s``: how long it is held before it is undone (None: until the deployment
    is at full strength again, or the time-out). ``needs`` names what the site config must give."""

    name: str
    hits: Hits
    does: str
    held_s: float | None = None
    needs: tuple[str, ...] = ()


_HELD_S = 20.0

KINDS: tuple[Kind, ...] = (
    Kind(name="kill-engine", hits="engine", does="SIGKILL to the first process of an engine"),
    Kind(name="hang-engine", hits="engine", does="SIGSTOP to every process of an engine"),
    Kind(name="kill-agent", hits="node", does="SIGKILL to the agent of a worker node"),
    Kind(name="kill-controller", hits="head", does="SIGKILL to a cell's controller"),
    Kind(name="kill-ray", hits="head", does="SIGKILL to every process of the Ray head"),
    Kind(
        name="kill-head",
        hits="head",
        does="SIGKILL to Ray, controller and agent of the head node, all at once; engines stay",
    ),
    Kind(
        name="kill-node",
        hits="node",
        does="SIGKILL to all processes of the cell's job on a node, then its link goes down, "
        "where the site can do that",
    ),
    Kind(name="kill-router", hits="router", does="SIGKILL to the processes that serve"),
    Kind(name="kill-supervisor", hits="supervisor", does="SIGKILL to the supervisor"),
    Kind(name="cut-link", hits="node", does="a node's packets vanish", needs=("link",)),
    Kind(
        name="slow-link",
        hits="node",
        does="a node's packets leave at --rate-mbit at most, and answers come --delay-ms late",
        held_s=_HELD_S,
        needs=("on_node",),
    ),
    Kind(
        name="hang-fs",
        hits="node",
        does="every access to a node's shared file system waits",
        held_s=_HELD_S,
        needs=("hang_fs",),
    ),
    Kind(
        name="lose-fs",
        hits="node",
        does="a node's shared file system is unmounted",
        held_s=_HELD_S,
        needs=("lose_fs",),
    ),
    Kind(
        name="fill-disk",
        hits="node",
        does="a node's disk is filled to the last MiB",
        held_s=_HELD_S,
        needs=("disk",),
    ),
    Kind(
        name="skew-clock",
        hits="node",
        does="the agent of a node, started again, has a clock that is --skew-s off (libfaketime)",
        held_s=_HELD_S,
    ),
    Kind(
        name="restart-slurmctld",
        hits="slurm",
        does="Slurm's controller is killed, and started again",
        held_s=_HELD_S,
        needs=("slurmctld",),
    ),
    Kind(
        name="drain-node",
        hits="node",
        does="Slurm drains a node: it gives it no new job",
        held_s=_HELD_S,
    ),
    Kind(
        name="preempt",
        hits="cell",
        does="a cell's job is warned by SIGUSR1, and cancelled --grace-s later",
    ),
    Kind(
        name="reach-wall-time",
        hits="cell",
        does="a cell's job gets a time limit that ends --in-s from now, in whole minutes",
    ),
)
BY_NAME: dict[str, Kind] = {kind.name: kind for kind in KINDS}
