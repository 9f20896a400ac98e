"""Whom a router without a deployment answers: which keys its clients show."""

from __future__ import annotations

import os
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

from exaslurm.errors import StateError, UserError
from exaslurm.gateway.options import GatewayOptions
from exaslurm.keys.clients import ClientKeys, KeyInfo
from exaslurm.keys.secrets import read_secret
from exaslurm.util.loopback import is_loopback

KEY_VARIABLE = "EXASLURM_ROUTER_KEY"
_NAME = "client"


def client_keys(options: GatewayOptions, environ: Mapping[str, str]) -> ClientKeys | None:
    """What the options (else ``$EXASLURM_ROUTER_KEY``) say; None: nobody is asked for a key.

    UserError if nothing is said, or too much; StateError for a file that others can read.
    """
    ways = [options.keys_file is not None, options.key_file is not None, options.no_auth]
    if sum(ways) > 1:
        raise UserError("give one of --keys-file, --key-file and --no-auth")
    if options.no_auth:
        if options.tcp and not is_loopback("127.0.0.1" if options.bind is None else options.bind):
            raise UserError(
                f"--no-auth with --bind {options.bind}: everybody who reaches this host could use "
                "the engines",
                remedy="give --key-file FILE, or listen on 127.0.0.1 or a unix socket only",
            )
        return None
    if options.keys_file is not None:
        if not options.keys_file.exists():
            raise StateError(f"{options.keys_file} does not exist")
        return ClientKeys(options.keys_file)
    if options.key_file is not None:
        return OneKey(options.key_file)
    key = environ.get(KEY_VARIABLE, "").strip()
    if not key:
        raise UserError(
            "no key is set for clients",
            remedy=f"--key-file FILE (mode 0600) or ${KEY_VARIABLE} for one key, --keys-file FILE "
            "for several, --no-auth for none (loopback and unix sockets only)",
        )
    return OneKey(key)


class OneKey(ClientKeys):
    """One key for all clients, from a private file (read again when it changes) or as it is."""

    def __init__(self, source: Path | str) -> None:
        super().__init__(source if isinstance(source, Path) else Path(os.devnull))
        self._file = source if isinstance(source, Path) else None
        self._key = ""
        if isinstance(source, str):
            self._take(source)

    def refresh(self) -> bool:
        """Read the file again, if there is one; true if it holds another key now."""
        return self._file is not None and self._take(read_secret(self._file))

    def _take(self, key: str) -> bool:
        if key == self._key:
            return False
        self._key = key
        info = KeyInfo(name=_NAME, created_s=0.0)
        self._by_digest = {sha256(key.encode()).digest(): info}
        return True
