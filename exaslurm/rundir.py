"""The run directory: the one place that knows every file name in it.

::

    <state>/exaslurm/<deployment>/                  0700
        endpoint.json  history.jsonl  desired.json  canary.json  supervisor.json
        rollout.json  rollout_figures.json  scale.json
        keys/internal.key  keys/ray.token  keys/clients.json
        registry/<cell>.json  excluded/<cell>.json  wake/<shard>.json
        gateway/router.log
        audit/<host>-<n>.<first record>.<time>.jsonl  audit/<host>-<n>.head
        gen/<n>/  spec.yaml  plan.json  notes.txt
                  scripts/<cell>.sbatch  submissions/<cell>.json
                  cells/<cell>/  bootstrap.json binding.json controller.json failure.txt
                                 container.toml notice.json targets.json
                  logs/<cell>/...  logs/replicas/<replica>.log
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from exaslurm.core import codec
from exaslurm.core.rollout import Rollout
from exaslurm.core.scale import Scale
from exaslurm.core.submission import Desired, Endpoint, RouterAddress
from exaslurm.errors import DeploymentError, StateError
from exaslurm.util.files import is_there, make_private_dir, read_text, state_error, write_atomic
from exaslurm.util.user import user_and_home

T = TypeVar("T")


def state_root(environ: Mapping[str, str], site_state: str | None) -> Path:
    """``$EXASLURM_HOME``, else the site's state directory, else XDG state; plus ``exaslurm``.

    Absolute: jobs and routers start in other directories than the shell that names it.
    """
    home = user_and_home(environ)[1]
    chosen = environ.get("EXASLURM_HOME") or site_state or environ.get("XDG_STATE_HOME")
    base = chosen or f"{home}/.local/state"
    if base == "~" or base.startswith("~/"):
        base = home + base[1:]
    if not _is_plain(base):
        raise StateError(
            f"the state directory {base!r} cannot be used: its name has control characters, or is "
            "not UTF-8",
            remedy="set EXASLURM_HOME to another directory",
        )
    try:
        return Path(os.path.abspath(base)) / "exaslurm"
    except FileNotFoundError:
        raise StateError(
            f"{base!r} is relative to a directory that is gone",
            remedy="set EXASLURM_HOME to an absolute path",
        ) from None


def _is_plain(name: str) -> bool:
    """Whether batch scripts and JSON can hold the name of a directory."""
    return all(ord(char) >= 0x20 and not 0xD800 <= ord(char) < 0xE000 for char in name)


def read_optional(kind: type[T], path: Path) -> T | None:
    """What a file holds; None if there is no such file. StateError if it cannot be understood, or
    its directory is not there: a file system that is away says nothing of its files."""
    return codec.loads(kind, read_text(path), where=str(path)) if is_there(path) else None


@dataclass(frozen=True, slots=True)
class GenerationDir:
    """``gen/<n>``: one plan of a deployment. ``path`` may also be a directory that ``render``
    filled; then ``deployment`` still names the deployment's own directory."""

    path: Path

    @property
    def number(self) -> int:
        """The generation, 0 for a directory that is not ``gen/<n>``."""
        return int(self.path.name) if self.path.name.isdigit() else 0

    @property
    def spec(self) -> Path:
        return self.path / "spec.yaml"

    @property
    def plan(self) -> Path:
        return self.path / "plan.json"

    @property
    def notes(self) -> Path:
        """What ``submit`` found out that its user should know, a sentence a line."""
        return self.path / "notes.txt"

    @property
    def scripts(self) -> Path:
        return self.path / "scripts"

    def script(self, cell: str) -> Path:
        return self.scripts / f"{cell}.sbatch"

    @property
    def submissions(self) -> Path:
        return self.path / "submissions"

    def submission(self, cell: str) -> Path:
        return self.submissions / f"{cell}.json"

    def cell(self, cell: str) -> Path:
        return self.path / "cells" / cell

    def cells(self) -> list[str]:
        """Names of the cells that have a directory, in order."""
        try:
            return sorted(entry.name for entry in os.scandir(self.path / "cells") if entry.is_dir())
        except OSError:
            return []

    def bootstrap_marker(self, cell: str) -> Path:
        """Written by the first process in the allocation: plan hash, job id, host, time."""
        return self.cell(cell) / "bootstrap.json"

    def binding(self, cell: str) -> Path:
        return self.cell(cell) / "binding.json"

    def controller_memory(self, cell: str) -> Path:
        """What a restarted controller must know and no agent can tell it."""
        return self.cell(cell) / "controller.json"

    def targets(self, cell: str) -> Path:
        """How many replicas the cell's controller begins with; absent where it runs all."""
        return self.cell(cell) / "targets.json"

    def failure(self, cell: str) -> Path:
        """Why the cell ended itself, one sentence; absent unless it did."""
        return self.cell(cell) / "failure.txt"

    def container(self, cell: str) -> Path:
        """The environment definition file of the Container Engine; absent with other runtimes."""
        return self.cell(cell) / "container.toml"

    def notice(self, cell: str) -> Path:
        """Slurm's warning that the job will end soon; absent unless there was one."""
        return self.cell(cell) / "notice.json"

    def ended(self, cell: str) -> Path:
        """Nodes on which the cell's step ended before they reported."""
        return self.cell(cell) / "ended.json"

    def logs(self, cell: str) -> Path:
        """Batch, init, agent, controller and Ray logs of a cell."""
        return self.path / "logs" / cell

    def replica_log(self, replica: str) -> Path:
        return self.path / "logs" / "replicas" / f"{replica}.log"

    def make(self, cells: tuple[str, ...]) -> None:
        """Make every directory of the generation, 0700."""
        logs = self.path / "logs"
        places = (self.path, self.scripts, self.submissions, self.path / "cells", logs)
        for path in (*places, logs / "replicas"):
            make_private_dir(path)
        for cell in cells:
            make_private_dir(self.cell(cell))
            make_private_dir(self.logs(cell))


