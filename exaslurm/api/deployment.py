"""A deployment as a Python object, for scripts and notebooks."""

from __future__ import annotations

import html
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from exaslurm.api.endpoint import find_endpoint
from exaslurm.api.locate import find_run_dir
from exaslurm.api.source import SpecSource
from exaslurm.errors import ExaslurmError, UserError
from exaslurm.rundir import RunDir
from exaslurm.status.model import DeploymentStatus

if TYPE_CHECKING:
    from exaslurm.core.rollout import Rollout
    from exaslurm.rollout.start import PolicyOptions
    from exaslurm.status.collect import Collector
    from exaslurm.status.history import HistoryEntry


class Deployment:
    """A deployment that exists: made by ``submit``, or found again by ``attach``.

    Every call is synchronous and safe inside a running event loop (Jupyter). The environment of
    the process may be full of another job's ``SLURM_*`` variables: they reach no Slurm command.

    >>> hello = Deployment.submit("spec.yaml")          # doctest: +SKIP
    >>> hello.wait_ready()                              # doctest: +SKIP
    >>> client = openai.OpenAI(base_url=hello.endpoint, api_key=hello.add_key("me"))
    ...                                                 # doctest: +SKIP
    >>> hello.stop()                                    # doctest: +SKIP
    """

    def __init__(self, run_dir: Path | str, *, environ: Mapping[str, str] | None = None) -> None:
        self._run_dir = RunDir(Path(run_dir)).require()
        self._environ = dict(os.environ if environ is None else environ)

    @classmethod
    def submit(
        cls,
        spec: Path | str | Mapping[str, Any],
        *,
        site: str | None = None,
        environ: Mapping[str, str] | None = None,
        talk: Callable[[str], None] = lambda _: None,
    ) -> Deployment:
        """Submit a spec (a path, YAML text or a mapping), or attach if the same one runs.

        ``site`` overrides the spec's, ``talk`` gets a line for each step. Raises UserError for
        what cannot be used, SlurmError where Slurm refuses or does not answer.
        """
        from exaslurm.submit.submit import submit

        environment = dict(os.environ if environ is None else environ)
        source = SpecSource.of(spec)
        done = submit(source.path, text=source.text, site=site, environ=environment, talk=talk)
        return cls(done.run_dir.path, environ=environment)

    @classmethod
    def attach(
        cls, name: str, *, site: str | None = None, environ: Mapping[str, str] | None = None
    ) -> Deployment:
        """The deployment of that name (or run directory); DeploymentError if there is none."""
        environment = dict(os.environ if environ is None else environ)
        return cls(find_run_dir(name, environment, site=site).path, environ=environment)

    @property
    def name(self) -> str:
        return self._run_dir.deployment

    @property
    def run_dir(self) -> Path:
        """Where everything about this deployment is kept."""
        return self._run_dir.path

    @property
    def endpoint(self) -> str:
        """Base URL for OpenAI clients; NotReadyError if no router runs."""
        return find_endpoint(self._run_dir)[0].base_url

    def status(self) -> DeploymentStatus:
        """How it is doing now."""
        return self._collector().collect()

    def wait_ready(self, timeout_s: float = 3600.0) -> DeploymentStatus:
        """Wait until every replica is ready.

        WaitTimeout after ``timeout_s``; NotReadyError as soon as it is clear that it will not be.
        """
        from exaslurm.status.wait import wait_ready

        return wait_ready(self._collector(), timeout_s=timeout_s)

    def add_key(self, name: str, *, expires_s: float | None = None) -> str:
        """Make a client key, which works at once: the only time that it is seen."""
        from exaslurm.api.keys import make_key

        return make_key(self._run_dir, name, expires_s=expires_s)

    def rollout(
        self,
        spec: Path | str | Mapping[str, Any],
        *,
        site: str | None = None,
        options: PolicyOptions | None = None,
        talk: Callable[[str], None] = lambda _: None,
    ) -> Rollout:
        """Bring it over to another spec while it serves; returns when the supervisor knows of it,
        see ``wait_over``. DeploymentError if that cannot be done now, UserError for a spec that
        cannot be used or names another deployment.
        """
        from exaslurm.rollout.start import rollout
        from exaslurm.spec.load import load_spec

        source = SpecSource.of(spec)
        name = load_spec(source.path, source.text).deployment
        if name != self.name:
            raise UserError(f"the spec is of deployment {name!r}, this is {self.name!r}")
        return rollout(
            source.path,
            text=source.text,
            site=site,
            options=options,
            environ=self._environ,
            talk=talk,
        ).rollout

    def rollback(
        self, *, to: int | None = None, talk: Callable[[str], None] = lambda _: None
    ) -> Rollout:
        """Take back the rollout that is under way, or bring the generation before the last one (or
        ``to`` that one) back. Errors as of ``rollout``."""
        from exaslurm.rollout.start import rollback

        return rollback(self._run_dir, to=to, environ=self._environ, talk=talk).rollout

    def wait_over(self, rollout: Rollout, timeout_s: float = 12 * 3600.0) -> Rollout:
        """The rollout when it is over: its ``state`` is then ``done`` or ``undone``. WaitTimeout
        after ``timeout_s``."""
        from exaslurm.rollout.wait import wait_over

        return wait_over(self._run_dir, rollout.candidate, timeout_s=timeout_s)

    def history(self) -> tuple[HistoryEntry, ...]:
        """What was done to it, oldest first."""
        from exaslurm.status.history import read_history

        return read_history(self._run_dir)

    def scale(self, wanted: Mapping[str, int], *, auto: Sequence[str] = ()) -> None:
        """Have so many replicas of these shards (``model:shard``), which are no longer scaled
        automatically; those in ``auto`` are again. UserError for a shard that is not there, or a
        number beyond its limits."""
        from exaslurm.api.scale import scale

        scale(self._run_dir, wanted, auto=auto, environ=self._environ)

    def drain(
        self,
        *,
        replicas: Sequence[str] = (),
        nodes: Sequence[str] = (),
        cells: Sequence[str] = (),
        reason: str | None = None,
        wait_s: float | None = None,
    ) -> None:
        """Empty replicas, nodes and cells: nothing new is sent to them, what they have begun is
        finished, and they end; replicas come up again, elsewhere if there is room.

        With ``wait_s``, returns when that is done, WaitTimeout after so long. DeploymentError for
        a name that is not there.
        """
        from exaslurm.api.drain import What, drain, wait_drained

        asked: list[tuple[What, Sequence[str]]] = [
            ("replica", replicas), ("node", nodes), ("cell", cells),
        ]  # fmt: skip
        done = [
            drain(self._run_dir, what, names, environ=self._environ, reason=reason)
            for what, names in asked
            if names
        ]
        for each in done:
            if wait_s is not None:
                wait_drained(self._run_dir, each, timeout_s=wait_s)

    def stop(self, *, timeout_s: float = 120.0) -> None:
        """Stop it and wait until its jobs have ended."""
        from exaslurm.submit.stop import stop

        stop(self._run_dir, timeout_s=timeout_s, talk=lambda _: None)

    def _collector(self) -> Collector:
        from exaslurm.slurm.client import Slurm
        from exaslurm.status.collect import Collector

        return Collector(self._run_dir, Slurm(self._environ))

    def __repr__(self) -> str:
        return f"<Deployment {self.name!r} in {self.run_dir}>"

    def _repr_html_(self) -> str:
        """A table of the shards for a notebook; never an exception."""
        try:
            status = self.status()
        except ExaslurmError as error:
            return f"<p><b>{html.escape(self.name)}</b>: {html.escape(str(error))}</p>"
        return status_html(status)


