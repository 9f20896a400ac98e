"""One `lab up` or `lab down` at a time on a machine, without a lock file to leave behind."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager

from labkit.errors import LabError

NAME = "\0exaslurm-lab"
TIMEOUT_S = 180.0


@contextmanager
def machine_lock() -> Iterator[None]:
    """Hold an abstract socket name, which the kernel frees however the process ends."""
    deadline = time.monotonic() + TIMEOUT_S
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as holder:
        while True:
            try:
                holder.bind(NAME)
                break
            except OSError as error:
                if time.monotonic() > deadline:
                    raise LabError(
                        f"another scripts/lab has been busy for {TIMEOUT_S:g} s; try again later"
                    ) from error
                time.sleep(0.1)
        yield
