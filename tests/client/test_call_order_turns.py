"""Turns of the calls of a session (``client.call_order``): who has to wait, and how a call gives its turn back."""

from __future__ import annotations

import asyncio

import pytest

from oncegate import Code, DeadlineExceeded, Outcome
from oncegate.gateway.client.call_order import CallOrder
from tests.client.answers import settle


@pytest.mark.parametrize("end", ["well", "raises", "cancelled", "late"])
async def test_a_call_counts_from_when_it_comes_until_it_ends_however_it_ends(end: str) -> None:
    """Also between the end of the call before it, which wakes it, and its own first step."""
    order, deadline = CallOrder(), asyncio.get_running_loop().time() + 60
    goes_on = asyncio.Event()

    def taken() -> bool:
        return order.taken

    async def call(deadline: float) -> None:
        async with order.turn(deadline):
            await goes_on.wait()
            if end == "raises":
                raise ZeroDivisionError

    assert not taken()
    async with order.turn(deadline):
        second = asyncio.create_task(call(0.0 if end == "late" else deadline))
        await settle()
        assert taken()
    assert taken() is (end != "late"), "it was woken, and has not run yet"
    if end == "cancelled":
        second.cancel()
    goes_on.set()
    ended, *_ = await asyncio.wait_for(asyncio.gather(second, return_exceptions=True), 10)
    if end == "late":
        assert isinstance(ended, DeadlineExceeded)
        assert (ended.code, ended.outcome) == (Code.WINDOW_FULL, Outcome.NOT_APPLIED)
    assert not taken()
    async with asyncio.timeout(10), order.turn(deadline):
        assert taken(), "the turn was given back"
