"""Slurm's one-word reasons (``squeue -o %r``) as sentences with what to do.

Words and their meaning: https://slurm.schedmd.com/job_reason_codes.html
"""

from __future__ import annotations

import re

_QUEUE = "waits its turn: 'squeue --start' shows Slurm's estimate"
_LIMIT = "; end other jobs, ask for less, or wait"

_EXACT: dict[str, str] = {
    "Resources": "is next in line and waits for enough free nodes",
    "Priority": "waits behind jobs with a higher priority; 'squeue --start' shows the estimate",
    "None": "was not yet looked at by the scheduler",
    "BeginTime": "is not to start before its begin time, or was requeued and waits a while",
    "Dependency": "waits for another job that it depends on",
    "DependencyNeverSatisfied": "depends on a job that ended otherwise and will never start; "
    "stop it and submit again",
    "Licenses": "waits for a licence that is in use",
    "Reservation": "waits for its reservation to begin",
    "ReservationDeleted": "asked for a reservation that was deleted; stop it and submit again",
    "JobHeldUser": "was held; 'scontrol release JOBID' lets it go on",
    "JobHeldAdmin": "was held by an administrator; ask your site why",
    "JobArrayTaskLimit": "has as many tasks running as its array may",
    "PartitionDown": "asks for a partition that is down; wait, or choose another partition",
    "PartitionInactive": "asks for a partition that starts no jobs now; choose another partition",
    "PartitionNodeLimit": "asks for more (or fewer) nodes than the partition gives, and will not "
    "start; lower 'workers.nodes' or choose another partition",
    "PartitionTimeLimit": "asks for more time than the partition gives, and will not start; "
    "lower 'time_limit' or choose another partition",
    "PartitionConfig": "asks for something that the partition does not give; compare it with "
    "'scontrol show partition'",
    "BadConstraints": "asks for what no node has (constraints, memory, GPUs or cores), and will "
    "not start; compare 'exaslurm render' with 'sinfo -N -l'",
    "AccountNotAllowed": "names an account that the partition does not take; set 'account'",
    "QOSNotAllowed": "names a QOS that the partition or account does not take; set 'qos'",
    "InvalidAccount": "names an account that is not valid (any more); set 'account'",
    "InvalidQOS": "names a QOS that is not valid (any more); set 'qos'",
    "Cleaning": "is being requeued and its nodes are being cleaned",
    "Prolog": "waits for the site's prolog on its nodes",
    "NodeDown": "needs a node that is down; stop it and submit again, or wait",
    "FrontEndDown": "waits for a front-end node of the site",
    "SchedDefer": _QUEUE,
    "MaxRequeue": "was requeued too often and is held; look at its logs",
    "NonZeroExitCode": "ended with an error; its log tells which ('exaslurm logs')",
    "TimeLimit": "reached its time limit; submit again, with a longer 'time_limit' if you may",
    "RaisedSignal": "was ended by a signal",
    "OutOfMemory": "used more memory than it asked for; raise 'mem_gib'",
    "JobLaunchFailure": "could not be started on its nodes; tell your site, and submit again",
    "NodeFailure": "lost a node",
    "SystemFailure": "was ended by a failure of Slurm itself",
    "FedJobLock": "waits for the clusters of the federation to agree",
    "BurstBufferOperation": "had a burst buffer operation fail",
    "BurstBufferResources": "waits for room in the burst buffer",
    "BurstBufferStageIn": "waits for files to be copied into the burst buffer",
    "launch failed requeued held": "could not be started on its nodes and is held; "
    "'scontrol release JOBID' tries again",
    "user env retrieval failed requeued held": "could not read your login environment and is "
    "held; 'scontrol release JOBID' tries again",
    "job requeued in held state": "was requeued and is held; 'scontrol release JOBID' lets it go",
}

_PATTERNS: tuple[tuple[str, str], ...] = (
    (
        r"ReqNodeNotAvail.*(?i:maint|reserved)",
        (
            "would run into a maintenance or another reservation; a shorter 'time_limit' may fit "
            "in before it ('scontrol show reservation')"
        ),
    ),
    (
        r"ReqNodeNotAvail",
        (
            "needs nodes that are down, drained or reserved ('sinfo -R' tells why); a maintenance "
            "reservation counts too: then a shorter 'time_limit' may fit in before it"
        ),
    ),
    (
        r"Nodes required for job are DOWN",
        (
            "needs nodes that are down, drained or reserved for jobs of higher priority "
            "('sinfo -R' tells why)"
        ),
    ),
    (r"QOSMaxSubmit|AssocMaxSubmit", "is above the number of jobs that you may queue" + _LIMIT),
    (
        r"(QOS|Assoc)(Max|Grp)\w*(WallDuration|WallMinutes|Wall)\w*",
        "asks for more time than your account or QOS allows; lower 'time_limit'",
    ),
    (
        r"(QOS|Assoc)MaxJobs\w*|(QOS|Assoc)GrpJobs\w*|MaxJobsPerAccount",
        "waits since as many jobs of yours (or your account) run as may" + _LIMIT,
    ),
    (
        (
            r"(QOS|Assoc)(Max|Grp|Min)\w*(Node|Cpu|CPU|GRES|Gres|Mem|Memory|TRES|Billing|Energy|BB|"
            r"License)\w*"
        ),
        "is above a resource limit of your account or QOS" + _LIMIT,
    ),
    (r"(QOS|Assoc)\w+", "is held back by a limit of your account or QOS" + _LIMIT),
    (r"Max\w+PerAccount", "is above a limit of your account" + _LIMIT),
    (r"QOSUsageThreshold", "has used up the QOS's share; wait or choose another 'qos'"),
)

# A job that waits for one of these will not start without somebody doing something.
_HOPELESS = re.compile(
    r"DependencyNeverSatisfied|PartitionNodeLimit|PartitionTimeLimit|BadConstraints|"
    r"AccountNotAllowed|QOSNotAllowed|InvalidAccount|InvalidQOS|ReservationDeleted|JobHeld\w+|"
    r"launch failed requeued held|user env retrieval failed requeued held|MaxRequeue"
)


def explain(reason: str) -> str:
    """A sentence that goes on after "the job": what it waits for or ended of, and what to do.

    An unknown reason is quoted, so that nothing Slurm said is lost.
    """
    word = reason.strip().strip("()")
    sentence = _EXACT.get(word)
    if sentence is None and "," in word:
        sentence = _EXACT.get(word.split(",", 1)[0])
    if sentence is None:
        for pattern, text in _PATTERNS:
            if re.match(pattern, word):
                sentence = text
                break
    if sentence is None:
        return f"has the reason {word!r} in Slurm's words" if word else "has no reason stated"
    return f"{sentence} [{word}]"


def is_hopeless(reason: str) -> bool:
    """Whether a pending job will not start unless somebody changes something."""
    return _HOPELESS.match(reason.strip().strip("()")) is not None
