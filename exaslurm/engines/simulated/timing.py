"""How long a simulated engine takes. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TimingModel:
    """The stated model: the engine works in steps, each of which gives every running sequence
    one token.

    A step takes ``1 / decode_tokens_per_s`` for one sequence and ``batch_slowdown`` of that more
    for each further one; prompts of sequences that join in it add ``1 / prefill_tokens_per_s``
    a token. At most ``max_num_seqs`` run at once. A sequence holds the KV blocks (of
    ``block_tokens``) of its prompt and its longest answer from start to end, and waits until
    they are free; first come, first served. There is no prefix cache and no preemption.
    """

    prefill_tokens_per_s: float = 8000.0
    decode_tokens_per_s: float = 60.0
    batch_slowdown: float = 0.02
    max_num_seqs: int = 256
    kv_blocks: int = 8192
    block_tokens: int = 16

    def step_s(self, running: int, prefill_tokens: int) -> float:
        """Seconds of one step with ``running`` sequences, newcomers included."""
        decode_s = (1.0 + self.batch_slowdown * max(0, running - 1)) / self.decode_tokens_per_s
        return decode_s + prefill_tokens / self.prefill_tokens_per_s

    def blocks(self, tokens: int) -> int:
        """KV blocks of so many tokens."""
        return -(-tokens // self.block_tokens)
