"""A topology from whatever somebody has: a file of hwloc, NCCL or this program, or a tree."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

from exaslurm.core.codec import from_jsonable
from exaslurm.core.topology import NodeTopology
from exaslurm.errors import StateError, UserError
from exaslurm.topo.hwloc_xml import read_hwloc
from exaslurm.topo.nccl_xml import read_nccl
from exaslurm.topo.sysfs import read_root, read_sysfs

TOPOLOGY_SCHEMA = "exaslurm/topology/1"

_KINDS = (
    "it has to be an XML file of lstopo or of NCCL (RCCL), the output of `exaslurm topo --json`, "
    "or a directory with sys and proc in it"
)


def read_any(path: Path) -> NodeTopology:
    """Raises UserError where the path is none of these."""
    try:
        return _read(path)
    except (ValueError, RecursionError) as error:  # a number that is none, endless nesting
        raise UserError(f"{path}: {error}", remedy=_KINDS) from error


def _read(path: Path) -> NodeTopology:
    if path.is_dir():
        return _tree(path)
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot read {path}", remedy=_KINDS) from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not a text file", remedy=_KINDS) from error
    if text.lstrip().startswith("{"):
        return _json(text, path)
    try:
        root = ElementTree.fromstring(text).tag
    except ElementTree.ParseError as error:
        raise UserError(f"{path}: neither XML nor JSON: {error}", remedy=_KINDS) from error
    if root == "topology":
        return read_hwloc(text, where=str(path))
    if root == "system":
        return read_nccl(text, where=str(path))
    raise UserError(f"{path}: XML of an unknown kind (<{root}>)", remedy=_KINDS)


def _tree(path: Path) -> NodeTopology:
    if (path / "sys/devices/system").is_dir():
        return read_root(path)
    if (path / "devices/system").is_dir():
        return read_sysfs(path, path.parent / "proc", host=path.parent.name)
    # An unpacked archive has one directory more.
    inner = [child for child in path.iterdir() if (child / "sys/devices/system").is_dir()]
    if len(inner) == 1:
        return read_root(inner[0])
    raise UserError(f"{path}: no tree of a machine's /sys", remedy=_KINDS)


def _json(text: str, path: Path) -> NodeTopology:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not JSON: {error}", remedy=_KINDS) from error
    if data.get("schema") != TOPOLOGY_SCHEMA:
        raise UserError(f"{path}: no topology of the form {TOPOLOGY_SCHEMA}", remedy=_KINDS)
    try:
        return from_jsonable(NodeTopology, data.get("topology"), where=f"{path}: topology")
    except StateError as error:
        raise UserError(str(error), remedy="write it anew with exaslurm topo --json") from error
