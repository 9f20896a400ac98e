"""``python -m exaslurm.gateway --run-dir DIR``: one router in the foreground."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence

from exaslurm.errors import ExaslurmError, ExitCode
from exaslurm.gateway.options import parse
from exaslurm.gateway.serve import serve


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code: 0 after a regular end, else that of the error (see ExitCode)."""
    given = list(sys.argv[1:] if argv is None else argv)
    try:
        options = parse(given)
        logging.basicConfig(
            level=logging.DEBUG if options.debug else logging.INFO,
            format="%(asctime)s %(process)d %(levelname)s %(name)s: %(message)s",
            stream=sys.stderr,
        )
        serve(options, given)
    except ExaslurmError as error:
        if "--debug" in given:
            raise
        print(f"exaslurm: error: {error}", file=sys.stderr)
        if error.remedy:
            print(f"  remedy: {error.remedy}", file=sys.stderr)
        return int(error.exit_code)
    return int(ExitCode.OK)


if __name__ == "__main__":
    sys.exit(main())
