"""Entering a session: once, with the bounds that it was given, and without a trace where that fails."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web

from oncegate import Client, Code, OperationFailed, OutboxUnresolved, Outcome, WriteResult
from oncegate.gateway.client.outbox_file import Head, NewEntry, OutboxFile
from oncegate.gateway.machine import commands as c
from oncegate.gateway.wire import Operation
from oncegate.rifl.errors import OncegateError
from oncegate.rifl.ids import parse_client_id
from oncegate.testing import FakeGateway
from tests.client.answers import Answer, arrived, fails, intercept, lose_answers

SESSIONS = "/v1/sessions"


@pytest.fixture
async def left(fake: FakeGateway, tmp_path: Path) -> Path:
    """An outbox of a session with a short window and lease; its process has left three writes that were not taken."""
    path = tmp_path / "worker.outbox"
    opened: Any = fake.apply(c.OpenSession("n", 30_000, 8)).body
    client_id = parse_client_id(opened.client_id)
    file = OutboxFile(path)
    writes = [Operation(number, "increment", "rows", f"n{number}", by=1) for number in (1, 2, 3)]
    file.write(
        [NewEntry(one.sequence, msgspec.msgpack.encode(one)) for one in writes],
        head=Head(client_id=client_id, lease_ms=30_000, window=8),
    )
    file.close()
    return path


async def test_session_is_entered_once_and_a_client_that_is_not_open_does_not_use_it_up(fake: FakeGateway) -> None:
    client = Client(fake.endpoints)
    session = client.session()
    with fails(Code.CONFLICT, Outcome.NOT_APPLIED):
        await session.__aenter__()
    async with client:
        async with session:
            with fails(Code.CONFLICT, Outcome.NOT_APPLIED):
                await session.__aenter__()
            assert (await session.put("rows", "k", 1)).applied
        with fails(Code.CONFLICT, Outcome.NOT_APPLIED):
            await session.__aenter__()
    assert fake.nodes[0].requests[f"POST {SESSIONS}"] == 1


@pytest.mark.parametrize("client_id", ["", "7", "0" * 16, "g" * 16, "00000000000000AB", "f" * 17])
@pytest.mark.parametrize("keeps", [False, True])
async def test_answer_without_a_valid_id_opens_nothing(
    fake: FakeGateway, tmp_path: Path, client_id: str, keeps: bool
) -> None:
    async def answer(_: web.Request) -> Answer:
        return web.json_response({"client_id": client_id, "epoch": 1, "lease_ms": 60_000, "window": 8})

    intercept(fake.nodes[0], SESSIONS, answer)
    async with Client(fake.endpoints) as client:
        with fails(Code.INTERNAL):
            await client.session(outbox=tmp_path / "o" if keeps else None).__aenter__()
        assert not client._connection._sessions
        fake.nodes[0].before = None
        async with client.session(outbox=tmp_path / "o" if keeps else None) as session:
            assert (await session.put("rows", "k", 1)).applied


@pytest.mark.parametrize("keeps", [False, True])
async def test_bounds_of_a_session_are_those_that_the_cluster_grants(
    fake: FakeGateway, tmp_path: Path, keeps: bool
) -> None:
    path = tmp_path / "o" if keeps else None

    async def grant_less(request: web.Request) -> Answer:
        answer: Any = await fake.nodes[0].serve(request)
        return web.json_response({**msgspec.json.decode(answer.body), "lease_ms": 9_000, "window": 4}, status=200)

    intercept(fake.nodes[0], SESSIONS, grant_less)
    async with Client(fake.endpoints) as client, client.session(lease_ms=60_000, window=16, outbox=path) as session:
        sender = session._sender
        assert (sender.tracker.window, sender.places.window, sender.lease.lease_s) == (4, 4, 9.0)
        assert session.memory_ms_left <= 9_000, "the cluster promises no longer memory"
        if path is not None:
            file = OutboxFile(path, read_only=True)
            assert (file.head.window, file.head.lease_ms) == (4, 9_000)
            file.close()


async def test_session_of_an_outbox_goes_on_with_the_bounds_it_was_opened_with(fake: FakeGateway, left: Path) -> None:
    """Its cluster knows no others, whatever the next process asks for."""
    async with Client(fake.endpoints) as client, client.session(outbox=left, window=64, lease_ms=120_000) as session:
        sender = session._sender
        assert (sender.tracker.window, sender.places.window, sender.lease.lease_s) == (8, 8, 30.0)
        assert session.memory_ms_left <= 120_000
        assert len(session.recovered) == 3
        assert session.outstanding == 0


async def test_session_that_was_taken_over_goes_on_in_the_next_one_when_it_is_lost(
    fake: FakeGateway, left: Path
) -> None:
    """The next one counts its owners from the beginning: under the number of before it would be refused."""
    async with (
        Client(fake.endpoints) as client,
        client.session(outbox=left, renew_lost=True, on_unknown=print) as session,
    ):
        before = session.client_id
        assert session.epoch == 2
        fake.advance(61)
        assert (await session.put("rows", "k", 1)).applied
        assert session.client_id != before
        assert session.epoch == 1
        assert not session.lost.is_set()
    assert not len(fake.machine.sessions)


async def test_what_is_recovered_is_told_without_asking_and_reads_reflect_it(fake: FakeGateway, left: Path) -> None:
    async with Client(fake.endpoints) as client, client.session(outbox=left) as session:
        fake.nodes[0].requests.clear()
        for one in session.recovered:
            assert isinstance(one.result, WriteResult)
            assert session.highest_commit >= one.result.commit
            assert (await session.resolve(one.entry.request_id)).result == one.result
            assert (await session.send_again(one.entry.request_id)) == one.result
        assert not fake.nodes[0].requests


FAILURES = "no session", "no take-over", "no verdict", "unknown", "cancelled"


@pytest.mark.parametrize("how", FAILURES)
async def test_session_that_cannot_be_entered_leaves_its_outbox_to_the_next_one_and_nothing_behind(
    fake: FakeGateway, left: Path, tmp_path: Path, how: str
) -> None:
    node, held = fake.nodes[0], len(_held(left))

    async def refuse(request: web.Request) -> Answer:
        if request.path == SESSIONS or request.path.endswith("/take-over"):
            return node.problem(OncegateError(Code.FORBIDDEN))
        return None

    path, timeout_s, expected = left, 60.0, Code.FORBIDDEN
    if how in ("no session", "no take-over"):
        path, held = (tmp_path / "new", 0) if how == "no session" else (path, held)
        node.before = refuse
    elif how == "no verdict":
        node.after, timeout_s, expected = lose_answers, 0.3, Code.TIMEOUT
    elif how == "unknown":
        fake.advance(61)
        expected = Code.SESSION_EXPIRED
    else:
        node.after = lose_answers
    async with Client(fake.endpoints, timeout_s=timeout_s) as client:
        entering = asyncio.ensure_future(client.session(outbox=path).__aenter__())
        if how == "cancelled":
            await arrived(node)
            entering.cancel()
        async with asyncio.timeout(30):
            await asyncio.wait([entering])
        if how == "cancelled":
            assert entering.cancelled()
        else:
            failure = entering.exception()
            assert isinstance(failure, OperationFailed)
            assert failure.code is expected
            assert isinstance(failure, OutboxUnresolved) == (how == "unknown")
        assert not client._connection._sessions
        assert not _keepers()
        node.before = node.after = None
        assert len(_held(path)) == held
        unknown: list[object] = []
        async with client.session(outbox=path, on_unknown=unknown.append) as session:
            assert len(session.recovered) + len(unknown) == held
            assert (await session.put("rows", "k", 1)).applied
        assert not _held(path)
        assert not _keepers()


def _held(path: Path) -> list[object]:
    file = OutboxFile(path)  # refused with CONFLICT while somebody holds it
    try:
        return [*file.loaded]
    finally:
        file.close()


def _keepers() -> list[str]:
    """Tasks that renew a lease."""
    names = [getattr(task.get_coro(), "__name__", "") for task in asyncio.all_tasks()]
    return [name for name in names if name == "keep_lease"]
