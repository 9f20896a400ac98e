"""JSON of the router's own pages."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from exaslurm.keys.clients import KeyInfo
from exaslurm.router.exposition import Family
from exaslurm.router.router import COMPILED, Router
from exaslurm.router.siblings import total
from exaslurm.router.table import Group, Table

STATUS_SCHEMA = "exaslurm/router/1"


def models_page(table: Table, key: KeyInfo, created_s: float) -> dict[str, Any]:
    """``/v1/models`` in OpenAI's form: the served names that are ready, or are made ready for who
    asks, and that the key may use."""
    cards = (model_card(table, key, name, created_s) for name in table.names)
    return {"object": "list", "data": [card for card in cards if card is not None]}


def model_card(table: Table, key: KeyInfo, name: str, created_s: float) -> dict[str, Any] | None:
    """One model, None if it is unknown, not ready, or not for this key."""
    group = table.group(name)
    if group is None or not (group.usable or group.may_wake) or not key.allows(name):
        return None
    lengths = [t.replica.max_model_len for t in group.usable if t.replica.max_model_len]
    return {
        "id": name,
        "object": "model",
        "created": int(created_s),
        "owned_by": "exaslurm",
        "root": table.model_of(group),
        "parent": None,
        "max_model_len": min(lengths, default=None),
        "permission": [],
    }


def status_page(router: Router, others: Sequence[Sequence[Family]] = ()) -> dict[str, Any]:
    """What this router knows and does. ``others``: figures of its other processes, which serve the
    same address. A replica's ``elsewhere`` is what all other processes of this host have there."""
    return {
        "schema": STATUS_SCHEMA,
        "deployment": router.config.deployment,
        "uptime_s": round(time.time() - router.started_s, 1),
        "policy": router.config.policy,
        "compiled": COMPILED,
        "processes": 1 + len(others),
        "in_flight": len(router.active) + int(total(others, "exaslurm_router_in_flight")),
        "waiting": router.admission.waiting + int(total(others, "exaslurm_router_waiting")),
        "models": [_model(group, router.held.counts()) for group in router.table.groups],
        "replicas": [
            {
                "id": target.replica.id,
                "cell": target.replica.cell,
                "model": target.replica.model,
                "node": target.replica.node,
                "url": target.replica.url,
                "state": target.replica.state,
                "takes_requests": target.replica.takes_requests,
                "breaker": target.breaker.state,
                "outstanding": target.outstanding,
                "elsewhere": target.elsewhere,
                "penalty": round(target.penalty, 2),
                "version": target.replica.version,
                "simulated": target.replica.simulated,
                "cause": target.replica.cause,
            }
            for target in router.table.targets
        ],
        "source": dict(router.source.describe()),
    }


def _model(group: Group, held: Mapping[str, int]) -> dict[str, Any]:
    return {
        "name": group.name,
        "replicas": len(group.members),
        "ready": len(group.usable),
        "ejected": len(group.usable) - len(group.closed),
        "outstanding": sum(target.outstanding for target in group.members),
        "asleep": group.may_wake and not group.usable,
        "held": held.get(group.name, 0),
    }
