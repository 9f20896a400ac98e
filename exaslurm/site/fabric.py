"""What a site says about its network between nodes."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from exaslurm.core.fabric import XMIT_WAIT_BYTES
from exaslurm.util.fields import TEXT, Count, Environment, Section


class Fabric(Section):
    """The network between nodes: which devices engines may use, and with which variables. What
    kind of network it is, each node sees for itself. See reference/fabric.md."""

    hcas: tuple[Annotated[str, TEXT, Field(pattern=r"^[A-Za-z0-9_.*?\[\]-]{1,32}$")], ...] = Field(
        default=(),
        description="Devices or network interfaces that engines may use, such as mlx5_0 or a "
        "pattern (mlx5_[0-3], hsn*). Default: all that are as fast as the fastest.",
    )
    env: Environment = Field(
        default_factory=dict,
        description="Environment of engines on GPUs, such as FI_CXI_RDZV_PROTO; it replaces what "
        "exaslurm sets by itself.",
    )
    env_multi_node: Environment = Field(
        default_factory=dict,
        description="As `env`, but only for engines that span nodes, such as NCCL_NET: a plug-in "
        "that is asked for and missing ends the engine.",
    )
    xmit_wait_bytes: Count = Field(
        default=XMIT_WAIT_BYTES,
        description="Bytes that a port could have sent in one tick of port_xmit_wait: the Tick "
        "that `perfquery -c LID PORT` shows, plus 1.",
    )
