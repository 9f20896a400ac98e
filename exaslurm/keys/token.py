"""Short-lived tokens with which a client may call one engine directly.

A token is ``xt1.PAYLOAD.MAC``: base64url of a small JSON object, and of its HMAC-SHA256 under a key
derived from the engine's own (the deployment's internal key). It names one replica and the models
that may be asked for, and it ends by itself: nothing has to be revoked, and nothing is stored.
Standard library only, as engines import it too.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import secrets
from dataclasses import dataclass

PREFIX = "xt1."
# Clocks of nodes and gateway may differ by so much: a token is accepted that long after its end.
SKEW_S = 30.0
# However it was signed: an engine accepts no token that is to live longer than this.
MOST_S = 24 * 3600.0
_MAX_CHARS = 8192
_PURPOSE = b"exaslurm direct token 1"
_NONCE_BYTES = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Claims:
    """What a token says: whose key it was given for, the replica it is for, the names that may
    stand in the field ``model``, and its end (Unix seconds)."""

    key_name: str
    replica: str
    models: tuple[str, ...]
    expires_at_s: int


class TokenSigner:
    """Makes and checks tokens; ``key`` is the engine's own key."""

    def __init__(self, key: str) -> None:
        # Derived, so that a token can never be confused with another use of the key.
        self._key = hmac.new(key.encode(), _PURPOSE, hashlib.sha256).digest()

    def sign(self, claims: Claims) -> str:
        payload = {
            "k": claims.key_name,
            "r": claims.replica,
            "m": list(claims.models),
            "e": claims.expires_at_s,
            "n": secrets.token_urlsafe(_NONCE_BYTES),
        }
        body = PREFIX + _encode(json.dumps(payload, separators=(",", ":")).encode())
        return f"{body}.{_encode(self._mac(body))}"

    def verify(self, token: str, *, replica: str, now_s: float) -> Claims | str:
        """The claims of a token that is ours, for this replica, and not over; else the reason."""
        body, _, mac = token.rpartition(".")
        if len(token) > _MAX_CHARS or not body.startswith(PREFIX) or not token.isascii():
            return "this is not a token"
        try:
            if not hmac.compare_digest(_decode(mac), self._mac(body)):
                return "its signature is wrong"
            claims = _claims(json.loads(_decode(body[len(PREFIX) :])))
        except (ValueError, KeyError, TypeError, RecursionError):
            return "it is damaged"
        if claims.replica != replica:
            return "it is for another replica"
        left_s = claims.expires_at_s - now_s
        if left_s < -SKEW_S:
            return "it has expired"
        if left_s > MOST_S + SKEW_S:
            return "it is to live too long"
        return claims

    def _mac(self, body: str) -> bytes:
        return hmac.new(self._key, body.encode(), hashlib.sha256).digest()


def _claims(data: dict[str, object]) -> Claims:
    """ValueError, KeyError or TypeError unless the payload is as ``sign`` makes it."""
    key_name, replica, models, end = data["k"], data["r"], data["m"], data["e"]
    if not (isinstance(key_name, str) and isinstance(replica, str) and type(end) is int):
        raise TypeError
    if not (isinstance(models, list) and all(isinstance(name, str) for name in models)):
        raise TypeError
    return Claims(key_name=key_name, replica=replica, models=tuple(models), expires_at_s=end)


def _encode(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def _decode(text: str) -> bytes:
    """ValueError unless the text is what ``_encode`` writes: one token has one spelling."""
    try:
        raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except binascii.Error as error:
        raise ValueError(str(error)) from None
    if _encode(raw) != text:
        raise ValueError("not canonical")
    return raw
