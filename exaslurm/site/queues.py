"""Limits of a partition or a quality of service, as the site config states them."""

from __future__ import annotations

from pydantic import Field

from exaslurm.util.fields import Count, Positive, Section, TimeLimit, time_limit_s


class SizeLimit(Section):
    """The wall time that jobs of a size may ask for."""

    nodes: Count = Field(description="Jobs of at most so many nodes.")
    max_time: TimeLimit = Field(description="Their wall time at most.")


class Queue(Section):
    """Limits of jobs that wait in the same queue."""

    max_nodes: Count | None = Field(default=None, description="Nodes of one job at most.")
    min_nodes: Count | None = Field(default=None, description="Nodes of one job at least.")
    max_time: TimeLimit | None = Field(default=None, description="Wall time at most.")
    max_jobs: Count | None = Field(
        default=None,
        description="Jobs of a user at most; each component of a cell counts as one.",
    )
    max_node_hours: Positive | None = Field(
        default=None, description="Nodes times hours of one job at most."
    )
    time_by_nodes: tuple[SizeLimit, ...] = Field(
        default=(),
        description="Wall time by the size of a job, smallest size first; larger jobs than the "
        "last entry's are refused.",
    )

    def longest_s(self, nodes: int) -> float:
        """Wall time in seconds that a job of so many nodes may ask for; infinity: no limit."""
        limits = [time_limit_s(self.max_time)] if self.max_time else []
        bins = [item for item in self.time_by_nodes if nodes <= item.nodes]
        limits += [time_limit_s(item.max_time) for item in bins[:1]]
        if self.max_node_hours is not None:
            limits.append(self.max_node_hours / nodes * 3600)
        return min(limits, default=float("inf"))

    def most_nodes(self) -> int | None:
        """Nodes of one job at most, None: no limit is known."""
        last = [item.nodes for item in self.time_by_nodes[-1:]]
        return min([*last, *([self.max_nodes] if self.max_nodes else [])], default=None)


class Partition(Queue):
    """Limits of a partition."""


class Qos(Queue):
    """Limits of a quality of service."""
