from __future__ import annotations

from dataclasses import replace

from exaslurm.core.codec import dumps, loads
from exaslurm.core.rollout import Answers, Pair, Rollout, RolloutFigures
from exaslurm.rollout.figures import ENOUGH_OLD, SETTLE_S, count, pairs_of, parse, to_compare
from exaslurm.rollout.judge import why_worse
from exaslurm.router.call import Call
from exaslurm.router.metrics import BUCKETS_S, Metrics
from exaslurm.router.routes import PROXIED

CHAT = "/v1/chat/completions"
ROLLOUT = Rollout(
    stable=1,
    candidate=2,
    state="rising",
    names={"chat": ("v1", "v2"), "chat:base": ("v1", "v2")},
    share_percent=5.0,
    since_s=1000.0,
)


def call(version: str, *, model: str = "chat", status: int = 200, took_s: float = 0.2) -> Call:
    found = Call(CHAT, b"id", 100.0)
    found.model, found.version, found.status = model, version, status
    found.first_byte_s, found.ended_s = 100.0 + took_s / 2, 100.0 + took_s
    return found


def page(*calls: Call) -> str:
    """What a router shows after these."""
    metrics = Metrics(PROXIED)
    for one in calls:
        metrics.done(one)
    lost = call("v2")
    metrics.attempt_failed(lost)
    return metrics.render().decode()


def test_a_page_of_the_real_router() -> None:
    broken = call("v2")
    broken.broken = True
    text = page(
        *[call("v1") for _ in range(10)],
        *[call("v1", model="chat:base", took_s=2.0)],
        call("v2", status=500),
        call("v2", status=404),
        call("v2", status=499),
        broken,
        call("", status=503),  # no version was chosen yet: the fault of none
        call("v1", model='o"dd\\ name'),
    )
    counts = parse(text)
    assert set(counts) == {"chat", "chat:base", 'o"dd\\ name'}
    assert set(counts["chat"]) == {"v1", "v2"}
    old, new = counts["chat"]["v1"], counts["chat"]["v2"]
    assert (old.requests, old.failed, old.refused) == (10, 0, 0)
    # Of the new one a 500, a broken stream and an attempt that was made again elsewhere.
    assert (new.requests, new.failed, new.refused) == (5, 3, 1)
    assert len(old.whole) == len(BUCKETS_S) + 1
    assert sum(old.whole) == sum(old.first) == 10
    assert abs(old.whole_s - 2.0) < 1e-6
    assert abs(old.first_s - 1.0) < 1e-6
    # A model and its shard are one.
    pair = pairs_of(counts, ROLLOUT.names)["chat"]
    assert pair.old.requests == 11
    assert pair.new == new


def test_nonsense_is_no_figure() -> None:
    assert parse("") == {}
    assert parse('exaslurm_router_requests_total 7\nfoo{a="b"} 1\n') == {}


def answers(requests: int, failed: int = 0) -> Answers:
    return Answers(requests=requests, failed=failed, first=(requests,), whole=(requests,))


def said(old: int, new: int) -> dict[str, dict[str, Pair]]:
    return {"r1": {"chat": Pair(old=answers(old), new=answers(new))}}


def step(
    figures: RolloutFigures | None, old: int, new: int, now_s: float, *, rollout: Rollout = ROLLOUT
) -> RolloutFigures:
    found = count(figures, rollout, said(old, new), {"r1": 1.0}, (), now_s)
    return loads(RolloutFigures, dumps(found), where="test")  # as it is kept


def test_what_has_come_since_the_step_began() -> None:
    figures = step(None, 100, 0, 1000.0)
    figures = step(figures, 150, 3, 1000.0 + SETTLE_S - 1)  # what was under way before
    assert figures.counted == {}
    figures = step(figures, 190, 5, 1000.0 + SETTLE_S)
    assert figures.counted["chat"] == Pair(old=answers(40), new=answers(2))
    figures = step(figures, 200, 6, 1030.0)
    assert figures.counted["chat"] == Pair(old=answers(50), new=answers(3))
    # The router was killed, and another process counts from nothing.
    figures = step(figures, 10, 1, 1040.0)
    assert figures.counted["chat"] == Pair(old=answers(60), new=answers(4))


def test_a_router_that_comes_or_goes() -> None:
    figures = step(step(None, 100, 0, 1000.0), 100, 0, 1020.0)
    both = {**said(110, 1), "r2": {"chat": Pair(old=answers(7), new=answers(1))}}
    started = {"r1": 1.0, "r2": 1015.0}
    later = count(figures, ROLLOUT, both, started, (), 1030.0)
    # It was started after the step began: all that it has counted is of the step.
    assert later.counted["chat"] == Pair(old=answers(17), new=answers(2))
    older = count(figures, ROLLOUT, both, {**started, "r2": 1.0}, (), 1030.0)
    assert older.counted["chat"] == Pair(old=answers(10), new=answers(1))
    gone = count(later, ROLLOUT, {}, {}, ("r1",), 1040.0)
    assert gone.counted == later.counted
    assert gone.silent == ("r1",)


def test_the_next_step_begins_anew_and_remembers_the_old_version() -> None:
    figures = step(step(None, 0, 0, 1000.0), 500, 20, 1100.0)
    following = replace(ROLLOUT, step=1, since_s=1100.0)
    figures = step(figures, 500, 20, 1100.0, rollout=following)
    assert figures.counted == {}
    assert figures.before["chat"] == answers(500)
    figures = step(figures, 510, 60, 1120.0, rollout=following)
    assert figures.counted["chat"] == Pair(old=answers(10), new=answers(40))
    compared = to_compare(figures)["chat"].old
    assert compared.requests == 510
    assert (compared.first, compared.whole) == ((10,), (10,))
    figures = step(figures, 500 + ENOUGH_OLD, 60, 1130.0, rollout=following)
    assert to_compare(figures)["chat"].old.requests == ENOUGH_OLD
    # Nothing is left over for another rollout.
    other = replace(ROLLOUT, candidate=3, since_s=1100.0)
    assert step(figures, 1, 1, 1130.0, rollout=other).before == {}


def test_times_of_a_quieter_step_are_not_held_against_the_new_version() -> None:
    """A cell that comes up, or a neighbour, makes both versions slow at the same time."""
    quick = Answers(requests=750, first=(750, 0), first_s=36.0, whole=(750, 0), whole_s=60.0)
    slow = Answers(requests=40, first=(0, 40), first_s=3.5, whole=(0, 40), whole_s=6.0)
    figures = RolloutFigures(
        candidate=ROLLOUT.candidate,
        since_s=ROLLOUT.since_s,
        before={"chat": quick},
        counted={"chat": Pair(old=slow, new=slow)},
    )
    pair = to_compare(figures)["chat"]
    assert pair.old.requests == 790
    assert why_worse("chat", pair, ROLLOUT.policy, fair=True) is None
    # Against the quicker one alone it would be.
    assert why_worse("chat", Pair(old=quick, new=slow), ROLLOUT.policy, fair=True) is not None


def test_sentences() -> None:
    pair = Pair(old=replace(answers(10), first_s=2.0, whole_s=5.0), new=answers(0))
    assert pair.sentence == (
        "0 requests (0 failed) new; 10 requests (0 failed, first byte 0.2 s, whole 0.5 s) old"
    )
