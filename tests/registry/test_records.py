from __future__ import annotations

import dataclasses
import logging
from pathlib import Path
from typing import Any

import pytest

from exaslurm.core.cell import CellRecord, ReplicaRecord
from exaslurm.errors import LeaseLost, StateError
from exaslurm.registry import read
from exaslurm.registry.read import RecordReader, read_records
from exaslurm.registry.write import remove_record, write_record
from exaslurm.rundir import RunDir

RECORD = CellRecord(
    deployment="hello",
    cell="c000",
    generation=1,
    plan_hash="abc",
    job_id="17",
    seq=1,
    lease_s=30.0,
    state_url="http://127.0.0.1:20000",
    replicas=(
        ReplicaRecord(
            id="c000-r0000",
            model="chat",
            shard="base",
            served_names=("chat", "chat:base"),
            url="http://127.0.0.1:20020",
            node="c1",
            ready=True,
            labels={"switch": "leaf1"},
        ),
    ),
)


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    return RunDir(tmp_path / "hello")


def test_a_record_comes_back_as_written(run_dir: RunDir) -> None:
    run_dir.path.mkdir(parents=True, exist_ok=True)
    assert read_records(run_dir) == []
    write_record(run_dir, RECORD)
    other = dataclasses.replace(RECORD, cell="c001", job_id="18")
    write_record(run_dir, other)
    assert read_records(run_dir) == [RECORD, other]


@pytest.mark.parametrize(
    "changes",
    [{"id": "a\r\nb"}, {"model": "bad\ud800"}, {"served_names": ("chat", "bad\ud800")}],
)
def test_a_record_of_names_that_no_page_could_show_is_damaged(
    run_dir: RunDir, changes: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    write_record(run_dir, RECORD)
    reader = RecordReader(run_dir)
    reader.read()
    (replica,) = RECORD.replicas
    odd = dataclasses.replace(replica, **changes)
    write_record(run_dir, dataclasses.replace(RECORD, seq=2, replicas=(odd,)))
    assert reader.read() == {"c000": RECORD}
    assert "is no text" in caplog.text


def test_a_file_system_that_is_away_has_not_lost_the_cells(run_dir: RunDir) -> None:
    write_record(run_dir, RECORD)
    reader = RecordReader(run_dir)
    assert reader.read() == {"c000": RECORD}
    away = run_dir.path.with_name("away")
    run_dir.path.rename(away)
    with pytest.raises(StateError, match="registry"):
        reader.read()
    away.rename(run_dir.path)
    assert reader.read() == {"c000": RECORD}


def test_a_damaged_record_is_reported_once_and_the_last_good_one_kept(
    run_dir: RunDir, caplog: pytest.LogCaptureFixture
) -> None:
    write_record(run_dir, RECORD)
    reader = RecordReader(run_dir)
    assert reader.read() == {"c000": RECORD}
    run_dir.record("c000").write_text('{"schema": "exaslurm/registry/9"}')
    with caplog.at_level(logging.WARNING):
        assert reader.read() == {"c000": RECORD}
        assert reader.read() == {"c000": RECORD}
    assert len(caplog.records) == 1
    assert str(run_dir.record("c000")) in caplog.text
    assert read_records(run_dir) == []
    run_dir.record("c000").unlink()
    assert reader.read() == {}


def test_a_record_under_another_name_is_refused(run_dir: RunDir) -> None:
    write_record(run_dir, RECORD)
    run_dir.record("c000").rename(run_dir.record("c007"))
    assert read_records(run_dir) == []


def test_an_unreadable_directory_is_an_error_not_an_empty_one(run_dir: RunDir) -> None:
    run_dir.path.mkdir()
    run_dir.registry.write_text("not a directory")
    with pytest.raises(StateError, match="cannot list"):
        RecordReader(run_dir).read()


def test_an_older_generation_cannot_overwrite_a_newer_one(run_dir: RunDir) -> None:
    newer = dataclasses.replace(RECORD, generation=2, job_id="99")
    write_record(run_dir, newer)
    with pytest.raises(LeaseLost, match="generation 2"):
        write_record(run_dir, RECORD)
    assert read_records(run_dir) == [newer]


def test_only_its_own_job_removes_a_record(run_dir: RunDir) -> None:
    assert not remove_record(run_dir, "c000")
    write_record(run_dir, RECORD)
    assert not remove_record(run_dir, "c000", job_id="16")
    assert remove_record(run_dir, "c000", job_id="17")
    assert read_records(run_dir) == []


def test_a_new_number_alone_is_read_cheaply(
    run_dir: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A router reads all records every few seconds; most of them say the same again."""
    write_record(run_dir, RECORD)
    reader = RecordReader(run_dir)
    first = reader.read()["c000"]

    def parse(*_: object) -> None:
        raise AssertionError("parsed as a whole")

    write_record(run_dir, dataclasses.replace(RECORD, seq=2))
    with monkeypatch.context() as patched:
        patched.setattr(read, "_parse", parse)
        second = reader.read()["c000"]
    assert second == dataclasses.replace(RECORD, seq=2)
    assert second.replicas is first.replicas
    write_record(run_dir, dataclasses.replace(RECORD, seq=3, lease_s=9.0))
    assert reader.read()["c000"].lease_s == 9.0


def test_nothing_is_made_in_the_place_of_a_file_system_that_is_away(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path / "mount" / "exaslurm" / "hello")
    (tmp_path / "mount").mkdir()
    with pytest.raises(StateError, match="mounted"):
        write_record(run_dir, RECORD)
    assert list((tmp_path / "mount").iterdir()) == []
