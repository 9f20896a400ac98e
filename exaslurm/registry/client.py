"""Asking a cell's controller, synchronously: for ``status``, ``stop`` and scripts."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor, wait

from exaslurm.core.cell import CellState
from exaslurm.core.codec import dumps, loads
from exaslurm.core.drain import DrainRequest
from exaslurm.errors import RegistryError, StateError

_AT_ONCE = 16
_MAX_ANSWER_BYTES = 64 * 1024 * 1024
# Never through a site's web proxy: the controller is in the same cluster.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def fetch_state(state_url: str, key: str, timeout_s: float) -> CellState:
    """The live state of a cell from its controller (``state_url`` is the controller's base
    address, ``key`` the internal key); RegistryError if it does not answer in time."""
    url = state_url.rstrip("/") + "/v1/state"
    raw = _call(url, key, timeout_s, body=None)
    try:
        return loads(CellState, raw, where=url)
    except StateError as error:
        raise RegistryError(f"the controller at {url} speaks another version") from error


def fetch_states(
    state_urls: Mapping[str, str], key: str, *, timeout_s: float, all_s: float
) -> dict[str, CellState]:
    """The live states of several cells, asked at the same time; those that do not answer, each
    within ``timeout_s`` and all within ``all_s``, are left out."""
    if not state_urls:
        return {}
    pool = ThreadPoolExecutor(max_workers=min(_AT_ONCE, len(state_urls)))
    asked = {
        pool.submit(fetch_state, url, key, timeout_s): name for name, url in state_urls.items()
    }
    done, _ = wait(asked, timeout=all_s)
    pool.shutdown(wait=False, cancel_futures=True)
    found = {}
    for future in done:
        error = future.exception()
        if error is None:
            found[asked[future]] = future.result()
        elif not isinstance(error, RegistryError):
            raise error
    return found


def post_stop(state_url: str, key: str, *, grace_s: float, timeout_s: float) -> None:
    """Ask a cell to stop: engines may finish what they do within ``grace_s``."""
    url = state_url.rstrip("/") + "/v1/stop"
    _call(url, key, timeout_s, body=json.dumps({"grace_s": grace_s}).encode())


def post_drain(state_url: str, key: str, *, timeout_s: float) -> None:
    """Ask a cell to drain: routers shall send it nothing new."""
    _call(state_url.rstrip("/") + "/v1/drain", key, timeout_s, body=b"{}")


def post_drain_request(state_url: str, key: str, asked: DrainRequest, *, timeout_s: float) -> None:
    """Ask a cell to let replicas or nodes go; RegistryError, in the controller's words, if it does
    not know one of them."""
    _call(state_url.rstrip("/") + "/v1/drain", key, timeout_s, body=dumps(asked).encode())


def post_targets(
    state_url: str, key: str, replicas: Mapping[str, int] | None, *, timeout_s: float
) -> None:
    """Tell a cell how many replicas of each shard (``model:shard``) to run; None: all it has."""
    url = state_url.rstrip("/") + "/v1/targets"
    _call(url, key, timeout_s, body=json.dumps({"replicas": replicas}).encode())


def _call(url: str, key: str, timeout_s: float, body: bytes | None) -> bytes:
    headers = {"Authorization": f"Bearer {key}"}
    if body is not None:
        headers["Content-Type"] = "application/json"
    request = urllib.request.Request(url, data=body, headers=headers)
    try:
        with _OPENER.open(request, timeout=timeout_s) as answer:
            raw: bytes = answer.read(_MAX_ANSWER_BYTES)
            return raw
    except urllib.error.HTTPError as error:
        with error:
            why = "it does not know our key" if error.code == 401 else error.reason
        raise RegistryError(f"the controller at {url} answered {error.code}: {why}") from None
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise RegistryError(f"no answer from the controller at {url}: {reason}") from None
