"""Which switches a node is below: from Slurm's words, ``topology.conf``, or the site's own map.

A switch counts as above a node only if it is the only way: where a switch has several parents (a
fat tree with redundant spines), none of them is, since the loss of one cuts nobody off.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from exaslurm.errors import SlurmError
from exaslurm.slurm.client import Slurm
from exaslurm.util.hostlist import expand

# Switch to the nodes and switches right below it.
Switches = Mapping[str, frozenset[str]]

_FIELD = re.compile(r"(\w+)=(\S*)")
_MAX_LEVELS = 16


def parse_topology(text: str) -> dict[str, frozenset[str]]:
    """Switches and blocks, from ``scontrol show topology`` or ``topology.conf`` (the keys are the
    same; blocks are ``topology/block``'s). Lines that say something else are skipped."""
    found: dict[str, frozenset[str]] = {}
    for line in _lines(text):
        fields = {key.lower(): value for key, value in _FIELD.findall(line)}
        name = fields.get("switchname") or fields.get("blockname")
        if not name:
            continue
        # Of a switch above others `scontrol` names the nodes too: all of those below.
        below = fields.get("switches") or fields.get("nodes") or ""
        for single in _names(name):
            found[single] = found.get(single, frozenset()) | frozenset(_names(below))
    return found


def from_map(switches: Mapping[str, str]) -> dict[str, frozenset[str]]:
    """A site's map of a switch to what is right below it, as a hostlist."""
    return {name: frozenset(_names(below)) for name, below in switches.items()}


def paths(switches: Switches, nodes: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """The switches above each of ``nodes``, the topmost first; nodes that are below none are left
    out."""
    parents: dict[str, list[str]] = {}
    for switch, below in switches.items():
        for name in below:
            parents.setdefault(name, []).append(switch)
    found = {}
    for node in nodes:
        path: list[str] = []
        at = node
        while len(above := parents.get(at, [])) == 1 and len(path) < _MAX_LEVELS:
            at = above[0]
            path.insert(0, at)
        if path:
            found[node] = tuple(path)
    return found


def address_path(environ: Mapping[str, str]) -> tuple[str, ...]:
    """The switches above this node as Slurm tells each task (``SLURM_TOPOLOGY_ADDR=root.leaf.node``
    with ``_PATTERN=switch.switch.node``), the topmost first. Empty where it tells none."""
    names = environ.get("SLURM_TOPOLOGY_ADDR", "").split(".")
    kinds = environ.get("SLURM_TOPOLOGY_ADDR_PATTERN", "").split(".")
    if len(names) != len(kinds):
        return ()
    path: list[str] = []
    for name, kind in zip(names, kinds, strict=True):
        if kind in ("switch", "block") and name:
            path.append(name)
    # Several ways up are named together, in brackets: what is above them is no single way either.
    several = max((at for at, name in enumerate(path) if "[" in name), default=-1)
    return tuple(path[several + 1 :])


def look_up(
    slurm: Slurm,
    nodes: Iterable[str],
    *,
    site: Mapping[str, str],
    environ: Mapping[str, str],
) -> dict[str, tuple[str, ...]]:
    """The switches above the nodes: by the site's map where it has one, else as the controller
    says, else by ``topology.conf``. Nothing is known where none of them says anything."""
    wanted = list(nodes)
    if site:
        return paths(from_map(site), wanted)
    with contextlib.suppress(SlurmError):
        found = paths(parse_topology(slurm.query(["scontrol", "show", "topology"])), wanted)
        if found:
            return found
    for folder in _conf_folders(environ):
        with contextlib.suppress(OSError):
            text = (folder / "topology.conf").read_text(encoding="utf-8", errors="replace")
            return paths(parse_topology(text), wanted)
    return {}


def parse_features(text: str) -> dict[str, tuple[str, ...]]:
    """Active features by node, from ``scontrol show node --oneliner``."""
    found = {}
    for line in text.splitlines():
        fields = dict(_FIELD.findall(line))
        if "NodeName" in fields:
            features = fields.get("ActiveFeatures") or fields.get("Features") or ""
            names = [] if features == "(null)" else features.split(",")
            found[fields["NodeName"]] = tuple(name for name in names if name)
    return found


def look_up_features(slurm: Slurm, nodes: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Slurm's features of nodes; empty where the controller gives no answer."""
    with contextlib.suppress(SlurmError):
        return parse_features(
            slurm.query(["scontrol", "show", "node", "--oneliner", ",".join(nodes)])
        )
    return {}


def _lines(text: str) -> Iterator[str]:
    """Lines without comments; a backslash at the end of one joins the next to it."""
    for line in text.replace("\\\n", " ").splitlines():
        yield line.partition("#")[0]


def _names(hostlist: str) -> list[str]:
    try:
        return [] if hostlist in ("", "(null)") else expand(hostlist)
    except ValueError:
        return []


def _conf_folders(environ: Mapping[str, str]) -> list[Path]:
    conf = environ.get("SLURM_CONF")
    first = [Path(os.path.dirname(conf))] if conf else []
    # With "configless" Slurm the daemon keeps its copy there.
    return [*first, Path("/etc/slurm"), Path("/run/slurm/conf")]
