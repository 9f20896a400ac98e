"""What the routers of a deployment say."""

from __future__ import annotations

import contextlib
import http.client
import json
from dataclasses import dataclass

from exaslurm.core.submission import RouterAddress
from exaslurm.util.reach import connect

_MAX_ANSWER_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class RouterView:
    """``replicas``: how many take requests as this router sees it; None: it gives no answer."""

    url: str
    replicas: int | None


def ask_router(router: RouterAddress, key: str, timeout_s: float) -> RouterView:
    """Ask one router which replicas it would send requests to."""
    url = router.url.rstrip("/")
    try:
        connection = connect(url, certificate=router.certificate, timeout_s=timeout_s)
        with contextlib.closing(connection):
            connection.request("GET", "/status", headers={"Authorization": f"Bearer {key}"})
            page = json.loads(connection.getresponse().read(_MAX_ANSWER_BYTES))
        usable = sum(bool(item["takes_requests"]) for item in page["replicas"])
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError):
        return RouterView(url, None)
    return RouterView(url, usable)
