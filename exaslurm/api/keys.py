"""Client keys that work as soon as they are handed out."""

from __future__ import annotations

import contextlib
import http.client
import time
from typing import TYPE_CHECKING

from exaslurm.api.endpoint import routers_in_reach
from exaslurm.core.codec import loads
from exaslurm.core.plan import Plan
from exaslurm.core.submission import RouterAddress
from exaslurm.errors import StateError, UserError
from exaslurm.keys.clients import KeyInfo, KeyOptions, add_key, change_key
from exaslurm.rundir import RunDir
from exaslurm.util.files import read_text
from exaslurm.util.reach import connect

if TYPE_CHECKING:
    from typing_extensions import Unpack

# Routers read the keys every second.
KNOWN_TIMEOUT_S = 5.0
_PAUSE_S = 0.1


def make_key(run_dir: RunDir, name: str, **options: Unpack[KeyOptions]) -> str:
    """Make a key (see ``keys.clients.add_key``) and wait, for some seconds at most, until the
    routers that can be reached from here know it: whoever gets it may use it at once.

    UserError for a model that the deployment's plan does not have: such a key would be of no use.
    """
    _require_served(run_dir, options)
    key = add_key(run_dir, name, **options)
    deadline = time.monotonic() + KNOWN_TIMEOUT_S
    try:
        routers = routers_in_reach(run_dir)
    except StateError:
        routers = []  # the key is made, and must not be lost for a damaged list of routers
    for router in routers:
        while not _knows(router, key) and time.monotonic() < deadline:
            time.sleep(_PAUSE_S)
    return key


def alter_key(run_dir: RunDir, name: str, **options: Unpack[KeyOptions]) -> KeyInfo:
    """Change a key (see ``keys.clients.change_key``); routers follow within a second or two.

    UserError for a model that the deployment's plan does not have.
    """
    _require_served(run_dir, options)
    return change_key(run_dir, name, **options)


def _require_served(run_dir: RunDir, options: KeyOptions) -> None:
    models = tuple(options.get("models", ()))
    generation = run_dir.current()
    if not models or generation is None:
        return
    plan = loads(Plan, read_text(generation.plan), where=str(generation.plan))
    served = [
        name for model in plan.models for shard in model.shards for name in shard.served_names
    ]
    for name in models:
        if name not in served:
            raise UserError(
                f"{run_dir.deployment} does not serve {name!r}",
                remedy=f"it serves {', '.join(served)}",
            )


def _knows(router: RouterAddress, key: str) -> bool:
    """Whether a router takes the key; true as well if it does not answer at all."""
    try:
        connection = connect(router.url, certificate=router.certificate, timeout_s=2.0)
        with contextlib.closing(connection):
            connection.request("GET", "/v1/models", headers={"Authorization": f"Bearer {key}"})
            return connection.getresponse().status != 401
    except (OSError, http.client.HTTPException, ValueError):
        return True
