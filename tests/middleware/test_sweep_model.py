"""What a sweep forgets, over every state that a record can be in: old responses, and old claims that nobody holds."""

from __future__ import annotations

import random
from typing import Any, NamedTuple

import msgspec
import pytest

from oncegate import Client
from oncegate.gateway.middleware import gate as gates
from oncegate.gateway.middleware.records import IdempotencyRecord, Incoming, row_key
from oncegate.middleware import Gate, Policy
from oncegate.rifl.ids import format_client_id
from oncegate.testing import FakeGateway

KEPT_S = 100
OWNERS = ("this service", "another that lives", "one that died", "nobody: given back", "no id")


class Known(NamedTuple):
    """One record: its state, who holds it, how old it is, and whether its request runs here."""

    state: str
    owner: str
    age_s: int
    runs: bool

    @property
    def forgotten(self) -> bool:
        """Whether a sweep is to forget it."""
        if self.age_s <= KEPT_S or self.runs:
            return False
        return self.state == "done" or self.owner != "another that lives"


EVERY = [
    Known(state, owner, age_s, runs)
    for state in ("done", "claimed")
    for owner in OWNERS
    for age_s in (0, KEPT_S - 1, KEPT_S, KEPT_S + 1, 50 * KEPT_S)
    for runs in (False, True)
]


@pytest.mark.parametrize("page", [3, 7, 200])
async def test_sweep_forgets_what_is_old_and_nobody_holds_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, page: int
) -> None:
    monkeypatch.setattr(gates, "SWEEP_PAGE", page)
    now_s = 1_000_000
    dice = random.Random(page)
    async with FakeGateway() as fake, Client(fake.endpoints) as client:
        gate = Gate(client, Policy(kept_s=KEPT_S), now_s=lambda: float(now_s))
        async with gate, client.session() as alive:
            dead = client.session()
            await dead.__aenter__()
            owners = dict(zip(OWNERS, (gate.session.client_id, alive.client_id, dead.client_id), strict=False))
            named: dict[str, Any] = {name: format_client_id(client_id) for name, client_id in owners.items()}
            named |= {"nobody: given back": "", "no id": "x"}
            await dead.close()
            rows: dict[str, Known] = {}
            for at, known in enumerate(dice.sample(EVERY, len(EVERY))):
                row = row_key("", f"k{at}")
                body = {"status": 201, "body": ""} if known.state == "done" else {}
                record = IdempotencyRecord(known.state, "f", named[known.owner], 1, now_s - known.age_s, **body)  # type: ignore[arg-type]
                await alive.put(gate.policy.table, row, msgspec.to_builtins(record))
                rows[row] = known
                if known.runs:
                    gate._running.add(row)
            wanted = {row for row, known in rows.items() if not known.forgotten}
            assert await gate.sweep() == len(rows) - len(wanted)
            left = {row.key async for row in client.rows(gate.policy.table)}
            assert left == wanted, {rows[row] for row in left ^ wanted}
            assert await gate.sweep() == 0


async def test_request_whose_claim_is_swept_around_runs_once() -> None:
    """A claim of a service that lives stands however often, and however late, anybody sweeps."""
    now = [0.0]
    async with FakeGateway() as fake, Client(fake.endpoints) as client, Client(fake.endpoints) as other:
        how = Policy(kept_s=1)
        async with Gate(client, how, now_s=lambda: now[0]) as first, Gate(other, how, now_s=lambda: now[0]) as second:
            request = Incoming("POST", "/", {}, ("k",), b"{}")
            ticket = await first.admit(request)
            assert isinstance(ticket, gates.Ticket)
            for later in (0, 1, 2, 1_000):
                now[0] += later
                assert (await first.sweep(), await second.sweep()) == (0, 0)
                assert not isinstance(await second.admit(request), gates.Ticket)
                assert not isinstance(await first.admit(request), gates.Ticket)
