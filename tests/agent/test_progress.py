"""When an engine counts as hung, on figures and times that the test makes up."""

from __future__ import annotations

from exaslurm.agent.probe import counters_of
from exaslurm.agent.progress import Progress, Signs
from exaslurm.core.cell import EngineLoad


def signs(
    *counters: float, running: int = 0, held: int | None = None, sleeping: bool = False
) -> Signs:
    load = EngineLoad(running=running, waiting=0, kv_use=0.0, sleeping=sleeping)
    return Signs(load=load, counters=counters, held=held)


def watched(*, on_cpu: bool = False) -> Progress:
    return Progress(100.0, on_cpu=on_cpu, now=0.0)


def test_tokens_that_move_are_progress() -> None:
    progress = watched()
    for now in range(0, 1000, 5):
        progress.look(signs(float(now), running=4), float(now))
        assert not progress.in_doubt(float(now))


def test_an_idle_engine_is_never_hung() -> None:
    progress = watched()
    for now in range(0, 1000, 5):
        progress.look(signs(7.0, running=0, held=0), float(now))
        assert progress.still_s(float(now)) == 0.0


def test_no_token_while_requests_run() -> None:
    progress = watched()
    progress.look(signs(7.0, running=2), 10.0)
    progress.look(signs(7.0, running=2), 105.0)
    assert progress.in_doubt(105.0)
    assert not progress.is_hung(105.0)
    assert progress.is_hung(110.0)
    assert progress.why(110.0) == "2 requests and not a token for 100 s, though /health answers"


def test_a_core_that_hangs_with_its_first_request_never_tells_of_it() -> None:
    progress = watched()
    progress.look(signs(7.0, running=0, held=0), 10.0)
    progress.look(signs(7.0, running=0, held=1), 15.0)
    progress.look(signs(7.0, running=0, held=1), 115.0)
    assert progress.is_hung(115.0)


def test_a_sleeping_engine_holds_its_requests() -> None:
    progress = watched()
    progress.look(signs(7.0, running=0, held=3, sleeping=True), 10.0)
    progress.look(signs(7.0, running=0, held=3, sleeping=True), 500.0)
    assert not progress.in_doubt(500.0)


def test_an_answer_to_the_smallest_request_is_progress() -> None:
    progress = watched()
    progress.look(signs(7.0, held=1), 10.0)
    progress.look(signs(7.0, held=1), 70.0)
    assert progress.in_doubt(70.0)
    progress.moved(75.0)
    progress.look(signs(7.0, held=1), 120.0)
    assert not progress.is_hung(120.0)
    assert progress.is_hung(175.0)


def test_a_cpu_engine_that_computes_has_ten_times_as_long() -> None:
    progress = watched(on_cpu=True)
    progress.look(signs(7.0, running=1), 0.0)
    progress.on_cpu_time(50.0, 30.0)
    progress.on_cpu_time(80.0, 60.0)  # one core
    assert not progress.is_hung(100.0)
    assert not progress.is_hung(900.0)
    assert progress.is_hung(1000.0)


def test_one_that_is_stopped_does_not_compute() -> None:
    progress = watched(on_cpu=True)
    progress.look(signs(7.0, running=1), 0.0)
    progress.on_cpu_time(50.0, 30.0)
    progress.on_cpu_time(50.5, 60.0)
    assert progress.is_hung(100.0)


def test_threads_that_spin_for_a_gpu_say_nothing() -> None:
    progress = watched(on_cpu=False)
    progress.look(signs(7.0, running=1), 0.0)
    progress.on_cpu_time(50.0, 30.0)
    progress.on_cpu_time(80.0, 60.0)
    assert progress.is_hung(100.0)


def test_no_answer_from_metrics_changes_nothing() -> None:
    progress = watched()
    progress.look(signs(7.0, running=1), 0.0)
    progress.look(None, 99.0)
    assert progress.is_hung(100.0)


def test_counters_are_found_on_the_page() -> None:
    page = """\
# HELP vllm:generation_tokens_total Number of generation tokens processed.
vllm:generation_tokens_total{engine="0",model_name="m"} 5.0
vllm:generation_tokens_created{engine="0",model_name="m"} 1.7e9
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:iteration_tokens_total_count{engine="0",model_name="m"} 3
vllm:iteration_tokens_total_bucket{engine="0",le="1.0",model_name="m"} 2
vllm:num_requests_running x
"""
    assert counters_of(page.splitlines()) == (5.0, 0.25, 3.0)
