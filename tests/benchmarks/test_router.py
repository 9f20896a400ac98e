"""The benchmark of the router: its engines and its load, its figures, and a run of a second."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import processes, report, traffic
from benchmarks.processes import Running

ROOT = Path(__file__).parent.parent.parent
CORES = frozenset(os.sched_getaffinity(0))

needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return traffic.build(tmp_path_factory.mktemp("programs"))


@pytest.fixture
def engines(programs: dict[str, Path], tmp_path: Path) -> Iterator[traffic.Engines]:
    with (tmp_path / "log").open("wb") as log:
        with traffic.Engines(programs["engines"], 3, CORES, log) as engines:
            yield engines
        assert not engines.pids


def run(
    programs: dict[str, Path], engines: traffic.Engines, asked: traffic.Shape, tmp_path: Path
) -> dict[str, float]:
    bodies = traffic.write_bodies(tmp_path / "bodies", 1024, stream=asked.events > 0)
    with (tmp_path / "log").open("ab") as log:
        load = traffic.Load(programs["load"], CORES, log)
        return load.run(asked, engines.ports[0], "", bodies, 0.3, lambda: None)


@needs_compiler
def test_the_load_counts_what_the_engines_answer(
    programs: dict[str, Path], engines: traffic.Engines, tmp_path: Path
) -> None:
    shape = traffic.Shape(4, events=5, gap_ms=2, warm_s=0.05)
    engines.answer(shape)
    said = run(programs, engines, shape, tmp_path)
    assert said["good"] > 0
    assert said["failed"] == 0
    # Each answer has the five, and a last one.
    assert abs(said["events"] - 6 * said["good"]) <= 6 * shape.connections
    count = engines.count()
    assert (count.used, count.asked) == (1, 0)
    assert count.posts >= said["good"]
    engines.zero()
    assert engines.count() == traffic.Count(0, 0, 0, 0)


@needs_compiler
def test_an_answer_of_another_length_is_no_good_one(
    programs: dict[str, Path], engines: traffic.Engines, tmp_path: Path
) -> None:
    shape = traffic.Shape(4, events=5, warm_s=0.05)
    engines.answer(shape)
    said = run(programs, engines, replace(shape, events=6), tmp_path)
    assert said["good"] == 0
    assert said["failed"] > 0


@needs_compiler
def test_requests_begin_at_their_rate(
    programs: dict[str, Path], engines: traffic.Engines, tmp_path: Path
) -> None:
    shape = traffic.Shape(16, rate=100, warm_s=0.05)
    engines.answer(shape)
    said = run(programs, engines, shape, tmp_path)
    assert 0 < said["good"] <= 0.35 * 100 + 1
    assert said["failed"] == 0


@needs_compiler
def test_a_run_prints_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            *(ROOT / "benchmarks" / "router", "--quick", "--seconds", "0.2"),
            *("--tests", "plain,stream,scale", "--only", "core"),
            *("--engines", "2", "--many-engines", "5"),
        ],
        env={**os.environ, "EXASLURM_VENV": sys.prefix, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert not result["left_out"]
    assert set(result["median"]) == {"plain", "stream", "2 engines", "5 engines"}
    for by_name in result["median"].values():
        row = by_name["core"]
        assert row["failed"] == 0
        assert row["requests_per_s"] > 0
        assert row["rss_mb"] > 1
    assert result["median"]["5 engines"]["core"]["all_asked_s"] > 0
    assert result["against"]["core"]["no router"]["plain: requests_per_s ratio"] > 0
    assert not list(tmp_path.iterdir())


def lives(pid: int) -> bool:
    """Nor is it a zombie that nobody asks for."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_what_is_started_ends_with_its_children(tmp_path: Path) -> None:
    """Also one that does not mind SIGTERM, and whose parent is gone."""
    script = "(trap '' TERM; exec sleep 600) & echo; wait"
    with (
        (tmp_path / "log").open("wb") as log,
        Running(["sh", "-c", script], cores=CORES, log=log, piped=True) as running,
    ):
        assert running.process.stdout is not None
        running.process.stdout.readline()
        pids = running.pids
        assert len(pids) == 2
    deadline_s = time.monotonic() + 10
    while any(map(lives, pids)):
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def test_ratios_are_of_the_same_round() -> None:
    def rounds(*figures: float) -> dict[int, dict[str, float]]:
        return {n: {"requests_per_s": value, "failed": 1} for n, value in enumerate(figures)}

    runs: report.Runs = {"plain": {"core": rounds(10, 40, 90), "nginx": rounds(20, 40, 60)}}
    compared = report.against(runs, ("core", "full"), 3072)
    assert compared == {"core": {"nginx": {"plain: requests_per_s ratio": 1.0}}}
    middle = report.medians(runs)
    assert middle["plain"]["core"] == {"requests_per_s": 40, "failed": 3}
    assert "nginx" in report.tables(runs, compared)


def test_two_processes_are_compared_with_one_in_each_test() -> None:
    def rounds(*figures: float) -> dict[int, dict[str, float]]:
        return {n: {"requests_per_s": value} for n, value in enumerate(figures)}

    one, two = "core", "core, 2 workers"
    runs: report.Runs = {
        "workers": {one: rounds(40, 50), two: rounds(44, 65)},
        report.HELD: {two: rounds(40), one: rounds(20)},
    }
    assert report.against(runs, ("core", "full"), 3072)["core"]["itself"] == {
        "workers, 2 to 1: requests_per_s ratio": 1.2,
        "workers, held, 2 to 1: requests_per_s ratio": 2.0,
    }


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_held_process_gets_its_part_of_a_core(tmp_path: Path) -> None:
    """And all of it again afterwards."""

    def used(pid: int) -> float:
        cpu_s, begin_s = processes.cpu_s([pid]), time.monotonic()
        time.sleep(1)  # the time that is measured
        return (processes.cpu_s([pid]) - cpu_s) / (time.monotonic() - begin_s)

    endless = [sys.executable, "-c", "while True: pass"]
    groups = Path("/sys/fs/cgroup")
    with (
        (tmp_path / "log").open("wb") as log,
        Running(endless, cores=CORES, log=log) as running,
    ):
        pid = running.process.pid
        before = Path(f"/proc/{pid}/cgroup").read_text()
        try:
            with processes.held([pid], 0.25):
                assert used(pid) < 0.35
        except OSError as error:
            pytest.skip(f"no groups here: {error}")
        assert Path(f"/proc/{pid}/cgroup").read_text() == before
        assert not list(groups.glob(f"**/exaslurm-benchmark-{pid}"))
