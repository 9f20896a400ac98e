"""The simulated Slurm, through the real client's eyes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from exaslurm.errors import QueryFailed, SubmitAmbiguous, SubmitRejected
from exaslurm.simulate.slurmctld import (
    FORGET_S,
    KILL_WAIT_S,
    SLURMD_TIMEOUT_S,
    Event,
    Slurmctld,
)
from exaslurm.slurm.client import Slurm
from exaslurm.slurm.command import Answer
from exaslurm.slurm.types import JobInfo

SCRIPT = """#!/bin/bash
#SBATCH --partition=plain --nodes={nodes} --time={minutes}
#SBATCH --signal=B:USR1@120
exec true
"""
NODES = ("s1", "s2", "s3", "s4")


class Client(Slurm):
    """Asks a simulated controller, at a time that the test sets. ``lost``: the next answer is."""

    def __init__(self, wait_s: float = 10.0, nodes: Sequence[str] = NODES) -> None:
        super().__init__({}, look_up_s=0.0, pause_s=0.0)
        self.now_s = 1_000_000.0
        self.slurm = Slurmctld(dict.fromkeys(nodes, "plain"), wait_s=wait_s)
        self.events: list[Event] = []
        self.lost = False

    def _run(self, argv: Sequence[str], timeout_s: float | None = None) -> Answer:
        script = Path(argv[-1]).read_text() if argv[0] == "sbatch" else ""
        said, events = self.slurm.command(argv, script, self.now_s)
        self.events += events
        if self.lost:
            self.lost = False
            return Answer(tuple(argv), 1, "", "sbatch: error: Socket timed out on send/recv")
        return Answer(tuple(argv), said.code, said.stdout, said.stderr)

    def at(self, seconds: float) -> list[Event]:
        """So much later."""
        self.now_s += seconds
        return self.slurm.advance(self.now_s)

    def one(self, ident: str) -> JobInfo:
        return self.jobs([ident])[ident]


@pytest.fixture
def client() -> Client:
    return Client()


def submit(client: Client, path: Path, *, nodes: int = 2, minutes: str = "60", **more: str) -> str:
    script = path / "job.sbatch"
    script.write_text(SCRIPT.format(nodes=nodes, minutes=minutes))
    extra = [f"--{name}={value}" for name, value in more.items()]
    return client.submit(script, job_name=f"exa-{len(client.slurm.jobs)}", extra=extra).id


def test_a_job_waits_runs_and_ends_at_its_time_limit(client: Client, tmp_path: Path) -> None:
    ident = submit(client, tmp_path, minutes="10")
    job = client.one(ident)
    assert (job.state, job.nodes, job.start_s, job.end_s) == ("PENDING", (), None, None)
    assert client.at(5.0) == []
    assert client.at(5.0) == [Event("start", ident, ("s1", "s2"))]
    job = client.one(ident)
    assert (job.state, job.nodes, job.start_s) == ("RUNNING", ("s1", "s2"), client.now_s)
    assert job.end_s == client.now_s + 600
    assert client.time_limits([ident]) == {ident: {ident: 600.0}}
    assert client.at(480.0) == [Event("warn", ident, ("s1", "s2"))]
    assert client.at(119.0) == []
    assert client.at(1.0) == [Event("terminate", ident, ("s1", "s2"))]
    assert client.one(ident).state == "COMPLETING"
    client.slurm.task_ended(ident, "s1", 0)
    client.slurm.task_ended(ident, "s2", 0)
    client.at(1.0)
    job = client.one(ident)
    assert (job.state, job.reason, job.end_s) == ("TIMEOUT", "TimeLimit", client.now_s)


def test_what_does_not_end_is_killed(client: Client, tmp_path: Path) -> None:
    ident = submit(client, tmp_path)
    client.at(10.0)
    client.cancel(ident)
    assert client.events == [Event("terminate", ident, ("s1", "s2"))]
    client.slurm.task_ended(ident, "s1", 0)
    assert client.at(KILL_WAIT_S) == []
    assert client.at(1.0) == [Event("kill", ident, ("s2",))]
    assert client.one(ident).state == "CANCELLED"


def test_the_end_of_the_batch_script_ends_the_job(client: Client, tmp_path: Path) -> None:
    ident = submit(client, tmp_path)
    client.at(10.0)
    client.slurm.task_ended(ident, "s1", 0)
    event = client.slurm.head_ended(ident, client.now_s)
    assert event == Event("terminate", ident, ("s2",))
    client.slurm.task_ended(ident, "s2", 0)
    client.at(1.0)
    assert client.one(ident).state == "COMPLETED"


def test_one_that_waits_can_be_cancelled(client: Client, tmp_path: Path) -> None:
    ident = submit(client, tmp_path)
    client.cancel(ident)
    assert client.one(ident).state == "CANCELLED"
    assert client.at(100.0) == []


def test_nodes_belong_to_one_job(client: Client, tmp_path: Path) -> None:
    first, second = submit(client, tmp_path, nodes=3), submit(client, tmp_path, nodes=2)
    third = submit(client, tmp_path, nodes=1)
    started = {event.job: event.nodes for event in client.at(10.0)}
    assert started == {first: ("s1", "s2", "s3"), third: ("s4",)}
    assert client.one(second).reason == "Resources"


def test_one_that_needs_more_nodes_than_there_are_waits(client: Client, tmp_path: Path) -> None:
    ident = submit(client, tmp_path, nodes=5)
    assert client.at(1000.0) == []
    assert client.one(ident).state == "PENDING"


def test_nodes_that_are_excluded_are_not_used(client: Client, tmp_path: Path) -> None:
    ident = submit(client, tmp_path, nodes=2, exclude="s[1-2]")
    assert client.at(10.0) == [Event("start", ident, ("s3", "s4"))]


def test_a_job_goes_on_without_a_lost_node(client: Client, tmp_path: Path) -> None:
    ident = submit(client, tmp_path, nodes=3)
    client.at(10.0)
    client.slurm.node_lost("s2", client.now_s)
    client.at(SLURMD_TIMEOUT_S - 1)
    assert client.one(ident).nodes == ("s1", "s2", "s3")
    client.at(1.0)
    assert (client.one(ident).state, client.one(ident).nodes) == ("RUNNING", ("s1", "s3"))
    client.slurm.node_back("s2", client.now_s)
    assert client.slurm.owner_of("s2") is None


def test_a_node_that_was_booted_does_not_come_back_into_the_job(
    client: Client, tmp_path: Path
) -> None:
    ident = submit(client, tmp_path, nodes=3)
    client.at(10.0)
    client.slurm.node_lost("s2", client.now_s)
    assert client.slurm.node_back("s2", client.now_s + 10) is None
    assert client.one(ident).nodes == ("s1", "s3")


@pytest.mark.parametrize("boots", [False, True])
def test_without_the_batch_host_a_job_ends(client: Client, tmp_path: Path, boots: bool) -> None:
    ident = submit(client, tmp_path, nodes=3)
    client.at(10.0)
    client.slurm.node_lost("s1", client.now_s)
    if boots:
        assert client.slurm.node_back("s1", client.now_s) == Event("kill", ident, ("s2", "s3"))
    else:
        assert client.at(SLURMD_TIMEOUT_S) == [Event("kill", ident, ("s2", "s3"))]
    client.at(1.0)
    assert client.one(ident).state == "NODE_FAIL"


def test_names_are_found_and_what_ended_is_forgotten(client: Client, tmp_path: Path) -> None:
    ident = submit(client, tmp_path)
    assert [job.id for job in client.find_by_name("exa-0")] == [ident]
    assert [job.id for job in client.named("exa-")] == [ident]
    client.cancel(ident)
    assert client.named("exa-") == []
    client.at(FORGET_S)
    assert client.one(ident).state == "CANCELLED"
    client.at(1.0)
    assert client.one(ident).state == "GONE"
    client.cancel(ident)  # that it has ended is no error


def test_limits_are_changed_by_administrators(client: Client, tmp_path: Path) -> None:
    ident = submit(client, tmp_path, minutes="1-00:00:00")
    assert client.time_limits([ident]) == {ident: {ident: 86400.0}}
    client.set_time_limit(ident, ident, 15)
    assert client.time_limits([ident]) == {ident: {ident: 900.0}}


def test_refusals_and_silence(client: Client, tmp_path: Path) -> None:
    with pytest.raises(SubmitRejected, match="artition"):
        submit(client, tmp_path, partition="nope")
    client.slurm.silent = True
    with pytest.raises(QueryFailed):
        client.jobs(["101"])
    with pytest.raises(SubmitAmbiguous):
        submit(client, tmp_path)
    assert client.slurm.jobs == {}


def test_an_answer_that_is_lost_is_found_by_name(client: Client, tmp_path: Path) -> None:
    client.lost = True
    assert submit(client, tmp_path) == "101"


def test_while_it_is_silent_nothing_happens(client: Client, tmp_path: Path) -> None:
    ident = submit(client, tmp_path)
    client.slurm.silent = True
    assert client.at(60.0) == []
    client.slurm.silent = False
    assert client.at(0.0) == [Event("start", ident, ("s1", "s2"))]
