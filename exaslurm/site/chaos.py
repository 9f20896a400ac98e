"""What a site allows to be broken on purpose, and how (``exaslurm chaos``)."""

from __future__ import annotations

from pydantic import Field

from exaslurm.util.fields import Flag, PathText, Section, Text

Command = tuple[Text, ...]


class Breakage(Section):
    """One thing that can be broken and mended, by commands; ``{node}`` is the node's name."""

    do: Command = Field(min_length=1, description="Words of the command that breaks it.")
    undo: Command = Field(min_length=1, description="Words of the command that mends it.")


class Chaos(Section):
    """Faults on purpose. Commands run on the host where `exaslurm chaos` runs."""

    lab: Flag = Field(
        default=False,
        description="Nobody's work depends on this machine: faults need no --this-is-not-a-lab.",
    )
    on_node: Command = Field(
        default=(),
        description="Words in front of a command that is to run as root on {node}, such as "
        "[ssh, 'root@{node}', --]. Default: srun, in the deployment's own job and as its user.",
    )
    admin: Command = Field(
        default=(),
        description="Words in front of a Slurm command that operators alone may give. Default: "
        "it is given as the user.",
    )
    link: Breakage | None = Field(default=None, description="The network link of a node.")
    hang_fs: Breakage | None = Field(
        default=None, description="The shared file system of a node: every access waits."
    )
    lose_fs: Breakage | None = Field(
        default=None, description="The shared file system of a node: it is gone."
    )
    slurmctld: Breakage | None = Field(default=None, description="Slurm's controller.")
    disk: PathText | None = Field(
        default=None, description="A directory of each node whose file system may be filled."
    )
