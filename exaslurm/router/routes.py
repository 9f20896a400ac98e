"""The paths that are passed on to engines."""

from __future__ import annotations

# What vLLM offers to clients. Its paths for operators (/sleep, /pause, ...) are not passed on.
PROXIED = (
    "/v1/chat/completions",
    "/v1/chat/completions/batch",
    "/v1/chat/completions/derender",
    "/v1/chat/completions/render",
    "/v1/completions",
    "/v1/completions/derender",
    "/v1/completions/render",
    "/v1/embeddings",
    "/v1/responses",
    "/v1/responses/render",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/v1/messages/render",
    "/v1/audio/transcriptions",
    "/v1/audio/translations",
    "/v1/rerank",
    "/v2/rerank",
    "/v1/score",
    "/rerank",
    "/score",
    "/classify",
    "/pooling",
    "/tokenize",
    "/detokenize",
    "/generative_scoring",
    "/inference/v1/generate",
    "/invocations",
)
BY_PATH = {path.encode(): path for path in PROXIED}
# These take multipart forms, all others JSON, whatever the type of a body is said to be.
TAKE_FORMS = frozenset(("/v1/audio/transcriptions", "/v1/audio/translations"))
