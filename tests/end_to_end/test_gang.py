"""A real engine over two nodes of the lab."""

from __future__ import annotations

import subprocess

import pytest

from tests.end_to_end.conftest import SCRIPTS, Lab, Proof

from acceptance.lab import HOME, until  # isort: skip
from acceptance.placement import line_08  # isort: skip
from acceptance.tiny import tiny_model  # isort: skip

pytestmark = [pytest.mark.lab, pytest.mark.vllm, pytest.mark.timeout(1800)]

# A heterogeneous job ends when Slurm calls a node of it down: its head is a component of one node.
SITE = """\
schema: exaslurm/site/v1
name: single
extends: lab
slurm: {hetjobs: false}
"""


def link(lab: Lab, what: str, node: str) -> None:
    argv = [str(SCRIPTS / "lab"), "link", "--name", lab.name, what, node]
    subprocess.run(argv, check=True, capture_output=True, timeout=90)


def has_left(lab: Lab, node: str) -> bool:
    """Whether the replica is known, and not on that node."""
    (cell,) = lab.status(line_08.NAME)["cells"]
    return bool(cell["replicas"]) and node not in cell["replicas"][0]["nodes"]


def test_an_engine_over_two_nodes_is_one_replica(wide_lab: Lab, line: Proof) -> None:
    line_08.prove(line, wide_lab)
    assert line.wrong == []


def test_it_leaves_a_node_that_is_gone(wide_lab: Lab, line: Proof) -> None:
    """The second node is cut off: the first part lives, and its /health says that all is well."""
    wide_lab.write(f"{HOME}/.config/exaslurm/sites/single.yaml", SITE)
    spec = line_08.SPEC.format(
        name=line_08.NAME, model=line_08.MODEL, path=tiny_model(line, wide_lab)
    )
    spec = spec.replace("site: lab", "site: single").replace(
        "nodes: 2}\nmodels", "nodes: 3}\nmodels"
    )
    line.ran("it is ready", wide_lab.submit(line, spec, line_08.NAME, wait="10m"))
    first, second = line_08.replica(wide_lab)["nodes"]
    link(wide_lab, "cut", second)
    try:
        moved = until(lambda: has_left(wide_lab, second), 180, 1)
        line.need("it has left the node", moved, wide_lab.exaslurm("status", line_08.NAME).stdout)
        back = until(lambda: line_08.replica(wide_lab)["state"] == "ready", line_08.BACK_S, 1)
        line.need("it is ready elsewhere", back, line_08.replica(wide_lab)["cause"] or "")
        assert first in line_08.replica(wide_lab)["nodes"]
        line_08.answers(line, wide_lab, "answered")
    finally:
        link(wide_lab, "restore", second)
    gone = until(lambda: not line_08.processes(wide_lab, second), 120, 1)
    line.check("its old part has ended on the node that came back", gone)
    assert line_08.replica(wide_lab)["state"] == "ready"
    assert line.wrong == []
