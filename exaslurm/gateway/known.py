"""How a router makes itself known: its line in ``endpoint.json``, its address on stdout, its unix
socket's file."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from exaslurm.errors import ExaslurmError, StateError
from exaslurm.gateway.address import advertised_url
from exaslurm.gateway.endpoint import own_address, withdraw
from exaslurm.gateway.follow import Listed, Step, Wanted
from exaslurm.gateway.listeners import Listeners, inode_of, remove_unix
from exaslurm.gateway.service import Service
from exaslurm.gateway.tls import Certificate
from exaslurm.util.iothread import IoThread
from exaslurm.util.loopback import is_loopback

log = logging.getLogger(__name__)

_FILE_TIMEOUT_S = 10.0

Hangup = Literal["again", "end", "nothing"]


class Known:
    """What others see of this router, whatever number of processes it is. To be made before
    signals are handled."""

    def __init__(
        self, service: Service, listeners: Listeners, certificate: Certificate | None
    ) -> None:
        front = service.front
        self._service = service
        self._uds = listeners.uds
        self._inode: tuple[int, int] | None = None
        if self._uds is not None:
            with contextlib.suppress(OSError):  # somebody has removed it
                self._inode = inode_of(self._uds)
        if listeners.tcp:
            self.url = advertised_url(front.bind, listeners.port, tls=front.tls is not None)
        else:
            self.url = f"unix:{self._uds}"
        self._certificate = certificate
        self._listed: Listed | None = None
        if service.run_dir is not None:
            leaf = certificate.leaf if certificate is not None else ""
            own = own_address(self.url, leaf, service.job_id)
            self._listed = Listed(service.run_dir, own)
        self._had_terminal = _has_terminal()
        self.under_nohup = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        if listeners.tcp and not is_loopback(front.bind) and front.tls is None:
            log.warning("listening on %s: reachable from other hosts, without TLS", front.bind)

    def steps(self) -> Sequence[Step]:
        """What to look at once a second."""
        run_dir = self._service.run_dir
        if run_dir is None or self._listed is None:
            return ()
        return (self._follow_certificate, self._listed, Wanted(run_dir))

    def _follow_certificate(self) -> None:
        """Clients of this deployment accept the certificate that they read of here, and only it."""
        if self._certificate is not None and self._listed is not None:
            self._listed.own = replace(self._listed.own, certificate=self._certificate.leaf)

    async def publish(self, files: IoThread) -> None:
        """Enter ``endpoint.json``. A file system that is full, or cannot be written to, is no
        reason not to serve: then this is tried again every second (see ``steps``)."""
        if self._listed is None:
            return
        try:
            await files.run(self._listed.enter, timeout_s=_FILE_TIMEOUT_S)
        except StateError as error:
            log.warning("serving, though not entered in endpoint.json: %s", error)

    def announce(self) -> None:
        """Tell who started it where it listens."""
        try:
            print(self.url, flush=True)
        except OSError as error:  # nobody reads it any more: no reason not to serve
            log.warning("cannot tell the address on stdout: %s", error.strerror)
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, 1)  # what is still in the buffer would be an error once more, at the end
            os.close(null)
        also = f" and unix:{self._uds}" if self._uds and not self.url.startswith("unix:") else ""
        log.info("serving %s on %s%s", self._service.name, self.url, also)

    def given_away(self) -> None:
        """Another router has the sockets: their files are its own."""
        self._inode = None

    async def withdraw(self, files: IoThread) -> None:
        """Leave the list; remove what belongs to it."""
        if self._uds is not None and self._inode is not None:
            remove_unix(self._uds, self._inode)
            self._inode = None
        run_dir = self._service.run_dir
        if run_dir is None or self._listed is None or not self._listed.wanted:
            return
        self._listed.wanted = False
        if not self._listed.entered:
            return
        try:
            await files.run(withdraw, run_dir, self._listed.own, timeout_s=_FILE_TIMEOUT_S)
        except ExaslurmError as error:
            log.warning("endpoint.json still names this router: %s", error)

    def hangup(self) -> Hangup:
        """What a SIGHUP means: that the terminal was closed in which this was started (under nohup
        it means nothing then), or else that it shall start again."""
        if self._had_terminal and not _has_terminal():
            self._had_terminal = False
            log.info("SIGHUP: its terminal was closed")
            return "nothing" if self.under_nohup else "end"
        return "again"


def _has_terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return False
    return True
