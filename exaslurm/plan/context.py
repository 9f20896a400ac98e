"""What the planner may know besides spec and site."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from exaslurm.errors import PlanError
from exaslurm.util.checked import report
from exaslurm.util.yaml_lines import Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanContext:
    """Who plans, and where.

    ``home`` and ``user`` replace $HOME and $USER in paths; ``python`` is used where the site
    names none; ``environ_defaults`` are the user's ``SBATCH_*`` variables, used where neither
    spec nor site says anything. ``variables`` are those of the login shell that the site's paths
    may use.
    """

    user: str
    home: str
    python: str
    environ_defaults: Mapping[str, str] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)


class Findings:
    """Problems and notes of one planning, in the order found."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self.notes: list[str] = []

    def add(self, problem: Problem) -> None:
        """Add a problem, once."""
        if problem not in self.problems:
            self.problems.append(problem)

    def note(self, sentence: str) -> None:
        """Add a note, once."""
        if sentence not in self.notes:
            self.notes.append(sentence)

    def stop_if_any(self) -> None:
        """PlanError with every problem found so far, one a line."""
        if self.problems:
            raise PlanError(report(self.problems))
