"""An engine that answers with the bytes a test gives it, and then cuts the connection."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading

from exaslurm.registry.replica import Replica

# It says that it closes: a connection that ends without a word looks like an engine that died.
OK = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}"


class RawEngine:
    """Records each request as it came. ``answer`` is sent as it is; ``reset`` ends the
    connection with RST instead of FIN."""

    def __init__(self, answer: bytes = OK) -> None:
        self.requests: list[bytes] = []
        self.answer = answer
        self.reset = False
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def replica(self, ident: str = "c000-r0000", *names: str) -> Replica:
        return Replica(
            id=ident,
            cell="c000",
            model="chat",
            served_names=names or ("chat",),
            url=self.url,
            node=f"node-{ident}",
            ready=True,
            state="ready",
        )

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(timeout=5)

    def _serve(self) -> None:
        while True:
            try:
                peer, _ = self._socket.accept()
            except OSError:
                return
            with peer, contextlib.suppress(OSError):
                self._one(peer)

    def _one(self, peer: socket.socket) -> None:
        peer.settimeout(5)
        data = b""
        while b"\r\n\r\n" not in data:
            data += (part := peer.recv(65536))
            if not part:
                return
        head, _, body = data.partition(b"\r\n\r\n")
        fields = dict(line.split(b": ", 1) for line in head.lower().split(b"\r\n")[1:])
        while len(body) < int(fields.get(b"content-length", 0)):
            body += peer.recv(65536)
        self.requests.append(head + b"\r\n\r\n" + body)
        peer.sendall(self.answer)
        if self.reset:
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
