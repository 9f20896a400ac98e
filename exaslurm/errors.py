"""The one tree of errors, and the exit codes that the command line maps them to.

Every message says what is wrong, where (file, key, line, host) and what to do. The text of an
error is the chain of its causes, so that ``str(error)`` is fit for one printed line.
"""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes of the ``exaslurm`` command."""

    OK = 0
    INTERNAL = 1
    USAGE = 2
    WAIT_TIMED_OUT = 3
    SLURM_REFUSED = 4
    AMBIGUOUS = 5
    NOT_READY = 6
    INTERRUPTED = 130


class ExaslurmError(Exception):
    """Base of all errors that exaslurm raises on purpose.

    ``remedy`` is a sentence that tells what to do; ``transient`` is true where the same call
    may succeed later without any change.
    """

    exit_code = ExitCode.INTERNAL
    transient = False

    def __init__(self, message: str, *, remedy: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy

    def __str__(self) -> str:
        parts = [self.message]
        cause = self.__cause__
        while cause is not None:
            text = _own_words(cause)
            if text not in parts[-1]:  # most messages quote the reason already
                parts.append(text)
            cause = cause.__cause__
        return ": ".join(parts)


def _own_words(cause: BaseException) -> str:
    """What an exception says for itself, without its causes, numbers and file name."""
    if isinstance(cause, ExaslurmError):
        return cause.message
    if isinstance(cause, OSError) and cause.strerror:
        return cause.strerror
    return str(cause) or type(cause).__name__


class UserError(ExaslurmError):
    """What the user gave cannot be used."""

    exit_code = ExitCode.USAGE


class SpecError(UserError):
    """The cluster spec is wrong."""


class SiteError(UserError):
    """The site config is wrong or missing."""


class PlanError(UserError):
    """Spec and site are well formed but cannot be served together."""


class StateError(UserError):
    """The state directory cannot be used: not writable, full, or of another version."""


class TakenOver(StateError):
    """Another process has taken the deployment over: what this one was about to do is refused."""


class DeploymentError(UserError):
    """The named deployment does not exist, or is in the way of what was asked."""


class WaitTimeout(ExaslurmError):
    """What was waited for did not happen in time."""

    exit_code = ExitCode.WAIT_TIMED_OUT


class NotReadyError(ExaslurmError):
    """The deployment does not serve (yet), or not in full."""

    exit_code = ExitCode.NOT_READY


class AuditError(ExaslurmError):
    """The audit log is not as its routers wrote it."""

    exit_code = ExitCode.NOT_READY


class SlurmError(ExaslurmError):
    """A Slurm command could not be run, was refused, or gave no usable answer."""

    exit_code = ExitCode.SLURM_REFUSED

    def __init__(self, message: str, *, remedy: str | None = None, transient: bool = False) -> None:
        super().__init__(message, remedy=remedy)
        self.transient = transient


class CommandNotFound(SlurmError):
    """A Slurm command is not on this machine."""


class SubmitRejected(SlurmError):
    """``sbatch`` said no."""


class SubmitAmbiguous(SlurmError):
    """``sbatch`` gave no clear answer, and the look-up by job name gave none either."""

    exit_code = ExitCode.AMBIGUOUS


class QueryFailed(SlurmError):
    """``squeue``, ``sacct`` or ``scontrol`` gave no answer: the state is unknown, not ended."""


class AllocationError(ExaslurmError):
    """Something is wrong with the nodes that Slurm granted."""


class PreflightFailed(AllocationError):
    """A node cannot be used."""


class BindingMismatch(AllocationError):
    """A replica cannot be, or is not, where the plan wants it."""


class HeadTimeout(AllocationError):
    """Nodes did not report to the head of the cell in time."""


class ReplicaError(ExaslurmError):
    """A replica failed."""


class EngineExited(ReplicaError):
    """The engine process ended."""


class ReplicaNotReady(ReplicaError):
    """The engine lives but does not answer."""


class ModelError(ReplicaError):
    """A model could not be found, fetched, converted or verified."""


class RegistryError(ExaslurmError):
    """A registry record could not be read or written."""


class LeaseLost(RegistryError):
    """Another writer owns the record."""
