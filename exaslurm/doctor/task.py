"""What runs on each node of an examination: the function that submitit calls there."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import sys
from pathlib import Path

from exaslurm.core.checks import NodeChecks, NodeNeeds, failed
from exaslurm.core.codec import dumps, loads
from exaslurm.preflight import node, peers
from exaslurm.preflight.host import Host
from exaslurm.util.hostlist import expand

_NAMES_LOOKED_UP = 4


def run(needs_text: str, meeting_place: str) -> str:
    """Examine this node and its way to the others of the step; NodeChecks as JSON text."""
    needs = loads(NodeNeeds, needs_text, where="the question")
    host = Host.here()
    names = _step_nodes(host)
    looked_up = tuple(name + needs.host_suffix for name in _around(names, host.name))
    needs = dataclasses.replace(needs, names=looked_up)
    found = node.examine(needs, host, python=sys.executable)
    # Names that do not resolve are the finding of net.names; addresses come from the nodes.
    if len(names) > 1 and found.address:
        found = _measured(found, host, names, Path(meeting_place), needs)
    return dumps(found)


def _step_nodes(host: Host) -> list[str]:
    environ = host.environ
    text = environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST") or host.name
    with contextlib.suppress(ValueError):
        names = expand(text)
        if host.name in names:
            return names
    return [host.name]


def _around(names: list[str], own: str) -> list[str]:
    """This node's own name and the next few, so that a partition's names are all looked up."""
    index = names.index(own)
    return [names[(index + step) % len(names)] for step in range(min(len(names), _NAMES_LOOKED_UP))]


def _measured(
    found: NodeChecks, host: Host, names: list[str], place: Path, needs: NodeNeeds
) -> NodeChecks:
    seed = int(re.sub(r"\D", "", os.environ.get("SLURM_JOB_ID", "")) or 0)
    try:
        measures = peers.meet(host, names, place, found.address, node.ports_for(needs, seed))
    except OSError as error:
        check = failed(
            "net.peers",
            f"cannot listen on {found.address}: {error.strerror or error}",
            "no port of the site's range (`ports`) is free on the node",
        )
        return dataclasses.replace(found, checks=(*found.checks, check))
    return dataclasses.replace(found, peers=measures)
