"""Deployments that try out everything a site config can be asked for."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from exaslurm.core.container import Runtime
from exaslurm.core.plan import Layout, Plan
from exaslurm.plan.context import PlanContext
from exaslurm.plan.planner import make_plan
from exaslurm.site.model import Container, NodeKind, Site
from exaslurm.spec.load import load_spec
from exaslurm.util.fields import directive_pair

# Images are only named in a plan. One that the site names itself is taken instead.
_IMAGES: dict[Runtime, str] = {
    "apptainer": "/images/vllm.sif",
    "singularity": "/images/vllm.sif",
    "podman-hpc": "docker.io/vllm/vllm-openai:v0.33.0",
    "pyxis": "/images/vllm.sqsh",
    "container-engine": "/images/vllm.toml",
}
# What a spec can say of itself; every other mandatory option is an extra directive.
_SPEC_KEYS = {"account": "account", "partition": "partition", "qos": "qos"}
# Options that every plan has, or gets from other keys of the site.
_ALWAYS = {"nodes", "ntasks", "ntasks-per-node", "cpus-per-task", "time", "no-kill", "signal"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One way to use a site: these workers, in this layout and container (None: in none)."""

    kind: str
    layout: Layout
    runtime: Runtime | None

    def __str__(self) -> str:
        return f"{self.kind}, layout {self.layout}, container {self.runtime or 'none'}"

    @property
    def file_name(self) -> str:
        """A name for its script."""
        return f"{self.kind}-{self.layout}-{self.runtime or 'none'}.sbatch"


def samples(site: Site) -> Iterator[Sample]:
    """Every kind of worker in both layouts; the site's own kind in every container, too."""
    default = site.workers.kind or next(iter(site.node_kinds))
    for name in worker_kinds(site):
        for layout in ("het", "single"):
            runtimes = (None, *get_args(Runtime)) if name == default else (None,)
            for runtime in runtimes:
                yield Sample(kind=name, layout=layout, runtime=runtime)


def worker_kinds(site: Site) -> list[str]:
    """Kinds that replicas run on: those with GPUs, and the site's own choice."""
    with_gpus = [name for name, kind in site.node_kinds.items() if kind.gpus]
    own = [site.workers.kind] if site.workers.kind else []
    return list(dict.fromkeys([*own, *with_gpus])) or list(site.node_kinds)


def as_sampled(site: Site, sample: Sample) -> Site:
    """The site with the sample's layout and container."""
    slurm = site.slurm.model_copy(update={"hetjobs": sample.layout == "het"})
    container = Container()
    if sample.runtime is not None:
        own = site.container
        container = own.model_copy(update={"runtime": sample.runtime})
        if own.runtime != sample.runtime or own.image is None:
            container = container.model_copy(
                update={"image": _IMAGES[sample.runtime], "executable": None}
            )
    return site.model_copy(update={"slurm": slurm, "container": container})


def sample_plan(site: Site, sample: Sample) -> Plan:
    """The plan of a deployment that fills the nodes of the sample's kind.

    Raises PlanError if the site's own keys rule it out.
    """
    context = PlanContext(
        user="ada",
        home="/home/ada",
        python="/opt/exaslurm/bin/python",
        variables={name: f"/{name.lower()}/ada" for name in site.variables},
    )
    spec = load_spec(Path("/home/ada/sample.yaml"), sample_spec(site, sample.kind))
    return make_plan(spec, as_sampled(site, sample), context)


def sample_spec(site: Site, kind_name: str, *, nodes: int | None = None) -> str:
    """A spec (JSON, which is YAML) that gives all that the site asks for."""
    kind = site.node_kinds[kind_name]
    nodes = nodes or _nodes(site, kind)
    per_node = kind.gpus or 1
    spec: dict[str, object] = {
        "schema": "exaslurm/v1",
        "deployment": "sample",
        "site": site.name,
        "account": f"abc123{kind.account_suffix or ''}",
        "time_limit": "00:30:00",
        "workers": {"kind": kind_name, "nodes": nodes},
        "models": [
            {
                "name": "llama",
                "source": {"path": "/models/llama"},
                "shards": [{"name": "base", "replicas": nodes * per_node}],
            }
        ],
    }
    given = {"partition": kind.partition, "qos": kind.qos, "constraint": kind.constraint}
    for option in _wanted(site):
        if not given.get(option):
            key = _SPEC_KEYS.get(option)
            if key is not None:
                spec.setdefault(key, "sample")
            else:
                spec["slurm"] = {"extra_directives": [f"--{option}=sample"]}
    return json.dumps(spec, indent=1)


def _wanted(site: Site) -> Iterator[str]:
    """Mandatory options that no plan has by itself."""
    extra = {directive_pair(text)[0] for text in site.slurm.extra_directives}
    for option in site.slurm.mandatory_directives:
        name = option.removeprefix("--")
        if name not in _ALWAYS | extra | {"mem", "gres", "gpus-per-node", "export", "exclusive"}:
            yield name


def _nodes(site: Site, kind: NodeKind) -> int:
    """Two, to have a job of several nodes, where there are two."""
    limits = [2, kind.count or 2]
    if kind.partition in site.partitions:
        limits.append(site.partitions[kind.partition].most_nodes() or 2)
    return min(limits)
