"""What a policy may say, at each bound, and that a gate forgets by itself for as long as it is entered."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from oncegate import Client, Code, OperationFailed
from oncegate.gateway.local.waiting import until
from oncegate.gateway.middleware import gate as gates
from oncegate.gateway.middleware.gate import Ticket
from oncegate.gateway.middleware.records import RESPONSE_BYTES_MAX, Incoming, Kept
from oncegate.middleware import Gate, Policy
from oncegate.testing import FakeGateway


@pytest.mark.parametrize(
    ("name", "least", "most"),
    [("response_bytes_max", 0, RESPONSE_BYTES_MAX), ("kept_s", 1, None), ("body_bytes_max", 0, None)],
)
def test_number_of_a_policy_is_taken_up_to_its_bounds_and_no_further(name: str, least: int, most: int | None) -> None:
    taken: dict[str, Any]
    for taken in ({name: least}, {name: most or 2**31}):
        assert getattr(Policy(**taken), name) == taken[name]
    for refused in (least - 1, *(() if most is None else (most + 1,))):
        with pytest.raises(ValueError, match=name):
            Policy(**{name: refused})


async def test_gate_forgets_by_itself_also_after_a_sweep_that_failed_and_no_longer_than_it_is_entered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gates, "SWEEP_S", 0.001)
    now_s, sweeps = 0.0, list[int]()
    sweep = Gate.sweep

    async def noted(gate: Gate) -> int:
        sweeps.append(0)
        if len(sweeps) % 2:
            raise OperationFailed(Code.NO_LEADER)
        sweeps[-1] = await sweep(gate)
        return sweeps[-1]

    monkeypatch.setattr(Gate, "sweep", noted)
    async with FakeGateway() as fake, Client(fake.endpoints) as client:
        async with Gate(client, Policy(kept_s=10), now_s=lambda: now_s) as gate:
            ticket = await gate.admit(Incoming("POST", "/", {}, ("a",), b""))
            assert isinstance(ticket, Ticket)
            await gate.settle(ticket, Kept(200, [], b""))
            await until(lambda: len(sweeps) > 4, 60, "it has looked, and failed, and looked again")
            assert await client.get(gate.policy.table, ticket.row) is not None
            now_s = 11.0
            await until(lambda: sum(sweeps) == 1, 60, "what is old is forgotten")
            assert await client.get(gate.policy.table, ticket.row) is None
            tasks = asyncio.all_tasks()
        looked = len(sweeps)
        assert gate._sweeper in tasks
        assert gate._sweeper not in asyncio.all_tasks()
        await asyncio.sleep(0)
        assert len(sweeps) == looked


@pytest.mark.parametrize("methods", [None, frozenset({"PUT"})])
async def test_gate_concerns_the_methods_of_its_policy_however_they_are_written(methods: frozenset[str] | None) -> None:
    taken = {"POST", "PATCH"} if methods is None else methods
    policy = Policy() if methods is None else Policy(methods=methods)
    async with FakeGateway() as fake, Client(fake.endpoints) as client:
        gate = Gate(client, policy)
        for method in ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "POS", "POSTS"):
            assert gate.concerns(method) == gate.concerns(method.lower()) == (method in taken)
