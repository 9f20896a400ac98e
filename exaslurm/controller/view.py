"""The part of a cell's state that routers ask for every second. Pure.

The whole state of a full cell is 130 KB of JSON; a router over sixteen cells would spend more time
on reading it than on anything else that is not a request. So a router shows the ``tag`` of what it
knows, and as long as that is right it gets figures only.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from exaslurm.core.cell import CellState, ReplicaStatus


def router_view(state: CellState, seen: str) -> dict[str, Any]:
    """JSON data for the answer to ``GET /v1/state?router=SEEN``.

    ``loads`` has one entry for each replica, in order: ``[running, waiting, kv_use]`` or None.
    ``replicas`` is there only if ``tag`` is not the one that was seen.
    """
    view: dict[str, Any] = {
        "deployment": state.deployment,
        "cell": state.cell,
        "phase": state.phase,
        "replicas": [_replica(status) for status in state.replicas],
    }
    digest = hashlib.sha256(json.dumps(view, sort_keys=True).encode()).hexdigest()
    view["tag"] = digest[:16]
    view["loads"] = [
        None if (load := status.load) is None else [load.running, load.waiting, load.kv_use]
        for status in state.replicas
    ]
    if view["tag"] == seen:
        del view["replicas"]
    return view


def _replica(status: ReplicaStatus) -> dict[str, Any]:
    return {
        "id": status.id,
        "model": status.model,
        "served_names": status.served_names,
        "state": status.state,
        "node": status.node,
        "url": status.url,
        "cause": status.cause,
        "pid": status.pid,
        "max_model_len": status.max_model_len,
        "simulated": status.simulated,
        "version": status.version,
        "sleeping": status.load is not None and status.load.sleeping,
    }
