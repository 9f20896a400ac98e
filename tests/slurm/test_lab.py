"""The client against a real Slurm: what the fakes of ``test_client.py`` stand for."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from exaslurm.slurm import refusals
from tests.lab.kit import wait_for
from tests.slurm.conftest import ProductLab

pytestmark = [pytest.mark.lab, pytest.mark.timeout(300)]

# What a script of the lab runs: the client, its answers as JSON.
PRELUDE = """
import dataclasses, json, sys
from pathlib import Path
from exaslurm.errors import SlurmError
from exaslurm.slurm.client import Slurm
slurm = Slurm()
def show(job): return {**dataclasses.asdict(job), "finished": job.is_finished}
def say(value): print(json.dumps(value, default=str))
def guarded(call):
    try:
        return call()
    except SlurmError as error:
        return {"error": type(error).__name__, "message": str(error), "remedy": error.remedy,
                "transient": error.transient}
"""

HET_SCRIPT = """#!/bin/bash
#SBATCH --output=/dev/null --partition=cpu --nodes=1 --cpus-per-task=1 --mem=512M --time=5
#SBATCH hetjob
#SBATCH --partition=gpu --nodes=2 --ntasks-per-node=1 --cpus-per-task=1 --mem=512M --gres=gpu:1
#SBATCH --time=5
sleep 300
"""


def client(lab: ProductLab, code: str, *arguments: str, **variables: str) -> Any:
    return lab.eval(PRELUDE + code, *arguments, **variables)


def write(lab: ProductLab, name: str, text: str) -> str:
    lab.on("login", "sh", "-c", f"cat > ~/{name}", text=text)
    return lab.sh("login", f"echo ~/{name}").strip()


def jobs(lab: ProductLab, ident: str) -> dict[str, Any]:
    answer: dict[str, Any] = client(
        lab, "say([show(slurm.jobs([sys.argv[1]])[sys.argv[1]]), slurm.calls])", ident
    )
    return answer


def test_life_of_a_heterogeneous_job(slurm_lab: ProductLab) -> None:
    script = write(slurm_lab, "het.sbatch", HET_SCRIPT)
    ident, calls = client(
        slurm_lab,
        "job = slurm.submit(Path(sys.argv[1]), job_name='exa-life-c000-1', "
        'extra=[\'--comment={"tool":"exaslurm"}\'])\nsay([job.id, slurm.calls])',
        script,
    )
    assert calls == {"sbatch": 1}
    wait_for("it runs", lambda: jobs(slurm_lab, ident)[0]["state"] == "RUNNING", 60)

    job, calls = jobs(slurm_lab, ident)
    assert calls == {"squeue": 1}
    assert job["name"] == "exa-life-c000-1"
    assert [part["id"] for part in job["components"]] == [f"{ident}+0", f"{ident}+1"]
    assert job["nodes"] == ["c1", "c2", "c3"]
    assert abs(job["start_s"] - time.time()) < 120
    comment = slurm_lab.on("login", "squeue", "-h", "-j", ident, "-o", "%k").split()
    assert comment == ['{"tool":"exaslurm"}'] * 2

    # The name is found in every state; another user's look-up of it is not ours.
    by_name = "say([show(job) for job in slurm.find_by_name('exa-life-c000-1')])"
    assert [found["id"] for found in client(slurm_lab, by_name)] == [ident]
    assert client(slurm_lab, "say([show(j) for j in slurm.find_by_name('exa-other')])") == []

    # Inside an allocation, and with options by variable, the answers are the same.
    polluted = client(
        slurm_lab,
        "say(show(slurm.jobs([sys.argv[1]])[sys.argv[1]]))",
        ident,
        SLURM_JOB_ID="1",
        SQUEUE_FORMAT="%A",
        SQUEUE_STATES="PD",
        SLURM_TIME_FORMAT="relative",
        SQUEUE_USERS="root",
    )
    assert polluted == job

    client(slurm_lab, "slurm.cancel(sys.argv[1]); say(None)", ident)
    wait_for("it has ended", lambda: jobs(slurm_lab, ident)[0]["finished"], 60)
    job, _ = jobs(slurm_lab, ident)
    assert [part["state"] for part in job["components"]] == ["CANCELLED", "CANCELLED"]
    assert [found["id"] for found in client(slurm_lab, by_name)] == [ident]
    client(slurm_lab, "slurm.cancel(sys.argv[1]); say(None)", ident)  # again: no error


def test_a_pending_job_and_its_reason(slurm_lab: ProductLab) -> None:
    script = write(
        slurm_lab, "later.sbatch", "#!/bin/bash\n#SBATCH --begin=now+1hour -t 1\nsleep 1\n"
    )
    ident = client(
        slurm_lab, "say(slurm.submit(Path(sys.argv[1]), job_name='exa-later').id)", script
    )
    try:
        wait_for("Slurm has a reason", lambda: jobs(slurm_lab, ident)[0]["reason"] != "", 30)
        job, _ = jobs(slurm_lab, ident)
        assert (job["state"], job["reason"]) == ("PENDING", "BeginTime")
        assert job["nodes"] == []
    finally:
        client(slurm_lab, "slurm.cancel(sys.argv[1]); say(None)", ident)


def test_a_job_that_nobody_remembers(slurm_lab: ProductLab) -> None:
    answer = client(
        slurm_lab, "say({k: show(j) for k, j in slurm.jobs(['77771', '77772']).items()})"
    )
    assert [job["state"] for job in answer.values()] == ["GONE", "GONE"]
    alone, _ = jobs(slurm_lab, "77773")
    assert alone["state"] == "GONE"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--partition=nowhere", "invalid partition"),
        ("--partition=gpu --gres=fpga:1", "gres"),
        ("--constraint=sunny", "feature"),
        ("--partition=gpu --mem=900G", "memory specification"),
        ("--reservation=none-such", "reservation"),
    ],
)
def test_refusals(slurm_lab: ProductLab, options: str, words: str) -> None:
    """Slurm's real words, and that we have advice of our own for each of them."""
    script = write(slurm_lab, "bad.sbatch", f"#!/bin/bash\n#SBATCH {options} -t 1\n")
    code = (
        "path = Path(sys.argv[1])\n"
        "say([guarded(lambda: slurm.submit(path, job_name='exa-bad')),"
        "     guarded(lambda: slurm.test_only(path)), slurm.calls])"
    )
    refused, tested, calls = client(slurm_lab, code, script)
    assert refused["error"] == "SubmitRejected", refused
    assert words in refused["message"].lower()
    assert refused["remedy"] != refusals.remedy("")
    assert not refused["transient"]
    assert tested["error"] == "SubmitRejected", tested
    assert calls == {"sbatch": 2}


