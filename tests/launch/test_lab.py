"""A cell from ``sbatch`` to ready and to its end, on a real Slurm with a real Ray.

The engines are simulated ones: what is tested here is everything around them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.slurm.conftest import ProductLab, product_lab

pytestmark = [pytest.mark.lab, pytest.mark.ray, pytest.mark.timeout(600)]

SPEC = """
schema: exaslurm/v1
deployment: cell
site: {site}
time_limit: "00:20:00"
workers: {{nodes: 2, min_nodes: 1}}
models:
  - name: toy
    engine: {{kind: simulated}}
    shards: [{{name: base, replicas: 2}}]
"""
CALL = """
import json, os, sys, urllib.request
run_dir = os.path.expanduser("~/.exaslurm-test/exaslurm/cell")
with open(run_dir + "/registry/c000.json") as file:
    url = json.load(file)["state_url"]
with open(run_dir + "/keys/internal.key") as file:
    headers = {"Authorization": "Bearer " + file.read().strip()}
request = urllib.request.Request(url + sys.argv[1], method=sys.argv[2], headers=headers)
print(urllib.request.urlopen(request, timeout=5).read().decode() or "null")
"""
HOME = "$HOME/.exaslurm-test"


class Cell:
    """The cell of a lab, as its user sees it from the login node."""

    def __init__(self, lab: ProductLab, *, hetjobs: bool, site: str = "", spec: str = SPEC) -> None:
        """``site``: more lines of a site config of its own."""
        self.lab = lab
        self.hosts = ["c1", "c2", "c3"] if hetjobs else ["c2", "c3"]
        self.head = self.hosts[0]
        lab.sh("login", "mkdir -p ~/.config/exaslurm/sites; rm -rf ~/.exaslurm-test ~/r")
        lab.on(
            "login",
            *("sh", "-c", "cat > ~/.config/exaslurm/sites/lab1.yaml"),
            text="schema: exaslurm/site/v1\nname: lab1\nextends: lab\n"
            f"slurm: {{hetjobs: {str(hetjobs).lower()}}}\n{site}",
        )
        text = spec.format(site="lab" if hetjobs and not site else "lab1")
        lab.on("login", "sh", "-c", "cat > ~/cell.yaml", text=text)
        home = lab.sh("login", f"echo {HOME}").strip()
        render = lab.exaslurm("render", "cell.yaml", "-o", "r", EXASLURM_HOME=home)
        assert render.returncode == 0, render.stderr
        self.job = lab.sh(
            "login",
            f"export PYTHONPATH={ProductLab.pythonpath()}; sbatch --parsable r/scripts/c000.sbatch",
        ).strip()

    def call(self, path: str, method: str = "GET") -> Any:
        """The controller's answer; None while there is none."""
        result = self.lab.run(
            "exec", "--user", "exa1", "login", "--",
            *self.lab.python("-c", CALL, path, method),
        )  # fmt: skip
        return json.loads(result.stdout) if result.returncode == 0 else None

    def state(self) -> Any:
        return self.call("/v1/state")

    def wait(self, true: Callable[[Any], bool], what: str, timeout_s: float = 120) -> Any:
        deadline = time.monotonic() + timeout_s
        while True:
            state = self.state()
            if state is not None and true(state):
                return state
            assert time.monotonic() < deadline, f"not {what}: {state}\n{self.logs()}"
            time.sleep(0.5)

    def logs(self) -> str:
        return self.lab.sh("login", "tail -n 15 r/logs/c000/*.log; squeue")

    def kill(self, host: str, pattern: str) -> None:
        # The bracket keeps pgrep from finding the shell that runs it.
        self.lab.sh(host, f"kill -9 $(pgrep -u exa1 -f '[{pattern[0]}]{pattern[1:]}')")

    def left(self) -> list[str]:
        """What a user's job must not leave on the nodes."""
        look = (
            "ps -u exa1 -o args= | grep -E 'exaslurm|ray' | grep -v -e pgrep -e 'ps -u';"
            "find /tmp /dev/shm /exa/local -user exa1 2>/dev/null; true"
        )
        return [f"{host}: {line}" for host in ("c1", "c2", "c3")
                for line in self.lab.sh(host, look, user="root").splitlines()]  # fmt: skip

    def gone(self) -> bool:
        return self.lab.sh("login", f"squeue -h -j {self.job} 2>/dev/null || true") == ""


