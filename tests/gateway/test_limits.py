"""Limits of a key over several processes: whichever a connection comes to."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator

import httpx
import pytest

from exaslurm.keys.clients import add_key
from exaslurm.rundir import RunDir
from tests.tools.fleet import Engine, engines, wait_for
from tests.tools.gateway import Gateway, publish_engine

Start = Callable[..., Gateway]

ASK = {"model": "chat", "messages": [{"role": "user", "content": "Hello?"}], "max_tokens": 1}


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with engines(("--decode-tokens-per-s", "1000")) as (one,):
        yield one


def ask(gateway: Gateway, key: str) -> int:
    """The status of one request over a connection of its own."""
    with httpx.Client(base_url=gateway.url, trust_env=False, verify=False, timeout=20) as client:
        headers = {"Authorization": f"Bearer {key}"}
        return client.post("/v1/chat/completions", json=ASK, headers=headers).status_code


def test_a_key_has_its_limit_once_and_not_per_process(
    run_dir: RunDir, start: Start, engine: Engine
) -> None:
    publish_engine(run_dir, engine)
    key = add_key(run_dir, "ada", requests_per_min=20)
    free = add_key(run_dir, "bob")
    gateway = start("--workers", 3)
    # Until every process knows the replica: a connection may come to any of them.
    wait_for(lambda: all(ask(gateway, free) == 200 for _ in range(12)), timeout_s=20)
    statuses = Counter(ask(gateway, key) for _ in range(32))
    assert statuses.keys() == {200, 429}
    assert 20 <= statuses[200] <= 22  # one more is earned every 3 seconds

    # A worker that comes in the place of a killed one knows what was used.
    victim = gateway.workers()[0]
    others = set(gateway.workers()) - {victim}
    os.kill(victim, signal.SIGKILL)
    wait_for(lambda: len(set(gateway.workers()) - others) == 1)
    more = Counter(ask(gateway, key) for _ in range(12))
    assert more[429] >= 8
    assert more[200] <= 4