def test_test_only_accepts(slurm_lab: ProductLab) -> None:
    script = write(slurm_lab, "het.sbatch", HET_SCRIPT)
    answer = client(slurm_lab, "say(slurm.test_only(Path(sys.argv[1])))", script)
    assert "to start at" in answer


def test_controller_out_of_reach(slurm_lab: ProductLab) -> None:
    # Without GRES: those sbatch checks by itself before it asks anybody.
    script = write(slurm_lab, "plain.sbatch", "#!/bin/bash\n#SBATCH -t 1\nsleep 1\n")
    conf = write(
        slurm_lab,
        "nobody.conf",
        "ClusterName=lab\nSlurmctldHost=login(127.0.0.1)\nSlurmctldPort=1\nMessageTimeout=2\n"
        "AuthType=auth/munge\nNodeName=c1\nPartitionName=p Nodes=ALL\n",
    )
    code = (
        "say([guarded(lambda: slurm.submit(Path(sys.argv[1]), job_name='exa-x')),"
        "     guarded(lambda: slurm.jobs(['1'])), guarded(lambda: slurm.cancel('1'))])"
    )
    submit, query, cancel = client(slurm_lab, code, script, SLURM_CONF=conf)
    assert submit["error"] == "SubmitRejected"
    assert "nothing was submitted" in submit["remedy"]
    assert query["error"] == cancel["error"] == "QueryFailed"
    assert submit["transient"]
    assert query["transient"]
    assert cancel["transient"]


def test_version(slurm_lab: ProductLab) -> None:
    assert client(slurm_lab, "say(slurm.version())").startswith(slurm_lab.slurm)


