from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from exaslurm.core.plan import ModelSource
from exaslurm.errors import ModelError
from exaslurm.models import manifest

SOURCE = ModelSource(kind="package", value="x")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    model = tmp_path / "model"
    (model / "sub").mkdir(parents=True)
    (model / "config.json").write_text("{}")
    (model / "Z.txt").write_text("z")
    (model / "sub/ä b.txt").write_text("umlaut and space")
    return model


def test_written_and_read(directory: Path) -> None:
    written = manifest.write(directory, SOURCE, {"torch": "1"})
    assert manifest.read(directory) == written
    assert set(written.files) == {"config.json", "Z.txt", "sub/ä b.txt"}
    manifest.check(directory, written, hashes=True)
    assert manifest.write(directory, SOURCE, {"torch": "1"}) == written


def test_the_tree_sum_is_what_the_documented_shell_line_prints(directory: Path) -> None:
    line = r"find . -type f -printf '%P\n' | LC_ALL=C sort | xargs -d '\n' sha256sum | sha256sum"
    done = subprocess.run(
        ["sh", "-c", line], cwd=directory, capture_output=True, text=True, check=True, timeout=30
    )
    assert manifest.tree_sha256(manifest.scan(directory)) == done.stdout.split()[0]


def test_a_changed_file_is_found(directory: Path) -> None:
    found = manifest.write(directory, SOURCE, {})
    (directory / "config.json").write_text("[]")
    manifest.check(directory, found, hashes=False)
    with pytest.raises(ModelError, match=r"config\.json: the checksum"):
        manifest.check(directory, found, hashes=True)
    (directory / "config.json").write_text("{ }")
    with pytest.raises(ModelError, match=r"config\.json: 3 bytes, should be 2"):
        manifest.check(directory, found, hashes=False)
    (directory / "config.json").unlink()
    with pytest.raises(ModelError, match=r"config\.json is missing"):
        manifest.check(directory, found, hashes=False)


@pytest.mark.parametrize("text", [None, "no json", '{"schema": "exaslurm/model/9"}'])
def test_no_usable_manifest(directory: Path, text: str | None) -> None:
    if text is not None:
        (directory / manifest.MANIFEST_NAME).write_text(text)
    with pytest.raises(ModelError, match="no usable manifest"):
        manifest.read(directory)


def test_an_unreadable_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"cannot read .*gone: .*No such file"):
        manifest.file_sha256(tmp_path / "gone")
