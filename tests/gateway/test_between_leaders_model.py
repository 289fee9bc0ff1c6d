"""What waits for the next leader, against models, in time that the tests move: each has one end, at its own moment."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import pytest

from oncegate.gateway.node.between_leaders import HOLD_MS, BetweenLeaders, Lead
from oncegate.gateway.sweep import NEVER
from oncegate.rifl.errors import Code, OncegateError
from tests.client.small_cluster import StillLoop
from tests.gateway.test_proposer_model import Loop

HOLD_S = HOLD_MS / 1000


@pytest.mark.parametrize("seed", range(4))
def test_what_is_held_has_one_end_that_its_own_gap_between_leaders_decides(seed: int) -> None:
    """A gap begins with what is held first, and ends with the next leader: nothing of it is left for the gap after."""
    dice, loop = random.Random(seed), Loop()
    sent, failed = list[int](), list[tuple[int, OncegateError]]()
    fail: Callable[[int, OncegateError], None] = lambda held, refusal: failed.append((held, refusal))  # noqa: E731
    between = BetweenLeaders[int](loop, sent.append, fail)  # type: ignore[arg-type]
    began_s: float | None = None
    waiting, told, refused = list[tuple[int, OncegateError]](), list[int](), list[tuple[int, OncegateError]]()
    for number in range(400):
        what = dice.choice(("hold", "hold", "time", "time", "led"))
        if what == "hold":
            held = number, OncegateError(Code.NO_LEADER, str(number))
            began_s = loop.now_s if began_s is None else began_s
            (waiting if loop.now_s < began_s + HOLD_S else refused).append(held)
            between.hold(*held)
        elif what == "led":
            told += [one for one, _ in waiting]
            began_s, waiting = None, []
            between.led()
        else:
            loop.pass_to(loop.now_s + dice.choice((0.0, 0.125, 0.25, HOLD_S)))
            if began_s is not None and loop.now_s >= began_s + HOLD_S:
                refused, waiting = refused + waiting, []
        assert (sent, failed) == (told, refused)
        assert sum(not timer.cancelled() for _, _, timer in loop.timers) <= 1
    assert min(len(told), len(refused)) > 20


@pytest.mark.parametrize("seed", range(4))
def test_a_read_waits_for_the_next_change_of_the_lead_and_no_longer_than_since_the_leader_was_lost(seed: int) -> None:
    """Also where the leader was lost before it began, was lost again meanwhile, or its own time ends first."""
    dice = random.Random(seed)
    ends: list[tuple[float, bool]] = []

    async def read(lead: Lead, moved: asyncio.Event, began_s: float, due_s: float) -> None:
        known = await lead.wait(moved, began_s, due_s)
        ends.append((round(asyncio.get_running_loop().time(), 6), known))

    async def walk() -> list[tuple[float, bool]]:
        loop, lead = asyncio.get_running_loop(), Lead()
        missed_s: float | None = None
        waiting, expected, reads = list[float](), list[tuple[float, bool]](), list[asyncio.Task[None]]()
        for _ in range(300):
            what = dice.choice(("read", "read", "time", "time", "time", "change"))
            now_s = loop.time()
            if what == "read":
                began_s = now_s - dice.choice((0.0, 0.0, 0.3))
                due_s = dice.choice((NEVER, NEVER, now_s + 0.17))
                moved = lead.moved
                if dice.random() < 0.2:  # it changed during the attempt
                    lead.change(known=missed_s is None)
                    expected += [(now_s, True)] * (len(waiting) + 1)
                    waiting.clear()
                else:
                    since_s = began_s if missed_s is None else min(began_s, missed_s)
                    waiting.append(max(now_s, min(since_s + HOLD_S, due_s)))
                reads.append(asyncio.ensure_future(read(lead, moved, began_s, due_s)))
            elif what == "change":
                known = dice.random() < 0.5
                missed_s = None if known else now_s if missed_s is None else missed_s
                lead.change(known=known)
                expected += [(now_s, True)] * len(waiting)
                waiting.clear()
            else:
                # Steps that no bound is a multiple of: nothing else is due at the moment at which they end.
                await asyncio.sleep(dice.choice((0.0371, 0.1013, 0.2207)))
            for _ in range(4):
                await asyncio.sleep(0)
            over = sorted(due_s for due_s in waiting if due_s <= loop.time())
            waiting = [due_s for due_s in waiting if due_s > loop.time()]
            expected += [(due_s, False) for due_s in over]
            assert sorted(ends) == sorted((round(at_s, 6), known) for at_s, known in expected)
        for one in reads:
            one.cancel()
        return expected

    with asyncio.Runner(loop_factory=StillLoop) as runner:
        expected = runner.run(walk())
    assert {known for _, known in expected} == {True, False}