def test_switches_and_features_of_nodes(slurm_lab: ProductLab) -> None:
    """Two nodes to a leaf, all leaves below one spine; features as ``scontrol`` prints them."""
    found = client(
        slurm_lab,
        "from exaslurm.slurm import topology\n"
        "nodes = ['c1', 'c2', 'c3']\n"
        "say([topology.look_up(slurm, nodes, site={}, environ={}),\n"
        "     topology.look_up_features(slurm, nodes)])",
    )
    assert found[0] == {
        "c1": ["spine", "leaf1"],
        "c2": ["spine", "leaf1"],
        "c3": ["spine", "leaf2"],
    }
    assert list(found[1]) == ["c1", "c2", "c3"]


def test_a_task_is_told_its_switches(slurm_lab: ProductLab) -> None:
    log = slurm_lab.sh("login", "echo ~/switches.log").strip()
    python = " ".join(ProductLab.python())
    code = "import os; from exaslurm.slurm.topology import address_path as p; print(p(os.environ))"
    script = write(
        slurm_lab,
        "switches.sbatch",
        f"#!/bin/bash\n#SBATCH --output={log} --partition=gpu --nodes=1 --mem=512M --time=2\n"
        f'srun --mem=512M {python} -c "{code}"\n',
    )
    ident = client(slurm_lab, "say(slurm.submit(Path(sys.argv[1]), job_name='exa-t').id)", script)
    wait_for("it has ended", lambda: jobs(slurm_lab, ident)[0]["finished"], 90)
    assert slurm_lab.sh("login", f"cat {log}").strip().startswith("('spine', 'leaf")


STEP_SCRIPT = """#!/bin/bash
#SBATCH --output={log} --partition=cpu --nodes=1 --cpus-per-task=1 --mem=64M --time=2
#SBATCH hetjob
#SBATCH --partition=gpu --nodes=2 --ntasks-per-node=1 --cpus-per-task=2 --mem=512M
#SBATCH --gres=gpu:3 --time=2
export SLURM_EXPORT_ENV=NONE KEPT=yes SRUN_CPUS_PER_TASK=7 SLURM_CPU_BIND=cores
{python} - <<'END'
import os, subprocess
from exaslurm.core.plan import ComponentPlan
from exaslurm.slurm.environ import for_steps
from exaslurm.slurm.srun import step_argv
part = ComponentPlan(het_group=1, role="worker", kind="gpu", nodes=2, min_nodes=2,
                     cpus_per_node=2, mem_mib_per_node=512, gpus_per_node=3, directives=())
look = 'echo $(hostname) kept=$KEPT gpus=$CUDA_VISIBLE_DEVICES cpus=$SLURM_CPUS_PER_TASK ' \\
       'mem=$SLURM_MEM_PER_NODE; sleep 3'
argv = step_argv(part, ["bash", "-c", look], het=True, output="{log}.%N")
steps = [subprocess.Popen(argv, env=for_steps(os.environ)) for _ in range(2)]
raise SystemExit(max(step.wait() for step in steps))
END
"""


def test_two_overlapping_steps_see_all_of_the_component(slurm_lab: ProductLab) -> None:
    log = slurm_lab.sh("login", "echo ~/steps.log").strip()
    python = " ".join(ProductLab.python())
    script = write(slurm_lab, "steps.sbatch", STEP_SCRIPT.format(log=log, python=python))
    ident = client(slurm_lab, "say(slurm.submit(Path(sys.argv[1]), job_name='exa-s').id)", script)
    wait_for("it has ended", lambda: jobs(slurm_lab, ident)[0]["finished"], 90)
    state = jobs(slurm_lab, ident)[0]["state"]
    lines = slurm_lab.sh("login", f"cat {log}.*").splitlines()
    assert state == "COMPLETED", slurm_lab.sh("login", f"cat {log}")
    # The head has 64 MiB: its limit must not become the workers'.
    expected = [f"{node} kept=yes gpus=0,1,2 cpus=2 mem=" for node in ("c2", "c3")]
    found = {line.removesuffix("512") for line in lines if "kept=" in line}
    assert found == set(expected), json.dumps(lines)
