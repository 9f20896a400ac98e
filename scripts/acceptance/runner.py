"""Finding lines, running them, printing figures."""

from __future__ import annotations

import importlib
import pkgutil
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

HERE = Path(__file__).resolve().parent
WIDTH = 64


class LineFailed(Exception):
    """Going on makes no sense: what a later figure needs did not come about."""


class _Reported(LineFailed):
    """The same, and the figure that says so is printed already."""


@dataclass
class Line:
    """One acceptance line while it runs. ``cleanups`` run at its end, last first."""

    name: str
    failures: int = 0
    cleanups: list[Callable[[], object]] = field(default_factory=list)

    def check(self, what: str, ok: bool, found: object = "") -> bool:
        """One thing that is so or not; ``found`` is what was seen."""
        text = str(found) if found != "" else ("yes" if ok else "no")
        self._print(what, text, ok)
        return ok

    def at_most(self, what: str, value: float, limit: float, unit: str = "s") -> bool:
        """A figure with an upper limit."""
        ok = value <= limit
        self._print(what, f"{value:.3g} {unit} (at most {limit:g})", ok)
        return ok

    def at_least(self, what: str, value: float, limit: float, unit: str = "") -> bool:
        """A figure with a lower limit."""
        ok = value >= limit
        self._print(what, f"{value:.6g} {unit} (at least {limit:g})".replace("  ", " "), ok)
        return ok

    def need(self, what: str, ok: bool, found: object = "") -> None:
        """As ``check``, and the line ends here if it is not so."""
        if not self.check(what, ok, found):
            raise _Reported(what)

    def ran(self, what: str, done: subprocess.CompletedProcess[str]) -> None:
        """A command ended well; the line ends here if it did not."""
        text = f"exit code {done.returncode}\n{done.stdout}{done.stderr}".rstrip()
        self.need(what, done.returncode == 0, "yes" if done.returncode == 0 else text)

    def note(self, text: str) -> None:
        """Something to read, without a verdict."""
        print(f"  {text}", flush=True)

    def _print(self, what: str, found: str, ok: bool) -> None:
        self.failures += not ok
        first, *rest = found.splitlines() or [""]
        print(f"  {what:<{WIDTH}}  {first:<32}  {'PASS' if ok else 'FAIL'}", flush=True)
        for line in rest:
            print(f"      {line}", flush=True)


def sets() -> dict[str, list[int]]:
    """Numbers of the lines of each set."""
    found: dict[str, list[int]] = {}
    for item in pkgutil.iter_modules([str(HERE)]):
        if item.ispkg:
            lines = pkgutil.iter_modules([str(HERE / item.name)])
            numbers = [line.name.removeprefix("line_") for line in lines]
            found[item.name] = sorted(int(number) for number in numbers if number.isdigit())
    return found


def load(name: str, number: int) -> ModuleType:
    return importlib.import_module(f"acceptance.{name}.line_{number:02}")


def chosen(words: Sequence[str]) -> list[tuple[str, int]]:
    """Set and number of every line that was asked for; ValueError for an unknown one."""
    known = sets()
    lines: list[tuple[str, int]] = []
    for word in words:
        name, _, number = word.partition(".")
        if name not in known or (
            number and (not number.isdigit() or int(number) not in known[name])
        ):
            names = ", ".join(f"{key}.{n}" for key, numbers in known.items() for n in numbers)
            raise ValueError(f"unknown line {word!r}; there are: {names}")
        lines += [(name, int(number))] if number else [(name, n) for n in known[name]]
    return lines


def run_line(name: str, number: int) -> bool:
    """Run one line; whether it passed."""
    module = load(name, number)
    line = Line(f"{name}.{number}")
    print(f"{line.name}: {module.TITLE}", flush=True)
    begin = time.monotonic()
    try:
        module.run(line)
    except _Reported:
        pass
    except LineFailed as error:
        line.check("the line could be run", False, str(error))
    except Exception:
        line.failures += 1
        traceback.print_exc(file=sys.stdout)
    finally:
        for cleanup in reversed(line.cleanups):
            _clean_up(line, cleanup)
    verdict = "FAIL" if line.failures else "PASS"
    print(f"{line.name}: {verdict} ({time.monotonic() - begin:.0f} s)\n", flush=True)
    return not line.failures


def _clean_up(line: Line, cleanup: Callable[[], object]) -> None:
    try:
        cleanup()
    except Exception as error:
        line.failures += 1
        print(f"  clean-up failed: {error}", flush=True)


def main(words: Sequence[str]) -> int:
    if list(words) == ["--list"]:
        for name, numbers in sets().items():
            for number in numbers:
                print(f"{name}.{number}  {load(name, number).TITLE}")
        return 0
    try:
        lines = chosen(words)
    except ValueError as error:
        print(f"accept: {error}", file=sys.stderr)
        return 2
    if not lines:
        print("usage: scripts/accept NAME[.LINE] ... | --list", file=sys.stderr)
        return 2
    passed = [run_line(name, number) for name, number in lines]
    return 0 if all(passed) else 1
