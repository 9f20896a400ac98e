"""Writing and removing a cell's record."""

from __future__ import annotations

import contextlib

from exaslurm.core.cell import CellRecord
from exaslurm.core.codec import dumps
from exaslurm.errors import LeaseLost, StateError
from exaslurm.registry.read import read_record
from exaslurm.rundir import RunDir
from exaslurm.util.files import make_private_dir, state_error, write_atomic


def write_record(run_dir: RunDir, record: CellRecord) -> None:
    """Publish the record of a cell; LeaseLost if a newer generation has published one.

    Blocks for as long as the file system does: long-lived processes call it on their file
    thread.
    """
    _require_not_newer(run_dir, record)
    # In the place of a file system that is away nothing must be made.
    if not run_dir.path.parent.is_dir():
        above = run_dir.path.parent
        raise StateError(f"there is no {above} (is its file system mounted?)")
    make_private_dir(run_dir.registry)
    write_atomic(run_dir.record(record.cell), dumps(record))


def remove_record(run_dir: RunDir, cell: str, *, job_id: str | None = None) -> bool:
    """Withdraw the record of a cell that ended; true if there was one.

    With ``job_id``, only if it is that job's: the next one may have published already.
    """
    path = run_dir.record(cell)
    if job_id is not None:
        try:
            if read_record(path).job_id != job_id:
                return False
        except StateError:
            return False
    try:
        path.unlink()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise state_error("remove", path, error) from error
    return True


def _require_not_newer(run_dir: RunDir, record: CellRecord) -> None:
    path = run_dir.record(record.cell)
    # A missing or damaged record is no reason not to write a good one.
    with contextlib.suppress(StateError):
        found = read_record(path)
        if found.generation > record.generation:
            raise LeaseLost(
                f"{path} belongs to generation {found.generation} (job {found.job_id}), "
                f"this is generation {record.generation} (job {record.job_id})",
                remedy="the older job can be cancelled",
            )
