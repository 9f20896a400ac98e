"""How fast the router is beside others, in one run on one core.

``EXASLURM_BENCHMARK`` holds options of ``benchmarks/router`` in place of ``--install-peers``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from acceptance.lab import ROOT
from acceptance.runner import Line

TITLE = (
    "speed beside nginx, vllm-router and sglang-router: plain, streams, large bodies, 3,072 engines"
)

_TIMEOUT_S = 2400
# By profile, peer and figure: at least (ratios of requests) or at most (of CPU, added time).
_LIMITS = (
    ("core", "vllm-router", "plain: requests_per_s ratio", ">=", 1.4),
    ("core", "sglang-router", "plain: requests_per_s ratio", ">=", 2.0),
    ("core", "nginx", "plain: requests_per_s ratio", ">=", 0.28),
    ("core", "vllm-router", "3072 engines: requests_per_s ratio", ">=", 14.0),
    ("core", "nginx", "3072 engines: requests_per_s ratio", ">=", 1.2),
    ("full", "vllm-router", "plain: requests_per_s ratio", ">=", 1.0),
    ("full", "vllm-router", "3072 engines: requests_per_s ratio", ">=", 11.0),
    ("core", "vllm-router", "paced: cpu_us_per_event ratio", "<=", 0.9),
    ("core", "nginx", "paced: cpu_us_per_event ratio", "<=", 1.35),
    # On two cores, load and engines are busy before the router is: it gets half a core for this.
    ("core", "vllm-router", "shared: requests_per_s ratio", ">=", 2.5),
    ("core", "nginx", "paced1k: gap_p99_ms added", "<=", 4.0),
    ("core", "nginx", "rate: latency_p50_ms added", "<=", 0.1),
    ("core", "nginx", "rate: latency_p99_ms added", "<=", 0.5),
    ("core", "vllm-router", "large: requests_per_s ratio", ">=", 1.2),
    ("full", "itself", "3072 engines to 8 engines: requests_per_s ratio", ">=", 0.8),
)
# Of both profiles in front of 3,072 engines.
_AT_MOST = (("first_answer_s", 1.0, "s"), ("all_asked_s", 10.0, "s"), ("idle_cores", 0.05, "cores"))


# With fewer cores left than this, what the others do not use, two processes can hardly do more.
_FREE_CORES = 0.2


def run(line: Line) -> None:
    words = os.environ.get("EXASLURM_BENCHMARK", "--install-peers").split()
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "router"), *words],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        timeout=_TIMEOUT_S,
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    line.note(f"load of the machine before and after: {found['load']}")
    for profile, limit_us in (("core", 52), ("full", 75)):
        plain = found["median"]["plain"][profile]
        what = f"{profile}: CPU of a plain request"
        line.at_most(what, plain["cpu_us_per_request"], limit_us, "us")
        many = found["median"]["3072 engines"][profile]
        for figure, limit, unit in _AT_MOST:
            line.at_most(f"{profile}: {figure} with 3,072 engines", many[figure], limit, unit)
    stalled_ms = found["median"]["paced3k"]["core"]["gap_most_ms"] - 100
    line.at_most("core: the longest stall of 3,072 streams", stalled_ms, 100, "ms")
    for profile, peer, figure, sign, limit in _LIMITS:
        value = found["against"][profile].get(peer, {}).get(figure)
        what = f"{profile} beside {peer}, {figure}"
        if value is None:
            line.check(what, False, "not measured")
        elif sign == ">=":
            line.at_least(what, value, limit)
        else:
            line.at_most(what, value, limit, "")
    _workers(line, found)


def _workers(line: Line, found: dict[str, Any]) -> None:
    """Two processes against one, on all cores. Where that leaves no core free, engines and load
    are what is measured; then each process held to a part of a core shows what two of them do."""
    ratios = found["against"]["core"]["itself"]
    two = found["median"]["workers"]["core, 2 workers"]
    cores = len({*found["router_cores"], *found["load_cores"]})
    plain = ratios["workers, 2 to 1: requests_per_s ratio"]
    what = "core: 2 workers to 1, requests_per_s ratio"
    if plain < 1.5 and cores - two["all_cores"] < _FREE_CORES:
        line.note(
            f"{what} is {plain:g}: all {cores} cores are busy with two ({two['all_cores']:.2f}, of "
            f"which the router has {two['router_cores']:.2f})"
        )
        what += f", each held to {cores / 4:g} of a core"
        held = ratios.get("workers, held, 2 to 1: requests_per_s ratio")
        if held is None:
            line.check(what, False, found["left_out"].get("workers, held", "not measured"))
            return
        plain = held
    line.at_least(what, plain, 1.5)
    line.at_most(
        "core: CPU of a request, 2 workers to 1",
        ratios["workers, 2 to 1: cpu_us_per_request ratio"],
        1.15,
        "",
    )
