from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import openai
import pytest

from exaslurm.router.router import COMPILED
from tests.tools.fleet import Engine, Router, engines

# Which package is tested when all is compiled (scripts/test --compiled).
_COMPILED = os.environ.get("EXASLURM_TEST_COMPILED")
if _COMPILED is not None and not COMPILED:
    raise RuntimeError(f"the router is not the compiled one in {_COMPILED}")

FAST = ("--decode-tokens-per-s", "1000")
SLOW = ("--decode-tokens-per-s", "20")


@pytest.fixture(scope="module")
def fast_engines() -> Iterator[list[Engine]]:
    """Two engines that tests of one module share; not to be killed."""
    with engines(FAST, FAST, names=("chat", "chat:base")) as started:
        yield started


@pytest.fixture
def make_router(tmp_path: Path) -> Iterator[Callable[..., Router]]:
    routers: list[Router] = []

    def make(*started: Engine, **settings: object) -> Router:
        replicas = [engine.replica(f"c000-r{i:04}") for i, engine in enumerate(started)]
        router = Router(tmp_path / f"router{len(routers)}", replicas, **settings)
        routers.append(router)
        return router

    yield make
    for router in routers:
        router.close()


@pytest.fixture
def router(make_router: Callable[..., Router], fast_engines: list[Engine]) -> Router:
    return make_router(*fast_engines)


@pytest.fixture
def http(router: Router) -> httpx.Client:
    return router.http


@pytest.fixture
def client(router: Router) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=router.url + "/v1", api_key=router.key, max_retries=0) as made:
        yield made
