"""Whether ports are free, found out by binding them."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterable


def first_taken(ports: Iterable[int]) -> int | None:
    """The first port that somebody on this host already listens on, on whatever address; None if
    all are free. A port may be taken a moment later: whoever uses one must still cope with that.
    """
    for port in ports:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            # As servers do: connections that wait out their last minute are not in the way.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("", port))
                probe.listen(1)
            except OSError as error:
                if error.errno in (errno.EADDRINUSE, errno.EACCES):
                    return port
                raise
    return None
