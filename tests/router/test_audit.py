"""The audit log: what is in it, what is found when it was changed, what a bad disk does to it."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from exaslurm.keys.clients import KeyInfo
from exaslurm.router.audit import Audit
from exaslurm.router.audit_chain import Sealer, derive_key, opened_at
from exaslurm.router.audit_check import ChainReport, verify
from exaslurm.router.audit_read import read
from exaslurm.router.audit_writer import ChainWriter
from exaslurm.router.call import Call

SECRET = "the deployment's internal key"


def call(number: int = 0) -> Call:
    made = Call("/v1/chat/completions", f"req-{number}".encode(), 100.0)
    made.key = KeyInfo(name="alice", created_s=0.0)
    made.model = "chat:base"
    made.version = "7"
    made.replica = "c000-r0003"
    made.status = 200
    made.stream = True
    made.first_byte_s = 100.25
    made.ended_s = 102.5
    made.bytes_in = 1000
    made.bytes_out = 2000
    made.retries = 1
    made.prompt_tokens = 12
    made.completion_tokens = 34
    return made


def until(true: Callable[[], bool], *, within_s: float = 10.0) -> None:
    deadline = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.005)


def make(directory: Path, **options: object) -> Audit:
    options = {"secret": SECRET, "host": "login1", "flush_s": 0.01, **options}
    audit = Audit(directory, **options)  # type: ignore[arg-type]
    audit.start()
    return audit


def write(directory: Path, count: int, **options: object) -> None:
    audit = make(directory, **options)
    for number in range(count):
        audit.record(call(number))
    assert audit.close() == 0


def files(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.jsonl"))


def lines(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines(keepends=True)


def problems(directory: Path, secret: str = SECRET) -> list[str]:
    """What is wrong, with ``<file number>:<line>`` for the place."""
    names = {path.name: str(number) for number, path in enumerate(files(directory))}
    found = [str(finding) for report in verify(directory, secret) for finding in report.problems]
    short = [text.replace(f"{directory}/", "") for text in found]
    return [re.sub(r"\S+\.jsonl", lambda match: names[match[0]], text) for text in short]


def only(directory: Path) -> ChainReport:
    (report,) = verify(directory, SECRET)
    return report


class TestRecords:
    def test_everything_but_secrets(self, tmp_path: Path) -> None:
        directory = tmp_path / "audit"
        before_ms = int(time.time() * 1000)
        audit = make(directory)
        made = call()
        made.started_s, made.first_byte_s, made.ended_s = (time.monotonic() + n for n in (0, 1, 2))
        audit.record(made)
        refused = Call("/v1/completions", b"req-1", time.monotonic())
        refused.status, refused.cause, refused.ended_s = 401, "key", refused.started_s
        audit.record(refused)
        assert audit.close() == 0

        records = list(read(directory))
        assert [record["kind"] for record in records] == ["open", "request", "request", "close"]
        assert [record["seq"] for record in records] == [1, 2, 3, 4]
        first = records[1]
        assert abs(first.pop("time_ms") - before_ms) < 5000
        assert first.pop("duration_ms") == pytest.approx(2000, abs=10)
        assert first.pop("ttft_ms") == pytest.approx(1000, abs=10)
        assert first == {
            "seq": 2,
            "kind": "request",
            "id": "req-0",
            "key": "alice",
            "route": "/v1/chat/completions",
            "model": "chat:base",
            "version": "7",
            "replica": "c000-r0003",
            "status": 200,
            "stream": True,
            "prompt_tokens": 12,
            "completion_tokens": 34,
            "bytes_in": 1000,
            "bytes_out": 2000,
            "retries": 1,
            "broken": False,
            "cause": "",
        }
        second = records[2]
        assert (second["key"], second["model"], second["cause"]) == (None, "-", "key")
        assert (second["prompt_tokens"], second["ttft_ms"]) == (None, None)
        text = b"".join(path.read_bytes() for path in directory.iterdir()).decode()
        assert SECRET not in text
        assert derive_key(SECRET).hex() not in text

    def test_private(self, tmp_path: Path) -> None:
        os.umask(0o022)
        write(tmp_path / "audit", 1)
        assert (tmp_path / "audit").stat().st_mode & 0o777 == 0o700
        modes = {path.stat().st_mode & 0o777 for path in (tmp_path / "audit").iterdir()}
        assert modes == {0o600}

    def test_text_that_is_no_unicode(self, tmp_path: Path) -> None:
        audit = make(tmp_path)
        odd = call()
        odd.model, odd.ident, odd.prompt_tokens = "a\ud800b", b"\xff\x00", 2**70
        audit.record(odd)
        audit.close()
        (record,) = (record for record in read(tmp_path) if record["kind"] == "request")
        assert record["model"] == r"'a\ud800b'"
        assert record["id"] == "ÿ\0"
        assert problems(tmp_path) == []


class TestFindings:
    @pytest.fixture
    def log(self, tmp_path: Path) -> Path:
        """Three files of 12 records."""
        for _ in range(3):
            write(tmp_path, 10)
        assert problems(tmp_path) == []
        assert [len(lines(path)) for path in files(tmp_path)] == [12, 12, 12]
        return tmp_path

    def test_nothing_was_done(self, log: Path) -> None:
        report = only(log)
        assert (report.name, report.records, report.requests) == ("login1-0", 36, 30)
        assert (report.seq, report.lost, report.findings) == (36, 0, [])
        assert json.loads(lines(files(log)[-1])[-1])["mac"] == report.mac

    @pytest.mark.parametrize("line", [1, 2, 11, 12])
    def test_edited(self, log: Path, line: int) -> None:
        path = files(log)[1]
        content = lines(path)
        content[line - 1] = content[line - 1].replace(b'"time_ms":', b'"time_ms":9', 1)
        path.write_bytes(b"".join(content))
        assert problems(log) == [f"1:{line}: record {12 + line} was edited"]

    def test_edited_with_its_number(self, log: Path) -> None:
        path = files(log)[0]
        path.write_bytes(path.read_bytes().replace(b'{"seq":5,', b'{"seq":900,'))
        assert problems(log) == ["0:5: record 5 was edited"]

    def test_edited_with_its_code(self, log: Path) -> None:
        path = files(log)[0]
        content = lines(path)
        content[4] = content[4].replace(b"alice", b"mallo")
        content[4] = re.sub(rb'"mac":"."', b'"mac":"0', content[4][:-5]) + content[4][-5:]
        path.write_bytes(b"".join(content))
        assert problems(log) == ["0:5: record 5 was edited"]

    def test_edited_beyond_recognition(self, log: Path) -> None:
        path = files(log)[0]
        content = lines(path)
        content[4] = b"x" * 40 + b"\n"
        path.write_bytes(b"".join(content))
        assert problems(log) == ["0:5: edited: this is no record"]

    @pytest.mark.parametrize(("line", "count"), [(1, 1), (5, 1), (5, 3), (12, 1)])
    def test_removed(self, log: Path, line: int, count: int) -> None:
        path = files(log)[1]
        content = lines(path)
        del content[line - 1 : line - 1 + count]
        path.write_bytes(b"".join(content))
        place = "2:1" if line == 12 else f"1:{line}"
        first, last = 12 + line, 12 + line + count - 1
        what = f"record {first} was" if count == 1 else f"records {first} to {last} were"
        assert problems(log) == [f"{place}: {what} removed before this line"]

    @pytest.mark.parametrize(
        ("number", "expected"),
        [
            (0, "0:1: records 1 to 12 were removed before this line"),
            (1, "1:1: records 13 to 24 were removed before this line"),
            (2, "1:12: records 25 to 36 were removed after this line"),
        ],
    )
    def test_a_file_removed(self, log: Path, number: int, expected: str) -> None:
        files(log)[number].unlink()
        assert problems(log) == [expected]

    def test_order_changed(self, log: Path) -> None:
        path = files(log)[1]
        content = lines(path)
        content[4], content[5] = content[5], content[4]
        path.write_bytes(b"".join(content))
        assert problems(log) == [
            "1:5: record 17 was removed before this line",
            "1:6: record 17 is out of place: moved, copied or put in",
        ]

    def test_copied(self, log: Path) -> None:
        path = files(log)[1]
        content = lines(path)
        content.insert(5, content[3])
        path.write_bytes(b"".join(content))
        assert problems(log) == ["1:6: record 16 is out of place: moved, copied or put in"]

    def test_cut_at_the_end(self, log: Path) -> None:
        path = files(log)[-1]
        path.write_bytes(b"".join(lines(path)[:-2]))
        assert problems(log) == ["2:10: records 35 to 36 were removed after this line"]

    def test_cut_within_the_last_record(self, log: Path) -> None:
        path = files(log)[-1]
        path.write_bytes(path.read_bytes()[:-20])
        assert problems(log) == ["2:12: record 36 was removed after this line"]

    def test_cut_and_then_written_on(self, log: Path) -> None:
        path = files(log)[-1]
        path.write_bytes(b"".join(lines(path)[:-2]))
        write(log, 1)
        assert problems(log) == ["3:1: records 35 to 36 were removed before this line"]

    def test_made_anew_without_the_key(
        self, log: Path, tmp_path_factory: pytest.TempPathFactory
    ) -> None:
        forged = tmp_path_factory.mktemp("forged")
        write(forged, 10, secret="another")
        (found,) = problems(forged)
        assert "made with another key" in found

    def test_the_head_removed(self, log: Path) -> None:
        (log / "login1-0.head").unlink()
        assert problems(log) == [
            "login1-0.head: the head is missing: records at the end may have been removed"
        ]
        write(log, 1)
        (found,) = problems(log)
        assert found.startswith("3:1: the head was missing when a router started here")

    def test_the_head_edited(self, log: Path) -> None:
        head = log / "login1-0.head"
        head.write_bytes(head.read_bytes().replace(b'"seq":36', b'"seq":30'))
        (found,) = problems(log)
        assert found.startswith("login1-0.head: the head was edited")

    def test_the_head_of_before(self, log: Path) -> None:
        old = (log / "login1-0.head").read_bytes()
        write(log, 1)
        (log / "login1-0.head").write_bytes(old)
        assert problems(log) == []  # what is there is whole
        last = files(log)[-1]
        last.unlink()
        write(log, 1)
        # Nothing says that there was more, if the head is put back with the rest: this is what
        # a code kept elsewhere is for.
        assert problems(log) == []

    def test_a_whole_chain_removed(self, tmp_path: Path) -> None:
        first, second = make(tmp_path), make(tmp_path)
        until(lambda: len(files(tmp_path)) == 2)
        first.record(call())
        second.record(call())
        first.close()
        second.close()
        write(tmp_path, 1)
        assert [report.name for report in verify(tmp_path, SECRET)] == ["login1-0", "login1-1"]
        assert problems(tmp_path) == []
        for path in tmp_path.glob("login1-1.*"):
            path.unlink()
        (found,) = problems(tmp_path)
        assert re.search(r"chain login1-1 had \d records when this was written, and is gone", found)

    def test_without_a_secret_there_is_a_plain_chain(self, tmp_path: Path) -> None:
        write(tmp_path, 3, secret=None)
        assert [report.findings for report in verify(tmp_path, None)] == [[]]
        path = files(tmp_path)[0]
        path.write_bytes(path.read_bytes().replace(b"req-1", b"req-7"))
        (report,) = verify(tmp_path, None)
        assert [finding.text for finding in report.problems] == ["record 3 was edited"]


class TestFiles:
    def test_by_size(self, tmp_path: Path) -> None:
        audit = make(tmp_path, max_file_bytes=5000)
        for number in range(100):
            audit.record(call(number))
            if number % 10 == 9:
                until(lambda: not audit._pending and audit._writer.is_settled)
        audit.close()
        assert len(files(tmp_path)) >= 5
        assert max(path.stat().st_size for path in files(tmp_path)) < 12000
        assert only(tmp_path).requests == 100
        assert problems(tmp_path) == []

    def test_by_day(self, tmp_path: Path) -> None:
        now = [1_800_000_000.0]
        audit = make(tmp_path, clock=lambda: now[0])
        for number in range(3):
            audit.record(call(number))
            until(lambda: not audit._pending and audit._writer.is_settled)
            now[0] += 86400
        audit.close()
        opened = [record["reason"] for record in read(tmp_path) if record["kind"] == "open"]
        assert opened == ["start", "day", "day", "day"]
        assert problems(tmp_path) == []

    def test_the_oldest_go_when_there_is_too_much(self, tmp_path: Path) -> None:
        audit = make(tmp_path, max_total_bytes=64_000)
        for number in range(500):
            audit.record(call(number))
            if number % 10 == 9:
                until(lambda: not audit._pending and audit._writer.is_settled)
        audit.close()
        assert sum(path.stat().st_size for path in files(tmp_path)) < 64_000 + 12_000
        assert 80 < only(tmp_path).requests < 200
        assert problems(tmp_path) == []
        write(tmp_path, 1, max_total_bytes=64_000)
        assert problems(tmp_path) == []
        # More than the chain says itself: not by intent.
        gone = files(tmp_path)[:2]
        for path in gone:
            path.unlink()
        (found,) = problems(tmp_path)
        assert re.fullmatch(r"0:1: records 1 to \d+ were removed before this line", found)

    def test_the_oldest_of_all_chains_go(self, tmp_path: Path) -> None:
        """Files of a host that serves no more do not take the place of those that do."""
        write(tmp_path, 60, host="gone", max_file_bytes=5000)
        for number in range(8):
            write(tmp_path, 20, host="gone" if number < 4 else "login1")
        assert problems(tmp_path) == []
        kept = sorted(files(tmp_path), key=opened_at)[-5:]
        write(tmp_path, 1, max_total_bytes=sum(path.stat().st_size for path in kept))
        *left, _new = sorted(files(tmp_path), key=opened_at)
        assert left == kept
        assert [path.name.split(".")[0] for path in left] == ["gone-0"] + ["login1-0"] * 4
        assert problems(tmp_path) == []
        # Without the chain that says so, it is not by intent.
        for path in tmp_path.glob("login1-0.*"):
            path.unlink()
        (found,) = problems(tmp_path)
        assert re.fullmatch(r"0:1: records 1 to \d+ were removed before this line", found)

    def test_several_processes_have_chains_of_their_own(self, tmp_path: Path) -> None:
        audits = [make(tmp_path) for _ in range(3)]
        for audit in audits:
            for number in range(5):
                audit.record(call(number))
        # A chain that its writer has left goes on with the next one.
        until(lambda: len(files(tmp_path)) == 3)
        for audit in audits:
            audit.close()
        assert [(r.name, r.requests) for r in verify(tmp_path, SECRET)] == [
            ("login1-0", 5),
            ("login1-1", 5),
            ("login1-2", 5),
        ]
        assert problems(tmp_path) == []

    def test_a_file_that_is_moved_away_is_missed_and_not_written_to(self, tmp_path: Path) -> None:
        directory = tmp_path / "audit"
        audit = make(directory)
        audit.record(call(1))
        until(lambda: bool(files(directory)) and audit._writer.is_settled and not audit._pending)
        files(directory)[0].rename(tmp_path / "away")
        audit.record(call(2))
        audit.close()
        assert [r["id"] for r in read(directory) if r["kind"] == "request"] == ["req-2"]
        assert problems(directory) == ["0:1: records 1 to 2 were removed before this line"]

    def test_a_pipe_in_place_of_a_file(self, tmp_path: Path) -> None:
        write(tmp_path, 3)
        (name,) = files(tmp_path)
        name.unlink()
        os.mkfifo(name)
        os.mkfifo(tmp_path / "other-0.head")
        assert problems(tmp_path)
        assert list(read(tmp_path)) == []

    def test_verifying_while_it_is_written(self, tmp_path: Path) -> None:
        audit = make(tmp_path, flush_s=0.001, max_file_bytes=20_000)
        stop = threading.Event()

        def load() -> None:
            number = 0
            while not stop.is_set():
                audit.record(call(number))
                number += 1
                time.sleep(0.0001)

        thread = threading.Thread(target=load)
        thread.start()
        try:
            until(lambda: len(files(tmp_path)) > 2)
            for _ in range(20):
                assert problems(tmp_path) == []
        finally:
            stop.set()
            thread.join()
        audit.close()


WRITER = """
import sys, time
from pathlib import Path
sys.path.insert(0, {root!r})
from tests.router.test_audit import SECRET, call
from exaslurm.router.audit import Audit
audit = Audit(Path({directory!r}), secret=SECRET, host="login1", flush_s=0.001)
audit.start()
number = 0
print("begun", flush=True)
while True:
    audit.record(call(number))
    number += 1
    time.sleep(0.00002)
