"""The life of a router, from its options to its end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import resource
from collections.abc import Coroutine, Sequence
from typing import Any

from exaslurm.errors import ExaslurmError, UserError
from exaslurm.gateway.endpoint import own_address, withdraw
from exaslurm.gateway.figures import own_directory, remove_directory
from exaslurm.gateway.follow import Wanted
from exaslurm.gateway.former import Former
from exaslurm.gateway.handover import Predecessor, find_predecessor
from exaslurm.gateway.listeners import Listeners, listen_tcp, listen_unix
from exaslurm.gateway.options import GatewayOptions
from exaslurm.gateway.service import Front, Service, service_of
from exaslurm.gateway.tidy import tidy
from exaslurm.gateway.tls import Certificate, certificate_of

log = logging.getLogger(__name__)


def serve(options: GatewayOptions, argv: Sequence[str]) -> None:
    """Serve until the deployment stops, or a signal comes; then finish what is begun. ``argv`` is
    what the options were read from.

    ExaslurmError if the router cannot start.
    """
    _raise_file_limit()
    if options.control_fd is not None:
        from exaslurm.gateway.worker import run_worker

        _run_fast(run_worker(service_of(options), options))
        return
    tidy()
    former = Former(options.helper) if options.helper is not None else None
    if former is None:
        service, certificate = _read(options)
    else:
        # Files may have been broken since its helper read them.
        run_dir = options.run_dir
        over = Wanted(run_dir) if run_dir is not None else None
        got = None
        try:
            got = former.keep_trying(lambda: _read(options), over)
        finally:
            if got is None:
                _withdraw(options)
        if got is None:
            return
        service, certificate = got
    front = service.front
    if options.canary is not None and not options.canary.exists():
        log.warning("%s is not there: versions share alike until it is", options.canary)
    predecessor = None
    if options.sockets is not None:
        listeners = Listeners.of_text(options.sockets)
    else:
        if options.replace:
            predecessor = _find_predecessor(service)
        listeners = _listen(front, predecessor)
    _renew(listeners, front.uds_mode)
    # A deployment's own gateway is to be there for weeks: a parent, who does nothing that could end
    # it, starts the one process that serves again, and what connects meanwhile waits.
    if front.workers > 1 or options.supervise:
        from exaslurm.gateway.parent import Parent

        # It has little to do: no fast event loop, nothing of the router in memory.
        parent = Parent(
            service,
            listeners,
            certificate,
            argv,
            predecessor=predecessor,
            supervise=options.supervise,
            former=former,
        )
        asyncio.run(parent.run())
    else:
        from exaslurm.gateway.single import Single

        single = Single(
            service,
            listeners,
            certificate,
            argv,
            predecessor=predecessor,
            former=former,
        )
        _run_fast(single.run())


def _read(options: GatewayOptions) -> tuple[Service, Certificate | None]:
    """What it serves, and with which certificate. ExaslurmError if it cannot start with that."""
    service = service_of(options)
    service.check()
    return service, certificate_of(service.front.tls)


def _withdraw(options: GatewayOptions) -> None:
    """Remove what makes this process known, from its life before."""
    uds = Listeners.of_text(options.sockets or "").uds
    if uds is not None:
        with contextlib.suppress(OSError):
            uds.unlink()
    remove_directory(own_directory())
    if options.run_dir is not None:
        try:
            withdraw(options.run_dir, own_address(""))
        except (ExaslurmError, OSError) as error:
            log.warning("endpoint.json still names this router: %s", error)


def _run_fast(work: Coroutine[Any, Any, None]) -> None:
    import uvloop

    uvloop.run(work)


def _find_predecessor(service: Service) -> Predecessor | None:
    front = service.front
    found = find_predecessor(service.identity, front.bind, front.port)
    if found is None:
        log.info("no router to take over from")
    else:
        log.info("taking over from process %d", found.pid)
    return found


def _listen(front: Front, predecessor: Predecessor | None) -> Listeners:
    """The sockets of the front, those of the predecessor where it has them."""
    got = predecessor.listeners if predecessor is not None else Listeners()
    listeners = Listeners()
    if front.tcp:
        listeners.tcp = got.tcp or [listen_tcp(front.bind, front.port, front.ports)]
        listeners.widen(front.workers)
    if front.uds is not None:
        same = got.unix is not None and got.uds == front.uds
        listeners.unix = got.unix if same else listen_unix(front.uds, front.uds_mode)
    kept = {id(sock) for sock in listeners.all}
    for sock in got.all:
        if id(sock) not in kept:
            sock.close()
    return listeners


def _renew(listeners: Listeners, uds_mode: int) -> None:
    """Have a unix socket that was taken over, and whose file somebody has removed, on a new one:
    nobody finds the old one."""
    uds = listeners.uds
    if listeners.unix is None or uds is None or os.path.lexists(uds):
        return
    try:
        fresh = listen_unix(uds, uds_mode)
    except UserError as error:
        log.warning("its socket's file was removed, and there is no new one: %s", error)
        return
    log.warning("%s was removed: it is there again", uds)
    listeners.unix.close()
    listeners.unix = fresh


def _raise_file_limit() -> None:
    """Each request takes two descriptors; the usual 1,024 of a login shell are few."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
