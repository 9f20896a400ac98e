"""A site's map of its switches: which nodes and switches are right below each."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator

from exaslurm.util.fields import Text, Word, bad
from exaslurm.util.hostlist import expand


def _hosts(value: str) -> str:
    try:
        names = expand(value)
    except ValueError as error:
        raise bad(str(error)) from None
    if not names:
        raise bad("names no node and no switch")
    return value


def _forest(switches: dict[str, str]) -> dict[str, str]:
    """Nothing may hang below itself."""
    below = {
        name: [low for low in expand(text) if low in switches] for name, text in switches.items()
    }
    while below:
        ends = [name for name, lower in below.items() if not any(low in below for low in lower)]
        if not ends:
            raise bad(f"{min(below)} is below itself")
        below = {name: lower for name, lower in below.items() if name not in ends}
    return switches


SwitchMap = Annotated[dict[Word, Annotated[Text, AfterValidator(_hosts)]], AfterValidator(_forest)]
