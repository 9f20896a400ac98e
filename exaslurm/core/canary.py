"""How the requests of a served name are to be divided among versions of its model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Canary:
    """``canary.json`` of a deployment, or the file of ``router --canary``.

    ``weights``: served name -> version -> share; shares need not add up to 1. A version without
    one gets nothing while another of the name has one. ``by`` key: a client's key stays with its
    version as long as the shares stay; random: each request is divided anew.
    """

    schema: Literal["exaslurm/canary/1"] = "exaslurm/canary/1"
    weights: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    by: Literal["key", "random"] = "key"
