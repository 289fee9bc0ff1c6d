"""Calls of the courier (``client.courier``) that end as nobody expects, or with the last of their time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from oncegate.gateway.client.courier import JsonCall
from oncegate.gateway.client.routing import LAST_ATTEMPT_S, AttemptFailed
from tests.client.small_cluster import StillLoop
from tests.client.test_courier_model import NODES, PATH, TUNING, Delayed, How, World, _Direct


class Broken(JsonCall[int]):
    """A call that fails on each answer in a way that nobody expects."""

    def accept(self, status: int, headers: Any, payload: bytes) -> int:
        raise ZeroDivisionError


@pytest.mark.parametrize("detour", [False, True])
def test_what_was_answered_may_have_been_applied_though_the_client_fails_on_it(
    detour: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def ask() -> None:
        world = World(0)
        world.courier._detours |= dict.fromkeys(NODES if detour else [], float("inf"))
        world.detours |= world.courier._detours
        call = Broken("PUT", PATH, int, {}, world.loop.time() + 9, body={"a": 1})
        with pytest.raises(ZeroDivisionError):
            await world.courier.exchange(call)
        assert call.ambiguous
        assert len(world.attempts) == 1

    monkeypatch.setattr("tests.client.test_courier_model._how", lambda _: How("well", 200, b"7", then="result"))
    monkeypatch.setattr(World, "idle", lambda self, endpoint: _Direct(self, endpoint))
    with asyncio.Runner(loop_factory=StillLoop) as runner:
        runner.run(ask())


@pytest.mark.parametrize("left_s", [0.0, LAST_ATTEMPT_S, 2 * LAST_ATTEMPT_S])
def test_call_whose_time_is_over_with_its_first_attempt_costs_no_retry(
    left_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Retries are bounded for the sake of the nodes: one that is not made does not count."""

    async def ask() -> None:
        world = World(0)
        call = Delayed("PUT", PATH, int, {}, TUNING.attempt_timeout_s + left_s, body={"a": 1})
        spent: list[int] = []

        def spend() -> bool:
            spent.append(1)
            return True

        monkeypatch.setattr(world.budget, "spend", spend)
        with pytest.raises(AttemptFailed):
            await world.courier.exchange(call)
        assert bool(spent) == bool(call.delays) == (left_s > LAST_ATTEMPT_S)

    monkeypatch.setattr("tests.client.test_courier_model._how", lambda _: How("silent", maybe=True, elsewhere=True))
    monkeypatch.setattr(World, "idle", lambda self, endpoint: _Direct(self, endpoint))
    with asyncio.Runner(loop_factory=StillLoop) as runner:
        runner.run(ask())


def test_call_that_a_fault_of_the_client_ends_while_it_is_under_way_may_have_been_applied() -> None:
    async def ask() -> None:
        world = World(0)
        world.courier._detours |= dict.fromkeys(NODES, float("inf"))

        def request(*_: Any, **__: Any) -> Any:
            raise RuntimeError("odd")

        world.request = request  # type: ignore[method-assign]
        call = JsonCall("PUT", PATH, int, {}, world.loop.time() + 9, body={"a": 1})
        with pytest.raises(RuntimeError, match="odd"):
            await world.courier.exchange(call)
        assert call.ambiguous
        assert not call.under_way

    with asyncio.Runner(loop_factory=StillLoop) as runner:
        runner.run(ask())
