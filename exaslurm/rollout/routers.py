"""What the routers of a deployment have counted, by version."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from exaslurm.registry.router_pages import router_pages
from exaslurm.rollout.figures import Counts, parse
from exaslurm.rundir import RunDir


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What routers say, and when they started (Unix seconds), by router; ``silent`` gave no
    answer."""

    counts: Mapping[str, Counts]
    started_s: Mapping[str, float]
    silent: tuple[str, ...] = ()


def ask_routers(run_dir: RunDir) -> Said:
    """Ask all routers that are on record and may live. StateError if the record or the key cannot
    be read."""
    pages = router_pages(run_dir)
    return Said(
        counts={name: parse(page.text) for name, page in pages.items() if page.text is not None},
        started_s={name: page.started_s for name, page in pages.items()},
        silent=tuple(name for name, page in pages.items() if page.text is None),
    )
