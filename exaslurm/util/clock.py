"""The time that control loops live by.

It is the machine's. In a simulation it runs faster by one factor, so that everything that is done
every so many seconds, or given up after so many, happens that much sooner, in all processes alike.
What a network call or a file call may take is not a matter of this clock: the machine that runs the
simulation is no faster than it is.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from exaslurm.errors import UserError

VARIABLE = "EXASLURM_CLOCK"


@dataclass(frozen=True, slots=True)
class Clock:
    """``factor`` seconds of it pass in one of the machine's, which it agreed with at ``origin_s``
    (Unix seconds)."""

    factor: float = 1.0
    origin_s: float = 0.0

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Clock:
        """The clock that a simulation put into the environment (``FACTOR@ORIGIN``), else the
        machine's. UserError if it is neither."""
        text = environ.get(VARIABLE)
        if not text:
            return MACHINE
        factor, _, origin = text.partition("@")
        try:
            clock = cls(float(factor), float(origin))
        except ValueError:
            clock = cls(0.0)
        if not 1.0 <= clock.factor <= 1000.0:
            raise UserError(
                f"{VARIABLE}={text!r} is no clock",
                remedy=f"unset {VARIABLE}: it is for simulations only (FACTOR@UNIX_SECONDS)",
            )
        return clock

    def __str__(self) -> str:
        return f"{self.factor!r}@{self.origin_s!r}"

    def monotonic(self) -> float:
        """Seconds that only grow; the same in all processes of this host."""
        return self.factor * time.monotonic()

    def wall(self) -> float:
        """Unix seconds."""
        return self.origin_s + self.factor * (time.time() - self.origin_s)

    def machine_s(self, seconds: float) -> float:
        """How long so many seconds of this clock take on the machine's: what to wait."""
        return seconds / self.factor


MACHINE = Clock()
