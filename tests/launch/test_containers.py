"""The batch script's Python where the site has a container: what srun is told."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from exaslurm.core.container import COMMANDS, SRUN_RUNTIMES, ContainerPlan, Runtime
from tests.launch.conftest import Stage, make_plan
from tests.launch.test_launch import run


def contained(stage: Stage, runtime: Runtime, **changes: Any) -> None:
    """A plan in that container; the components' steps tell their environment."""
    plan = make_plan()
    container = ContainerPlan(
        runtime=runtime,
        image="/images/vllm",
        executable=COMMANDS.get(runtime),
        host_python="/host/python",
        package="host",
        home=None,
    )
    shared = str(stage.fake_dir.parent / "shared" / "ada")
    node = dataclasses.replace(
        plan.node, python="python3", shared=shared, container=container, env={"FI_PROVIDER": "cxi"}
    )
    stage.write_plan(dataclasses.replace(plan, node=node).sealed())
    for group in (0, 1):
        stage.component(group, f'env > "$FAKE_DIR/env.{group}"')
    stage.environ |= {"LD_PRELOAD": "", "CONDA_PREFIX": "/conda", "PYTHONUSERBASE": "/user"}


@pytest.mark.parametrize("runtime", sorted(COMMANDS))
def test_a_runtime_with_a_command_is_started_by_a_task_on_the_host(
    stage: Stage, runtime: Runtime
) -> None:
    contained(stage, runtime)
    code, said = run(stage)
    assert code == 0, said
    for group in (0, 1):
        (call,) = stage.calls(group)
        assert " /host/python -m exaslurm.bootstrap.enter --gen-dir " in call
        assert f"--het-group {group} --head-host " in call
        assert "--container" not in call
        # What the host's own Python needs is taken away later, by that task.
        assert "CONDA_PREFIX=/conda" in (stage.fake_dir / f"env.{group}").read_text().splitlines()


@pytest.mark.parametrize("runtime", SRUN_RUNTIMES)
def test_a_runtime_of_slurm_is_started_by_srun(
    stage: Stage, runtime: Runtime, tmp_path: Path
) -> None:
    moved = tmp_path / "state"
    stage.run_dir = type(stage.run_dir)(moved / "d")
    stage.gen_dir = type(stage.gen_dir)(moved / "d" / "gen" / "1")
    contained(stage, runtime)
    code, said = run(stage)
    assert code == 0, said
    edf = stage.gen_dir.container("c000")
    for group in (0, 1):
        (call,) = stage.calls(group)
        assert " python3 -P /opt/exaslurm-host/exaslurm/bootstrap/init.py --gen-dir " in call
        if runtime == "pyxis":
            assert " --container-image=/images/vllm " in call
            assert f"{moved}/d:{moved}/d" in call
        else:
            assert f" --environment={edf} " in call
        env = (stage.fake_dir / f"env.{group}").read_text().splitlines()
        assert "PYTHONNOUSERSITE=1" in env
        assert not any(line.startswith(("CONDA_", "PYTHONUSERBASE", "PYTHONPATH")) for line in env)
    assert (tmp_path / "shared" / "ada").is_dir()
    assert edf.exists() == (runtime == "container-engine")
    if edf.exists():
        assert edf.stat().st_mode & 0o077 == 0
        assert f'"{moved}/d:{moved}/d",' in edf.read_text()


def test_a_path_that_slurm_cannot_bind_ends_the_job_with_a_reason(stage: Stage) -> None:
    contained(stage, "pyxis")
    code, said = run(stage)
    assert code != 0
    assert "state dir/d' cannot be bound into a container" in said
    assert stage.calls(0) == []
