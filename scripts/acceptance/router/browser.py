"""A page in headless Chromium: it works on its own, and reports to where it came from."""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from acceptance.runner import Line, LineFailed

_PAGE = Path(__file__).with_name("clients") / "page.html"
_NAMES = ("chromium", "chromium-headless-shell", "chromium-browser", "google-chrome")
_PAGE_S = 120.0


def chromium(line: Line) -> str:
    """Path of the browser; Debian's package is installed where there is none."""
    for name in _NAMES:
        if found := shutil.which(name):
            return found
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        raise LineFailed("no Chromium: install the package chromium")
    line.note("installing Chromium")
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    install = ["apt-get", "install", "-qy", "--no-install-recommends", "chromium"]
    for command in (["apt-get", "update", "-q"], install):
        done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=900)
        if done.returncode:
            raise LineFailed(f"{' '.join(command)}: {done.stderr[-1000:]}")
    found = shutil.which("chromium")
    if found is None:
        raise LineFailed("the package chromium has brought no program of that name")
    return found


def visit(browser: str, given: Mapping[str, str], folder: Path) -> list[tuple[str, bool, str]]:
    """What the page found: rows of what, whether it is so, what was seen. ``given``: its url,
    key and model."""
    with _served(given) as (address, told):
        log = folder / "chromium.log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                [
                    browser,
                    *("--headless", "--disable-gpu", "--no-first-run", "--no-proxy-server"),
                    # Nothing but the page: no updates, no lists, no names of other hosts.
                    *("--disable-background-networking", "--disable-component-update"),
                    *("--disable-sync", "--disable-extensions", "--disable-default-apps"),
                    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
                    # /dev/shm of a container is too small; root's browser has no sandbox.
                    "--disable-dev-shm-usage",
                    *(["--no-sandbox"] if os.geteuid() == 0 else []),
                    f"--user-data-dir={folder / 'profile'}",
                    *("--remote-debugging-port=0", address),
                ],
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, "HOME": str(folder)},
            )
        try:
            rows = told.wait(_PAGE_S)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(timeout=20)
        if rows is None:
            raise LineFailed(f"the page told nothing: {log.read_text('utf-8', 'replace')[-2000:]}")
        return [(str(what), bool(ok), str(seen)) for what, ok, seen in rows]


class _Told:
    """What the page sends at its end."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._rows: Any = None

    def put(self, rows: Any) -> None:
        self._rows = rows
        self._event.set()

    def wait(self, timeout_s: float) -> Any:
        """None if nothing came in time."""
        self._event.wait(timeout_s)
        return self._rows


@contextlib.contextmanager
def _served(given: Mapping[str, str]) -> Any:
    """The page's own origin: its address, and what the page tells it."""
    told = _Told()
    text = _PAGE.read_text("utf-8").replace("GIVEN;", json.dumps(dict(given)) + ";")

    class Handler(http.server.BaseHTTPRequestHandler):
        page: ClassVar[bytes] = text.encode()

        def do_GET(self) -> None:
            self._answer(200 if self.path == "/" else 404, self.page if self.path == "/" else b"")

        def do_POST(self) -> None:
            told.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self._answer(200, b"")

        def _answer(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/", told
        finally:
            server.shutdown()
            thread.join(10)
