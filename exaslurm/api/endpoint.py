"""Where a deployment's routers listen."""

from __future__ import annotations

import socket
from dataclasses import replace
from urllib.parse import urlsplit

from exaslurm.core.submission import RouterAddress
from exaslurm.errors import NotReadyError
from exaslurm.rundir import RunDir
from exaslurm.util.loopback import is_loopback
from exaslurm.util.process import is_alive
from exaslurm.util.reach import is_reached


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


def reachable_endpoint(run_dir: RunDir) -> RouterAddress:
    """The router to use from this host. NotReadyError if there is none, or if it listens on the
    loopback address of another host."""
    router = find_endpoint(run_dir)[0]
    if not is_reached(router.url, router.host, socket.gethostname()):
        tunnel = ssh_line(router)
        other = f", or open a tunnel ({tunnel}) and give --url {router.url}/v1" if tunnel else ""
        raise NotReadyError(
            f"the router of {run_dir.deployment} listens on {router.host} only",
            remedy=f"do this on {router.host}{other}",
        )
    return router


def routers_in_reach(run_dir: RunDir) -> list[RouterAddress]:
    """Those routers that this host can ask: its own, and others that listen for all."""
    here = socket.gethostname()
    return [router for router in _listed(run_dir) if is_reached(router.url, router.host, here)]


def _listed(run_dir: RunDir) -> list[RouterAddress]:
    """Routers in endpoint.json whose process is alive as far as this host can tell."""
    here = socket.gethostname()
    return [
        replace(router, url=router.url.rstrip("/"))
        for router in run_dir.read_routers()
        if router.host != here or is_alive(router.pid, router.start_ticks)
    ]


def ssh_line(router: RouterAddress) -> str | None:
    """The command that brings a loopback address to another machine; None if none is needed."""
    parts = urlsplit(router.url)
    if not is_loopback(parts.hostname or ""):
        return None
    port, host = parts.port or 80, parts.hostname or "localhost"
    target = f"[{host}]" if ":" in host else host
    return f"ssh -N -L {port}:{target}:{port} {router.host}"
