"""An engine's figures out of its metrics page."""

from __future__ import annotations

from exaslurm.agent.probe import parse_load
from exaslurm.core.cell import EngineLoad

# Of vLLM 0.32 with two engine cores, cut down.
PAGE = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 4.0
vllm:num_requests_waiting{engine="0",model_name="m"} 0.0
vllm:num_requests_waiting{engine="1",model_name="m"} 5.0
vllm:num_requests_waiting_by_reason{engine="1",model_name="m",reason="capacity"} 5.0
vllm:engine_sleep_state{engine="0",model_name="m",sleep_state="awake"} 1.0
vllm:engine_sleep_state{engine="0",model_name="m",sleep_state="weights_offloaded"} 0.0
vllm:kv_cache_usage_perc{engine="0",model_name="m with } and space"} 0.125
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.5
process_open_fds 30.0
"""


def test_engine_cores_are_added_up() -> None:
    assert parse_load(PAGE.splitlines()) == EngineLoad(running=7, waiting=5, kv_use=0.5)


def test_sleep_is_seen() -> None:
    line = 'vllm:engine_sleep_state{engine="0",sleep_state="weights_offloaded"} 1.0'
    assert parse_load([line]).sleeping


def test_nonsense_is_survived() -> None:
    lines = ["vllm:num_requests_running", "vllm:num_requests_running x", "vllm: ", "", "#",
             "vllm:num_requests_running NaN", "vllm:kv_cache_usage_perc +Inf"]  # fmt: skip
    assert parse_load(lines) == EngineLoad(running=0, waiting=0, kv_use=0.0)
