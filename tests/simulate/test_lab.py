"""The simulated Slurm against the real one: the same story, told the same."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.simulate import scenario
from tests.simulate.test_slurmctld import Client
from tests.slurm.conftest import ProductLab, product_lab

RUN = """
import json, tempfile, time
from exaslurm.slurm.client import Slurm
def wait(check):
    deadline = time.monotonic() + 60
    while not check():
        assert time.monotonic() < deadline, "not within a minute"
        time.sleep(0.2)
print(json.dumps(story(Slurm(), Path(tempfile.mkdtemp()), "gpu", wait)))
"""


@pytest.fixture(scope="module")
def real() -> Iterator[ProductLab]:
    yield from product_lab("wide-22.05")


def simulated_story(directory: Path) -> object:
    client = Client(wait_s=0.0, nodes=("s1", "s2"))
    slurm = client.slurm
    told: dict[str, int] = {}

    def wait(check: Callable[[], bool]) -> None:
        for _ in range(100):
            if check():
                return
            for event in client.at(1.0):
                if event.kind == "start":
                    told[event.job] = 0
            for event in client.events:
                for node in event.nodes:
                    slurm.task_ended(event.job, node, 1)
            client.events.clear()
            for ident in list(told):
                last = slurm.jobs[ident].script.split()[-2:]
                if last[0] == "exit":
                    head, *others = slurm.jobs[ident].nodes
                    assert not others
                    slurm.task_ended(ident, head, int(last[1]))
                    del told[ident]
        raise AssertionError("not within a hundred seconds")

    told_story = scenario.story(client, directory, "plain", wait)
    return json.loads(json.dumps(told_story))


def test_the_story_as_it_is_simulated(tmp_path: Path) -> None:
    seen = simulated_story(tmp_path)
    assert isinstance(seen, dict)
    assert seen["running"]["limit_s"] == 600
    assert seen["shortened"]["limit_s"] == 300
    assert (seen["good"]["state"], seen["bad"]["state"]) == ("COMPLETED", "FAILED")


@pytest.mark.lab
@pytest.mark.timeout(300)
def test_both_tell_the_same_story(real: ProductLab, tmp_path: Path) -> None:
    told = real.eval(inspect.getsource(scenario) + RUN)
    assert simulated_story(tmp_path) == told
