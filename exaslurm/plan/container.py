"""The container of a site, made ready for one user and one deployment."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from exaslurm.core.container import COMMANDS, SRUN_RUNTIMES, Bind, ContainerPlan
from exaslurm.core.plan import ModelPlan
from exaslurm.plan.context import Findings
from exaslurm.site.model import Site

# Apptainer, pyxis and podman all write binds as SOURCE:TARGET:FLAGS, most of them with commas
# between several.
UNBINDABLE = frozenset(",:")


def container_plan(
    site: Site,
    models: Iterable[ModelPlan],
    host_python: str,
    home: str,
    path: Callable[[str, str], str],
    findings: Findings,
) -> ContainerPlan | None:
    """What runs on the nodes; None where nothing runs in a container.

    ``path`` resolves the variables of a path, given its key and text.
    """
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
        words = text.split(":")
        flag = words.pop() if words[-1] in ("ro", "rw") else "rw"
        paths = [path(key, word) for word in words]
        binds.append(Bind(source=paths[0], target=paths[-1], read_only=flag == "ro"))
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
        home=home if ours.home else None,
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
