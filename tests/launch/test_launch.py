"""The batch script's Python, as a process, with an ``srun`` that does what the test says."""

from __future__ import annotations

import dataclasses
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from exaslurm.core import ports
from exaslurm.core.codec import dumps, loads
from exaslurm.core.exclusion import EndedTasks
from exaslurm.core.marker import BootstrapMarker
from exaslurm.core.submission import Submission
from tests.launch.conftest import Stage, make_plan
from tests.tools import plans

REPOSITORY = Path(__file__).resolve().parents[2]


def start(stage: Stage) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "exaslurm.bootstrap.launch", *stage.argv],
        env={**stage.environ, "PYTHONPATH": str(REPOSITORY)},
        stderr=subprocess.PIPE,
        text=True,
    )


def run(stage: Stage, *, timeout_s: float = 30.0) -> tuple[int, str]:
    process = start(stage)
    try:
        _, said = process.communicate(timeout=timeout_s)
    finally:
        process.kill()
    return process.returncode, said


def wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 15
    while not path.exists():
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline, f"no {path.name}"
        time.sleep(0.02)


def submitted(stage: Stage, **more: Any) -> None:
    """What the run directory says of the job that runs here."""
    record = Submission(
        deployment="d",
        cell="c000",
        generation=1,
        plan_hash="",
        token="0a1b2c3d",
        job_name="exa-d-c000-0a1b2c3d",
        state="submitted",
        created_s=1.0,
        job_id="41",
    )
    stage.environ["SLURM_JOB_NAME"] = record.job_name
    stage.gen_dir.submissions.mkdir(exist_ok=True)
    stage.gen_dir.submission("c000").write_text(dumps(dataclasses.replace(record, **more)))


@pytest.mark.parametrize("more", [{"token": "ffffffff", "job_id": "42"}, {"state": "refused"}])
def test_a_job_that_nobody_waits_for_ends_before_it_starts_anything(
    stage: Stage, more: dict[str, Any]
) -> None:
    submitted(stage, **more)
    code, said = run(stage)
    assert code == 0, said
    assert "job 41 (exa-d-c000-0a1b2c3d) ends without serving" in said
    assert stage.calls(0) == []
    assert not stage.gen_dir.bootstrap_marker("c000").exists()


def test_the_job_that_was_submitted_starts(stage: Stage) -> None:
    for more in ({}, {"state": "intent", "job_id": None}):
        submitted(stage, **more)
        assert run(stage)[0] == 0
    assert len(stage.calls(0)) == 2


def test_by_hand_a_script_starts_whatever_was_submitted(stage: Stage) -> None:
    submitted(stage, state="stopped")
    stage.environ["SLURM_JOB_NAME"] = "exa-d-c000"
    assert run(stage)[0] == 0
    stage.gen_dir.submission("c000").write_text("damaged")
    stage.environ["SLURM_JOB_NAME"] = "exa-d-c000-0a1b2c3d"
    assert run(stage)[0] == 0
    assert len(stage.calls(0)) == 2


def listen(port_file: str) -> str:
    """Shell lines that listen on the controller's port of their own command line."""
    return f"""
    base=$(echo "$@" | sed 's/.*--port-base \\([0-9]*\\).*/\\1/')
    exec {sys.executable} -c 'import socket, sys, signal, pathlib
    signal.signal(signal.SIGUSR2, lambda *_: sys.exit(0))
    s = socket.create_server(("127.0.0.1", int(sys.argv[1])))
    pathlib.Path(sys.argv[2]).write_text(sys.argv[1])
    signal.pause()' "$base" "{port_file}"
    """.replace("\n    ", "\n")


def test_starts_one_step_per_component_and_leaves_a_marker(stage: Stage) -> None:
    code, said = run(stage)
    assert code == 0, said
    marker = loads(
        BootstrapMarker, stage.gen_dir.bootstrap_marker("c000").read_text(), where="marker"
    )
    assert marker.plan_hash == make_plan().hash
    assert marker.nodes == {"0": ("n1",), "1": ("n2", "n3")}
    assert marker.het_job_ids == {"0": "41", "1": "44"}
    assert marker.group_of("n3") == 1
    (head,) = stage.calls(0)
    (workers,) = stage.calls(1)
    assert "--nodes=1 --ntasks=1" in head
    assert "--nodes=2 --ntasks=2" in workers
    for call in (head, workers):
        for option in ("--overlap", "--no-kill", "--kill-on-bad-exit=0", "--cpus-per-task=3"):
            assert option in call.split()
    base = int(head.split("--port-base ")[1].split()[0])
    assert base % 500 == 0
    assert f"--port-base {base}" in workers


