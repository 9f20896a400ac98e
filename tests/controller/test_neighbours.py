"""What other cells wrote down of their replicas."""

from __future__ import annotations

from pathlib import Path

from exaslurm.controller.neighbours import read_neighbours
from exaslurm.core.binding import CellBinding
from exaslurm.core.codec import dumps
from exaslurm.core.marker import BootstrapMarker
from exaslurm.rundir import GenerationDir


def test_only_cells_that_are_bound_by_the_same_plan(tmp_path: Path) -> None:
    gen_dir = GenerationDir(tmp_path)
    gen_dir.make(("c000", "c001", "c002", "c003"))

    def write(cell: str, plan_hash: str) -> None:
        binding = CellBinding(deployment="d", cell=cell, plan_hash=plan_hash, replicas=())
        marker = BootstrapMarker(
            plan_hash="p", deployment="d", cell=cell, job_id="1", job_name="x",
            het_job_ids={}, nodes={}, host="h", started_s=0.0, switches={"n1": ("s", "l")},
        )  # fmt: skip
        gen_dir.binding(cell).write_text(dumps(binding))
        gen_dir.bootstrap_marker(cell).write_text(dumps(marker))

    write("c000", "p")
    write("c001", "other")
    write("c002", "p")
    gen_dir.binding("c002").write_text("{")
    found = read_neighbours(gen_dir, ["c000", "c001", "c002", "c003", "c004"], "p")
    assert [(binding.cell, marker.switches) for binding, marker in found] == [
        ("c000", {"n1": ("s", "l")})
    ]
