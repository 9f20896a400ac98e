"""Routers on record that are not there any more.

A router takes its own entry out of ``endpoint.json``, and those of dead processes of its host. That
of a host which was lost with it would stay: it would be asked again and again, and since nobody
knows what it may be sending, nothing would ever fall asleep. One that lives after all enters itself
again within a second.
"""

from __future__ import annotations

import http.client
import logging
import socket
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field

from exaslurm.core.submission import RouterAddress
from exaslurm.rundir import RunDir
from exaslurm.submit.lock import deployment_lock, require_lease
from exaslurm.supervisor.observe import Look
from exaslurm.util.reach import connect, is_reached

log = logging.getLogger(__name__)

EVERY_S = 60.0
SILENT_S = 3600.0
_TIMEOUT_S = 5.0


def answers(router: RouterAddress, here: str) -> bool:
    """Whether anybody answers at the address of a router; one of another host's loopback address
    cannot be asked."""
    if not is_reached(router.url, router.host, here):
        return False
    try:
        url = router.url.rstrip("/")
        with closing(connect(url, certificate=router.certificate, timeout_s=_TIMEOUT_S)) as asked:
            asked.request("GET", "/health")
            asked.getresponse()
    except (OSError, http.client.HTTPException, ValueError):
        return False
    return True


@dataclass(slots=True, kw_only=True)
class LostRouters:
    """Takes out the entries of routers of other hosts that have given no answer for an hour."""

    run_dir: RunDir
    monotonic: Callable[[], float] = time.monotonic
    answers: Callable[[RouterAddress, str], bool] = answers
    _since_s: dict[RouterAddress, float] = field(default_factory=dict)
    _next_s: float = -float("inf")

    def step(self, look: Look) -> bool:  # noqa: ARG002 (as all managers)
        """See ``loop.Manager``; never anything else is wanted afterwards."""
        now_s, here = self.monotonic(), socket.gethostname()
        if now_s < self._next_s:
            return False
        self._next_s = now_s + EVERY_S
        silent = [
            router
            for router in self.run_dir.read_routers()
            if router.host != here and not self.answers(router, here)
        ]
        self._since_s = {router: self._since_s.get(router, now_s) for router in silent}
        lost = [router for router in silent if now_s - self._since_s[router] >= SILENT_S]
        if lost:
            with deployment_lock(self.run_dir):
                routers = self.run_dir.read_routers()
                kept = tuple(router for router in routers if router not in lost)
                require_lease()
                self.run_dir.write_routers(kept)
            for router in lost:
                self._since_s.pop(router)
                log.warning(
                    "router %s on %s has given no answer for %.0f minutes: not listed any more",
                    router.url,
                    router.host,
                    SILENT_S / 60,
                )
        return False
