from __future__ import annotations

import time

import pytest

from exaslurm.errors import UserError
from exaslurm.util.clock import MACHINE, VARIABLE, Clock


def test_without_a_word_it_is_the_machines_clock() -> None:
    clock = Clock.of({})
    assert clock is MACHINE
    assert clock.wall() == pytest.approx(time.time(), abs=60)
    assert clock.monotonic() == pytest.approx(time.monotonic(), abs=60)
    assert clock.machine_s(5.0) == 5.0


def test_a_faster_one_is_the_same_in_every_process() -> None:
    clock = Clock(8.0, time.time() - 100.0)
    assert Clock.of({VARIABLE: str(clock)}) == clock
    assert clock.wall() - clock.origin_s == pytest.approx(800.0, rel=0.5)
    assert clock.machine_s(40.0) == 5.0


@pytest.mark.parametrize("text", ["fast", "8", "0.5@1", "nan@1", "1e9@1", "-2@0", "2@x"])
def test_nonsense_is_refused(text: str) -> None:
    with pytest.raises(UserError, match=VARIABLE):
        Clock.of({VARIABLE: text})
