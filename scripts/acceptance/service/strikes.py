"""`exaslurm chaos` in the lab, and what its one line of JSON must say."""

from __future__ import annotations

import json
from typing import Any

from acceptance.lab import Lab
from acceptance.runner import Line, LineFailed

# Public figures of others: one replica killed, 98.5 % of requests answered again after so many
# seconds; a link cut, traffic elsewhere after so many. Here four times as fast.
KILLED_S, CUT_S, TIMES = 8.3, 12.0, 4.0
BACK_S = 300.0


def strike(line: Line, here: Lab, deployment: str, fault: str, *options: str) -> dict[str, Any]:
    """Do it, print its figures, and check what holds of every fault: what had not begun did not
    fail, what had begun ended with an error event, everything came back and was mended."""
    words = ("chaos", deployment, fault, f"--timeout={BACK_S:g}", *options, "--json")
    done = here.exaslurm(*words, door=True, timeout_s=2 * BACK_S)
    try:
        report: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        raise LineFailed(f"chaos {fault}: {done.stderr[-2000:]}") from None
    figures = report["figures"]
    failed = figures["failed"]
    line.note(f"{fault} at {', '.join(report['victims'])}: {'; '.join(report['did'])}")
    line.note(
        f"  {figures['sent']} requests, {figures['ok']} answered, {figures['retried']} sent to "
        f"another replica, {figures['reconnected']} asked again; longest gap "
        f"{figures['longest_gap_s']} s; 98.5 % after {figures['to_success_s']} s; full strength "
        f"after {report['to_strength_s']} s"
    )
    samples = "\n".join(["", *figures["samples"]]) if figures["samples"] else ""
    line.check(
        f"{fault}: failures of requests not begun",
        failed["not_begun"] + failed["router_lost"] == 0,
        f"{failed['not_begun'] + failed['router_lost']}{samples}",
    )
    line.at_most(f"{fault}: begun streams without an error event", failed["begun_cut"], 0, "")
    rest = figures["sent"] - figures["ok"] - sum(failed.values())
    line.at_most(f"{fault}: requests of which nothing is known", rest, 0, "")
    back = report["to_strength_s"] is not None
    line.check(f"{fault}: everything is back by itself", back, report["missing"] or "yes")
    line.check(f"{fault}: everything is mended", not report["left"], "; ".join(report["left"]))
    return report


def success_within(line: Line, report: dict[str, Any], limit_s: float) -> None:
    """98.5 % of requests are answered again, second by second."""
    found = report["figures"]["to_success_s"]
    value = float("inf") if found is None else found
    line.at_most(f"{report['fault']}: 98.5 % success again after", value, limit_s)


def engines_stay(line: Line, report: dict[str, Any]) -> None:
    """No engine was touched."""
    same, changed = report["engines_same"], report["engines_changed"]
    line.check(f"{report['fault']}: the engines are the same processes", changed == 0,
               f"{same} of {same + changed}")  # fmt: skip


def no_failure(line: Line, report: dict[str, Any]) -> None:
    """Streams that had begun went on, too."""
    begun = report["figures"]["failed"]["begun_event"]
    line.at_most(f"{report['fault']}: begun streams that failed", begun, 0, "")
