"""What ``status`` says of the network."""

from __future__ import annotations

from typing import Any

import pytest

from exaslurm.cli.fabric_text import MAX_LINES, fabric_lines, port_words
from exaslurm.core.cell import NodeState
from exaslurm.core.fabric import PortFigures


def port(**more: Any) -> PortFigures:
    values: dict[str, Any] = {
        "device": "mlx5_0", "port": 1, "fabric": "infiniband", "state": "ACTIVE",
        "rate_gbps": 200.0, "interval_s": 10.0, "congestion": 0.01, "errors_per_s": 0.0,
        "discards_per_s": 0.1, "retransmits_per_s": 0.0, "xmit_gbps": 150.0, **more,
    }  # fmt: skip
    return PortFigures(**values)


def node(name: str, *ports: PortFigures) -> NodeState:
    return NodeState(node=name, het_group=1, state="joined", fabric=ports)


def test_nothing_is_said_of_a_network_that_is_well() -> None:
    assert fabric_lines([node("n1", port()), node("n2")]) == []


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"congestion": 0.372}, ["held up 37 % of the time"]),
        ({"congestion": None, "errors_per_s": None, "retransmits_per_s": None}, []),
        ({"state": "DOWN"}, ["down since the cell came up"]),
        ({"errors_per_s": 3.2, "discards_per_s": 20.0, "retransmits_per_s": 1.0},
         ["3 errors a second", "20 packets discarded a second", "1 retransmits a second"]),
        ({"state": "4: ACTIVE"}, []),
    ],
)  # fmt: skip
def test_findings(values: dict[str, Any], words: list[str]) -> None:
    assert port_words(port(**values)) == words


def test_the_worst_first_and_not_too_many() -> None:
    lines = fabric_lines([node("n1", port(congestion=0.2), port(device="mlx5_1", congestion=0.5))])
    assert lines == [
        "network: n1 mlx5_1:1 (infiniband, 200 Gbit/s): held up 50 % of the time",
        "network: n1 mlx5_0:1 (infiniband, 200 Gbit/s): held up 20 % of the time",
    ]
    many = fabric_lines([node(f"n{i}", port(congestion=0.9)) for i in range(MAX_LINES + 5)])
    assert len(many) == MAX_LINES + 1
    assert many[-1] == "network: 5 more ports with findings (--json shows all)"
