"""Conditions in the words of Ray's label selectors."""

from __future__ import annotations

import pytest

from exaslurm.core.node_values import conditions
from exaslurm.raycluster.selectors import matches, selector

LABELS = {"kind": "gpu", "switch": "leaf1", "nvme": "true", "gpu-type": "H100", "arch": "x86_64"}


@pytest.mark.parametrize(
    ("texts", "found"),
    [
        (["kind == gpu"], {"kind": "gpu"}),
        (["nvme and gpu_type in [H100, H200]"], {"nvme": "true", "gpu-type": "in(H100,H200)"}),
        (["switch != leaf2", "kind not in [cpu, fat]"],
         {"switch": "!leaf2", "kind": "!in(cpu,fat)"}),
        (["not kind == cpu", "not switch not in [leaf1, leaf2]"],
         {"kind": "!cpu", "switch": "in(leaf1,leaf2)"}),
        # What Ray cannot say, or has no label for, or is a switch above the leaf.
        (["ib_gbps >= 100", "kind == gpu or nvme", "feature('a')", "switch == spine"], {}),
        # One selector a label; a value that no label can have.
        (["kind != cpu", "kind != fat", "gpu_vendor == nvidia", "arch != 'x y'"], {"kind": "!cpu"}),
        ([], {}),
    ],
)  # fmt: skip
def test_what_ray_can_say(texts: list[str], found: dict[str, str]) -> None:
    assert selector(conditions(texts), LABELS) == found
    assert all(matches(text, LABELS[label]) for label, text in found.items())


@pytest.mark.parametrize(
    ("text", "value", "hit"),
    [
        ("a", "a", True), ("a", "b", False), ("!a", "b", True), ("!a", "a", False),
        ("in(a,b)", "b", True), ("in(a, b)", "c", False), ("!in(a,b)", "c", True),
        ("!in(a,b)", "a", False), ("a", None, False), ("", "", True),
    ],
)  # fmt: skip
def test_selectors_are_read_as_ray_reads_them(text: str, value: str | None, hit: bool) -> None:
    assert matches(text, value) == hit
