"""Ending a doubt: applied, or sealed and never applied."""

from __future__ import annotations

import asyncio
import pickle

import pytest
from aiohttp import web

from oncegate import Client, Code, NeverKnown, OutcomeUnknown, Session
from oncegate.testing import FakeGateway
from tests.client.answers import fails, keep_back, lose_answers


async def doubt(session: Session) -> OutcomeUnknown:
    with pytest.raises(OutcomeUnknown) as unknown:
        await session.increment("rows", "n", 3, timeout_s=0.25)
    await session.drain()
    return unknown.value


async def test_write_whose_answer_was_lost_resolves_to_its_result(fake: FakeGateway) -> None:
    async with Client(fake.endpoints) as client, client.session() as session:
        fake.nodes[0].after = lose_answers
        unknown = await doubt(session)
        fake.nodes[0].after = None
        resolution = await unknown.resolve()
        assert resolution.applied
        assert (resolution.result.value, resolution.result.replayed) == (3, True)
        assert await session.resolve(unknown.request_id.sequence) == resolution
        assert await client.resolve(str(unknown.request_id)) == resolution


async def test_question_about_a_write_acknowledges_no_number_from_that_one_on(session: Session) -> None:
    """Its result has arrived, and no other request has acknowledged it yet: the question itself must not."""
    for _ in range(3):
        written = await session.increment("rows", "n", 3)
        resolution = await session.resolve(written.sequence)
        assert resolution.result is not None
        assert (resolution.applied, resolution.result.value) == (True, written.value)
        assert await session.resolve(written.sequence) == resolution


async def test_write_that_never_arrived_is_sealed_and_its_late_copy_refused(fake: FakeGateway) -> None:
    late: list[bytes] = []

    async def keep(request: web.Request) -> web.StreamResponse | None:
        if request.path == "/v1/operations":
            late.append(await request.read())
            await asyncio.Event().wait()
        return None

    async with Client(fake.endpoints) as client, client.session() as session:
        fake.nodes[0].before = keep
        unknown = await doubt(session)
        fake.nodes[0].before = None
        sealed = await unknown.resolve()
        assert (sealed.state, sealed.applied, sealed.result) == ("sealed", False, None)
        assert unknown.request_id is not None
        assert (await client.request(*unknown.request_id)).state == "sealed"
        assert await unknown.resolve() == sealed
        (body, *_) = late
        content = {"Content-Type": "application/vnd.oncegate+msgpack", "Accept": "application/json"}
        async with client._connection.http.post(
            f"{fake.endpoints[0]}/v1/operations", data=body, headers=content
        ) as answer:
            assert answer.status == 200
        assert fake.executed == []
        assert (await session.increment("rows", "n", 3)).value == 3
    assert len(fake.executed) == 1


async def test_resolved_numbers_are_acknowledged_by_the_next_write(fake: FakeGateway) -> None:
    async with Client(fake.endpoints) as client, client.session(window=4) as session:
        fake.nodes[0].before = keep_back
        doubts = [await doubt(session) for _ in range(3)]
        fake.nodes[0].before = None
        for unknown in doubts:
            await unknown.resolve()
        await session.increment("rows", "n")
        await session.increment("rows", "n")
        assert fake.machine.trackers[session.client_id].first_incomplete == 5


async def test_outcome_that_is_forgotten_stays_unknown(fake: FakeGateway, client: Client) -> None:
    async def keep(request: web.Request) -> web.StreamResponse | None:
        if request.path == "/v1/operations" or request.path.endswith("/resolve"):
            await asyncio.Event().wait()  # so that the session cannot learn it either, before it is left
        return None

    async with client.session() as session:
        fake.nodes[0].before = keep
        unknown = await doubt(session)
    fake.nodes[0].before = None
    with pytest.raises(NeverKnown) as forgotten:
        await unknown.resolve()
    assert forgotten.value.code is Code.SESSION_EXPIRED
    assert forgotten.value.request_id == unknown.request_id


async def test_doubt_of_another_process_is_resolved_by_id(fake: FakeGateway, client: Client, session: Session) -> None:
    fake.nodes[0].before = keep_back
    unknown = pickle.loads(pickle.dumps(await doubt(session)))
    fake.nodes[0].before = None
    with fails(Code.BAD_REQUEST):
        await unknown.resolve()
    assert (await client.resolve(unknown.request_id)).state == "sealed"


async def test_doubt_is_sealed_although_the_window_the_server_sees_is_full(fake: FakeGateway) -> None:
    async with Client(fake.endpoints) as client, client.session(window=4) as session:
        for n in range(4):
            await session.put("rows", f"k{n}", n)  # numbers 1 to 4; the server has seen 3 acknowledged
        fake.nodes[0].before = keep_back
        doubts = [await doubt(session) for _ in range(4)]
        fake.nodes[0].before = None
        assert {(await unknown.resolve()).state for unknown in doubts} == {"sealed"}


async def test_refused_write_ran_and_took_no_effect(fake: FakeGateway) -> None:
    async with Client(fake.endpoints) as client, client.session() as session:
        await session.put("rows", "14C", "ann")
        fake.nodes[0].after = lose_answers
        with pytest.raises(OutcomeUnknown) as unknown:
            await session.insert("rows", "14C", "bob", timeout_s=0.25)
        fake.nodes[0].after = None
        refused = await unknown.value.resolve()
        assert (refused.state, refused.executed, refused.applied) == ("refused", True, False)
        assert refused.result is not None
        assert (refused.result.applied, refused.result.value) == (False, "ann")
        told = await client.request(*unknown.value.request_id or ())
        assert (told.state, told.executed, told.applied) == ("refused", True, False)
        assert (await client.request(session.client_id, 9)).executed is None
