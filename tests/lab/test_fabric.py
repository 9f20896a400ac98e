"""The network between nodes, measured in a job step and with a cut cable."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.lab.kit import RunningLab

pytestmark = pytest.mark.lab

PYTHON = "/opt/exaslurm/env/bin/python"
MEASURE = (PYTHON, "-m", "exaslurm.fabric", "--meet", "/exa/shared/scratch", "--interface", "eth0")


@pytest.fixture
def with_fabric(lab: RunningLab) -> RunningLab:
    found = lab.run("exec", "login", "--", PYTHON, "-c", "import exaslurm.fabric")
    if found.returncode:
        pytest.skip("the nodes' software has no exaslurm, or an older one (scripts/env)")
    return lab


def test_a_step_over_two_nodes(with_fabric: RunningLab) -> None:
    srun = ("srun", "-p", "gpu", "-N2", "--ntasks-per-node=1", "--mem=500", "-t", "2")
    report = json.loads(with_fabric.on("login", *srun, *MEASURE, "--json"))
    assert [node["node"] for node in report["nodes"]] == ["c2", "c3"]
    (pair,) = report["nodes"][0]["pairs"]
    assert pair["peer"] == "c3"
    assert 1 < pair["measured"]["rtt_us"] < 1e5
    assert pair["measured"]["gbps_out"] > 0.05
    assert [node["unreachable"] for node in report["nodes"]] == [[], []]


def test_a_cut_cable(with_fabric: RunningLab) -> None:
    """The nodes still see the shared file system, and each other no more."""
    with_fabric.lab("link", "cut", "c3")
    try:
        with ThreadPoolExecutor(2) as pool:
            tasks = [
                pool.submit(
                    with_fabric.run, "exec", "--user", "exa1", f"c{rank + 2}", "--", *MEASURE,
                    "--run", "cut", "--roll-call-s", "3", "--nodes", "2", "--rank", str(rank),
                )
                for rank in range(2)
            ]  # fmt: skip
            first, second = (task.result() for task in tasks)
    finally:
        with_fabric.lab("link", "restore", "c3")
    assert first.returncode == 6, first.stderr
    assert second.returncode == 0, second.stderr
    assert first.stdout.splitlines()[0] == "2 nodes, 0 pairs measured"
    told = {line.partition(": ")[2].rpartition(":")[0] for line in first.stdout.splitlines()[1:]}
    assert told == {"c2 cannot reach c3", "c3 cannot reach c2"}
