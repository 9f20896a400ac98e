"""A run directory, and gateways that serve it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from exaslurm.core.codec import dumps
from exaslurm.keys.secrets import ensure_secrets
from exaslurm.rundir import RunDir
from exaslurm.util.files import write_atomic
from tests.tools.fleet import INNER
from tests.tools.gateway import PLAN, Gateway


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    run_dir = RunDir(tmp_path / "hello")
    run_dir.make()
    generation = run_dir.generation(1)
    generation.make(())
    write_atomic(generation.plan, dumps(PLAN, indent=1))
    write_atomic(run_dir.internal_key, INNER)
    ensure_secrets(run_dir)
    return run_dir


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[Callable[..., Gateway]]:
    """Starts gateways with the given options, each with a log of its own."""
    gateways: list[Gateway] = []

    def make(*arguments: object, **environ: str) -> Gateway:
        log = tmp_path / f"gateway-{len(gateways)}.log"
        gateways.append(Gateway(arguments, log, **environ))
        return gateways[-1]

    yield make
    for gateway in gateways:
        gateway.close()


@pytest.fixture
def start(run_dir: RunDir, gateway: Callable[..., Gateway]) -> Callable[..., Gateway]:
    """Starts gateways of the run directory."""

    def make(*arguments: object) -> Gateway:
        return gateway("--run-dir", run_dir.path, *arguments)

    return make
