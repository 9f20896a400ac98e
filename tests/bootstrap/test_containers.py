"""How init gets into a container. The argv of runtimes is golden: what they make of it is known
from a real Apptainer (``tests/launch/test_container_lab.py``), and of the others from their pages.
"""

from __future__ import annotations

import dataclasses
import json
import os
import resource
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import pytest

from exaslurm.bootstrap import containers, enter
from exaslurm.core.codec import dumps
from exaslurm.core.container import COMMANDS, SRUN_RUNTIMES, Bind, ContainerPlan, Runtime
from exaslurm.core.plan import Device, EnginePlan, NodeEnvironment, Plan
from exaslurm.errors import AllocationError
from exaslurm.rundir import GenerationDir
from exaslurm.slurm.srun import step_argv
from tests.tools import plans

tomllib = pytest.importorskip("tomllib")  # Python 3.11, as nodes have

GOLDEN = Path(__file__).parent / "golden"
RUN_DIR = Path("/state/ada/exaslurm/d")
GEN_DIR = RUN_DIR / "gen" / "1"
PACKAGE = Path("/apps/exaslurm/lib/python3.12/site-packages/exaslurm")
INIT = ["--gen-dir", str(GEN_DIR), "--run-dir", str(RUN_DIR), "--cell", "c000", "--het-group", "1"]
IMAGES = {
    "apptainer": "/images/vllm.sif",
    "singularity": "/images/vllm.sif",
    "podman-hpc": "docker.io/vllm/vllm-openai:v0.33.0",
    "pyxis": "/images/vllm.sqsh",
    "container-engine": "/images/vllm.toml",
}
NODE = {"/dev/infiniband", "/dev/kfd", "/dev/dri", "/local", "/dev/cxi0", "/dev/cxi1"}


def on_node(*paths: str) -> Any:
    """A node that has these paths, and no others."""

    def find(pattern: str) -> Sequence[str]:
        if pattern.endswith("*"):
            return [path for path in paths if path.startswith(pattern[:-1])]
        return [path for path in paths if path == pattern]

    return find


def make_plan(
    runtime: Runtime = "apptainer",
    device: Device = "cuda",
    *,
    node: NodeEnvironment | None = None,
    **container: Any,
) -> Plan:
    chosen = {
        "runtime": runtime,
        "image": IMAGES[runtime],
        "executable": COMMANDS.get(runtime),
        "host_python": "/apps/exaslurm/bin/python",
        "package": "host",
        "home": None,
        "binds": (Bind(source="/usr/lib64/fabric", target="/opt/fabric", read_only=True),),
    }
    node = node or plans.make_environment(
        python="python3",
        tmp="/tmp",
        shared="/scratch/ada",
        local="/local",
        env={"NCCL_NET_GDR_LEVEL": "PHB", "FI_PROVIDER": "cxi"},
    )
    return plans.make_plan(
        models=[plans.make_model(engine=EnginePlan(kind="vllm", device=device), gpus=1)],
        cells=plans.make_cells(
            plans.make_component(0, "head"),
            plans.make_component(1, "worker", nodes=2, cpus_per_node=64, gpus_per_node=4),
        ),
        node=dataclasses.replace(node, container=ContainerPlan(**{**chosen, **container})),
    ).sealed()


def worker(plan: Plan) -> Any:
    return plan.cells[0].components[1]


def argv_of(plan: Plan, find: Any = on_node(*NODE)) -> list[str]:  # noqa: B008 - it is immutable
    binds = containers.mounts(plan, RUN_DIR, GEN_DIR, PACKAGE)
    command = containers.init_command(plan, INIT)
    return containers.runtime_argv(plan, worker(plan), binds, command, find)


