"""What an ended job wrote late is taken back; what is a living job's, or nobody's, is not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from exaslurm.registry.read import read_record
from exaslurm.registry.write import write_record
from exaslurm.supervisor.leftovers import Leftovers
from exaslurm.supervisor.loop import Manager
from tests.supervisor.conftest import Site


class Swept(Site):
    def managers(self) -> Sequence[Manager]:
        return [Leftovers(self.run_dir)]


@pytest.fixture
def swept(tmp_path: Path) -> Swept:
    site = Swept(tmp_path)
    site.run(100)
    return site


def test_a_record_that_came_through_late(swept: Swept) -> None:
    """The node of a job was cut off, Slurm gave the job up, and then the network came back."""
    late = read_record(swept.run_dir.record("c000"))
    swept.cluster.finish(swept.only("c000"), "NODE_FAIL")
    swept.run(100)
    assert not swept.run_dir.record("c000").exists()
    write_record(swept.run_dir, replace(late, seq=late.seq + 1))
    swept.run(10)
    assert not swept.run_dir.record("c000").exists()
    assert swept.run_dir.record("c000.2").exists()
    assert swept.run_dir.record("c001").exists()


def test_of_a_generation_that_is_over(swept: Swept) -> None:
    late = read_record(swept.run_dir.record("c000"))
    item = swept.turns()["c000"]
    swept.plan_again()
    swept.write("c000.7", replace(item, cell="c000.7", generation=2, job_id="7", state="stopped"))
    write_record(swept.run_dir, replace(late, cell="c000.7", generation=2, job_id="7"))
    write_record(swept.run_dir, replace(late, cell="c000.8", generation=2, job_id="8"))
    write_record(swept.run_dir, replace(late, cell="c000.9", generation=3, job_id="9"))
    swept.run(20)
    assert not swept.run_dir.record("c000.7").exists()
    # Somebody may have submitted these by hand.
    assert swept.run_dir.record("c000.8").exists()
    assert swept.run_dir.record("c000.9").exists()


def test_another_job_of_that_name_keeps_its_record(swept: Swept) -> None:
    item = swept.turns()["c000"]
    swept.write("c000", replace(item, state="stopped", job_id="1"))
    swept.run(20)
    assert swept.run_dir.record("c000").exists()
