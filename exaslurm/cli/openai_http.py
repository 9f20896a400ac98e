"""A small OpenAI client for ``chat``: standard library only, never through a web proxy."""

from __future__ import annotations

import contextlib
import http.client
import json
import secrets
import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from exaslurm.errors import NotReadyError, UserError
from exaslurm.rundir import RunDir
from exaslurm.util.reach import connect

CONNECT_TIMEOUT_S = 10.0
ANSWER_TIMEOUT_S = 600.0
KEY_LIFE_S = 3600.0


@dataclass(frozen=True, slots=True)
class ChatClient:
    """``base`` ends in ``/v1``. ``certificate``: the one that its server is known to show (PEM)."""

    base: str
    key: str
    certificate: str = ""

    def first_model(self) -> str:
        """The first served name. NotReadyError if nothing is served yet."""
        with self._request("GET", "/models") as answer:
            page = self._object(answer.read())
        try:
            names = [item["id"] for item in page["data"]]
        except (KeyError, TypeError):
            raise self._stranger() from None
        if not names:
            raise NotReadyError(
                "the router serves no model yet",
                remedy="exaslurm status DEPLOYMENT tells what it waits for",
            )
        return str(names[0])

    def ask(self, messages: list[dict[str, str]], options: Mapping[str, Any]) -> dict[str, Any]:
        """The whole answer object."""
        body = {**options, "messages": messages}
        with self._request("POST", "/chat/completions", body) as answer:
            return self._object(answer.read())

    def stream(self, messages: list[dict[str, str]], options: Mapping[str, Any]) -> Iterator[str]:
        """The answer's text, piece by piece as it comes."""
        body = {**options, "messages": messages, "stream": True}
        with self._request("POST", "/chat/completions", body) as answer:
            for event in _events(answer):
                if "error" in event:
                    raise NotReadyError(f"the answer broke off: {_message(event)}")
                for choice in event.get("choices", ()):
                    piece = choice.get("delta", {}).get("content")
                    if piece:
                        yield piece

    @contextlib.contextmanager
    def _request(
        self, method: str, path: str, body: Mapping[str, Any] | None = None
    ) -> Iterator[http.client.HTTPResponse]:
        connection = self._connect()
        try:
            try:
                answer = self._send(connection, method, path, body)
                refused = None if answer.status == 200 else answer.read()
            except ssl.SSLCertVerificationError as error:
                raise UserError(
                    f"the certificate of {self.base} is not trusted here: {error.verify_message}",
                    remedy="let SSL_CERT_FILE name the authority's certificate",
                ) from None
            except (OSError, http.client.HTTPException) as error:
                raise NotReadyError(
                    f"no answer from the router at {self.base}: {error}",
                    remedy="exaslurm status DEPLOYMENT tells whether it runs",
                ) from None
            if refused is not None:
                raise _refusal(answer.status, refused, self.base)
            yield answer
        finally:
            connection.close()

    def _object(self, raw: bytes) -> dict[str, Any]:
        try:
            found = json.loads(raw)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise self._stranger()
        return found

    def _stranger(self) -> UserError:
        return UserError(
            f"what answers at {self.base} is no OpenAI server", remedy="the address ends in /v1"
        )

    def _connect(self) -> http.client.HTTPConnection:
        try:
            if not self.base.startswith(("http://", "https://")):
                raise ValueError
            return connect(self.base, certificate=self.certificate, timeout_s=CONNECT_TIMEOUT_S)
        except ValueError:
            raise UserError(
                f"{self.base!r} is no address of a router", remedy="such as http://HOST:PORT/v1"
            ) from None

    def _send(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        path: str,
        body: Mapping[str, Any] | None,
    ) -> http.client.HTTPResponse:
        connection.connect()
        # Connecting is quick or fails; an answer may take its time.
        connection.sock.settimeout(ANSWER_TIMEOUT_S)
        if not self.key.isascii() or not self.key.isprintable():
            raise UserError("the key is damaged: it has characters that no key has")
        headers = {"Authorization": f"Bearer {self.key}"}
        data = None
        if body is not None:
            data = json.dumps(body).encode()
            headers["Content-Type"] = "application/json"
        connection.request(method, urlsplit(self.base).path + path, body=data, headers=headers)
        return connection.getresponse()


def _events(answer: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
    """The JSON of each server-sent event, up to ``[DONE]``."""
    for raw in _lines(answer):
        line = raw.decode("utf-8", errors="replace").strip()
        if not line.startswith("data:"):
            continue
        data = line[5:].strip()
        if data == "[DONE]":
            return
        try:
            event = json.loads(data)
        except ValueError:
            raise NotReadyError(f"the answer broke off: {data[:80]!r} is no event") from None
        if isinstance(event, dict):
            yield event


def _lines(answer: http.client.HTTPResponse) -> Iterator[bytes]:
    while True:
        try:
            line = answer.readline()
        except (OSError, http.client.HTTPException) as error:
            raise NotReadyError(f"the answer broke off: {error}") from None
        if not line:
            return
        yield line


def _message(body: Mapping[str, Any]) -> str:
    error = body.get("error")
    if isinstance(error, Mapping):
        return str(error.get("message", error))
    return str(error or body.get("message") or body)


def _refusal(status: int, raw: bytes, base: str) -> Exception:
    try:
        text = _message(json.loads(raw))
    except ValueError:
        text = raw.decode("utf-8", errors="replace")[:200] or "no reason given"
    if status == 401:
        return UserError(
            f"the router does not know this key: {text}",
            remedy="exaslurm key list shows the names; exaslurm key add makes a new key",
        )
    if status == 404:
        return UserError(f"{text}", remedy=f"names that are served: GET {base}/models")
    if status in (400, 403, 413, 422):
        return UserError(f"the router refused the request ({status}): {text}")
    return NotReadyError(
        f"the router answered {status}: {text}", remedy="exaslurm status DEPLOYMENT"
    )


@contextlib.contextmanager
def borrowed_key(run_dir: RunDir, given: str | None) -> Iterator[str]:
    """The given key, or one of our own that is removed again (and expires by itself if this
    process is killed)."""
    if given:
        yield given
        return
    from exaslurm.api.keys import make_key
    from exaslurm.keys.clients import remove_key

    name = f"chat-{secrets.token_hex(4)}"
    key = make_key(run_dir, name, expires_s=KEY_LIFE_S)
    try:
        yield key
    finally:
        remove_key(run_dir, name)
