"""Locks: keys of a site config that configs laid over it may not change.

An administrator's file says ``locks: [limits, gateway.background]``. A file that ``extends`` it,
or that has its name and is found first, may not give these keys another value. They are for
orientation and against mistakes: who can run sbatch can run it without exaslurm, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from exaslurm.util.yaml_lines import Document, Path, Problem, key_path

# Locks of this form are for specs; the planner keeps them.
SPEC_PREFIX = "spec."


def lay_over(above: Document, below: Document) -> Document:
    """``above`` over ``below``, whose locks it may not break; they hold for the result, too."""
    merged = above.over(below)
    merged.problems += broken_locks(merged, below)
    _keep_locks(merged, above, below)
    return merged


def broken_locks(result: Document, locking: Document) -> list[Problem]:
    """A problem for each locked key that has another value in ``result``."""
    problems = []
    for index, lock in enumerate(_locks(locking)):
        path = key_path(lock)
        if lock.startswith(SPEC_PREFIX) or _value(result, path) == _value(locking, path):
            continue
        place = _difference(result.data, locking.data, path)
        where = locking.place(("locks", index))
        problems.append(result.problem(place, f"locked by {where}: locks: {lock}"))
    return problems


def _keep_locks(merged: Document, above: Document, below: Document) -> None:
    """The locks of both, each with the place where it was written."""
    inherited, own = _locks(below), _locks(above)
    if not inherited or not isinstance(merged.data, dict):
        return
    more = [lock for lock in own if lock not in inherited]
    merged.data["locks"] = [*inherited, *more]
    places = [below.place(("locks", index)) for index in range(len(inherited))]
    places += [above.place(("locks", own.index(lock))) for lock in more]
    for index, place in enumerate(places):
        name, _, line = place.rpartition(":")
        merged.places["locks", index] = (name, int(line))


def _locks(document: Document) -> Sequence[str]:
    found = document.data.get("locks") if isinstance(document.data, dict) else None
    return [item for item in found if isinstance(item, str)] if isinstance(found, list) else []


def _value(document: Document, path: Path) -> Any:
    try:
        return document.value(path)
    except (KeyError, IndexError, TypeError):
        return None


def _difference(result: Any, locking: Any, path: Path) -> Path:
    """The first key at or below ``path`` in which the two differ, for the line of the message."""
    for part in path:
        result = result.get(part) if isinstance(result, dict) else None
        locking = locking.get(part) if isinstance(locking, dict) else None
    while isinstance(result, dict) and isinstance(locking, dict):
        names = [name for name in result if result[name] != locking.get(name)]
        if not names:
            break
        path, result, locking = (*path, names[0]), result[names[0]], locking.get(names[0])
    return path
