"""Medians, ratios and tables of measurements that were taken in rounds. Used by `router`."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

# test -> contestant -> round -> figure -> value
Runs = dict[str, dict[str, dict[int, dict[str, float]]]]

HELD = "workers, held"
WORKERS = ("workers", HELD)
# What is compared, and how: a time is compared by what is added to it.
_COMPARED = (
    ("plain", "requests_per_s", "ratio"),
    ("plain", "cpu_us_per_request", "ratio"),
    ("stream", "requests_per_s", "ratio"),
    ("stream", "cpu_us_per_event", "ratio"),
    ("shared", "requests_per_s", "ratio"),
    ("shared", "cpu_us_per_event", "ratio"),
    ("paced", "cpu_us_per_event", "ratio"),
    ("paced", "gap_p99_ms", "added"),
    ("paced1k", "gap_p99_ms", "added"),
    ("paced3k", "gap_p99_ms", "added"),
    ("rate", "latency_p50_ms", "added"),
    ("rate", "latency_p99_ms", "added"),
    ("large", "requests_per_s", "ratio"),
    ("large", "cpu_us_per_request", "ratio"),
)
_OF_SIZE = (("requests_per_s", "ratio"), ("cpu_us_per_request", "ratio"), ("rss_mb", "ratio"))
_COLUMNS = {
    "first_answer_s": "first s",
    "all_asked_s": "asked s",
    "idle_cores": "idle",
    "requests_per_s": "req/s",
    "events_per_s": "ev/s",
    "cpu_us_per_request": "us/req",
    "cpu_us_per_event": "us/ev",
    "latency_p50_ms": "p50 ms",
    "latency_p99_ms": "p99 ms",
    "first_event_p50_ms": "1st ev ms",
    "gap_p50_ms": "gap p50",
    "gap_p99_ms": "gap p99",
    "gap_most_ms": "gap max",
    "router_cores": "cores",
    "rss_mb": "MB",
    "all_cores": "all cores",
    "others_cores": "others",
    "failed": "failed",
}


def medians(runs: Runs) -> dict[str, dict[str, dict[str, float]]]:
    """test -> contestant -> figure -> median over the rounds; of failed answers, the sum."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for test, by_name in runs.items():
        for name, by_round in by_name.items():
            row = found.setdefault(test, {}).setdefault(name, {})
            # An answer that is only late in one round has its figure in the others.
            for figure in dict.fromkeys(key for one in by_round.values() for key in one):
                values = [one[figure] for one in by_round.values() if figure in one]
                middle = sum(values) if figure == "failed" else statistics.median(values)
                row[figure] = _short(middle)
    return found


def against(runs: Runs, ours: Sequence[str], many: int) -> dict[str, dict[str, dict[str, float]]]:
    """ours -> the other -> what of which test -> median of the ratios within a round.

    With two processes against one, and with many engines against few, we are the other.
    """
    found: dict[str, dict[str, dict[str, float]]] = {}
    compared = [*_COMPARED, *((f"{many} engines", *rest) for rest in _OF_SIZE)]
    for test, figure, how in compared:
        by_name = runs.get(test, {})
        for name in ours:
            for other, theirs in by_name.items():
                if other not in ours or ours.index(other) < ours.index(name):
                    value = _compare(by_name.get(name, {}), theirs, figure, how)
                    if value is not None:
                        row = found.setdefault(name, {}).setdefault(other, {})
                        row[f"{test}: {figure} {how}"] = value
    sizes = [test for test in runs if test.endswith(" engines")]
    if len(sizes) == 2:
        few, most = (runs[test] for test in sizes)
        for name in most:
            value = _compare(most[name], few.get(name, {}), "requests_per_s", "ratio")
            if value is not None:
                key = f"{sizes[1]} to {sizes[0]}: requests_per_s ratio"
                found.setdefault(name, {}).setdefault("itself", {})[key] = value
    for test in WORKERS:
        by_name = runs.get(test, {})
        if len(by_name) == 2:
            one_worker, two_workers = (by_name[name] for name in sorted(by_name, key=len))
            for figure in ("requests_per_s", "cpu_us_per_request"):
                value = _compare(two_workers, one_worker, figure, "ratio")
                if value is not None:
                    row = found.setdefault("core", {}).setdefault("itself", {})
                    row[f"{test}, 2 to 1: {figure} ratio"] = value
    return found


def _compare(
    mine: Mapping[int, Mapping[str, float]],
    theirs: Mapping[int, Mapping[str, float]],
    figure: str,
    how: str,
) -> float | None:
    values = []
    for number in mine.keys() & theirs.keys():
        a, b = mine[number].get(figure), theirs[number].get(figure)
        if a is not None and b is not None and (b or how == "added"):
            values.append(a - b if how == "added" else a / b)
    return _short(statistics.median(values)) if values else None


def tables(runs: Runs, compared: Mapping[str, Mapping[str, Mapping[str, float]]]) -> str:
    lines = []
    for test, by_name in medians(runs).items():
        columns = [key for key in _COLUMNS if any(key in row for row in by_name.values())]
        width = max(len(name) for name in by_name) + 2
        lines += ["", f"{test:{width}}" + "".join(f"{_COLUMNS[key]:>10}" for key in columns)]
        for name, row in by_name.items():
            cells = (f"{row[key]:>10g}" if key in row else f"{'-':>10}" for key in columns)
            lines.append(f"{name:{width}}" + "".join(cells))
    for name, others in compared.items():
        what = list(dict.fromkeys(key for row in others.values() for key in row))
        width = max(map(len, what)) + 2
        lines += ["", f"{name + ' against':{width}}" + "".join(f"{other:>15}" for other in others)]
        for key in what:
            cells = (f"{row[key]:>15g}" if key in row else f"{'-':>15}" for row in others.values())
            lines.append(f"{key:{width}}" + "".join(cells))
    return "\n".join(lines)


def _short(value: float) -> float:
    """Four digits are more than a measurement has."""
    return round(float(f"{value:.4g}"), 6)
