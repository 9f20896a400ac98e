"""A list of engines against engines that come, go, sleep, hang and lie."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import os
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from exaslurm.core.cell import EngineLoad
from exaslurm.errors import UserError
from exaslurm.registry import ask, changes, engines_file, probe, watched
from exaslurm.registry.engines_file import Engine, EnginesFile, load, of_urls
from exaslurm.registry.probe import PolledSource
from exaslurm.registry.watched import Watched
from tests.registry.engine import FakeEngine, started

NOWHERE = "http://127.0.0.1:9"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "EVERY_S", 0.1)
    monkeypatch.setattr(probe, "_TOGETHER_S", 0.02)
    monkeypatch.setattr(probe, "TROUBLED_EVERY_S", 0.05)
    monkeypatch.setattr(probe, "MISCONFIGURED_EVERY_S", 0.2)
    monkeypatch.setattr(changes, "LOOK_EVERY_S", 0.05)
    monkeypatch.setattr(watched, "_TIMEOUT_S", 0.2)


@contextlib.asynccontextmanager
async def polling(engines: EnginesFile, **settings: Any) -> AsyncIterator[PolledSource]:
    source = PolledSource(engines, **settings)
    task = asyncio.create_task(source.run())
    try:
        yield source
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        assert not source._tasks


async def until(what: Callable[[], bool], timeout_s: float = 15) -> None:
    deadline_s = asyncio.get_running_loop().time() + timeout_s
    while not what():
        assert asyncio.get_running_loop().time() < deadline_s
        await asyncio.sleep(0.005)


def _taking(source: PolledSource) -> list[bool]:
    return [replica.takes_requests for replica in source.replicas]


def _states(source: PolledSource) -> list[str]:
    return [replica.state for replica in source.replicas]


def _list(*engines: FakeEngine, **fields: Any) -> EnginesFile:
    items = (
        Engine(url=engine.url, id=f"e{i}", node="n", key=engine.key, **fields)
        for i, engine in enumerate(engines)
    )
    return EnginesFile(path=None, engines=tuple(items))


async def test_an_engine_tells_what_it_serves() -> None:
    async with started(key="inner") as engine, polling(_list(engine)) as source:
        assert _states(source) == ["unchecked"]
        await until(lambda: _taking(source) == [True])
        (replica,) = source.replicas
        assert (replica.served_names, replica.model) == (("chat",), "/m/chat")
        assert (replica.max_model_len, replica.key, replica.url) == (4096, "inner", engine.url)
        assert "inner" not in repr(replica)
        assert "inner" not in str(source.describe())


async def test_over_a_unix_socket(tmp_path: Path) -> None:
    async with started(unix=tmp_path / "s") as engine, polling(_list(engine)) as source:
        await until(lambda: _taking(source) == [True])


async def test_names_of_the_list_win() -> None:
    async with started() as engine, polling(_list(engine, served_names=("mine",))) as source:
        await until(lambda: _taking(source) == [True])
        assert source.replicas[0].served_names == ("mine",)
        assert source.replicas[0].engine_model == "chat"


async def test_names_that_an_engine_does_not_know(caplog: pytest.LogCaptureFixture) -> None:
    names = ("chat", "chta")
    async with started() as engine, polling(_list(engine, served_names=names)) as source:
        await until(lambda: _taking(source) == [True])
        assert source.replicas[0].engine_model == ""
    assert "engine e0 does not serve chta, but chat" in caplog.text


@pytest.mark.parametrize("name", ["bad\ud800", "two\nlines", "\x7f", "a\x9b"])
async def test_a_name_that_no_page_could_show_is_none(name: str) -> None:
    async with started() as engine:
        engine.names = [name]
        async with polling(_list(engine)) as source:
            await until(lambda: _states(source) == ["unusable"])
            assert "names no model" in (source.replicas[0].cause or "")
            engine.names = [name, "chat é 模型"]
            await until(lambda: _taking(source) == [True])
            assert source.replicas[0].served_names == ("chat é 模型",)


async def test_a_root_that_no_page_could_show_is_none() -> None:
    async with started() as engine:
        engine.root = "/m/\udc80"
        async with polling(_list(engine)) as source:
            await until(lambda: _taking(source) == [True])
            assert source.replicas[0].model == "chat"


async def test_new_names_are_noticed() -> None:
    async with started() as engine, polling(_list(engine)) as source:
        await until(lambda: _taking(source) == [True])
        engine.names = ["chat", "adapter"]
        await until(lambda: source.replicas[0].served_names == ("chat", "adapter"))


async def test_one_that_is_down_does_not_delay_the_others_and_is_added_when_it_comes() -> None:
    late = FakeEngine()
    await late.start()
    await late.stop()
    async with started() as engine, polling(of_urls([late.url, engine.url])) as source:
        await until(lambda: _taking(source) == [False, True])
        await until(lambda: _states(source)[0] == "down")
        assert "refused" in (source.replicas[0].cause or "")
        await late.start()
        try:
            await until(lambda: _taking(source) == [True, True])
        finally:
            await late.stop()
        await until(lambda: _taking(source) == [False, True])


async def test_figures_and_key_reach_the_router() -> None:
    """Without the key neither health nor figures would be known."""
    seen: dict[str, EngineLoad] = {}
    calls = 0

    def take(loads: Any) -> None:
        nonlocal calls
        calls += 1
        seen.update(loads)

    async with started(key="inner") as engine, polling(_list(engine)) as source:
        source.subscribe_loads(take)
        await until(lambda: seen == {"e0": EngineLoad(running=1, waiting=2, kv_use=0.5)})
        engine.running = 7
        await until(lambda: seen["e0"].running == 7)
        calls = 0
        await until(lambda: calls > 0)  # the same again, so that its age is known


async def test_a_wrong_key_is_told() -> None:
    async with started(key="inner") as engine:
        wrong = EnginesFile(path=None, engines=(Engine(url=engine.url, id="e", node="n"),))
        async with polling(wrong) as source:
            await until(lambda: _states(source) == ["unusable"])
            assert "does not accept requests without a key (401)" in (
                source.replicas[0].cause or ""
            )
            engine.key = None
            await until(lambda: _taking(source) == [True])


@pytest.mark.parametrize("how", ["asleep", "paused"])
async def test_sleeping_and_paused_engines_get_no_requests(how: str) -> None:
    """Their /health stays 200, and requests hang."""
    async with started() as engine, polling(_list(engine)) as source:
        engine.paused = False
        await until(lambda: _taking(source) == [True])
        setattr(engine, how, True)
        await until(lambda: _taking(source) == [False])
        (replica,) = source.replicas
        assert (replica.ready, replica.sleeping) == (True, True)
        setattr(engine, how, False)
        await until(lambda: _taking(source) == [True])


async def test_is_paused_is_not_asked_where_it_does_not_exist() -> None:
    async with started() as engine, polling(_list(engine)) as source:
        await until(lambda: engine.asked["/metrics"] > 3)
        assert engine.asked["/is_paused"] == 1
        assert _taking(source) == [True]


async def test_a_dead_engine_behind_a_living_server() -> None:
    async with started() as engine, polling(_list(engine)) as source:
        await until(lambda: _taking(source) == [True])
        engine.mode = "dead"
        await until(lambda: _taking(source) == [False])
        assert "500" in (source.replicas[0].cause or "")
        engine.mode = "ok"
        await until(lambda: _taking(source) == [True])


async def test_a_slow_answer_is_not_an_end() -> None:
    async with started() as engine, polling(_list(engine)) as source:
        await until(lambda: _taking(source) == [True])
        engine.mode = "hang"
        asked = engine.asked["/health"]
        await until(lambda: engine.asked["/health"] == asked + 2)
        assert _taking(source) == [True]
        await until(lambda: _taking(source) == [False])
        assert "no answer in" in (source.replicas[0].cause or "")


@pytest.mark.parametrize("mode", ["wrong", "noisy"])
async def test_what_is_no_engine(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ask, "MAX_ANSWER_BYTES", 100_000)
    async with started() as engine, polling(_list(engine)) as source:
        engine.mode = mode
        await until(lambda: _states(source) == ["down"])
        engine.mode = "ok"
        await until(lambda: _taking(source) == [True])


async def test_hung_engines_do_not_hold_up_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watched, "_TIMEOUT_S", 60.0)
    monkeypatch.setattr(probe, "_TROUBLED_AT_ONCE", 2)
    async with contextlib.AsyncExitStack() as stack:
        hung = [await stack.enter_async_context(started()) for _ in range(8)]
        good = await stack.enter_async_context(started())
        source = await stack.enter_async_context(polling(_list(*hung, good)))
        await until(lambda: all(_taking(source)))
        for engine in hung:
            engine.mode = "hang"
        for i in range(len(hung)):
            source.recheck(f"e{i}")
        asked = good.asked["/health"]
        await until(lambda: good.asked["/health"] > asked + 2)


async def test_a_recheck_is_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "EVERY_S", 60.0)
    async with started() as engine, polling(_list(engine)) as source:
        source.recheck("e0")
        source.recheck("unknown")
        await until(lambda: _taking(source) == [True])
        await engine.stop()
        source.recheck("e0")
        await until(lambda: _taking(source) == [False], timeout_s=1)
        await engine.start()
        await until(lambda: _taking(source) == [True], timeout_s=2)


async def test_what_fails_during_a_check_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "EVERY_S", 60.0)
    real = Watched.check

    async def check(self: Watched) -> None:
        await real(self)
        if self.checks == 1:
            source.recheck("e0")

    monkeypatch.setattr(Watched, "check", check)
    async with started() as engine, polling(_list(engine)) as source:
        await until(lambda: engine.asked["/health"] == 2)
        await asyncio.sleep(0.1)
        assert engine.asked["/health"] == 2


async def test_our_own_shortage_takes_no_engine_away(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with started() as engine, polling(_list(engine)) as source:
        await until(lambda: _taking(source) == [True])

        async def fail(*_: object, **__: object) -> None:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

        monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", fail)
        checks = source._watched["e0"].checks
        await until(lambda: source._watched["e0"].checks > checks + 4)
        assert _taking(source) == [True]
    assert "cannot be asked: too many open files" in caplog.text


async def test_a_listener_that_fails_does_not_end_the_checks(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(_: object) -> None:
        raise RuntimeError("a mistake")

    async with started() as engine, polling(_list(engine)) as source:
        source.subscribe_loads(fail)
        await until(lambda: engine.asked["/metrics"] > 3)
    assert "a mistake" in caplog.text


async def test_names_without_an_address() -> None:
    async with polling(of_urls(["http://nowhere.invalid:1"])) as source:
        await until(lambda: _states(source) == ["down"])
        assert "Unknown error" not in (source.replicas[0].cause or "")


async def test_a_late_one_is_asked_again_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "EVERY_S", 60.0)
    async with started() as engine, polling(_list(engine)) as source:
        await until(lambda: _taking(source) == [True])
        engine.mode = "hang"
        source.recheck("e0")
        await until(lambda: _taking(source) == [False], timeout_s=3)


async def test_an_error_of_ours_does_not_end_the_checks(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real = Watched.check

    async def check(self: Watched) -> None:
        if self.checks == 1:
            self.checks += 1
            raise RuntimeError("a mistake")
        await real(self)

    monkeypatch.setattr(Watched, "check", check)
    async with started() as engine, polling(_list(engine)) as source:
        await until(lambda: engine.asked["/health"] > 2)
        assert _taking(source) == [True]
    assert "a mistake" in caplog.text


async def test_the_file_is_followed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "engines"
    async with started() as one, started() as two:
        path.write_text(f"{one.url}\n")
        async with polling(load(path)) as source:
            await until(lambda: _taking(source) == [True])
            first = source.replicas[0]
            path.write_text(f"{one.url}\n{two.url}\n")
            await until(lambda: _taking(source) == [True, True])
            assert source.replicas[0] is first
            path.write_text("nonsense\n")
            await until(lambda: source.describe()["trouble"] is not None)
            assert _taking(source) == [True, True]
            path.unlink()
            await asyncio.sleep(0.2)
            assert _taking(source) == [True, True]
            path.write_text(f"{two.url}\n")
            await until(lambda: _taking(source) == [True])
            assert source.replicas[0].url == two.url
            assert source.describe()["trouble"] is None
            asked = one.asked["/health"]
            await until(lambda: two.asked["/health"] > 8)
            assert one.asked["/health"] <= asked + 1
    assert f"{path}:1: not an engine's address" in caplog.text


async def test_what_was_changed_before_it_was_followed_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "engines"
    path.write_text("http://127.0.0.1:9\n")
    loaded = load(path)
    path.write_text("http://127.0.0.1:9\nhttp://127.0.0.1:10\n")
    async with polling(loaded) as source:
        await until(lambda: len(source.replicas) == 2)


async def test_a_list_that_has_not_changed_is_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of thousands of engines it takes a second."""
    key_file = tmp_path / "key"
    key_file.write_text("secret")
    key_file.chmod(0o600)
    path = tmp_path / "engines.yaml"
    path.write_text(f"key_file: {key_file}\nengines: ['http://127.0.0.1:9']\n")
    loaded = load(path)
    assert loaded.looks.keys() == {path, key_file}
    reads: list[Path] = []

    def count(where: Path) -> EnginesFile:
        reads.append(where)
        return load(where)

    monkeypatch.setattr(engines_file, "load", count)
    async with polling(loaded):
        await asyncio.sleep(0.5)
        assert not reads
        key_file.write_text("another")
        await until(lambda: reads == [path])


