"""Client keys that work as soon as they are handed out."""

from __future__ import annotations

import contextlib
import http.client
import time
import urllib.error
import urllib.request
from typing import TYPE_CHECKING

from exaslurm.api.endpoint import routers_in_reach
from exaslurm.core.codec import loads
from exaslurm.core.plan import Plan
from exaslurm.errors import StateError, UserError
from exaslurm.keys.clients import KeyInfo, KeyOptions, add_key, change_key
from exaslurm.rundir import RunDir
from exaslurm.util.files import read_text

if TYPE_CHECKING:
    from typing_extensions import Unpack

# Routers read the keys every second.
KNOWN_TIMEOUT_S = 5.0
_PAUSE_S = 0.1
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


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
        while not _knows(router.url, key) and time.monotonic() < deadline:
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
    generation = run_dir.latest()
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


def _knows(url: str, key: str) -> bool:
    """Whether a router takes the key; true as well if it does not answer at all."""
    request = urllib.request.Request(f"{url}/v1/models", headers={"Authorization": f"Bearer {key}"})
    try:
        with _OPENER.open(request, timeout=2.0):
            return True
    except urllib.error.HTTPError as error:
        with contextlib.closing(error):
            return error.code != 401
    except (OSError, http.client.HTTPException):
        return True
