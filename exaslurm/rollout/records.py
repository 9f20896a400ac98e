"""The files of a rollout: read, and written under the deployment's lock."""

from __future__ import annotations

from exaslurm.core.canary import Canary
from exaslurm.core.codec import dumps
from exaslurm.core.rollout import Rollout, RolloutFigures
from exaslurm.errors import StateError
from exaslurm.rundir import RunDir, read_optional
from exaslurm.util.files import write_atomic


def write_rollout(run_dir: RunDir, rollout: Rollout) -> None:
    """Say how it stands. StateError."""
    write_atomic(run_dir.rollout, dumps(rollout, indent=1))


def read_figures(run_dir: RunDir) -> RolloutFigures | None:
    """What was counted so far; None if nothing was, or nothing that can be read: it begins anew.
    StateError if the file system gives no answer."""
    try:
        return read_optional(RolloutFigures, run_dir.rollout_figures)
    except StateError:
        return None


def write_figures(run_dir: RunDir, figures: RolloutFigures) -> None:
    """Keep what was counted. StateError."""
    write_atomic(run_dir.rollout_figures, dumps(figures))


def read_canary(run_dir: RunDir) -> Canary:
    """How requests are divided now. StateError."""
    return read_optional(Canary, run_dir.canary) or Canary()


def write_canary(run_dir: RunDir, canary: Canary) -> None:
    """Divide them so; routers follow within two seconds. StateError."""
    write_atomic(run_dir.canary, dumps(canary, indent=1))
