from __future__ import annotations

import errno
import json
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from exaslurm.core.cell import CellRecord
from exaslurm.core.codec import dumps
from exaslurm.core.marker import BootstrapMarker
from exaslurm.errors import DeploymentError, QueryFailed, StateError, SubmitAmbiguous, WaitTimeout
from exaslurm.keys.secrets import read_secret
from exaslurm.rundir import RunDir
from exaslurm.submit.records import write_submission
from exaslurm.submit.stop import stop
from tests.submit.conftest import Desk


@dataclass
class Controller:
    """Takes ``POST /v1/stop`` as a cell's controller does."""

    url: str
    requests: list[tuple[str, str, object]] = field(default_factory=list)
    on_stop: threading.Event = field(default_factory=threading.Event)


@pytest.fixture
def controller() -> Iterator[Controller]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            known.requests.append((self.path, self.headers["Authorization"], body))
            self.send_response(204)
            self.end_headers()
            known.on_stop.set()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    known = Controller(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield known
    server.shutdown()
    server.server_close()
    thread.join()


def publish(desk: Desk, cell: str, url: str) -> None:
    item = desk.record(cell)
    record = CellRecord(
        deployment="hello",
        cell=cell,
        generation=1,
        plan_hash=item.plan_hash,
        job_id=str(item.job_id),
        seq=1,
        lease_s=30,
        state_url=url,
        replicas=(),
    )
    desk.run_dir.record(cell).write_text(dumps(record))


def test_the_loopback_address_of_another_host_is_not_asked(
    desk: Desk, controller: Controller
) -> None:
    desk.submit()
    item = replace(desk.record("c000"), job_id="local", host="login9", pid=1, start_ticks=1)
    write_submission(desk.run_dir.generation(1), item)
    publish(desk, "c000", controller.url)
    with pytest.raises(WaitTimeout, match="process 1 on login9"):
        stop(desk.run_dir, timeout_s=0.1, slurm=desk.queue)
    assert controller.requests == []


def test_stop_cancels_what_has_no_controller(desk: Desk) -> None:
    desk.submit()
    result = desk.stop()
    assert desk.queue.cancelled == ["100", "101"]
    assert len(result.ended) == 2
    assert desk.record("c000").state == "stopped"
    assert desk.desired() == {"run": False, "generation": 1}
    assert [line["verb"] for line in desk.history()] == ["submit", "stop"]


def test_stop_again_does_nothing(desk: Desk) -> None:
    desk.submit()
    desk.stop()
    assert desk.stop().ended == ()
    assert desk.queue.cancelled == ["100", "101"]
    assert len(desk.history()) == 2


def test_submit_after_stop(desk: Desk) -> None:
    desk.submit()
    desk.stop()
    assert desk.submit().generation == 2
    assert desk.desired() == {"run": True, "generation": 2}


def test_controllers_are_asked_first(desk: Desk, controller: Controller) -> None:
    desk.submit()
    publish(desk, "c000", controller.url)
    key = read_secret(desk.run_dir.internal_key)

    def end_when_asked() -> None:
        assert controller.on_stop.wait(5)
        desk.queue.set_state("COMPLETED", "100")

    thread = threading.Thread(target=end_when_asked)
    thread.start()
    desk.stop()
    thread.join()
    assert controller.requests == [("/v1/stop", f"Bearer {key}", {"grace_s": 30.0})]
    # The cell that was asked ended by itself; only the other one had to be cancelled.
    assert desk.queue.cancelled == ["101"]
    assert not desk.run_dir.record("c000").exists()


def test_a_deaf_controller_is_cancelled(desk: Desk, controller: Controller) -> None:
    desk.submit()
    publish(desk, "c000", controller.url)
    desk.stop(timeout_s=1)
    assert controller.requests
    assert desk.queue.cancelled == ["100", "101"]


def test_the_record_of_another_job_is_not_trusted(desk: Desk, controller: Controller) -> None:
    desk.submit()
    publish(desk, "c000", controller.url)
    path = desk.run_dir.record("c000")
    path.write_text(path.read_text().replace('"job_id":"100"', '"job_id":"77"'))
    desk.stop()
    assert controller.requests == []


def test_what_does_not_end_is_named(desk: Desk) -> None:
    desk.submit()
    desk.queue.obeys = False
    with pytest.raises(WaitTimeout, match=r"c000 \(job 100\); cell c001 \(job 101\)"):
        desk.stop(timeout_s=0.2)
    assert desk.record("c000").state == "submitted"
    desk.queue.obeys = True
    desk.stop()
    assert desk.record("c000").state == "stopped"


def test_silent_slurm(desk: Desk) -> None:
    desk.submit()
    desk.queue.silent = True
    with pytest.raises(QueryFailed):
        desk.stop(timeout_s=0.2)
    assert desk.desired()["run"] is False
    assert desk.record("c000").state == "submitted"


def test_a_job_whose_answer_was_lost_is_ended_too(desk: Desk) -> None:
    desk.queue.failure, desk.queue.late = SubmitAmbiguous("who knows"), True
    with pytest.raises(SubmitAmbiguous):
        desk.submit()
    desk.stop()
    assert desk.queue.cancelled == ["100"]


def test_unknown_deployment(desk: Desk) -> None:
    with pytest.raises(DeploymentError, match="'nope'"):
        stop(RunDir(desk.directory / "nope"))


def leave_marker(desk: Desk, cell: str) -> str:
    """What a cell's job writes first of all; the job's id."""
    item = desk.record(cell)
    marker = BootstrapMarker(
        plan_hash=item.plan_hash,
        deployment="hello",
        cell=cell,
        job_id=str(item.job_id),
        job_name=item.job_name,
        het_job_ids={"0": str(item.job_id)},
        nodes={"0": ("c1",)},
        host="c1",
        started_s=1.0,
    )
    desk.run_dir.generation(1).bootstrap_marker(cell).write_text(dumps(marker))
    return marker.job_id


@pytest.mark.parametrize("damage", ["missing", "damaged"])
def test_a_job_without_a_record_is_known_by_what_it_wrote(desk: Desk, damage: str) -> None:
    desk.submit()
    jobs = [leave_marker(desk, "c000"), leave_marker(desk, "c001")]
    path = desk.run_dir.generation(1).submission("c001")
    path.unlink()
    if damage == "damaged":
        path.write_text("{")
        with pytest.raises(StateError, match=r"c001.json: not JSON"):
            desk.submit()
    else:
        assert desk.submit().attached
    desk.stop()
    assert sorted(desk.queue.cancelled) == jobs
    assert desk.record("c001").state == "stopped"


def test_a_damaged_plan_keeps_nothing_alive(desk: Desk) -> None:
    desk.submit()
    desk.run_dir.generation(1).plan.write_text("[]")
    desk.stop()
    assert len(desk.queue.cancelled) == 2
    assert any("going on without it" in line and "plan.json" in line for line in desk.said)


def test_a_full_disk_keeps_nothing_alive(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.submit()

    def full(_fd: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(StateError, match=r"has ended, but .*: No space left") as caught:
            desk.stop()
    assert len(desk.queue.cancelled) == 2
    assert "run 'exaslurm stop' again" in str(caught.value.remedy)
    desk.stop()
    assert desk.record("c000").state == "stopped"
