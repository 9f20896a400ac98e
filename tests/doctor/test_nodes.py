"""Nodes are examined through submitit: here with an sbatch that runs the script on this host."""

from __future__ import annotations

import dataclasses
import os
import pickle
import socket
import sys
from pathlib import Path

import pytest

from exaslurm.core.checks import NodeChecks, NodeNeeds
from exaslurm.doctor import nodes
from exaslurm.doctor.needs import kind_of, needs_of
from exaslurm.doctor.nodes import Where
from exaslurm.errors import SubmitRejected, WaitTimeout
from exaslurm.site.load import load_site
from exaslurm.site.model import Site
from tests.slurm.conftest import FakeSlurm, fake

__all__ = ["fake"]

HOST = socket.gethostname().partition(".")[0]
# sbatch gives the job's script its variables; srun leaves its own options out.
SBATCH = """
for script; do :; done
cp "$script" {seen}
( SLURM_JOB_ID=123 SLURM_JOB_NODELIST={host} SLURM_JOB_NUM_NODES=1 SLURM_NTASKS=1 \\
  SLURM_NODEID=0 SLURM_PROCID=0 SLURM_LOCALID=0 bash "$script" >{seen}.out 2>&1
  touch {seen}.over ) >/dev/null 2>&1 </dev/null &
echo 123
"""
SRUN = """
while :; do case $1 in --output) shift 2;; -*) shift;; *) break;; esac; done
exec "$@"
"""
SQUEUE = """
state=RUNNING; [ -e {seen}.over ] && state=COMPLETED
echo "123|exa|$state|{host}|N/A|N/A|None"
"""


class Bench:
    """A site whose nodes are this host, and a Slurm that runs what it is given."""

    def __init__(self, fake: FakeSlurm, tmp_path: Path) -> None:
        self.seen = tmp_path / "seen"
        for name, body in (("sbatch", SBATCH), ("srun", SRUN), ("squeue", SQUEUE)):
            fake.command(name, body.replace("{seen}", str(self.seen)).replace("{host}", HOST))
        self.fake = fake
        self.environ = {
            **os.environ,
            "PATH": f"{fake.bin}:/usr/bin:/bin",
            "EXASLURM_HOME": str(tmp_path / "state"),
            "PYTHONPATH": str(Path(__file__).resolve().parents[2]),
            "SLURMD_NODENAME": HOST,
        }
        self.site = load_site("generic", self.environ)
        self.needs = dataclasses.replace(
            needs_of(self.site, self.environ), shared=str(tmp_path), interface="loopback"
        )

    def look(self, *, timeout_s: float = 30.0) -> list[NodeChecks]:
        with nodes.witness(self.needs) as witness:
            return nodes.in_job(
                self.site,
                None,
                Where(partition="p", count=1, account="a1"),
                dataclasses.replace(self.needs, witness=witness),
                environ=self.environ,
                python=sys.executable,
                timeout_s=timeout_s,
                talk=lambda _: None,
            )


