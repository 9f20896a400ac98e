"""Checks of hosts: what was looked at, what was found, what to do about it.

``doctor`` and the preflight of a cell's bring-up run the same ones, by the same identifiers
(docs/reference/doctor.md has all of them).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Outcome = Literal["pass", "warn", "fail", "skip"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that was looked at. ``id`` is stable (``ib.rate``), ``subject`` the one of several
    that it was (``mlx5_0:1``), ``value`` what was measured, ``remedy`` what to do."""

    id: str
    outcome: Outcome
    value: str
    remedy: str | None = None
    subject: str = ""

    def sentence(self) -> str:
        """``ib.rate mlx5_0:1: 50 Gb/s``."""
        return f"{self.id}{' ' + self.subject if self.subject else ''}: {self.value}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerMeasure:
    """A TCP connection from one node to another. Times of a round trip, in microseconds;
    ``ahead_s``: the other's clock minus this one's. ``error``: why there is no measure."""

    peer: str
    address: str
    rtt_us: float | None = None
    ahead_s: float | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeChecks:
    """What a node found out about itself. ``alike`` are values that should be the same on all
    nodes of a kind, by the identifier of the check that compares them."""

    host: str
    checks: tuple[Check, ...]
    alike: Mapping[str, str] = field(default_factory=dict)
    peers: tuple[PeerMeasure, ...] = ()
    address: str = ""

    def first_failed(self) -> Check | None:
        """The first failed check; None if the node can be used."""
        return next((check for check in self.checks if check.outcome == "fail"), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeNeeds:
    """What a node must offer, as site and plan say. ``gpus``: how many the kind of node has
    (None: not known); ``gpu_cpus``: lists of the CPUs near each, in the order of their numbers.
    ``hcas``: the network devices that the site names, or patterns of them. ``shm_mib``: what Ray's
    object store and the engines put into /dev/shm. ``names``: hosts that must resolve.
    ``witness``: a file that was written elsewhere into the shared directory, and what is in it.
    ``container``: command (None: Slurm has it) and image of a container that is to be started
    there."""

    version: str
    interface: str | None
    host_suffix: str
    first_port: int
    last_port: int
    port_block: int
    state: str
    shared: str
    local: str | None
    tmp: str
    shm_mib: int
    gpus: int | None = None
    gpu_cpus: tuple[str, ...] = ()
    hcas: tuple[str, ...] = ()
    vllm: bool = True
    ray: bool = True
    names: tuple[str, ...] = ()
    witness: tuple[str, str] | None = None
    container: tuple[str | None, str] | None = None


def passed(ident: str, value: str, *, subject: str = "") -> Check:
    return Check(id=ident, outcome="pass", value=value, subject=subject)


def warned(ident: str, value: str, remedy: str, *, subject: str = "") -> Check:
    return Check(id=ident, outcome="warn", value=value, remedy=remedy, subject=subject)


def failed(ident: str, value: str, remedy: str, *, subject: str = "") -> Check:
    return Check(id=ident, outcome="fail", value=value, remedy=remedy, subject=subject)


def skipped(ident: str, value: str, *, subject: str = "") -> Check:
    return Check(id=ident, outcome="skip", value=value, subject=subject)
