"""The container of a site, made ready for one user and one deployment."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from exaslurm.core.container import COMMANDS, SRUN_RUNTIMES, Bind, ContainerPlan
from exaslurm.core.plan import ModelPlan
from exaslurm.plan.context import Findings, PlanContext
from exaslurm.site.model import Site
from exaslurm.site.paths import UnknownVariableError, resolve

# Apptainer, pyxis and podman all write binds as SOURCE:TARGET:FLAGS, most of them with commas
# between several.
UNBINDABLE = frozenset(",:")


def container_plan(
    site: Site, models: Iterable[ModelPlan], host_python: str, context: PlanContext,
    findings: Findings,
) -> ContainerPlan | None:  # fmt: skip
    """What runs on the nodes; None where nothing runs in a container."""
    ours = site.container
    if ours.image is None:
        if ours.runtime != "none":
            findings.note(
                f"site {site.name} has {ours.runtime}, but names no image (container.image): "
                "everything runs outside of containers"
            )
        return None
    if ours.runtime == "none":
        findings.add(site.problem("container.image", "needs container.runtime"))
        return None
    if site.scheduler == "local":
        findings.add(site.problem("container.image", "containers need Slurm (scheduler: slurm)"))
        return None

    def path(key: str, text: str) -> str:
        try:
            return resolve(text, user=context.user, home=context.home)
        except UnknownVariableError as error:
            findings.add(site.problem(key, f"{error} (got {text!r})"))
            return text

    image = path("container.image", ours.image)
    if ours.runtime in ("apptainer", "singularity") and not image.startswith("/"):
        findings.add(
            site.problem(
                "container.image",
                f"must be the absolute path of a file or directory (got {ours.image!r}): from "
                f"anything else each node makes its own; run `{ours.runtime} build IMAGE.sif "
                "SOURCE` once",
            )
        )
    if ours.runtime == "pyxis" and not image.startswith("/"):
        findings.note(
            f"container.image: {image} is not a file: each node fetches and unpacks it. "
            "`enroot import` makes a file of it once"
        )
    binds = []
    for index, text in enumerate(ours.binds):
        key = f"container.binds[{index}]"
        source, target, flag = (*text.split(":"), "", "")[:3]
        source = path(key, source)
        binds.append(
            Bind(source=source, target=path(key, target) or source, read_only=flag == "ro")
        )
    for name, where in _model_paths(models):
        if UNBINDABLE & set(where):
            findings.add(
                site.problem(
                    "container.image",
                    f"the path of model {name!r}, {where!r}, cannot be bound into a container: it "
                    "has a comma or a colon",
                )
            )
        binds.append(Bind(source=where, target=where, read_only=True))
    return ContainerPlan(
        runtime=ours.runtime,
        image=image,
        executable=(
            None
            if ours.runtime in SRUN_RUNTIMES
            else path("container.executable", ours.executable or COMMANDS[ours.runtime])
        ),
        host_python=host_python,
        package=ours.package,
        home=context.home if ours.home else None,
        binds=tuple(dict.fromkeys(binds)),
        args=ours.args,
    )


def _model_paths(models: Iterable[ModelPlan]) -> Iterator[tuple[str, str]]:
    """Model and path of what is loaded from where it is."""
    for model in models:
        if model.source.kind == "path":
            yield model.name, model.source.value
        for shard in model.shards:
            if shard.lora is not None and shard.lora.startswith("/"):
                yield model.name, shard.lora
