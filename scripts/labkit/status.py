"""What a lab looks like now, for people and for programs."""

from __future__ import annotations

from typing import Any

from labkit import daemons, faults, layout, network
from labkit.errors import LabError
from labkit.layout import LOCAL, OUTSIDE_NUMBER, SCRATCH, SHARED, USERS
from labkit.record import LabRecord

SCHEMA = "exaslurm-lab/v1"


def _slurm_states(lab: LabRecord) -> tuple[dict[str, str], str | None]:
    try:
        return daemons.node_states(lab), None
    except LabError as error:
        return {}, str(error)


def as_json(name: str, lab: LabRecord | None) -> dict[str, Any]:
    """The versioned form that `lab status --json` prints."""
    if lab is None or not lab.any_alive():
        return {"schema": SCHEMA, "name": name, "up": False}
    states, trouble = _slurm_states(lab)
    connected = network.connected_hosts(lab.switch_pid())
    hosts: dict[str, Any] = {}
    for host in lab.hosts.values():
        up = lab.is_host_up(host.name)
        hosts[host.name] = {
            "role": "node" if host.is_node else host.name,
            "address": lab.address(host.name),
            "up": up,
            "pid": lab.holders[host.name].pid if up else None,
            "cores": list(host.cores) or list(lab.machine_cores),
            "daemons": daemons.running(lab, host.name) if up else {},
            "shared_fs": faults.shared_state(lab, host.name) if up else "gone",
            "link": "off" if not up else "up" if host.name in connected else "cut",
            "slurm_state": states.get(host.name),
            "state_dir": str(lab.paths.host(host.name)),
        }
    return {
        "schema": SCHEMA,
        "name": name,
        "up": True,
        "profile": lab.config.profile,
        "nodes": lab.config.nodes,
        "slurm": {
            "version": lab.slurm_version,
            "root": lab.config.slurm_root,
            "accounting": lab.config.accounting,
            "trouble": trouble,
        },
        "outside_address": network.address(lab.subnet, OUTSIDE_NUMBER),
        "paths": {
            "shared": SHARED,
            "local": LOCAL,
            "scratch": SCRATCH,
            "state": str(lab.paths.state),
            "shared_backing": str(lab.paths.shared),
        },
        "users": [{"name": user.name, "uid": user.uid, "home": user.home} for user in USERS],
        "hosts": hosts,
    }


def as_text(value: dict[str, Any]) -> str:
    """A table for people."""
    if not value["up"]:
        others = [name for name in layout.lab_names() if name != value["name"]]
        hint = f" (others here: {', '.join(others)})" if others else ""
        return f"lab {value['name']} is not up{hint}"
    slurm = value["slurm"]
    accounting = "on" if slurm["accounting"] else "off"
    lines = [
        f"lab {value['name']}: Slurm {slurm['version']}, profile {value['profile']}",
        f"nodes: {value['nodes']}, accounting: {accounting}",
        f"{'host':8} {'address':13} {'slurm':10} {'cores':8} {'link':4} {'shared':6} daemons",
    ]
    for name, host in value["hosts"].items():
        words = [
            daemon if state == "running" else f"{daemon}:{state}"
            for daemon, state in host["daemons"].items()
        ]
        cores = ",".join(str(core) for core in host["cores"])
        lines.append(
            f"{name:8} {host['address']:13} {host['slurm_state'] or '-':10} {cores:8} "
            f"{host['link']:4} {host['shared_fs']:6} {' '.join(words) if host['up'] else 'off'}"
        )
    if slurm["trouble"]:
        lines.append(f"Slurm gives no answer: {slurm['trouble']}")
    return "\n".join(lines)
