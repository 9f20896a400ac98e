"""A relay in front of one port of this host that hands everything on late: delay for kernels
without ``netem``. It is a process of its own, which ends by itself after an hour."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys

_MOST_S = 3600.0
_START_S = 10.0
_CHUNK = 65536


def start(address: str, port: int, delay_s: float) -> tuple[int, int]:
    """Start one in front of ``address:port``; its own port and pid. OSError if it does not."""
    process = subprocess.Popen(
        [sys.executable, "-m", "exaslurm.chaos.relay", address, str(port), str(delay_s)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    assert process.stdout is not None
    with process.stdout as told:
        line = told.readline()  # it says so at once, or ends
    if not line.strip().isdigit():
        raise OSError(f"the relay before {address}:{port} did not start")
    return int(line), process.pid


class Late:
    """One direction of a connection: each piece is handed on ``delay_s`` after it came."""

    def __init__(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, delay_s: float):
        self._source = source
        self._sink = sink
        self._delay_s = delay_s
        self._pieces: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(maxsize=1024)

    async def run(self) -> None:
        await asyncio.gather(self._take(), self._give())

    async def _take(self) -> None:
        loop = asyncio.get_running_loop()
        piece = b"-"
        while piece:
            try:
                piece = await self._source.read(_CHUNK)
            except OSError:
                piece = b""
            await self._pieces.put((loop.time() + self._delay_s, piece))

    async def _give(self) -> None:
        loop = asyncio.get_running_loop()
        with contextlib.suppress(OSError):
            while True:
                due_s, piece = await self._pieces.get()
                await asyncio.sleep(max(0.0, due_s - loop.time()))
                if not piece:
                    self._sink.write_eof()
                    return
                self._sink.write(piece)
                await self._sink.drain()


async def serve(address: str, port: int, delay_s: float) -> asyncio.Server:
    """Listen on any port of ``address``; half of the delay in each direction."""

    async def meet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection(address, port)
        except OSError:
            writer.transport.abort()
            return
        there = Late(reader, far_writer, delay_s / 2)
        back = Late(far_reader, writer, delay_s / 2)
        try:
            await asyncio.gather(there.run(), back.run())
        finally:
            for end in (writer, far_writer):
                end.transport.abort()

    return await asyncio.start_server(meet, address, 0)


async def _main(address: str, port: int, delay_s: float) -> None:
    server = await serve(address, port, delay_s)
    print(server.sockets[0].getsockname()[1], flush=True)
    os.close(1)
    await asyncio.sleep(_MOST_S)


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])))
