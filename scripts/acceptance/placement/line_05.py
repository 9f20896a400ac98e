"""Every site config: rendered, linted, and accepted by a Slurm that was taught the site."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from acceptance.lab import ROOT, Lab, until
from acceptance.placement import taught
from acceptance.runner import Line, LineFailed
from exaslurm.api.site_check import check_site, rendered
from exaslurm.api.site_draft import draft_site
from exaslurm.site.load import load_site
from exaslurm.site.model import Site
from exaslurm.slurm.client import Slurm

TITLE = "site configs: every script linted; every header accepted by a Slurm taught the site"

VERSIONS = ("22.05", "24.11")
CONFIGS = ROOT / "site_configs"
PORT = 7900
# What a draft of the lab finds: processors and GPUs by kind.
DRAFTED = {"cpu": (16, None), "a100": (16, 4)}
# Each is refused by a controller that really looks, in words of its own.
WRONG = {
    "a partition that is not there": ("--partition=nowhere", "invalid partition"),
    "too many nodes": ("--nodes=100000", "node count|processors requested|not available"),
    "a feature that is not there": ("--constraint=nosuchfeature", "feature"),
}


def run(line: Line) -> None:
    environ = {**os.environ, "EXASLURM_SITE_CONFIG": str(CONFIGS)}
    names = sorted(path.stem for path in CONFIGS.glob("*.yaml"))
    line.at_least("site configs of centres", len(set(names) - {"generic", "lab", "local"}), 10)
    for name in names:
        check = check_site(name, environ)
        problems = "\n".join(check.problems)
        found = f"{len(check.scripts)} scripts, {', '.join(check.linters) or 'no linter'}"
        line.check(f"{name}: rendered and linted", not check.problems, problems or found)
    sites = [load_site(name, environ) for name in names]
    for version in VERSIONS:
        with_slurm(line, version, [site for site in sites if site.scheduler == "slurm"], environ)


def with_slurm(line: Line, version: str, sites: list[Site], environ: dict[str, str]) -> None:
    """Ask a lab with that Slurm, one controller of its own for each site."""
    name = "sites" + ("" if version == "22.05" else "-2411")
    lab_up(line, name, version)
    lab = Lab(name, "")
    draft_of_lab(line, lab, version, environ)
    for index, site in enumerate(sites):
        controller = Controller(line, lab, site, PORT + index, version)
        if controller.start():
            controller.ask(dict(headers(site, environ)))
        controller.stop()


def draft_of_lab(line: Line, lab: Lab, version: str, environ: dict[str, str]) -> None:
    """`site draft` on the lab itself: what it writes is checked, and accepted by that Slurm."""
    text = draft_site("drafted", environ=environ, slurm=LabSlurm(lab))
    with tempfile.TemporaryDirectory() as directory:
        (Path(directory) / "drafted.yaml").write_text(text)
        known = {**environ, "EXASLURM_SITE_CONFIG": directory}
        check = check_site("drafted", known)
        line.check(
            f"Slurm {version}: a draft of the lab is a good site config",
            not check.problems,
            "\n".join(check.problems) or f"{len(check.scripts)} scripts",
        )
        if check.site is None:
            return
        kinds = {name: (kind.cpus, kind.gpus) for name, kind in check.site.node_kinds.items()}
        line.check(f"Slurm {version}: its node kinds", kinds == DRAFTED, kinds)
        for name, script in headers(check.site, known):
            done = lab.sh("sbatch --test-only", text=script)
            said = done.stderr.strip().splitlines()
            line.check(
                f"Slurm {version}: {name} of the draft is accepted",
                done.returncode == 0,
                said[-1] if said else "silent",
            )


def lab_up(line: Line, name: str, version: str) -> None:
    script = str(ROOT / "scripts/lab")
    line.cleanups.append(lambda: subprocess.run([script, "down", "--name", name], check=True))
    words = ["up", "--name", name, "--nodes", "3", "--slurm", version, "--install"]
    done = subprocess.run([script, *words], capture_output=True, text=True, timeout=1800)
    line.ran(f"lab {name} with Slurm {version}", done)


def headers(site: Site, environ: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Scripts with different headers, by a name; containers change nothing in a header."""
    seen = set()
    for sample, text in rendered(site, environ):
        if not isinstance(text, str):
            raise LineFailed(f"{site.name}: {sample}: {text}")
        header = "\n".join(line for line in text.splitlines() if line.startswith("#SBATCH"))
        if header not in seen:
            seen.add(header)
            yield sample.file_name, text


class LabSlurm(Slurm):
    """Questions to the lab's Slurm, asked on its login node."""

    def __init__(self, lab: Lab) -> None:
        super().__init__({})
        self._lab = lab

    def query(self, argv: Sequence[str]) -> str:
        done = self._lab.on("login", *argv)
        if done.returncode:
            raise LineFailed(f"{' '.join(argv)}: {done.stderr}")
        return done.stdout


