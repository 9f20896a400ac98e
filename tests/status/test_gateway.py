from __future__ import annotations

from typing import Any

from exaslurm.core.codec import dumps
from exaslurm.core.submission import GatewayJobs
from exaslurm.slurm.types import JobInfo
from exaslurm.status.gateway import gateway_line, gateway_statuses, read_gateway_jobs, why_none
from exaslurm.util.files import write_atomic

BOOK = GatewayJobs(job_name="exa-hello-gateway-0a1b2c3d", wanted=3, ids=("7", "8", "9"))


def job(ident: str, state: str, reason: str = "", nodes: tuple[str, ...] = ()) -> JobInfo:
    return JobInfo(
        id=ident, name=BOOK.job_name, state=state, reason=reason, nodes=nodes, start_s=1.0,
        end_s=None, components=(),
    )  # fmt: skip


def known(*jobs: JobInfo) -> dict[str, JobInfo]:
    return {item.id: item for item in jobs}


def test_one_serves_and_two_wait() -> None:
    found = gateway_statuses(
        BOOK,
        known(
            job("7", "RUNNING", nodes=("c4",)),
            job("8", "PENDING", "Dependency"),
            job("9", "PENDING", "Dependency"),
        ),
    )
    assert gateway_line(found) == "job 7 runs on c4; 8, 9 wait for its end"
    assert why_none(found) is None


def test_why_none_serves() -> None:
    found = gateway_statuses(
        BOOK,
        known(
            job("7", "NODE_FAIL", nodes=("c4",)),
            job("8", "PENDING", "Resources"),
            job("9", "PENDING", "Dependency"),
        ),
    )
    assert [item.id for item in found] == ["8", "9"]
    assert (gateway_line(found) or "").startswith("job 8 ")
    assert (gateway_line(found) or "").endswith("; 9 waits for its end")
    assert (why_none(found) or "").startswith("its job 8 ")


def test_what_slurm_did_not_say_is_not_known() -> None:
    found = gateway_statuses(BOOK, {})
    assert [item.state for item in found] == ["UNKNOWN"] * 3
    assert why_none(found) is None


def test_where_there_are_none(made: Any) -> None:
    hello = made()
    assert read_gateway_jobs(hello.run_dir) is None
    assert gateway_statuses(None, {}) == ()
    assert gateway_line(()) is None
    write_atomic(hello.run_dir.gateway_jobs, dumps(BOOK))
    assert read_gateway_jobs(hello.run_dir) == BOOK
    write_atomic(hello.run_dir.gateway_jobs, "{")
    assert read_gateway_jobs(hello.run_dir) is None
