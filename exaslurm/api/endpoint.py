"""Where a deployment's routers listen."""

from __future__ import annotations

import socket
from dataclasses import replace
from urllib.parse import urlsplit

from exaslurm.core.submission import RouterAddress
from exaslurm.errors import NotReadyError
from exaslurm.rundir import RunDir
from exaslurm.status.collect import read_routers
from exaslurm.status.routers import is_loopback
from exaslurm.util.process import is_alive


def find_endpoint(run_dir: RunDir) -> list[RouterAddress]:
    """The routers that may be alive, those of this host first, addresses without a final slash.

    NotReadyError if there is none.
    """
    live = _listed(run_dir)
    if not live:
        raise NotReadyError(
            f"no router serves {run_dir.deployment} now",
            remedy=f"exaslurm gateway {run_dir.deployment} starts one; "
            f"exaslurm logs {run_dir.deployment} --router shows what the last one said",
        )
    here = socket.gethostname()
    return sorted(live, key=lambda router: (router.host != here, -router.started_s))


def routers_in_reach(run_dir: RunDir) -> list[RouterAddress]:
    """Those routers that this host can ask: its own, and others that listen for all."""
    here = socket.gethostname()
    return [
        router for router in _listed(run_dir) if router.host == here or not is_loopback(router.url)
    ]


def _listed(run_dir: RunDir) -> list[RouterAddress]:
    """Routers in endpoint.json whose process is alive as far as this host can tell."""
    here = socket.gethostname()
    return [
        replace(router, url=router.url.rstrip("/"))
        for router in read_routers(run_dir)
        if router.host != here or is_alive(router.pid, router.start_ticks)
    ]


def ssh_line(router: RouterAddress) -> str | None:
    """The command that brings a loopback address to another machine; None if none is needed."""
    if not is_loopback(router.url):
        return None
    port = urlsplit(router.url).port or 80
    return f"ssh -N -L {port}:127.0.0.1:{port} {router.host}"
