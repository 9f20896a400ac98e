"""Who is asked to drain what, what is written down, and when it is over."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from exaslurm.api import drain as api
from exaslurm.core.cell import CellRecord, CellState, NodeState, RayCellState, ReplicaStatus
from exaslurm.core.codec import dumps
from exaslurm.core.drain import DrainRequest
from exaslurm.core.submission import Submission
from exaslurm.errors import DeploymentError, NotReadyError, WaitTimeout
from exaslurm.keys.secrets import ensure_secrets
from exaslurm.registry.write import write_record
from exaslurm.rundir import RunDir
from exaslurm.submit import records
from exaslurm.util.files import write_atomic
from tests.tools import plans

ENVIRON = {"USER": "exa1", "HOME": "/home/exa1"}


def replica(name: str, node: str, **more: Any) -> ReplicaStatus:
    given = {"state": "ready", "pid": 7, "nodes": (node,), **more}
    return ReplicaStatus(
        id=name, model="m", shard="base", served_names=("m",), node=node, url="http://x", **given
    )


class Made:
    """A deployment of two cells whose controllers the test plays."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.run_dir = RunDir(root / "hello")
        self.run_dir.make()
        ensure_secrets(self.run_dir)
        self.generation = self.run_dir.generation(1)
        self.generation.make(("c000", "c001"))
        write_atomic(self.generation.plan, dumps(plans.make_plan().sealed()))
        records.write_desired(self.run_dir, run=True, generation=1)
        self.states: dict[str, CellState] = {}
        self.asked: list[tuple[str, DrainRequest]] = []
        for number, node in enumerate(("n2", "n3")):
            cell = f"c00{number}"
            self.say(cell, [replica(f"{cell}-r0000", node)], [node])
            write_record(
                self.run_dir,
                CellRecord(
                    deployment="hello", cell=cell, generation=1, plan_hash="x", job_id="9",
                    seq=1, lease_s=30.0, state_url=f"http://{cell}", replicas=(),
                ),
            )  # fmt: skip
            self.submission(cell)
        monkeypatch.setattr(api, "fetch_states", lambda *_, **__: dict(self.states))
        monkeypatch.setattr(api, "post_drain_request", self._post)
        monkeypatch.setattr(api, "_POLL_S", 0.01)
        monkeypatch.setattr(api, "_POLL_SUBMISSIONS_S", 0.01)

    def _post(self, url: str, key: str, asked: DrainRequest, *, timeout_s: float) -> None:
        assert key
        assert timeout_s > 0
        self.asked.append((url, asked))

    def say(self, cell: str, replicas: list[ReplicaStatus], nodes: list[str]) -> None:
        engines = {node: sum(r.node == node for r in replicas) for node in nodes}
        self.states[cell] = CellState(
            deployment="hello", cell=cell, plan_hash="x", job_id="9", seq=1, phase="serving",
            cause=None, ray=RayCellState(state="off"), replicas=tuple(replicas),
            nodes=tuple(NodeState(node=node, het_group=1, state="joined", engines=engines[node])
                        for node in nodes),
        )  # fmt: skip

    def submission(self, cell: str, **more: Any) -> Submission:
        given = {"state": "submitted", "job_id": "9", "served_s": 5.0, **more}
        item = Submission(
            deployment="hello", cell=cell, generation=1, plan_hash="x", token="t",
            job_name=f"exa-hello-{cell}", created_s=1.0, **given,
        )  # fmt: skip
        records.write_submission(self.generation, item)
        return item

    def read(self, cell: str) -> Submission:
        return records.read_submissions(self.generation)[cell]

    def drain(self, what: Any, *names: str, **more: Any) -> api.Drained:
        return api.drain(self.run_dir, what, names, environ=ENVIRON, **more)


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Made:
    return Made(tmp_path, monkeypatch)


def test_the_cell_that_has_it_is_asked(made: Made) -> None:
    done = made.drain("replica", "c001-r0000", reason="slow")
    assert made.asked == [
        ("http://c001", DrainRequest(replicas=("c001-r0000",), reason="drained by exa1: slow"))
    ]
    assert (done.cells, list(done.before)) == (("c001",), ["c001-r0000"])
    (line,) = made.run_dir.history.read_text().splitlines()
    assert json.loads(line)["reason"] == "drained by exa1: slow"
    assert json.loads(line)["verb"] == "drain asked"


def test_the_key_goes_to_no_other_program_at_a_loopback_address(made: Made) -> None:
    made.submission("c001", job_id="local", host="elsewhere")
    with pytest.raises(DeploymentError, match="runs on elsewhere") as caught:
        made.drain("replica", "c001-r0000")
    assert caught.value.remedy == "run this on elsewhere"
    assert made.asked == []


