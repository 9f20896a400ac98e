"""What is no engine keeps off the engines' cores."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from exaslurm.agent.children import Child
from exaslurm.agent.service_cores import ServiceCores
from tests.agent.test_affinity import binding

OURS = sorted(os.sched_getaffinity(0))


class OneChild:
    """Init's table with Ray in it."""

    def __init__(self, pid: int) -> None:
        self.child = Child("ray", pid, 1, 0.0)

    def get(self, name: str) -> Child | None:
        return self.child if name == "ray" else None

    async def members(self, child: Child) -> list[int]:
        return [child.pid]


@pytest.fixture
def ray() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    yield process
    process.kill()
    process.wait()
    for thread in os.listdir("/proc/self/task"):
        os.sched_setaffinity(int(thread), OURS)


@pytest.mark.skipif(len(OURS) < 2, reason="needs two CPUs")
async def test_agent_and_ray_move_to_what_is_left_and_back(ray: Any) -> None:
    service = ServiceCores(OneChild(ray.pid), OURS, ("ray", "controller"))  # type: ignore[arg-type]
    service.want([binding(OURS[0])])
    await service.settle()
    left = set(OURS[1:])
    assert os.sched_getaffinity(0) == os.sched_getaffinity(ray.pid) == left
    # Replicas that take all, or share all, leave everything to everybody.
    service.want([binding(*OURS)])
    await service.settle()
    assert os.sched_getaffinity(ray.pid) == set(OURS)
    service.want([binding(OURS[0], pinned=False)])
    await service.settle()
    assert os.sched_getaffinity(ray.pid) == set(OURS)
    service.want([binding(OURS[1])])
    await service.settle()
    assert os.sched_getaffinity(ray.pid) == set(OURS) - {OURS[1]}
    service.want([])
    await service.settle()
    assert os.sched_getaffinity(0) == os.sched_getaffinity(ray.pid) == set(OURS)
