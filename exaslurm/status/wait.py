"""Waiting until a deployment is ready, with what changes on the way."""

from __future__ import annotations

import time
from collections.abc import Callable

from exaslurm.errors import NotReadyError, WaitTimeout
from exaslurm.status.collect import Collector
from exaslurm.status.model import DeploymentStatus

PAUSE_S = 1.0
# A router that does not run by then has failed to start: nobody starts another one by itself.
ROUTER_S = 20.0


def wait_ready(
    collector: Collector,
    *,
    timeout_s: float,
    show: Callable[[DeploymentStatus], None] = lambda _: None,
    pause_s: float = PAUSE_S,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> DeploymentStatus:
    """The first status in which every replica is ready; ``show`` sees each one on the way.

    WaitTimeout after ``timeout_s``; NotReadyError, with the first cause, as soon as it is clear
    that waiting is in vain (refused, ended, failed, stopped).
    """
    deadline = clock() + timeout_s
    alone_since: float | None = None
    while True:
        status = collector.collect()
        show(status)
        if status.is_ready:
            return status
        alone = status.phase == "degraded" and status.has_all_replicas
        alone = alone and not status.routers and not status.gateway_jobs
        alone_since = None if not alone else clock() if alone_since is None else alone_since
        if status.is_over or (alone_since is not None and clock() - alone_since >= ROUTER_S):
            cause = status.cause or (
                "'exaslurm stop' was called" if status.phase == "stopped" else "no cause is known"
            )
            raise NotReadyError(
                f"{status.deployment} is {status.phase}: {cause}",
                remedy=status.remedy or f"exaslurm logs {status.deployment}",
            )
        left_s = deadline - clock()
        if left_s <= 0:
            why = f": {status.cause}" if status.cause else ""
            raise WaitTimeout(
                f"{status.deployment} is not ready after {timeout_s:.0f} s "
                f"(phase {status.phase}, {status.replicas_ready} of {status.replicas_planned} "
                f"replicas){why}",
                remedy=f"it goes on: exaslurm status {status.deployment} --watch; "
                f"exaslurm stop {status.deployment} ends it",
            )
        sleep(min(pause_s, left_s))
