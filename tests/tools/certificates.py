"""Certificates for tests, made by the openssl command."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest


def make_certificate(directory: Path, name: str, *, host: str = "127.0.0.1") -> tuple[Path, Path]:
    """A self-signed certificate for ``host`` and its key, as ``name.pem`` and ``name.key``."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("no openssl here to make certificates with")
    cert, key = directory / f"{name}.pem", directory / f"{name}.key"
    subject = f"IP:{host}" if host[0].isdigit() else f"DNS:{host}"
    subprocess.run(
        [
            openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
            "-nodes", "-days", "2", "-subj", f"/CN={name}", "-addext", f"subjectAltName={subject}",
            "-keyout", str(key), "-out", str(cert),
        ],
        check=True,
        capture_output=True,
        timeout=30,
    )  # fmt: skip
    key.chmod(0o600)
    return cert, key
