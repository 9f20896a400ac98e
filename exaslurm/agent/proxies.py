"""Connections within the cell that no proxy of the site may get hold of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from exaslurm.agent.settings import Settings
from exaslurm.core.codec import loads
from exaslurm.core.marker import BootstrapMarker
from exaslurm.errors import StateError
from exaslurm.util.files import read_text

_LOOPBACK = ("localhost", "127.0.0.1")


def no_proxy(environ: Mapping[str, str], hosts: Iterable[str]) -> dict[str, str]:
    """``no_proxy`` in both spellings: what the site has said, and these hosts."""
    given = environ.get("no_proxy") or environ.get("NO_PROXY") or ""
    names = filter(None, [*(part.strip() for part in given.split(",")), *_LOOPBACK, *hosts])
    value = ",".join(dict.fromkeys(names))
    return {"no_proxy": value, "NO_PROXY": value}


def cell_nodes(settings: Settings) -> list[str]:
    """Names of all nodes of the cell; none where no batch script has written them down."""
    path = settings.gen_dir.bootstrap_marker(settings.cell_name)
    try:
        marker = loads(BootstrapMarker, read_text(path), where=str(path))
    except StateError:
        return []
    return [name for names in marker.nodes.values() for name in names]
