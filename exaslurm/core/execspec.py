"""A process to start, as data: what ``bootstrap/pinned_exec.py`` carries out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecSpec:
    """One process: argv, environment, place and log.

    ``argv[0]`` is an absolute path, or a name looked up on the child's ``PATH``. The child's
    environment is the node's, less ``unset``, plus ``env``, plus ``secret_env``: variable -> path
    of a private file (0600, own uid) whose content becomes the value, so that no secret is ever
    in argv or in this data. ``cores`` are logical CPUs (empty: all that the step may use);
    ``mem_nodes`` are the NUMA nodes that memory is bound to (empty: the kernel decides). ``log`` is
    the file that stdout and stderr are appended to (None: init's own), ``cwd`` the working
    directory (None: the node's runtime directory).
    """

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    unset: tuple[str, ...] = ()
    secret_env: Mapping[str, str] = field(default_factory=dict)
    cores: tuple[int, ...] = ()
    mem_nodes: tuple[int, ...] = ()
    log: str | None = None
    cwd: str | None = None
