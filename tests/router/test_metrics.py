"""What is counted, how it is written out, and how several processes become one."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from exaslurm import __version__
from exaslurm.router import metrics as module
from exaslurm.router.call import Call
from exaslurm.router.exposition import Family, dump, load, merge, render
from exaslurm.router.metrics import Metrics

CHAT = "/v1/chat/completions"
ROUTES = (CHAT, "/v1/completions")

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def call(**changes: object) -> Call:
    made = Call(CHAT, b"req", 100.0)
    made.model, made.status, made.ended_s = "chat", 200, 100.3
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def parsed(page: bytes) -> Samples:
    """Every sample of a page, as Prometheus' own parser reads it."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(page.decode())
        for sample in family.samples
    }


def value(samples: Samples, name: str, **labels: str) -> float:
    return samples[f"exaslurm_router_{name}", frozenset(labels.items())]


def total(samples: Samples, name: str, **labels: str) -> float:
    """The sum over all series that have these labels."""
    return sum(
        number
        for (found, pairs), number in samples.items()
        if found == f"exaslurm_router_{name}" and labels.items() <= dict(pairs).items()
    )


def rendered(calls: Iterable[Call]) -> Samples:
    metrics = Metrics(ROUTES)
    for one in calls:
        metrics.begun += 1
        metrics.done(one)
    return parsed(metrics.render())


class TestCounts:
    def test_of_one_request(self) -> None:
        samples = rendered(
            [
                call(
                    version="7",
                    first_byte_s=100.02,
                    ended_s=103.0,
                    prompt_tokens=12,
                    completion_tokens=34,
                    bytes_in=1000,
                    bytes_out=2000,
                )
            ]
        )
        labels = {"route": CHAT, "model": "chat", "version": "7"}
        assert value(samples, "requests_total", status="200", **labels) == 1
        assert value(samples, "request_seconds_count", **labels) == 1
        assert value(samples, "request_seconds_sum", **labels) == 3.0
        assert value(samples, "request_seconds_bucket", le="2.5", **labels) == 0
        assert value(samples, "request_seconds_bucket", le="5.0", **labels) == 1
        assert value(samples, "request_seconds_bucket", le="+Inf", **labels) == 1
        assert value(samples, "first_byte_seconds_bucket", le="0.01", **labels) == 0
        assert value(samples, "first_byte_seconds_bucket", le="0.025", **labels) == 1
        assert value(samples, "prompt_tokens_total", **labels) == 12
        assert value(samples, "completion_tokens_total", **labels) == 34
        assert value(samples, "request_bytes_total", **labels) == 1000
        assert value(samples, "answer_bytes_total", **labels) == 2000
        assert value(samples, "broken_streams_total", **labels) == 0
        assert value(samples, "in_flight") == 0

    def test_of_many(self) -> None:
        calls = [call() for _ in range(5)]
        calls += [call(status=429, cause="key_requests") for _ in range(3)]
        calls += [call(status=429, cause="queue_full"), call(status=401, cause="key", model="-")]
        calls += [call(broken=True, cause="engine_lost"), call(route="/v1/completions")]
        calls += [call(status=0)]
        samples = rendered(calls)
        assert total(samples, "requests_total") == len(calls) == 13
        assert total(samples, "request_seconds_count") == 13
        assert value(samples, "requests_total", route=CHAT, model="chat", status="200") == 6
        assert value(samples, "requests_total", route=CHAT, model="chat", status="429") == 4
        assert total(samples, "requests_total", route="/v1/completions") == 1
        assert total(samples, "requests_total", status="499") == 1
        assert total(samples, "requests_total", model="-") == 1
        assert total(samples, "first_byte_seconds_count") == 0
        assert value(samples, "unserved_total", status="429", cause="key_requests") == 3
        assert value(samples, "unserved_total", status="429", cause="queue_full") == 1
        assert value(samples, "unserved_total", status="401", cause="key") == 1
        assert value(samples, "unserved_total", status="200", cause="engine_lost") == 1
        assert total(samples, "unserved_total") == 6
        assert total(samples, "broken_streams_total") == 1

    def test_of_a_bucket_s_bound(self) -> None:
        """``le`` is what it says."""
        one = call(started_s=0.0, ended_s=0.25)
        samples = rendered([one])
        labels = {"route": CHAT, "model": "chat"}
        assert value(samples, "request_seconds_bucket", le="0.1", **labels) == 0
        assert value(samples, "request_seconds_bucket", le="0.25", **labels) == 1

    def test_of_versions_apart(self) -> None:
        samples = rendered([call(version="1"), call(version="2"), call(version="2"), call()])
        assert total(samples, "requests_total", version="1") == 1
        assert total(samples, "requests_total", version="2") == 2
        assert value(samples, "requests_total", route=CHAT, model="chat", status="200") == 1

    def test_of_what_is_under_way(self) -> None:
        metrics = Metrics(ROUTES)
        metrics.begun = 3
        metrics.done(call())
        assert metrics.in_flight == 2
        assert value(parsed(metrics.render()), "in_flight") == 2

    def test_of_retries_and_ejections(self) -> None:
        metrics = Metrics(ROUTES)
        for reason in ("lost", "connect", "lost"):
            metrics.retried(reason)
        metrics.ejected()
        samples = parsed(metrics.render())
        assert value(samples, "retries_total", reason="lost") == 2
        assert value(samples, "retries_total", reason="connect") == 1
        assert value(samples, "ejections_total") == 1
        assert value(samples, "build_info", exaslurm=__version__) == 1

    def test_of_others(self) -> None:
        metrics = Metrics(ROUTES)
        level = [1.0]
        metrics.watch(lambda: [Family("level", "gauge", "a level", samples=[((), (level[0],))])])
        assert parsed(metrics.render())["level", frozenset()] == 1
        level[0] = 2.5
        assert parsed(metrics.render())["level", frozenset()] == 2.5


