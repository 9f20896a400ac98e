from __future__ import annotations

import stat
from pathlib import Path

import pytest

from exaslurm.errors import StateError
from exaslurm.util import hostdir
from exaslurm.util.hostdir import host_dir, host_name_of


@pytest.fixture
def parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(hostdir, "_PARENTS", ("/nowhere", str(tmp_path)))
    return tmp_path


def test_it_is_made_private_where_there_is_room(parent: Path) -> None:
    path = host_dir()
    assert path.parent == parent
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert host_dir() == path


def test_somebody_elses_is_refused(parent: Path, tmp_path: Path) -> None:
    path = host_dir()
    path.chmod(0o755)
    with pytest.raises(StateError, match="not a directory of this user's alone"):
        host_dir()
    path.rmdir()
    (parent / "elsewhere").mkdir(mode=0o700)
    path.symlink_to(parent / "elsewhere")
    with pytest.raises(StateError, match="not a directory of this user's alone"):
        host_dir()


def test_nowhere_to_put_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hostdir, "_PARENTS", ("/nowhere",))
    with pytest.raises(StateError, match="can be written to"):
        host_dir()


def test_names_are_short_and_do_not_run_into_each_other() -> None:
    assert host_name_of("a", "bc") == host_name_of("a", "bc")
    assert len({host_name_of("a", "bc"), host_name_of("ab", "c"), host_name_of("abc")}) == 3
    assert len(host_name_of("x" * 1000)) == 16