"""


class TestCrash:
    def test_killed_at_any_moment(self, tmp_path: Path) -> None:
        root = str(Path(__file__).parents[2])
        code = WRITER.format(root=root, directory=str(tmp_path))
        for round_number in range(3):
            with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
                assert process.stdout is not None
                assert process.stdout.readline() == b"begun\n"
                until(
                    lambda n=round_number: (  # type: ignore[misc]
                        len(files(tmp_path)) > n and files(tmp_path)[-1].stat().st_size > 20_000
                    )
                )
                process.send_signal(signal.SIGKILL)
                process.wait(10)
            assert problems(tmp_path) == []
        write(tmp_path, 2)
        report = only(tmp_path)
        assert report.problems == []
        assert len(files(tmp_path)) == 4
        assert report.requests > 100

    def test_half_a_last_record_is_unfinished_and_not_edited(self, tmp_path: Path) -> None:
        sealer = Sealer(derive_key(SECRET))
        writer = ChainWriter(tmp_path, sealer, host="login1", max_file_bytes=10**6)
        writer.ready()
        for number in range(3):
            writer.append({"seq": 0, "kind": "request", "id": number})
        writer.flush()
        # As if it had been killed in the next write: one whole record and a half, and no new head.
        for number in (3, 4):
            writer.append({"seq": 0, "kind": "request", "id": number})
        whole = bytes(writer._buffer)
        with files(tmp_path)[0].open("ab") as file:
            file.write(whole[:-40])
        writer._buffer.clear()
        writer._let_go()

        report = only(tmp_path)
        assert report.problems == []
        (finding,) = report.findings
        assert finding.line == 6
        assert "unfinished" in finding.text

        write(tmp_path, 1)
        report = only(tmp_path)
        assert report.problems == []
        assert [finding.line for finding in report.findings] == [6]
        ids = [record["id"] for record in read(tmp_path) if record["kind"] == "request"]
        assert ids == [0, 1, 2, 3, "req-0"]

    def test_killed_before_its_first_record(self, tmp_path: Path) -> None:
        write(tmp_path, 1)
        (tmp_path / "login1-0.000000000004.20200101-000000-000.jsonl").write_bytes(b'{"seq":4,"ki')
        write(tmp_path, 1)
        assert problems(tmp_path) == []


@pytest.fixture
def file_limit() -> Iterator[Callable[[int], None]]:
    """Limits the size of files, which fails writes as a full disk does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def limit(size: int) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size or soft, hard))

    yield limit
    limit(0)


