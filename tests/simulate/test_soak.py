"""A tiny run of everything: each kind of failure once or twice, on six nodes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from exaslurm.simulate.faults import KINDS
from exaslurm.simulate.layout import Layout
from exaslurm.simulate.soak import Run, soak


@pytest.mark.timeout(240)
def test_no_request_is_lost_and_all_is_well_again(tmp_path: Path) -> None:
    layout = Layout(nodes=8, cells=3, per_cell=2, replicas_per_node=1, load_s=5.0)
    run = Run(
        directory=tmp_path / "w",
        layout=layout,
        failures=12,
        factor=10.0,
        every_s=8.0,
        concurrency=6,
        rate_per_s=8.0,
        shared=False,
        notice_s=90.0,
        most_s=40.0,
        settle_s=1200.0,
    )
    found = asyncio.run(soak(run))
    assert found["failures"] == 12
    assert set(KINDS) - set(found["by_kind"]) <= {"file system slow"}
    assert found["requests"] > 50
    assert set(found["classes"]) <= {"ok", "begun_event"}, found["words"]
    assert found["full_again_s"] is not None
    assert found["jobs_live"] == 3
    assert (found["doubled"], found["both_too_long"], found["unforeseen_ends"]) == ([], [], 0)
