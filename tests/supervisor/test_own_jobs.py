"""Jobs that nobody waits for are cancelled; the gateway's are kept at their number."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from exaslurm.slurm.types import JobId, JobInfo
from exaslurm.supervisor.own_jobs import EVERY_S, OwnJobs
from tests.supervisor.conftest import Job, Site


class Listed(OwnJobs):
    """Its squeue is the cluster's."""

    def __init__(self, site: Site) -> None:
        self.asked = 0

        def named(prefix: str) -> list[JobInfo]:
            self.asked += 1
            found = [site.cluster._info(job) for job in site.cluster.book.values()]
            return [job for job in found if job.name.startswith(prefix) and not job.is_finished]

        def cancel(ident: JobId | str) -> None:
            site.cluster.finish(site.cluster.book[str(ident)], "CANCELLED")

        site.cluster.named = named  # type: ignore[method-assign]
        site.cluster.cancel = cancel  # type: ignore[method-assign, assignment]
        super().__init__(site.run_dir, site.cluster, monotonic=site.cluster.clock)
        self.site = site

    def look(self) -> None:
        self.site.cluster.now_s += EVERY_S
        self.step(self.site.supervisor._observer.look())


@pytest.fixture
def listed(site: Site) -> Listed:
    return Listed(site)


def stray(site: Site, name: str) -> Job:
    first = site.only("c000")
    job = replace(first, id=str(100 + len(site.cluster.book)), name=name)
    site.cluster.book[job.id] = job
    return job


def test_a_late_job_of_a_submission_that_was_given_up(site: Site, listed: Listed) -> None:
    item = site.turns()["c000"]
    site.write("c000", replace(item, before=("aaaaaaaa",)))
    late = stray(site, "exa-hello-c000-aaaaaaaa")
    listed.look()
    assert late.end == "CANCELLED"
    assert site.only("c001").end is None
    assert [job.end for job in site.cluster.book.values()].count("CANCELLED") == 1
    (line,) = site.history("cancel stray")
    assert (line["job"], line["cell"]) == (late.id, "c000")
    assert "was submitted again since" in line["reason"]


def test_a_second_job_of_one_submission(site: Site, listed: Listed) -> None:
    second = stray(site, site.turns()["c000"].job_name)
    listed.look()
    assert second.end == "CANCELLED"
    assert site.cluster.book[str(site.turns()["c000"].job_id)].end is None


@pytest.mark.parametrize(
    "name",
    [
        "exa-hello-c000-bbbbbbbb",  # of another state directory: nothing is known of it here
        "exa-hello-c000",
        "exa-hello-c009-aaaaaaaa",
        "exa-hello-c000-extra-aaaaaaaa",
        "exa-hello-gateway-aaaaaaaa",
    ],
)
def test_what_is_not_known_to_be_a_stray_is_left_alone(
    site: Site, listed: Listed, name: str
) -> None:
    job = stray(site, name)
    listed.look()
    assert job.end is None


def test_a_submission_without_an_answer_yet_is_waited_for(site: Site, listed: Listed) -> None:
    item = site.turns()["c000"]
    site.write("c000", replace(item, state="intent", job_id=None))
    listed.look()
    assert site.cluster.book[str(item.job_id)].end is None


def test_slurm_is_asked_once_and_seldom(site: Site, listed: Listed) -> None:
    look = site.supervisor._observer.look()
    for _ in range(3):
        listed.step(look)
    assert listed.asked == 1
    site.cluster.now_s += EVERY_S
    listed.step(look)
    assert listed.asked == 2
    assert Path(site.run_dir.path, "gateway", "jobs.json").exists() is False
