from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator

import pytest

from exaslurm.errors import RegistryError
from exaslurm.registry.client import fetch_state, fetch_states, post_stop

from .test_live import state


class Controller(http.server.ThreadingHTTPServer):
    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.body = state("ready")
        self.posted: list[tuple[str, dict[str, float]]] = []
        self.url = f"http://127.0.0.1:{self.server_port}"


class Handler(http.server.BaseHTTPRequestHandler):
    server: Controller

    def do_GET(self) -> None:
        self._answer(200 if self.path == "/v1/state" else 404, self.server.body)

    def do_POST(self) -> None:
        length = int(self.headers["Content-Length"])
        self.server.posted.append((self.path, json.loads(self.rfile.read(length))))
        self._answer(204, b"")

    def _answer(self, status: int, body: bytes) -> None:
        if self.headers["Authorization"] != "Bearer inner":
            status, body = 401, b""
        self.send_response(status)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def controller(monkeypatch: pytest.MonkeyPatch) -> Iterator[Controller]:
    # A site's proxy must not come between.
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    server = Controller()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_state_and_stop(controller: Controller) -> None:
    found = fetch_state(controller.url + "/", "inner", 5)
    assert [item.state for item in found.replicas] == ["ready"]
    post_stop(controller.url, "inner", grace_s=3.5, timeout_s=5)
    assert controller.posted == [("/v1/stop", {"grace_s": 3.5})]


def test_errors_name_the_address(controller: Controller) -> None:
    with pytest.raises(RegistryError, match="401: it does not know our key"):
        fetch_state(controller.url, "wrong", 5)
    controller.body = b"{}"
    with pytest.raises(RegistryError, match="speaks another version"):
        fetch_state(controller.url, "inner", 5)
    controller.shutdown()
    controller.server_close()
    with pytest.raises(RegistryError, match=f"no answer from the controller at {controller.url}"):
        fetch_state(controller.url, "inner", 5)


def test_several_at_once_without_those_that_do_not_answer(controller: Controller) -> None:
    urls = {"c000": controller.url, "c001": "http://127.0.0.1:1", "c002": controller.url}
    found = fetch_states(urls, "inner", timeout_s=5, all_s=10)
    assert sorted(found) == ["c000", "c002"]
    assert fetch_states({}, "inner", timeout_s=5, all_s=10) == {}
