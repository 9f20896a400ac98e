"""``python -m exaslurm.gateway --run-dir DIR``: one router in the foreground."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from exaslurm.errors import ExaslurmError, ExitCode
from exaslurm.gateway.serve import GatewayOptions, serve
from exaslurm.rundir import RunDir


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code: 0 after a regular end, else that of the error (see ExitCode)."""
    parser = argparse.ArgumentParser(prog="python -m exaslurm.gateway", allow_abbrev=False)
    parser.add_argument("--run-dir", type=Path, required=True, help="the deployment's directory")
    parser.add_argument("--gen", type=int, help="generation of the plan (default: the newest)")
    parser.add_argument("--bind", help="address to listen on (default: as planned)")
    parser.add_argument("--port", type=int, help="port (default: as planned; 0: a free one)")
    parser.add_argument("--debug", action="store_true", help="more log, tracebacks on errors")
    given = parser.parse_args(argv)
    logging.basicConfig(
        level=logging.DEBUG if given.debug else logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    options = GatewayOptions(
        run_dir=RunDir(given.run_dir.absolute()),
        generation=given.gen,
        bind=given.bind,
        port=given.port,
    )
    return run(options, debug=given.debug)


def run(options: GatewayOptions, *, debug: bool = False) -> int:
    """Serve, with the fast event loop; errors become one line on stderr and an exit code."""
    import uvloop

    try:
        uvloop.run(serve(options))
    except ExaslurmError as error:
        if debug:
            raise
        print(f"exaslurm: error: {error}", file=sys.stderr)
        if error.remedy:
            print(f"  remedy: {error.remedy}", file=sys.stderr)
        return int(error.exit_code)
    return int(ExitCode.OK)


if __name__ == "__main__":
    sys.exit(main())
