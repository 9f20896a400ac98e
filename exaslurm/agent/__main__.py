"""``python -m exaslurm.agent``: what init starts on every node."""

from __future__ import annotations

import asyncio
import logging
import os
import sys

from exaslurm.agent.node import NodeAgent
from exaslurm.agent.settings import parse
from exaslurm.errors import ExaslurmError
from exaslurm.util.logthread import LogThread

log = logging.getLogger("exaslurm.agent")


async def serve(argv: list[str]) -> int:
    """Run the agent; its exit code."""
    return await NodeAgent(parse(argv)).run()


def main(argv: list[str]) -> int:
    """Run until the end; an error of ours is one line."""
    os.umask(0o077)
    lines = LogThread("agent")
    try:
        code = asyncio.run(serve(argv))
    except ExaslurmError as error:
        log.error("%s%s", error, f" ({error.remedy})" if error.remedy else "")
        code = 1
    except Exception:
        log.exception("unforeseen")
        code = 1
    lines.close()
    os._exit(code)  # threads may hang on a file system


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
