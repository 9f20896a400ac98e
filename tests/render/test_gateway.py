"""The script of a gateway's job, and what sites can change of it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from exaslurm.core.plan import GatewayJobPlan, Plan
from exaslurm.render.scripts import gateway_job_name, render_all
from tests.render.plans import HEAD, component, make_plan
from tests.render.test_scripts import assert_clean

RUN_DIR = Path("/exa/shared/home/exa1/exaslurm/it's mine")
NAME = "scripts/gateway.sbatch"


def with_job(plan: Plan) -> Plan:
    words = (*(item for item in HEAD if item[0] != "no-kill"), ("dependency", "singleton"))
    job = GatewayJobPlan(component=component(0, "head", 1, words, "cpu"), spares=2)
    gateway = dataclasses.replace(plan.gateway, home="job", job=job)
    return dataclasses.replace(plan, gateway=gateway).sealed()


def script(plan: Plan, *templates: Path) -> str:
    return render_all(plan, RUN_DIR / "gen" / "1", RUN_DIR, templates)[NAME]


def test_it_is_shell_and_has_the_sites_lines(tmp_path: Path) -> None:
    plan = make_plan(
        env={"A_B": "it's 5 o'clock"}, modules=["python/3.11"], prologue=["ulimit -n 4096"]
    )
    text = script(with_job(plan))
    path = tmp_path / "gateway.sbatch"
    path.write_text(text)
    assert_clean(path)
    name = gateway_job_name("hello", RUN_DIR)
    assert name.startswith("exa-hello-gateway-")
    for line in (
        f"#SBATCH --job-name={name}",
        "#SBATCH --open-mode=append",
        "#SBATCH --dependency=singleton",
        "module load python/3.11",
        "ulimit -n 4096",
        "export A_B='it'\"'\"'s 5 o'\"'\"'clock'",
    ):
        assert f"\n{line}\n" in text
    assert text.endswith("    --supervise\n")
    assert "hetjob" not in text


def test_only_where_the_gateway_is_a_job() -> None:
    files = render_all(make_plan(), RUN_DIR / "gen" / "1", RUN_DIR)
    assert NAME not in files


def test_other_state_directories_are_other_deployments() -> None:
    assert gateway_job_name("hello", RUN_DIR) != gateway_job_name("hello", RUN_DIR.parent)
    assert gateway_job_name("hello", RUN_DIR) == gateway_job_name("hello", RUN_DIR)


def test_a_block_for_both_scripts_and_one_for_the_gateway_alone(tmp_path: Path) -> None:
    (tmp_path / "job.sbatch.j2").write_text(
        '{% extends "package/job.sbatch.j2" %}\n'
        "{% block prologue %}\n# both\n{{ super() }}{% endblock %}\n"
    )
    (tmp_path / "gateway.sbatch.j2").write_text(
        '{% extends "package/gateway.sbatch.j2" %}\n{% block shebang %}\n#!/bin/sh -l\n'
        "{% endblock %}\n"
    )
    files = render_all(with_job(make_plan()), RUN_DIR / "gen" / "1", RUN_DIR, [tmp_path])
    gateway, cell = files[NAME], files["scripts/c000.sbatch"]
    assert gateway.startswith("#!/bin/sh -l\n")
    assert cell.startswith("#!/bin/bash\n")
    assert "\n# both\n" in gateway
    assert "\n# both\n" in cell
