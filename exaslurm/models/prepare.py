"""``python -m exaslurm.models.prepare``: get one model ready for engines.

stdout: with ``--json`` one line ``{"path": ..., "sha256": ..., "seconds": ...}``, else the path.
Exit code 0, or 1 with one error on stderr.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import typing
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from exaslurm.core import codec
from exaslurm.core.plan import ModelSource
from exaslurm.errors import ExaslurmError, ExitCode
from exaslurm.models.cache import prepare
from exaslurm.models.convert import Dtype


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    arguments = _parser().parse_args(argv)
    # Libraries draw progress bars, which fill a log; tqdm reads this when it is imported.
    os.environ.setdefault("TQDM_DISABLE", "1")
    # An exception, so that the lock and half-made files are removed.
    signal.signal(signal.SIGTERM, _interrupted)
    try:
        source = codec.loads(ModelSource, arguments.source_json, where="--source-json")
        ready = prepare(
            source,
            arguments.cache,
            dtype=arguments.dtype,
            verify=arguments.verify,
            timeout_s=arguments.timeout_s,
        )
    except ExaslurmError as error:
        print(f"exaslurm.models.prepare: error: {error}", file=sys.stderr)
        if error.remedy:
            print(f"    remedy: {error.remedy}", file=sys.stderr)
        return int(ExitCode.INTERNAL)
    print(codec.dumps(ready) if arguments.json else ready.path)
    return int(ExitCode.OK)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m exaslurm.models.prepare", description="Get one model ready for engines."
    )
    parser.add_argument(
        "--source-json", required=True, metavar="JSON", help="a ModelSource of the plan"
    )
    parser.add_argument("--cache", required=True, type=Path, help="a directory all nodes share")
    parser.add_argument("--dtype", choices=typing.get_args(Dtype), default="bfloat16",
                        help="what a GGUF file is converted to (default: %(default)s)")  # fmt: skip
    parser.add_argument("--verify", action="store_true", help="compare all checksums")
    parser.add_argument("--timeout-s", type=float, default=1800.0, metavar="S",
                        help="longest wait for another process (default: %(default)s)")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="one line of JSON on stdout")
    return parser


def _interrupted(number: int, frame: FrameType | None) -> None:
    del frame
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
