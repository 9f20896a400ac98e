"""Drafting a site config on the machine it is for."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

from exaslurm.core.topology import NodeTopology
from exaslurm.errors import QueryFailed, SiteError
from exaslurm.site.draft import draft
from exaslurm.slurm.client import Slurm
from exaslurm.slurm.inventory import Inventory, take_inventory
from exaslurm.util.fields import NAME


def draft_site(
    name: str | None,
    *,
    topologies: Sequence[Path] = (),
    environ: Mapping[str, str] | None = None,
    slurm: Slurm | None = None,
) -> str:
    """The text of a site config for the Slurm that is in reach.

    ``name``: the cluster's own, if None. ``topologies``: files of ``exaslurm topo --json`` or
    ``lstopo`` of nodes; on a node of the cluster, it is looked at, too. Raises QueryFailed,
    CommandNotFound, SiteError.
    """
    from exaslurm.api.topology import load_topology, this_machine

    environ = dict(os.environ if environ is None else environ)
    inventory = take_inventory(slurm or Slurm(environ))
    chosen = name or inventory.config.get("ClusterName", "mysite")
    if re.fullmatch(NAME, chosen) is None:
        raise SiteError(f"{chosen!r} is no name for a site", remedy="give another one")
    seen: list[NodeTopology] = [load_topology(path) for path in topologies]
    if _is_node(inventory):
        seen.append(this_machine()[0])
    try:
        return draft(chosen, inventory, seen)
    except ValueError as error:
        raise QueryFailed(f"there is nothing to draft from: {error}") from None


def _is_node(inventory: Inventory) -> bool:
    """Whether this host is one of the cluster's nodes."""
    here = socket.gethostname().split(".", 1)[0]
    return any(node.name == here for node in inventory.nodes)