async def test_what_cannot_be_read_for_a_moment_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "engines"
    path.write_text("http://127.0.0.1:9\n")
    reads = 0

    def stale(where: Path) -> EnginesFile:
        nonlocal reads
        reads += 1
        if reads < 3:
            raise UserError(f"cannot read {where}: Stale file handle")
        return load(where)

    monkeypatch.setattr(engines_file, "load", stale)
    async with polling(load(path)) as source:
        path.write_text("http://127.0.0.1:9\nhttp://127.0.0.1:10\n")
        await until(lambda: source.describe()["trouble"] is not None)
        await until(lambda: len(source.replicas) == 2)
        assert source.describe()["trouble"] is None
        assert reads == 3
        await asyncio.sleep(0.3)
        assert reads == 3  # once it could be read, only changes are


def _rewritten(path: Path, text: str) -> None:
    """As an editor does it: nobody sees half of it."""
    fresh = path.with_suffix(".new")
    fresh.write_text(text)
    fresh.replace(path)


async def test_key_files_are_followed(tmp_path: Path) -> None:
    path, first, second = tmp_path / "engines.yaml", tmp_path / "first", tmp_path / "second"
    engines = "key_file: {}\nengines: ['{}']\n"
    first.touch(mode=0o600)
    first.write_text("one")
    async with started(key="one") as engine:
        path.write_text(engines.format(first, engine.url))
        async with polling(load(path)) as source:
            await until(lambda: _taking(source) == [True])
            engine.key = "two"
            first.write_text("two")
            await until(lambda: source.replicas[0].key == "two")
            # One that is of no use at first, in a list that is new.
            engine.key = "three"
            second.touch(mode=0o644)
            second.write_text("three")
            _rewritten(path, engines.format(second, engine.url))
            await until(lambda: "chmod 600" in (source.describe()["trouble"] or ""))
            assert source.replicas[0].key == "two"
            second.chmod(0o600)
            await until(lambda: source.replicas[0].key == "three")
            await until(lambda: _taking(source) == [True])
            assert source.describe()["trouble"] is None


