"""One task per node, through submitit: a job of its own, or a step in a job that runs.

submitit carries the function there and its result back. Its own questions to Slurm (sacct every
minute, which not every site has) are replaced by those of our Slurm client.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shlex
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from exaslurm.core.checks import NodeChecks, NodeNeeds, failed
from exaslurm.core.codec import dumps, loads
from exaslurm.doctor import task
from exaslurm.errors import ExaslurmError, SlurmError, WaitTimeout
from exaslurm.rundir import state_root
from exaslurm.site.model import NodeKind, Site
from exaslurm.slurm import environ as environments
from exaslurm.slurm.client import Slurm
from exaslurm.slurm.types import ComponentInfo, JobInfo
from exaslurm.util.files import make_private_dir

Talk = Callable[[str], None]

# Nodes come up, write 4 MiB, wait up to a minute for each other.
JOB_MINUTES = 10
STEP_S = 240.0
_POLL_S = 2.0
# A file that a node wrote may be seen late: attribute caches of NFS live for up to a minute.
_LATE_S = 10.0
_LOG_TAIL = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """The nodes to look at: ``count`` of a partition (with what Slurm wants to know besides)."""

    partition: str | None
    count: int
    account: str | None = None
    qos: str | None = None
    reservation: str | None = None
    nodelist: str | None = None


@contextlib.contextmanager
def workplace(site: Site, environ: Mapping[str, str]) -> Iterator[Path]:
    """A private directory on the shared file system, gone afterwards."""
    root = state_root(environ, site.state_dir(environ))
    place = root.with_name("exaslurm-doctor") / secrets.token_hex(6)
    make_private_dir(place)
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)
        with contextlib.suppress(OSError):
            place.parent.rmdir()  # the last one out


@contextlib.contextmanager
def witness(needs: NodeNeeds) -> Iterator[tuple[str, str] | None]:
    """A file in the shared directory that every node must see; None if none can be written."""
    word = secrets.token_hex(8)
    path = Path(needs.shared) / f".exaslurm-doctor-{word}"
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.write_text(word)
    except OSError:
        yield None
        return
    try:
        yield str(path), word
    finally:
        with contextlib.suppress(OSError):
            path.unlink()


def in_job(
    site: Site,
    kind: NodeKind | None,
    where: Where,
    needs: NodeNeeds,
    *,
    environ: Mapping[str, str],
    python: str,
    timeout_s: float,
    talk: Talk,
) -> list[NodeChecks]:
    """Examine nodes of a partition in a job that is submitted for it.

    Raises SubmitRejected and its kin, or WaitTimeout if the job did not start and end in time (it
    is cancelled then).
    """
    import submitit

    slurm = Slurm(environ)

    class Executor(submitit.SlurmExecutor):  # type: ignore[misc, unused-ignore]
        """submitit's own, but for the ``sbatch``, which our client runs."""

        @classmethod
        def affinity(cls) -> int:
            return 2

        def _submit_command(self, command: str) -> Any:
            script = Path(self.folder) / "doctor.sbatch"
            script.write_text(_allowed(site, self._make_submission_file_text(command, "")))
            name = f"exa-doctor-{place.name}"
            job = slurm.submit(script, job_name=name)
            return self.job_class(
                folder=self.folder, job_id=job.id, tasks=list(range(self._num_tasks()))
            )

    with workplace(site, environ) as place:
        executor = Executor(folder=place, python=shlex.quote(python))
        executor.update_parameters(**_parameters(site, kind, where))
        job = executor.submit(task.run, dumps(needs), str(place))
        talk(f"job {job.job_id} looks at {where.count} node(s); waiting for it")
        nodes = _wait(slurm, job.job_id, where.count, timeout_s)
        paths = [job.task(index).paths for index in range(where.count)]
        return _results(paths, nodes)


def in_allocation(
    site: Site,
    job: JobInfo,
    component: ComponentInfo,
    needs: NodeNeeds,
    *,
    environ: Mapping[str, str],
    python: str,
    talk: Talk,
) -> list[NodeChecks]:
    """Examine the nodes of a component of a running job, in a step that shares their resources
    with what runs there."""
    from submitit.core.utils import DelayedSubmission, JobPaths

    nodes = component.nodes
    group = component.offset if len(job.components) > 1 else None
    with workplace(site, environ) as place:
        submission = DelayedSubmission(task.run, dumps(needs), str(place))
        submission.set_timeout(JOB_MINUTES, 0)
        submission.dump(JobPaths(place, job_id=job.id).submitted_pickle)
        talk(f"a step of job {component.id} looks at {len(nodes)} node(s)")
        said = _step(job.id, group, nodes, place, python, environ, site)
        paths = [JobPaths(place, job_id=job.id, task_id=index) for index in range(len(nodes))]
        return _results(paths, nodes, said)


def _step(
    job: str,
    group: int | None,
    nodes: Sequence[str],
    place: Path,
    python: str,
    environ: Mapping[str, str],
    site: Site,
) -> str:
    """Run submitit's task on each node; srun's last words. ``job`` is the leader: srun knows a
    component by its place in it, by no id of its own."""
    argv = [
        *("srun", f"--jobid={job}", *([] if group is None else [f"--het-group={group}"])),
        *(f"--nodes={len(nodes)}", f"--ntasks={len(nodes)}"),
        *("--ntasks-per-node=1", "--cpus-per-task=1", "--overlap", "--cpu-bind=none"),
        *("--mpi=none", "--no-kill", "--kill-on-bad-exit=0", "--wait=0", "--export=ALL"),
        *("--input=none", f"--output={place}/{job}_%t_log.out", *site.slurm.srun_args),
        *(python, "-u", "-m", "submitit.core._submit", str(place)),
    ]
    env = {**environments.outside(environ), "SUBMITIT_EXECUTOR": "slurm"}
    try:
        done = subprocess.run(
            argv, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=STEP_S
        )
    except subprocess.TimeoutExpired:
        return f"the step did not end within {STEP_S:g} s"
    except OSError as error:
        raise SlurmError(f"cannot run srun here: {error.strerror}") from None
    return "; ".join(done.stderr.strip().splitlines()[-3:])


