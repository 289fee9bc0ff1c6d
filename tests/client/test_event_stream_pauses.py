"""When a stream of events (``client.event_stream``) is asked for again: at once elsewhere, or after a pause."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from oncegate import Code, DeadlineExceeded, OperationFailed, Outcome
from oncegate.gateway.client.event_stream import EventStream
from tests.client.small_cluster import StillLoop
from tests.client.test_event_stream_model import NODES, World


async def _asked(world: World, timeout_s: float) -> tuple[list[float], OperationFailed]:
    """Follow a stream that tells nothing; returns when it was asked for, and how it ended."""
    begin = world.clock()
    source: Any = EventStream(world, lambda: "/from/0", timeout_s).events()  # type: ignore[arg-type]
    with pytest.raises(OperationFailed) as ended:
        await anext(source)
    return [round(at - begin, 6) for at in world.opened_at], ended.value


@pytest.fixture(autouse=True)
def _pauses_are_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("random.uniform", lambda low, high: high)


def test_node_that_lacks_the_past_is_left_for_the_next_one_with_a_pause() -> None:
    """All nodes drop what is old at about the same time: a stream that falls behind would load each in turn."""

    async def follow() -> None:
        world = World(1, told_max=0, weights={"past": 1})
        asked, failure = await _asked(world, 20.0)
        assert failure.code is Code.RETENTION_EXCEEDED
        assert asked == [0.0, 0.05, 0.15]
        assert {endpoint for endpoint, _ in world.asked} == {*NODES}

    with asyncio.Runner(loop_factory=StillLoop) as runner:
        runner.run(follow())


@pytest.mark.parametrize("over_s", [0.0, 0.001])
def test_stream_is_asked_for_while_the_pause_before_it_ends_before_its_time(over_s: float) -> None:
    """Nodes that cannot be reached: those that have rested are asked at once, else after pauses that double."""

    async def follow() -> None:
        world = World(1, told_max=0, weights={"no connection": 1})
        asked, failure = await _asked(world, 3.55 + over_s)
        assert isinstance(failure, DeadlineExceeded)
        assert (failure.code, failure.outcome) == (Code.TIMEOUT, Outcome.NOT_APPLIED)
        last = [3.55] if over_s else []
        assert asked == [0.0, 0.0, 0.0, 0.05, 0.15, 0.35, 0.75, 0.75, 0.75, 1.55, 1.55, 1.55, 2.55, *last]

    with asyncio.Runner(loop_factory=StillLoop) as runner:
        runner.run(follow())
