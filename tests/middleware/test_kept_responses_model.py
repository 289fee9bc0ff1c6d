"""What a retry gets, over every response, policy, broken run and end of a session."""

from __future__ import annotations

import random
from typing import Any, NamedTuple

import pytest

from oncegate import Client, WriteResult
from oncegate.gateway.middleware.gate import Ticket
from oncegate.gateway.middleware.records import IN_PROGRESS, OUTCOME_UNKNOWN, UNAVAILABLE, Incoming, Kept
from oncegate.middleware import Gate, Policy
from oncegate.testing import FakeGateway

BYTES_MAX = 60
LEASE_MS = 5_000
KEYS = ("a", "b", "c", "d")
LEFT_OUT = ("Set-Cookie", "date", "Connection")
STATUSES = (200, 201, 404, 418, 429, 500, 502, 503)


class Known(NamedTuple):
    """What the table has of a key: a claim and whether its service lives, or a response."""

    claim: Ticket
    lives: bool
    response: Kept | None = None


def a_response(dice: random.Random) -> Kept:
    """Draw one: its body and its headers, each within the bound and beyond it by one byte."""
    headers = [(dice.choice(LEFT_OUT), "x" * 100)] if dice.random() < 0.5 else []
    headers.append(("x-note", "n" * (BYTES_MAX - 6 + dice.choice((-6, 0, 0, 1)))))
    body = None if dice.random() < 0.1 else b"b" * (BYTES_MAX + dice.choice((-60, 0, 1)))
    return Kept(dice.choice(STATUSES), headers, body)


def expected(response: Kept, policy: Policy) -> Kept:
    """Return what a retry gets of a response that was recorded."""
    headers = [header for header in response.headers if header[0] not in LEFT_OUT]
    bytes_ = sum(len(name) + len(value) for name, value in headers)
    if response.body is None or max(len(response.body), bytes_) > BYTES_MAX:
        return Kept(410, [], None)
    more = [("Idempotent-Replayed", "true"), ("Idempotency-Key-Kept", str(policy.kept_s))]
    return Kept(response.status, headers + more, response.body)


class Services:
    """Two gates, and what they should have of each key."""

    def __init__(self, gates: list[Gate], policy: Policy, *, rerun: bool) -> None:
        self.gates, self.policy, self.rerun = gates, policy, rerun
        self.known: dict[str, Known] = {}
        self.open: dict[tuple[int, str], Ticket] = {}
        self.over = [False, False]
        """Whose session has ended, without its having heard of it."""

    def end_sessions(self) -> None:
        """The claims of what runs stand on; they count as those of the dead."""
        self.over = [True, True]
        self.known = {key: known._replace(lives=False) for key, known in self.known.items()}

    async def ask(self, at: int, key: str) -> None:
        decided = await self.gates[at].admit(Incoming("POST", "/", {}, (key,), b""))
        known = self.known.get(key)
        if (at, key) in self.open:
            assert decided == IN_PROGRESS
        elif self.over[at]:
            assert decided == UNAVAILABLE
            self.over[at] = False
        elif known is None or (known.response is None and not known.lives and self.rerun):
            assert isinstance(decided, Ticket)
            assert decided.attempt == (1 if known is None else known.claim.attempt + 1)
            assert known is None or decided.id == known.claim.id
            self.known[key], self.open[at, key] = Known(decided, lives=True), decided
        elif known.response is None:
            assert decided == (IN_PROGRESS if known.lives else OUTCOME_UNKNOWN)
        else:
            assert isinstance(decided, Kept)
            wanted = expected(known.response, self.policy)
            if wanted.status == 410:
                assert decided.status == 410
                assert b"status %d;" % known.response.status in (decided.body or b"")
                assert ("Idempotent-Replayed", "true") in decided.headers
            else:
                assert decided == wanted

    async def end(self, at: int, key: str, response: Kept | None) -> None:
        """End a run with a response, or without one."""
        ticket = self.open.pop((at, key))
        if response is None:
            await self.gates[at].give_up(ticket)
        else:
            await self.gates[at].settle(ticket, response)
        broke_off = response is None or response.status in self.policy.broken
        if self.over[at]:
            self.over[at] = broke_off and self.rerun  # a response that was not recorded opens the session of the next
        elif key in self.known and self.known[key].claim is ticket:
            if broke_off and self.rerun:
                self.known[key] = Known(ticket, lives=False)
            elif response is not None and response.status in self.policy.passing:
                del self.known[key]
            else:
                self.known[key] = Known(ticket, lives=False, response=response or OUTCOME_UNKNOWN)


@pytest.mark.parametrize("rerun", [False, True])
async def test_retry_gets_what_a_dictionary_of_responses_says(rerun: bool) -> None:
    async with FakeGateway() as fake, Client(fake.endpoints) as client:
        for seed in range(40):
            dice = random.Random(seed)
            policy = Policy(
                table=f"keys-{seed}", rerun=lambda _: rerun, response_bytes_max=BYTES_MAX, lease_ms=LEASE_MS
            )
            async with Gate(client, policy) as one, Gate(client, policy) as other:
                services = Services([one, other], policy, rerun=rerun)
                for _ in range(40):
                    what = dice.random()
                    if what < 0.55 or not services.open:
                        await services.ask(dice.randrange(2), dice.choice(KEYS))
                    elif what < 0.95:
                        response = None if dice.random() < 0.2 else a_response(dice)
                        await services.end(*dice.choice(sorted(services.open)), response)
                    else:
                        fake.advance(LEASE_MS / 1000 + 1)
                        services.end_sessions()


async def test_run_is_counted_from_the_first_again_where_the_key_was_freed_while_it_was_claimed() -> None:
    request = Incoming("POST", "/", {}, ("k",), b"")

    class Slow(Gate):
        """Another service runs the request to its end before the second write of this one."""

        writes = 0

        async def _write(self, *what: Any) -> WriteResult:
            self.writes += 1
            if self.writes == 2:
                ticket = await first.admit(request)
                assert isinstance(ticket, Ticket)
                assert ticket.attempt == 2
                await first.settle(ticket, Kept(503, [], b""))
            return await super()._write(*what)

    policy = Policy(rerun=lambda _: True)
    async with (
        FakeGateway() as fake,
        Client(fake.endpoints) as client,
        Gate(client, policy) as first,
        Slow(client, policy) as slow,
    ):
        broken = await first.admit(request)
        assert isinstance(broken, Ticket)
        await first.give_up(broken)
        ticket = await slow.admit(request)
        assert isinstance(ticket, Ticket)
        assert (slow.writes, ticket.attempt) == (3, 1)