def _allowed(site: Site, script: str) -> str:
    """The script without the options that the site refuses; submitit has some of its own."""
    forbidden = tuple(f"#SBATCH --{name}" for name in site.slurm.forbidden_directives)
    lines = script.splitlines(keepends=True)
    return "".join(line for line in lines if line.strip().partition("=")[0] not in forbidden)


def _parameters(site: Site, kind: NodeKind | None, where: Where) -> dict[str, Any]:
    """The job in submitit's words. One CPU and one GiB of each node: devices are looked at through
    the kernel's files, which show what is not granted too."""
    forbidden = {name.lstrip("-") for name in site.slurm.forbidden_directives}
    extra: dict[str, Any] = {"no-kill": True}
    for directive in site.slurm.extra_directives:
        name, equals, value = directive.lstrip("-").partition("=")
        extra[name] = value if equals else True
    if where.reservation:
        extra["reservation"] = where.reservation
    if site.slurm.export:
        extra["export"] = site.slurm.export
    if kind is not None and kind.require_gpus and site.slurm.gres != "none":
        name = "gres" if site.slurm.gres == "gres" else "gpus-per-node"
        extra[name] = "gpu:1" if name == "gres" else "1"
    memory = {"per_node": "1GB", "all": "0", "none": None}[site.slurm.memory]
    parameters: dict[str, Any] = {
        "job_name": "exa-doctor",
        "partition": where.partition,
        "nodes": where.count,
        "ntasks_per_node": 1,
        "cpus_per_task": 1,
        "time": JOB_MINUTES,
        "mem": memory,
        "account": where.account,
        "qos": where.qos,
        "nodelist": where.nodelist,
        "constraint": kind.constraint if kind is not None else None,
        "wckey": None,
        "stderr_to_stdout": True,
        "srun_args": [
            *(f"--nodes={where.count}", f"--ntasks={where.count}", "--ntasks-per-node=1"),
            *("--cpus-per-task=1", "--cpu-bind=none", "--mpi=none", "--no-kill"),
            *("--kill-on-bad-exit=0", "--wait=0", "--export=ALL", *site.slurm.srun_args),
        ],
    }
    chosen = {
        name: value
        for name, value in parameters.items()
        if name == "wckey" or (value is not None and name.replace("_", "-") not in forbidden)
    }
    chosen["additional_parameters"] = {k: v for k, v in extra.items() if k not in forbidden}
    return chosen


def _wait(slurm: Slurm, ident: str, count: int, timeout_s: float) -> tuple[str, ...]:
    """Until the job has ended; the nodes that it ran on, as far as Slurm has said."""
    deadline = time.monotonic() + timeout_s
    nodes: tuple[str, ...] = ()
    while True:
        job = slurm.jobs([ident])[ident]
        nodes = job.nodes or nodes
        if job.is_finished:
            return nodes
        if time.monotonic() > deadline:
            with contextlib.suppress(ExaslurmError):
                slurm.cancel(ident)
            raise WaitTimeout(
                f"job {ident} on {count} node(s) did not end within {timeout_s:.0f} s "
                f"({job.state}{', ' + job.reason if job.reason else ''}); it was cancelled",
                remedy="ask for fewer nodes, wait longer (--timeout), or name a running --job",
            )
        time.sleep(min(_POLL_S, max(0.1, deadline - time.monotonic())))


def _results(paths: Sequence[Any], nodes: Sequence[str], said: str = "") -> list[NodeChecks]:
    """What each task sent back; of one that sent nothing, what its log ends with."""
    deadline = time.monotonic() + _LATE_S
    while time.monotonic() < deadline and not all(p.result_pickle.exists() for p in paths):
        os.listdir(paths[0].folder)  # makes an NFS client look again
        time.sleep(0.2)
    return [
        _result(path, nodes[index] if index < len(nodes) else f"task {index}", said)
        for index, path in enumerate(paths)
    ]


def _result(path: Any, node: str, said: str) -> NodeChecks:
    import pickle

    try:
        # Written by our own tasks, into a directory that nobody else can write to.
        outcome, value = pickle.loads(path.result_pickle.read_bytes())
    except (OSError, EOFError, pickle.UnpicklingError) as error:
        why = _last_words(path.stdout) or said or f"no result ({error})"
        return _no_answer(node, why)
    if outcome != "success":
        return _no_answer(node, str(value).strip().splitlines()[-1])
    return loads(NodeChecks, value, where=f"the answer of {node}")


def _last_words(log: Path) -> str:
    try:
        lines = log.read_text(errors="replace").strip().splitlines()
    except OSError:
        return ""
    return lines[-1][-_LOG_TAIL:] if lines else ""


def _no_answer(node: str, why: str) -> NodeChecks:
    remedy = (
        "the node does not see the state directory, or cannot run the site's `python` with "
        "exaslurm and submitit in it: try srun on that node"
    )
    check = failed("node.answer", f"the task sent nothing back: {why}", remedy)
    return NodeChecks(host=node, checks=(check,))
