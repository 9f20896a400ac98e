"""What a node needs to start a container: the runtime's command and the image.

It is looked at on the host, by ``doctor``; in a cell, the task that enters the container does.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

from exaslurm.core.checks import Check, failed, passed, skipped
from exaslurm.preflight.host import Host


def check_container(host: Host, command: str | None, image: str) -> Iterator[Check]:
    """``command``: None where Slurm itself starts containers (pyxis, Container Engine)."""
    if command is None:
        yield skipped("container.runtime", "Slurm starts the container")
    elif host.recorded:
        yield skipped("container.runtime", "not known from a recorded tree")
    elif (found := shutil.which(command, path=host.environ.get("PATH"))) is None:
        yield failed(
            "container.runtime",
            f"{command!r} is not on PATH",
            "name its module in the site config (modules), or its path: container.executable",
        )
    else:
        yield passed("container.runtime", found)
    if not image.startswith("/"):
        yield skipped("container.image", f"{image} is not a file")
    elif os.access(host.path(image), os.R_OK):
        yield passed("container.image", image)
    else:
        yield failed(
            "container.image",
            f"{image} cannot be read",
            "put it on a file system that all nodes mount",
        )
