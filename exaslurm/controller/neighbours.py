"""Where other cells of the deployment have put their replicas, from what they wrote down."""

from __future__ import annotations

from collections.abc import Sequence

from exaslurm.core.binding import CellBinding
from exaslurm.core.codec import loads
from exaslurm.core.marker import BootstrapMarker
from exaslurm.errors import StateError
from exaslurm.rundir import GenerationDir
from exaslurm.util.files import read_text


def read_neighbours(
    gen_dir: GenerationDir, cells: Sequence[str], plan_hash: str
) -> list[tuple[CellBinding, BootstrapMarker]]:
    """Those of ``cells`` that were bound by the same plan; one that was not, or whose files
    cannot be read, is left out."""
    found = []
    for cell in cells:
        binding_path, marker_path = gen_dir.binding(cell), gen_dir.bootstrap_marker(cell)
        try:
            binding = loads(CellBinding, read_text(binding_path), where=str(binding_path))
            marker = loads(BootstrapMarker, read_text(marker_path), where=str(marker_path))
        except StateError:
            continue
        if binding.plan_hash == marker.plan_hash == plan_hash:
            found.append((binding, marker))
    return found
