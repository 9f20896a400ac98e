"""What a site wants of its nodes, in the terms of the checks."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from exaslurm import __version__
from exaslurm.core.checks import NodeNeeds
from exaslurm.core.container import COMMANDS
from exaslurm.errors import SiteError
from exaslurm.rundir import state_root
from exaslurm.site.model import NodeKind, Site
from exaslurm.site.paths import UnknownVariableError, resolve
from exaslurm.util.user import user_and_home

# Besides Ray's object store: what vLLM's processes and NCCL pass to each other.
SHM_ENGINES_MIB = 256


def needs_of(site: Site, environ: Mapping[str, str], kind: NodeKind | None = None) -> NodeNeeds:
    """What a node of this kind (None: of any) must offer at this site."""
    user, home = user_and_home(environ)
    ray = site.slurm.ray

    variables = site.path_variables(environ, environ.get("SBATCH_ACCOUNT"))

    def path(text: str) -> str:
        try:
            return resolve(text, user=user, home=home, variables=variables)
        except UnknownVariableError as error:
            raise SiteError(
                f"site {site.name}: {text}: {error}",
                remedy="export it; an account is taken from SBATCH_ACCOUNT",
            ) from None

    container = _container(site, path)
    return NodeNeeds(
        version=__version__,
        interface=site.interface,
        host_suffix=site.host_suffix,
        first_port=site.ports.first,
        last_port=site.ports.last,
        port_block=site.ports.block,
        state=str(state_root(environ, site.state_dir(environ))),
        shared=path(site.storage.shared),
        local=path(site.storage.local) if site.storage.local else None,
        tmp=path(site.storage.ram),
        shm_mib=(ray.object_store_mib if ray.enabled else 0) + SHM_ENGINES_MIB,
        # A kind whose engines run on processors may have pretended GPUs, or none that count.
        gpus=kind.known_gpus if kind is not None and kind.device != "cpu" else None,
        gpu_cpus=kind.gpu_cpus if kind is not None and kind.device != "cpu" else (),
        # With a container, they are in the image: a cell looks for them there.
        vllm=container is None and (kind is None or kind.device != "cpu" or bool(kind.known_gpus)),
        ray=container is None and ray.enabled,
        container=container,
        hcas=site.fabric.hcas,
    )


def _container(site: Site, path: Callable[[str], str]) -> tuple[str | None, str] | None:
    ours = site.container
    if ours.runtime == "none" or ours.image is None:
        return None
    own = COMMANDS.get(ours.runtime)
    return path(ours.executable or own) if own else None, path(ours.image)


def kind_of(site: Site, partition: str | None) -> NodeKind | None:
    """The kind of node that a partition has; None if the site does not say, or has several."""
    kinds = [kind for kind in site.node_kinds.values() if kind.partition == partition]
    return kinds[0] if len(kinds) == 1 else None
