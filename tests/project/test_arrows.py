"""Imports between the rooms of ``exaslurm/`` go with the flow, never against it."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "exaslurm"

# What any room may import, and what these themselves may.
SHARED = {
    "errors": set[str](),
    "core": {"errors"},
    "util": {"errors"},
    "rundir": {"errors", "core", "util"},
    "keys": {"errors", "core", "util", "rundir"},
    "slurm": {"errors", "core", "util"},
}

# What each room may import besides the shared ones. The login node's side (spec to doctor) and the
# side of the allocation and gateway meet only in shared types.
ROOMS: dict[str, set[str]] = {
    "spec": set(),
    "site": set(),
    "plan": {"spec", "site"},
    "render": set(),
    "submit": {"spec", "site", "plan", "render", "models"},
    "preflight": {"facts", "topo"},
    "doctor": {"site", "preflight"},
    "bind": set(),
    "bootstrap": {"facts"},
    "facts": {"topo"},
    "topo": set(),
    "fabric": {"facts", "topo"},
    "engines": set(),
    "models": set(),
    "raycluster": set(),
    "agent": {"facts", "fabric", "preflight", "engines", "models", "raycluster"},
    "registry": set(),
    "controller": {"bind", "registry", "raycluster"},
    "router": {"registry"},
    "gateway": {"router", "registry", "facts"},
    "status": {"registry"},
    "rollout": {"spec", "site", "plan", "submit", "registry"},
    "autoscale": {"registry", "submit"},
    "supervisor": {"render", "submit", "registry", "rollout", "autoscale"},
    "chaos": {"site", "status"},
    "simulate": {
        "agent",
        "autoscale",
        "bootstrap",
        "chaos",
        "engines",
        "registry",
        "submit",
        "supervisor",
    },
    "api": {
        "chaos",
        "spec",
        "site",
        "plan",
        "render",
        "submit",
        "doctor",
        "status",
        "registry",
        "gateway",
        "topo",
        "rollout",
    },
}

# The top of the package loads these on first use only.
TOP = {"__init__": {"api", "errors"}, "__main__": {"cli"}}

# Deterministic rooms: no clock, environment, randomness, processes or sockets.
PURE = {"core", "plan", "bind"}
IMPURE_MODULES = {"asyncio", "os", "random", "secrets", "socket", "subprocess", "time", "uuid"}

# Modules that run before or without an environment of packages.
STDLIB_ONLY = (
    "bootstrap/init.py",
    "bootstrap/pinned_exec.py",
    "engines/middleware.py",
    "keys/token.py",
    "errors.py",
)


def imported_modules(source: str, module: str) -> Iterator[str]:
    """Full names of everything a module imports, anywhere in it."""
    package = module.split(".")[:-1]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                base = ".".join([*package[: len(package) - node.level + 1], *base.split(".")])
            if base == "exaslurm":
                yield from (f"exaslurm.{alias.name}" for alias in node.names)
            else:
                yield base


def room_of(module: str) -> str:
    """``exaslurm.plan.planner`` is in the room ``plan``; a dunder name is the package's own."""
    name = module.removeprefix("exaslurm").removeprefix(".").split(".")[0]
    return "" if name == "__version__" else name


def allowed(room: str) -> set[str]:
    if room in SHARED:
        return SHARED[room]
    if room in TOP:
        return TOP[room]
    if room == "cli":
        return {*SHARED, *ROOMS}
    return {*SHARED, *ROOMS[room]}


def wrong_arrows(room: str, module: str, source: str) -> list[str]:
    found = (
        room_of(name)
        for name in imported_modules(source, module)
        if name.split(".")[0] == "exaslurm"
    )
    return sorted({target for target in found if target and target != room} - allowed(room))


def modules() -> list[tuple[str, str, Path]]:
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        found.append((parts[0], ".".join(["exaslurm", *parts]), path))
    return found


def test_every_room_is_in_the_table() -> None:
    known = {*SHARED, *ROOMS, *TOP, "cli"}
    assert {room for room, _, _ in modules()} - known == set()


def test_the_tables_have_no_cycle() -> None:
    graph = {**SHARED, **ROOMS}
    done: set[str] = set()
    while len(done) < len(graph):
        free = {room for room, targets in graph.items() if room not in done and targets <= done}
        assert free, f"a cycle among {sorted(set(graph) - done)}"
        done |= free


@pytest.mark.parametrize(
    ("room", "module", "path"), modules(), ids=[module for _, module, _ in modules()]
)
def test_imports_go_with_the_flow(room: str, module: str, path: Path) -> None:
    if room not in {*SHARED, *ROOMS, *TOP, "cli"}:
        pytest.skip("reported by test_every_room_is_in_the_table")
    assert wrong_arrows(room, module, path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("module", "path"),
    [(module, path) for room, module, path in modules() if room in PURE],
    ids=[module for room, module, _ in modules() if room in PURE],
)
def test_pure_rooms_stay_pure(module: str, path: Path) -> None:
    names = imported_modules(path.read_text(encoding="utf-8"), module)
    assert {name.split(".")[0] for name in names} & IMPURE_MODULES == set()


@pytest.mark.parametrize("name", [name for name in STDLIB_ONLY if (PACKAGE / name).exists()])
def test_what_runs_without_packages_needs_none(name: str) -> None:
    source = (PACKAGE / name).read_text(encoding="utf-8")
    module = "exaslurm." + name.removesuffix(".py").replace("/", ".")
    ours = {"exaslurm." + path.removesuffix(".py").replace("/", ".") for path in STDLIB_ONLY}
    others = {name for name in imported_modules(source, module) if name not in ours}
    roots = {name.split(".")[0] for name in others}
    assert roots - sys.stdlib_module_names - {"__future__"} == set()


@pytest.mark.parametrize(
    ("room", "source", "wrong"),
    [
        ("plan", "from exaslurm.spec.model import Spec", []),
        ("plan", "from exaslurm import __version__, errors", []),
        ("plan", "import exaslurm.agent.main", ["agent"]),
        ("router", "def f():\n    from exaslurm import plan, registry", ["plan"]),
        ("spec", "from ..site import load", ["site"]),
        ("spec", "from . import load", []),
        ("core", "from exaslurm.util.files import write_atomic", ["util"]),
        ("agent", "from exaslurm.submit.submit import submit", ["submit"]),
    ],
)
def test_a_wrong_arrow_is_found(room: str, source: str, wrong: list[str]) -> None:
    assert wrong_arrows(room, f"exaslurm.{room}.x", source) == wrong