def text_of(plan: Plan) -> str:
    """Everything that a runtime is told, one word a line."""
    container = plan.node.container
    assert container is not None
    binds = containers.mounts(plan, RUN_DIR, GEN_DIR, PACKAGE)
    command = containers.init_command(plan, INIT)
    if container.runtime not in SRUN_RUNTIMES:
        return "\n".join(argv_of(plan)) + "\n"
    edf = GEN_DIR / "cells" / "c000" / "container.toml"
    words = containers.srun_words(plan, worker(plan), binds, edf)
    text = "\n".join(step_argv(worker(plan), command, het=True, output="%N.log", extra=words))
    if container.runtime == "container-engine":
        text += "\n\n" + containers.edf_text(plan, binds)
    return text + "\n"


@pytest.mark.parametrize("device", ["cuda", "rocm", "xpu"])
@pytest.mark.parametrize("runtime", get_args(Runtime))
def test_golden(runtime: Runtime, device: Device) -> None:
    """To accept a change, run ``scripts/golden`` and read its diff."""
    text = text_of(make_plan(runtime, device))
    file = GOLDEN / f"{runtime}-{device}.txt"
    if os.environ.get("EXASLURM_UPDATE_GOLDEN"):
        file.write_text(text)
    assert text == file.read_text()


OPTIONS = json.loads((Path(__file__).parent / "data" / "options.json").read_text())


@pytest.mark.parametrize("device", ["cuda", "rocm", "xpu"])
@pytest.mark.parametrize("runtime", sorted(OPTIONS))
def test_the_tools_know_their_options(runtime: Runtime, device: Device) -> None:
    """As recorded from the tools' own help and pages."""
    plan = make_plan(runtime, device)
    if runtime in SRUN_RUNTIMES:
        binds = containers.mounts(plan, RUN_DIR, GEN_DIR, PACKAGE)
        words = list(containers.srun_words(plan, worker(plan), binds, Path("/edf.toml")))
    else:
        words = argv_of(plan)
        words = words[2 : words.index(IMAGES[runtime])]
    assert words
    assert {word.split("=")[0] for word in words} <= set(OPTIONS[runtime]["options"].split())


def test_singularity_is_told_what_apptainer_is() -> None:
    assert argv_of(make_plan("singularity"))[1:] == argv_of(make_plan("apptainer"))[1:]


@pytest.mark.parametrize("runtime", get_args(Runtime))
def test_no_value_of_a_variable_is_an_argument(runtime: Runtime) -> None:
    node = plans.make_environment(python="python3", env={"HF_TOKEN": "hf_abcdef"})
    text = text_of(make_plan(runtime, node=node)).split("\n\n")[0]
    assert "hf_abcdef" not in text


def test_a_head_has_no_gpus() -> None:
    plan = make_plan("apptainer", "cuda")
    head = plan.cells[0].components[0]
    assert containers.accelerators(plan, head) == ()
    assert containers.accelerators(plan, worker(plan)) == ("cuda",)
    assert containers.accelerators(make_plan("apptainer", "cpu"), worker(plan)) == ()


def test_what_a_node_lacks_is_left_out() -> None:
    argv = argv_of(make_plan("apptainer", "rocm"), on_node())
    assert not any("/dev/" in word or "/local" in word for word in argv)
    assert "--bind=/scratch/ada:/scratch/ada:rw" in argv


def test_what_lies_in_another_comes_after_it() -> None:
    node = plans.make_environment(python="python3", shared="/state/ada", tmp="/tmp")
    plan = make_plan(node=node, binds=(Bind(source="/x", target="/state"),))
    binds = [bind.target for bind in containers.mounts(plan, RUN_DIR, GEN_DIR, PACKAGE)]
    order = ["/state", "/state/ada", str(RUN_DIR)]
    assert [target for target in binds if target.startswith("/state")] == order


def test_a_plan_elsewhere_is_bound_too() -> None:
    binds = containers.mounts(make_plan(), RUN_DIR, Path("/home/ada/out"), PACKAGE)
    assert {"/home/ada/out", str(RUN_DIR)} <= {bind.target for bind in binds}


def test_the_site_has_the_last_word_on_a_directory() -> None:
    plan = make_plan(binds=(Bind(source="/fast", target="/tmp"),))
    binds = {bind.target: bind for bind in containers.mounts(plan, RUN_DIR, GEN_DIR, PACKAGE)}
    assert binds["/tmp"].source == "/fast"


