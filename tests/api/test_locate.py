"""Finding a deployment by its name."""

from __future__ import annotations

from pathlib import Path

import pytest

from exaslurm.api.locate import deployments, find_run_dir
from exaslurm.errors import DeploymentError, SiteError


def make(root: Path, name: str) -> Path:
    path = root / "exaslurm" / name
    (path / "gen" / "1").mkdir(parents=True)
    return path


def site(folder: Path, name: str, state: Path) -> None:
    (folder / f"{name}.yaml").write_text(
        f"schema: exaslurm/site/v1\nname: {name}\nextends: generic\nstorage: {{state: {state}}}\n"
    )


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """Two sites of one's own, each with a state directory."""
    folder = tmp_path / "sites"
    folder.mkdir()
    for name in ("one", "two"):
        site(folder, name, tmp_path / name)
    return {"HOME": str(tmp_path / "home"), "USER": "me", "EXASLURM_SITE_CONFIG": str(folder)}


def test_home_of_exaslurm_is_the_only_place_if_it_is_set(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    make(tmp_path / "one", "hello")
    mine = make(tmp_path / "mine", "other")
    environ["EXASLURM_HOME"] = str(tmp_path / "mine")
    assert find_run_dir("other", environ).path == mine
    assert deployments(environ) == ["other"]


def test_every_site_is_looked_through(tmp_path: Path, environ: dict[str, str]) -> None:
    first, second = make(tmp_path / "one", "hello"), make(tmp_path / "two", "world")
    at_home = make(tmp_path / "home" / ".local" / "state", "local")
    assert find_run_dir("hello", environ).path == first
    assert find_run_dir("world", environ).path == second
    assert find_run_dir("local", environ).path == at_home
    assert deployments(environ) == ["hello", "local", "world"]


def test_the_same_name_in_two_places(tmp_path: Path, environ: dict[str, str]) -> None:
    make(tmp_path / "one", "hello")
    second = make(tmp_path / "two", "hello")
    with pytest.raises(DeploymentError, match="several deployments are named 'hello'"):
        find_run_dir("hello", environ)
    assert find_run_dir("hello", environ, site="two").path == second


def test_by_its_directory(tmp_path: Path, environ: dict[str, str]) -> None:
    path = make(tmp_path / "elsewhere", "hello")
    assert find_run_dir(str(path), environ).path == path
    with pytest.raises(DeploymentError, match="not the run directory"):
        find_run_dir(str(tmp_path), environ)


def test_by_its_spec(tmp_path: Path, environ: dict[str, str]) -> None:
    make(tmp_path / "one", "hello")
    second = make(tmp_path / "two", "hello")
    spec = tmp_path / "spec.yaml"
    spec.write_text(
        "schema: exaslurm/v1\ndeployment: hello\nsite: two\n"
        "models: [{name: m, engine: {kind: simulated}}]\n"
    )
    assert find_run_dir(str(spec), environ).path == second


def test_a_broken_site_is_in_nobodys_way(tmp_path: Path, environ: dict[str, str]) -> None:
    path = make(tmp_path / "one", "hello")
    (tmp_path / "sites" / "broken.yaml").write_text("schema: what\n")
    assert find_run_dir("hello", environ).path == path
    with pytest.raises(SiteError):
        find_run_dir("hello", environ, site="broken")


def test_a_name_that_nobody_has(tmp_path: Path, environ: dict[str, str]) -> None:
    make(tmp_path / "one", "hello")
    with pytest.raises(DeploymentError, match="no deployment 'helo'") as error:
        find_run_dir("helo", environ)
    assert "hello" in (error.value.remedy or "")
