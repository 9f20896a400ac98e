"""The change of a deployment from one generation to another while it serves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

# rising: cells of the new generation come up, and get a growing share of the requests. finishing:
# they have all of them, and what is left of the old one ends. done: the new generation is the
# deployment's. undoing: what there is of the new one ends. undone: nothing of it is left, and the
# old one is the deployment's.
RolloutState = Literal["rising", "finishing", "done", "undoing", "undone"]
OVER: frozenset[RolloutState] = frozenset(("done", "undone"))


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutPolicy:
    """How a rollout goes about it.

    ``steps_percent``: shares of the requests that the new version gets, ascending, 100 the last.
    Each is held for ``hold_s``, and up to as long again until the new version has answered
    ``min_requests``. ``surge``: how many cells may run twice at once. The new version is stopped
    where it is slower than the old by the factor ``slower`` (mean time of answers), or where more
    of its answers fail, by the share ``failures``. ``by``: whether requests are divided by chance,
    or a client's key stays with one version.
    """

    steps_percent: tuple[float, ...] = (5.0, 25.0, 50.0, 100.0)
    hold_s: float = 300.0
    min_requests: int = 200
    surge: int = 1
    slower: float = 1.5
    failures: float = 0.01
    by: Literal["random", "key"] = "random"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """``rollout.json``: from generation ``stable`` to ``candidate``.

    ``lanes``: of which generations a cell shall have a serving job, oldest first; none: the cell
    shall not run. Cells that are not named are as the stable generation plans them.

    ``names``: served names whose version differs, with the old and the new one: only their requests
    can be divided. ``step`` counts through ``policy.steps_percent``; ``cells`` of the candidate are
    wanted, of which ``carried`` have served; ``share_percent`` of the requests go to it since
    ``since_s`` (Unix seconds). ``reason`` is why it is undone, ``note`` what there is to say of
    where it stands. ``by``: who began it; ``divided_by``: how requests were divided before.
    ``stable_cells``, ``candidate_cells``: those that were wanted when it began, in order; all that
    the plans have are in ``lanes``.
    """

    schema: Literal["exaslurm/rollout/1"] = "exaslurm/rollout/1"
    stable: int
    candidate: int
    state: RolloutState
    lanes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    reason: str | None = None
    policy: RolloutPolicy = field(default_factory=RolloutPolicy)
    names: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    by: str = ""
    begun_s: float = 0.0
    step: int = 0
    cells: int = 1
    carried: int = 0
    share_percent: float = 0.0
    since_s: float = 0.0
    note: str | None = None
    divided_by: Literal["random", "key"] = "key"
    stable_cells: tuple[str, ...] = ()
    candidate_cells: tuple[str, ...] = ()

    @property
    def is_over(self) -> bool:
        """Whether there is nothing left to do."""
        return self.state in OVER

    def concerns(self, generation: int) -> bool:
        """Whether it is under way in a deployment of this generation. One that was left when the
        deployment was stopped is of no concern to a later one."""
        return not self.is_over and generation in (self.stable, self.candidate)

    @property
    def steps_percent(self) -> tuple[float, ...]:
        """The shares to go through: without a version that differs, requests cannot be divided."""
        return self.policy.steps_percent if self.names else (100.0,)

    @property
    def sentence(self) -> str:
        """Where it stands, for people."""
        why = f": {self.reason}" if self.reason else ""
        told = {
            "rising": self._rising(),
            "finishing": "everything goes to the new version; what is left of the old one ends",
            "done": "done",
            "undoing": f"stopped{why}; it is taken back",
            "undone": f"taken back{why}",
        }
        note = f" ({self.note})" if self.note else ""
        return f"generation {self.stable} -> {self.candidate}: {told[self.state]}{note}"

    def _rising(self) -> str:
        if not self.names:
            return f"{self.cells} cells of the new generation are wanted so far"
        steps = self.steps_percent
        return (
            f"step {self.step + 1} of {len(steps)} ({steps[self.step]:g} %), "
            f"{self.share_percent:g} % of the requests go to the new version"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """What routers counted of one version. ``failed``: answers with a status from 500 on, or lost
    after their first byte, and attempts that were made again elsewhere; ``refused``: the engine's
    answers with a status from 400 on. ``first`` and ``whole``: how many took how long until their
    first byte and their end, in the routers' buckets, the last one open; their sums in seconds."""

    requests: int = 0
    failed: int = 0
    refused: int = 0
    first: tuple[int, ...] = ()
    first_s: float = 0.0
    whole: tuple[int, ...] = ()
    whole_s: float = 0.0

    @property
    def sentence(self) -> str:
        """The figures for people; of times, the means."""
        text = f"{self.requests} requests ({self.failed} failed"
        if first := sum(self.first):
            text += f", first byte {self.first_s / first:.3g} s"
        if whole := sum(self.whole):
            text += f", whole {self.whole_s / whole:.3g} s"
        return f"{text})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """The old and the new version of one served name."""

    old: Answers = field(default_factory=Answers)
    new: Answers = field(default_factory=Answers)

    @property
    def sentence(self) -> str:
        """``412 requests (0 failed, first byte 0.21 s, whole 1.3 s) new; 7805 ... old``."""
        return f"{self.new.sentence} new; {self.old.sentence} old"


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutFigures:
    """``rollout_figures.json``: what was counted of a rollout's step.

    ``since_s`` says of which one (see ``Rollout``). ``seen``: what each router last said, by
    router and served name; ``counted``: what has come on top since the step began; ``before``: of
    the old versions, what was counted in all steps before. ``silent``: routers that gave no answer.
    """

    schema: Literal["exaslurm/rollout-figures/1"] = "exaslurm/rollout-figures/1"
    candidate: int
    since_s: float
    seen: Mapping[str, Mapping[str, Pair]] = field(default_factory=dict)
    counted: Mapping[str, Pair] = field(default_factory=dict)
    before: Mapping[str, Answers] = field(default_factory=dict)
    silent: tuple[str, ...] = ()
