"""HTTPS: versions, new certificates without a restart, files that cannot be used."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import shutil
import socket
import ssl
import threading
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from exaslurm.api.keys import make_key
from exaslurm.cli.openai_http import ChatClient
from exaslurm.errors import NotReadyError, StateError, UserError
from exaslurm.gateway.endpoint import read_endpoint
from exaslurm.gateway.tls import Certificate, TlsFiles
from exaslurm.rundir import RunDir
from exaslurm.status.routers import ask_router
from tests.tools.certificates import make_certificate
from tests.tools.fleet import INNER, wait_for
from tests.tools.gateway import Gateway

Start = Callable[..., Gateway]


def served_name(port: int) -> str:
    """Subject of the certificate that a server shows."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with (
        socket.create_connection(("127.0.0.1", port), timeout=5) as plain,
        context.wrap_socket(plain) as secure,
    ):
        raw = secure.getpeercert(binary_form=True)
    assert raw is not None
    return next(name for name in (b"one", b"two") if name in raw).decode()


def options(files: tuple[Path, Path]) -> list[str]:
    return ["--tls-cert", str(files[0]), "--tls-key", str(files[1])]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_new_certificate_is_taken_and_connections_stay(
    start: Start, tmp_path: Path, workers: int
) -> None:
    one, two = make_certificate(tmp_path, "one"), make_certificate(tmp_path, "two")
    gateway = start(*options(one), "--workers", workers)
    assert gateway.url.startswith("https://127.0.0.1:")
    port = int(gateway.url.rsplit(":", 1)[1])
    trust = ssl.create_default_context(cafile=str(one[0]))
    trust.load_verify_locations(cafile=str(two[0]))
    with httpx.Client(base_url=gateway.url, verify=trust, trust_env=False, timeout=10) as client:
        assert client.get("/health").status_code == 200
        assert served_name(port) == "one"
        # A key that does not fit is told, and changes nothing.
        shutil.copy(two[1], one[1])
        wait_for(lambda: "going on with the old certificate" in gateway.said)
        assert served_name(port) == "one"
        shutil.copy(two[0], one[0])
        # The parent of several reads it too, to tell it to clients.
        wait_for(lambda: gateway.said.count("new certificate") == workers + (workers > 1))
        assert [served_name(port) for _ in range(6)] == ["two"] * 6
        assert client.get("/health").status_code == 200  # on the connection of before
    assert "private key" not in gateway.said


async def test_no_handshake_fails_while_certificates_change(tmp_path: Path) -> None:
    one, two = make_certificate(tmp_path, "one"), make_certificate(tmp_path, "two")
    live = TlsFiles(tmp_path / "live.pem", tmp_path / "live.key")

    def put(files: tuple[Path, Path]) -> None:
        shutil.copy(files[0], live.cert)
        shutil.copy(files[1], live.key)

    put(one)
    certificate = Certificate(live)
    over = threading.Event()

    def change() -> int:
        """Newest certificates, as fast as they can be read."""
        for number in itertools.count():
            put((one, two)[number % 2])
            certificate.refresh()
            if over.is_set():
                return number
        raise AssertionError

    server = await asyncio.start_server(
        lambda _, writer: writer.close(), "127.0.0.1", 0, ssl=certificate.context
    )
    port = server.sockets[0].getsockname()[1]
    trust = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trust.check_hostname, trust.verify_mode = False, ssl.CERT_NONE
    changing = asyncio.create_task(asyncio.to_thread(change))
    async with server:
        for _ in range(300):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trust)
            assert await reader.read() == b""
            writer.close()
        over.set()
    assert await changing > 20


