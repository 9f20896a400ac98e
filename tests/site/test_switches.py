"""A site's map of its switches."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from exaslurm.site.model import Site


def site(switches: dict[str, Any]) -> Site:
    return Site.model_validate(
        {
            "schema": "exaslurm/site/v1",
            "name": "s",
            "node_kinds": {"cpu": {"cpus": 8}},
            "switches": switches,
        }
    )


def test_nodes_below_switches_below_switches() -> None:
    switches = {"rack1": "nid[001-064]", "rack2": "nid065,nid066", "row1": "rack[1-2]"}
    assert site(switches).switches == switches


@pytest.mark.parametrize(
    ("switches", "message"),
    [
        ({"rack1": "nid[1-"}, "a '[' without its ']'"),
        ({"rack1": ","}, "names no node and no switch"),
        ({"a": "b", "b": "n1,a"}, "a is below itself"),
        ({"a": "a"}, "a is below itself"),
        ({"a b": "n1"}, "must be one word"),
    ],
)
def test_what_cannot_be(switches: dict[str, str], message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        site(switches)
    assert message in str(caught.value)
