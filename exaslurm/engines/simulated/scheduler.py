"""The step loop of a simulated engine: who waits, who runs, who gets a token."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import Literal

from exaslurm.engines.simulated.timing import TimingModel

Finish = Literal["stop", "length", "abort", "error"]


class Sequence:
    """One request in the engine. Times are monotonic seconds."""

    def __init__(self, prompt_tokens: int, max_tokens: int, finish: Finish) -> None:
        self.prompt_tokens = prompt_tokens
        self.max_tokens = max_tokens
        self.finish = finish
        self.produced = 0
        self.arrived_s = time.monotonic()
        self.started_s: float | None = None
        self.first_token_s: float | None = None
        self.ended = False
        self._news = asyncio.Event()

    async def next_tokens(self, seen: int) -> int:
        """Wait until more than ``seen`` tokens exist, or it has ended; the number there is."""
        while self.produced <= seen and not self.ended:
            self._news.clear()
            await self._news.wait()
        return self.produced

    def advance(self, now_s: float) -> None:
        """One token more."""
        if self.first_token_s is None:
            self.first_token_s = now_s
        self.produced += 1
        self.ended = self.produced >= self.max_tokens
        self._news.set()

    def end(self, finish: Finish) -> None:
        self.finish = finish
        self.ended = True
        self._news.set()


class Scheduler:
    """Runs sequences by a timing model."""

    def __init__(self, timing: TimingModel) -> None:
        self.timing = timing
        self.running: list[Sequence] = []
        self.waiting: deque[Sequence] = deque()
        self.paused = asyncio.Event()
        self.paused.set()
        # Counted as vLLM does: prompts when their first token is there, tokens as they come.
        self.prompt_tokens = 0
        self.generated_tokens = 0
        self._used_blocks = 0
        self._work = asyncio.Event()

    @property
    def kv_use(self) -> float:
        """Share of the KV blocks in use, 0..1."""
        return self._used_blocks / self.timing.kv_blocks

    def fits(self, tokens: int) -> bool:
        """Whether a sequence of so many tokens could ever run."""
        return self.timing.blocks(tokens) <= self.timing.kv_blocks

    def submit(self, sequence: Sequence) -> None:
        self.waiting.append(sequence)
        self._work.set()

    def abort(self, sequence: Sequence) -> None:
        """Its client is gone: drop it at once."""
        if not sequence.ended:
            sequence.end("abort")
        self._remove(sequence)

    def abort_all(self) -> None:
        """The engine goes down: every sequence ends with an error."""
        for sequence in [*self.running, *self.waiting]:
            sequence.end("error")
            self._remove(sequence)

    async def run(self) -> None:
        """Step for ever; sleeps while there is nothing to do."""
        while True:
            if not self.running and not self.waiting:
                self._work.clear()
                await self._work.wait()
            await self.paused.wait()
            prefill_tokens = self._admit(time.monotonic())
            await asyncio.sleep(self.timing.step_s(len(self.running), prefill_tokens))
            now_s = time.monotonic()
            for sequence in list(self.running):
                if sequence.first_token_s is None:
                    self.prompt_tokens += sequence.prompt_tokens
                self.generated_tokens += 1
                sequence.advance(now_s)
                if sequence.ended:
                    self._remove(sequence)

    def _admit(self, now_s: float) -> int:
        """Let waiting sequences in; the prompt tokens that this step has to work off."""
        prefill_tokens = 0
        while self.waiting and len(self.running) < self.timing.max_num_seqs:
            blocks = self._blocks(self.waiting[0])
            if self._used_blocks + blocks > self.timing.kv_blocks:
                break
            sequence = self.waiting.popleft()
            sequence.started_s = now_s
            self._used_blocks += blocks
            self.running.append(sequence)
            prefill_tokens += sequence.prompt_tokens
        return prefill_tokens

    def _remove(self, sequence: Sequence) -> None:
        if sequence in self.running:
            self.running.remove(sequence)
            self._used_blocks -= self._blocks(sequence)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)

    def _blocks(self, sequence: Sequence) -> int:
        return self.timing.blocks(sequence.prompt_tokens + sequence.max_tokens)