class TestBounds:
    def test_routes_and_statuses(self) -> None:
        samples = rendered([call(route="/made/up"), call(route="/other"), call(status=7777)])
        assert total(samples, "requests_total", route="other") == 2
        assert total(samples, "requests_total", status="other") == 1

    def test_series(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "MAX_SERIES", 10)
        samples = rendered(call(model=f"m{number}") for number in (*range(50), 3))
        assert total(samples, "requests_total") == 51
        assert total(samples, "requests_total", model="m3") == 2
        assert total(samples, "requests_total", model="other") == 40
        assert sum(name == "exaslurm_router_requests_total" for name, _ in samples) == 11

    def test_how_long_requests_are_here_never_falls(self) -> None:
        """A request is nobody's while its body comes, and then some model's."""
        metrics = Metrics(ROUTES)
        metrics.begun += 1
        metrics.done(call(model="-", status=401, ended_s=3700.0))
        arriving = call(model="-", started_s=4000.0)

        def seconds(now_s: float) -> dict[tuple[str, ...], float]:
            (family,) = metrics.busy([arriving], now_s)
            return {labels: numbers[0] for labels, numbers in family.samples}

        assert seconds(4010.0) == {("-",): 3600.0}
        arriving.model = "chat"
        assert seconds(4011.0) == {("-",): 3600.0, ("chat",): 11.0}

    def test_versions_that_come_and_go(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "MAX_SERIES", 10)
        metrics = Metrics(ROUTES)
        metrics.watch(lambda: metrics.busy((), 0.0))
        for number in range(50):
            version = f"v{number}"
            metrics.retain({("chat", version)})
            metrics.begun += 1
            metrics.done(call(model="chat", version=version, broken=True))
            metrics.attempt_failed(call(model="chat", version=version))
            samples = parsed(metrics.render())
            assert total(samples, "requests_total", version=version) == 1
            assert value(samples, "failed_attempts_total", model="chat", version=version) == 1
            for name in ("requests_total", "failed_attempts_total", "broken_streams_total"):
                assert total(samples, name, model="chat") == number + 1
            assert value(samples, "busy_seconds_total", model="chat") == pytest.approx(
                total(samples, "request_seconds_sum")
            )
            assert total(samples, "request_seconds_count") == number + 1
            assert metrics.in_flight == 0
        assert sum(name == "exaslurm_router_requests_total" for name, _ in samples) <= 7
        metrics.retain({("other-model", "v1")})
        assert total(parsed(metrics.render()), "requests_total") == 50

    def test_words(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "MAX_WORDS", 5)
        metrics = Metrics(ROUTES)
        for number in range(20):
            metrics.retried(f"r{number}")
            metrics.done(call(status=503, cause=f"c{number}"))
        samples = parsed(metrics.render())
        assert value(samples, "retries_total", reason="other") == 15
        assert value(samples, "unserved_total", status="503", cause="other") == 15


