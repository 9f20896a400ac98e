"""HTTPS: the certificate, and a new one without a restart."""

from __future__ import annotations

import contextlib
import logging
import os
import ssl
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from exaslurm.errors import StateError, UserError
from exaslurm.util.files import open_at_once

log = logging.getLogger(__name__)

_BEGIN, _END = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
_MAX_PEM_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Where certificate chain and private key are (PEM)."""

    cert: Path
    key: Path


class Certificate:
    """A server's TLS context, kept up to date with its files.

    Connections go on as they began; new ones get the new certificate. That is in a context of its
    own, which each handshake is given: one that is in use must not be loaded anew, since meanwhile
    it has a certificate without its key, and OpenSSL may fall over it.
    """

    def __init__(self, files: TlsFiles) -> None:
        """UserError if the files cannot be used."""
        self._files = files
        self._pem = _read(files)
        self.context = self._newest = _context(self._pem, files)
        self.context.sni_callback = self._begins
        self._check_mode()

    def _begins(self, handshake: ssl.SSLObject, _name: str | None, _: ssl.SSLContext) -> None:
        """A handshake, with a name or without."""
        handshake.context = self._newest

    @property
    def leaf(self) -> str:
        """The certificate itself, without its chain (PEM)."""
        text = self._pem[0].decode("ascii", errors="replace")
        return text[text.index(_BEGIN) : text.index(_END) + len(_END)] + "\n"

    def refresh(self) -> None:
        """Take what the files hold now. StateError if that cannot be used; the certificate so far
        stays in use then."""
        try:
            pem = _read(self._files)
            if pem == self._pem:
                return
            self._newest = _context(pem, self._files)
        except UserError as error:
            raise StateError(f"going on with the old certificate: {error}") from None
        self._pem = pem
        log.info("new certificate from %s", self._files.cert)
        self._check_mode()

    def _check_mode(self) -> None:
        mode = stat.S_IMODE(self._files.key.stat().st_mode)
        if mode & 0o077:
            log.warning(
                "others can use the private key %s (mode %04o): chmod 600", self._files.key, mode
            )


def certificate_of(files: TlsFiles | None) -> Certificate | None:
    """The certificate of these files, None without any. UserError as of ``Certificate``."""
    return Certificate(files) if files is not None else None


def _context(pem: tuple[bytes, bytes], files: TlsFiles) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    try:
        _load(context, pem)
    except (ssl.SSLError, ValueError) as error:
        reason = getattr(error, "reason", None) or str(error)
        raise UserError(
            f"{files.cert} and {files.key} are no certificate and key for HTTPS: {reason}",
            remedy="both are PEM files; the key belongs to the first certificate, without password",
        ) from None
    return context


def _load(context: ssl.SSLContext, pem: tuple[bytes, bytes]) -> None:
    """From memory: files could change between a check and their use."""
    cert, key = pem
    with _as_path(cert) as cert_path, _as_path(key) as key_path:
        # Without a password function OpenSSL would ask for one at the terminal.
        context.load_cert_chain(cert_path, key_path, password=lambda: "")


@contextlib.contextmanager
def _as_path(data: bytes) -> Iterator[str]:
    fd = os.memfd_create("pem", os.MFD_CLOEXEC)
    try:
        with os.fdopen(os.dup(fd), "wb") as file:
            file.write(data)
        yield f"/proc/self/fd/{fd}"
    finally:
        os.close(fd)


def _read(files: TlsFiles) -> tuple[bytes, bytes]:
    return _read_one(files.cert), _read_one(files.key)


def _read_one(path: Path) -> bytes:
    try:
        with open_at_once(path) as file:
            return file.read(_MAX_PEM_BYTES)
    except OSError as error:
        raise UserError(
            f"cannot read {path}: {os.strerror(error.errno or 0)}",
            remedy="check --tls-cert and --tls-key, or gateway.tls",
        ) from None
