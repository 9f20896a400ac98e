"""What a router takes on at most."""

from __future__ import annotations

from dataclasses import dataclass, replace

MIB = 1024 * 1024
MOST_DIRECT_S = 24 * 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of one deployment's router, all its processes together; None: no bound.

    ``max_in_flight`` requests are at engines at a time, ``max_in_flight_per_replica`` times the
    usable replicas of a served name at those. What is over waits for ``wait_s`` at most, in
    queues of ``max_waiting`` requests together. One key may have ``max_waiting_per_key`` of them
    (None: as many as there is room left for others). The defaults only keep a router from
    running out of memory and file descriptors. A request for a model without a replica that can
    be started for it waits for ``wake_s``, with as many others, and as many of one key.
    ``direct_s`` is the longest that a client may call an engine itself before it asks again; 0:
    never.
    """

    max_in_flight: int = 32_768
    max_in_flight_per_replica: int | None = None
    max_waiting: int = 8_192
    max_waiting_per_key: int | None = None
    wait_s: float = 60.0
    wake_s: float = 600.0
    max_body_mib: float = 64.0
    direct_s: float = 0.0

    def of_one(self, processes: int) -> Limits:
        """The share of one of several processes, as far as it is one of requests; rounded up."""
        per_key = self.max_waiting_per_key
        return replace(
            self,
            max_in_flight=-(-self.max_in_flight // processes),
            max_waiting=-(-self.max_waiting // processes),
            max_waiting_per_key=None if per_key is None else -(-per_key // processes),
        )

    @property
    def max_body_bytes(self) -> int:
        return int(self.max_body_mib * MIB)
