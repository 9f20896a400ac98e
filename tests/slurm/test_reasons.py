from __future__ import annotations

import pytest

from exaslurm.slurm.reasons import explain, is_hopeless


@pytest.mark.parametrize(
    ("reason", "part"),
    [
        ("Resources", "enough free nodes"),
        ("(Priority)", "higher priority"),
        ("ReqNodeNotAvail, UnavailableNodes:c[1-2]", "down, drained or reserved"),
        ("ReqNodeNotAvail, Reserved for maintenance", "shorter 'time_limit'"),
        (
            (
                "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority "
                "partitions"
            ),
            "sinfo -R",
        ),
        ("QOSMaxSubmitJobPerUserLimit", "jobs that you may queue"),
        ("AssocMaxSubmitJobLimit", "jobs that you may queue"),
        ("AssocGrpCPUMinutesLimit", "resource limit of your account or QOS"),
        ("AssocGrpGRES", "resource limit"),
        ("QOSMaxGRESPerUser", "resource limit"),
        ("QOSMaxNodePerUserLimit", "resource limit"),
        ("QOSMaxJobsPerUserLimit", "as many jobs of yours"),
        ("AssocMaxJobsLimit", "as many jobs of yours"),
        ("QOSMaxWallDurationPerJobLimit", "asks for more time"),
        ("AssocMaxWallDurationPerJobLimit", "asks for more time"),
        ("PartitionTimeLimit", "lower 'time_limit'"),
        ("BadConstraints", "what no node has"),
        ("BeginTime", "begin time"),
        ("DependencyNeverSatisfied", "will never start"),
        ("launch failed requeued held", "scontrol release"),
    ],
)
def test_sentence_with_slurms_word(reason: str, part: str) -> None:
    sentence = explain(reason)
    assert part in sentence
    assert reason.strip("()") in sentence


def test_unknown_words_are_not_lost() -> None:
    assert "'SomethingOf2031'" in explain("SomethingOf2031")


@pytest.mark.parametrize("reason", ["PartitionTimeLimit", "(BadConstraints)", "JobHeldAdmin"])
def test_hopeless(reason: str) -> None:
    assert is_hopeless(reason)


@pytest.mark.parametrize("reason", ["Resources", "Priority", "BeginTime", "", "AssocGrpCpuLimit"])
def test_hopeful(reason: str) -> None:
    assert not is_hopeless(reason)
