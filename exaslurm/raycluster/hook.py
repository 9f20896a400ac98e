"""Run by ``ray start`` itself (``RAY_START_HOOK``): what has no option on its command line."""

from __future__ import annotations

from typing import Any


def trim(ray_params: Any, head: bool) -> None:
    """Leave out the Ray Client server, which ``ray start`` 2.60 starts wherever grpcio is
    installed: a process of 100 MB that listens for pickled code."""
    if head:
        ray_params.ray_client_server_port = None
