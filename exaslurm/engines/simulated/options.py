"""The options of a simulated engine."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from exaslurm.engines.simulated.timing import TimingModel

Runner = Literal["auto", "generate", "pooling"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """``runner`` auto serves both kinds of requests. ``shutdown_timeout_s`` 0: a SIGTERM ends
    running requests with an error, as with vLLM."""

    host: str
    port: int
    names: tuple[str, ...]
    runner: Runner = "auto"
    max_model_len: int = 4096
    answer_tokens: int = 64
    embedding_size: int = 384
    shutdown_timeout_s: float = 0.0
    load_s: float = 0.0
    timing: TimingModel = field(default_factory=TimingModel)


def parse(argv: Sequence[str]) -> tuple[Options, list[str]]:
    """Options of a command line, and the arguments that mean nothing to a simulated engine."""
    model = TimingModel()
    parser = argparse.ArgumentParser(
        prog="python -m exaslurm.engines.simulated",
        description="An engine without a model: vLLM's HTTP surface with a stated timing model.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--host", default="127.0.0.1")
    add("--port", type=int, default=8000, help="0 takes a free one (default: 8000)")
    add("--served-model-name", nargs="+", default=["simulated"], metavar="NAME")
    add("--runner", choices=("auto", "generate", "pooling"), default="auto")
    add("--max-model-len", type=int, default=4096)
    add("--max-num-seqs", type=int, default=model.max_num_seqs)
    add("--num-gpu-blocks-override", type=int, default=model.kv_blocks, help="KV blocks")
    add("--block-size", type=int, default=model.block_tokens, help="tokens in a KV block")
    add("--shutdown-timeout", type=float, default=0.0, help="seconds to finish after SIGTERM")
    add("--prefill-tokens-per-s", type=float, default=model.prefill_tokens_per_s)
    add("--decode-tokens-per-s", type=float, default=model.decode_tokens_per_s)
    add("--batch-slowdown", type=float, default=model.batch_slowdown, help="per further sequence")
    add("--answer-tokens", type=int, default=64, help="length of an answer that is not limited")
    add("--embedding-size", type=int, default=384)
    add("--load-s", type=float, default=0.0, help="seconds that loading the weights would take")
    given, ignored = parser.parse_known_args(argv)
    options = Options(
        host=given.host,
        port=given.port,
        names=tuple(given.served_model_name),
        runner=given.runner,
        max_model_len=given.max_model_len,
        answer_tokens=given.answer_tokens,
        embedding_size=given.embedding_size,
        shutdown_timeout_s=given.shutdown_timeout,
        load_s=given.load_s,
        timing=TimingModel(
            prefill_tokens_per_s=given.prefill_tokens_per_s,
            decode_tokens_per_s=given.decode_tokens_per_s,
            batch_slowdown=given.batch_slowdown,
            max_num_seqs=given.max_num_seqs,
            kv_blocks=given.num_gpu_blocks_override,
            block_tokens=given.block_size,
        ),
    )
    return options, ignored
