"""What is installed, from a wheel, an sdist or in place, is whole."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DATA = ("sbatch_templates", "site_configs")

pytestmark = pytest.mark.timeout(300)


def run(*arguments: object, cwd: Path) -> str:
    done = subprocess.run(
        [str(argument) for argument in arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
        env={**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PYTHONPATH": ""},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def repository_files(*folders: str) -> list[str]:
    """Files of the clone that git knows or would take, relative to its root."""
    listed = run(
        *("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *folders),
        cwd=ROOT,
    )
    return sorted(name for name in listed.split("\0") if (ROOT / name).is_file())


def expected_in_package() -> set[str]:
    """Every module and data file, by the name it has in a wheel."""
    modules = {name for name in repository_files("exaslurm") if name.endswith((".py", ".typed"))}
    return modules | {f"exaslurm/{name}" for name in repository_files(*DATA)}


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sources as a clone has them (a build leaves files behind)."""
    copy = tmp_path_factory.mktemp("clone")
    names = run(
        *("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"), cwd=ROOT
    ).split("\0")
    for name in filter(None, names):
        source, target = ROOT / name, copy / name
        if source.is_symlink() or source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            if source.is_symlink():
                target.symlink_to(source.readlink())
            else:
                target.write_bytes(source.read_bytes())
                target.chmod(source.stat().st_mode)
    return copy


@pytest.fixture(scope="module")
def built(clone: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The sdist, and the wheel made from that sdist."""
    out = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, clone, cwd=out)
    (sdist,), (wheel,) = out.glob("*.tar.gz"), out.glob("*.whl")
    return sdist, wheel


def in_wheel(wheel: Path) -> set[str]:
    return {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}


def test_the_wheel_by_way_of_the_sdist_holds_everything(built: tuple[Path, Path]) -> None:
    assert in_wheel(built[1]) == expected_in_package()


def test_the_wheel_straight_from_the_clone_is_the_same(
    clone: Path, built: tuple[Path, Path], tmp_path: Path
) -> None:
    run(
        *(sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", tmp_path, clone),
        cwd=tmp_path,
    )
    (wheel,) = tmp_path.glob("*.whl")
    assert in_wheel(wheel) == in_wheel(built[1])


def test_the_sdist_holds_the_licence_the_tests_and_the_pins(built: tuple[Path, Path]) -> None:
    with tarfile.open(built[0]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    wanted = {"LICENSE", "NOTICE", "CHANGELOG.md", "setup.cfg", "pyproject.toml", "scripts/env"}
    assert wanted | {"tests/project/test_packaging.py", "requirements/dev.txt"} <= names


def test_the_packages_that_a_node_runs_are_named(built: tuple[Path, Path]) -> None:
    archive = zipfile.ZipFile(built[1])
    (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
    required = [
        line.removeprefix("Requires-Dist: ")
        for line in archive.read(name).decode().splitlines()
        if line.startswith("Requires-Dist: ")
    ]
    login = {line.split(">")[0].split("[")[0] for line in required if "extra ==" not in line}
    node = {
        line.split(">")[0].split("[")[0] for line in required if line.endswith('extra == "node"')
    }
    assert {"vllm", "ray", "torch", "numpy", "pynvml"} <= node
    assert {"submitit", "pyyaml", "uvicorn", "starlette"} <= login
    assert not {"vllm", "ray", "torch", "numpy"} & login


PROBE = """
import importlib.resources, json, os, exaslurm
package = importlib.resources.files(exaslurm)
files = {
    name: sorted(
        os.path.relpath(os.path.join(folder, file), str(package))
        for folder, _, found in os.walk(str(package / name))
        for file in found
    )
    for name in ("sbatch_templates", "site_configs")
}
print(json.dumps({"where": str(package), "files": files}))
"""


@pytest.mark.parametrize("how", ["wheel", "editable"])
def test_installed_data_is_found(
    how: str, clone: Path, built: tuple[Path, Path], tmp_path: Path
) -> None:
    # What exaslurm requires comes from the environment of the tests; only exaslurm is installed.
    environment = tmp_path / "venv"
    venv.create(environment, symlinks=True)
    python = environment / "bin/python"
    (site,) = environment.glob("lib/python*/site-packages")
    (site / "requirements.pth").write_text(sysconfig.get_path("purelib") + "\n")
    what = [built[1]] if how == "wheel" else ["--no-build-isolation", "--editable", clone]
    run(
        *(sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-deps"),
        *("--no-index", "--force-reinstall", *what),
        cwd=tmp_path,
    )
    found = json.loads(run(python, "-c", PROBE, cwd=tmp_path))
    assert found["files"] == {name: repository_files(name) for name in DATA}
    assert Path(found["where"]).is_relative_to(clone if how == "editable" else environment)
    assert "Usage" in run(environment / "bin/exaslurm", "--help", cwd=tmp_path)
