"""Submit, attach, refuse, stop, with a real Slurm and everything behind it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from exaslurm.errors import ExitCode
from tests.lab.kit import wait_for
from tests.slurm.conftest import ProductLab, product_lab

pytestmark = [pytest.mark.lab, pytest.mark.timeout(300)]

SPEC = """\
schema: exaslurm/v1
deployment: {name}
site: {site}
time_limit: 00:10:00
ray: false
workers: {{nodes: {nodes}, nodes_per_cell: 1}}
models:
  - name: pretend
    engine: {{kind: simulated}}
    shards: [{{name: base, replicas: {nodes}}}]
"""
NO_HETJOBS = """\
schema: exaslurm/site/v1
name: lab-single
extends: lab
slurm: {hetjobs: false}
"""
STATE = "/exa/shared/home/exa1/exaslurm"


@pytest.fixture(scope="module", params=["wide-22.05", "wide-24.11"])
def lab(request: pytest.FixtureRequest) -> Iterator[ProductLab]:
    for it in product_lab(request.param):
        it.sh("login", "mkdir -p ~/sites; cat > ~/sites/lab-single.yaml <<'END'\n" + NO_HETJOBS)
        yield it


def write_spec(lab: ProductLab, name: str, *, site: str = "lab", nodes: int = 2) -> str:
    path = f"/exa/shared/home/exa1/{name}.yaml"
    text = SPEC.format(name=name, site=site, nodes=nodes)
    lab.on("login", "sh", "-c", f"cat > {path}", text=text)
    return path


def ok(lab: ProductLab, *words: str, **variables: str) -> str:
    done = lab.exaslurm(*words, **variables)
    assert done.returncode == 0, done.stderr
    return done.stdout


def jobs(lab: ProductLab, *options: str) -> list[str]:
    return lab.on("login", "squeue", "-h", "-u", "exa1", "-o", "%i", *options).split()


def read(lab: ProductLab, path: str) -> Any:
    return json.loads(lab.on("login", "cat", f"{STATE}/{path}"))


def test_submit_attach_refuse_stop(lab: ProductLab) -> None:
    spec = write_spec(lab, "first")
    ids = ok(lab, "submit", spec, "--parsable").split()
    assert len(ids) == 2
    assert sorted(jobs(lab)) == sorted(f"{ident}+{part}" for ident in ids for part in (0, 1))
    assert ok(lab, "submit", spec, "--parsable").split() == ids
    assert len(jobs(lab)) == 4

    changed = lab.exaslurm("submit", write_spec(lab, "first", nodes=1))
    assert changed.returncode == ExitCode.USAGE
    assert "rollout" in changed.stderr
    assert len(jobs(lab)) == 4

    script = lab.on("login", "scontrol", "write", "batch_script", ids[0], "-")
    assert "SLURM" not in script.replace("Slurm", "")
    waited = lab.exaslurm("submit", write_spec(lab, "first"), "--wait", "--timeout", "60s")
    assert waited.returncode == 0, waited.stderr
    ok(lab, "stop", "first")
    assert jobs(lab) == []
    assert read(lab, "first/desired.json")["run"] is False
    assert read(lab, "first/endpoint.json")["routers"] == []
    assert ok(lab, "stop", "first")
    for host in ("login", "c1", "c2", "c3"):
        left = lab.sh(host, "pgrep -u exa1 -af exaslurm || true")
        assert [line for line in left.splitlines() if "pgrep" not in line] == [], host


def test_a_job_that_waits_is_cancelled_at_once(lab: ProductLab) -> None:
    spec = write_spec(lab, "waiting")
    lab.on("ctl", "scontrol", "update", "PartitionName=gpu", "State=DOWN", user="root")
    try:
        ids = ok(lab, "submit", spec, "--parsable").split()
        assert read(lab, "waiting/gen/1/submissions/c000.json")["job_id"] == ids[0]
        ok(lab, "stop", "waiting")
        assert jobs(lab) == []
    finally:
        lab.on("ctl", "scontrol", "update", "PartitionName=gpu", "State=UP", user="root")


@pytest.mark.parametrize("site", ["lab", "lab-single"])
def test_rendered_scripts_run_by_hand(lab: ProductLab, site: str) -> None:
    """What ``render`` wrote is enough: nobody calls ``exaslurm submit``."""
    name = f"hand-{site}"
    spec = write_spec(lab, name, site=site)
    sites = {"EXASLURM_SITE_CONFIG": "/exa/shared/home/exa1/sites"}
    out = f"/exa/shared/home/exa1/it's {name}"
    ok(lab, "render", spec, "--output", out, **sites)
    plan = json.loads(lab.on("login", "cat", f"{out}/plan.json"))
    env = [f"{key}={value}" for key, value in {"PYTHONPATH": ProductLab.pythonpath()}.items()]
    ids = [
        lab.on("login", "env", *env, "sbatch", "--parsable", f"{out}/scripts/{cell}.sbatch").strip()
        for cell in ("c000", "c001")
    ]
    try:
        for ident, cell in zip(ids, ("c000", "c001"), strict=True):
            marker = f"{out}/cells/{cell}/bootstrap.json"
            wait_for(
                f"bootstrap's marker of {cell}",
                lambda marker=marker: (
                    lab.run("exec", "login", "--", "test", "-s", marker).returncode  # type: ignore[misc]
                    == 0
                ),
                60,
            )
            found = json.loads(lab.on("login", "cat", marker))
            assert found["plan_hash"] == plan["hash"]
            assert found["job_id"] == ident
            assert found["job_name"] == f"exa-{name}-{cell}"
    finally:
        lab.on("login", "scancel", *ids)
    wait_for("the jobs have ended", lambda: jobs(lab) == [], 60)


LOSES_THE_ANSWER = """#!/bin/sh
/usr/bin/sbatch "$@" > /dev/null
echo 'sbatch: error: Batch job submission failed: Socket timed out on send/recv operation' >&2
exit 1
"""
KILLS_ITS_CALLER = """#!/bin/sh
/usr/bin/sbatch "$@"
kill -9 $PPID
"""


def with_sbatch(lab: ProductLab, text: str) -> str:
    """A PATH on which this sbatch comes first."""
    directory = "/exa/shared/home/exa1/bin"
    lab.on("login", "sh", "-c", f"mkdir -p {directory}; cat > {directory}/sbatch", text=text)
    lab.on("login", "chmod", "755", f"{directory}/sbatch")
    return f"{directory}:/usr/bin:/bin"


def test_a_lost_answer_is_looked_up(lab: ProductLab) -> None:
    spec = write_spec(lab, "lost")
    ids = ok(lab, "submit", spec, "--parsable", PATH=with_sbatch(lab, LOSES_THE_ANSWER)).split()
    try:
        assert sorted(jobs(lab)) == sorted(f"{ident}+{part}" for ident in ids for part in (0, 1))
    finally:
        ok(lab, "stop", "lost")


def test_killed_between_sbatch_and_its_answer(lab: ProductLab) -> None:
    spec = write_spec(lab, "killed")
    killed = lab.exaslurm("submit", spec, PATH=with_sbatch(lab, KILLS_ITS_CALLER))
    assert killed.returncode not in (0, 1, 2)
    first = jobs(lab)
    assert len(first) == 2
    assert read(lab, "killed/gen/1/submissions/c000.json")["state"] == "intent"
    ids = ok(lab, "submit", spec, "--parsable").split()
    try:
        # The lost job is found, the other cell is submitted, nothing is there twice.
        assert set(first) == {f"{ids[0]}+0", f"{ids[0]}+1"}
        assert len(jobs(lab)) == 4
    finally:
        ok(lab, "stop", "killed")


def test_two_submits_at_once(lab: ProductLab) -> None:
    spec = write_spec(lab, "twice")
    with ThreadPoolExecutor() as pool:
        runs = [pool.submit(ok, lab, "submit", spec, "--parsable") for _ in range(3)]
        answers = {run.result() for run in runs}
    try:
        assert len(answers) == 1
        assert len(jobs(lab)) == 4
    finally:
        ok(lab, "stop", "twice")


POLLUTION = {
    "SLURM_JOB_ID": "1",
    "SLURM_JOBID": "1",
    "SLURM_HET_SIZE": "3",
    "SLURM_NTASKS": "64",
    "SLURM_CPU_BIND": "cores",
    "SLURM_MEM_PER_NODE": "1",
    "SLURM_EXPORT_ENV": "NONE",
    "SBATCH_EXCLUSIVE": "user",
    "SBATCH_CONSTRAINT": "sunny",
    "SBATCH_GRES": "fpga:3",
    "SBATCH_MEM_PER_NODE": "1",
    "SBATCH_EXPORT": "NIL",
    "SQUEUE_FORMAT": "%A",
    "SQUEUE_PARTITION": "cpu",
}


def test_from_a_polluted_shell(lab: ProductLab) -> None:
    spec = write_spec(lab, "notebook")
    clean = ok(lab, "plan", spec, "--json")
    assert ok(lab, "plan", spec, "--json", **POLLUTION) == clean
    ids = ok(lab, "submit", spec, "--parsable", **POLLUTION).split()
    try:
        wait_for(
            "both cells run",
            lambda: len(jobs(lab, "--states=RUNNING")) == 4,
            60,
        )
        asked = lab.on("login", "scontrol", "-o", "show", "job", f"{ids[0]}")
        assert "sunny" not in asked
        assert ok(lab, "submit", spec, "--parsable", **POLLUTION).split() == ids
        waited = lab.exaslurm("submit", spec, "--wait", "--timeout", "60s", **POLLUTION)
        assert waited.returncode == 0, waited.stderr
    finally:
        ok(lab, "stop", "notebook", **POLLUTION)
    assert jobs(lab) == []


def test_from_inside_an_allocation(lab: ProductLab) -> None:
    spec = write_spec(lab, "nested")
    inside = ["srun", "--partition=cpu", "--ntasks=1", "--mem=1G", "--time=5"]
    command = ProductLab.python("-m", "exaslurm", "submit", spec, "--parsable")
    ids = lab.on("login", *inside, *command).split()
    try:
        assert sorted(jobs(lab)) == sorted(f"{ident}+{part}" for ident in ids for part in (0, 1))
        wait_for("both cells run", lambda: len(jobs(lab, "--states=RUNNING")) == 4, 60)
    finally:
        ok(lab, "stop", "nested")


# --- each one clear error ---------------------------------------------------------------------


def test_slurm_refuses(lab: ProductLab) -> None:
    spec = write_spec(lab, "refused")
    lab.on("login", "sh", "-c", f"echo 'reservation: none-such' >> {spec}")
    for words in (["submit", spec], ["submit", spec, "--test-only"]):
        done = lab.exaslurm(*words)
        assert done.returncode == ExitCode.SLURM_REFUSED
        assert "reservation" in done.stderr.lower()
        assert "scontrol show reservation" in done.stderr
        assert "Traceback" not in done.stderr
    assert jobs(lab) == []


def test_no_slurm_commands(lab: ProductLab) -> None:
    done = lab.exaslurm("submit", write_spec(lab, "nowhere"), PATH="/nowhere")
    assert done.returncode == ExitCode.SLURM_REFUSED
    assert "cannot run 'sbatch'" in done.stderr
    assert "site: local" in done.stderr


def test_controller_out_of_reach(lab: ProductLab) -> None:
    conf = "/exa/shared/home/exa1/nobody.conf"
    lab.on(
        "login",
        "sh",
        "-c",
        f"cat > {conf}",
        text="ClusterName=lab\nSlurmctldHost=login(127.0.0.1)\nSlurmctldPort=1\nMessageTimeout=2\n"
        "AuthType=auth/munge\nNodeName=c1\nPartitionName=p Nodes=ALL\nGresTypes=gpu\n",
    )
    done = lab.exaslurm("submit", write_spec(lab, "unreached"), SLURM_CONF=conf)
    assert done.returncode == ExitCode.SLURM_REFUSED
    assert "cannot be reached" in done.stderr
    assert "nothing was submitted" in done.stderr
    # And it goes on from there.
    spec = write_spec(lab, "unreached")
    assert len(ok(lab, "submit", spec, "--parsable").split()) == 2
    ok(lab, "stop", "unreached")


@pytest.mark.parametrize(
    ("home", "words"),
    [
        ("/root/state", "Permission denied"),
        ("/exa/shared/home/exa2", "Permission denied"),
        ("/proc/state", "/proc/state"),
    ],
)
def test_run_directory_that_cannot_be_written(lab: ProductLab, home: str, words: str) -> None:
    done = lab.exaslurm("submit", write_spec(lab, "unwritable"), EXASLURM_HOME=home)
    assert done.returncode == ExitCode.USAGE
    assert words in done.stderr
    assert home in done.stderr
    assert jobs(lab) == []


def test_full_disk(lab: ProductLab) -> None:
    lab.sh(
        "login",
        "mkdir -p /exa/local/full && mount -t tmpfs -o size=64k,mode=777 full /exa/local/full"
        " && dd if=/dev/zero of=/exa/local/full/ballast bs=4k 2>/dev/null; true",
        user="root",
    )
    try:
        home = "/exa/local/full"
        done = lab.exaslurm("submit", write_spec(lab, "full"), EXASLURM_HOME=home)
        assert done.returncode == ExitCode.USAGE
        assert "No space left on device" in done.stderr
        assert "EXASLURM_HOME" in done.stderr
        assert jobs(lab) == []
    finally:
        lab.sh("login", "umount /exa/local/full", user="root")
