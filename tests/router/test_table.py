"""What a new list of replicas does to those that are known."""

from __future__ import annotations

import dataclasses

from exaslurm.registry.replica import Replica
from exaslurm.router.table import Table

REPLICA = Replica(
    id="r0",
    cell="engines",
    model="chat",
    served_names=("chat",),
    url="http://127.0.0.1:8000",
    node="n0",
    ready=True,
    key="first",
)


def test_a_new_key_is_shown_to_the_engine() -> None:
    table = Table()
    table.update([REPLICA])
    before = table.target("r0")
    table.update([dataclasses.replace(REPLICA, state="ready")])
    assert table.target("r0") is before
    table.update([dataclasses.replace(REPLICA, key="second")])
    after = table.target("r0")
    assert after is not None
    assert b"second" in after.endpoint.after_url
