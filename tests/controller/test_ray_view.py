from __future__ import annotations

from exaslurm.controller.ray_view import RayView
from exaslurm.core.cell import RayNodeStatus
from exaslurm.core.plan import RayPlan

PLAN = RayPlan(enabled=True, start_timeout_s=60.0, object_store_mib=100)
BOTH = frozenset({"a", "b"})


def view() -> RayView:
    return RayView(PLAN, epoch=1, now=0.0)


def head(state: str, *, epoch: int = 1, seconds: float | None = None) -> RayNodeStatus:
    return RayNodeStatus(
        state=state,  # type: ignore[arg-type]
        epoch=epoch,
        seconds=seconds,
        cause="it fell over" if state == "failed" else None,
    )


def test_off() -> None:
    ray = RayView(
        RayPlan(enabled=False, start_timeout_s=60.0, object_store_mib=1), epoch=1, now=0.0
    )
    assert ray.state(BOTH, 0.0).state == "off"
    assert ray.gate_open(BOTH, 0.0)
    ray.on_head(head("off"), "h", 1, 0.0)
    assert ray.target is None


def test_complete_and_how_long_it_took() -> None:
    ray = view()
    assert ray.target is None
    ray.on_head(head("starting"), "h", 20001, 10.0)
    assert ray.target is not None
    assert (ray.target.epoch, ray.target.head_address, ray.target.gcs_port) == (1, "h", 20001)
    ray.on_head(head("up", seconds=3.0), "h", 20001, 12.5)  # so it started at 9.5
    ray.on_nodes(["a"], BOTH, 13.0)
    assert ray.state(BOTH, 13.0).state == "starting"
    ray.on_nodes(["a", "b"], BOTH, 15.5)
    state = ray.state(BOTH, 15.5)
    assert (state.state, state.seconds, state.nodes_alive, state.nodes_wanted) == (
        "complete",
        6.0,
        2,
        2,
    )


def test_engines_wait_for_ray_but_not_for_ever() -> None:
    ray = view()
    assert not ray.gate_open(BOTH, 100.0)
    assert not ray.gate_open(BOTH, 159.0)
    assert ray.gate_open(BOTH, 160.0)
    ray.on_nodes(["a"], BOTH, 161.0)
    state = ray.state(BOTH, 161.0)
    assert (state.state, state.cause) == ("partial", "not in Ray: b")


def test_a_dead_head_means_a_new_epoch() -> None:
    ray = view()
    ray.on_head(head("up", seconds=1.0), "h", 1, 10.0)
    ray.on_nodes(["a", "b"], BOTH, 11.0)
    ray.on_head(head("failed"), "h", 1, 20.0)
    state = ray.state(BOTH, 20.0)
    assert state.state == "failed"
    assert "it fell over" in str(state.cause)
    assert ray.advance(20.0)
    assert ray.epoch == 2
    ray.on_head(head("failed"), "h", 1, 20.1)  # still about epoch 1
    assert not ray.advance(20.1)
    ray.on_head(head("up", epoch=2, seconds=1.0), "h", 1, 25.0)
    ray.on_nodes(["a", "b"], BOTH, 26.0)
    state = ray.state(BOTH, 26.0)
    assert (state.state, state.epoch, state.seconds, state.cause) == ("complete", 2, 2.0, None)


def test_epochs_come_more_slowly_while_ray_does_not_live() -> None:
    ray = view()
    now, pauses = 0.0, []
    for _ in range(9):
        ray.lost("gone", now)
        began = now
        while not ray.advance(now):
            now += 1.0
        pauses.append(now - began)
    assert pauses[:4] == [0.0, 2.0, 4.0, 8.0]
    assert pauses[-1] == 60.0
    ray.lost("gone", now + 1000.0)
    assert ray.advance(now + 1000.0)


def test_an_epoch_that_an_earlier_controller_gave_is_taken_over() -> None:
    ray = view()
    ray.on_head(head("up", epoch=4, seconds=2.0), "h", 1, 5.0)
    assert ray.epoch == 4
    assert ray.target is not None
    assert ray.target.epoch == 4
