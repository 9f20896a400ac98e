"""What must hold of jobs and turns, and how long it did not. Pure.

Times are seconds of the simulation's clock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from exaslurm.core.turns import cell_of

# A successor serves for this long before its predecessor drains: routers must know of it, and the
# supervisor looks every few seconds.
HAND_OVER_S = 60.0


@dataclass
class Ledger:
    """Cells of which two turns serve: for how long at most, and which for too long."""

    longest_s: float = 0.0
    too_long: list[str] = field(default_factory=list)
    _since: dict[str, float] = field(default_factory=dict)

    def look(self, serving: Iterable[str], step_s: float, *, impaired: bool) -> None:
        """These turns serve, ``step_s`` after the last look. ``impaired``: what would end one of
        two is itself out of order just now, so that this time does not count."""
        cells = Counter(cell_of(turn) for turn in serving)
        for cell in [name for name in self._since if cells[name] < 2]:
            del self._since[cell]
        for cell, count in cells.items():
            if count < 2:
                continue
            both_s = self._since.get(cell, 0.0) + (0.0 if impaired else step_s)
            self._since[cell] = both_s
            self.longest_s = max(self.longest_s, both_s)
            if both_s > HAND_OVER_S >= both_s - step_s:
                self.too_long.append(cell)


def doubled(jobs: Mapping[str, str]) -> list[str]:
    """Turns for which there was more than one job; ``jobs``: id to turn. What Slurm took but lost
    the answer of counts."""
    counts = Counter(jobs.values())
    return sorted(turn for turn, count in counts.items() if count > 1)
