"""What is said before a deployment is submitted whose cells cannot overlap."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from exaslurm.core.plan import Plan
from exaslurm.slurm.limits import (
    QueueLimits,
    parse_associations,
    parse_partition_limits,
    parse_qos,
    parse_reserved,
)
from exaslurm.status.collect import collect
from exaslurm.submit.overlap import why_no_overlap
from exaslurm.submit.submit import make_plan_for
from tests.submit.conftest import Desk

# As Slurm 22.05 prints them.
PARTITIONS = """\
PartitionName=cpu AllowGroups=ALL Default=YES QoS=N/A MaxNodes=UNLIMITED OverSubscribe=NO \
State=UP TotalCPUs=16 TotalNodes=1 TRES=cpu=16,mem=64G,node=1,billing=16
PartitionName=gpu AllowGroups=ALL Default=NO QoS={qos} MaxNodes=UNLIMITED OverSubscribe={share} \
State=UP TotalCPUs={cpus} TotalNodes={nodes} TRES=cpu={cpus},mem=128G,node={nodes},billing=32,\
gres/gpu=8
"""
SPEC = """\
schema: exaslurm/v1
deployment: hello
site: lab
time_limit: 00:10:00
workers: {{nodes: {nodes}, nodes_per_cell: 2}}
{more}
models:
  - name: pretend
    engine: {{kind: simulated}}
    shards: [{{name: base, replicas: 4}}]
"""


def plan(tmp_path: Path, nodes: int = 2, more: str = "") -> Plan:
    path = tmp_path / "spec.yaml"
    path.write_text(SPEC.format(nodes=nodes, more=more))
    environ = {"EXASLURM_HOME": str(tmp_path), "HOME": str(tmp_path), "USER": "ada"}
    return make_plan_for(path, environ=environ)


def limits(
    qos: str = "", associations: str = "", *, of_partition: str = "N/A", nodes: int = 8,
    share: str = "NO",
) -> QueueLimits:  # fmt: skip
    text = PARTITIONS.format(qos=of_partition, share=share, nodes=nodes, cpus=16 * nodes)
    return QueueLimits(
        partitions=parse_partition_limits(text),
        qos=parse_qos("normal||||||||||\n" + qos),
        associations=parse_associations(associations),
    )


ASSOCIATION = "exa|ada||{qos}|{tres}||{queued}|{jobs}|{most_queued}\n"


def association(**given: str) -> str:
    values = dict.fromkeys(("qos", "tres", "queued", "jobs", "most_queued"), "")
    return ASSOCIATION.format(**(values | given))


@pytest.mark.parametrize(
    ("found", "words"),
    [
        # A cell is two components: jobs to Slurm, on three nodes in all.
        (limits("few|||||||2|||\n"), "4 jobs in the queue, and QOS few has or allows 2"),
        (limits("few|||3|||||||\n"), "4 running jobs, and QOS few (for all its users together)"),
        (limits("few||node=5||||||||\n"), "6 nodes, and QOS few (for all its users together)"),
        (limits("few|||||node=4|||||\n"), "6 nodes, and QOS few has"),
        (limits("", association(jobs="3")), "4 running jobs, and account exa"),
        (limits("", association(tres="node=5")), "6 nodes, and account exa"),
        (limits("", "exa|ada|||||||\nexa||||node=5||||\n"), "account exa (for all its users"),
        (limits("inner||node=3||||||||\n", of_partition="inner"), "4 nodes, and QOS inner"),
        (limits(nodes=3, share="EXCLUSIVE"), "4 nodes, and partition gpu has or allows 3"),
    ],
)
def test_limits_that_forbid_overlap(tmp_path: Path, found: QueueLimits, words: str) -> None:
    said = why_no_overlap(plan(tmp_path, more="qos: few"), found)
    assert said is not None
    assert words in said


@pytest.mark.parametrize(
    "found",
    [
        QueueLimits(),
        limits(),
        limits("few|||||||4|||\n"),
        limits("few||node=6||||||||\n"),
        # Nodes that jobs share are counted by what they take of them.
        limits(nodes=3),
        # The job's own QOS is another one.
        limits("other|||||||2|||\n"),
        # A limit of the QOS stands before that of the association.
        limits("few|||||||9|||\n", association(most_queued="2")),
        # What does not fit even once is for sbatch to say.
        limits("few|||||||1|||\n"),
    ],
)
def test_limits_that_allow_it(tmp_path: Path, found: QueueLimits) -> None:
    assert why_no_overlap(plan(tmp_path, more="qos: few"), found) is None


def test_of_several_cells_one_at_a_time(tmp_path: Path) -> None:
    """Three cells are six jobs, and a seventh and eighth while one is handed over."""
    three = plan(tmp_path, nodes=6, more="qos: few")
    assert len(three.cells) == 3
    assert why_no_overlap(three, limits("few|||||||8|||\n")) is None
    assert "8 jobs" in str(why_no_overlap(three, limits("few|||||||7|||\n")))


def test_flags_and_defaults(tmp_path: Path) -> None:
    over = limits("few|OverPartQOS||||||9|||\ninner|||||||2|||\n", of_partition="inner")
    assert why_no_overlap(plan(tmp_path, more="qos: few"), over) is None
    default = limits("mine|||||||2|||\n", association(qos="mine"))
    assert why_no_overlap(plan(tmp_path), default) is not None


def test_a_reservation(tmp_path: Path) -> None:
    text = "ReservationName=course Nodes=c[1-3] NodeCnt=3 CoreCnt=48 Flags= TRES=cpu=8 Users=ada\n"
    held = replace(limits(), reservations=parse_reserved(text))
    said = why_no_overlap(plan(tmp_path, more="reservation: course"), held)
    assert "reservation course has or allows 8" in str(said)
    assert why_no_overlap(plan(tmp_path), held) is None


def test_it_is_said_written_and_told(desk: Desk) -> None:
    desk.queue.answers = {
        "show partition": PARTITIONS.format(qos="N/A", share="NO", nodes=8, cpus=128),
        "show config": "AccountingStorageEnforce = associations,limits\n",
        "show qos": "normal|||||||5|||\n",
        "show assoc": "exa|ada||normal|||||\n",
    }
    result = desk.submit()
    said = [line for line in desk.said if "cannot start before" in line]
    assert len(said) == 1
    (told,) = desk.run_dir.generation(result.generation).notes.read_text().splitlines()
    assert said == [f"note: {told}"]
    assert desk.history()[0]["note"] == told
    assert collect(desk.run_dir, None).notes == (told,)


def test_without_limits_nothing_is_said(desk: Desk) -> None:
    desk.queue.answers = {
        "show config": "AccountingStorageEnforce = none\n",
        "show qos": "normal|||||||5|||\n",
    }
    desk.submit()
    assert not [line for line in desk.said if "note" in line]
    assert collect(desk.run_dir, None).notes == ()
