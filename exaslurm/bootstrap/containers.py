"""How a node's init is started in a container: words for srun, or for the runtime's command.

One container for each node holds init and all that init starts: agent, Ray, controller, engines.
So there is one environment (a replica's processes see each other, init is the parent of them all)
and one start of a container, not one per replica. Nothing in it is isolated on purpose: network,
IPC, devices and limits are the node's own, as shared memory, RDMA and peers on other nodes need.

Pure, but for what it is told of the node. Secrets have no part in it: they are files below the
deployment's directory, which is bound. Variables are passed by name or by inheritance, and no value
of one is ever an argument.
"""

from __future__ import annotations

import glob
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from exaslurm.core.container import SRUN_RUNTIMES, Bind, ContainerPlan
from exaslurm.core.plan import ComponentPlan, Device, Plan
from exaslurm.errors import AllocationError

# Where `package: host` shows up in the container: a folder of its own, so that nothing else of the
# host's Python comes with it and nothing of the image's is hidden.
PACKAGE_ROOT = "/opt/exaslurm-host"

# Devices that a fabric needs, with shell patterns. Runtimes that show the whole of /dev (apptainer,
# by default) do not need them named; it does no harm.
FABRIC_DEVICES = ("/dev/infiniband", "/dev/cxi*")
_GPU_DEVICES: Mapping[Device, tuple[str, ...]] = {
    "cpu": (),
    "cuda": (),
    "rocm": ("/dev/kfd", "/dev/dri"),
    "xpu": ("/dev/dri",),
}

# Variables of the host that mislead a Python or a library in a container, unless the site or the
# spec set them. Apptainer itself withholds PATH and LD_LIBRARY_PATH; enroot lets the image's win.
MISLEADING = re.compile(
    r"PYTHON(?:HOME|PATH|STARTUP|USERBASE)|LD_(?:PRELOAD|LIBRARY_PATH|AUDIT)|VIRTUAL_ENV\w*"
    r"|CONDA_\w+|_CE_\w+|TMPDIR|TMP|TEMP|XDG_RUNTIME_DIR"
    r"|SSL_CERT_(?:FILE|DIR)|REQUESTS_CA_BUNDLE|CURL_CA_BUNDLE"
)

# What podman does not pass by itself: patterns, for podman's own search (podman-run(1), --env).
_PASSED = (
    "CCL_*", "CUDA_*", "CXI_*", "EXASLURM_*", "FI_*", "GLOO_*", "GPU_DEVICE_ORDINAL", "HF_*",
    "HIP_*", "HSA_*", "HTTPS_PROXY", "HTTP_PROXY", "LANG", "LC_*", "MIOPEN_*", "NCCL_*",
    "NO_PROXY", "NVIDIA_*", "OMP_*", "PYTHONNOUSERSITE", "PYTHONSAFEPATH", "RAY_*", "RCCL_*",
    "ROCR_*", "SLURMD_*", "SLURM_*", "TORCH_*", "TZ", "UCX_*", "USER", "VLLM_*", "ZE_*",
    "http_proxy", "https_proxy", "no_proxy",
)  # fmt: skip


def accelerators(plan: Plan, component: ComponentPlan) -> tuple[Device, ...]:
    """Kinds of GPU that the engines of a component use."""
    if component.role == "head":
        return ()
    return tuple(sorted({model.engine.device for model in plan.models} - {"cpu"}))


def mounts(plan: Plan, run_dir: Path, gen_dir: Path, package: Path) -> tuple[Bind, ...]:
    """Everything of the node that a cell needs to see, parents before what lies in them.

    ``package`` is the directory of the host's own exaslurm. Raises AllocationError for a path that
    cannot be bound.
    """
    node = plan.node
    container = _container(plan)
    wanted = [
        _same(str(run_dir)),
        *([] if gen_dir.is_relative_to(run_dir) else [_same(str(gen_dir))]),
        _same(node.shared),
        _same(node.tmp),
        *([_same(node.local, optional=True)] if node.local else []),
        *([_same(container.home)] if container.home else []),
        *container.binds,
    ]
    if container.package == "host":
        wanted.append(Bind(source=str(package), target=f"{PACKAGE_ROOT}/exaslurm", read_only=True))
    # Between SOURCE and TARGET, between two of them, and (enroot) between the fields of a line.
    separators = ",: \t" if container.runtime in SRUN_RUNTIMES else ",:"
    for bind in wanted:
        if set(separators) & set(bind.source + bind.target):
            raise AllocationError(
                f"{bind.source!r} cannot be bound into a container: it has a comma, a colon or a "
                "blank",
                remedy="use a directory without one (EXASLURM_HOME, or `storage` in the site "
                "config)",
            )
    # The last word on a target counts: the site's own binds come after ours.
    return tuple(sorted({bind.target: bind for bind in wanted}.values(), key=lambda b: b.target))


