"""``python -m exaslurm.agent``: what init starts on every node."""

from __future__ import annotations

import asyncio
import logging
import logging.handlers
import os
import queue
import sys

from exaslurm.agent.node import NodeAgent
from exaslurm.agent.settings import parse
from exaslurm.errors import ExaslurmError

log = logging.getLogger("exaslurm.agent")


def start_logging() -> logging.handlers.QueueListener:
    """Log to stderr from a thread: its reader may hang, the agent must not."""
    lines: queue.SimpleQueue[logging.LogRecord] = queue.SimpleQueue()
    stream = logging.StreamHandler(sys.stderr)
    stream.setFormatter(
        logging.Formatter("%(asctime)s agent: %(message)s", datefmt="%Y-%m-%dT%H:%M:%S")
    )
    listener = logging.handlers.QueueListener(lines, stream)
    entry = logging.handlers.QueueHandler(lines)
    entry.setFormatter(logging.Formatter())  # it formats too: the bare message
    logging.basicConfig(level=logging.INFO, handlers=[entry])
    listener.start()
    return listener


async def serve(argv: list[str]) -> int:
    """Run the agent; its exit code."""
    return await NodeAgent(parse(argv)).run()


def main(argv: list[str]) -> int:
    """Run until the end; an error of ours is one line."""
    os.umask(0o077)
    listener = start_logging()
    try:
        code = asyncio.run(serve(argv))
    except ExaslurmError as error:
        log.error("%s%s", error, f" ({error.remedy})" if error.remedy else "")
        code = 1
    listener.enqueue_sentinel()
    # The listener's thread may hang on stderr, file threads on a mount: give it a moment only.
    thread = listener._thread  # noqa: SLF001
    if thread is not None:
        thread.join(1.0)
    os._exit(code)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