@pytest.mark.parametrize("workers", [1, 2])
def test_own_clients_accept_that_certificate_and_no_other(
    run_dir: RunDir, start: Start, tmp_path: Path, workers: int
) -> None:
    # Of another name than the address, and of no authority.
    one = make_certificate(tmp_path, "one", host="router.example")
    two = make_certificate(tmp_path, "two", host="router.example")
    gateway = start(*options(one), "--workers", workers)
    (entry,) = read_endpoint(run_dir).routers
    assert entry.certificate == one[0].read_text()
    assert ask_router(entry, INNER, 5.0).replicas == 0
    with pytest.raises(NotReadyError, match="serves no model yet"):
        ChatClient(f"{entry.url}/v1", INNER, entry.certificate).first_model()
    wrong = dataclasses.replace(entry, certificate=two[0].read_text())
    assert ask_router(wrong, INNER, 5.0).replicas is None
    for certificate in ("", wrong.certificate):
        with pytest.raises(UserError, match="is not trusted here"):
            ChatClient(f"{entry.url}/v1", INNER, certificate).first_model()
    shutil.copy(two[1], one[1])
    shutil.copy(two[0], one[0])
    wait_for(lambda: read_endpoint(run_dir).routers[0].certificate == wrong.certificate)
    wait_for(lambda: ask_router(wrong, INNER, 5.0).replicas == 0)
    begun = time.monotonic()
    make_key(run_dir, "fresh")
    assert time.monotonic() - begun < 4  # it could ask the router, and did not wait in vain
    assert gateway.process.poll() is None


def test_old_tls_and_plain_http_are_refused(start: Start, tmp_path: Path) -> None:
    gateway = start(*options(make_certificate(tmp_path, "one")))
    port = int(gateway.url.rsplit(":", 1)[1])
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
    old.set_ciphers("DEFAULT:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
    with (
        socket.create_connection(("127.0.0.1", port), timeout=5) as plain,
        pytest.raises((ssl.SSLError, ConnectionError)),
    ):
        old.wrap_socket(plain)
    with pytest.raises(httpx.TransportError):
        httpx.get(f"http://127.0.0.1:{port}/health", trust_env=False)


def test_a_key_that_others_can_read_is_told(start: Start, tmp_path: Path) -> None:
    files = make_certificate(tmp_path, "one")
    files[1].chmod(0o644)
    gateway = start(*options(files))
    assert f"others can use the private key {files[1]}" in gateway.said


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--tls-cert", "{cert}"], "--tls-cert and --tls-key belong together"),
        (["--tls-cert", "{cert}", "--tls-key", "/nowhere"], "cannot read /nowhere"),
        (["--tls-cert", "{key}", "--tls-key", "{key}"], "no certificate and key"),
    ],
)
def test_what_cannot_be_used_is_told_at_the_start(
    start: Start, tmp_path: Path, arguments: list[str], words: str
) -> None:
    cert, key = make_certificate(tmp_path, "one")
    gateway = start(*(word.format(cert=cert, key=key) for word in arguments))
    assert gateway.end() == 2
    assert words in gateway.said
    assert "Traceback" not in gateway.said


def test_a_certificate_in_use_is_never_half_changed(tmp_path: Path) -> None:
    one, two = make_certificate(tmp_path, "one"), make_certificate(tmp_path, "two")
    certificate = Certificate(TlsFiles(*one))
    shutil.copy(two[0], one[0])
    for _ in range(2):
        with pytest.raises(StateError, match="going on with the old certificate"):
            certificate.refresh()
    assert handshake(certificate.context) == b"one"
    shutil.copy(two[1], one[1])
    certificate.refresh()
    assert handshake(certificate.context) == b"two"
    one[1].unlink()
    with pytest.raises(StateError, match="cannot read"):
        certificate.refresh()
    assert handshake(certificate.context) == b"two"


def handshake(context: ssl.SSLContext) -> bytes:
    """The name in the certificate that a server with this context shows, without a network."""
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = context.wrap_bio(up, down, server_side=True)
    theirs = client.wrap_bio(down, up, server_side=False)
    for _ in range(10):
        for side in (theirs, ours):
            with contextlib.suppress(ssl.SSLWantReadError):
                side.do_handshake()
        if theirs.version() and (raw := theirs.getpeercert(binary_form=True)):
            return next(name for name in (b"one", b"two") if name in raw)
    raise AssertionError("no handshake")


def test_an_encrypted_key_is_refused_not_asked_for(tmp_path: Path) -> None:
    cert, key = make_certificate(tmp_path, "one")
    locked = "-----BEGIN ENCRYPTED PRIVATE KEY-----\nMIIB\n-----END ENCRYPTED PRIVATE KEY-----\n"
    key.write_text(locked)
    with pytest.raises(UserError, match="no certificate and key"):
        Certificate(TlsFiles(cert, key))