@pytest.mark.parametrize(
    ("runtime", "path"),
    [("apptainer", "/a,b"), ("podman-hpc", "/a:b"), ("pyxis", "/a b"), ("container-engine", "/a,")],
)
def test_a_path_that_cannot_be_bound_is_named(runtime: Runtime, path: str) -> None:
    with pytest.raises(AllocationError, match=f"'{path}' cannot be bound"):
        containers.mounts(make_plan(runtime), Path(path), GEN_DIR, PACKAGE)


def test_a_path_with_a_blank_is_bound_where_it_can_be() -> None:
    argv = containers.mounts(make_plan("apptainer"), Path("/my state"), GEN_DIR, PACKAGE)
    assert "/my state" in [bind.source for bind in argv]


def test_an_image_with_its_own_exaslurm() -> None:
    plan = make_plan(package="image")
    assert containers.init_command(plan, INIT)[:3] == ["python3", "-m", "exaslurm.bootstrap.init"]
    assert not any(containers.PACKAGE_ROOT in word for word in argv_of(plan))


def test_home_and_args() -> None:
    plan = make_plan(home="/home/ada", args=("--writable-tmpfs",))
    argv = argv_of(plan)
    assert "--no-home" not in argv
    assert "--bind=/home/ada:/home/ada:rw" in argv
    assert argv.index("--writable-tmpfs") == argv.index("/images/vllm.sif") - 1


@pytest.mark.parametrize(
    ("runtime", "prefix"), [("apptainer", "APPTAINERENV_"), ("singularity", "SINGULARITYENV_")]
)
def test_environment_of_a_container_that_inherits_it(runtime: Runtime, prefix: str) -> None:
    node = plans.make_environment(env={"LD_LIBRARY_PATH": "/opt/fabric", "TMPDIR": "/fast"})
    host = {
        "PATH": "/usr/bin", "SLURM_JOB_ID": "7", "CUDA_VISIBLE_DEVICES": "0,1",
        "PYTHONPATH": "/apps/python", "PYTHONHOME": "/apps", "VIRTUAL_ENV": "/v",
        "CONDA_PREFIX": "/c", "LD_PRELOAD": "/x.so", "SSL_CERT_FILE": "/etc/pki/ca.pem",
        "LD_LIBRARY_PATH": "/opt/fabric", "TMPDIR": "/fast", "PYTHONUNBUFFERED": "1",
    }  # fmt: skip
    env = containers.runtime_environ(make_plan(runtime, node=node), host)
    assert env == {
        "PATH": "/usr/bin", "SLURM_JOB_ID": "7", "CUDA_VISIBLE_DEVICES": "0,1",
        "LD_LIBRARY_PATH": "/opt/fabric", "TMPDIR": "/fast", "PYTHONUNBUFFERED": "1",
        prefix + "LD_LIBRARY_PATH": "/opt/fabric", prefix + "TMPDIR": "/fast",
        "PYTHONNOUSERSITE": "1", "PYTHONSAFEPATH": "1",
    }  # fmt: skip


def test_an_edf_is_toml_in_which_nothing_is_expanded() -> None:
    node = plans.make_environment(python="python3", env={"ODD": 'it\'s "$HOME" \\ ü'})
    plan = make_plan("container-engine", node=node)
    binds = containers.mounts(plan, RUN_DIR, GEN_DIR, PACKAGE)
    data = tomllib.loads(containers.edf_text(plan, binds))
    assert data["base_environment"] == "/images/vllm.toml"
    assert data["env"]["ODD"] == 'it\'s "$$HOME" \\ ü'
    assert f"{RUN_DIR}:{RUN_DIR}" in data["mounts"]
    assert "/usr/lib64/fabric:/opt/fabric:ro" in data["mounts"]


# --- the task on the host -----------------------------------------------------------------------


