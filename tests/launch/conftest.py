"""A plan for a cell of one head and two workers, and an ``srun`` that a test can direct."""

from __future__ import annotations

import os
import stat
import textwrap
from dataclasses import dataclass
from pathlib import Path

import pytest

from exaslurm.core.codec import dumps
from exaslurm.core.plan import Plan
from exaslurm.rundir import GenerationDir, RunDir
from tests.tools import plans

# Slurm's errors and timings are what cannot be had on demand: this stands in for srun only, the
# launch process is the real one. It runs the shell lines that the test gives for its component.
FAKE_SRUN = """\
#!/bin/sh
group=0
for word in "$@"; do case $word in --het-group=*) group=${word#--het-group=};; esac; done
echo "$@" >> "$FAKE_DIR/argv.$group"
. "$FAKE_DIR/component.$group"
"""


# Nothing is known of switches and features, where the test does not write it down.
FAKE_SCONTROL = """\
#!/bin/sh
cat "$FAKE_DIR/scontrol.$2" 2>/dev/null
"""


def make_plan(*, nodes_s: float = 20.0, first: int = 20000, last: int = 31999) -> Plan:
    return plans.make_plan(
        cells=plans.make_cells(
            plans.make_component(0, "head", cpus_per_node=3),
            plans.make_component(1, "worker", nodes=2, cpus_per_node=3),
        ),
        first_port=first,
        last_port=last,
        nodes_s=nodes_s,
    ).sealed()


@dataclass
class Stage:
    """Where a launch runs: directories, fake srun, environment."""

    run_dir: RunDir
    gen_dir: GenerationDir
    fake_dir: Path
    environ: dict[str, str]

    def component(self, group: int, script: str) -> None:
        """What srun of that component does (shell)."""
        (self.fake_dir / f"component.{group}").write_text(textwrap.dedent(script))

    def write_plan(self, plan: Plan) -> None:
        self.gen_dir.path.mkdir(parents=True, exist_ok=True)
        self.gen_dir.plan.write_text(dumps(plan))

    def calls(self, group: int) -> list[str]:
        path = self.fake_dir / f"argv.{group}"
        return path.read_text().splitlines() if path.exists() else []

    @property
    def argv(self) -> list[str]:
        return [
            "--gen-dir", str(self.gen_dir.path), "--run-dir", str(self.run_dir.path),
            "--cell", "c000",
        ]  # fmt: skip


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    fake_dir = tmp_path / "fake bin"
    fake_dir.mkdir()
    for name, text in (("srun", FAKE_SRUN), ("scontrol", FAKE_SCONTROL)):
        command = fake_dir / name
        command.write_text(text)
        command.chmod(command.stat().st_mode | stat.S_IXUSR)
    made = Stage(
        run_dir=RunDir(tmp_path / "state dir" / "d"),
        gen_dir=GenerationDir(tmp_path / "state dir" / "d" / "gen" / "1"),
        fake_dir=fake_dir,
        environ={
            "PATH": f"{fake_dir}:{os.environ['PATH']}",
            "FAKE_DIR": str(fake_dir),
            "SLURM_JOB_ID": "41",
            "SLURM_JOB_NAME": "exa-d-c000",
            "SLURM_HET_SIZE": "2",
            "SLURM_JOB_ID_HET_GROUP_0": "41",
            "SLURM_JOB_NODELIST_HET_GROUP_0": "n1",
            "SLURM_JOB_ID_HET_GROUP_1": "44",
            "SLURM_JOB_NODELIST_HET_GROUP_1": "n[2-3]",
            "SLURM_CPU_BIND": "rank",
        },
    )
    made.write_plan(make_plan())
    made.component(0, "exit 0")
    made.component(1, "exit 0")
    return made