def test_the_marker_says_what_slurm_knows_of_the_nodes(stage: Stage) -> None:
    plan = make_plan()
    model = dataclasses.replace(plans.make_model(), constraints=("feature == nvme",))
    part = dataclasses.replace(plan.cells[0].components[1], directives=(("constraint", "a&b"),))
    cell = dataclasses.replace(plan.cells[0], components=(plan.cells[0].components[0], part))
    stage.write_plan(dataclasses.replace(plan, models=(model,), cells=(cell,)).sealed())
    (stage.fake_dir / "scontrol.topology").write_text(
        "SwitchName=l1 Level=0 LinkSpeed=1 Nodes=n[1-2]\n"
        "SwitchName=s Level=1 LinkSpeed=1 Nodes=n[1-3] Switches=l1\n"
    )
    (stage.fake_dir / "scontrol.node").write_text("NodeName=n2 ActiveFeatures=nvme,big X=1\n")
    code, said = run(stage)
    assert code == 0, said
    marker = loads(
        BootstrapMarker, stage.gen_dir.bootstrap_marker("c000").read_text(), where="marker"
    )
    assert marker.switches == {"n1": ("s", "l1"), "n2": ("s", "l1")}
    # Where Slurm does not say, a node has what was asked for.
    assert marker.features == {"n2": ("nvme", "big"), "n3": ("a", "b")}


def test_secrets_and_directories_are_made_private(stage: Stage) -> None:
    code, said = run(stage)
    assert code == 0, said
    for path in (stage.run_dir.internal_key, stage.run_dir.ray_token, stage.gen_dir.path):
        assert path.stat().st_mode & 0o077 == 0
    secret = stage.run_dir.internal_key.read_text()
    assert secret not in said + "".join(stage.calls(0) + stage.calls(1))


def test_what_an_earlier_job_of_the_cell_left_is_removed(stage: Stage) -> None:
    stage.gen_dir.make(("c000",))
    for stale in (stage.gen_dir.binding("c000"), stage.gen_dir.failure("c000")):
        stale.write_text("old")
    code, said = run(stage)
    assert code == 0, said
    assert not stage.gen_dir.binding("c000").exists()


def test_a_taken_port_leads_to_the_next_block(stage: Stage) -> None:
    stage.component(0, 'test $(wc -l < "$FAKE_DIR/argv.0") -ge 2 && exit 0; exit 75')
    code, said = run(stage)
    assert code == 0, said
    first, second = stage.calls(0)
    assert first.split("--port-base ")[1] != second.split("--port-base ")[1]
    assert "trying another block" in said


def test_a_port_that_is_taken_before_is_not_tried(stage: Stage) -> None:
    first = ports.block_base(make_plan().ports, 41)
    try:
        taken = socket.create_server(("127.0.0.1", first + ports.RAY_GCS))
    except OSError:
        pytest.skip(f"port {first + ports.RAY_GCS} is somebody else's just now")
    with taken:
        code, said = run(stage)
    assert code == 0, said
    assert f"--port-base {first} " not in stage.calls(0)[0] + " "


def test_gives_up_after_some_blocks(stage: Stage) -> None:
    stage.component(0, "exit 75")
    code, said = run(stage)
    assert code == 1
    assert len(stage.calls(0)) == 3
    assert "site.ports" in said


def test_no_free_block(stage: Stage) -> None:
    first = next(base for base in range(20000, 31000, 500) if _free(base))
    stage.write_plan(make_plan(first=first, last=first + 499))
    with socket.create_server(("127.0.0.1", first)):
        code, said = run(stage)
    assert code == 1
    assert f"{first}-{first + 499}" in said
    assert stage.calls(0) == []


def _free(base: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", base))
        except OSError:
            return False
    return True


def test_the_exit_code_is_the_heads(stage: Stage) -> None:
    stage.component(0, "exit 9")
    code, said = run(stage)
    assert code == 9
    assert "the head's step ended with 9" in said


def test_a_cell_that_ended_itself_is_a_failure(stage: Stage) -> None:
    failure = stage.gen_dir.failure("c000")
    stage.component(0, f"sleep 0.2; echo 'no node came' > '{failure}'; exit 0")
    code, said = run(stage)
    assert code == 1
    assert "the cell failed: no node came" in said


def test_workers_that_end_early_do_not_end_the_job(stage: Stage, tmp_path: Path) -> None:
    up = tmp_path / "up"
    stage.component(0, listen(str(up)))
    stage.component(1, "echo 'srun: error: n2: task 0: Exited with exit code 3' >&2; exit 3")
    process = start(stage)
    try:
        wait_for(up, process)
        deadline = time.monotonic() + 10
        said = ""
        while "going on without it" not in said:
            assert time.monotonic() < deadline
            assert process.stderr is not None
            said += process.stderr.readline()
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        _, rest = process.communicate(timeout=20)
    finally:
        process.kill()
    assert process.returncode == 0
    assert "component 1: srun: error: n2" in said
    assert "got SIGTERM: telling the tasks to stop" in said + rest


def test_the_controller_is_told_where_a_task_ended(stage: Stage, tmp_path: Path) -> None:
    up = tmp_path / "up"
    stage.component(0, listen(str(up)))
    stage.component(
        1, "echo 'srun: error: n[2-3]: tasks 0-1: Exited with exit code 3' >&2; exec sleep 30"
    )
    process = start(stage)
    try:
        ended = stage.gen_dir.ended("c000")
        wait_for(ended, process)
        found = loads(EndedTasks, ended.read_text(), where="it")
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=20)
    assert found.nodes == dict.fromkeys(("n2", "n3"), "Exited with exit code 3")


