from __future__ import annotations

import resource
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.router.conftest import make_router
from tests.tools.farm import Behaviour, FarmThread, as_asked
from tests.tools.fleet import Router
from tests.tools.served import Served

__all__ = ["make_router"]

MakeFarm = Callable[..., FarmThread]


@pytest.fixture
def make_farm() -> Iterator[MakeFarm]:
    """Engines that do what requests ask, or what is given."""
    farms: list[FarmThread] = []

    def make(count: int = 1, behave: Behaviour = as_asked) -> FarmThread:
        farms.append(FarmThread(count, behave))
        return farms[-1]

    yield make
    for farm in farms:
        farm.end()


@pytest.fixture
def router_of(make_router: Callable[..., Router]) -> Callable[..., Router]:
    """A router over all engines of a farm, in this process."""

    def make(farm: FarmThread, **settings: Any) -> Router:
        router = make_router(**settings)
        router.replace(*farm.replicas())
        return router

    return make


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Served]]:
    """A router process over engines at addresses."""
    started: list[Served] = []

    def make(urls: Sequence[str], *options: str) -> Served:
        started.append(Served(tmp_path, urls, *options))
        return started[-1]

    yield make
    for served in started:
        served.close()


@pytest.fixture
def descriptors() -> None:
    """Enough of them for thousands of connections in this process, or the test is skipped."""
    needed = 16_384
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < needed:
        if hard != resource.RLIM_INFINITY and hard < needed:
            pytest.skip(f"needs {needed} descriptors, the limit is {hard}")
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
