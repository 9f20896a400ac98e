"""What a supervisor sees of a deployment, and what it can do about it. Frozen data.

Times are Unix seconds of the supervisor's host, except where a name says otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from exaslurm.supervisor.wall_time import Relimited

# What is known of a turn's job. ``none``: there is no job (it was refused, or is not known to have
# been taken). ``unknown``: Slurm gave no answer, which says nothing, least of all that it ended.
JobState = Literal["none", "pending", "running", "ended", "unknown"]
RecordState = Literal["intent", "submitted", "refused", "ambiguous", "stopped"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One job of a cell; its files are those of its ``generation``. ``record`` is what was written
    down of its submission; of the times ``limit_end_s`` is when Slurm will end it at the latest
    (None: not known, or no limit), or when the maintenance ``ends_for`` takes its nodes.

    ``heard``: its controller answers; then ``ready`` replicas are ready, ``serving`` says whether
    these are all that have a place, and ``busy`` counts requests that engines are at (None: not
    known). ``draining``: nothing new is sent to it. ``stopping``: it was told to end.
    ``targets``: how many replicas of each shard it was told to run (None: all that are planned).
    ``nodes_short_since_s`` and ``short_since_s``: since when it has fewer nodes, or fewer ready
    replicas, than the cell needs at least; ``silent_since_s``: since when a controller that was
    heard before is not. ``notice_s``: when Slurm warned of its end. ``failure``: why it says that
    it cannot serve. ``asked_by``: who asked for a successor (``asked_s``). ``shards``: those of
    which it has ready replicas. ``suspended_since_s``: since when Slurm has suspended it.
    ``ending_since_s``: since when all that Slurm does with it is to end it.
    ``relimit``: the time limit that it should have instead, while it waits; ``limited_by``: the
    maintenance that it was made shorter for.
    """

    name: str
    number: int
    generation: int = 1
    record: RecordState
    job: JobState
    created_s: float
    submitted_s: float | None = None
    started_s: float | None = None
    served_s: float | None = None
    drain_s: float | None = None
    ended_s: float | None = None
    end: str | None = None
    refusals: int = 0
    message: str | None = None
    limit_end_s: float | None = None
    reason: str = ""
    heard: bool = False
    ready: int = 0
    serving: bool = False
    busy: int | None = None
    draining: bool = False
    stopping: bool = False
    failure: str | None = None
    targets: Mapping[str, int] | None = None
    asked_s: float | None = None
    asked_by: str | None = None
    nodes_short_since_s: float | None = None
    short_since_s: float | None = None
    silent_since_s: float | None = None
    notice_s: float | None = None
    ends_for: str | None = None
    shards: frozenset[str] = frozenset()
    suspended_since_s: float | None = None
    ending_since_s: float | None = None
    relimit: Relimited | None = None
    limited_by: str | None = None

    @property
    def is_live(self) -> bool:
        """Whether a job may exist that has not ended."""
        return self.record == "submitted" and self.job != "ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class CellView:
    """A cell with its turns, oldest first. ``lanes``: the generations that shall each have a
    serving job, oldest first; without any the cell shall end. ``targets``: by generation, how many
    replicas of each shard are wanted there (None: all that are planned). ``past``: the highest
    number that a turn of a generation has had that was taken back: the name is not given again."""

    name: str
    turns: tuple[Turn, ...] = ()
    lanes: tuple[int, ...] = (1,)
    targets: Mapping[int, Mapping[str, int] | None] = field(default_factory=dict)
    past: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """A deployment at one moment. ``slurm_error``: why Slurm could not be asked (then nothing is
    begun that needs it); ``drain_s`` and ``bring_up_s`` are the plans' limits, ``poll_s`` is how
    often all this is looked at. ``scaled``: replicas come and go by what there is to do, which is
    looked at more often, without Slurm."""

    wanted: bool
    cells: tuple[CellView, ...]
    poll_s: float
    drain_s: float
    bring_up_s: float
    slurm_error: str | None = None
    scaled: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """Something to do about one turn. Doing it twice is as doing it once: it is looked up first
    whether it still applies."""

    turn: str
    reason: str = ""

    @property
    def key(self) -> str:
        """What it is, for logs and for telling effects apart."""
        return f"{type(self).__name__.lower()} {self.turn}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Submit(Effect):
    """Submit a job of a generation. ``newest`` is the newest turn that was known: with another one
    there by now, nothing is done. ``refusals``: how often this turn was refused before."""

    newest: str | None
    generation: int = 1
    refusals: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolve(Effect):
    """Find out whether a submission without an answer made a job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remember(Effect):
    """Write down when a job started, or first served, and for how long (``gap_s``) nothing of the
    cell had served then."""

    started_s: float | None = None
    served_s: float | None = None
    gap_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Relimit(Effect):
    """Give a job that waits another time limit."""

    limit: Relimited


@dataclass(frozen=True, slots=True, kw_only=True)
class Retarget(Effect):
    """Tell it how many replicas of each shard (``model:shard``) to run; None: all it has."""

    replicas: Mapping[str, int] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain(Effect):
    """Have routers send nothing new to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop(Effect):
    """Ask a drained cell to end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancel(Effect):
    """Have Slurm end it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Close(Effect):
    """Write down that a job has ended, and take back what it published."""

    end: str | None = None
    ended_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What to do now, in this order, and a sentence for each cell of which there is something to
    say."""

    effects: tuple[Effect, ...] = ()
    notes: Mapping[str, str] = field(default_factory=dict)
