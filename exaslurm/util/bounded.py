"""Work on a file system that may hang, done in bounded time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from exaslurm.errors import StateError

FILES_TIMEOUT_S = 20.0

T = TypeVar("T")


def within(timeout_s: float, work: Callable[[], T], what: str) -> T:
    """The result of ``work``, or a StateError after ``timeout_s``: a hung file system hangs a
    thread that nobody waits for, not the caller."""
    outcome: list[T] = []
    failure: list[BaseException] = []

    def body() -> None:
        try:
            outcome.append(work())
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=body, daemon=True, name="exaslurm-files")
    thread.start()
    thread.join(timeout_s)
    if thread.is_alive():
        raise StateError(
            f"{what} takes longer than {timeout_s:.0f} s",
            remedy="the shared file system does not answer; try again when it does",
        )
    if failure:
        raise failure[0]
    return outcome[0]
