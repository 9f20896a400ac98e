"""What the lines of this set share: a lab of six hosts, and what ``status`` says."""

from __future__ import annotations

from typing import Any

from acceptance.lab import HOME, Lab, lab
from acceptance.runner import Line, LineFailed

# One for heads, five for engines; two of them below each leaf switch.
NODES = 6


def big_lab(line: Line, *, profile: str = "wide") -> Lab:
    """Six hosts below three switches."""
    return lab(line, profile=profile, nodes=NODES)


def forget(here: Lab) -> None:
    """End and remove what earlier runs left of the lab user's deployments: cells, turns and the
    history begin anew."""
    end = f'{here.env}/bin/exaslurm stop "$(basename "$place")" >/dev/null && rm -r "$place"'
    each = f'for place in {HOME}/exaslurm/*/; do [ ! -d "$place" ] || {{ {end}; }} || exit; done'
    done = here.sh(each, timeout_s=900)
    if done.returncode:
        raise LineFailed(f"what an earlier run left does not end: {done.stderr[-500:]}")


def site(here: Lab, name: str, text: str) -> None:
    """A site config of the lab's user; ``text`` without its first lines."""
    lines = f"schema: exaslurm/site/v1\nname: {name}\nextends: lab\n{text}"
    here.write(f"{HOME}/.config/exaslurm/sites/{name}.yaml", lines)


def replicas(here: Lab, deployment: str) -> dict[str, dict[str, Any]]:
    """Replicas of all cells by id."""
    status = here.status(deployment)
    return {item["id"]: item for cell in status["cells"] for item in cell["replicas"]}


def engines(here: Lab, deployment: str) -> dict[str, tuple[str, int, int]]:
    """Which processes the replicas are: node, pid, restarts."""
    found = replicas(here, deployment)
    return {key: (item["node"], item["pid"], item["restarts"]) for key, item in found.items()}


def is_ready(here: Lab, deployment: str) -> bool:
    return bool(here.status(deployment)["phase"] == "ready")
