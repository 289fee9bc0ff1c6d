"""At most one run under a key, over every way in which the writes of a claim and of its response can go wrong."""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, Self

import pytest

from oncegate import Client, Code, OperationFailed, Outcome, OutcomeUnknown
from oncegate.gateway.middleware.gate import Ticket
from oncegate.gateway.middleware.records import IN_PROGRESS, OUTCOME_UNKNOWN, UNAVAILABLE, Incoming, Kept
from oncegate.middleware import Gate, Policy
from oncegate.testing import FakeGateway

KEYS = ("a", "b", "c")
FATES = ("done", "done", "done", "lost", "never", "late", "refused")
"""Of a write: its answer is lost; it never arrives, or later; it is refused."""


class Network:
    """What becomes of the next writes of all services, and what is still on its way."""

    def __init__(self, dice: random.Random) -> None:
        self.dice, self.is_sound = dice, False
        self._late: list[Callable[[], Awaitable[object]]] = []

    async def carry(self, write: Callable[[], Awaitable[Any]]) -> Any:
        fate = "done" if self.is_sound else self.dice.choice(FATES)
        if fate == "refused":
            raise OperationFailed(Code.OVERLOADED, outcome=Outcome.NOT_APPLIED)
        if fate == "late":
            self._late.append(write)
        result = await write() if fate in ("done", "lost") else None
        if result is None or fate == "lost":
            raise OutcomeUnknown(Code.TIMEOUT)
        return result

    async def arrive(self) -> None:
        late, self._late = self._late, []
        for write in late:
            with contextlib.suppress(OperationFailed):  # its session is closed
                await write()


class Unsteady:
    """A client whose sessions write over that network."""

    def __init__(self, inner: Any, network: Network) -> None:
        self._inner, self._network = inner, network

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def session(self, **options: Any) -> Unsteady:
        return Unsteady(self._inner.session(**options), self._network)

    async def __aenter__(self) -> Self:
        await self._inner.__aenter__()
        return self

    async def put(self, *row: Any, **how: Any) -> Any:
        return await self._network.carry(lambda: self._inner.put(*row, **how))

    async def delete(self, *row: Any, **how: Any) -> Any:
        return await self._network.carry(lambda: self._inner.delete(*row, **how))


class Services:
    """Two services with a gate each; one that dies is followed by another one."""

    def __init__(self, client: Client, network: Network, policy: Policy) -> None:
        self._policy = policy
        self._client: Any = Unsteady(client, network)
        self._network = network
        self.gates: list[Gate] = []
        self.runs: Counter[str] = Counter()
        self.open: dict[str, tuple[Gate, Ticket]] = {}
        self.ids: dict[str, set[str]] = {key: set() for key in KEYS}
        self.responses: dict[str, list[tuple[int, bytes | None]]] = {key: [] for key in KEYS}

    async def start(self) -> None:
        self.gates.append(await Gate(self._client, self._policy).__aenter__())

    async def die(self, gate: Gate) -> None:
        """It ends with its runs, and its session with it."""
        await self.close(gate)
        await self.start()

    async def close(self, gate: Gate) -> None:
        self.gates.remove(gate)
        self.open = {key: (owner, ticket) for key, (owner, ticket) in self.open.items() if owner is not gate}
        await gate.__aexit__(None, None, None)

    async def ask(self, gate: Gate, key: str) -> Ticket | Kept | None:
        decided = await gate.admit(Incoming("POST", "/", {}, (key,), b"{}"))
        if isinstance(decided, Ticket):
            assert key not in self.open, "it runs at this moment"
            self.runs[key] += 1
            self.ids[key].add(decided.id)
            self.open[key] = gate, decided
        elif decided not in (IN_PROGRESS, OUTCOME_UNKNOWN, UNAVAILABLE):
            assert isinstance(decided, Kept)
            assert (decided.status, decided.body) in self.responses[key]
        return decided

    async def end(self, key: str) -> None:
        gate, ticket = self.open.pop(key)
        if self._network.dice.random() < 0.2:
            if not ticket.may_rerun:
                self.responses[key].append((OUTCOME_UNKNOWN.status, OUTCOME_UNKNOWN.body))
            await gate.give_up(ticket)
            return
        body = b"%d" % self.runs[key]
        self.responses[key].append((201, body))
        await gate.settle(ticket, Kept(201, [], body))


@pytest.mark.parametrize("rerun", [False, True])
@pytest.mark.parametrize("deaths", [False, True])
async def test_at_most_one_run_begins_under_a_key_whatever_becomes_of_the_writes(rerun: bool, deaths: bool) -> None:
    async with FakeGateway() as fake, Client(fake.endpoints) as client:
        for seed in range(30):
            dice = random.Random(seed)
            network = Network(dice)
            services = Services(client, network, Policy(table=f"keys-{seed}", rerun=lambda _: rerun))
            for _ in range(2):
                await services.start()
            for _ in range(25):
                what, gate = dice.random(), dice.choice(services.gates)
                if what < 0.6 or not (services.open or deaths):
                    await services.ask(gate, dice.choice(KEYS))
                elif what < 0.85 and services.open:
                    await services.end(dice.choice(sorted(services.open)))
                elif what > 0.95 and deaths:
                    await services.die(gate)
                else:
                    await network.arrive()
            network.is_sound = True
            await network.arrive()
            for key in [*services.open]:
                await services.end(key)
            told = {key: [await services.ask(gate, key) for gate in services.gates] for key in KEYS}
            for key, decided in told.items():
                assert rerun or services.runs[key] <= 1, (seed, key)
                assert deaths or services.runs[key], (seed, key, "nobody has run it, and nobody may")
                assert len(services.ids[key]) <= 1, "whoever runs it runs it under the same name"
                if key not in services.open and rerun:
                    assert any(isinstance(one, Kept) and one.status == 201 for one in decided)
            for gate in [*services.gates]:
                await services.close(gate)
