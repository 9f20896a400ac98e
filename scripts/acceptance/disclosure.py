"""Where the secrets of a deployment can be seen, by whom: everywhere that one can look."""

from __future__ import annotations

import json
import secrets
import subprocess
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from acceptance.argv_watch import ArgvWatch
from acceptance.lab import ROOT, USER, Lab
from acceptance.runner import LineFailed
from acceptance.secret_search import forms

SEARCH = Path(__file__).with_name("secret_search.py")
OTHER_USER = "exa2"
# What each host has for itself; the shared file system is the same for all.
OWN = ("/tmp", "/var", "/run", "/dev/shm", "/etc", "/exa/local")
SHARED = "/exa/shared"
# No files, or, for root of the machine, other ways to the same ones.
NO_FILES = ("/proc", "/sys", "/dev/pts", "/dev/fd")
BEHIND = ("/run/exaslurm-lab", "/var/lib/exaslurm-lab")


@dataclass(frozen=True)
class Hit:
    """One place where a secret stands. ``kind``: file, name, argv, environ, answer or slurm."""

    secret: str
    where: str
    seen_by: str
    kind: str
    mode: str = ""
    form: str = "plain"

    def __str__(self) -> str:
        return f"{self.secret} ({self.form}) in {self.where} {self.mode} as {self.seen_by}"


@dataclass
class Findings:
    """All hits, and how much was searched."""

    hits: list[Hit] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)

    def count(self, what: str, number: float) -> None:
        self.counts[what] = self.counts.get(what, 0) + round(number)

    def of(self, *names: str) -> list[Hit]:
        return [hit for hit in self.hits if hit.secret in names]

    def without(self, names: Iterable[str]) -> list[Hit]:
        return [hit for hit in self.hits if hit.secret not in set(names)]


def deployment_secrets(lab: Lab, run_dir: str) -> dict[str, str]:
    """Every secret that exaslurm made for a deployment, by the name of its file."""
    listed = lab.sh(f"cd {run_dir}/keys && grep -H . *.key *.token")
    found = dict(line.split(":", 1) for line in listed.stdout.splitlines())
    if len(found) < 2 or any(len(text) < 32 for text in found.values()):
        raise LineFailed(f"these are not the secrets of a deployment: {sorted(found)}")
    return found


def made_s(lab: Lab, run_dir: str) -> float:
    """When the first of the secrets was made; the hosts of a lab share one clock."""
    times = lab.sh(f"stat -c %Z {run_dir}/keys/*.key {run_dir}/keys/*.token").stdout.split()
    return min(map(float, times)) - 1.0


def hosts(lab: Lab) -> list[str]:
    """Names of all hosts of a lab."""
    words = [str(ROOT / "scripts/lab"), "status", "--json", "--name", lab.name]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, timeout=60)
    return list(json.loads(done.stdout)["hosts"])


def new_decoy() -> str:
    """A text like a secret: searched for where it was put, to see that searching finds."""
    return secrets.token_urlsafe(32)


def search(lab: Lab, wanted: Mapping[str, str], since_s: float, watch: ArgvWatch) -> Findings:
    """Look on every host of a lab as root and as another user, at Slurm, and at all argv."""
    findings = Findings()
    for argv in list(watch.seen):
        _look(findings, wanted, argv, Hit("", _first_words(argv), "anybody", "argv"))
    findings.count("argument lists over time", len(watch.seen))
    with ThreadPoolExecutor(2) as pool:
        tasks = [
            pool.submit(_search_host, lab, host, user, wanted, since_s)
            for host in hosts(lab)
            for user in ("root", OTHER_USER)
        ]
        for task in tasks:
            host, user, answer = task.result()
            for key, number in answer.items():
                if key != "hits":
                    findings.count(f"{key} as {user}", number)
            findings.hits += [
                Hit(
                    secret=hit["secret"],
                    where=f"{host}:{hit['where']}",
                    seen_by=user,
                    kind=hit["kind"],
                    mode=hit["mode"],
                    form=hit["form"],
                )
                for hit in answer["hits"]
            ]
    for user in ("root", USER, OTHER_USER):
        _ask_slurm(lab, user, wanted, findings)
    return findings


def _search_host(
    lab: Lab, host: str, user: str, wanted: Mapping[str, str], since_s: float
) -> tuple[str, str, dict[str, Any]]:
    if user == "root":
        roots = [*OWN, SHARED] if host == "login" else list(OWN)
    else:
        # The system's own directories are the same on each host: one walk through them will do.
        roots = ["/"] if host == "login" else [*OWN, SHARED]
    order = {
        "secrets": dict(wanted),
        "roots": roots,
        "skip": [*NO_FILES, *(BEHIND if user == "root" else ())],
        "since_s": since_s,
        "serve": user != "root",
    }
    done = lab.on(
        host,
        f"{lab.env}/bin/python",
        "-I",
        "-c",
        SEARCH.read_text(),
        user=user,
        text=json.dumps(order),
        timeout_s=600,
    )
    if done.returncode:
        raise LineFailed(f"the search on {host} as {user} failed: {done.stderr}")
    return host, user, json.loads(done.stdout)


def _ask_slurm(lab: Lab, user: str, wanted: Mapping[str, str], findings: Findings) -> None:
    """What Slurm tells about all jobs it knows."""

    def ask(*command: str) -> bytes:
        done = lab.on("login", *command, user=user)
        findings.count(f"bytes of Slurm's answers to {user}", len(done.stdout))
        answer = done.stdout.encode()
        _look(findings, wanted, answer, Hit("", " ".join(command), user, "slurm"))
        return answer

    ask("squeue", "--all", "--states=all", "--format=%all")
    jobs = ask("scontrol", "--all", "--oneliner", "show", "job", "-dd").decode()
    words = (word for line in jobs.splitlines() for word in line.split()[:1])
    for job in sorted({word.removeprefix("JobId=") for word in words if word.startswith("JobId=")}):
        ask("scontrol", "write", "batch_script", job, "-")
    ask("scontrol", "show", "step", "-dd")


def _look(findings: Findings, wanted: Mapping[str, str], data: bytes, at: Hit) -> None:
    for name, text in wanted.items():
        for form, pattern in forms(text).items():
            if pattern in data:
                findings.hits.append(Hit(name, at.where, at.seen_by, at.kind, at.mode, form))


def _first_words(argv: bytes) -> str:
    return b" ".join(argv.split(b"\0")[:4]).decode(errors="replace")


def loose_files(lab: Lab, run_dir: str) -> list[str]:
    """Files and directories of the run directory that are not its owner's alone."""
    found = lab.sh(f"find {run_dir} -perm /077 ! -type l -printf '%m %P\\n'").stdout
    return found.splitlines()
