"""Opening, keeping and leaving a session."""

from __future__ import annotations

import asyncio

import pytest
from aiohttp import web

from oncegate import Client, Code, OncegateError, OperationFailed, Outcome, OutcomeUnknown, Session, Tuning
from oncegate.gateway import wire
from oncegate.gateway.client.connection_turns import FIRST
from oncegate.gateway.client.courier import Call
from oncegate.gateway.client.session_life import LeaseClock, keep_lease
from oncegate.gateway.client.verdicts import SESSION_OVER
from oncegate.rifl.ids import format_client_id
from oncegate.testing import FakeGateway
from tests.client.answers import OPERATIONS, Answer, arrived, fails, intercept, packed


class ManualTime:
    """A clock that only moves when the loop under test sleeps."""

    def __init__(self) -> None:
        self.now = 100.0
        self.slept: list[float] = []

    def clock(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds
        await asyncio.sleep(0)


async def test_lease_is_renewed_when_half_of_it_has_passed_without_an_operation() -> None:
    time = ManualTime()
    lease = LeaseClock(10_000, time.now)
    renewals: list[float] = []

    async def renew() -> None:
        renewals.append(time.now)
        lease.extend(time.now, 10_000)
        if len(renewals) == 3:
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await keep_lease(lease, renew, time.clock, time.sleep)
    assert renewals == [105.0, 110.0, 115.0]


async def test_operations_that_renew_the_lease_make_renewals_unnecessary() -> None:
    time = ManualTime()
    lease = LeaseClock(10_000, time.now)

    async def renew() -> None:
        raise AssertionError("an operation has renewed the lease")

    async def sleep(seconds: float) -> None:
        await time.sleep(seconds)
        if time.now > 1000:
            raise asyncio.CancelledError
        lease.extend(time.now, 10_000)

    with pytest.raises(asyncio.CancelledError):
        await keep_lease(lease, renew, time.clock, sleep)


async def test_failed_renewal_is_tried_again_soon_but_not_in_a_spin() -> None:
    time = ManualTime()
    lease = LeaseClock(10_000, time.now)
    tries: list[float] = []

    async def renew() -> None:
        tries.append(time.now)
        if len(tries) == 4:
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await keep_lease(lease, renew, time.clock, time.sleep)
    assert tries == [105.0, 105.5, 106.0, 106.5]


def test_answer_extends_the_lease_from_when_its_request_was_sent() -> None:
    lease = LeaseClock(10_000, 0.0)
    lease.extend(3.0, 10_000)
    assert lease.ends_at == 13.0
    lease.extend(2.0, 10_000)
    assert lease.ends_at == 13.0


async def test_idle_session_is_renewed_in_the_background(hasty: FakeGateway) -> None:
    async with Client(hasty.endpoints) as client, client.session() as session:
        renewal = f"POST /v1/sessions/{format_client_id(session.client_id)}/renew"
        while hasty.nodes[0].requests[renewal] < 3:
            await asyncio.sleep(0.001)


async def test_leaving_drains_what_is_pending_and_closes_the_session(fake: FakeGateway) -> None:
    async with Client(fake.endpoints) as client:
        async with client.session() as session:
            writes = [session.submit("put", "rows", f"k{n}", n) for n in range(300)]
            client_id = session.client_id
        assert all(write.result().applied for write in writes)
        assert fake.machine.sessions.get(client_id) is None
    assert fake.nodes[0].requests[f"DELETE /v1/sessions/{format_client_id(client_id)}"] == 1


async def test_leaving_the_client_closes_its_sessions(fake: FakeGateway) -> None:
    async with Client(fake.endpoints) as client:
        session = await client.session().__aenter__()
        write = session.submit("put", "rows", "k", 1)
    assert write.result().applied
    assert not len(fake.machine.sessions)


async def test_leaving_by_cancellation_does_not_wait_and_says_unknown(fake: FakeGateway) -> None:
    inside = asyncio.Event()
    writes: list[asyncio.Future[object]] = []

    async def application() -> None:
        async with Client(fake.endpoints) as client, client.session() as session:
            fake.nodes[0].freeze()
            writes.append(session.submit("put", "rows", "k", 1))  # type: ignore[arg-type]
            inside.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(application())
    await inside.wait()
    while not fake.nodes[0].requests["POST /v1/operations"]:
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert isinstance(writes[0].exception(), OutcomeUnknown)


async def test_write_after_leaving_is_refused_as_not_applied(fake: FakeGateway) -> None:
    async with Client(fake.endpoints) as client:
        async with client.session() as session:
            pass
        with fails(Code.SESSION_EXPIRED, Outcome.NOT_APPLIED):
            await session.put("rows", "k", 1)
        with pytest.raises(OperationFailed):
            session.submit("put", "rows", "k", 1)
        assert session.outstanding == 0


async def test_expired_session_refuses_all_further_writes_without_asking(fake: FakeGateway) -> None:
    async with Client(fake.endpoints) as client, client.session() as session:
        fake.expire(session.client_id)
        with fails(Code.SESSION_EXPIRED, Outcome.NOT_APPLIED):
            await session.put("rows", "a", 1)
        asked = fake.nodes[0].requests["POST /v1/operations"]
        with fails(Code.SESSION_EXPIRED):
            await session.put("rows", "b", 1)
        assert fake.nodes[0].requests["POST /v1/operations"] == asked
    assert not fake.executed


async def test_same_nonce_opens_the_same_session(fake: FakeGateway) -> None:
    async with Client(fake.endpoints) as client, client.session(nonce="n") as one, client.session(nonce="n") as other:
        assert one.client_id == other.client_id


async def test_leaving_ends_although_callers_go_on_writing(fake: FakeGateway) -> None:
    async def writer(number: int) -> int:
        done = 0
        while True:
            try:
                await session.put("rows", f"k{number}", done)
            except OperationFailed as refused:
                refusals.append((refused.code, refused.outcome))
                return done
            done += 1

    refusals: list[tuple[Code, Outcome]] = []

    async with Client(fake.endpoints) as client:
        async with client.session(window=8) as session:
            writers = [asyncio.create_task(writer(number)) for number in range(20)]
            while len(fake.executed) < 100:
                await asyncio.sleep(0)
        assert sum(await asyncio.gather(*writers)) == len(fake.executed)
    assert refusals == [(Code.SESSION_EXPIRED, Outcome.NOT_APPLIED)] * 20


async def test_session_that_is_not_entered_refuses_every_use_with_a_type(fake: FakeGateway) -> None:
    outside = Client(fake.endpoints)
    with fails(Code.CONFLICT, Outcome.NOT_APPLIED):
        await outside.get("rows", "k")
    with fails(Code.CONFLICT, Outcome.NOT_APPLIED):
        await outside.session().__aenter__()
    async with Client(fake.endpoints) as client:
        session = client.session()
        for use in (
            lambda: session.put("rows", "k", 1),
            lambda: session.delete("rows", "k"),
            lambda: session.put_many("rows", {"k": 1}),
            lambda: session.get("rows", "k"),
            lambda: session.resolve(1),
            lambda: session.send_again(1),
        ):
            with fails(Code.CONFLICT, Outcome.NOT_APPLIED):
                await use()  # type: ignore[no-untyped-call]
        with fails(Code.CONFLICT, Outcome.NOT_APPLIED):
            session.submit("put", "rows", "k", 1)
        for name in ("client_id", "epoch", "highest_commit", "outstanding", "memory_ms_left"):
            with fails(Code.CONFLICT, Outcome.NOT_APPLIED):
                getattr(session, name)
        await session.close()
        async with session:
            assert (await session.put("rows", "k", 1)).sequence == 1
    for use in (lambda: session.put("rows", "k", 1), lambda: session.get("rows", "k")):
        with fails(Code.SESSION_EXPIRED, Outcome.NOT_APPLIED):
            await use()
    with fails(Code.CONFLICT, Outcome.NOT_APPLIED):
        await client.get("rows", "k")


async def test_answer_to_a_write_extends_the_lease_from_when_the_write_was_sent(
    fake: FakeGateway, session: Session
) -> None:
    loop, held = asyncio.get_running_loop(), asyncio.Event()

    async def hours_later(_: web.Request) -> Answer:
        await held.wait()
        applied = wire.OperationResult(1, "applied", commit=1, version=1)
        return packed({"results": [applied], "memory_ms": 3_600_000})

    intercept(fake.nodes[0], OPERATIONS, hours_later)
    writing = session.submit("put", "rows", "k", 1)
    await arrived(fake.nodes[0])
    arrived_at = loop.time()
    while loop.time() == arrived_at:
        await asyncio.sleep(0.001)
    held.set()
    assert (await writing).applied
    assert arrived_at < session._sender.lease.ends_at <= arrived_at + 3_600


@pytest.mark.parametrize("code", Code)
async def test_refused_renewal_ends_the_session_exactly_if_it_says_that_the_session_has_ended(
    hasty: FakeGateway, code: Code
) -> None:
    node, shorten, asked = hasty.nodes[0], hasty.nodes[0].before, 0
    assert shorten is not None

    async def refuse_once(request: web.Request) -> Answer:
        nonlocal asked
        if request.path.endswith("/renew"):
            asked += 1
            if asked == 1:
                return node.problem(OncegateError(code, retry_after_ms=1))
        return await shorten(request)

    node.before = refuse_once
    lost: list[Code] = []
    async with Client(hasty.endpoints, tuning=Tuning(backoff_first_s=0.001, backoff_cap_s=0.01)) as client:
        async with client.session(on_lost=lambda why: lost.append(why.code)) as session:
            over = code in SESSION_OVER
            async with asyncio.timeout(20):
                while not session.lost.is_set() if over else asked < 3:
                    await asyncio.sleep(0.001)
            assert session.lost.is_set() == over
            if over:
                with fails(code, Outcome.NOT_APPLIED):
                    await session.put("rows", "k", 1)
                assert asked == 1, "there is nothing to renew any more"
            else:
                assert (await session.put("rows", "k", 1)).applied
        assert lost == ([code] if over else [])


async def test_renewal_goes_before_other_calls_and_is_tried_for_as_long_as_the_lease(
    hasty: FakeGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However short the time of a write is, and however many wait: without the session all of them are lost."""
    loop, seen = asyncio.get_running_loop(), list[tuple[float, float]]()
    async with Client(hasty.endpoints, timeout_s=0.5) as client:
        courier = client._connection.courier
        exchange = courier.exchange

        async def note(call: Call[object]) -> object:
            if call.path.endswith("/renew"):
                seen.append((call.began, call.deadline - loop.time()))
            return await exchange(call)

        monkeypatch.setattr(courier, "exchange", note)
        async with client.session(lease_ms=30_000):
            async with asyncio.timeout(20):
                while not seen:
                    await asyncio.sleep(0.001)
    for began, left_s in seen:
        assert began == FIRST
        assert 20 < left_s <= 30
