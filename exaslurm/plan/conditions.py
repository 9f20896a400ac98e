"""Conditions on nodes, as far as they can be judged before there are nodes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from exaslurm.core.constraints import Condition, ConstraintError, Term, Test, Value, parse
from exaslurm.core.node_values import FACTS, conditions, kind_values
from exaslurm.core.plan import ModelPlan
from exaslurm.plan.cells import Group
from exaslurm.plan.context import Findings
from exaslurm.spec.model import Spec

_SHOWN = 200  # letters of a condition in a message
_FEATURE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:=+-]*", re.ASCII)


def check_conditions(spec: Spec, groups: Sequence[Group], findings: Findings) -> None:
    """Report conditions that are malformed, or that no node kind can meet."""
    for index, model in enumerate(spec.models):
        for number, text in enumerate(model.constraints):
            key = f"models[{index}].constraints[{number}]"
            try:
                condition = parse(text, FACTS)
            except ConstraintError as error:
                shown = text if len(text) <= _SHOWN else text[:_SHOWN] + "..."
                findings.add(spec.problem(key, f"{error.message} (in {shown!r})"))
                continue
            reasons = [_why_barred(condition, group) for group in groups]
            if reasons and None not in reasons:
                found = ", ".join(dict.fromkeys(reason for reason in reasons if reason))
                findings.add(spec.problem(key, f"no node of the workers can meet it: {found}"))


def conditioned(groups: Sequence[Group], models: Sequence[ModelPlan]) -> list[Group]:
    """The groups with what follows from the models' conditions: which models their nodes may not
    carry, and which features to ask Slurm for."""
    found = []
    for group in groups:
        barred = frozenset(
            model.name
            for model in models
            if any(_why_barred(one, group) for one in conditions(model.constraints))
        )
        there = [model for model in models if model.name not in barred]
        found.append(replace(group, barred=barred, features=_features(there)))
    return found


def _features(models: Sequence[ModelPlan]) -> tuple[str, ...]:
    """Terms of ``--constraint`` for all nodes of a component: features that every model there
    needs. What only some need must not keep the others waiting."""
    needs = [
        {
            term: None
            for condition in conditions(model.constraints)
            for part in condition.terms()
            if (term := _feature_term(part)) is not None
        }
        for model in models
    ]
    if not needs:
        return ()
    return tuple(term for term in needs[0] if all(term in others for others in needs[1:]))


def with_features(constraint: str | None, features: Sequence[str]) -> str | None:
    """The value of ``--constraint``: the site's own and the features. Where the site's counts
    or chooses among nodes (brackets), nothing can be added to it."""
    if constraint is None:
        terms = list(features)
    elif re.search(r"[][*]", constraint):
        return constraint
    else:
        terms = [constraint, *(feature for feature in features if feature != constraint)]
    if len(terms) < 2:
        return terms[0] if terms else None
    return "&".join(f"({term})" if "|" in term else term for term in terms)


def _feature_term(term: Term) -> str | None:
    """``feature == a`` as ``a``, ``feature in [a, b]`` as ``a|b``; None for anything else."""
    if not isinstance(term, Test) or term.fact != "feature" or term.op not in ("==", "in"):
        return None
    names = [str(value) for value in term.values]
    return "|".join(names) if all(_FEATURE.fullmatch(name) for name in names) else None


def _why_barred(condition: Condition, group: Group) -> str | None:
    values = _values(group)
    return condition.why_not(values) if condition.verdict(values) is False else None


def _values(group: Group) -> Mapping[str, Value]:
    return kind_values(group.kind_name, gpus=group.kind.known_gpus)
