"""Engines without models, and load on the routers before them: two C programs."""

from __future__ import annotations

import json
import random
import select
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from benchmarks.contestants import MODEL
from benchmarks.processes import Running

HERE = Path(__file__).resolve().parent
_BUILD_S = 120
_ANSWER_S = 20.0


class NoCompiler(Exception):
    """There is no C compiler, or it does not work; the text is for people."""


def build(folder: Path) -> dict[str, Path]:
    """The programs, built into ``folder``. NoCompiler says what is missing."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise NoCompiler(
            "no C compiler (cc): the engines and the load are two small C programs, since Python "
            "would be slower than what it measures. On Debian: apt-get install gcc libc6-dev"
        )
    programs = {}
    for name in ("engines", "load"):
        programs[name] = folder / name
        done = subprocess.run(
            [compiler, "-O2", "-o", programs[name], HERE / f"{name}.c"],
            capture_output=True,
            text=True,
            timeout=_BUILD_S,
        )
        if done.returncode:
            raise NoCompiler(f"{compiler} cannot build {HERE / name}.c:\n{done.stderr.strip()}")
    return programs


@dataclass(frozen=True, slots=True)
class Shape:
    """What is asked, and how. ``rate``: requests a second begin, 0: each of the ``connections``
    asks again as soon as it is answered. ``events`` 0: answers are no streams. ``shared``: a busy
    process wants the router's core, too, so that it is the router that everything waits for."""

    connections: int
    events: int = 0
    gap_ms: float = 0
    rate: float = 0
    body_bytes: int = 1024
    warm_s: float = 0.5
    shared: bool = False


@dataclass(frozen=True, slots=True)
class Count:
    """POSTs, engines that got one, engines that were asked how they are, and how often."""

    posts: int
    used: int
    asked: int
    gets: int


class Engines:
    """``count`` engines in one process; use as ``with``. RuntimeError if they fail."""

    def __init__(self, program: Path, count: int, cores: Iterable[int], log: IO[bytes]) -> None:
        self._running = Running([program, str(count)], cores=cores, log=log, piped=True)

    def __enter__(self) -> Engines:
        try:
            self.ports = [int(word) for word in _line(self._running).split()]
        except BaseException:
            self._running.end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._running.end()

    @property
    def pids(self) -> list[int]:
        return self._running.pids

    def answer(self, shape: Shape, reply_bytes: int = 1024) -> None:
        """How requests are answered from now on."""
        self._order(f"answer {shape.events} {int(shape.gap_ms * 1000)} {reply_bytes}")

    def zero(self) -> None:
        self._order("zero")

    def count(self) -> Count:
        """What was asked since ``zero``."""
        return Count(*map(int, self._order("count").split()))

    def _order(self, line: str) -> str:
        stdin = self._running.process.stdin
        assert stdin is not None
        stdin.write(line.encode() + b"\n")
        stdin.flush()
        return _line(self._running)


@dataclass(frozen=True, slots=True)
class Load:
    """The program that asks, and where it runs."""

    program: Path
    cores: frozenset[int]
    log: IO[bytes]

    def run(
        self,
        shape: Shape,
        port: int,
        header: str,
        bodies: Path,
        run_s: float,
        begun: Callable[[], None],
    ) -> dict[str, Any]:
        """What ``load`` prints; ``begun`` is called when the warm-up is over. RuntimeError if the
        router does not answer."""
        numbers = (shape.connections, int(shape.warm_s * 1000), int(run_s * 1000))
        command: list[str | Path] = [self.program, str(port), *map(str, numbers)]
        command += [str(shape.rate), str(shape.events), bodies]
        command += [header] if header else []
        with Running(command, cores=self.cores, log=self.log, piped=True) as running:
            _line(running, shape.warm_s)
            begun()
            figures = json.loads(_line(running, run_s))
        assert isinstance(figures, dict)
        return figures


def _line(running: Running, usual_s: float = 0.0) -> str:
    """The next line of its stdout. RuntimeError if there is none in time."""
    stdout = running.process.stdout
    assert stdout is not None
    deadline_s = time.monotonic() + usual_s + _ANSWER_S
    text = b""
    while not text.endswith(b"\n"):
        ready, _, _ = select.select([stdout], [], [], max(0.0, deadline_s - time.monotonic()))
        piece = stdout.read1(1 << 16) if ready else b""  # type: ignore[attr-defined]
        if not piece:
            name = Path(str(running.process.args[0])).name  # type: ignore[index]
            raise RuntimeError(f"{name} {'ended' if ready else 'says nothing'}")
        text += piece
    return text.decode()


def write_bodies(path: Path, size: int, *, stream: bool) -> Path:
    """Chat requests of ``size`` bytes, one a line, that begin in one of 32 ways."""
    if path.exists():
        return path
    rng = random.Random(7)
    words = ["alpha", "beam", "quark", "lattice", "plasma", "tensor", "kernel", "vector", "flux"]
    shared = [" ".join(rng.choices(words, k=70)) for _ in range(32)]
    lines = []
    for _ in range(max(16, min(2000, 2_000_000 // size))):
        body = {
            "model": MODEL,
            "messages": [
                {"role": "system", "content": rng.choice(shared)},
                {"role": "user", "content": ""},
            ],
            "max_tokens": 64,
            "temperature": 0.7,
            "stream": stream,
        }
        room = max(1, size - len(json.dumps(body)))
        text = " ".join(rng.choices(words, k=room // 4))[:room]
        body["messages"][1]["content"] = text  # type: ignore[index]
        lines.append(json.dumps(body) + "\n")
    path.write_text("".join(lines))
    return path
