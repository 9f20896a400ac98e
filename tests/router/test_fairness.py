from __future__ import annotations

import time

import pytest

from exaslurm.router.fairness import FairQueue, Lane


def drain(queue: FairQueue[str]) -> list[str]:
    return [queue.pop() for _ in range(queue.size)]


def test_in_order_of_arrival_for_one_key() -> None:
    queue: FairQueue[str] = FairQueue()
    for name in "abc":
        queue.put(name, "key", 0, 1)
    assert drain(queue) == ["a", "b", "c"]


def test_keys_take_turns_and_priorities_do_not() -> None:
    queue: FairQueue[str] = FairQueue()
    for name in ("a1", "a2", "a3", "b1", "c1", "c2"):
        queue.put(name, name[0], 0, 1)
    queue.put("low", "b", -1, 1)
    queue.put("high", "a", 1, 1)
    assert queue.top == 1
    assert drain(queue) == ["high", "a1", "b1", "c1", "a2", "c2", "a3", "low"]
    with pytest.raises(ValueError, match="empty"):
        queue.pop()


def test_one_that_comes_late_starts_where_the_others_are() -> None:
    queue: FairQueue[str] = FairQueue()
    for number in range(6):
        queue.put(f"a{number}", "a", 0, 1)
    assert [queue.pop() for _ in range(3)] == ["a0", "a1", "a2"]
    for number in range(3):
        queue.put(f"b{number}", "b", 0, 1)
    assert drain(queue) == ["b0", "a3", "b1", "a4", "b2", "a5"]


def test_one_that_empties_its_queue_does_not_start_afresh() -> None:
    queue: FairQueue[str] = FairQueue()
    for number in range(8):
        queue.put(f"a{number}", "a", 0, 1)
    queue.put("b0", "b", 0, 5)
    assert [queue.pop() for _ in range(2)] == ["a0", "b0"]
    queue.put("b1", "b", 0, 5)
    assert queue.size == 8
    assert drain(queue).index("b1") == 4


def test_removed_ones_cost_nothing() -> None:
    queue: FairQueue[str] = FairQueue()
    lanes = {name: queue.put(name, name[0], 0, 10) for name in ("a1", "a2", "a3", "b1", "b2")}
    for name in ("a1", "a2", "b1"):
        queue.remove(name, lanes[name])
    assert drain(queue) == ["a3", "b2"]
    for name in ("x", "y"):
        queue.remove(name, queue.put(name, name, 3, 1))
    assert queue.size == 0
    assert queue._bands == {}


def test_costs_that_were_wrong_are_made_good() -> None:
    queue: FairQueue[str] = FairQueue()
    lanes: dict[str, Lane[str]] = {}
    for _ in range(200):
        for name in ("a", "b"):
            lanes[name] = queue.put(f"{name}{queue.size}", name, 0, 10)
    served = {"a": 0, "b": 0}
    for _ in range(110):
        name = queue.pop()[0]
        served[name] += 1
        lanes["a"].settle(-9 if name == "a" else 0)
    assert served["a"] == pytest.approx(100, abs=3)
    for _ in range(20):
        name = queue.pop()[0]
        lanes["a"].settle(90 if name == "a" else 0)
    assert queue.pop()[0] == queue.pop()[0] == "b"


def test_idle_keys_are_not_kept() -> None:
    queue: FairQueue[str] = FairQueue()
    queue.put("first", "busy", 0, 1)
    for number in range(5000):
        queue.put("x", f"key{number}", 0, 1)
        queue.put(f"y{number}", "busy", 0, 1)
        queue.pop()
        queue.pop()
    assert queue.size == 1
    assert len(queue._bands[0].lanes) < 200
    assert len(queue._bands[0].heap) < 10


def test_thousands_of_keys_cost_no_more_than_few() -> None:
    def seconds(keys: int) -> float:
        best = 1e9
        for _ in range(3):
            queue: FairQueue[int] = FairQueue()
            start = time.perf_counter()
            for number in range(6000):
                queue.put(number, str(number % keys), 0, 1)
            while queue.size:
                queue.pop()
            best = min(best, time.perf_counter() - start)
        return best

    assert seconds(6000) < 12 * seconds(3)