class TestBadDisk:
    def test_full_and_free_again(
        self, tmp_path: Path, file_limit: Callable[[int], None], caplog: pytest.LogCaptureFixture
    ) -> None:
        audit = make(tmp_path, max_pending=100)
        audit.record(call(0))
        until(lambda: not audit._pending and audit._writer.is_settled)
        file_limit(2000)
        for number in range(1, 21):
            audit.record(call(number))
        until(lambda: audit._trouble is not None)
        for number in range(21, 201):
            audit.record(call(number))
        assert len(audit._pending) == 100  # the bound
        assert audit.lost == 80
        assert problems(tmp_path) == []  # what is there is still whole
        file_limit(0)
        until(lambda: audit._trouble is None and not audit._pending)
        audit.record(call(999))
        assert audit.close() == 0

        report = only(tmp_path)
        assert report.problems == []
        assert report.lost == 80
        assert [finding.text for finding in report.findings] == [
            "80 requests could not be recorded: the disk did not keep up"
        ]
        ids = [record["id"] for record in read(tmp_path) if record["kind"] == "request"]
        assert ids == [f"req-{number}" for number in (*range(121), 999)]
        messages = [record.getMessage() for record in caplog.records]
        assert len(messages) == 2
        assert "cannot be written" in messages[0]
        assert "is written again" in messages[1]

    def test_full_to_the_end(
        self, tmp_path: Path, file_limit: Callable[[int], None], caplog: pytest.LogCaptureFixture
    ) -> None:
        audit = make(tmp_path, max_pending=10)
        audit.record(call(0))
        until(lambda: not audit._pending and audit._writer.is_settled)
        file_limit(1500)
        for number in range(1, 31):
            audit.record(call(number))
        missing = audit.close()
        file_limit(0)
        there = sum(1 for record in read(tmp_path) if record["kind"] == "request")
        assert there + missing == 31
        assert missing >= 20
        assert f"{missing} requests are missing" in caplog.text

        report = only(tmp_path)
        assert (report.problems, report.lost) == ([], missing)
        write(tmp_path, 1)  # the next router says it in the chain
        report = only(tmp_path)
        assert (report.problems, report.lost) == ([], missing)
        assert sum(record.get("lost", 0) for record in read(tmp_path)) == missing

    def test_a_file_that_goes_while_the_disk_is_full(
        self, tmp_path: Path, file_limit: Callable[[int], None]
    ) -> None:
        audit = make(tmp_path)
        audit.record(call(0))
        until(lambda: not audit._pending and audit._writer.is_settled)
        file_limit(1500)
        for number in range(1, 21):
            audit.record(call(number))
        until(lambda: audit._trouble is not None and not audit._pending)
        files(tmp_path)[0].unlink()
        file_limit(0)
        until(lambda: audit._trouble is None)
        audit.record(call(99))
        assert audit.close() == 0
        report = only(tmp_path)
        assert 15 < report.lost <= 20
        assert [r["id"] for r in read(tmp_path) if r["kind"] == "request"] == ["req-99"]
        (found,) = problems(tmp_path)
        assert found == "0:1: records 1 to 2 were removed before this line"

    def test_no_directory(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        (tmp_path / "audit").write_text("in the way")
        audit = make(tmp_path / "audit")
        audit.record(call())
        until(lambda: audit._trouble is not None)
        (tmp_path / "audit").unlink()
        until(lambda: not audit._pending)
        assert audit.close() == 0
        assert only(tmp_path / "audit").requests == 1

    def test_a_disk_that_hangs_blocks_nobody(self, tmp_path: Path) -> None:
        """A write that does not come back: here one into a FIFO that nobody reads."""
        audit = make(tmp_path, max_pending=50)
        until(lambda: bool(files(tmp_path)) and audit._writer.is_settled)
        assert audit._writer._file is not None
        fifo = tmp_path / "fifo"
        os.mkfifo(fifo)
        reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
        stuck = os.open(fifo, os.O_WRONLY)
        os.dup2(stuck, audit._writer._file.fd)
        audit._writer._is_in_place = lambda: True  # type: ignore[method-assign]
        for number in range(2000):
            audit.record(call(number))
            if number < 300:
                time.sleep(0.0005)
        began_s = time.monotonic()
        assert audit.close(timeout_s=0.2) > 1500
        assert time.monotonic() - began_s < 2
        assert len(audit._pending) == 50
        while audit._serialiser.is_alive():  # let it end: fdatasync of a FIFO fails, which is fine
            os.read(reader, 1 << 20)
            audit._serialiser.join(0.01)
        os.close(reader)
        os.close(stuck)

    def test_figures(self, tmp_path: Path) -> None:
        audit = make(tmp_path, max_pending=5)
        until(lambda: bool(files(tmp_path)))
        for number in range(3):
            audit.record(call(number))
        until(lambda: not audit._pending)
        values = {family.name: family.samples[0][1] for family in audit.families()}
        assert values == {
            "exaslurm_router_audit_records_total": (3,),
            "exaslurm_router_audit_lost_total": (0,),
            "exaslurm_router_audit_pending": (0,),
        }
        audit.close()
