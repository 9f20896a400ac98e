"""Asking the routers of a deployment what they have counted."""

from __future__ import annotations

import http.client
import re
import socket
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass

from exaslurm.core.submission import RouterAddress
from exaslurm.keys.secrets import read_secret
from exaslurm.rundir import RunDir
from exaslurm.util.process import is_alive
from exaslurm.util.reach import connect, is_reached

_TIMEOUT_S = 5.0
_AT_ONCE = 8
_MAX_PAGE_BYTES = 64 * 1024 * 1024
_PREFIX = "exaslurm_router_"
_SAMPLE = re.compile(r"(\w+)\{([^\n]*)\} (\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterPage:
    """What one router says (None: it gave no answer), and when it was started (Unix seconds)."""

    text: str | None
    started_s: float


def router_pages(run_dir: RunDir) -> dict[str, RouterPage]:
    """The ``/metrics`` of all routers that are on record and may live, by router; those that cannot
    be reached from here give no answer. StateError if the record or the key cannot be read."""
    routers = [router for router in run_dir.read_routers() if _may_live(router)]
    if not routers:
        return {}
    key = read_secret(run_dir.internal_key)
    with ThreadPoolExecutor(max_workers=min(_AT_ONCE, len(routers))) as pool:
        pages = pool.map(lambda router: _page(router, key), routers)
    return {
        _name(router): RouterPage(text=page, started_s=router.started_s)
        for router, page in zip(routers, pages, strict=True)
    }


def samples(page: str) -> Iterator[tuple[str, Mapping[str, str], float]]:
    """Name (without ``exaslurm_router_``), labels and value of every sample with labels."""
    for line in page.splitlines():
        if not line.startswith(_PREFIX):
            continue
        match = _SAMPLE.fullmatch(line)
        if match is None:
            continue
        labels = {key: _plain(text) for key, text in _LABEL.findall(match[2])}
        yield match[1].removeprefix(_PREFIX), labels, float(match[3])


def _plain(text: str) -> str:
    return re.sub(r"\\(.)", lambda m: "\n" if m[1] == "n" else m[1], text)


def _may_live(router: RouterAddress) -> bool:
    return router.host != socket.gethostname() or is_alive(router.pid, router.start_ticks)


def _name(router: RouterAddress) -> str:
    """One process's: another one at the same address counts anew."""
    return f"{router.url} ({router.host} {router.pid}-{router.start_ticks})"


def _page(router: RouterAddress, key: str) -> str | None:
    if not is_reached(router.url, router.host, socket.gethostname()):
        return None  # whoever listens there is not to be told the key
    try:
        connection = connect(
            router.url.rstrip("/"), certificate=router.certificate, timeout_s=_TIMEOUT_S
        )
        with closing(connection):
            connection.request("GET", "/metrics", headers={"Authorization": f"Bearer {key}"})
            answer = connection.getresponse()
            page = answer.read(_MAX_PAGE_BYTES)
        return page.decode("utf-8", "replace") if answer.status == 200 else None
    except (OSError, http.client.HTTPException, ValueError):
        return None
