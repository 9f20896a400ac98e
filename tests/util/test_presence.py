from __future__ import annotations

from pathlib import Path

from exaslurm.util.presence import Presence


def test_removed_or_away(tmp_path: Path) -> None:
    root, path = tmp_path / "state", tmp_path / "state" / "hello"
    path.mkdir(parents=True)
    presence = Presence(path)
    assert presence.look() == "there"
    path.rename(root / "elsewhere")
    assert presence.look() == "removed"
    (root / "elsewhere").rename(path)
    assert presence.look() == "there"


def test_a_file_system_that_comes_and_goes(tmp_path: Path) -> None:
    root, path = tmp_path / "state", tmp_path / "state" / "hello"
    path.mkdir(parents=True)
    presence = Presence(path)
    assert presence.look() == "there"
    root.rename(tmp_path / "unmounted")
    assert presence.look() == "away"
    root.mkdir()  # the mount point: another directory
    assert presence.look() == "away"
    root.rmdir()
    (tmp_path / "unmounted").rename(root)
    assert presence.look() == "there"


def test_never_seen(tmp_path: Path) -> None:
    assert Presence(tmp_path / "never").look() == "away"
