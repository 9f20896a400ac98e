"""The version of a model: one short word for all that decides its answers and their speed."""

from __future__ import annotations

import re
from collections.abc import Mapping

from exaslurm.core.codec import content_hash, to_jsonable
from exaslurm.core.plan import Plan

_HASH_DIGITS = 8
_READABLE_CHARACTERS = 16
_NOT_PLAIN = re.compile(r"[^A-Za-z0-9._]+")


def version_of(plan: Plan, model: str, shard: str) -> str:
    """The version of a shard, such as ``v2.1-3f9a0c11``: the revision, where the spec has one, and
    a content hash. KeyError if the plan has no such shard.

    It holds what is loaded (source, revision, checksum, LoRA), what loads it (engine, its options
    and environment, its software) and over how many ranks. How many replicas there are, where they
    run and what clients call them makes no other version.
    """
    found = plan.model(model)
    lora = {item.name: item.lora for item in found.shards}[shard]
    container = plan.node.container
    parts = {
        "source": to_jsonable(found.source),
        "lora": lora,
        "engine": to_jsonable(found.engine),
        "ranks": [found.tensor, found.pipeline, found.executor],
        "software": plan.node.python if container is None else container.image,
    }
    digest = content_hash(parts)[:_HASH_DIGITS]
    readable = _NOT_PLAIN.sub("-", found.source.revision or "").strip("-")[:_READABLE_CHARACTERS]
    return f"{readable}-{digest}" if readable else digest


def versions_of(plan: Plan) -> dict[str, str]:
    """The version behind each served name."""
    return {
        name: version_of(plan, model.name, shard.name)
        for model in plan.models
        for shard in model.shards
        for name in shard.served_names
    }


def differing(old: Plan, new: Plan) -> Mapping[str, tuple[str, str]]:
    """Served names that both plans have, by another version: the old and the new one."""
    before, after = versions_of(old), versions_of(new)
    return {
        name: (version, after[name])
        for name, version in before.items()
        if name in after and after[name] != version
    }
