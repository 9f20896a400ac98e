"""The lab as the lines use it: through scripts/lab and the installed `exaslurm`, as people do."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from acceptance.runner import Line, LineFailed

ROOT = Path(__file__).resolve().parents[2]
USER = "exa1"
HOME = f"/exa/shared/home/{USER}"

Done = subprocess.CompletedProcess[str]


@dataclass(frozen=True)
class Lab:
    """A lab that is up, with the nodes' software at ``env``."""

    name: str
    env: str

    def on(
        self,
        host: str,
        *command: str,
        user: str = USER,
        text: str = "",
        timeout_s: float = 120,
        variables: Mapping[str, str] | None = None,
        door: bool = False,
    ) -> Done:
        """Run a command on a host of the lab; with ``door`` it may use scripts/lab."""
        given = [f"--env={key}={value}" for key, value in (variables or {}).items()]
        words = [str(ROOT / "scripts/lab"), "exec", "--name", self.name, "--user", user, *given]
        words += ["--door"] if door else []
        return subprocess.run(
            [*words, host, "--", *command],
            input=text,
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )

    def sh(self, script: str, *, host: str = "login", **more: Any) -> Done:
        return self.on(host, "bash", "-c", script, **more)

    def exaslurm(self, *words: str, **more: Any) -> Done:
        """The command line on the login node."""
        return self.on("login", f"{self.env}/bin/exaslurm", *words, **more)

    def write(self, path: str, text: str) -> None:
        """A file below exa1's home."""
        script = 'umask 077; mkdir -p "$(dirname "$0")"; cat >"$0"'
        done = self.on("login", "sh", "-c", script, path, text=text)
        if done.returncode:
            raise LineFailed(f"cannot write {path}: {done.stderr}")

    def client(self, name: str, argument: object, *, timeout_s: float = 600) -> Any:
        """What one of the programs in `clients` printed, run on the login node."""
        program = (ROOT / "scripts/acceptance/clients" / f"{name}.py").read_text()
        python = f"{self.env}/bin/python"
        words = (python, "-", json.dumps(argument))
        done = self.on("login", *words, text=program, timeout_s=timeout_s)
        if done.returncode:
            raise LineFailed(f"{name}: {done.stderr[-2000:]}")
        return json.loads(done.stdout.splitlines()[-1])

    def target(self, deployment: str, model: str) -> dict[str, str]:
        """Address, key file and model of a deployment, for the clients."""
        key_file = f"{HOME}/{deployment}.key"
        done = self.sh(
            f"umask 077; {self.env}/bin/exaslurm key remove {deployment} accept 2>/dev/null; "
            f"{self.env}/bin/exaslurm key add {deployment} accept >{key_file}"
        )
        if done.returncode:
            raise LineFailed(f"no key: {done.stderr}")
        url = self.exaslurm("endpoint", deployment).stdout.strip()
        return {"base_url": url, "key_file": key_file, "model": model}

    def jobs(self) -> list[str]:
        """Ids of exa1's jobs that are in the queue."""
        return self.on("login", "squeue", "--noheader", "--me", "--format=%i").stdout.split()

    def status(self, deployment: str) -> dict[str, Any]:
        """`exaslurm status --json`."""
        done = self.exaslurm("status", deployment, "--json")
        if not done.stdout:
            raise LineFailed(f"status gave no answer: {done.stderr}")
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def submit(self, line: Line, spec: str, deployment: str, *, wait: str = "5m") -> Done:
        """Submit a spec, wait until it is ready, and stop it at the line's end."""
        self.write(f"{deployment}.yaml", spec)
        line.cleanups.append(lambda: self.exaslurm("stop", deployment, timeout_s=240))
        words = ["submit", f"{deployment}.yaml", "--wait", "--timeout", wait]
        return self.exaslurm(*words, timeout_s=1200)


def lab(
    line: Line,
    *,
    profile: str = "wide",
    slurm: str = "22.05",
    nodes: int = 4,
    accounting: Sequence[str] | None = None,
) -> Lab:
    """Bring the lab up (or find it up) with this clone's exaslurm on its nodes.

    Its name is $EXASLURM_LAB or ``lab``; of other profiles, versions and sizes, with these behind
    it. ``accounting``: with an accounting database, and these lines in slurm.conf.
    """
    if os.geteuid() != 0:
        raise LineFailed("the lab needs root")
    env = _output([str(ROOT / "scripts/env")])
    chosen = "-".join(
        [
            os.environ.get("EXASLURM_LAB") or "lab",
            *([profile] if profile != "wide" else []),
            *([slurm.replace(".", "")] if slurm != "22.05" else []),
            *([str(nodes)] if nodes != 4 else []),
            *(["acct"] if accounting is not None else []),
        ]
    )
    _output(
        [
            *(str(ROOT / "scripts/lab"), "up", "--name", chosen, "--install"),
            *("--nodes", str(nodes), "--profile", profile, "--slurm", slurm),
            *(["--accounting"] if accounting is not None else []),
            *(f"--conf={text}" for text in accounting or ()),
        ]
    )
    line.note(f"lab {chosen}: Slurm {slurm}, profile {profile}, {nodes} nodes; software {env}")
    return Lab(chosen, env)


def _output(argv: list[str]) -> str:
    done = subprocess.run(argv, stdout=subprocess.PIPE, text=True, timeout=3600)
    if done.returncode:
        raise LineFailed(f"{' '.join(argv)} failed")
    return done.stdout.strip()


def until(true: Callable[[], bool], timeout_s: float, pause_s: float = 0.5) -> bool:
    """Whether it came true in time."""
    deadline = time.monotonic() + timeout_s
    while not true():
        if time.monotonic() >= deadline:
            return False
        time.sleep(pause_s)
    return True
