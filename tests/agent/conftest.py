"""Fixtures: a node with a real init and agent."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tests.agent.harness import Node, make_plan


@pytest.fixture
def root() -> Iterator[Path]:
    """A directory with a path that is short enough for sockets."""
    path = Path(tempfile.mkdtemp(prefix="xt-", dir="/tmp"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
async def make_node(root: Path) -> AsyncIterator[Callable[..., Node]]:
    """Makes (one) node whose engine plan has the given fields."""
    nodes: list[Node] = []

    def make(behaviour: str = "", extra_args: Sequence[str] = ()) -> Node:
        env = {"FAKE_ENGINE": behaviour}
        nodes.append(Node(root, make_plan(root, env=env, extra_args=tuple(extra_args))))
        return nodes[0]

    yield make
    for node in nodes:
        await node.stop()
