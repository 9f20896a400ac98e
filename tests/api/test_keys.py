"""Keys that are of use to whoever gets them."""

from __future__ import annotations

from pathlib import Path

import pytest

from exaslurm.api.keys import make_key
from exaslurm.core.codec import dumps
from exaslurm.errors import UserError
from exaslurm.keys.clients import list_keys
from exaslurm.plan.context import PlanContext
from exaslurm.plan.planner import make_plan
from exaslurm.rundir import RunDir
from exaslurm.site.load import load_site
from exaslurm.spec.load import load_spec
from exaslurm.util.files import write_atomic

SPEC = """\
schema: exaslurm/v1
deployment: hello
site: local
models: [{name: m, engine: {kind: simulated}, shards: [{name: a}, {name: b}]}]
"""


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    made = RunDir(tmp_path / "hello")
    made.make()
    made.generation(1).make(())
    context = PlanContext(user="ada", home="/home/ada", python="/python", environ_defaults={})
    plan = make_plan(load_spec(Path("s.yaml"), SPEC), load_site("local", {"HOME": "/"}), context)
    write_atomic(made.generation(1).plan, dumps(plan))
    return made


def test_a_key_for_what_is_served(run_dir: RunDir) -> None:
    make_key(run_dir, "ada", models=["m", "m:b"])
    assert list_keys(run_dir)[0].models == ("m", "m:b")


def test_a_key_for_what_is_not_served(run_dir: RunDir) -> None:
    with pytest.raises(UserError, match="hello does not serve 'm:c'") as caught:
        make_key(run_dir, "ada", models=["m", "m:c"])
    assert caught.value.remedy == "it serves m, m:a, m:b"
    assert list_keys(run_dir) == []


def test_a_damaged_list_of_routers_does_not_cost_the_key(run_dir: RunDir) -> None:
    run_dir.endpoint.write_bytes(b"\xff")
    assert make_key(run_dir, "ada").startswith("exa-")
