"""The #SBATCH options of each component, by the rules of the site."""

from __future__ import annotations

from typing import Any

import pytest

Desk = Any
Options = Any


@pytest.mark.parametrize(
    ("rule", "expected"), [("per_node", "132608M"), ("all", "0"), ("none", None)]
)
def test_memory(desk: Desk, options: Options, rule: str, expected: str | None) -> None:
    plan = desk.plan("", f"slurm: {{memory: {rule}}}")
    assert options(plan, 1).get("mem") == expected
    assert ("mem" in options(plan, 0)) == (expected is not None)


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("gres", {"gres": "gpu:a100:1"}),
        ("gpus-per-node", {"gpus-per-node": "a100:1"}),
        ("none", {}),
    ],
)
def test_gpus(desk: Desk, options: Options, rule: str, expected: dict[str, str]) -> None:
    plan = desk.plan("", f"slurm: {{gres: {rule}}}")
    words = options(plan, 1)
    assert {key: words[key] for key in ("gres", "gpus-per-node") if key in words} == expected
    assert not {"gres", "gpus-per-node"} & set(options(plan, 0))


def test_a_partition_that_wants_a_gpu_asked_for(desk: Desk, options: Options) -> None:
    kinds = "node_kinds: {gpu: {partition: gpus, gpus: 4, require_gpus: true, device: cpu}}"
    plan = desk.plan("", kinds)
    # The head has to be there too: the site knows no other kind.
    assert options(plan, 0)["gres"] == "gpu:1"
    assert options(plan, 1)["gres"] == "gpu:1"


def test_all_that_the_spec_may_say(desk: Desk, options: Options) -> None:
    spec = (
        "account: proj_g\nqos: debug\nreservation: course\ntime_limit: 04:00:00\n"
        "partition: special\nworkers: {nodes: 2, switches: 1@00:10:00}\n"
    )
    plan = desk.plan(spec, "slurm: {export: NONE, signal_s: 300}")
    head, workers = options(plan, 0), options(plan, 1)
    for words in (head, workers):
        assert words["account"] == "proj_g"
        assert words["qos"] == "debug"
        assert words["reservation"] == "course"
        assert words["time"] == "04:00:00"
        assert words["export"] == "NONE"
        assert words["signal"] == "B:USR1@300"
        assert words["no-kill"] is None
        assert words["no-requeue"] is None
    assert (head["partition"], workers["partition"]) == ("serial", "special")
    assert ("switches" in head, workers["switches"]) == (False, "1@00:10:00")


def test_constraint_of_a_kind(desk: Desk, options: Options) -> None:
    plan = desk.plan("", "node_kinds: {gpu: {gpus: 4, constraint: gpu&hbm80g}}")
    assert options(plan, 1)["constraint"] == "gpu&hbm80g"


def test_extra_directives_add_and_replace(desk: Desk, options: Options) -> None:
    spec = "slurm: {extra_directives: [--wckey=a b, --exclusive, --signal=B:TERM@60]}"
    plan = desk.plan(spec, "slurm: {extra_directives: [--wckey=site, --licenses=x]}")
    for component in (0, 1):
        words = options(plan, component)
        assert words["wckey"] == "a b"
        assert words["licenses"] == "x"
        assert words["exclusive"] is None
        assert words["signal"] == "B:TERM@60"
    names = [name for name, _ in plan.cells[0].components[1].directives]
    assert len(names) == len(set(names))


def test_skipped_and_forbidden_directives(desk: Desk, options: Options) -> None:
    spec = "slurm: {skip_directives: [--no-requeue, noreq]}"
    plan = desk.plan(spec, "slurm: {forbidden_directives: [mem, gres, export]}")
    for component in (0, 1):
        assert not {"no-requeue", "mem", "gres"} & set(options(plan, component))
    assert plan.notes == ("slurm.skip_directives: no component has --noreq",)


def test_mandatory_directives(desk: Desk, options: Options) -> None:
    site = "slurm: {mandatory_directives: [ntasks, account, wckey]}"
    found = desk.refusal("", site)
    assert [line.split(": ", 2)[1] for line in found] == ["account", "slurm.extra_directives"]
    spec = "account: a\nworkers: {nodes: 3}\nslurm: {extra_directives: [--wckey=b]}"
    plan = desk.plan(spec, site)
    assert options(plan, 1)["ntasks"] == "3"


def test_the_environment_speaks_where_spec_and_site_are_silent(
    desk: Desk, options: Options
) -> None:
    environ = {
        "SBATCH_ACCOUNT": "mine",
        "SBATCH_QOS": "low",
        "SBATCH_TIMELIMIT": "30",
        "SBATCH_RESERVATION": "r",
        "SBATCH_PARTITION": "debug",
        "SBATCH_JOB_NAME": "ignored",
    }
    plan = desk.plan("qos: high", "", environ=environ)
    words = options(plan, 1)
    assert (words["account"], words["qos"], words["time"]) == ("mine", "high", "30")
    # Node kinds name their partitions: the user's default is for sites that know none.
    assert words["partition"] == "gpus"
    assert set(plan.notes) == {
        "account: mine (from SBATCH_ACCOUNT in the environment)",
        "reservation: r (from SBATCH_RESERVATION in the environment)",
        "time_limit: 30 (from SBATCH_TIMELIMIT in the environment)",
    }
    plan = desk.plan("", "", base="generic", environ=environ)
    assert options(plan, 0)["partition"] == options(plan, 1)["partition"] == "debug"
    assert "partition: debug (from SBATCH_PARTITION in the environment)" in plan.notes


def test_the_environment_cannot_smuggle_lines_in(desk: Desk) -> None:
    with pytest.raises(Exception, match=r"account: SBATCH_ACCOUNT in your environment is"):
        desk.plan("", "", environ={"SBATCH_ACCOUNT": "a\n#SBATCH --uid=0"})
    with pytest.raises(Exception, match=r"time_limit: SBATCH_TIMELIMIT in your environment is"):
        desk.plan("", "", environ={"SBATCH_TIMELIMIT": "soon"})


def test_the_partition_of_the_spec_is_the_heads_too_where_its_kind_names_none(
    desk: Desk, options: Options
) -> None:
    plan = desk.plan("partition: batch", "", base="generic")
    assert options(plan, 0)["partition"] == options(plan, 1)["partition"] == "batch"


def test_the_sites_default_time(desk: Desk, options: Options) -> None:
    plan = desk.plan("", "limits: {default_time: 02:00:00}")
    assert options(plan, 1)["time"] == "02:00:00"
    assert plan.notes == ("time_limit: 02:00:00 (the default of site big)",)
    assert "time" not in options(desk.plan(), 1)


def test_srun_options_of_the_site(desk: Desk) -> None:
    plan = desk.plan("", "slurm: {srun_args: [--network=disable_rdzv_get, external-launcher]}")
    assert plan.srun_args == ("--network=disable_rdzv_get", "--external-launcher")


def test_without_slurm_its_variables_make_no_other_plan(desk: Desk) -> None:
    environ = {"SBATCH_ACCOUNT": "mine", "SBATCH_TIMELIMIT": "nonsense", "SBATCH_PARTITION": "x"}
    assert desk.plan(base="local", environ=environ) == desk.plan(base="local")