def serves(state: Any) -> bool:
    """All is well, and every node has reported: a controller that is new, or whose agent is, knows
    replicas before it knows their processes, and these before it knows where they run."""
    known = all(None not in (each["pid"], each["cores_actual"]) for each in state["replicas"])
    return bool(state["phase"] == "serving" and state["ray"]["state"] == "complete" and known)


def engine_pids(state: Any) -> dict[str, int]:
    return {replica["id"]: replica["pid"] for replica in state["replicas"]}


@pytest.fixture(
    scope="module",
    params=[("wide-22.05", True), ("real-22.05", True), ("real-24.11", False)],
    ids=["wide-22.05", "real-22.05", "real-24.11-one-component"],
)
def cell(request: pytest.FixtureRequest) -> Iterator[Cell]:
    kind, hetjobs = request.param
    for lab in product_lab(kind):
        made = Cell(lab, hetjobs=hetjobs)
        yield made
        lab.sh("login", f"scancel {made.job} 2>/dev/null || true")


def test_comes_up(cell: Cell) -> None:
    state = cell.wait(serves, "serving")
    assert [node["node"] for node in state["nodes"]] == cell.hosts
    assert {node["state"] for node in state["nodes"]} == {"joined"}
    assert state["ray"]["nodes_alive"] == len(cell.hosts)
    assert len({replica["node"] for replica in state["replicas"]}) == 2
    for replica in state["replicas"]:
        assert None not in replica["phases"].values()
        assert set(replica["cores_actual"]) <= set(replica["cores"])
    groups = cell.call("/v1/ray")["groups"]
    assert set(groups) == {replica["id"] for replica in state["replicas"]}


def test_the_end_of_the_gcs_is_a_new_epoch_and_no_engine_notices(cell: Cell) -> None:
    before = cell.wait(serves, "serving")
    cell.kill(cell.head, "gcs/gcs_server")
    after = cell.wait(
        lambda state: serves(state) and state["ray"]["epoch"] > before["ray"]["epoch"],
        "a new epoch",
    )
    assert after["ray"]["epoch"] == before["ray"]["epoch"] + 1
    assert engine_pids(after) == engine_pids(before)
    assert after["ray"]["nodes_alive"] == len(cell.hosts)


@pytest.mark.parametrize("victim", ["controller", "agent"])
def test_the_end_of_controller_or_agent_touches_no_engine(cell: Cell, victim: str) -> None:
    before = cell.wait(serves, "serving")
    cell.kill(cell.head, f"exaslurm.{victim}")
    after = cell.wait(lambda state: serves(state) and state["seq"] > before["seq"], "back")
    assert engine_pids(after) == engine_pids(before)
    assert [r["restarts"] for r in after["replicas"]] == [r["restarts"] for r in before["replicas"]]
    assert after["ray"]["epoch"] == before["ray"]["epoch"]


def test_an_engine_that_is_killed_comes_back(cell: Cell) -> None:
    before = cell.wait(serves, "serving")
    victim = before["replicas"][0]
    cell.lab.sh(victim["node"], f"kill -9 {victim['pid']}")
    after = cell.wait(
        lambda state: serves(state) and engine_pids(state) != engine_pids(before), "back"
    )
    assert after["replicas"][0]["restarts"] == victim["restarts"] + 1
    assert after["replicas"][1]["pid"] == before["replicas"][1]["pid"]


def test_stop_leaves_nothing(cell: Cell) -> None:
    cell.wait(serves, "serving")
    if (cell.lab.profile, cell.lab.slurm) == ("real", "22.05"):
        # Slurm's own way, as at the end of the time: every task and the batch script get SIGTERM.
        cell.lab.sh("login", f"scancel {cell.job}")
    else:
        cell.call("/v1/stop", "POST")
    deadline = time.monotonic() + 60
    while not cell.gone():
        assert time.monotonic() < deadline, cell.logs()
        time.sleep(0.5)
    assert cell.left() == []
    assert "the head's step ended with 0" in cell.lab.sh("login", "cat r/logs/c000/batch.log")
    record = json.loads(cell.lab.sh("login", f"cat {HOME}/exaslurm/cell/registry/c000.json"))
    assert not any(replica["ready"] for replica in record["replicas"])
