"""A submission does without the nodes that earlier jobs could not use."""

from __future__ import annotations

import time
from pathlib import Path

from exaslurm.core.codec import dumps
from exaslurm.core.exclusion import ExcludedNode, ExcludedNodes
from exaslurm.errors import SubmitRejected
from exaslurm.rundir import RunDir
from exaslurm.submit.exclude import exclude_option, excluded_nodes
from tests.submit.conftest import Desk
from tests.tools import plans


def write(run_dir: RunDir, cell: str, node: str, left_s: float) -> None:
    now = time.time()
    item = ExcludedNode(
        node=node, reason="gpu.count: 3 of 4", job_id="7", since_s=now, until_s=now + left_s
    )
    run_dir.excluded_nodes.mkdir(parents=True, exist_ok=True)
    run_dir.excluded(cell).write_text(dumps(ExcludedNodes(nodes=(item,))))


def test_those_of_all_cells_while_their_time_lasts(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    assert excluded_nodes(run_dir, time.time()) == ()
    write(run_dir, "c000", "n3", 3600)
    write(run_dir, "c001", "n4", 3600)
    write(run_dir, "c002", "n5", -1)
    run_dir.excluded("c003").write_text("{}")
    assert [item.node for item in excluded_nodes(run_dir, time.time())] == ["n3", "n4"]


def test_the_users_own_are_not_lost() -> None:
    component = plans.make_component(0, "both", directives=(("exclude", "n[1-2]"),))
    (cell,) = plans.make_cells(component, replicas=[("m", "a", 1)])
    bad = ExcludedNode(node="n3", reason="r", job_id="7", since_s=0, until_s=1)
    assert exclude_option(cell, [bad]) == ("--exclude=n1,n2,n3",)
    assert exclude_option(cell, []) == ()


def test_the_next_submission_does_without(desk: Desk) -> None:
    write(desk.run_dir, "c001", "n3", 3600)
    desk.submit()
    assert [extra[1:] for extra in desk.queue.extras] == [("--exclude=n3",)] * 2
    assert any("without n3 until" in line and "gpu.count: 3 of 4" in line for line in desk.said)


def test_where_too_few_nodes_are_left_it_takes_them_all(desk: Desk) -> None:
    desk.nodes = 1
    write(desk.run_dir, "c000", "n3", 3600)
    desk.queue.failure = SubmitRejected("Requested node configuration is not available")
    desk.submit()
    assert [extra[1:] for extra in desk.queue.extras] == [("--exclude=n3",), ()]
    assert desk.record().state == "submitted"
    assert any(line.startswith("not without them: Requested node") for line in desk.said)