@pytest.mark.parametrize(
    ("said", "field", "value"),
    [
        ("weight: 2", "weight", 2.0),
        ("id: other", "id", "other"),
        ("node: n2", "node", "n2"),
        ("switch: s2", "switch", "s2"),
        ("version: v2", "version", "v2"),
        ("models: mine", "served_names", ("mine",)),
        ("models: mine", "engine_model", "chat"),
    ],
)
async def test_an_engine_serves_on_while_the_list_says_something_else_of_it(
    tmp_path: Path, said: str, field: str, value: object
) -> None:
    path = tmp_path / "engines.yaml"
    async with started() as engine:
        path.write_text(f"engines:\n- {{url: '{engine.url}'}}\n")
        async with polling(load(path)) as source:
            await until(lambda: _taking(source) == [True])
            before = source.replicas[0]
            told: list[bool] = []
            source.subscribe(lambda replicas: told.extend(r.takes_requests for r in replicas))
            _rewritten(path, f"engines:\n- {{url: '{engine.url}', {said}}}\n")
            await until(lambda: getattr(source.replicas[0], field) == value)
            assert all(told)
            assert source.replicas[0].model == before.model
            assert source.replicas[0].max_model_len == before.max_model_len


async def test_an_engine_with_another_key_serves_until_it_says_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(probe, "EVERY_S", 60.0)
    monkeypatch.setattr(probe, "MISCONFIGURED_EVERY_S", 60.0)
    async with started(key="first") as engine, polling(_list(engine)) as source:
        await until(lambda: _taking(source) == [True])
        told: list[tuple[str | None, str]] = []
        source.subscribe(lambda replicas: told.extend((r.key, r.state) for r in replicas))
        engine.key = "second"
        source._take_file(_list(engine))
        await until(lambda: source.replicas[0].key == "second")
        asked = engine.asked["/v1/models"]
        assert asked == 2  # with the new key, at once
        wrong = Engine(url=engine.url, id="e0", node="n", key="wrong")
        source._take_file(EnginesFile(path=None, engines=(wrong,)))
        await until(lambda: _states(source) == ["unusable"])
        source._take_file(_list(engine))
        await until(lambda: _taking(source) == [True])
    assert {state for key, state in told if key != "wrong"} <= {"ready", "unusable"}
    assert next(state for key, state in told if key == "second") == "ready"