def init_command(plan: Plan, options: Sequence[str]) -> list[str]:
    """The argv of init, as seen in the container."""
    python = plan.node.python
    if _container(plan).package == "image":
        return [python, "-m", "exaslurm.bootstrap.init", *options]
    # As a file: it finds its package by itself and tells its children (-P: Python 3.11).
    return [python, "-P", f"{PACKAGE_ROOT}/exaslurm/bootstrap/init.py", *options]


def child_environ(plan: Plan, environ: Mapping[str, str]) -> dict[str, str]:
    """The environment for a container that inherits it."""
    own = plan.node.env
    kept = {
        name: value
        for name, value in environ.items()
        if name in own or MISLEADING.fullmatch(name) is None
    }
    # Packages in ~/.local are for the host's Python; the other one is set in the batch script too.
    return {**kept, "PYTHONNOUSERSITE": "1", "PYTHONSAFEPATH": "1"}


# --- runtimes that srun starts ------------------------------------------------------------------


def srun_words(
    plan: Plan, component: ComponentPlan, binds: Sequence[Bind], edf: Path
) -> tuple[str, ...]:
    """Options of srun that put its tasks into the container. ``edf``: where ``edf_text`` is.

    pyxis: https://github.com/NVIDIA/pyxis/wiki/Usage, flags of mounts as enroot's fstab knows them
    (``nofail``, ``silent``). Container Engine: ``--environment`` alone.
    """
    container = _container(plan)
    if container.runtime == "container-engine":
        return (f"--environment={edf}", *container.args)
    devices = [path for path in FABRIC_DEVICES if "*" not in path]
    for device in accelerators(plan, component):
        devices += _GPU_DEVICES[device]
    entries = [_pyxis_mount(bind) for bind in binds]
    entries += [_pyxis_mount(_same(path, optional=True)) for path in dict.fromkeys(devices)]
    names = sorted({*plan.node.env, "PYTHONNOUSERSITE", "PYTHONSAFEPATH"})
    return (
        f"--container-image={container.image}",
        f"--container-mounts={','.join(entries)}",
        "--container-workdir=/",
        # What a site's enroot.conf has for defaults is not relied on.
        f"--{'' if container.home else 'no-'}container-mount-home",
        "--no-container-remap-root",
        "--no-container-entrypoint",
        f"--container-env={','.join(names)}",
        *container.args,
    )


def edf_text(plan: Plan, binds: Sequence[Bind]) -> str:
    """An environment definition file (TOML) that lays the cell's needs over the site's or user's.

    https://docs.cscs.ch/software/container-engine/edf/. Its hooks bring GPUs and fabric.
    """

    def text(value: str) -> str:
        # A JSON string is a TOML string; "$" begins a variable in an EDF.
        return json.dumps(value.replace("$", "$$"), ensure_ascii=False)

    entries = [f"{b.source}:{b.target}{':ro' if b.read_only else ''}" for b in binds]
    variables = {**plan.node.env, "PYTHONNOUSERSITE": "1", "PYTHONSAFEPATH": "1"}
    return "\n".join(
        [
            f"base_environment = {text(_container(plan).image)}",
            'workdir = "/"',
            "entrypoint = false",
            "mounts = [",
            *(f"    {text(entry)}," for entry in entries),
            "]",
            "",
            "[env]",
            *(f"{name} = {text(value)}" for name, value in sorted(variables.items())),
            "",
        ]
    )


# --- runtimes that are commands -----------------------------------------------------------------


