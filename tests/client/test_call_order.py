"""A session in order: its effects come in the order of its calls, whatever is lost, late, refused for now, renewed."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from oncegate import Client, Code, OperationFailed, OutcomeUnknown, PartialFailure, Session, Transaction, Tuning
from oncegate.gateway.client.learning import Learner
from oncegate.gateway.client.sender import Sender
from oncegate.gateway.machine import commands as c
from oncegate.rifl.errors import Outcome
from oncegate.testing import FakeGateway, FakeNode
from tests.client.answers import Answer, cut, fails

IMPATIENT = Tuning(attempt_timeout_s=0.05, backoff_first_s=0.001, backoff_cap_s=0.01, range_min=4)
WRITE_PATHS = ("/operations", "/ranges")


class Unruly:
    """Loses requests and answers of one node, and lets copies of requests arrive late, by a seeded die."""

    def __init__(self, fake: FakeGateway, seed: int) -> None:
        self.random = random.Random(seed)
        self.faults, self.late = 0.8, set[asyncio.Task[None]]()
        self.copies = 0
        for node in fake.nodes:
            self._stand_before(node)

    def _stand_before(self, node: FakeNode) -> None:
        async def before(request: web.Request) -> Answer:
            if not request.path.endswith(WRITE_PATHS) or "Late" in request.headers:
                return None
            dice = self.random.random()
            if dice < self.faults / 4:  # it never arrives
                cut(request)
                return web.Response()
            if dice < self.faults:  # it arrives later than its sender waits
                body = await request.read()
                headers = {**request.headers, "Late": "1"}
                self.copies += 1
                task = asyncio.ensure_future(self._arrive(f"{node.endpoint}{request.path}", body, headers))
                self.late.add(task)
                cut(request)
                return web.Response()
            return None

        node.before = before

    async def _arrive(self, url: str, body: bytes, headers: dict[str, Any]) -> None:
        await asyncio.sleep(self.random.uniform(0, 0.3))
        headers.pop("Content-Length", None)
        async with aiohttp.ClientSession() as http, http.post(url, data=body, headers=headers) as answer:
            await answer.read()


def effects(fake: FakeGateway) -> list[int]:
    """The calls that took effect, in commit order: each writes its number."""
    made = [one for one in fake.executed if type(one.value) is int]
    return [one.value for one in sorted(made, key=lambda one: one.commit)]


async def calls(session: Session, seed: int, numbers: range) -> list[Any]:
    """Begin calls of all kinds, each with its number as the value, without waiting; return their ends."""
    dice = random.Random(seed)
    begun: list[asyncio.Future[Any]] = []
    for number in numbers:
        timeout_s = dice.choice((0.02, 0.02, 0.1, 0.1, 0.3))
        kind, key = (
            dice.choice(("put", "put", "put", "stream", "many", "rows", "transaction")),
            f"k{dice.randrange(20)}",
        )
        if kind == "put":
            made = session.put("rows", key, number, timeout_s=timeout_s)
        elif kind == "stream":
            made = session.put("events", key, number, timeout_s=timeout_s)
        elif kind in ("many", "rows"):
            table = "events" if kind == "many" else "rows"
            rows = [(f"{key}.{row}", number) for row in range(6)]
            made = session.put_many(table, rows, timeout_s=timeout_s)  # type: ignore[assignment]
        else:
            both = Transaction().put("rows", key, number).put("others", key, number)
            made = session.transact(both, timeout_s=timeout_s)
        begun.append(asyncio.ensure_future(made))
        if dice.random() < 0.3:
            await asyncio.sleep(0.02)
    return await asyncio.gather(*begun, return_exceptions=True)


def check(fake: FakeGateway, ends: list[Any]) -> None:
    """Hold effects and results against the order of the calls."""
    done = effects(fake)
    assert done == sorted(done)
    told = [(one.commit, at) for at, one in enumerate(ends) if not isinstance(one, BaseException)]
    assert told == sorted(told)
    applied = set(done)
    for at, end in enumerate(ends):
        if isinstance(end, BaseException):
            assert isinstance(end, OperationFailed), end
            if end.outcome is Outcome.NOT_APPLIED and not isinstance(end, PartialFailure):
                assert at not in applied, f"call {at} was told {end!r} and took effect"
        else:
            assert at in applied


async def declared(fake: FakeGateway, client: Client) -> None:
    for name, kind in (("rows", "resident"), ("others", "resident"), ("events", "stream")):
        await client.declare_table(name, kind=kind)  # type: ignore[arg-type]


async def test_calls_take_effect_in_their_order_without_faults() -> None:
    async with FakeGateway() as fake, Client(fake.endpoints) as client:
        await declared(fake, client)
        async with client.session(in_order=True, window=64) as session:
            puts = [session.put("rows", f"k{n % 50}", n, timeout_s=60) for n in range(1_500)]
            ends = await asyncio.gather(*puts, session.put_many("events", [("e", 1_500)] * 200, timeout_s=60))
        check(fake, ends)


@pytest.mark.parametrize("seed", range(4))
async def test_calls_take_effect_in_their_order_whatever_is_lost_or_late(seed: int) -> None:
    async with FakeGateway(nodes=3) as fake, Client(fake.endpoints, tuning=IMPATIENT) as client:
        await declared(fake, client)
        async with client.session(in_order=True, window=32) as session:
            unruly = Unruly(fake, seed)
            ends = list[Any]()
            for turn in range(3):
                ends += await calls(session, seed * 10 + turn, range(turn * 40, turn * 40 + 40))
            unruly.faults = 0.0
            ends.append(await session.put("rows", "last", len(ends), timeout_s=60))
            assert unruly.copies
            await asyncio.gather(*unruly.late)
        check(fake, ends)


async def test_a_write_refused_for_now_holds_up_those_behind_it_until_it_is_over() -> None:
    async with FakeGateway() as fake, Client(fake.endpoints, tuning=IMPATIENT) as client:
        await declared(fake, client)
        await client.declare_table("small", quota_bytes=1024)
        async with client.session(in_order=True) as session:
            await session.put("small", "fills", "x" * 800)
            full = asyncio.ensure_future(session.put("small", "k", "y" * 800, timeout_s=60))
            behind = [asyncio.ensure_future(session.put("rows", f"k{n}", n, timeout_s=60)) for n in range(20)]
            late = asyncio.ensure_future(session.put("rows", "late", 99, timeout_s=0.05))
            with pytest.raises(OperationFailed) as over:
                await late
            # Unknown, if an attempt was under way at its deadline: it is sealed then before the next one leaves.
            assert over.value.outcome is not Outcome.APPLIED
            assert over.value.code in (Code.TIMEOUT, Code.OVERLOADED), "it waited, or was told to"
            assert not any(one.done() for one in (full, *behind)), "none of them passes it"
            assert effects(fake) == []
            async with client.session() as other:
                await other.delete("small", "fills")
            commits = [(await one).commit for one in (full, *behind)]
            assert commits == sorted(commits)
            # What is refused for good has no effect, and holds up nobody.
            refused = asyncio.ensure_future(session.put("nowhere", "k", 1))
            assert (await session.put("rows", "k0", 100)).applied
            assert isinstance((await asyncio.gather(refused, return_exceptions=True))[0], OperationFailed)


async def test_a_write_in_doubt_is_sealed_or_learned_before_the_next_leaves() -> None:
    async with FakeGateway() as fake, Client(fake.endpoints, tuning=IMPATIENT) as client:
        await declared(fake, client)
        async with client.session(in_order=True) as session:
            held = list[tuple[bytes, dict[str, Any]]]()

            async def keep(request: web.Request) -> Answer:
                if request.path.endswith("/operations") and "Late" not in request.headers:
                    held.append((await request.read(), {**request.headers, "Late": "1"}))
                    cut(request)
                    return web.Response()
                return None

            fake.nodes[0].before = keep
            with pytest.raises(OutcomeUnknown) as doubt:
                await session.put("rows", "a", 1, timeout_s=0.1)
            following = asyncio.ensure_future(session.put("rows", "b", 2, timeout_s=60))
            await asyncio.sleep(0)
            fake.nodes[0].before = None
            assert (await following).applied
            body, headers = held[0]
            headers.pop("Content-Length")
            url = f"{fake.nodes[0].endpoint}/v1/operations"
            async with aiohttp.ClientSession() as http, http.post(url, data=body, headers=headers) as answer:
                await answer.read()
            assert effects(fake) == [2], "the late copy of the first changes nothing"
            assert (await doubt.value.resolve()).state == "sealed"


async def test_a_session_that_opens_anew_keeps_the_order_of_its_calls() -> None:
    async with FakeGateway() as fake, Client(fake.endpoints, tuning=IMPATIENT) as client:
        await declared(fake, client)
        async with client.session(in_order=True, renew_lost=True, lease_ms=1_000, window=64) as session:
            first = session.client_id
            begun: list[asyncio.Future[Any]] = []
            for number in range(300):
                begun.append(asyncio.ensure_future(session.put("rows", f"k{number}", number, timeout_s=60)))
                if number == 100:
                    await asyncio.sleep(0.01)
                    fake.time_ms += 5_000
                    fake.apply(c.Reap([int(first)]))
            many = asyncio.ensure_future(session.put_many("events", [("e", 300)] * 20, timeout_s=60))
            ends = await asyncio.gather(
                *begun, many, session.put("rows", "z", 301, timeout_s=60), return_exceptions=True
            )
            assert session.client_id != first
        done = effects(fake)
        assert done == sorted(done)
        assert {at for at, one in enumerate(ends) if not isinstance(one, BaseException)} <= set(done)


async def test_what_has_no_place_in_the_order_is_refused() -> None:
    async with FakeGateway() as fake, Client(fake.endpoints) as client:
        await declared(fake, client)
        with fails(Code.BAD_REQUEST):
            client.session(in_order=True, outbox="box")
        async with client.session(in_order=True) as session:
            with fails(Code.BAD_REQUEST):
                await session.put("rows", "k", 1, idempotency_key="k")
            with fails(Code.BAD_REQUEST):
                await session.transact(Transaction().put("rows", "k", 1), idempotency_key="k")
        assert effects(fake) == []


async def test_nothing_leaves_while_a_doubt_of_the_session_remains(monkeypatch: pytest.MonkeyPatch) -> None:
    """A doubt may come in the turn in which the question about the last one ends: then that is waited for too."""
    async with FakeGateway() as fake, Client(fake.endpoints) as client:
        await declared(fake, client)
        async with client.session(in_order=True) as session:
            sender, rounds = session._sender, iter((2, 3, 4))
            sender.doubts.gave_up(sender.tracker.take_singles(1))

            async def asked(_: Learner) -> None:
                sender.doubts.lose_all(sender.client_id)
                if next(rounds, None):
                    sender.doubts.gave_up(sender.tracker.take_singles(1))

            with monkeypatch.context() as patched:
                patched.setattr(Learner, "wake", lambda _: None)
                patched.setattr(Learner, "asked", asked)
                await sender._know_all()
            assert not sender.doubts.of_this_session
            assert next(rounds, None) is None


async def test_the_checks_see_a_session_that_does_not_wait_for_its_doubts(monkeypatch: pytest.MonkeyPatch) -> None:
    """What these tests rest on: without the wait a late copy does take effect behind a later call."""

    async def forgets(sender: Sender) -> None:
        sender.doubts.lose_all(sender.client_id)

    monkeypatch.setattr(Sender, "_know_all", forgets)
    monkeypatch.setattr(Learner, "wake", lambda _: None)  # asks nobody either: a question would seal what is late
    with suppress(AssertionError):
        for seed in range(10):
            await test_calls_take_effect_in_their_order_whatever_is_lost_or_late(seed)
        pytest.fail("nobody noticed")
