"""The smallest real request to an engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from exaslurm.core.plan import ModelPlan

_EMBEDS = {"embed", "embedding", "pooling"}
# Statuses that say that this kind of request is not for the model: another kind may be.
NOT_FOR_THIS_MODEL = frozenset({400, 404, 405, 422, 501})


def requests_for(model: ModelPlan, name: str) -> list[tuple[str, Mapping[str, Any]]]:
    """Path and body of the requests to try, in order: a model without a chat template refuses
    chat, and an embedding model refuses both kinds of generation."""
    chat = (
        "/v1/chat/completions",
        {"model": name, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1},
    )
    completion = ("/v1/completions", {"model": name, "prompt": "Hi", "max_tokens": 1})
    embedding = ("/v1/embeddings", {"model": name, "input": "Hi"})
    args = model.engine.args
    hints = {str(args.get(key, "")) for key in ("runner", "task", "convert")}
    if hints & _EMBEDS:
        return [embedding]
    return [chat, completion, embedding]
