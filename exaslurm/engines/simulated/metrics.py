"""Metrics under vLLM's names (0.32), as far as the simulation has something to say."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from exaslurm.engines.simulated.scheduler import Scheduler, Sequence
from exaslurm.engines.simulated.timing import TimingModel

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_TTFT_S = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
)  # fmt: skip
_ITL_S = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0,
    40.0, 80.0,
)  # fmt: skip
_REQUEST_S = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0,
    480.0, 960.0, 1920.0, 7680.0,
)  # fmt: skip
_TOKENS = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0)
_LABELS = ("model_name", "engine")


class EngineMetrics:
    """Counters of one engine; gauges are read off its scheduler at each scrape."""

    def __init__(self, model: str, timing: TimingModel) -> None:
        self._registry = CollectorRegistry()
        self._values = (model, "0")
        self._seen = (0, 0)

        self._running = self._gauge("num_requests_running", "Number of requests running.")
        self._waiting = self._gauge("num_requests_waiting", "Number of requests waiting.")
        self._by_reason = Gauge(
            "vllm:num_requests_waiting_by_reason",
            "Number of waiting requests by reason.",
            (*_LABELS, "reason"),
            registry=self._registry,
        )
        self._kv_use = self._gauge("kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent.")
        self._sleep = Gauge(
            "vllm:engine_sleep_state",
            "Engine sleep state.",
            (*_LABELS, "sleep_state"),
            registry=self._registry,
        )
        self._queries = self._counter("prefix_cache_queries", "Prefix cache queries in tokens.")
        self._counter("prefix_cache_hits", "Prefix cache hits in tokens (always 0 here).")
        self._counter("num_preemptions", "Cumulative number of preemptions (always 0 here).")
        self._prompt = self._counter("prompt_tokens", "Number of prefill tokens processed.")
        self._counter("prompt_tokens_cached", "Number of cached prompt tokens (always 0 here).")
        self._generated = self._counter("generation_tokens", "Generation tokens processed.")
        self._success = Counter(
            "vllm:request_success",
            "Count of successfully processed requests.",
            (*_LABELS, "finished_reason"),
            registry=self._registry,
        )
        for reason in ("stop", "length", "abort", "error", "repetition"):
            self._success.labels(*self._values, reason)
        self._prompt_sizes = self._histogram("request_prompt_tokens", "Prompt tokens.", _TOKENS)
        self._answer_sizes = self._histogram("request_generation_tokens", "Tokens made.", _TOKENS)
        self._ttft = self._histogram("time_to_first_token_seconds", "TTFT in seconds.", _TTFT_S)
        self._itl = self._histogram("inter_token_latency_seconds", "ITL in seconds.", _ITL_S)
        self._e2e = self._histogram("e2e_request_latency_seconds", "E2E in seconds.", _REQUEST_S)
        self._queue = self._histogram("request_queue_time_seconds", "WAITING phase.", _REQUEST_S)
        self._prefill = self._histogram("request_prefill_time_seconds", "PREFILL.", _REQUEST_S)
        self._decode = self._histogram("request_decode_time_seconds", "DECODE.", _REQUEST_S)
        self._inference = self._histogram("request_inference_time_seconds", "RUN.", _REQUEST_S)
        Gauge(
            "vllm:cache_config_info",
            "Information of the engine's cache config.",
            ("engine", "block_size", "num_gpu_blocks", "kv_cache_size_tokens"),
            registry=self._registry,
        ).labels(
            "0", timing.block_tokens, timing.kv_blocks, timing.kv_blocks * timing.block_tokens
        ).set(1)
        Gauge(
            "exaslurm_simulated", "1: this engine makes its answers up.", registry=self._registry
        ).set(1)

    def finished(self, sequence: Sequence, now_s: float) -> None:
        """A request is over; aborted ones are not counted, as in vLLM."""
        if sequence.finish in ("abort", "error"):
            return
        labels = self._values
        self._success.labels(*labels, sequence.finish).inc()
        self._queries.inc(sequence.prompt_tokens)
        self._prompt_sizes.observe(sequence.prompt_tokens)
        self._answer_sizes.observe(sequence.produced)
        started_s = sequence.started_s or now_s
        first_s = sequence.first_token_s or now_s
        self._ttft.observe(first_s - sequence.arrived_s)
        self._e2e.observe(now_s - sequence.arrived_s)
        self._queue.observe(started_s - sequence.arrived_s)
        self._prefill.observe(first_s - started_s)
        self._decode.observe(now_s - first_s)
        self._inference.observe(now_s - started_s)
        if sequence.produced > 1:
            self._itl.observe((now_s - first_s) / (sequence.produced - 1))

    def embedded(self, tokens: int) -> None:
        """One embeddings request was answered."""
        self._prompt.inc(tokens)
        self._prompt_sizes.observe(tokens)
        self._success.labels(*self._values, "stop").inc()

    def render(self, scheduler: Scheduler, *, sleeping: bool) -> bytes:
        """The page of ``/metrics``."""
        labels = self._values
        waiting = len(scheduler.waiting)
        prompt, generated = self._seen
        self._seen = scheduler.prompt_tokens, scheduler.generated_tokens
        self._prompt.inc(self._seen[0] - prompt)
        self._generated.inc(self._seen[1] - generated)
        self._running.set(len(scheduler.running))
        self._waiting.set(waiting)
        self._by_reason.labels(*labels, "capacity").set(waiting)
        self._by_reason.labels(*labels, "deferred").set(0)
        self._kv_use.set(scheduler.kv_use)
        self._sleep.labels(*labels, "awake").set(0 if sleeping else 1)
        self._sleep.labels(*labels, "weights_offloaded").set(1 if sleeping else 0)
        self._sleep.labels(*labels, "discard_all").set(0)
        return generate_latest(self._registry)

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(f"vllm:{name}", text, _LABELS, registry=self._registry).labels(*self._values)

    def _counter(self, name: str, text: str) -> Counter:
        counter = Counter(f"vllm:{name}", text, _LABELS, registry=self._registry)
        return counter.labels(*self._values)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        histogram = Histogram(
            f"vllm:{name}", text, _LABELS, buckets=buckets, registry=self._registry
        )
        return histogram.labels(*self._values)
