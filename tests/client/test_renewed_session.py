"""A session that opens anew by itself: what was surely not applied goes on, what was in doubt is reported."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web

from oncegate import (
    Client,
    Code,
    DeadlineExceeded,
    OncegateError,
    OutboxEntry,
    Outcome,
    OutcomeUnknown,
    PartialFailure,
    RequestId,
    WriteResult,
    request_ids,
    sync,
)
from oncegate.gateway.client.outbox_file import Head, OutboxFile
from oncegate.gateway.client.settings import Tuning
from oncegate.testing import FakeCluster, FakeGateway
from tests.client.answers import OPERATIONS, arrived, fails, intercept, lose_answers, settle


async def test_writes_after_an_expiry_go_on_in_a_new_session_in_their_order(fake: FakeGateway) -> None:
    lost: list[Code] = []
    async with (
        Client(fake.endpoints) as client,
        client.session(renew_lost=True, on_lost=lambda why: lost.append(why.code)) as session,
    ):
        first = await session.put("rows", "a", 0)
        for round_ in range(1, 4):
            fake.advance(61)
            writes = [session.submit("append", "rows", "l", 10 * round_ + number) for number in range(5)]
            writes += [session.submit("put", "events", f"k{number}", number) for number in range(20)]
            results = await asyncio.gather(*writes)
            assert all(result.applied and not result.replayed for result in results)
            assert {result.client_id for result in results} == {session.client_id} != {first.client_id}
        assert not session.lost.is_set()
        assert await fake.value("rows", "l") == [10 * round_ + number for round_ in (1, 2, 3) for number in range(5)]
        assert lost == [Code.SESSION_EXPIRED] * 3
        assert (await session.get("rows", "a")).value == 0  # type: ignore[union-attr]
    assert len(fake.executed) == 1 + 3 * 25
    assert not len(fake.machine.sessions)


async def test_write_that_is_taken_back_goes_before_those_that_waited_for_it(fake: FakeGateway) -> None:
    nonces: list[str] = []
    writes: list[asyncio.Future[WriteResult]] = []
    async with Client(fake.endpoints) as client, client.session(renew_lost=True) as session:

        async def expire(request: web.Request) -> None:
            if request.path == "/v1/sessions":
                nonces.append(msgspec.json.decode(await request.read())["nonce"])
            elif request.path == OPERATIONS and len(writes) == 1:
                fake.advance(61)
                writes.append(session.submit("append", "rows", "l", 2))

        fake.nodes[0].before = expire
        for _ in range(2):
            writes[:] = [session.submit("append", "rows", "l", 1)]
            await asyncio.gather(writes[0])
            await asyncio.gather(*writes)
        assert await fake.value("rows", "l") == [1, 2, 1, 2]
    assert len(nonces) == len(set(nonces)) == 2, "a session that has expired may still be known under its nonce"


async def test_write_in_doubt_is_reported_and_never_sent_under_another_id(fake: FakeGateway) -> None:
    async with Client(fake.endpoints) as client, client.session(renew_lost=True) as session:
        await session.put("rows", "a", 1)

        async def expire_then_lose(request: web.Request) -> None:
            if request.path == OPERATIONS:
                fake.nodes[0].after = None
                fake.advance(61)
                await lose(request)

        async def lose(request: web.Request) -> None:
            assert request.transport is not None
            request.transport.abort()

        fake.nodes[0].after = expire_then_lose
        doubtful = session.submit("increment", "rows", "n")
        with pytest.raises(OutcomeUnknown) as unknown:
            await doubtful
        assert unknown.value.code is Code.SESSION_EXPIRED
        assert (await session.increment("rows", "n")).value == 2
        assert unknown.value.request_id is not None
        assert unknown.value.request_id.client_id != session.client_id
        with fails(Code.SESSION_EXPIRED, Outcome.UNKNOWN):
            await unknown.value.resolve()
    assert [write.key for write in fake.executed] == ["a", "n", "n"]


async def test_doubt_that_ends_late_leaves_the_write_with_its_number_in_the_next_session_in_doubt(
    fake: FakeGateway, tmp_path: Path
) -> None:
    """The answer about number 2 of the lost session comes when number 2 of the next one is in doubt."""
    node, path = fake.nodes[0], tmp_path / "o"
    asked, let_go = asyncio.Event(), asyncio.Event()

    async def hold(request: web.Request) -> None:
        if request.path.endswith("/resolve") and not let_go.is_set():
            asked.set()
            await let_go.wait()

    async def hold_and_lose(request: web.Request) -> None:
        await hold(request)
        await lose_answers(request)

    async with (
        Client(fake.endpoints, tuning=Tuning(attempt_timeout_s=60)) as client,
        client.session(renew_lost=True, outbox=path, on_unknown=print) as session,
    ):
        await session.put("rows", "a", 1)
        node.after = lose_answers
        with pytest.raises(OutcomeUnknown) as lost:
            await session.increment("rows", "n", timeout_s=2)
        node.after = hold
        await session.drain()
        resolving = asyncio.create_task(lost.value.resolve(timeout_s=60))
        await asked.wait()
        fake.advance(61)
        assert (await session.put("rows", "b", 1)).sequence == 1
        node.after = hold_and_lose
        with pytest.raises(OutcomeUnknown) as doubt:
            await session.increment("rows", "m", timeout_s=2)
        node.after = hold
        await session.drain()
        assert lost.value.request_id is not None
        assert doubt.value.request_id is not None
        assert lost.value.request_id.sequence == doubt.value.request_id.sequence == 2
        assert lost.value.request_id.client_id != doubt.value.request_id.client_id
        let_go.set()
        assert (await resolving).applied
        await session.put("rows", "c", 1)
        assert (await doubt.value.resolve()).applied


async def test_cancelled_put_many_names_its_rows_by_the_session_in_which_they_travelled(fake: FakeGateway) -> None:
    """One row has travelled in the session that was lost; the other waits for a place when the next one is open."""
    go, anew = asyncio.Event(), asyncio.Event()

    async def hold(request: web.Request) -> web.StreamResponse | None:
        if request.path == OPERATIONS and not go.is_set():
            await go.wait()
            answer = await fake.nodes[0].serve(request)
            fake.advance(61)
            return answer
        if request.path == OPERATIONS and session.client_id != before:
            anew.set()
            await asyncio.Event().wait()
        return None

    async with Client(fake.endpoints) as client, client.session(renew_lost=True, window=1) as session:
        await client.table("rows")
        before = session.client_id
        fake.nodes[0].before = hold
        first = session.submit("put", "rows", "x", 1)
        await arrived(fake.nodes[0])
        many = asyncio.create_task(session.put_many("rows", [("a", 1), ("b", 1)]))
        await settle()
        last = asyncio.create_task(session.put("rows", "y", 1))
        await settle()
        go.set()
        assert (await first).applied
        await anew.wait()
        many.cancel()
        with pytest.raises(asyncio.CancelledError) as cancelled:
            await many
        last.cancel()
        await session.close(drain=False)
    assert {one.client_id for one in request_ids(cancelled.value)} == {before}


async def test_idle_session_is_opened_anew_before_anybody_writes(hasty: FakeGateway) -> None:
    async with Client(hasty.endpoints) as client, client.session(renew_lost=True) as session:
        for _ in range(2):
            before = session.client_id
            hasty.expire(before)
            async with asyncio.timeout(60):
                while session.client_id == before:
                    await asyncio.sleep(0.005)
        assert (await session.put("rows", "a", 1)).sequence == 1


async def test_writes_wait_for_the_new_session_up_to_their_deadlines(fake: FakeGateway) -> None:
    async with Client(fake.endpoints) as client, client.session(renew_lost=True, window=2) as session:

        async def no_session(request: web.Request) -> web.StreamResponse | None:
            return fake.nodes[0].problem(OncegateError(Code.FORBIDDEN))

        fake.advance(61)
        intercept(fake.nodes[0], "/v1/sessions", no_session)
        patient = session.submit("put", "rows", "a", 1)
        with fails(Code.TIMEOUT, Outcome.NOT_APPLIED, kind=DeadlineExceeded):
            await session.put("rows", "b", 1, timeout_s=0.1)
        with fails(outcome=Outcome.NOT_APPLIED, kind=DeadlineExceeded):
            await session.put_many("rows", {"c": 1}, timeout_s=0.1)
        fake.nodes[0].before = None
        assert (await patient).sequence == 1
    assert [write.key for write in fake.executed] == ["a"]


@pytest.mark.parametrize("table", ["rows", "events"])
async def test_put_many_goes_on_as_a_whole_or_says_how_far_it_came(fake: FakeGateway, table: str) -> None:
    rows = [(f"k{number}", number) for number in range(40)]
    async with (
        asyncio.timeout(60),  # rows that went nowhere wait for nobody, and leaving does not wait for them
        Client(fake.endpoints) as client,
        client.session(renew_lost=True, window=8) as session,
    ):
        fake.advance(61)
        whole = await session.put_many(table, rows)
        assert (whole.client_id, whole.first, whole.last) == (session.client_id, 1, 40)

        asked = itertools.count(1)

        async def expire(request: web.Request) -> None:
            if request.path.endswith(("/operations", "/ranges")) and next(asked) == 2:
                fake.advance(61)

        fake.nodes[0].before = expire
        with pytest.raises(PartialFailure) as partial:
            await session.put_many(table, rows)
        assert (partial.value.outcome, partial.value.applied) == (Outcome.NOT_APPLIED, 8)
        assert (await session.put("rows", "after", 1)).applied
    assert len(fake.executed) == 40 + 8 + 1


@pytest.mark.parametrize("table", ["rows", "events"])
async def test_put_many_that_got_no_place_in_its_session_is_one_of_the_next(fake: FakeGateway, table: str) -> None:
    """Writes that go on keep their places: those who wait for them are woken when another session is open."""
    async with Client(fake.endpoints) as client, client.session(renew_lost=True, window=2) as session:
        lost = session.client_id
        await session.put_many(table, [("first", 0)])
        fake.advance(61)
        going_on = [session.submit("put", "rows", key, 1) for key in "ab"]
        many = asyncio.create_task(session.put_many(table, [("c", 1), ("d", 2)]))
        assert {result.client_id for result in await asyncio.gather(*going_on)} == {session.client_id} != {lost}
        told = await many
        assert told.client_id == session.client_id
    assert [write.sequence for write in fake.executed if write.key in "cd"] == [told.first, told.last]


async def test_session_that_was_taken_over_does_not_come_back(fake: FakeGateway) -> None:
    async with Client(fake.endpoints) as client, client.session(renew_lost=True) as session:
        url = f"{fake.endpoints[0]}/v1/sessions/{session.client_id:016x}/take-over"
        async with client._connection.http.post(url, json={"nonce": "other"}) as taken:  # type: ignore[union-attr]
            assert taken.status == 200
        with fails(Code.FENCED):
            await session.put("rows", "a", 1)
        assert session.lost.is_set()


async def test_leaving_while_the_session_is_opened_anew_sends_what_waits(fake: FakeGateway) -> None:
    async with Client(fake.endpoints) as client:
        async with client.session(renew_lost=True) as session:
            await session.put("rows", "a", 1)
            fake.advance(61)
            waiting = [session.submit("put", "rows", f"k{number}", 1) for number in range(3)]
            await settle()
        assert [(await write).applied for write in waiting] == [True] * 3
    assert not len(fake.machine.sessions)


async def test_callback_that_fails_harms_no_write(fake: FakeGateway) -> None:
    def fail(_: object) -> None:
        raise ValueError("the application's")

    async with Client(fake.endpoints) as client:
        async with client.session(on_lost=fail, renew_lost=True) as session:
            fake.advance(61)
            assert (await session.put("rows", "a", 1)).applied
        async with client.session(on_lost=fail) as session:
            fake.advance(61)
            with fails(Code.SESSION_EXPIRED, Outcome.NOT_APPLIED):
                await session.put("rows", "a", 1)


async def test_outbox_goes_on_with_what_is_certain_and_hands_over_what_is_not(
    fake: FakeGateway, tmp_path: Path
) -> None:
    path, unknown = tmp_path / "o", list[OutboxEntry]()
    async with Client(fake.endpoints) as client:
        async with client.session(outbox=path, on_unknown=unknown.append, renew_lost=True) as session:
            await session.increment("rows", "n", position=1)
            before = session.client_id
            fake.nodes[0].after = lose_answers
            with pytest.raises(OutcomeUnknown):
                await session.increment("rows", "n", position=2, timeout_s=2)
            fake.nodes[0].after = None
            fake.advance(61)
            await session.drain()  # the one in doubt is sent on, and learns of the expiry
            results = [session.submit("increment", "rows", f"m{number}", position=3 + number) for number in range(5)]
            assert all(result.applied for result in await asyncio.gather(*results))
            assert session.client_id != before
            assert [(entry.client_id, entry.sequence) for entry in unknown] == [(before, 2)]
            assert session.position == 7
        async with client.session(outbox=path, on_unknown=unknown.append) as again:
            assert (again.position, again.recovered, len(unknown)) == (7, [], 1)
    assert len(fake.executed) == 7


async def test_write_taken_back_is_in_the_outbox_at_every_moment_and_its_position_stays(
    fake: FakeGateway, tmp_path: Path
) -> None:
    path = tmp_path / "o"
    seen: list[tuple[str, int | None, list[tuple[int, int]]]] = []

    async def look(request: web.Request) -> None:
        outbox = OutboxFile(path, read_only=True)
        entries = [(entry.client_id, entry.sequence) for entry in outbox.loaded]
        seen.append((request.path, outbox.head.position, entries))
        outbox.close()

    unknown = list[OutboxEntry]()
    async with (
        Client(fake.endpoints, tuning=Tuning(batch_operations_max=1)) as client,
        client.session(outbox=path, renew_lost=True, on_unknown=unknown.append) as session,
    ):
        await session.put("rows", "a", 1, position=1)
        before = session.client_id
        fake.advance(61)
        fake.nodes[0].before = look
        writes = [session.submit("append", "rows", "l", number, position=number) for number in (2, 3, 4)]
        await asyncio.gather(*writes)
        assert await fake.value("rows", "l") == [2, 3, 4]
    assert not unknown
    lost, anew = [at for at, (asked, *_) in enumerate(seen) if asked in (OPERATIONS, "/v1/sessions")][:2]
    assert seen[lost][1:] == (2, [(before, 2)])
    assert seen[anew][1:] == (2, [(before, 2)]), "a process killed here leaves it for the next one"
    positions = [position for _, position, _ in seen]
    assert positions == sorted(positions)  # type: ignore[type-var]
    assert not any((before, 2) in entries for asked, _, entries in seen[anew + 1 :] if asked == OPERATIONS)


async def test_owner_of_an_outbox_is_the_session_that_writes_whatever_is_flushed_beside(
    fake: FakeGateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, before = OutboxFile.write, 0

    def slow(self: OutboxFile, *given: Any, head: Head | None = None, **more: Any) -> None:
        if head is not None and head.client_id not in (0, before):
            time.sleep(0.05)  # a disk that flushes slowly: what is asked for meanwhile waits behind the new owner
        write(self, *given, head=head, **more)

    path = tmp_path / "o"
    async with (
        Client(fake.endpoints) as client,
        client.session(outbox=path, renew_lost=True, on_unknown=print, lease_ms=1000) as session,
    ):
        await session.put("rows", "a", 1)
        before = session.client_id
        monkeypatch.setattr(OutboxFile, "write", slow)
        fake.advance(61)
        late = session.submit("put", "rows", "b", 1, timeout_s=0.02)
        while session.client_id == before:
            await session.drain()
            await asyncio.sleep(0)
        await asyncio.gather(late, return_exceptions=True)
        assert (await session.put("rows", "c", 1)).applied
        outbox = OutboxFile(path, read_only=True)
        assert outbox.head.client_id == session.client_id
        assert {entry.client_id for entry in outbox.loaded} <= {session.client_id}
        outbox.close()


async def test_write_told_not_applied_while_the_outbox_is_read_again_is_not_in_doubt(
    fake: FakeGateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unknown, reload = list[OutboxEntry](), OutboxFile.reload
    told = threading.Event()

    def slow(self: OutboxFile) -> list[OutboxEntry]:
        told.wait(30)
        return reload(self)

    monkeypatch.setattr(OutboxFile, "reload", slow)
    async with (
        Client(fake.endpoints) as client,
        client.session(outbox=tmp_path / "o", renew_lost=True, on_unknown=unknown.append) as session,
    ):
        await session.put("rows", "a", 1)
        fake.advance(61)
        late = session.submit("increment", "rows", "n", timeout_s=0.3)
        asyncio.get_running_loop().call_later(0.6, told.set)
        with fails(outcome=Outcome.NOT_APPLIED, kind=DeadlineExceeded):
            await late
        assert (await session.put("rows", "b", 1)).applied
    assert not unknown


async def test_write_taken_back_that_nobody_waits_for_leaves_the_outbox(fake: FakeGateway, tmp_path: Path) -> None:
    path, unknown = tmp_path / "o", list[OutboxEntry]()
    writes: list[asyncio.Future[WriteResult]] = []

    async def cancel(request: web.Request) -> None:
        if request.path == "/v1/sessions":
            for write in writes:
                write.cancel()

    async with (
        Client(fake.endpoints) as client,
        client.session(outbox=path, renew_lost=True, on_unknown=unknown.append) as session,
    ):
        await session.put("rows", "a", 1)
        fake.nodes[0].before = cancel
        fake.advance(61)
        writes = [session.submit("increment", "rows", "n") for _ in range(5)]
        await asyncio.gather(*writes, return_exceptions=True)
        assert all(write.cancelled() for write in writes)
        assert (await session.put("rows", "b", 1)).applied
    async with Client(fake.endpoints) as client, client.session(outbox=path, on_unknown=unknown.append) as session:
        assert session.recovered == []
    assert not unknown


async def test_doubted_entry_of_an_outbox_is_sent_again_without_a_restart(fake: FakeGateway, tmp_path: Path) -> None:
    async with Client(fake.endpoints) as client, client.session(outbox=tmp_path / "o") as session:
        for lose in (fake.nodes[0].freeze, lambda: setattr(fake.nodes[0], "after", lose_answers)):
            lose()
            with pytest.raises(OutcomeUnknown) as doubt:
                await session.increment("rows", "n", timeout_s=2)
            fake.nodes[0].thaw()
            fake.nodes[0].after = None
            await session.drain()
            assert doubt.value.request_id is not None
            result = await session.send_again(doubt.value.request_id)
            assert (result.applied, result.request_id) == (True, doubt.value.request_id)
            with fails(Code.NOT_FOUND, Outcome.NOT_APPLIED):
                await session.send_again(doubt.value.request_id)
        assert (await session.increment("rows", "n")).value == 3
    assert len(fake.executed) == 3


async def test_entry_of_a_session_that_is_lost_while_it_is_read_is_not_sent_as_the_next_ones(
    fake: FakeGateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Number 2 is in doubt in both sessions."""

    async def doubted(row: str) -> RequestId:
        fake.nodes[0].after = lose_answers
        with pytest.raises(OutcomeUnknown) as doubt:
            await session.increment("rows", row, timeout_s=2)
        fake.nodes[0].after = None
        await session.drain()
        assert doubt.value.request_id is not None
        return doubt.value.request_id

    async with (
        Client(fake.endpoints) as client,
        client.session(renew_lost=True, outbox=tmp_path / "o", on_unknown=print) as session,
    ):
        outbox = session._life.outbox
        assert outbox is not None
        read = outbox.entry

        async def read_slowly(number: int) -> object:
            entry = await read(number)
            fake.advance(61)
            assert (await session.put("rows", "b", 1)).sequence == 1
            doubts.append(await doubted("m"))
            return entry

        await session.put("rows", "a", 1)
        doubts = [await doubted("n")]
        monkeypatch.setattr(outbox, "entry", read_slowly)
        with fails(Code.NOT_FOUND, Outcome.NOT_APPLIED):
            await session.send_again(doubts[0])
        monkeypatch.undo()
        assert [doubt.sequence for doubt in doubts] == [2, 2]
        assert (await session.send_again(doubts[1])).value == 1
    assert [write.key for write in fake.executed] == ["a", "n", "b", "m"]