@dataclass(frozen=True, slots=True)
class RunDir:
    """``<state>/exaslurm/<deployment>``."""

    path: Path

    @classmethod
    def of(cls, root: Path, deployment: str) -> RunDir:
        """The run directory of a deployment under a state root (it need not exist)."""
        return cls(root / deployment)

    @property
    def deployment(self) -> str:
        return self.path.name

    def require(self) -> RunDir:
        """This directory, or a DeploymentError that lists the deployments there are."""
        if self.path.is_dir():
            return self
        try:
            names = sorted(entry.name for entry in os.scandir(self.path.parent) if entry.is_dir())
        except OSError:
            names = []
        known = ", ".join(names) if names else "there are none"
        raise DeploymentError(
            f"no deployment {self.deployment!r} in {self.path.parent}",
            remedy=f"known deployments: {known}",
        )

    @property
    def endpoint(self) -> Path:
        return self.path / "endpoint.json"

    @property
    def history(self) -> Path:
        """One JSON object a line: time, user, verb, generation, plan hash."""
        return self.path / "history.jsonl"

    @property
    def desired(self) -> Path:
        """``{"run": true|false, "generation": n}``: what the owner wants; routers follow it."""
        return self.path / "desired.json"

    def read_desired(self) -> Desired | None:
        """What the owner wants; None if nobody has said anything yet. StateError if the file
        cannot be understood, or the directory is not there."""
        if not is_there(self.desired):
            return None
        text = read_text(self.desired)
        try:
            return codec.loads(Desired, text, where=str(self.desired))
        except StateError as error:
            error.remedy = "remove the file and submit again"
            raise

    def read_routers(self) -> tuple[RouterAddress, ...]:
        """The routers on record, living or not. StateError as of ``read_optional``."""
        endpoint = read_optional(Endpoint, self.endpoint)
        return endpoint.routers if endpoint is not None else ()

    def write_routers(self, routers: tuple[RouterAddress, ...]) -> None:
        """Put these on record. Routers that live and are left out enter themselves again.
        StateError."""
        endpoint = Endpoint(deployment=self.deployment, routers=routers)
        write_atomic(self.endpoint, codec.dumps(endpoint, indent=1))

    def read_rollout(self) -> Rollout | None:
        """The change of generation that is under way, or was the last one; None if there was none.
        StateError as of ``read_optional``."""
        return read_optional(Rollout, self.rollout)

    def read_scale(self) -> Scale | None:
        """How many replicas are wanted; None: all that are planned. StateError as of
        ``read_optional``."""
        return read_optional(Scale, self.scale)

    @property
    def rollout(self) -> Path:
        """The change to another generation that is under way, or was the last one, see
        ``core/rollout.py``."""
        return self.path / "rollout.json"

    @property
    def rollout_figures(self) -> Path:
        """What routers have counted in its step, see ``core/rollout.py``."""
        return self.path / "rollout_figures.json"

    @property
    def scale(self) -> Path:
        """How many replicas are wanted, see ``core/scale.py``."""
        return self.path / "scale.json"

    @property
    def wake(self) -> Path:
        """A file for each shard that requests wait for while it has no replica, see
        ``core/scale.py``."""
        return self.path / "wake"

    @property
    def supervisor(self) -> Path:
        """What the supervisor has to say, see ``core/submission.py``."""
        return self.path / "supervisor.json"

    @property
    def keys(self) -> Path:
        return self.path / "keys"

    @property
    def internal_key(self) -> Path:
        return self.keys / "internal.key"

    @property
    def ray_token(self) -> Path:
        return self.keys / "ray.token"

    @property
    def client_keys(self) -> Path:
        """Hashes of the clients' keys, never the keys."""
        return self.keys / "clients.json"

    @property
    def registry(self) -> Path:
        return self.path / "registry"

    def record(self, cell: str) -> Path:
        return self.registry / f"{cell}.json"

    @property
    def excluded_nodes(self) -> Path:
        return self.path / "excluded"

    def excluded(self, cell: str) -> Path:
        """Nodes that the cell's next job shall do without, see ``core/exclusion.py``."""
        return self.excluded_nodes / f"{cell}.json"

    @property
    def gateway(self) -> Path:
        return self.path / "gateway"

    @property
    def router_log(self) -> Path:
        return self.gateway / "router.log"

    @property
    def gateway_jobs(self) -> Path:
        """The jobs of a gateway that runs in one, see ``core/submission.py``."""
        return self.gateway / "jobs.json"

    @property
    def audit(self) -> Path:
        """Records of requests, see ``router/audit_chain.py``."""
        return self.path / "audit"

    @property
    def chaos(self) -> Path:
        """What ``exaslurm chaos`` has broken and not mended yet, see ``chaos/undo.py``."""
        return self.path / "chaos"

    @property
    def canary(self) -> Path:
        """How requests are divided among versions of a model, see ``core/canary.py``."""
        return self.path / "canary.json"

    def generation(self, number: int) -> GenerationDir:
        return GenerationDir(self.path / "gen" / str(number))

    def generations(self) -> list[int]:
        """Numbers of the generations that exist, ascending."""
        try:
            entries = [entry.name for entry in os.scandir(self.path / "gen")]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise state_error("read", self.path / "gen", error) from error
        return sorted(int(name) for name in entries if name.isdigit())

    def latest(self) -> GenerationDir | None:
        """The newest generation, None if there is none."""
        numbers = self.generations()
        return self.generation(numbers[-1]) if numbers else None

    def current(self) -> GenerationDir | None:
        """The generation that the owner wants to run; the newest where nobody has said so. None if
        there is none. A newer one than the wanted may be there: it comes up, or was taken back."""
        desired = self.read_desired() if self.path.is_dir() else None
        if desired is not None and self.generation(desired.generation).path.is_dir():
            return self.generation(desired.generation)
        return self.latest()

    def make(self) -> None:
        """Make the deployment's own directories, 0700."""
        for path in (
            self.path,
            self.keys,
            self.registry,
            self.excluded_nodes,
            self.gateway,
            self.path / "gen",
        ):
            make_private_dir(path)