@pytest.fixture
def node(tmp_path: Path) -> dict[str, Path]:
    """A node with an image, a state directory, and a runtime that says what it was told."""
    for name in ("bin", "shared", "tmp", "state/gen"):
        (tmp_path / name).mkdir(parents=True)
    runtime = tmp_path / "bin" / "apptainer"
    runtime.write_text(
        '#!/bin/sh\nprintf "%s\\n" "$@"; echo "TMP=$APPTAINER_TMPDIR"; pwd; ulimit -l\n'
    )
    runtime.chmod(0o755)
    (tmp_path / "image.sif").touch()
    return {"root": tmp_path, "gen": tmp_path / "state" / "gen", "run": tmp_path / "state"}


def enter_in(
    node: dict[str, Path], *, group: int = 0, **container: Any
) -> subprocess.CompletedProcess[str]:
    root = node["root"]
    environment = plans.make_environment(
        python="python3", shared=str(root / "shared"), tmp=str(root / "tmp")
    )
    chosen: dict[str, Any] = {"image": str(root / "image.sif"), "binds": (), **container}
    plan = make_plan(node=environment, **chosen)
    gen_dir = GenerationDir(node["gen"])
    gen_dir.plan.write_text(dumps(plan))
    gen_dir.make(("c000",))
    return subprocess.run(
        [
            *(sys.executable, "-m", "exaslurm.bootstrap.enter", "--gen-dir", str(node["gen"])),
            *("--run-dir", str(node["run"]), "--cell", "c000", "--het-group", str(group)),
            *("--head-host", "10.0.0.1", "--port-base", "20000"),
        ],
        env={
            "PATH": f"{root / 'bin'}:/usr/bin:/bin",
            "PYTHONPATH": str(Path(__file__).resolve().parents[2]),
            "APPTAINER_TMPDIR": "/not/on/this/node",
            "SLURMD_NODENAME": "n7",
            "SLURM_NODEID": "0",
        },
        capture_output=True,
        text=True,
        timeout=20,
        preexec_fn=lambda: resource.setrlimit(
            resource.RLIMIT_MEMLOCK, (0, resource.getrlimit(resource.RLIMIT_MEMLOCK)[1])
        ),
    )


def test_enter_becomes_the_runtime(node: dict[str, Path]) -> None:
    done = enter_in(node)
    assert done.returncode == 0, done.stderr
    *words, tmp, cwd, locked = done.stdout.splitlines()
    assert words[0] == "exec"
    image = words.index(str(node["root"] / "image.sif"))
    command = words[image + 1 :]
    assert command[:3] == ["python3", "-P", f"{containers.PACKAGE_ROOT}/exaslurm/bootstrap/init.py"]
    assert command[-4:] == ["--head-host", "10.0.0.1", "--port-base", "20000"]
    assert f"--bind={enter.PACKAGE}:{containers.PACKAGE_ROOT}/exaslurm:ro" in words
    assert tmp == f"TMP={node['root'] / 'tmp'}"
    assert "/not/on/this/node is not there, " in done.stderr
    assert cwd == "/"
    assert locked != "0"


@pytest.mark.parametrize(
    ("container", "said"),
    [
        ({"image": "/nowhere/x.sif"}, "the image /nowhere/x.sif cannot be read"),
        ({"executable": "no-such-runtime"}, "'no-such-runtime' is not on this node's PATH"),
        ({"binds": (Bind(source="/nowhere", target="/x"),)}, "in the container: /nowhere"),
    ],
)
def test_what_is_missing_is_said_and_is_the_cells_reason(
    node: dict[str, Path], container: dict[str, Any], said: str
) -> None:
    done = enter_in(node, **container)
    assert done.returncode == enter.EX_CONFIG
    assert done.stderr.startswith("exaslurm: n7: ")
    assert said in done.stderr
    assert said in GenerationDir(node["gen"]).failure("c000").read_text()


def test_a_worker_that_cannot_enter_is_not_the_cells_end(node: dict[str, Path]) -> None:
    assert enter_in(node, group=1, image="/nowhere/x.sif").returncode == enter.EX_CONFIG
    assert not GenerationDir(node["gen"]).failure("c000").exists()