def test_the_history_names_the_generation_that_runs(made: Made) -> None:
    """Not a newer one that was taken back."""
    made.run_dir.generation(2).make(("c000",))
    api.drain(made.run_dir, "replica", ["c001-r0000"], environ=ENVIRON)
    (line,) = made.run_dir.history.read_text().splitlines()
    assert json.loads(line)["generation"] == 1
    assert json.loads(line)["plan_hash"] == plans.make_plan().sealed().hash


def test_a_node_and_how_long_it_is_done_without(made: Made) -> None:
    made.drain("node", "n2", excluded_s=60.0)
    ((url, asked),) = made.asked
    assert url == "http://c000"
    assert (asked.nodes, asked.excluded_s, asked.reason) == (("n2",), 60.0, "drained by exa1")


def test_a_wrong_name_among_right_ones_asks_nobody(made: Made) -> None:
    with pytest.raises(DeploymentError, match="no replica 'c000-r0001'") as caught:
        made.drain("replica", "c001-r0000", "c000-r0001")
    assert "did you mean c000-r0000?" in (caught.value.remedy or "")
    assert made.asked == []


def test_a_controller_that_is_silent_may_know_the_name(made: Made) -> None:
    del made.states["c001"]
    with pytest.raises(NotReadyError, match="the controller of c001 gives no answer"):
        made.drain("node", "n3")


def test_a_stopped_deployment_drains_nothing(made: Made) -> None:
    records.write_desired(made.run_dir, run=False, generation=1)
    with pytest.raises(DeploymentError, match="is stopped"):
        made.drain("cell", "c000")


def test_a_cell_is_asked_in_the_record_of_its_job(made: Made) -> None:
    done = made.drain("cell", "c000", "c001")
    assert done.cells == ("c000", "c001")
    asked = made.read("c000")
    assert asked.asked_by == "exa1"
    assert asked.asked_s is not None
    again = made.drain("cell", "c000")
    assert again.cells == ("c000",)
    assert made.read("c000") == asked


def test_the_name_of_a_cell_means_the_job_that_serves(made: Made) -> None:
    made.submission("c000", ended_s=9.0)
    made.submission("c000.2")
    made.submission("c000.3", served_s=None)
    assert made.drain("cell", "c000").cells == ("c000.2",)
    assert made.drain("cell", "c000.3").cells == ("c000.3",)
    with pytest.raises(DeploymentError, match="no cell 'c009' with a job that runs"):
        made.drain("cell", "c009")


def test_without_slurm_there_is_no_other_job(made: Made) -> None:
    made.submission("c000", job_id="local")
    with pytest.raises(DeploymentError, match="site local"):
        made.drain("cell", "c000")
    assert made.read("c000").asked_s is None


def wait(made: Made, done: api.Drained) -> list[str]:
    told: list[str] = []
    api.wait_drained(made.run_dir, done, timeout_s=0.05, talk=told.append)
    return told


def test_a_stop_ends_the_wait_for_a_cell_and_a_file_system_that_is_away_does_not(
    made: Made,
) -> None:
    done = made.drain("cell", "c000")
    away = made.run_dir.path.with_name("away")
    made.run_dir.path.rename(away)
    with pytest.raises(WaitTimeout, match="the end of c000"):
        wait(made, done)
    away.rename(made.run_dir.path)
    made.submission("c000", state="stopped")  # stop does not say when
    assert wait(made, done) == []


def test_a_replica_is_waited_for_until_another_process_serves(made: Made) -> None:
    done = made.drain("replica", "c000-r0000")
    for left in (
        replica("c000-r0000", "n2"),
        replica("c000-r0000", "n2", state="draining"),
        replica("c000-r0000", "n4", state="loading", pid=8),
    ):
        made.say("c000", [left], ["n2", "n4"])
        with pytest.raises(WaitTimeout, match="not drained after 0 s: c000-r0000"):
            wait(made, done)
    made.say("c000", [replica("c000-r0000", "n4", pid=8)], ["n2", "n4"])
    assert wait(made, done) == []
    made.say("c000", [replica("c000-r0000", "n2", pid=9)], ["n2", "n4"])
    assert wait(made, done) == []


def test_a_node_is_waited_for_until_no_engine_is_left(made: Made) -> None:
    done = made.drain("node", "n2")
    with pytest.raises(WaitTimeout, match=r"1 engine\(s\) on n2"):
        wait(made, done)
    made.say("c000", [replica("c000-r0000", "n4", pid=8)], ["n2", "n4"])
    assert wait(made, done) == []


def test_a_cell_is_waited_for_until_its_job_has_ended(made: Made) -> None:
    done = made.drain("cell", "c000")
    with pytest.raises(WaitTimeout, match="the end of c000"):
        wait(made, done)
    ended = dataclasses.replace(made.read("c000"), state="stopped", ended_s=9.0)
    records.write_submission(made.generation, ended)
    assert wait(made, done) == []
