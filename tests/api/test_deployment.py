"""The Python interface, on a real deployment of simulated engines on this machine."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import exaslurm
from exaslurm.errors import DeploymentError, NotReadyError, SpecError

SPEC: dict[str, Any] = {
    "schema": "exaslurm/v1",
    "deployment": "fromapi",
    "site": "local",
    "models": [{"name": "pretend", "engine": {"kind": "simulated"}}],
}
# As in a notebook that runs as a job of its own.
POLLUTED = {"SLURM_JOB_ID": "424242", "SLURM_NNODES": "9", "SBATCH_GRES": "gpu:99"}


@pytest.fixture(scope="module")
def environ(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    own = {k: v for k, v in os.environ.items() if not k.startswith(("EXASLURM_", "SLURM_"))}
    return {**own, **POLLUTED, "EXASLURM_HOME": str(tmp_path_factory.mktemp("api"))}


@pytest.fixture(scope="module")
def deployment(environ: dict[str, str]) -> Iterator[exaslurm.Deployment]:
    """Submitted and awaited inside a running event loop, as a notebook's cell is."""
    made: list[exaslurm.Deployment] = []

    async def cell() -> None:
        made.append(exaslurm.Deployment.submit(SPEC, environ=environ))
        made[0].wait_ready(timeout_s=60)

    try:
        asyncio.run(cell())
        yield made[0]
    finally:
        for item in made:
            item.stop()


def test_it_is_ready(deployment: exaslurm.Deployment) -> None:
    status = deployment.status()
    assert (status.phase, status.replicas_ready) == ("ready", 1)
    assert deployment.endpoint == status.base_url
    assert deployment.endpoint.startswith("http://127.0.0.1:")


def test_it_shows_itself(deployment: exaslurm.Deployment) -> None:
    assert repr(deployment) == f"<Deployment 'fromapi' in {deployment.run_dir}>"
    page = deployment._repr_html_()
    assert "<td>pretend:base</td><td>1/1</td>" in page
    assert deployment.endpoint in page


def test_it_is_found_again(deployment: exaslurm.Deployment, environ: dict[str, str]) -> None:
    by_name = exaslurm.Deployment.attach("fromapi", environ=environ)
    by_place = exaslurm.Deployment.attach(str(deployment.run_dir), environ=environ)
    assert by_name.run_dir == by_place.run_dir == deployment.run_dir


def test_the_same_spec_attaches(deployment: exaslurm.Deployment, environ: dict[str, str]) -> None:
    again = exaslurm.Deployment.submit(SPEC, environ=environ)
    assert again.status().generation == deployment.status().generation


def test_a_key_works(deployment: exaslurm.Deployment) -> None:
    openai = pytest.importorskip("openai")
    key = deployment.add_key("tester", expires_s=600)
    client = openai.OpenAI(base_url=deployment.endpoint, api_key=key, max_retries=0)
    with client:
        answer = client.chat.completions.create(
            model="pretend", max_tokens=4, messages=[{"role": "user", "content": "hello"}]
        )
    assert answer.choices[0].message.content


def test_unknown_names(environ: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(DeploymentError, match="no deployment 'nobody'"):
        exaslurm.Deployment.attach("nobody", environ=environ)
    with pytest.raises(DeploymentError):
        exaslurm.Deployment(tmp_path / "nobody")


def test_a_bad_mapping_names_its_key(environ: dict[str, str]) -> None:
    with pytest.raises(SpecError, match="modles"):
        exaslurm.Deployment.submit({**SPEC, "modles": []}, environ=environ)


def test_after_stop(environ: dict[str, str]) -> None:
    spec = {**SPEC, "deployment": "brief"}
    brief = exaslurm.Deployment.submit(spec, environ=environ)
    brief.stop()
    assert brief.status().phase == "stopped"
    with pytest.raises(NotReadyError, match="no router"):
        _ = brief.endpoint
    with pytest.raises(NotReadyError, match="brief is stopped"):
        brief.wait_ready(timeout_s=30)
    brief.stop()
