"""Conditions as Ray's label selectors, as far as Ray can say them.

Ray compares labels only for (in)equality and membership, and allows one selector a label. What it
cannot say (numbers that are compared, ``or``, switches above the leaf) is left out: the selector
on the node's own name holds it all the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from exaslurm.core.constraints import Condition, Not, Term, Test

# Fact to label, where the label is the whole fact; ``switch`` is the leaf only.
_LABELS = {
    "arch": "arch",
    "gpu_type": "gpu-type",
    "gpu_vendor": "gpu-vendor",
    "kind": "kind",
    "nvme": "nvme",
    "switch": "switch",
}
_OPPOSITE = {"==": "!=", "!=": "==", "in": "not in", "not in": "in"}
# ray/_private/label_utils.py (2.60)
_VALUE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?", re.ASCII)
_SELECTOR = re.compile(r"(!?)(?:in\((.+)\)|(.+))")


def selector(conditions: Iterable[Condition], labels: Mapping[str, str]) -> dict[str, str]:
    """The selectors that say (a part of) the conditions and hold on a node with these labels."""
    found: dict[str, str] = {}
    for condition in conditions:
        for term in condition.terms():
            said = _said(term)
            if said is not None and said[0] not in found and said[0] in labels:
                label, text = said
                if matches(text, labels[label]):
                    found[label] = text
    return found


def matches(text: str, value: str | None) -> bool:
    """Whether a label's value meets a selector: ``a``, ``!a``, ``in(a, b)`` or ``!in(a, b)``."""
    found = _SELECTOR.fullmatch(text)
    if found is None:
        return value == text
    among = found[2].split(",") if found[2] is not None else [found[3]]
    hit = value in {name.strip() for name in among}
    return hit if not found[1] else not hit


def _said(term: Term) -> tuple[str, str] | None:
    negated = False
    while isinstance(term, Not):
        term, negated = term.term, not negated
    if not isinstance(term, Test) or term.fact not in _LABELS or term.op not in _OPPOSITE:
        return None
    op = _OPPOSITE[term.op] if negated else term.op
    values = [_text(value) for value in term.values]
    if not all(_VALUE.fullmatch(value) for value in values):
        return None
    text = f"in({','.join(values)})" if len(values) > 1 else values[0]
    return _LABELS[term.fact], text if op in ("==", "in") else f"!{text}"


def _text(value: float | str | bool) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if isinstance(value, str) else f"{value:g}"
