"""What the site says about its nodes, made ready for one user and one deployment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from exaslurm.core.fabric import FabricPlan
from exaslurm.core.plan import ModelPlan, NodeEnvironment
from exaslurm.plan.container import container_plan
from exaslurm.plan.context import Findings, PlanContext
from exaslurm.site.model import Site
from exaslurm.site.paths import UnknownVariableError, resolve
from exaslurm.spec.model import Spec


def node_environment(
    spec: Spec,
    site: Site,
    models: Sequence[ModelPlan],
    account: str | None,
    context: PlanContext,
    findings: Findings,
) -> NodeEnvironment:
    """Paths without variables, and the environment that everything in the allocation gets."""
    variables = site.path_variables(context.variables, account)

    def path(text: str) -> str:
        return resolve(text, user=context.user, home=context.home)

    def path_with_more(key: str, text: str) -> str:
        try:
            return resolve(text, user=context.user, home=context.home, variables=variables)
        except UnknownVariableError as error:
            needs = f"site {site.name} needs it for {key} ({text})"
            if "$ACCOUNT" in str(error):
                findings.add(spec.problem("account", f"is required: {needs}"))
            else:
                findings.add(
                    spec.problem("site", f"{error} in your environment, and {needs}: log in anew")
                )
            return text

    storage = site.storage
    python = path(site.python) if site.python else context.python
    container = container_plan(site, models, python, context.home, path_with_more, findings)
    env = {name: path_with_more(f"env.{name}", value) for name, value in site.env.items()}
    return NodeEnvironment(
        python=python if container is None else site.container.python,
        tmp=path(storage.ram),
        shared=path_with_more("storage.shared", storage.shared),
        local=path_with_more("storage.local", storage.local) if storage.local else None,
        interface=site.interface,
        host_suffix=site.host_suffix,
        env={**_reach(site, models, findings), **env},
        fabric=FabricPlan(**site.fabric.model_dump()),
        modules=site.modules,
        prologue=(*site.prologue, *spec.slurm.prologue),
        container=container,
    )


def _reach(site: Site, models: Sequence[ModelPlan], findings: Findings) -> Mapping[str, str]:
    """How models come from the hub: through the site's proxy, or not at all.

    Only HTTPS goes through a proxy: nodes talk HTTP among themselves, and must not.
    """
    internet = site.internet
    if internet.access == "proxy" and internet.proxy is not None:
        return {"https_proxy": internet.proxy, "HTTPS_PROXY": internet.proxy}
    if internet.access != "none":
        return {}
    for model in models:
        if model.source.kind == "hf":
            findings.note(
                f"model {model.name}: nodes of site {site.name} do not reach the internet: run "
                f"`hf download {model.source.value}` on a login node first"
            )
    return {"HF_HUB_OFFLINE": "1"}
