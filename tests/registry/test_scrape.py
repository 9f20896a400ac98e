"""Figures out of vLLM's metrics page."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exaslurm.core.cell import EngineLoad
from exaslurm.registry.scrape import parse

RECORDED = Path(__file__).parents[1] / "simulated" / "vllm-0.32-metrics.txt"
AWAKE = b'vllm:engine_sleep_state{engine="0",sleep_state="awake"} 1.0\n'
BASE = b'vllm:num_requests_running{engine="0"} 3.0\nvllm:num_requests_waiting{engine="0"} 4.0\n'


def test_a_page_of_the_real_engine() -> None:
    data = os.environ.get("EXASLURM_DATA")
    if not data:
        pytest.skip("EXASLURM_DATA is not set")
    page = (Path(data) / "vllm-0.32" / "metrics-scrape.txt").read_bytes()
    assert parse(page) == EngineLoad(
        running=0,
        waiting=0,
        kv_use=0.0,
        generated_tokens=5328,
        prefix_queried_tokens=3461,
        prefix_hit_tokens=0,
    )


def test_the_names_are_those_of_the_recorded_page() -> None:
    """Without the data, the families that are kept with the simulated engine do."""
    load = parse(RECORDED.read_bytes())
    assert load is not None
    assert load.generated_tokens is not None
    assert load.prefix_queried_tokens is not None


def test_several_engine_cores_are_added_up() -> None:
    page = (
        b"# HELP vllm:num_requests_running Running\n"
        b'vllm:num_requests_running{engine="0",model_name="a}b 9"} 3.0\n'
        b'vllm:num_requests_running{engine="1",model_name="m"} 4.0 1700000000000\n'
        b'vllm:num_requests_waiting{engine="0",model_name="m"} 1e1\n'
        b'vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 90\n'
        b'vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25\n'
        b'vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.75\n'
        b'vllm:generation_tokens_total{engine="0"} 10.0\n'
        b'vllm:generation_tokens_total{engine="1"} 5\n'
        b'vllm:generation_tokens_created{engine="0"} 1.7e9\n'
    )
    assert parse(page) == EngineLoad(running=7, waiting=10, kv_use=0.75, generated_tokens=15)


@pytest.mark.parametrize(
    ("lines", "sleeping"),
    [
        (AWAKE + b'vllm:engine_sleep_state{engine="0",sleep_state="discard_all"} 0.0\n', False),
        (b'vllm:engine_sleep_state{engine="0",sleep_state="weights_offloaded"} 1.0\n', True),
        (AWAKE + b'vllm:engine_sleep_state{engine="1",sleep_state="discard_all"} 1.0\n', True),
        (b"", False),
    ],
)
def test_sleep(lines: bytes, sleeping: bool) -> None:
    load = parse(BASE + lines)
    assert load is not None
    assert load.sleeping is sleeping


@pytest.mark.parametrize(
    "page",
    [
        b"",
        b"<html>",
        b"python_gc_objects_collected_total 1\n",
        b"vllm:num_requests_running 1",
        b"vllm:num_requests_running\nvllm:num_requests_waiting\n",
    ],
)
def test_a_page_without_the_figures(page: bytes) -> None:
    assert parse(page) is None


def test_nonsense_is_left_out() -> None:
    page = (
        b'vllm:num_requests_running{engine="0"} NaN\nvllm:num_requests_running{engine="1"} 2\n'
        b'vllm:num_requests_waiting{engine="0"} -1\nvllm:num_requests_waiting{engine="1"} +Inf\n'
        b'vllm:num_requests_waiting{engine="2"} 1\r\nvllm:kv_cache_usage_perc 7\n'
    )
    assert parse(page) == EngineLoad(running=2, waiting=1, kv_use=1.0)


@given(st.binary(max_size=300), st.binary(max_size=300))
def test_no_page_is_an_error(before: bytes, after: bytes) -> None:
    load = parse(before + b"\n" + BASE + after)
    assert load is None or load.kv_use <= 1


def test_pages_leave_nothing_behind() -> None:
    """A parser's allocations have cost other routers their memory."""
    page = RECORDED.read_bytes()
    parse(page)
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for _ in range(300):
            parse(page)
        after, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 4096
    assert peak - before < 65536
