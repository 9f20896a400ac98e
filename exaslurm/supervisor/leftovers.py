"""Records of jobs that have ended, and that are there again.

What a controller began to write may come through late: its node had lost the file system, or the
network, and Slurm had given up on its job meanwhile. Routers would go on asking addresses, with the
deployment's key, that belong to other people by then.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass

from exaslurm.core.cell import CellRecord
from exaslurm.core.submission import Submission
from exaslurm.registry.write import remove_record
from exaslurm.rundir import RunDir, read_optional
from exaslurm.submit.lock import deployment_lock, require_lease
from exaslurm.supervisor.observe import Look

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Leftovers:
    """Takes them back."""

    run_dir: RunDir

    def step(self, look: Look) -> bool:
        """See ``loop.Manager``; never anything else is wanted afterwards."""
        late = list(self._late(look))
        if late:
            with deployment_lock(self.run_dir):
                require_lease()
                for record in late:
                    if remove_record(self.run_dir, record.cell, job_id=record.job_id):
                        log.warning(
                            "took back the record of %s: its job %s has ended",
                            record.cell,
                            record.job_id,
                        )
        return False

    def _late(self, look: Look) -> Iterator[CellRecord]:
        for record in look.records.values():
            item = look.submissions.get(record.cell)
            if item is None or item.generation != record.generation:
                path = self.run_dir.generation(record.generation).submission(record.cell)
                # One that was submitted by hand has none.
                item = read_optional(Submission, path) if path.parent.is_dir() else None
            if item is not None and (item.state, item.job_id) == ("stopped", record.job_id):
                yield record
