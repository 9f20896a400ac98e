"""Fixture: init with a stub agent."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.bootstrap.harness import InitUnderTest, running_init


@pytest.fixture
def init() -> Iterator[InitUnderTest]:
    with running_init() as init:
        yield init
