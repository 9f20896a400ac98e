from __future__ import annotations

from exaslurm.controller.desired import DesiredBook
from exaslurm.core.cell import RayTarget

RAY = RayTarget(epoch=1, head_address="h", gcs_port=1)


def test_a_version_for_each_change_and_none_for_the_same() -> None:
    book = DesiredBook()
    assert book.get("n").version == 0
    assert book.set("n", ray=None, engines=(), stop=False)
    first = book.get("n").version
    assert not book.set("n", ray=None, engines=(), stop=False)
    assert book.set("n", ray=RAY, engines=(), stop=False)
    assert book.get("n").version > first > 0
    assert book.get("n").ray == RAY


def test_goes_above_what_an_earlier_controller_gave() -> None:
    book = DesiredBook()
    book.set("n", ray=None, engines=(), stop=False)
    assert not book.seen("n", book.get("n").version)
    assert book.seen("n", 57)
    assert book.get("n").version > 57
    book.set("other", ray=None, engines=(), stop=True)
    assert book.get("other").version > 57


def test_a_number_seen_before_anything_was_said() -> None:
    book = DesiredBook()
    assert not book.seen("n", 9)
    book.set("n", ray=None, engines=(), stop=False)
    assert book.get("n").version > 9
