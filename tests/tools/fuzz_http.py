"""Throws wrong requests at a running router, and looks whether it stays well.

``python -m tests.tools.fuzz_http [--cases N] [--seed FIRST] [--at-once N]``

A router process of its own over an engine that complains of whatever is not good HTTP. Failures
name the seed of their case; ``--cases 1 --seed SEED --show`` repeats it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import os
import re
import selectors
import socket
import struct
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httptools

from tests.tools.fuzz_cases import Case, good, make
from tests.tools.gateway import package
from tests.tools.strict_engine import StrictEngine

KEY = "sk-fuzz-5f1d7c0e9b3a48d2a6e4"
# A connection that is half closed, or a whole request, has this long until it is a hang.
DEADLINE_S = 20.0
QUIET_S = 0.03
_GOOD_EVERY = 200
_SAMPLE_EVERY = 500
_START_S = 30.0
_TRACEBACK = re.compile(r"^Traceback .*\n(?: .*\n|\n)*.*", re.MULTILINE)


@dataclass
class Report:
    """What was seen. ``failures`` are what must not be; ``rss_kib`` is sampled as cases go by."""

    cases: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    statuses: Counter[int] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    good: int = 0
    slowest: tuple[float, int] = (0.0, -1)  # seconds, seed
    rss_kib: list[tuple[int, int]] = field(default_factory=list)
    fds: tuple[int, int] = (0, 0)
    in_flight: float = 0.0
    outstanding: float = 0.0
    forwarded: int = 0
    took_s: float = 0.0

    def growth_kib(self) -> int:
        """How much memory grew over the last three quarters of the cases."""
        later = [rss for cases, rss in self.rss_kib if cases >= self.cases / 4]
        return max(later[-1] - later[0], 0) if len(later) > 1 else 0


class RouterProcess:
    """``python -m exaslurm.gateway`` over a list of engines."""

    def __init__(self, directory: Path, *engines: str) -> None:
        key_file, engines_file = directory / "key", directory / "engines"
        key_file.touch(mode=0o600)
        key_file.write_text(KEY + "\n")
        engines_file.write_text("\n".join(engines) + "\n")
        self.log = directory / "log"
        arguments = ["--engines-file", engines_file, "--key-file", key_file, "--port", "0"]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "exaslurm.gateway", *arguments],
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=directory,  # Python looks there before anywhere else
                env={**os.environ, "PYTHONPATH": package()},
            )
        assert self.process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            ready = selector.select(_START_S)
        self.url = self.process.stdout.readline().decode().strip() if ready else ""
        if not self.url:
            self.close()
            raise RuntimeError(f"the router did not start: {self.log.read_text()[-2000:]}")

    @property
    def port(self) -> int:
        return int(self.url.rsplit(":", 1)[1])

    def get(self, path: str) -> tuple[int, str]:
        request = urllib.request.Request(
            self.url + path, headers={"Authorization": f"Bearer {KEY}"}
        )
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, answer.read().decode()

    def ready(self) -> bool:
        try:
            return self.get("/ready")[0] == 200
        except urllib.error.HTTPError:
            return False

    def figure(self, name: str) -> float:
        """The sum of a metric over its labels."""
        found = re.findall(
            rf"^{name}(?:\{{[^}}]*\}})? (\S+)$", self.get("/metrics")[1], re.MULTILINE
        )
        assert found, name
        return sum(map(float, found))

    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def rss_kib(self) -> int:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0])

    def close(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(timeout=10)
        assert self.process.stdout is not None
        self.process.stdout.close()


class Answers:
    """Counts the answers in what a router sends, and notices where it is not HTTP."""

    def __init__(self) -> None:
        self.statuses: list[int] = []
        self.complete = 0
        self.wrong = ""
        self._parser: Any = httptools.HttpResponseParser(self)

    def feed(self, data: bytes) -> None:
        if self.wrong:
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self.wrong = f"{error!r} in {data[:200]!r}"

    def on_headers_complete(self) -> None:
        self.statuses.append(self._parser.get_status_code())

    def on_message_complete(self) -> None:
        if self.statuses[-1] != 100:
            self.complete += 1


async def ask(port: int, case: Case) -> Answers:
    """One case on a connection of its own. asyncio.TimeoutError: it hung."""
    answers = Answers()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        with contextlib.suppress(OSError):  # not connected any more, in one of its forms
            await asyncio.wait_for(_talk(reader, writer, case, answers), DEADLINE_S)
    finally:
        writer.transport.abort()
    return answers


async def _talk(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, case: Case, answers: Answers
) -> None:
    for number, piece in enumerate(case.pieces):
        if number:
            await asyncio.sleep(0.001)
        writer.write(piece)
        await writer.drain()
    if case.ends in ("reset", "begun"):
        plug = writer.get_extra_info("socket")
        plug.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    if case.ends == "reset":
        return
    if case.ends == "begun":
        with contextlib.suppress(asyncio.TimeoutError):
            answers.feed(await asyncio.wait_for(reader.read(65536), QUIET_S))
        return
    if case.ends == "wait":
        while not (case.answered and answers.complete):
            wait_s = DEADLINE_S if case.answered else QUIET_S
            try:
                data = await asyncio.wait_for(reader.read(65536), wait_s)
            except asyncio.TimeoutError:
                if case.answered:
                    raise
                break
            if not data:
                return
            answers.feed(data)
    writer.write_eof()
    while data := await reader.read(65536):
        answers.feed(data)


class Fuzzer:
    """Cases ``first`` to ``first + count``, ``at_once`` of them at a time."""

    def __init__(self, router: RouterProcess, first: int, count: int, at_once: int) -> None:
        self.router = router
        self.report = Report(cases=count)
        self._seeds = iter(range(first, first + count))
        self._done = itertools.count(1)
        self._at_once = at_once

    async def run(self) -> None:
        await asyncio.gather(*(self._work() for _ in range(self._at_once)))
        await self._good()

    async def _work(self) -> None:
        for seed in self._seeds:
            await self._case(seed)
            done = next(self._done)
            if done % _GOOD_EVERY == 0:
                await self._good()
            if done % _SAMPLE_EVERY == 0:
                self.report.rss_kib.append((done, self.router.rss_kib()))

    async def _case(self, seed: int) -> None:
        report = self.report
        case = make(seed, KEY)
        report.kinds[case.kind] += 1
        begin = time.monotonic()
        try:
            answers = await ask(self.router.port, case)
        except asyncio.TimeoutError:
            self._fail(seed, case, f"no answer within {DEADLINE_S:g} s")
            return
        except OSError as error:
            self._fail(seed, case, f"no connection: {error}")
            return
        report.slowest = max(report.slowest, (time.monotonic() - begin, seed))
        report.statuses.update(answers.statuses)
        bad = [status for status in answers.statuses if status >= 500]
        if bad:
            self._fail(seed, case, f"answered {bad}")
        if case.answered and not answers.complete:
            self._fail(seed, case, "the connection ended without an answer")
        # The answer to HEAD has a length and no body, which this parser is not told.
        if answers.wrong and b"HEAD" not in b"".join(case.pieces):
            self._fail(seed, case, f"the answer is not HTTP: {answers.wrong}")

    async def _good(self) -> None:
        case = Case("good", (good(KEY.encode()),), answered=True)
        try:
            answers = await ask(self.router.port, case)
        except (asyncio.TimeoutError, OSError) as error:
            self.report.failures.append(f"a good request was not answered: {error!r}")
            return
        if answers.statuses == [200]:
            self.report.good += 1
        else:
            self.report.failures.append(f"a good request was answered {answers.statuses}")

    def _fail(self, seed: int, case: Case, what: str) -> None:
        self.report.failures.append(f"seed {seed} ({case.kind}): {what}")


@contextlib.contextmanager
def started() -> Iterator[tuple[RouterProcess, StrictEngine]]:
    """A router over one strict engine, ready."""
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        engine = StrictEngine(KEY)
        stack.callback(engine.close)
        router = RouterProcess(directory, engine.url)
        stack.callback(router.close)
        _wait(router.ready)
        yield router, engine


def fuzz(cases: int, *, first: int = 0, at_once: int = 32) -> Report:
    """Run the cases against a router of their own."""
    begin = time.monotonic()
    with started() as (router, engine):
        asyncio.run(Fuzzer(router, first, 2 * at_once, at_once).run())  # pools fill, caches too
        before = router.descriptors()
        fuzzer = Fuzzer(router, first, cases, at_once)
        asyncio.run(fuzzer.run())
        report = fuzzer.report
        if router.process.poll() is not None:
            report.failures.append(f"the router ended: {router.log.read_text()[-2000:]}")
            return report
        _wait(lambda: _idle(router), report)
        _wait(lambda: router.descriptors() <= before + 2, report)
        report.fds = (before, router.descriptors())
        report.in_flight = router.figure("exaslurm_router_in_flight")
        report.outstanding = router.figure("exaslurm_router_outstanding")
        report.forwarded = engine.requests
        report.failures += [f"the engine got {what}" for what in engine.complaints[:20]]
        log = router.log.read_text(errors="replace")
        for trace in _TRACEBACK.findall(log)[:5]:
            report.failures.append(f"a traceback in the log: ...{trace[-1500:]}")
    report.took_s = time.monotonic() - begin
    return report


def _idle(router: RouterProcess) -> bool:
    # The request for the figures is no proxied one, and not counted.
    return router.figure("exaslurm_router_in_flight") == 0


def _wait(done: Any, report: Report | None = None, timeout_s: float = 15.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not done():
        if time.monotonic() > deadline:
            if report is None:
                raise TimeoutError("the router is not ready")
            return  # the figures of the report tell
        time.sleep(0.1)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--at-once", type=int, default=32)
    parser.add_argument("--show", action="store_true", help="print the cases, send nothing")
    given = parser.parse_args()
    if given.show:
        for seed in range(given.seed, given.seed + given.cases):
            print(seed, make(seed, KEY))
        return 0
    report = fuzz(given.cases, first=given.seed, at_once=given.at_once)
    for failure in report.failures[:40]:
        print("FAIL", failure)
    report.failures, count = [], len(report.failures)
    print(report, f"growth {report.growth_kib()} KiB", f"{count} failures")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
