"""The places of a session against a line of callers: who has one, who gets the next, and when nobody may.

The model is a line of names: who asked first goes first, while fewer have a place than there are, and nobody is held.
"""

from __future__ import annotations

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from oncegate.gateway.client.places import Places
from oncegate.gateway.sweep import NEVER
from oncegate.rifl.errors import Code
from tests.client.answers import fails, settle

STEPS = ("ask", "ask", "ask", "try", "free", "free", "free all", "cancel", "cancel handed", "expire", "hold", "let go")


@settings(max_examples=50)
@given(
    steps=st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 5)), min_size=15, max_size=40),
    window=st.integers(1, 3),
)
def test_places_are_had_in_the_order_of_the_calls_by_as_many_as_there_are_and_by_nobody_who_is_held_back(
    steps: list[tuple[str, int]], window: int
) -> None:
    asyncio.run(_play(steps, window))


async def _play(steps: list[tuple[str, int]], window: int) -> None:
    places = Places(asyncio.get_running_loop(), window, lambda at: None)
    waiting: dict[int, asyncio.Task[None]] = {}
    had = asked = 0
    held = False
    for step, at in steps:
        if step == "ask":
            asked += 1
            waiting[asked] = asyncio.create_task(places.take(asked if at else NEVER))
        elif step == "try":
            if free := not held and had < window and not waiting:
                await places.take(NEVER, wait=False)
                had += 1
            else:
                with fails(Code.WINDOW_FULL):
                    await places.take(NEVER, wait=False)
            assert places.crowded == (held or had >= window or bool(waiting)), free
        elif step in ("free", "free all") and had:
            count = had if step == "free all" else min(had, 1 + at)
            had -= count
            places.free(count)
        elif step == "cancel" and waiting:
            waiting.pop(sorted(waiting)[at % len(waiting)]).cancel()
        elif step == "cancel handed" and waiting and had:
            had -= 1
            places.free(1)
            waiting.pop(min(waiting)).cancel()  # in the turn of the loop in which it got the place, unless it is held
        elif step == "expire":
            await settle()
            late = asked - at
            places.expire(late)
            await settle()
            for one in [one for one, task in waiting.items() if task.done()]:
                assert one <= late
                with fails(Code.WINDOW_FULL):
                    await waiting.pop(one)
        elif step in ("hold", "let go"):
            held = step == "hold"
            places.hold("too much is kept" if held else "")
        await settle()
        expected = 0 if held else max(0, min(window - had, len(waiting)))
        got = [one for one, task in sorted(waiting.items()) if task.done()]
        assert got == sorted(waiting)[:expected]
        for one in got:
            await waiting.pop(one)
        had += len(got)
        assert (places.outstanding, places.handed) == (had, 0)
    for task in waiting.values():
        task.cancel()
    await asyncio.gather(*waiting.values(), return_exceptions=True)
    places.free(had)
    await places.drain()
    assert places.outstanding == 0