def status_html(status: DeploymentStatus) -> str:
    """Headline, shards with ready and planned replicas, cells, endpoint, first cause."""
    ready: dict[tuple[str, str], list[int]] = {}
    for cell in status.cells:
        for replica in cell.replicas:
            counts = ready.setdefault((replica.model, replica.shard), [0, 0])
            counts[0] += replica.state == "ready"
            counts[1] += 1
    shards = [
        [f"{model}:{shard}", f"{counts[0]}/{counts[1]}"]
        for (model, shard), counts in sorted(ready.items())
    ]
    cells = [
        [cell.name, cell.phase, (cell.job.id or "-") if cell.job else "-", cell.cause or ""]
        for cell in status.cells
    ]
    counts_text = f"{status.replicas_ready} of {status.replicas_planned} replicas ready"
    name = html.escape(status.deployment)
    parts = [f"<p><b>{name}</b>: {status.phase}, {counts_text}</p>"]
    if status.cause:
        parts.append(f"<p>{html.escape(status.cause)}</p>")
    if status.base_url:
        url = html.escape(status.base_url, quote=True)
        parts.append(f"<p>endpoint: <code>{url}</code></p>")
    if shards:
        parts.append(_table(["shard", "ready"], shards))
    parts.append(_table(["cell", "phase", "job", "cause"], cells))
    return "<div>" + "".join(parts) + "</div>"


def _table(header: list[str], rows: list[list[str]]) -> str:
    head = "".join(f"<th>{html.escape(cell)}</th>" for cell in header)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
