"""The container of a site in the plan."""

from __future__ import annotations

import pytest

from exaslurm.core.codec import dumps, loads
from exaslurm.core.container import Bind
from exaslurm.core.plan import Plan
from tests.plan.conftest import Desk

MODEL = "models: [{name: m, source: {path: /models/m}}]"


def test_what_a_site_without_an_image_has_is_only_said(desk: Desk) -> None:
    plan = desk.plan(site="container: {runtime: podman-hpc}\n")
    assert plan.node.container is None
    assert plan.node.host_python == plan.node.python
    assert any("podman-hpc, but names no image" in note for note in plan.notes)


def test_a_container(desk: Desk) -> None:
    site = (
        "python: /apps/bin/python\n"
        "container:\n"
        "  runtime: apptainer\n"
        "  image: $HOME/vllm.sif\n"
        "  python: /usr/bin/python3\n"
        "  binds: [/a, '/b:ro', '/c:/d', '~/e:/f:ro']\n"
        "  args: [--fakeroot]\n"
    )
    plan = desk.plan(MODEL, site)
    container = plan.node.container
    assert container is not None
    assert (plan.node.python, plan.node.host_python) == ("/usr/bin/python3", "/apps/bin/python")
    assert (container.executable, container.image) == ("apptainer", "/home/exa1/vllm.sif")
    assert (container.home, container.package, container.args) == (None, "host", ("--fakeroot",))
    assert container.binds == (
        Bind(source="/a", target="/a"),
        Bind(source="/b", target="/b", read_only=True),
        Bind(source="/c", target="/d"),
        Bind(source="/home/exa1/e", target="/f", read_only=True),
        Bind(source="/models/m", target="/models/m", read_only=True),
    )
    assert loads(Plan, dumps(plan), where="plan.json") == plan


def test_what_srun_starts_has_no_command(desk: Desk) -> None:
    plan = desk.plan(MODEL, "container: {runtime: pyxis, image: /vllm.sqsh, home: true}\n")
    assert plan.node.container is not None
    assert plan.node.container.executable is None
    assert plan.node.container.home == "/home/exa1"
    named = desk.plan(MODEL, "container: {runtime: pyxis, image: vllm/vllm-openai}\n")
    assert any("each node fetches" in note for note in named.notes)


@pytest.mark.parametrize(
    ("site", "said"),
    [
        ("container: {image: /x.sif}", "container.image: needs container.runtime"),
        ("container: {runtime: apptainer, image: 'docker://x'}", "run `apptainer build IMAGE.sif"),
        ("container: {runtime: apptainer, image: $NOWHERE/x.sif}", "$NOWHERE"),
    ],
)
def test_what_cannot_be(desk: Desk, site: str, said: str) -> None:
    assert any(said in line for line in desk.refusal(MODEL, site + "\n"))


def test_a_model_that_cannot_be_bound(desk: Desk) -> None:
    spec = "models: [{name: m, source: {path: '/models/a:b'}}]"
    (line,) = desk.refusal(spec, "container: {runtime: apptainer, image: /x.sif}\n")
    assert "'/models/a:b', cannot be bound" in line
