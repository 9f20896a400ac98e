"""What ``sbatch`` says when it fails: did it refuse, did it not get through, or who knows?"""

from __future__ import annotations

from exaslurm.slurm.command import Answer, says

# sbatch did not reach the controller: there is certainly no job.
_NOT_SENT = (
    "unable to contact slurm controller",
    "unable to contact the slurm controller",
    "connect failure",
    "connection refused",
    "could not establish a configuration source",
    "dns srv lookup failed",
)
# The request was sent, but the answer did not come: there may be a job.
_UNANSWERED = (
    "socket timed out",
    "zero bytes were transmitted",
    "transport endpoint is not connected",
    "connection reset",
    "message receive failure",
    "unexpected message received",
    "resource temporarily unavailable",
    "no answer in",
)

_REMEDIES: tuple[tuple[str, str], ...] = (
    ("invalid partition", "set 'partition' in the spec to one of those that 'sinfo -s' lists"),
    (
        "invalid account or account/partition combination",
        (
            "set 'account' in the spec to one that you may use in this partition"
            " ('sacctmgr -n show assoc user=$USER format=account,partition,qos')"
        ),
    ),
    ("invalid account", "set 'account' in the spec to one of yours ('sacctmgr show assoc')"),
    ("invalid qos", "set 'qos' in the spec to one that you may use ('sacctmgr show assoc')"),
    ("user's group not permitted", "use a partition that is open to your group ('sinfo -s')"),
    (
        "job violates accounting/qos policy",
        (
            "the request is above a limit of your account or QOS: fewer nodes, less time,"
            " or wait for your other jobs ('sacctmgr show qos')"
        ),
    ),
    (
        "requested time limit is invalid",
        "set 'time_limit' to no more than the partition's limit ('sinfo -o \"%P %l\"')",
    ),
    (
        "time limit exceeds",
        "set 'time_limit' to no more than the partition's limit ('sinfo -o \"%P %l\"')",
    ),
    (
        "more processors requested than permitted",
        "lower 'cores' or the number of nodes, or ask your site about the partition's limits",
    ),
    (
        "node count specification invalid",
        "the partition does not have, or does not give, that many nodes: lower 'workers.nodes'",
    ),
    (
        "requested node configuration is not available",
        (
            "no node of the partition has what one component asks for: compare the '#SBATCH' lines"
            " of 'exaslurm render' with 'sinfo -N -l', then change the node kind in the site config"
        ),
    ),
    (
        "memory specification can not be satisfied",
        "no node has that much memory to give: lower 'mem_gib', or correct the site's node kind",
    ),
    (
        "invalid generic resource",
        "the cluster does not know this GRES: correct 'gres' in the site config ('sinfo -o %G')",
    ),
    (
        "gres option unsupported",
        "this Slurm gives no GRES: turn 'gres' off in the site config",
    ),
    ("invalid feature", "correct 'constraints': 'sinfo -o %f' lists the features"),
    ("invalid wckey", "ask your site which wckey you may use"),
    ("invalid reservation", "'scontrol show reservation' lists those that you may use"),
    (
        "requested reservation",
        "'scontrol show reservation' lists those that you may use",
    ),
    (
        "maxsubmit",
        (
            "you have as many jobs queued as you may: end some, or use fewer cells (every component"
            " of a heterogeneous job counts as a job)"
        ),
    ),
    (
        "job submit limit",
        (
            "you have as many jobs queued as you may: end some, or use fewer cells (every component"
            " of a heterogeneous job counts as a job)"
        ),
    ),
    ("access/permission denied", "ask your site whether your account may submit jobs there"),
    ("job dependency problem", "the job that this one waits for no longer exists"),
    ("unrecognized option", "this Slurm is too old for an option: list it in 'skip_directives'"),
    ("invalid option", "this Slurm is too old for an option: list it in 'skip_directives'"),
    ("script contains dos line breaks", "save the template with Unix line ends"),
)


def was_not_sent(answer: Answer) -> bool:
    """Whether sbatch could not even reach the controller."""
    return answer.returncode not in (0, None) and says(answer.complaint, _NOT_SENT)


def is_unclear(answer: Answer) -> bool:
    """Whether a job may exist although sbatch named none."""
    if answer.returncode is None or answer.returncode < 0 or answer.returncode == 0:
        return True
    return says(answer.complaint, _UNANSWERED) and not was_not_sent(answer)


def remedy(complaint: str) -> str:
    """What to do about a refusal."""
    lower = complaint.lower()
    for phrase, sentence in _REMEDIES:
        if phrase in lower:
            return sentence
    return (
        "'exaslurm render' shows the script; 'sbatch --test-only' on it asks Slurm again, and"
        " 'slurm: extra_directives/skip_directives' in the spec change its directives"
    )