@pytest.fixture
def bench(fake: FakeSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setattr(nodes, "_POLL_S", 0.1)
    monkeypatch.setattr(nodes, "_LATE_S", 0.5)
    made = Bench(fake, tmp_path)
    # The task runs on this host: what is in this process's environment would be in a job's.
    monkeypatch.setenv("SLURMD_NODENAME", HOST)
    return made


def test_the_function_goes_there_and_its_result_comes_back(bench: Bench, tmp_path: Path) -> None:
    (found,) = bench.look()
    assert found.host == HOST
    outcomes = {check.id: check.outcome for check in found.checks}
    assert outcomes["storage.shared"] in ("pass", "warn")
    assert "node.answer" not in outcomes
    script = bench.seen.read_text()
    assert "#SBATCH --partition=p" in script
    assert "#SBATCH --account=a1" in script
    assert "wckey" not in script
    assert list((tmp_path / "state").glob("*")) == []
    assert list(tmp_path.glob(".exaslurm-doctor-*")) == []


def test_a_task_that_sends_nothing_back(bench: Bench) -> None:
    bench.fake.command("srun", "echo 'no python here' >&2; exit 1")
    (found,) = bench.look()
    (check,) = found.checks
    assert (found.host, check.id, check.outcome) == (HOST, "node.answer", "fail")
    assert check.remedy


def test_a_job_that_does_not_start_in_time_is_cancelled(bench: Bench) -> None:
    bench.fake.command("sbatch", "echo 123")
    bench.fake.command("squeue", "echo '123|exa|PENDING||N/A|N/A|Resources'")
    bench.fake.command("scancel", "")
    with pytest.raises(WaitTimeout, match=r"PENDING, Resources"):
        bench.look(timeout_s=0.3)
    assert bench.fake.calls("scancel") == ["scancel 123"]


def test_a_refusal_is_said_in_slurms_words(bench: Bench) -> None:
    bench.fake.command("sbatch", "echo 'sbatch: error: Invalid account' >&2; exit 1")
    with pytest.raises(SubmitRejected, match="Invalid account"):
        bench.look()


def site_with(text: str, tmp_path: Path) -> Site:
    (tmp_path / "s.yaml").write_text(f"schema: exaslurm/site/v1\nname: s\nextends: generic\n{text}")
    return load_site("s", {**os.environ, "EXASLURM_SITE_CONFIG": str(tmp_path)})


def test_the_sites_rules_hold_for_this_job_too(tmp_path: Path) -> None:
    site = site_with(
        "slurm:\n  memory: all\n  gres: gpus-per-node\n  export: NONE\n"
        "  forbidden_directives: [constraint, signal]\n  extra_directives: [--licenses=scratch]\n"
        "node_kinds:\n  g: {partition: p, cpus: 8, gpus: 4, constraint: gpu, require_gpus: true}\n",
        tmp_path,
    )
    found = nodes._parameters(site, kind_of(site, "p"), Where(partition="p", count=3))
    assert found["nodes"] == 3
    assert found["mem"] == "0"
    assert "constraint" not in found
    assert found["additional_parameters"] == {
        "no-kill": True, "licenses": "scratch", "export": "NONE", "gpus-per-node": "1",
    }  # fmt: skip


def test_options_that_the_site_refuses_are_left_out(tmp_path: Path) -> None:
    site = site_with("slurm: {forbidden_directives: [signal]}\n", tmp_path)
    script = "#!/bin/bash\n#SBATCH --signal=USR2@90\n#SBATCH --time=10\nsrun x\n"
    assert nodes._allowed(site, script) == "#!/bin/bash\n#SBATCH --time=10\nsrun x\n"


class Paths:
    """Where one task's files are."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.result_pickle = folder / "result.pkl"
        self.stdout = folder / "log.out"


@pytest.mark.parametrize(
    ("outcome", "log", "says"),
    [
        (("error", "Traceback\nImportError: no exaslurm"), "", "ImportError: no exaslurm"),
        (None, "slurmstepd: error: chdir\n", "slurmstepd: error: chdir"),
        (None, "", "srun: error: node down"),
    ],
)
def test_why_a_node_gave_no_answer(tmp_path: Path, outcome: object, log: str, says: str) -> None:
    paths = Paths(tmp_path)
    paths.stdout.write_text(log)
    if outcome is not None:
        paths.result_pickle.write_bytes(pickle.dumps(outcome))
    (check,) = nodes._result(paths, "c3", "srun: error: node down").checks
    assert check.value == f"the task sent nothing back: {says}"


def test_what_a_site_wants(tmp_path: Path) -> None:
    site = site_with(
        "interface: hsn0\nports: {first: 21000, last: 21999}\n"
        "storage: {shared: /data/$USER, local: /nvme}\n"
        "node_kinds:\n  g: {partition: p, cpus: 8, gpus: 4}\n  c: {partition: q, cpus: 8}\n",
        tmp_path,
    )
    environ = {"USER": "ada", "HOME": "/h", "EXASLURM_HOME": "/s"}
    found: NodeNeeds = needs_of(site, environ, kind_of(site, "p"))
    assert (found.state, found.shared, found.local) == ("/s/exaslurm", "/data/ada", "/nvme")
    assert (found.interface, found.first_port, found.gpus, found.vllm) == ("hsn0", 21000, 4, True)
    assert needs_of(site, environ, kind_of(site, "q")).gpus == 0
    assert kind_of(site, "r") is None