class TestForm:
    LABELS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)

    @given(values=st.lists(LABELS, min_size=1, unique=True), number=st.floats(0, 1e18))
    def test_every_label_comes_back(self, values: list[str], number: float) -> None:
        family = Family(
            "x_total", "counter", 'he"l\\p\n', ("a",), [((v,), (number,)) for v in values]
        )
        samples = parsed(render([family]))
        assert samples == {("x_total", frozenset([("a", v)] if v else [])): number for v in values}

    def test_text_that_is_no_unicode(self) -> None:
        family = Family("x", "gauge", "", ("a",), [(("\ud800",), (1,))])
        assert parsed(render([family])) == {("x", frozenset([("a", "?")])): 1}

    def test_nothing_was_counted(self) -> None:
        names = {name for name, _ in parsed(Metrics(ROUTES).render())}
        assert names == {
            f"exaslurm_router_{name}" for name in ("ejections_total", "in_flight", "build_info")
        }

    @pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
    def test_prometheus_has_nothing_to_say(self) -> None:
        metrics = Metrics(ROUTES)
        metrics.done(call(version="7", first_byte_s=100.1, cause="x"))
        metrics.retried("lost")
        done = subprocess.run(
            ["promtool", "check", "metrics"],
            input=metrics.render(),
            capture_output=True,
            timeout=30,
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


class TestSeveralProcesses:
    def test_add_up(self) -> None:
        workers = [Metrics(ROUTES) for _ in range(3)]
        for number, metrics in enumerate(workers):
            metrics.begun = 10
            for _ in range(number + 1):
                metrics.done(call(version=str(number % 2), prompt_tokens=5))
            metrics.retried("lost")
        merged = parsed(render(merge(load(metrics.snapshot()) for metrics in workers)))
        assert total(merged, "requests_total") == 6
        assert total(merged, "requests_total", version="0") == 4
        assert total(merged, "prompt_tokens_total") == 30
        assert total(merged, "request_seconds_count") == 6
        assert total(merged, "request_seconds_sum") == pytest.approx(6 * 0.3)
        assert value(merged, "retries_total", reason="lost") == 3
        assert value(merged, "in_flight") == 24
        assert value(merged, "build_info", exaslurm=__version__) == 1

    def test_one_is_the_same_as_itself(self) -> None:
        metrics = Metrics(ROUTES)
        for number in range(20):
            metrics.done(call(status=200 + number % 3, first_byte_s=100.1, ended_s=101 + number))
        assert render(merge([load(metrics.snapshot())])) == metrics.render()

    def test_counts_of_one_that_ended_stay_and_its_gauges_go(self) -> None:
        ended, live = Metrics(ROUTES), Metrics(ROUTES)
        for metrics in (ended, live):
            metrics.begun = 5
            metrics.done(call())
        merged = parsed(render(merge([live.families()], [ended.families()])))
        assert total(merged, "requests_total") == 2
        assert total(merged, "request_seconds_count") == 2
        assert value(merged, "in_flight") == 4

    def test_the_highest_counts_where_all_see_the_same(self) -> None:
        def seen(ejected: int) -> list[Family]:
            return [Family("replicas", "gauge", "", ("s",), [(("x",), (ejected,))], rule="max")]

        (family,) = merge([seen(1), seen(3), seen(2)])
        assert family.samples == [(("x",), (3,))]

    def test_of_another_version_is_left_out(self) -> None:
        new = [Family("x_total", "counter", "", ("a",), [(("1",), (1,))])]
        old = [Family("x_total", "counter", "", ("a", "b"), [(("1", "2"), (1,))])]
        (family,) = merge([new, old])
        assert family.samples == [(("1",), (1,))]

    @pytest.mark.parametrize(
        "raw",
        [
            b"",
            b"{",
            b"[]",
            b"null",
            b'{"schema": "exaslurm/metrics/9", "families": []}',
            b'{"schema": "exaslurm/metrics/1"}',
            b'{"schema": "exaslurm/metrics/1", "families": [1]}',
            b'{"schema": "exaslurm/metrics/1", "families": [{"name": "x"}]}',
            dump([Family("x", "gauge", "")]).replace(b"gauge", b"other"),
            dump([Family("x", "gauge", "")]).replace(b'"samples":[]', b'"samples":3'),
        ],
    )
    def test_what_is_no_snapshot(self, raw: bytes) -> None:
        with pytest.raises(ValueError, match=r"."):
            load(raw)
