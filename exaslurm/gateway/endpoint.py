"""``endpoint.json``: the routers that serve a deployment now."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from exaslurm.core.submission import Endpoint, RouterAddress
from exaslurm.errors import StateError
from exaslurm.rundir import RunDir
from exaslurm.util.lock import file_lock
from exaslurm.util.process import is_alive, start_ticks

log = logging.getLogger(__name__)

_LOCK_S = 3.0


def read_endpoint(run_dir: RunDir) -> Endpoint:
    """The routers on record, living or not; none if there is no file."""
    return Endpoint(deployment=run_dir.deployment, routers=run_dir.read_routers())


def own_address(url: str, certificate: str = "", job_id: str = "") -> RouterAddress:
    """The entry of this process. ``job_id`` is of the gateway's job that it runs in, if any."""
    ticks = start_ticks(os.getpid())
    assert ticks is not None
    return RouterAddress(
        url=url,
        host=socket.gethostname(),
        pid=os.getpid(),
        start_ticks=ticks,
        started_s=time.time(),
        certificate=certificate,
        job_id=job_id,
    )


def publish(run_dir: RunDir, own: RouterAddress) -> None:
    """Add an entry; dead ones of this host go, and those of gateway jobs before this one: Slurm
    runs one at a time."""

    def entries(others: tuple[RouterAddress, ...]) -> tuple[RouterAddress, ...]:
        kept = (item for item in others if not (own.job_id and item.job_id not in ("", own.job_id)))
        return (*kept, own)

    _change(run_dir, entries, own)


def withdraw(run_dir: RunDir, own: RouterAddress) -> None:
    """Remove an entry; dead ones of this host go too. Nothing happens if there is no list."""
    if run_dir.endpoint.exists():
        _change(run_dir, lambda others: others, own)


def _change(
    run_dir: RunDir,
    entries: Callable[[tuple[RouterAddress, ...]], tuple[RouterAddress, ...]],
    own: RouterAddress,
) -> None:
    with _lock(run_dir.endpoint.with_name(".endpoint.lock")):
        try:
            routers = run_dir.read_routers()
        except StateError:  # damaged: what lives writes itself again
            routers = ()
        others = tuple(item for item in routers if not _same(item, own) and _may_live(item))
        run_dir.write_routers(entries(others))


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Go on without it where it is not to be had in time: over NFS, a host that died may hold it
    for ever. Whoever is left out of the list then enters itself again."""
    trouble = None
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(file_lock(path, timeout_s=_LOCK_S))
        except StateError as error:
            trouble = error
        yield
    if trouble is not None:  # where nothing can be written, that is told by the file itself
        log.warning("going on without the lock: %s", trouble)


def _same(one: RouterAddress, other: RouterAddress) -> bool:
    return (one.host, one.pid, one.start_ticks) == (other.host, other.pid, other.start_ticks)


def _may_live(item: RouterAddress) -> bool:
    return item.host != socket.gethostname() or is_alive(item.pid, item.start_ticks)