def test_signals_reach_every_step_once(stage: Stage, tmp_path: Path) -> None:
    """SIGTERM as another one: srun would kill its tasks in place of passing it on."""
    for group in (0, 1):
        stage.component(
            group,
            f"""
            trap 'echo USR2 >> "{tmp_path}/got.{group}"; exit 0' USR2
            trap 'echo USR1 >> "{tmp_path}/got.{group}"' USR1
            echo up >&2
            while :; do sleep 0.05; done
            """,
        )
    process = start(stage)
    try:
        assert process.stderr is not None
        waiting = {f"component {group}: up" for group in (0, 1)}
        for line in process.stderr:
            waiting = {words for words in waiting if words not in line}
            if not waiting:  # what is said of a step is said by who has it
                break
        assert not waiting
        process.send_signal(signal.SIGUSR1)
        for group in (0, 1):
            wait_for(tmp_path / f"got.{group}", process)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=20)
    finally:
        process.kill()
    assert process.returncode == 0
    for group in (0, 1):
        assert (tmp_path / f"got.{group}").read_text().split() == ["USR1", "USR2"]


def test_steps_are_ended_when_the_head_fails(stage: Stage, tmp_path: Path) -> None:
    stage.component(0, "sleep 0.5; exit 4")
    stage.component(1, f"trap 'touch {tmp_path}/ended; exit 0' USR2; while :; do sleep 0.05; done")
    code, said = run(stage)
    assert code == 4, said
    assert (tmp_path / "ended").exists()


def test_a_step_that_slurm_never_starts(stage: Stage) -> None:
    stage.write_plan(make_plan(nodes_s=1.0))
    stage.component(
        0,
        "echo 'srun: Job 41 step creation temporarily disabled, retrying (Requested nodes are"
        " busy)' >&2; exec sleep 60",
    )
    began = time.monotonic()
    code, said = run(stage)
    assert code == 1
    assert time.monotonic() - began < 20
    assert "has not started the step" in said
    assert "Requested nodes are busy" in said


def test_a_head_that_never_listens(stage: Stage) -> None:
    stage.write_plan(make_plan(nodes_s=1.0))
    stage.component(0, "exec sleep 60")
    code, said = run(stage)
    assert code == 1
    assert "no controller at 127.0.0.1:" in said
    assert str(stage.gen_dir.logs("c000")) in said


def test_a_head_that_dies_in_the_step_of_all_nodes(stage: Stage) -> None:
    """With one component the step outlives its task 0: srun's message is all there is."""
    stage.component(
        0,
        "echo 'srun: error: n[1-2]: tasks 0-1: Killed' >&2; trap 'exit 0' USR2;"
        " while :; do sleep 0.05; done",
    )
    code, said = run(stage)
    assert code == 1
    assert "the head's init ended" in said


def test_a_changed_plan_is_refused(stage: Stage) -> None:
    text = stage.gen_dir.plan.read_text()
    stage.gen_dir.plan.write_text(text.replace('"deployment":"d"', '"deployment":"e"'))
    code, said = run(stage)
    assert code == 1
    assert "changed after it was made" in said
    assert stage.calls(0) == []


def test_outside_a_job_there_is_one_clear_line(stage: Stage) -> None:
    del stage.environ["SLURM_JOB_ID"]
    code, said = run(stage)
    assert code == 1
    (line,) = said.splitlines()
    assert "SLURM_JOB_ID" in line
    assert "sbatch" in line


def test_options_by_variable_do_not_reach_the_step(stage: Stage) -> None:
    stage.component(0, 'env > "$FAKE_DIR/env"; exit 0')
    code, said = run(stage)
    assert code == 0, said
    names = {line.split("=")[0] for line in (stage.fake_dir / "env").read_text().splitlines()}
    assert "SLURM_CPU_BIND" not in names
    assert "SLURM_JOB_ID" in names


def test_a_missing_srun_is_named(stage: Stage) -> None:
    (stage.fake_dir / "srun").unlink()
    stage.environ["PATH"] = str(stage.fake_dir)
    code, said = run(stage)
    assert code == 4
    assert "srun" in said
    assert os.linesep + "Traceback" not in said
