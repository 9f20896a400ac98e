"""The router's own errors, in OpenAI's form."""

from __future__ import annotations

import json
from collections.abc import Mapping

_TYPES = {
    400: "BadRequestError",
    401: "AuthenticationError",
    403: "PermissionDeniedError",
    404: "NotFoundError",
    405: "MethodNotAllowedError",
    408: "RequestTimeoutError",
    413: "RequestTooLargeError",
    429: "RateLimitError",
    431: "RequestTooLargeError",
    500: "InternalServerError",
    502: "BadGatewayError",
    503: "ServiceUnavailableError",
}


class RequestError(Exception):
    """A request that the router answers itself. ``param`` names the field at fault; ``cause`` is
    the reason in a word of a bounded set, for the accounts."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
        cause: str = "",
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.cause = cause
        self.headers = dict(headers or {})

    def body(self) -> bytes:
        return error_body(self.status, self.message, self.param)


def error_body(status: int, message: str, param: str | None = None) -> bytes:
    """``{"error": {"message", "type", "param", "code"}}``, as vLLM writes it."""
    error = {
        "message": message,
        "type": _TYPES.get(status, "InternalServerError" if status >= 500 else "BadRequestError"),
        "param": param,
        "code": status,
    }
    text = json.dumps({"error": error}, ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", "replace")  # what a client wrote may be half a surrogate
