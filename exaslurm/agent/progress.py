"""Whether an engine that has work does any of it. Pure: the caller brings figures and time.

vLLM's ``/health`` is answered by its HTTP server, and is 200 as long as the engine's core has not
ended, also while that does nothing. So it must show signs of life of the core while it has
requests: any change of the figures that each of its steps writes. Of vLLM 0.32 these are
``generation_tokens`` (each step), ``prompt_tokens`` and ``iteration_tokens`` (at the end of a
prefill: a long one moves neither), ``kv_cache_usage_perc`` (each chunk of a prefill takes blocks),
``request_success``, ``prefix_cache_queries``, ``num_requests_running`` and ``..._waiting``.

One step may take long: kernels are compiled, and on CPUs one chunk of a prefill can take minutes.
A CPU engine that computes meanwhile is given ten times as long; on a GPU the host's threads spin,
computing or not, and say nothing. Half-way to the limit the engine is sent the smallest real
request: requests that are held for another reason, such as a client that does not read its answer,
are no fault of an engine that answers that.
"""

from __future__ import annotations

from dataclasses import dataclass

from exaslurm.core.cell import EngineLoad

# Of an engine on CPUs: so much of one core's time means that it computes, on however busy a node.
_COMPUTES = 0.05
_PATIENCE = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Signs:
    """What an engine shows at one moment. ``counters`` change with every step of its core;
    ``held`` are requests that its HTTP server has not finished to answer (None: it does not
    tell)."""

    load: EngineLoad
    counters: tuple[float, ...]
    held: int | None = None

    @property
    def requests(self) -> int:
        """Requests that wait for it; none while it sleeps, which somebody wanted."""
        if self.load.sleeping:
            return 0
        return max(self.load.running + self.load.waiting, self.held or 0)


class Progress:
    """The last sign of life of one engine (monotonic seconds)."""

    def __init__(self, stall_s: float, *, on_cpu: bool, now: float) -> None:
        self.requests = 0
        self._stall_s = stall_s
        self._on_cpu = on_cpu
        self._moved_s = now
        self._counters: tuple[float, ...] | None = None
        self._cpu_s: float | None = None
        self._since_s = now
        self._computes = False

    def look(self, signs: Signs | None, now: float) -> None:
        """Take what the engine shows; None: it did not answer, which ``/health`` judges."""
        if signs is None:
            return
        self.requests = signs.requests
        if signs.counters != self._counters or not self.requests:
            self._counters = signs.counters
            self.moved(now)

    def moved(self, now: float) -> None:
        """It has done something."""
        self._moved_s = now
        self._cpu_s = None
        self._computes = False

    def on_cpu_time(self, cpu_s: float, now: float) -> None:
        """The CPU time of all its processes so far, asked for while nothing else moves."""
        if self._cpu_s is None or cpu_s < self._cpu_s:
            self._cpu_s, self._since_s = cpu_s, now
        elif now > self._since_s:
            share = (cpu_s - self._cpu_s) / (now - self._since_s)
            self._computes = self._on_cpu and share >= _COMPUTES

    def still_s(self, now: float) -> float:
        """How long it has had requests and has shown nothing."""
        return now - self._moved_s if self.requests else 0.0

    @property
    def limit_s(self) -> float:
        """How long that may be."""
        return self._stall_s * (_PATIENCE if self._computes else 1.0)

    def in_doubt(self, now: float) -> bool:
        """Whether it is time to ask it for a sign."""
        return self.still_s(now) >= self.limit_s / 2

    def is_hung(self, now: float) -> bool:
        """Whether there is no hope left."""
        return self.still_s(now) >= self.limit_s

    def why(self, now: float) -> str:
        """In words that follow "hung:"."""
        some = "a request" if self.requests == 1 else f"{self.requests} requests"
        return f"{some} and not a token for {self.still_s(now):.0f} s, though /health answers"
