from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

MakePackage = Callable[[str, dict[str, bytes]], Path]


@pytest.fixture
def make_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakePackage:
    """Installs a distribution (name, version 1.0, files) where this interpreter finds it."""
    site = tmp_path / "site-packages"

    def make(name: str, files: dict[str, bytes]) -> Path:
        module = name.replace("-", "_")
        info = site / f"{module}-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        record = []
        for file, content in files.items():
            path = site / module / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            record.append(f"{module}/{file},,\n")
        (info / "RECORD").write_text("".join(record))
        return site / module

    monkeypatch.syspath_prepend(site)
    return make
