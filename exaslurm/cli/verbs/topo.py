"""``exaslurm topo``: a node's cores, memory, GPUs and network devices, and what is near what."""

from __future__ import annotations

from pathlib import Path

import click

from exaslurm.cli.output import result, result_json, table, talk
from exaslurm.cli.verb import json_option, verb


@verb("topo", short_help="Show a node's GPUs, cores, memory and HCAs, and what is near what.")
@click.option(
    "--from",
    "source",
    metavar="PATH",
    type=click.Path(path_type=Path),
    help="Read it from there: XML of lstopo, NCCL or RCCL, the output of --json, or a directory "
    "with sys and proc in it.  [default: this machine]",
)
@click.option("--table", "as_table", is_flag=True, help="Tables instead of a tree.")
@click.option(
    "--svg", metavar="FILE", type=click.Path(path_type=Path), help="Write a picture to FILE."
)
@click.option(
    "--png",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Write the picture as PNG (needs the extra 'picture').",
)
@click.option(
    "--binding",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Show the replicas of this binding.json too.",
)
@click.option("--node", metavar="NAME", help="Which node of the binding.  [default: this host's]")
@json_option
def topo_command(
    source: Path | None,
    as_table: bool,
    svg: Path | None,
    png: Path | None,
    binding: Path | None,
    node: str | None,
    as_json: bool,
) -> None:
    """Show a node: sockets, NUMA nodes, GPUs, network devices, drives, links between GPUs, and for
    each GPU the nearest network device (PIX: one PCIe switch away, PXB: several, PHB: over the host
    bridge, NODE: over one NUMA node, SYS: over the link between sockets).

    To see another node: srun -N1 exaslurm topo --json > node.json, then --from node.json.
    """
    from exaslurm.api.topology import load_binding, load_topology, this_machine, write_png
    from exaslurm.topo.files import as_list
    from exaslurm.topo.report import report
    from exaslurm.topo.svg import svg as picture
    from exaslurm.topo.tables import tables
    from exaslurm.topo.tree import tree

    topology, granted = this_machine() if source is None else (load_topology(source), None)
    replicas = load_binding(binding, node, topology) if binding is not None else ()
    if svg is not None:
        svg.write_text(picture(topology, replicas), encoding="utf-8")
        talk(f"picture written to {svg}")
    if png is not None:
        write_png(picture(topology, replicas), png)
        talk(f"picture written to {png}")
    if as_json:
        result_json(report(topology, replicas))
    elif as_table:
        found = tables(topology, replicas)
        result("\n\n".join(table(part.header, part.rows) for part in found))
    elif svg is None and png is None:
        result(tree(topology, replicas))
    if granted is not None and set(topology.cpus) - set(granted.cpus):
        talk(f"this process may use CPUs {as_list(granted.cpus)}")
    if granted is not None and granted.gpus is not None and len(granted.gpus) < len(topology.gpus):
        names = ", ".join(f"GPU {topology.gpus[place].index}" for place in granted.gpus)
        talk(f"this process may use {names}")
