"""Submitting from places whose environment belongs to another job."""

from __future__ import annotations

import json

from acceptance.lab import HOME, Lab, lab, until
from acceptance.runner import Line

TITLE = "submit from inside an allocation, and from a kernel with a polluted environment"

SPEC = """\
schema: exaslurm/v1
deployment: {name}
site: lab
workers: {{nodes: 1}}
models:
  - name: pretend
    engine: {{kind: simulated}}
"""

# What a notebook that runs as a job of its own carries about; some of it would change any job.
# (SBATCH_ACCOUNT, _PARTITION, _QOS, _RESERVATION and _TIMELIMIT are no such thing: they are a
# user's defaults, and count where the spec is silent.)
POLLUTED = {
    "SLURM_JOB_ID": "424242",
    "SLURM_JOBID": "424242",
    "SLURM_JOB_NODELIST": "nowhere[1-9]",
    "SLURM_NNODES": "9",
    "SLURM_NTASKS": "36",
    "SLURM_CPU_BIND": "verbose,mask_cpu:0x1",
    "SLURM_MEM_PER_NODE": "1",
    "SLURM_HET_SIZE": "7",
    "SLURM_PROCID": "3",
    "SBATCH_EXPORT": "NONE",
    "SBATCH_GRES": "gpu:99",
    "SBATCH_CONSTRAINT": "nosuchfeature",
    "SBATCH_MEM_PER_NODE": "1",
    "SQUEUE_FORMAT": "%j",
    "SQUEUE_STATES": "COMPLETED",
}

# As a notebook's cell: an event loop runs, and the spec is a mapping.
KERNEL = """
import asyncio, json, exaslurm
async def cell():
    deployment = exaslurm.Deployment.submit(json.load(open("kernel.json")))
    status = deployment.wait_ready(timeout_s=240)
    html = deployment._repr_html_()
    print(json.dumps({"phase": status.phase, "hash": status.plan_hash, "html": "pretend" in html}))
asyncio.run(cell())
"""


def run(line: Line) -> None:
    here = lab(line)
    from_allocation(line, here)
    from_kernel(line, here)


def planned(here: Lab, name: str) -> str:
    """The hash of the plan that a plain login shell makes of this spec."""
    here.write(f"{name}.yaml", SPEC.format(name=name))
    found = json.loads(here.exaslurm("plan", f"{name}.yaml", "--json").stdout)
    return str(found["hash"])


def from_allocation(line: Line, here: Lab) -> None:
    expected = planned(here, "inside")
    line.cleanups.append(lambda: here.exaslurm("stop", "inside", timeout_s=240))
    command = f"{here.env}/bin/exaslurm submit {HOME}/inside.yaml --wait --timeout 4m --json"
    script = (
        f"#!/bin/bash\n#SBATCH --output={HOME}/inside.out\n#SBATCH --partition=cpu\n"
        f"#SBATCH --cpus-per-task=2 --mem=2G --time=10\n"
        f"srun --ntasks=1 --cpus-per-task=1 {command} >{HOME}/inside.json\n"
        f"echo $? >{HOME}/inside.code\n"
    )
    here.sh("rm -f inside.code inside.json inside.out")
    here.write("outer.sbatch", script)
    line.ran("an outer job starts", here.sh("sbatch --parsable outer.sbatch"))
    ended = until(lambda: here.sh("test -s inside.code").returncode == 0, 300)
    line.need("submit --wait ran inside it", ended)
    code = here.sh("cat inside.code").stdout.strip()
    line.check("exit code", code == "0", f"{code}\n{here.sh('cat inside.out').stdout}".strip())
    answer = json.loads(here.sh("cat inside.json").stdout)
    line.check("the same plan as from a login shell", answer["plan_hash"] == expected)
    status = here.status("inside")
    line.check("ready", status["phase"] == "ready", status["phase"])
    here.exaslurm("stop", "inside", timeout_s=240)


def from_kernel(line: Line, here: Lab) -> None:
    expected = planned(here, "kernel")
    line.cleanups.append(lambda: here.exaslurm("stop", "kernel", timeout_s=240))
    spec = {
        "schema": "exaslurm/v1",
        "deployment": "kernel",
        "site": "lab",
        "workers": {"nodes": 1},
        "models": [{"name": "pretend", "engine": {"kind": "simulated"}}],
    }
    here.write("kernel.json", json.dumps(spec))
    python = f"{here.env}/bin/python"
    done = here.on("login", python, "-c", KERNEL, variables=POLLUTED, timeout_s=400)
    line.ran("Deployment.submit and wait_ready in a running event loop", done)
    answer = json.loads(done.stdout.splitlines()[-1])
    line.check("ready", answer["phase"] == "ready", answer["phase"])
    line.check("a table for the notebook", answer["html"])
    limit = here.sh("squeue --me --noheader --format=%l | sort -u").stdout.split()
    line.check("time limit as planned, not the polluted one", limit == ["1:00:00"], str(limit))
    line.check("the same plan as from a login shell", answer["hash"] == expected)
