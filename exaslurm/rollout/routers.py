"""Asking the routers of a deployment what they have counted."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass

from exaslurm.core.codec import loads
from exaslurm.core.submission import Endpoint, RouterAddress
from exaslurm.keys.secrets import read_secret
from exaslurm.rollout.figures import Counts, parse
from exaslurm.rundir import RunDir
from exaslurm.util.files import read_text
from exaslurm.util.process import is_alive
from exaslurm.util.reach import connect

_TIMEOUT_S = 5.0
_AT_ONCE = 8
_MAX_PAGE_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What routers say, and when they started (Unix seconds), by router; ``silent`` gave no
    answer."""

    counts: Mapping[str, Counts]
    started_s: Mapping[str, float]
    silent: tuple[str, ...] = ()


def ask_routers(run_dir: RunDir) -> Said:
    """Ask all routers that are on record and may live. StateError if the record or the key cannot
    be read."""
    routers = [router for router in _listed(run_dir) if _may_live(router)]
    if not routers:
        return Said(counts={}, started_s={})
    key = read_secret(run_dir.internal_key)
    with ThreadPoolExecutor(max_workers=min(_AT_ONCE, len(routers))) as pool:
        pages = list(pool.map(lambda router: _page(router, key), routers))
    named = list(zip(map(_name, routers), routers, pages, strict=True))
    return Said(
        counts={name: parse(page) for name, _, page in named if page is not None},
        started_s={name: router.started_s for name, router, _ in named},
        silent=tuple(name for name, _, page in named if page is None),
    )


def _listed(run_dir: RunDir) -> tuple[RouterAddress, ...]:
    if not run_dir.endpoint.exists():
        return ()
    return loads(Endpoint, read_text(run_dir.endpoint), where=str(run_dir.endpoint)).routers


def _may_live(router: RouterAddress) -> bool:
    return router.host != socket.gethostname() or is_alive(router.pid, router.start_ticks)


def _name(router: RouterAddress) -> str:
    """One process's: another one at the same address counts anew."""
    return f"{router.url} ({router.host} {router.pid}-{router.start_ticks})"


def _page(router: RouterAddress, key: str) -> str | None:
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
