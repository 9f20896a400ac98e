"""``python -m exaslurm.gateway --run-dir DIR``: one router in the foreground."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Sequence

from exaslurm.errors import ExaslurmError, ExitCode
from exaslurm.gateway.options import parse
from exaslurm.gateway.serve import serve
from exaslurm.util.logthread import LogThread


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code: 0 after a regular end, else that of the error (see ExitCode)."""
    given = list(sys.argv[1:] if argv is None else argv)
    _open_standard_streams()
    try:
        options = parse(given)
        lines = LogThread(
            "gateway",
            level=logging.DEBUG if options.debug else logging.INFO,
            form="%(asctime)s %(process)d %(levelname)s %(name)s: %(message)s",
        )
        try:
            serve(options, given)
        finally:
            lines.close()
    except ExaslurmError as error:
        if "--debug" in given:
            raise
        print(f"exaslurm: error: {error}", file=sys.stderr)
        if error.remedy:
            print(f"  remedy: {error.remedy}", file=sys.stderr)
        return int(error.exit_code)
    return int(ExitCode.OK)


def _open_standard_streams() -> None:
    """Closed ones (``>&-``) would be the numbers of the next sockets, and be written to."""
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:  # it is the lowest that is free
        os.set_inheritable(fd, True)
    os.close(fd)


if __name__ == "__main__":
    code = main()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:  # it was closed when we started
            with contextlib.suppress(OSError):
                stream.flush()
    # Not sys.exit: a thread that hangs in a file call would be waited for.
    os._exit(code)