class Controller:
    """A slurmctld beside the lab's own, with a configuration and a port of its own."""

    def __init__(self, line: Line, lab: Lab, site: Site, port: int, version: str) -> None:
        self.line, self.lab, self.site = line, lab, site
        self.label = f"{site.name}, Slurm {version}"
        major, minor = version.split(".")
        address = lab.sh("hostname -i", host="ctl").stdout.split()
        if not address:
            raise LineFailed("the lab's ctl has no address")
        self.place = taught.Place(
            host="ctl",
            address=address[0],
            port=port,
            directory=f"/exa/shared/scratch/taught/{site.name}",
            state=f"/var/tmp/taught/{site.name}",
            version=(int(major), int(minor)),
        )

    def start(self) -> bool:
        """Write its files and start it; whether it answers."""
        place = self.place
        self.root(f"rm -rf {place.directory} {place.state}; mkdir -p {place.directory}")
        self.root(f"mkdir -p {place.state}/state; chown -R slurm {place.state}")
        for name, text in taught.files(self.site, place).items():
            self.root(f"cat >{place.directory}/{name}", text=text)
        done = self.root(f"slurmctld -f {place.directory}/slurm.conf", check=False)
        up = until(lambda: "UP" in self.login("scontrol ping")[1], 20, 0.2)
        log = self.root(f"tail -n 20 {place.state}/slurmctld.log", check=False)
        return self.line.check(
            f"{self.label}: a controller taught the site", up, "up" if up else f"{done}\n{log}"
        )

    def stop(self) -> None:
        pid = f"{self.place.state}/slurmctld.pid"
        self.root(f"if [ -s {pid} ]; then kill $(cat {pid}); fi", check=False)
        gone = until(lambda: "UP" not in self.login("scontrol ping")[1], 20, 0.2)
        if not gone:
            raise LineFailed(f"{self.label}: slurmctld does not end")

    def ask(self, scripts: dict[str, str]) -> None:
        """`sbatch --test-only` for each header, and for some that are wrong."""
        refused = []
        for name, text in scripts.items():
            code, said = self.login("sbatch --test-only", text)
            if code != 0:
                refused.append(f"{name}: {said}")
        found = f"{len(scripts)} headers" if not refused else "\n".join(refused)
        self.line.check(f"{self.label}: accepted by sbatch --test-only", not refused, found)
        text = next(text for name, text in scripts.items() if "-single-" in name)
        for what, (option, words) in WRONG.items():
            code, said = self.login(f"sbatch --test-only {option}", text)
            as_told = code != 0 and re.search(words, said, re.IGNORECASE) is not None
            self.line.check(f"{self.label}: {what} is refused", as_told, said.splitlines()[-1])
        self.ask_second(next(text for name, text in scripts.items() if "-het-" in name))
        self.ask_rules(text)

    def ask_second(self, text: str) -> None:
        """The workers of a heterogeneous job are looked at, not only its head."""
        head, _, workers = text.partition("#SBATCH hetjob\n")
        wrong = f"{head}#SBATCH hetjob\n#SBATCH --partition=nowhere\n" + "\n".join(
            line for line in workers.splitlines() if not line.startswith("#SBATCH --partition=")
        )
        code, said = self.login("sbatch --test-only", wrong)
        refused = code != 0 and "invalid partition" in said.lower()
        what = f"{self.label}: the second component is looked at"
        self.line.check(what, refused, said.splitlines()[-1])

    def ask_rules(self, text: str) -> None:
        """The rules of the site are kept by the controller too, not only by us."""
        slurm = self.site.slurm
        for option in slurm.mandatory_directives:
            name = option.removeprefix("--")
            if name in taught.UNSEEN | {"nodes"}:
                continue
            without = "\n".join(
                line for line in text.splitlines() if not line.startswith(f"#SBATCH --{name}=")
            )
            code, said = self.login("sbatch --test-only", without)
            refused = code != 0 and f"--{name} is missing" in said
            self.line.check(
                f"{self.label}: refused without --{name}", refused, said.splitlines()[0]
            )
        if slurm.memory == "none":
            code, said = self.login("sbatch --test-only --mem=1G", text)
            refused = code != 0 and "--mem is refused here" in said
            self.line.check(f"{self.label}: refused with --mem", refused, said.splitlines()[0])

    def login(self, command: str, text: str = "") -> tuple[int, str]:
        """Run a command of Slurm's as a user who talks to this controller."""
        variables = {"SLURM_CONF": f"{self.place.directory}/slurm.conf"}
        done = self.lab.sh(command, text=text, variables=variables)
        return done.returncode, (done.stdout + done.stderr).strip() or "silent"

    def root(self, script: str, *, text: str = "", check: bool = True) -> str:
        done = self.lab.on("ctl", "sh", "-c", script, user="root", text=text)
        if check and done.returncode:
            raise LineFailed(f"{self.label}: {script}: {done.stderr}")
        return (done.stdout + done.stderr).strip()
