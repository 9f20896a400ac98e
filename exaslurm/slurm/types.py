"""What the Slurm package answers with."""

from __future__ import annotations

from dataclasses import dataclass

from exaslurm.slurm import states


@dataclass(frozen=True, slots=True)
class JobId:
    """A job as ``sbatch --parsable`` names it; ``cluster`` only where Slurm said one."""

    id: str
    cluster: str | None = None

    @classmethod
    def parse(cls, text: str) -> JobId:
        """From ``id`` or ``id;cluster``."""
        ident, _, cluster = text.partition(";")
        return cls(ident, cluster or None)

    def __str__(self) -> str:
        return f"{self.id};{self.cluster}" if self.cluster else self.id


@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentInfo:
    """One component of a job; for an ordinary job there is just one, with ``offset`` 0.

    ``id`` is what ``squeue`` and ``scancel`` call it: ``93+1``, or the plain id.
    """

    id: str
    offset: int
    state: str
    reason: str
    nodes: tuple[str, ...]
    exit_code: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobInfo:
    """What Slurm knows of a job. Times are Unix seconds, None where Slurm has none (yet).

    ``state`` is Slurm's word for the whole job, or ``GONE`` if the controller has forgotten it:
    it has ended, how is not known. ``reason`` is Slurm's word for why it waits or ended (empty if
    it gave none); ``reasons.explain`` makes a sentence of it. ``cluster`` only where several were
    asked.
    """

    id: str
    name: str
    state: str
    reason: str
    nodes: tuple[str, ...]
    start_s: float | None
    end_s: float | None
    components: tuple[ComponentInfo, ...]
    cluster: str | None = None

    @property
    def is_pending(self) -> bool:
        return self.state in states.PENDING

    @property
    def is_running(self) -> bool:
        return self.state in states.RUNNING

    @property
    def is_finished(self) -> bool:
        return self.state in states.FINISHED

    @property
    def exit_code(self) -> int | None:
        """Exit code of the batch script (it runs in the first component)."""
        return self.components[0].exit_code if self.components else None