def runtime_argv(
    plan: Plan,
    component: ComponentPlan,
    binds: Sequence[Bind],
    command: Sequence[str],
    find: Callable[[str], Sequence[str]],
) -> list[str]:
    """The argv of the runtime's command.

    ``find`` gives the paths of this node that fit a shell pattern (``glob.glob``): what is optional
    and not there is left out.
    """
    container = _container(plan)
    present = [bind for bind in binds if not bind.optional or find(glob.escape(bind.source))]
    devices = [path for pattern in FABRIC_DEVICES for path in sorted(find(pattern))]
    kinds = accelerators(plan, component)
    for kind in kinds:
        devices += [path for path in _GPU_DEVICES[kind] if find(path)]
    devices = list(dict.fromkeys(devices))
    if container.runtime == "podman-hpc":
        return _podman(plan, container, kinds, present, devices, command)
    return _apptainer(container, kinds, present, devices, command)


def runtime_environ(plan: Plan, environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of the runtime's command."""
    container = _container(plan)
    if container.runtime == "podman-hpc":
        # Of this, only what `--env` names gets inside.
        return {**environ, "PYTHONNOUSERSITE": "1", "PYTHONSAFEPATH": "1"}
    # Without the prefix, PATH and LD_LIBRARY_PATH stay outside, and an image's own value wins.
    prefix = "SINGULARITYENV_" if container.runtime == "singularity" else "APPTAINERENV_"
    return {
        **child_environ(plan, environ),
        **{prefix + name: value for name, value in plan.node.env.items()},
    }


def _apptainer(
    container: ContainerPlan,
    kinds: Iterable[Device],
    binds: Iterable[Bind],
    devices: Iterable[str],
    command: Sequence[str],
) -> list[str]:
    flags = {"cuda": "--nv", "rocm": "--rocm"}
    return [
        container.executable or container.runtime,
        "exec",
        *(flags[kind] for kind in kinds if kind in flags),
        *([] if container.home else ["--no-home"]),
        # The directory where sbatch was called is nobody's business in there; `enter` has left it.
        "--no-mount=cwd",
        *(f"--bind={b.source}:{b.target}:{'ro' if b.read_only else 'rw'}" for b in binds),
        *(f"--bind={path}" for path in devices),
        *container.args,
        container.image,
        *command,
    ]


def _podman(
    plan: Plan,
    container: ContainerPlan,
    kinds: Sequence[Device],
    binds: Iterable[Bind],
    devices: Iterable[str],
    command: Sequence[str],
) -> list[str]:
    return [
        container.executable or container.runtime,
        "run",
        "--rm",
        # The node's own: addresses, shared memory, host name. Not the process ids: podman refuses
        # that without a cgroup of its own. Init is number 1 there, and its end is everyone's.
        "--network=host",
        "--ipc=host",
        "--uts=host",
        # Slurm's cgroup is the one that counts; in another, its limits and its end would not reach.
        # (crun can do that, runc cannot.)
        "--cgroups=disabled",
        # memlock for RDMA, nofile: as the node has them.
        "--ulimit=host",
        # set_mempolicy(2) is refused otherwise (podman-hpc has it so by default).
        "--security-opt=seccomp=unconfined",
        "--security-opt=label=disable",
        "--log-driver=none",
        "--workdir=/",
        "--entrypoint=",
        # `gpu` is a site module of podman-hpc (modules.d/gpu.yaml).
        *(["--gpu"] if "cuda" in kinds else []),
        *(["--group-add=keep-groups"] if {"rocm", "xpu"} & set(kinds) else []),
        *(f"--device={path}" for path in devices),
        *(f"--volume={b.source}:{b.target}:{'ro' if b.read_only else 'rw'}" for b in binds),
        *(f"--env={name}" for name in sorted({*_PASSED, *plan.node.env})),
        *container.args,
        container.image,
        *command,
    ]


def _pyxis_mount(bind: Bind) -> str:
    flags = [
        *(["ro"] if bind.read_only else []),
        *(["nofail", "silent"] if bind.optional else []),
    ]
    return f"{bind.source}:{bind.target}" + (f":{'+'.join(flags)}" if flags else "")


def _same(path: str, *, optional: bool = False) -> Bind:
    return Bind(source=path, target=path, optional=optional)


def _container(plan: Plan) -> ContainerPlan:
    assert plan.node.container is not None
    return plan.node.container
