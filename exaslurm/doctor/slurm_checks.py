"""What Slurm on this host says about itself. A handful of commands, each once."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Mapping, Sequence

from exaslurm.core.checks import Check, failed, passed, skipped, warned
from exaslurm.errors import SlurmError
from exaslurm.slurm.client import Slurm

NEEDED = ("sbatch", "squeue", "scancel", "scontrol", "sinfo")
# Before 20.11 steps of one job share their CPUs in another way; 22.05 is the oldest release that
# exaslurm is tested with.
OLDEST = (20, 11)
OLDEST_TESTED = (22, 5)
SHORT_JOB_AGE_S = 120


def check_commands(path: str | None) -> Check:
    """Slurm's commands are on PATH; sacct is nice to have."""
    missing = [name for name in NEEDED if shutil.which(name, path=path) is None]
    if missing:
        return failed(
            "slurm.commands",
            f"missing: {', '.join(missing)}",
            "run this on a login node, or put Slurm's bin directory on PATH (module load slurm)",
        )
    if shutil.which("sacct", path=path) is None:
        return warned(
            "slurm.commands",
            "sacct is missing",
            "status cannot tell why a job ended once squeue has forgotten it",
        )
    return passed("slurm.commands", f"{', '.join(NEEDED)}, sacct")


def check_version(slurm: Slurm) -> Check:
    """The release is one that is known to work."""
    try:
        text = slurm.version()
    except SlurmError as error:
        return failed("slurm.version", str(error), error.remedy or "ask your site")
    found = re.match(r"(\d+)\.(\d+)", text)
    if found is None:
        return warned("slurm.version", text, "the version could not be read; go on with care")
    number = (int(found[1]), int(found[2]))
    if number < OLDEST:
        return failed("slurm.version", text, "exaslurm needs Slurm 20.11 or newer")
    if number < OLDEST_TESTED:
        return warned(
            "slurm.version", text, "below 22.05 GPUs may be missing in steps that overlap"
        )
    return passed("slurm.version", text)


def check_controller(slurm: Slurm) -> Check:
    """slurmctld answers."""
    try:
        answer = slurm.query(["scontrol", "ping"])
    except SlurmError as error:
        return failed("slurm.controller", str(error), error.remedy or "wait, or ask your site")
    lines = [line.strip() for line in answer.splitlines() if "Slurmctld(" in line]
    if any("UP" in line for line in lines):
        return passed("slurm.controller", "; ".join(lines))
    return failed("slurm.controller", "; ".join(lines) or answer.strip(), "wait, or ask your site")


def read_config(slurm: Slurm) -> dict[str, str]:
    """``scontrol show config`` as a mapping; empty if there is no answer."""
    try:
        text = slurm.query(["scontrol", "show", "config"])
    except SlurmError:
        return {}
    return parse_config(text)


def parse_config(text: str) -> dict[str, str]:
    """``Key   = value`` lines; other lines are headings."""
    pairs = (line.split("=", 1) for line in text.splitlines() if "=" in line)
    return {key.strip(): value.strip() for key, value in pairs}


def check_hetjobs(config: Mapping[str, str], *, wanted: bool) -> Check:
    """Heterogeneous jobs can be scheduled, and how soon."""
    name = "slurm.hetjobs"
    if not wanted:
        return skipped(name, "the site config turns them off: one ordinary job a cell")
    if not config:
        return skipped(name, "scontrol show config gave no answer")
    scheduler = config.get("SchedulerType", "")
    if scheduler != "sched/backfill":
        return failed(
            name,
            f"SchedulerType={scheduler}",
            "only the backfill scheduler starts them: set 'slurm: {hetjobs: false}' in the site",
        )
    parameters = config.get("SchedulerParameters", "").split(",")
    if "disable_hetjob_steps" in parameters:
        return passed(name, "allowed; steps over components are not, and not needed")
    if not any(item.startswith("bf_hetjob_immediate") for item in parameters):
        return warned(
            name,
            "allowed, without bf_hetjob_immediate",
            "they start after the rest of the queue; if that takes too long, ask the site for "
            "bf_hetjob_immediate or set 'slurm: {hetjobs: false}' in the site config",
        )
    return passed(name, "allowed, bf_hetjob_immediate is set")


def check_job_age(config: Mapping[str, str]) -> Check:
    """squeue remembers ended jobs long enough to be asked about them."""
    name = "slurm.job_age"
    found = re.match(r"(\d+)", config.get("MinJobAge", ""))
    if found is None:
        return skipped(name, "not known")
    age_s = int(found[1])
    # accounting_storage/none until 23.11, (null) since.
    has_accounting = config.get("AccountingStorageType", "").endswith("slurmdbd")
    if 0 < age_s < SHORT_JOB_AGE_S and not has_accounting:
        return warned(
            name,
            f"{age_s} s, and no accounting",
            "ended jobs are forgotten soon: status may not be able to tell why one ended",
        )
    return passed(name, f"{age_s} s" + (", with accounting" if has_accounting else ""))


def check_partitions(slurm: Slurm, names: Sequence[str]) -> Iterable[Check]:
    """Each partition that the site config names exists and is up."""
    for name in names:
        label = "slurm.partition"
        try:
            text = slurm.query(["scontrol", "show", "partition", name, "--oneliner"])
        except SlurmError as error:
            yield failed(
                label,
                str(error),
                "sinfo -s lists the partitions; mend the site config",
                subject=name,
            )
            continue
        values = dict(item.split("=", 1) for item in text.split() if "=" in item)
        state = values.get("State", "?")
        value = (
            f"{state}, {values.get('TotalNodes', '?')} nodes, "
            f"at most {values.get('MaxTime', '?')}, default {values.get('DefaultTime', '?')}"
        )
        if state == "UP":
            yield passed(label, value, subject=name)
        else:
            yield warned(
                label, value, "it starts no jobs now; choose another, or wait", subject=name
            )


def node_names(slurm: Slurm, partitions: Sequence[str], most: int = 4) -> list[str]:
    """Names of some nodes, to see how fast they resolve."""
    argv = ["sinfo", "--noheader", "--Node", "--format=%N"]
    if partitions:
        argv.append(f"--partition={','.join(partitions)}")
    try:
        names = dict.fromkeys(slurm.query(argv).split())
    except SlurmError:
        return []
    return list(names)[:most]
