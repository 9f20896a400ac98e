"""``python -m exaslurm.engines.simulated``: one engine, until SIGTERM."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import sys
from collections.abc import Iterator

import uvicorn

from exaslurm.engines.middleware import KeyMiddleware
from exaslurm.engines.simulated.app import SimulatedApp
from exaslurm.engines.simulated.options import Options, parse

_POLL_S = 0.05


class _Server(uvicorn.Server):
    """A uvicorn server whose signals are handled by us."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve(options: Options) -> None:
    """Listen until a signal; how the end looks to clients is vLLM's way (0.32)."""
    app = SimulatedApp(options)
    config = uvicorn.Config(
        KeyMiddleware(app),
        http="httptools",
        ws="none",
        lifespan="off",
        log_level="warning",
        access_log=False,
        timeout_keep_alive=5,
    )
    server = _Server(config)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if options.load_s:
        await asyncio.sleep(options.load_s)
    sock = _listen(options)
    host, port = sock.getsockname()[:2]
    print(f"simulated engine {options.names[0]!r} on http://{host}:{port}", flush=True)
    serving = asyncio.create_task(server.serve(sockets=[sock]))
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait((serving, stopping), return_when=asyncio.FIRST_COMPLETED)
    if not serving.done():
        await _finish(app, options.shutdown_timeout_s)
        server.should_exit = True
    await serving
    stopping.cancel()


async def _finish(app: SimulatedApp, timeout_s: float) -> None:
    """With time: running requests complete while new ones get a 500. Without: all end now."""
    app.closing = True
    deadline_s = asyncio.get_running_loop().time() + timeout_s
    while asyncio.get_running_loop().time() < deadline_s:
        if not app.scheduler.running and not app.scheduler.waiting:
            break
        await asyncio.sleep(_POLL_S)
    app.scheduler.abort_all()


def _listen(options: Options) -> socket.socket:
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    sock = socket.socket(family)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind((options.host, options.port))
    return sock


def main() -> int:
    options, ignored = parse(sys.argv[1:])
    if ignored:
        print(f"simulated engine: ignored: {' '.join(ignored)}", file=sys.stderr)
    try:
        asyncio.run(serve(options))
    except (OSError, RuntimeError) as error:
        print(f"simulated engine: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
