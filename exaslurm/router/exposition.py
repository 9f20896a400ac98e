"""Figures as data: merged over the processes that share a port, and written out for Prometheus.

Whoever answers a scrape writes its own figures down, and adds those that the other processes last
wrote: a scraper never sees a counter go back, whichever process it meets.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import orjson

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SCHEMA = "exaslurm/metrics/1"

Kind = Literal["counter", "gauge", "histogram"]
Rule = Literal["sum", "max"]
Labels = tuple[str, ...]
Numbers = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Family:
    """One metric: its samples by label values.

    A counter's or gauge's sample is one number. A histogram's is the count in each bucket (not
    those below it), the count above the last, and the sum of what was observed. ``rule`` says how
    the samples of several processes become one.
    """

    name: str
    kind: Kind
    help: str
    labels: Labels = ()
    samples: Sequence[tuple[Labels, Numbers]] = ()
    buckets: Numbers = ()
    rule: Rule = "sum"


def dump(families: Iterable[Family]) -> bytes:
    """The figures of one process, for another one to ``load``."""
    return orjson.dumps({"schema": _SCHEMA, "families": list(families)})


def load(raw: bytes) -> list[Family]:
    """What ``dump`` gave; ValueError for anything else."""
    try:
        data = orjson.loads(raw)
        if data["schema"] != _SCHEMA:
            raise ValueError(f"schema {data['schema']!r}, expected {_SCHEMA!r}")
        return [_family(item) for item in data["families"]]
    except (KeyError, TypeError) as error:
        raise ValueError(f"not a snapshot of metrics: {error!r}") from error


def merge(live: Iterable[Iterable[Family]], ended: Iterable[Iterable[Family]] = ()) -> list[Family]:
    """The figures of several processes as those of one.

    Of processes that have ended the counts stay, or the sum would fall, which Prometheus takes
    for a restart; their gauges are gone with them.
    """
    merged: dict[str, _Merged] = {}
    for families in live:
        for family in families:
            _add(merged, family)
    for families in ended:
        for family in families:
            if family.kind != "gauge":
                _add(merged, family)
    return [entry.family() for entry in merged.values()]


def render(families: Iterable[Family]) -> bytes:
    """Prometheus' text format, version 0.0.4. Labels without a value are left out, which is the
    same to Prometheus."""
    lines: list[str] = []
    for family in families:
        text = family.help.replace("\\", "\\\\").replace("\n", "\\n")
        lines.append(f"# HELP {family.name} {text}")
        lines.append(f"# TYPE {family.name} {family.kind}")
        for values, numbers in sorted(family.samples):
            labels = _label_list(family.labels, values)
            if family.kind == "histogram":
                _histogram(lines, family, labels, numbers)
            else:
                lines.append(f"{family.name}{_braces(labels)} {_number(numbers[0])}")
    lines.append("")
    return "\n".join(lines).encode()


@dataclass(slots=True)
class _Merged:
    like: Family
    samples: dict[Labels, Numbers] = field(default_factory=dict)

    def family(self) -> Family:
        like = self.like
        return Family(
            like.name, like.kind, like.help, like.labels, list(self.samples.items()),
            like.buckets, like.rule,
        )  # fmt: skip


def _add(merged: dict[str, _Merged], family: Family) -> None:
    entry = merged.get(family.name)
    if entry is None:
        entry = merged[family.name] = _Merged(family)
    elif (entry.like.labels, entry.like.buckets) != (family.labels, family.buckets):
        return  # of another version, during a hand-over: it cannot be added up
    combine = max if family.rule == "max" else _plus
    for values, numbers in family.samples:
        known = entry.samples.get(values)
        entry.samples[values] = numbers if known is None else tuple(map(combine, known, numbers))


def _plus(left: float, right: float) -> float:
    return left + right


def _family(item: dict[str, object]) -> Family:
    kind, rule = item["kind"], item["rule"]
    if kind not in ("counter", "gauge", "histogram") or rule not in ("sum", "max"):
        raise ValueError(f"a metric of kind {kind!r}, merged by {rule!r}")
    samples = item["samples"]
    labels, buckets = item["labels"], item["buckets"]
    if not (isinstance(samples, list) and isinstance(labels, list) and isinstance(buckets, list)):
        raise ValueError("samples, labels and buckets must be lists")
    return Family(
        name=str(item["name"]),
        kind=kind,
        help=str(item["help"]),
        labels=tuple(labels),
        samples=[(tuple(values), tuple(numbers)) for values, numbers in samples],
        buckets=tuple(buckets),
        rule=rule,
    )


def _histogram(
    lines: list[str], family: Family, labels: list[str], numbers: Sequence[float]
) -> None:
    *counts, total = numbers
    running = 0.0
    for bound, count in zip((*map(str, family.buckets), "+Inf"), counts, strict=True):
        running += count
        inside = _braces([*labels, f'le="{bound}"'])
        lines.append(f"{family.name}_bucket{inside} {_number(running)}")
    lines.append(f"{family.name}_count{_braces(labels)} {_number(running)}")
    lines.append(f"{family.name}_sum{_braces(labels)} {_number(total)}")


def _label_list(names: Labels, values: Labels) -> list[str]:
    pairs = sorted(zip(names, values, strict=True))
    return [f'{name}="{_escape(value)}"' for name, value in pairs if value]


def _escape(value: str) -> str:
    value = value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
    return value.encode("utf-8", "replace").decode()  # a lone surrogate is no UTF-8


def _braces(labels: Sequence[str]) -> str:
    return "{" + ",".join(labels) + "}" if labels else ""


def _number(value: float) -> str:
    return str(int(value)) if math.isfinite(value) and value == int(value) else repr(value)
