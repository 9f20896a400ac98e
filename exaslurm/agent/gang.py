"""What is different for an engine that is one part of a replica over several nodes."""

from __future__ import annotations

import asyncio

from exaslurm.agent.progress import Signs
from exaslurm.core.binding import ReplicaBinding
from exaslurm.util.waiting import within

_CONNECT_S = 2.0
_PAUSE_S = 0.25


def part_name(binding: ReplicaBinding) -> str:
    """What the files of this part are called: its parts write to one file system. Rank 0, which
    answers for the whole, has the replica's own name."""
    return f"{binding.id}.{binding.rank}" if binding.rank else binding.id


class FollowerProbe:
    """Stands for the HTTP surface that only rank 0 has: a follower is well while it lives."""

    async def healthy(self) -> bool:
        """Asked of a process that lives."""
        return True

    async def max_model_len(self) -> int | None:
        """Rank 0 tells."""
        return None

    async def signs(self) -> Signs | None:
        """Rank 0 tells."""
        return None

    async def answers(self, limit_s: float) -> bool:  # noqa: ARG002 (as EngineProbe)
        """Rank 0 does, or does not."""
        return True


async def leader_gone(binding: ReplicaBinding, limit_s: float) -> bool:
    """Wait until rank 0 does not listen any more: while it does, it finishes requests, and needs
    all other ranks for that. False if it still listens after ``limit_s``."""
    first = binding.ranks[0]
    loop = asyncio.get_running_loop()
    deadline = loop.time() + limit_s
    while loop.time() < deadline:
        try:
            _, writer = await within(asyncio.open_connection(first.address, first.port), _CONNECT_S)
        except (OSError, asyncio.TimeoutError):
            return True
        writer.close()
        await asyncio.sleep(_PAUSE_S)
    return False
