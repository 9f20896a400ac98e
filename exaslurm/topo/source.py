"""A topology from whatever somebody has: a file of hwloc, NCCL or this program, or a tree."""

from __future__ import annotations

import codecs
import json
import re
from pathlib import Path
from xml.etree import ElementTree

from exaslurm.core.codec import from_jsonable
from exaslurm.core.topology import NodeTopology
from exaslurm.errors import StateError, UserError
from exaslurm.topo.hwloc_xml import read_hwloc
from exaslurm.topo.nccl_xml import read_nccl
from exaslurm.topo.sound import sound
from exaslurm.topo.sysfs import read_root, read_sysfs

TOPOLOGY_SCHEMA = "exaslurm/topology/1"

_MOST_BYTES = 64 << 20  # the largest exports have a tenth of it

_KINDS = (
    "it has to be an XML file of lstopo or of NCCL (RCCL), the output of `exaslurm topo --json`, "
    "or a directory with sys and proc in it"
)


def read_any(path: Path) -> NodeTopology:
    """Raises UserError where the path is none of these."""
    try:
        return sound(_read(path))
    except (ValueError, ArithmeticError, RecursionError) as error:  # endless nesting too
        raise UserError(f"{path}: {_reason(error)}", remedy=_KINDS) from None


def _reason(error: Exception) -> str:
    """Of Python's own words for what is no number, the value."""
    said = str(error)
    match = re.match(r"(?:invalid literal for|could not convert) .*?: ('.*')$", said)
    return f"{match.group(1)} stands where a number has to" if match else said


def _read(path: Path) -> NodeTopology:
    if path.is_dir():
        return _tree(path)
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise UserError(f"cannot read {path}", remedy=_KINDS) from error
    if len(data) > _MOST_BYTES:
        raise UserError(
            f"{path}: larger than {_MOST_BYTES >> 20} MiB, and so no topology", remedy=_KINDS
        )
    if data.removeprefix(codecs.BOM_UTF8).lstrip().startswith(b"{"):
        return _json(data, path)
    try:
        root = ElementTree.fromstring(data).tag  # its encoding is what it says itself
    except ElementTree.ParseError as error:
        raise UserError(f"{path}: neither XML nor JSON: {error}", remedy=_KINDS) from error
    if root == "topology":
        return read_hwloc(data, where=str(path))
    if root == "system":
        return read_nccl(data, where=str(path))
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


def _json(text: bytes, path: Path) -> NodeTopology:
    try:
        data = json.loads(text.removeprefix(codecs.BOM_UTF8))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not JSON: {error}", remedy=_KINDS) from error
    if data.get("schema") != TOPOLOGY_SCHEMA:
        raise UserError(f"{path}: no topology of the form {TOPOLOGY_SCHEMA}", remedy=_KINDS)
    try:
        return from_jsonable(NodeTopology, data.get("topology"), where=f"{path}: topology")
    except StateError as error:
        raise UserError(str(error), remedy="write it anew with exaslurm topo --json") from error