async def test_write_that_is_under_way_is_not_sent_again_beside(fake: FakeGateway, tmp_path: Path) -> None:
    async with Client(fake.endpoints) as client, client.session(outbox=tmp_path / "o") as session:
        fake.nodes[0].freeze()
        write = session.submit("increment", "rows", "n")
        await arrived(fake.nodes[0])
        with fails(Code.NOT_FOUND, Outcome.NOT_APPLIED):
            await session.send_again(1)
        fake.nodes[0].thaw()
        assert (await write).value == 1
    assert fake.nodes[0].requests[f"POST {OPERATIONS}"] == 1


async def test_position_moves_with_a_refused_write_and_is_what_it_was_at_the_call(
    fake: FakeGateway, tmp_path: Path
) -> None:
    async with Client(fake.endpoints) as client, client.session(outbox=tmp_path / "o") as session:
        await session.put("rows", "a", 1, position=1)
        assert not (await session.insert("rows", "a", 2, position=2)).applied
        assert session.position == 2
        position = {"line": 3}
        write = session.submit("put", "rows", "b", 1, position=position)
        position["line"] = object()  # type: ignore[assignment]
        await write
        assert session.position == {"line": 3}
        await session.put_many("rows", {"c": 1, "d": 2}, position=4)
        assert session.position == 4
        with fails(Code.BAD_REQUEST, Outcome.NOT_APPLIED):
            await session.put("rows", "e", 1, position={1, 2})  # type: ignore[arg-type]
    async with Client(fake.endpoints) as client, client.session() as session:
        with fails(Code.BAD_REQUEST, Outcome.NOT_APPLIED):
            await session.put_many("rows", {"c": 1}, position=1)


def test_sync_session_opens_anew(oncegate_cluster: FakeCluster) -> None:
    oncegate_cluster.declare("rows")
    with sync.Client(oncegate_cluster.endpoints) as client, client.session(renew_lost=True) as session:
        before = session.put("rows", "a", 1).client_id
        oncegate_cluster.advance(61)
        assert session.put("rows", "a", 2).client_id != before
        assert not session.is_lost