async def test_what_an_engine_says_to_its_former_key_is_not_held_against_the_new_one() -> None:
    async with started(key="second") as engine:
        former = Engine(url=engine.url, id="e0", node="n", key="first")
        watched_ = Watched(former)
        watched_.replica = watched_._replica("ready", None)
        check = asyncio.create_task(watched_.check())
        await asyncio.sleep(0)
        assert watched_.describe(Engine(url=engine.url, id="e0", node="n", key="second"))
        await check
        assert watched_.replica.takes_requests
        await watched_.check()
        assert watched_.replica.takes_requests
        assert watched_.replica.served_names == ("chat",)


async def test_a_list_of_other_engines_is_told_when_they_have_answered() -> None:
    async with started() as one, started() as two, polling(of_urls([one.url])) as source:
        await until(lambda: _taking(source) == [True])
        told: list[list[bool]] = []
        source.subscribe(lambda replicas: told.append([r.takes_requests for r in replicas]))
        source._take_file(of_urls([two.url]))
        await until(lambda: source.replicas[0].url == two.url)
        assert _taking(source) == [True]
        assert told == [[True], [True]]


async def test_ids_that_change_places() -> None:
    async with started() as one, started() as two, polling(_list(one, two)) as source:
        two.names, two.running = ["other"], 7
        await until(lambda: _taking(source) == [True, True])
        loads: dict[str, EngineLoad] = {}
        source.subscribe_loads(loads.update)
        source._take_file(_list(two, one))
        await until(lambda: source.replicas[0].url == two.url)
        assert [r.served_names for r in source.replicas] == [("other",), ("chat",)]
        loads.clear()
        await until(lambda: len(loads) == 2)
        assert (loads["e0"].running, loads["e1"].running) == (7, 1)


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.mark.parametrize("count", [8, 640, 3072])
async def test_checks_are_spread_and_bounded(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A minute of checks that cost nothing, by a clock of the test's own."""
    monkeypatch.setattr(probe, "EVERY_S", 10.0)
    monkeypatch.setattr(probe, "_TOGETHER_S", 0.25)
    clock = Clock()
    starts: list[float] = []
    per_engine: dict[str, list[float]] = {}

    async def check(self: Watched) -> None:
        starts.append(clock.now_s)
        per_engine.setdefault(self.engine.id, []).append(clock.now_s)
        self.checks += 1
        self.replica = self._replica("ready", None)

    monkeypatch.setattr(Watched, "check", check)
    source = PolledSource(of_urls(_urls(count)), clock=clock)
    monkeypatch.setattr(source, "_arm", lambda _: None)
    monkeypatch.setattr(source, "_follow_file", asyncio.Event().wait)
    task = asyncio.create_task(source.run())
    while clock.now_s < 1160:
        source._wake()
        for _ in range(3):
            await asyncio.sleep(0)
        clock.now_s += 0.05
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    later = [start for start in starts if start >= 1060]
    most = max(count / 10.0, 1) if count <= 640 else probe.CHECKS_PER_S
    assert len(later) / 100 <= most * 1.1
    busiest = max(sum(second <= s < second + 1 for s in later) for second in range(1060, 1159))
    assert busiest <= most * 1.6 + 4
    assert len(set(later)) / 100 <= 4  # those of a quarter of a second together
    # The first is at the start, the second anywhere in the first interval.
    pairs = (pair for times in per_engine.values() for pair in itertools.pairwise(times[1:]))
    gaps = [after - before for before, after in pairs]
    assert min(gaps) >= 0.89 * source.every_s
    assert len(per_engine) == count


def _urls(count: int) -> Iterable[str]:
    return (f"http://10.0.{i // 250}.{i % 250}:8000" for i in range(count))
