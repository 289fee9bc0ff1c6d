"""A session with an outbox, its process killed at chosen points: what a restart sends, drops and reports."""

from __future__ import annotations

import asyncio
import shutil
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web

from oncegate import (
    Client,
    Code,
    DeadlineExceeded,
    NotKnownYet,
    OperationFailed,
    OutboxEntry,
    OutboxUnresolved,
    Outcome,
    OutcomeUnknown,
    Session,
    Tuning,
    WriteResult,
)
from oncegate.gateway import wire
from oncegate.gateway.client import routing
from oncegate.gateway.client.batch import Pending
from oncegate.gateway.client.durable_outbox import DurableOutbox
from oncegate.gateway.client.outbox_file import OutboxFile
from oncegate.gateway.http import request_bodies
from oncegate.gateway.machine.machine import Origin
from oncegate.rifl.errors import OncegateError
from oncegate.rifl.ids import ClientId, format_client_id
from oncegate.rifl.request_tracker import RequestTracker
from oncegate.testing import FakeGateway
from tests.client.answers import (
    OPERATIONS,
    arrived,
    fails,
    intercept,
    keep_back,
    lose_answers,
    rejected,
    results,
    settle,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "worker.outbox"


def held(path: Path) -> list[tuple[int, str, bool]]:
    """What a file holds, read while nobody owns it or beside its owner."""
    file = OutboxFile(path, read_only=True)
    try:
        return [(entry.sequence, entry.key, entry.doubted) for entry in file.loaded]
    finally:
        file.close()


@asynccontextmanager
async def killed(fake: FakeGateway, path: Path, **options: Any) -> AsyncIterator[Session]:
    """A session whose process dies at the end of the block: what is on disk then is all that is left of it."""
    original = path.with_suffix(".before")
    async with Client(fake.endpoints) as client:
        session = await client.session(outbox=original, **options).__aenter__()
        yield session
        shutil.copy(original, path)
        for node in fake.nodes:
            node.before = None
            node.thaw()
        life = session._life
        session._connection.disown(life)
        life._keeper.cancel()
        await life.sender.abort(OperationFailed(Code.SESSION_EXPIRED, "the process was killed"))
        await life.outbox.close()
    fake.nodes[0].requests.clear()


async def never_arrived(fake: FakeGateway, path: Path, *writes: tuple[Any, ...]) -> Session:
    """Leave an outbox with these writes, sent to a node that never took them."""
    async with killed(fake, path) as before:
        fake.nodes[0].freeze()
        for write in writes:
            before.submit(*write)
        await arrived(fake.nodes[0])
    return before


def apply_beside(fake: FakeGateway, session: Session, first_incomplete: int, operation: wire.Operation) -> None:
    """Have an operation of a session applied that its outbox knows nothing of."""
    whose = format_client_id(session.client_id)
    fake.apply(request_bodies.operations(wire.OperationsRequest(whose, 1, first_incomplete, [operation])))


async def handed_over(fake: FakeGateway, path: Path) -> list[str]:
    """Enter a session with the outbox, recover nothing, and return the keys of what is unknown."""
    unknown: list[str] = []
    async with (
        Client(fake.endpoints) as client,
        client.session(outbox=path, on_unknown=lambda entry: unknown.append(entry.key)) as session,
    ):
        assert session.recovered == []
        return list(unknown)


async def applied_without_an_answer(fake: FakeGateway, path: Path) -> Session:
    """Leave an outbox with one write that was applied, whose answer its process did not live to see."""
    async with killed(fake, path) as before:
        fake.nodes[0].after = lose_answers
        before.submit("increment", "rows", "n", by=3)
        await arrived(fake.nodes[0])
        await settle()
        fake.nodes[0].after = None
    assert [write.sequence for write in fake.executed] == [1]
    return before


async def test_write_is_on_disk_before_it_travels(fake: FakeGateway, path: Path) -> None:
    seen: list[list[tuple[int, str, bool]]] = []

    async def look(_: web.Request) -> None:
        seen.append(held(path))

    intercept(fake.nodes[0], OPERATIONS, look)
    async with Client(fake.endpoints) as client, client.session(outbox=path) as session:
        await session.increment("rows", "a")
        await session.increment("rows", "b")
    assert seen == [[(1, "a", False)], [(2, "b", False)]]
    assert held(path) == []


async def test_restart_resends_the_same_id_and_payload_and_gets_the_first_result(fake: FakeGateway, path: Path) -> None:
    async with killed(fake, path) as before:
        await before.increment("rows", "n", 5)
        fake.nodes[0].after = lose_answers
        write = asyncio.ensure_future(before.increment("rows", "n", 3))
        await arrived(fake.nodes[0], count=2)
        await settle()
        fake.nodes[0].after = None
    assert write.done()
    async with Client(fake.endpoints) as client, client.session(outbox=path) as session:
        assert (session.client_id, session.epoch) == (before.client_id, 2)
        (recovered,) = session.recovered
        assert recovered.entry.request_id == (before.client_id, 2)
        assert (recovered.result.replayed, recovered.result.value) == (True, 8)
        assert session.highest_commit >= 2  # its reads reflect what the earlier process wrote
        assert (await session.increment("rows", "n", 1)).value == 9
    assert [write.sequence for write in fake.executed] == [1, 2, 3]
    assert held(path) == []


async def test_restart_with_nothing_to_send_reads_what_the_earlier_process_wrote(fake: FakeGateway, path: Path) -> None:
    async with killed(fake, path) as before:
        await before.increment("rows", "n", 5)
        await before._life.outbox.flush()
    async with Client(fake.endpoints) as client, client.session(outbox=path) as session:
        assert (session.client_id, session.recovered) == (before.client_id, [])
        assert session.highest_commit >= 1


async def test_restart_sends_what_never_arrived(fake: FakeGateway, path: Path) -> None:
    async with killed(fake, path) as before:
        fake.nodes[0].freeze()
        for n in range(40):
            before.submit("increment", "rows", f"k{n % 3}", position=n)
        await arrived(fake.nodes[0])
    async with Client(fake.endpoints) as client, client.session(outbox=path) as session:
        assert len(session.recovered) == 40
        assert session.position == 39
    assert sum([await fake.value("rows", f"k{n}") for n in range(3)]) == 40


async def test_request_acknowledges_no_write_whose_entry_is_still_on_disk(fake: FakeGateway, path: Path) -> None:
    answered, written = asyncio.Event(), threading.Event()

    async def hold(request: web.Request) -> None:
        if request.path == OPERATIONS and not answered.is_set():
            await answered.wait()

    fake.nodes[0].before = hold
    async with Client(fake.endpoints) as client, client.session(outbox=path) as session:
        first = session.submit("put", "rows", "a", 1)
        await arrived(fake.nodes[0])
        life = session._life
        file, write = life.outbox._file, life.outbox._file.write
        taken = asyncio.Event()

        def slow(*arguments: Any, **named: Any) -> None:
            life.outbox._loop.call_soon_threadsafe(taken.set)
            written.wait()
            write(*arguments, **named)

        file.write = slow  # type: ignore[method-assign]
        second = session.submit("put", "rows", "b", 1)
        await taken.wait()
        # The first write's result comes while the second one's entry is written: that transaction does not drop it.
        answered.set()
        await first
        written.set()
        await second
        assert fake.machine.trackers[session.client_id].first_incomplete == 1
        await session.put("rows", "c", 1)
        assert fake.machine.trackers[session.client_id].first_incomplete > 1, "the next transaction drops it"


async def test_position_is_kept_with_the_write_it_came_with(fake: FakeGateway, path: Path) -> None:
    async with killed(fake, path) as before:
        assert before.position is None
        await before.put("rows", "a", 1, position=17)
        fake.nodes[0].freeze()
        before.submit("put", "rows", "a", 2, position=18)
        await arrived(fake.nodes[0], count=2)
        before.submit("put", "rows", "b", 2, position=19)  # would pass the one in front of it without an outbox
        await settle()
    async with Client(fake.endpoints) as client, client.session(outbox=path) as session:
        assert session.position in (18, 19)
        assert [recovered.entry.key for recovered in session.recovered] == ["a", "b"][: session.position - 17]
    async with Client(fake.endpoints) as client, client.session(outbox=path) as session:
        assert session.position in (18, 19)


async def test_expired_session_reports_its_entries_and_never_sends_them_again(fake: FakeGateway, path: Path) -> None:
    async with killed(fake, path) as before:
        await before.put("rows", "a", 1)
        fake.nodes[0].freeze()
        before.submit("increment", "rows", "n")
        await arrived(fake.nodes[0], count=2)
        fake.expire(before.client_id)
    fake.executed.clear()
    reported: list[OutboxEntry] = []

    async def note(entry: OutboxEntry) -> None:
        reported.append(entry)

    async with Client(fake.endpoints) as client:
        with pytest.raises(OutboxUnresolved) as unresolved:
            await client.session(outbox=path).__aenter__()
        assert unresolved.value.outcome is Outcome.UNKNOWN
        assert [str(entry.request_id) for entry in unresolved.value.entries] == [f"{before.client_id:016x}/2"]
        assert held(path) == [(2, "n", False)]
        async with client.session(outbox=path, on_unknown=note) as session:
            assert [(entry.op, entry.key, entry.sequence) for entry in reported] == [("increment", "n", 2)]
            assert session.client_id != before.client_id
            assert (await session.put("rows", "a", 2)).sequence == 1
        assert held(path) == []
    assert [(write.op, write.key) for write in fake.executed] == [("put", "a")]


async def test_expired_session_whose_record_is_still_there_gives_its_result(fake: FakeGateway, path: Path) -> None:
    before = await applied_without_an_answer(fake, path)
    fake.time_ms += 60_001  # the lease is over, and no leader has reaped the session yet
    async with Client(fake.endpoints) as client, client.session(outbox=path) as session:
        assert [recovered.result.value for recovered in session.recovered if recovered.result] == [3]
        assert session.client_id != before.client_id
    assert len(fake.executed) == 1


async def test_acknowledged_entry_is_dropped_and_a_doubted_one_is_reported(fake: FakeGateway, path: Path) -> None:
    before = await never_arrived(fake, path, ("put", "rows", "a", 1), ("put", "rows", "b", 1))
    file = OutboxFile(path)
    file.write(doubted=[(file.head.client_id, 2)])
    file.close()
    apply_beside(fake, before, 3, wire.Operation(3, "put", "rows", "c", 1))
    assert await handed_over(fake, path) == ["b"]


async def test_entry_whose_number_belongs_to_another_write_is_never_told_as_that_ones_success(
    fake: FakeGateway, path: Path
) -> None:
    async with killed(fake, path) as before:
        apply_beside(fake, before, 1, wire.Operation(1, "put", "rows", "z", 9))
        fake.nodes[0].freeze()
        before.submit("put", "rows", "a", 1)
        await arrived(fake.nodes[0])
    assert await handed_over(fake, path) == ["a"]


async def test_deadline_means_unknown_and_a_restart_still_delivers(fake: FakeGateway, path: Path) -> None:
    async with killed(fake, path) as before:
        await fake.nodes[0].stop()
        with pytest.raises(OutcomeUnknown):  # without an outbox: DeadlineExceeded, surely not applied
            await before.increment("rows", "n", timeout_s=0.25)
        await before.drain()
        assert held(path.with_suffix(".before")) == [(1, "n", True)]
        await fake.nodes[0].start()
    async with Client(fake.endpoints) as client, client.session(outbox=path) as session:
        assert [recovered.result.value for recovered in session.recovered if recovered.result] == [1]


async def test_session_lives_on_for_a_write_that_is_left_in_its_outbox(fake: FakeGateway, path: Path) -> None:
    async with Client(fake.endpoints) as client:
        async with client.session(outbox=path) as session:
            fake.nodes[0].before = keep_back
            with pytest.raises(OutcomeUnknown):
                await session.increment("rows", "n", timeout_s=0.25)
            fake.nodes[0].before = None
        async with client.session(outbox=path) as after:
            assert [recovered.result.value for recovered in after.recovered if recovered.result] == [1]


async def test_refused_write_leaves_the_outbox_before_its_caller_is_told(
    fake: FakeGateway, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quickly = OutboxFile.write

    def slowly(file: OutboxFile, *args: Any, **how: Any) -> None:
        time.sleep(0.05)
        quickly(file, *args, **how)

    monkeypatch.setattr(OutboxFile, "write", slowly)
    async with Client(fake.endpoints) as client, client.session(outbox=path) as session:
        with fails(Code.NOT_FOUND, Outcome.NOT_APPLIED):
            await session.put("nowhere", "k", 1)
        assert held(path) == []
        assert (await session.put("rows", "k", 1)).applied


async def test_write_whose_entry_was_not_dropped_as_all_tasks_were_cancelled_is_not_told_as_not_applied(
    path: Path,
) -> None:
    outbox = await DurableOutbox.open(path)
    outbox.begin(ClientId(1), RequestTracker())
    await outbox.rename(client_id=1)
    told: asyncio.Future[WriteResult] = asyncio.get_running_loop().create_future()
    write = Pending(wire.Operation(1, "put", "rows", "k", msgspec.Raw(b"\x01")), None, told, 1e9)
    await outbox.add([write])
    before = asyncio.all_tasks()
    write.promise.set_exception(OperationFailed(Code.NOT_FOUND, outcome=Outcome.NOT_APPLIED))
    for task in asyncio.all_tasks() - before:
        task.cancel()
    await settle()
    assert held(path) != []
    with fails(outcome=Outcome.UNKNOWN):
        await told
    await outbox.close()


def forbid(fake: FakeGateway, *ends: str) -> None:
    """Refuse requests to these paths for good, as a token does that was taken away."""

    async def refuse(request: web.Request) -> web.StreamResponse | None:
        return fake.nodes[0].problem(OncegateError(Code.FORBIDDEN)) if request.path.endswith(ends) else None

    fake.nodes[0].before = refuse


async def test_resent_write_that_is_refused_for_good_is_sealed_and_reported_as_not_applied(
    fake: FakeGateway, path: Path
) -> None:
    await never_arrived(fake, path, ("put", "nowhere", "k", 1))
    async with Client(fake.endpoints) as client, client.session(outbox=path) as session:
        (recovered,) = session.recovered
        assert (recovered.failure.code, recovered.failure.outcome) == (Code.NOT_FOUND, Outcome.NOT_APPLIED)
    assert held(path) == []


async def test_applied_write_whose_resend_is_refused_for_good_is_recovered_with_its_result(
    fake: FakeGateway, path: Path
) -> None:
    await applied_without_an_answer(fake, path)
    forbid(fake, "/operations")
    async with Client(fake.endpoints) as client, client.session(outbox=path) as session:
        (recovered,) = session.recovered
        assert recovered.failure is None
        assert (recovered.result.applied, recovered.result.value) == (True, 3)
    assert held(path) == []


async def test_write_whose_resend_is_refused_for_good_stays_in_doubt_until_somebody_can_tell(
    fake: FakeGateway, path: Path
) -> None:
    """The refusal is of the resend: the first attempt may have been applied, as it was here."""
    await applied_without_an_answer(fake, path)
    forbid(fake, "/operations", "/resolve")
    async with Client(fake.endpoints) as client, client.session(outbox=path) as session:
        await session.drain()
        assert (session.recovered, held(path)) == ([], [(1, "n", True)])
        with fails(Code.FORBIDDEN, kind=NotKnownYet):
            await session.resolve(1)
        fake.nodes[0].before = None
        assert (await session.put("rows", "other", 1)).applied
        assert (await session.resolve(1)).applied


async def test_session_without_an_answer_can_be_entered_again(fake: FakeGateway, path: Path) -> None:
    await never_arrived(fake, path, ("increment", "rows", "n"))
    async with Client(fake.endpoints, timeout_s=0.1) as client:
        fake.nodes[0].freeze()
        with pytest.raises((DeadlineExceeded, OutcomeUnknown)):
            await client.session(outbox=path).__aenter__()
        fake.nodes[0].thaw()
        async with client.session(outbox=path) as session:
            assert len(session.recovered) == 1
    assert await fake.value("rows", "n") == 1


async def test_crash_during_the_open_does_not_open_a_second_session(fake: FakeGateway, path: Path) -> None:
    file = OutboxFile(path)
    head = type(file.head)(nonce="first")
    file.write(head=head)
    file.close()
    async with (
        Client(fake.endpoints) as client,
        client.session(nonce="first") as opened,
        client.session(outbox=path) as session,
    ):
        assert session.client_id == opened.client_id


async def test_position_needs_an_outbox(fake: FakeGateway) -> None:
    async with Client(fake.endpoints) as client, client.session() as session:
        with pytest.raises(OperationFailed):
            await session.put("rows", "k", 1, position=1)
        assert session.position is None
        assert session.outstanding == 0


@pytest.fixture
async def elsewhere(fake: FakeGateway) -> AsyncIterator[FakeGateway]:
    """Another cluster, which counts its client ids from 1 too."""
    fake.machine.identity = "a" * 32
    async with FakeGateway() as other:
        other.machine.identity = "b" * 32
        other.declare("rows")
        yield other


async def test_outbox_of_another_cluster_is_refused_and_takes_nobodys_session(
    fake: FakeGateway, elsewhere: FakeGateway, path: Path
) -> None:
    before = await never_arrived(fake, path, ("put", "rows", "mine", 5))
    entries = held(path)
    async with Client(elsewhere.endpoints) as client, client.session() as theirs:
        assert theirs.client_id == before.client_id
        for _ in range(2):
            await theirs.increment("rows", "theirs")
        with pytest.raises(OperationFailed, match=r"is of cluster a+, and this is b+") as refused:
            await client.session(outbox=path, on_unknown=lambda entry: None).__aenter__()
        assert (refused.value.code, refused.value.outcome) == (Code.CONFLICT, Outcome.NOT_APPLIED)
        assert (await theirs.increment("rows", "theirs")).value == 3, "the session that has the same id lives on"
    assert held(path) == entries
    async with Client(fake.endpoints) as client, client.session(outbox=path) as session:
        assert [recovered.entry.key for recovered in session.recovered if recovered.result] == ["mine"]


async def test_outbox_goes_on_at_a_cluster_that_was_restored_from_its_own(
    fake: FakeGateway, elsewhere: FakeGateway, path: Path
) -> None:
    async with Client(fake.endpoints) as client, client.session(outbox=path) as session:
        await session.increment("rows", "mine", position=7)
    elsewhere.machine.origin = Origin("a" * 32, 1)
    async with Client(elsewhere.endpoints) as client, client.session(outbox=path) as session:
        assert session.position == 7
        assert OutboxFile(path, read_only=True).head.cluster == "b" * 32


async def test_outbox_needs_no_token_that_may_read(fake: FakeGateway, path: Path) -> None:
    async def forbidden(request: web.Request) -> web.StreamResponse | None:
        refusal = OncegateError(Code.FORBIDDEN, "needs read")
        return fake.nodes[0].problem(refusal) if request.path == "/v1/cluster" else None

    fake.nodes[0].before = forbidden
    async with Client(fake.endpoints) as client, client.session(outbox=path) as session:
        assert (await session.increment("rows", "mine")).applied


async def test_session_whose_cluster_is_replaced_ends_instead_of_waiting_for_it(
    fake: FakeGateway, elsewhere: FakeGateway, path: Path
) -> None:
    options: dict[str, Any] = {"outbox": path, "renew_lost": True, "on_unknown": lambda entry: None}
    async with Client(fake.endpoints) as client, client.session(**options) as session:
        await session.increment("rows", "mine")
        fake.machine.identity = "c" * 32
        fake.advance(75)
        with pytest.raises(OperationFailed, match="not opened anew"):
            await session.increment("rows", "mine")


@pytest.fixture
def one_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave no time for a second attempt: a call ends with its first refusal, as it otherwise does at its deadline."""
    monkeypatch.setattr(routing, "LAST_ATTEMPT_S", 1e9)


def refuse(fake: FakeGateway, code: str, table: str = "full") -> None:
    """Refuse each write on one table, as long as this lasts, and serve all others."""

    async def judge(request: web.Request) -> web.StreamResponse | None:
        if request.path != OPERATIONS:
            return None
        sent = msgspec.msgpack.decode(await request.read(), type=wire.OperationsRequest)
        if any(one.table != table for one in sent.operations):
            return None
        return results(*(rejected(one.sequence, code, later=True) for one in sent.operations))

    fake.nodes[0].before = judge


@pytest.mark.usefixtures("one_attempt")
@pytest.mark.parametrize("code", ["QUOTA", "OVERLOADED"])
async def test_write_that_each_attempt_refused_is_told_as_not_applied_and_leaves_the_outbox(
    fake: FakeGateway, path: Path, code: str
) -> None:
    fake.declare("full")
    async with Client(fake.endpoints) as client:
        refuse(fake, code)
        async with client.session(outbox=path) as session:
            with fails(Code(code), Outcome.NOT_APPLIED, kind=DeadlineExceeded):
                await session.put("full", "k", 1)
            assert held(path) == []
            assert (await session.put("rows", "k", 1)).applied
        async with client.session(outbox=path) as again:
            assert again.recovered == []
            assert (await again.put("rows", "k", 2)).applied
    assert [(one.table, one.key) for one in fake.executed] == [("rows", "k")] * 2


@pytest.mark.usefixtures("one_attempt")
@pytest.mark.parametrize("code", ["QUOTA", "OVERLOADED"])
async def test_entry_that_is_refused_each_time_keeps_nobody_from_entering(
    fake: FakeGateway, path: Path, code: str
) -> None:
    fake.declare("full")
    async with killed(fake, path) as before:
        fake.nodes[0].before = keep_back
        for key in "kl":
            before.submit("put", "full", key, 1)
        await arrived(fake.nodes[0])
    refuse(fake, code)
    async with Client(fake.endpoints) as client, client.session(outbox=path) as session:
        told = [(one.entry.key, one.failure.code, one.failure.outcome) for one in session.recovered if one.failure]
        assert told == [(key, Code(code), Outcome.NOT_APPLIED) for key in "kl"]
        assert (await session.put("rows", "k", 1)).applied
        assert [(await session.resolve(one.entry.request_id)).state for one in session.recovered] == ["sealed"] * 2
    assert held(path) == []
    assert [one.table for one in fake.executed] == ["rows"]


@pytest.mark.parametrize("refusal", [Code.PAYLOAD_TOO_LARGE, Code.FORBIDDEN])
async def test_entry_without_room_is_asked_for_once_however_its_request_was_cut(
    fake: FakeGateway, path: Path, monkeypatch: pytest.MonkeyPatch, refusal: Code
) -> None:
    """Whoever enters the session would be kept from work for as long as it is waited for."""
    keys, alone = "klmnop", list[int]()
    async with killed(fake, path) as before:
        fake.nodes[0].before = keep_back
        for key in keys:
            before.submit("put", "full", key, 1)
        await arrived(fake.nodes[0])

    async def one_by_one(request: web.Request) -> web.StreamResponse | None:
        if request.path != OPERATIONS:
            return None
        sent = msgspec.msgpack.decode(await request.read(), type=wire.OperationsRequest).operations
        if len(sent) > 1:
            return fake.nodes[0].problem(OncegateError(refusal))
        if sent[0].sequence in alone:
            monkeypatch.setattr(routing, "LAST_ATTEMPT_S", 1e9)  # once more is too much already
        alone.append(sent[0].sequence)
        return results(rejected(sent[0].sequence, "QUOTA", later=True))

    fake.nodes[0].before = one_by_one
    async with Client(fake.endpoints) as client, client.session(outbox=path) as session:
        told = [(one.entry.key, one.failure.code, one.failure.outcome) for one in session.recovered if one.failure]
        assert told == [(key, Code.QUOTA, Outcome.NOT_APPLIED) for key in keys]
        assert alone == [1, 2, 3, 4, 5, 6]
        fake.nodes[0].before = None
    assert held(path) == []


FULL = ("QUOTA", "OVERLOADED")
"""Refusals of a write by what it asks for."""
UNSERVED = "a node that does not serve"


@pytest.mark.parametrize("second", [*FULL, "NO_LEADER", UNSERVED])
@pytest.mark.parametrize("first", [*FULL, "NO_LEADER", UNSERVED])
async def test_newest_attempt_decides_whether_a_write_of_an_outbox_ends_with_its_deadline(
    fake: FakeGateway, path: Path, monkeypatch: pytest.MonkeyPatch, first: str, second: str
) -> None:
    """It may be applied once somebody serves it: then it stays for a restart. What is refused itself is told."""
    attempts = [first, second]

    async def judge(request: web.Request) -> web.StreamResponse | None:
        if request.path != OPERATIONS:
            return None
        code = attempts.pop(0)
        if not attempts:
            monkeypatch.setattr(routing, "LAST_ATTEMPT_S", 1e9)  # no time for another one
        if code == UNSERVED:
            return fake.nodes[0].problem(OncegateError(Code.NOT_READY))
        (sent,) = msgspec.msgpack.decode(await request.read(), type=wire.OperationsRequest).operations
        return results(rejected(sent.sequence, code, later=True))

    async with (
        Client(fake.endpoints, tuning=Tuning(retry_after_cap_s=0.001)) as client,
        client.session(outbox=path) as session,
    ):
        fake.nodes[0].before = judge
        with pytest.raises(OperationFailed) as ended:
            await session.put("rows", "k", 1)
        assert attempts == []
        if second in FULL:
            assert (ended.value.code, ended.value.outcome) == (second, Outcome.NOT_APPLIED)
            assert held(path) == []
        else:
            assert ended.value.outcome is Outcome.UNKNOWN
            assert [entry[:2] for entry in held(path)] == [(1, "k")]
        fake.nodes[0].before = None
    assert fake.executed == []


async def doubted(session: Session, key: str) -> OutcomeUnknown:
    with pytest.raises(OutcomeUnknown) as doubt:
        await session.increment("rows", key, timeout_s=0.2)
    return doubt.value


async def test_doubts_of_a_process_get_their_answers_from_the_next_one(fake: FakeGateway, path: Path) -> None:
    """One had its answer late, one was applied without an answer, one never arrived, and one was told already."""
    async with killed(fake, path, window=64) as before:
        fake.nodes[0].freeze()
        late = await doubted(before, "late")
        fake.nodes[0].thaw()
        await before.drain()
        fake.nodes[0].after = lose_answers
        unheard = await doubted(before, "unheard")
        told = await doubted(before, "told")
        fake.nodes[0].after = None
        assert (await told.resolve()).applied
        for number in range(200):
            await before.put("rows", f"k{number % 7}", number)
        fake.nodes[0].before = keep_back
        never = await doubted(before, "never")
        await before.drain()
        await before._life.outbox.flush()
    async with Client(fake.endpoints) as client, client.session(outbox=path) as session:
        recovered = {one.entry.key: one.fate.state for one in session.recovered}
        assert recovered == {"late": "applied", "unheard": "applied", "never": "applied"}
        for doubt in (late, unheard, never):
            assert doubt.request_id is not None
            assert (await session.resolve(doubt.request_id)).applied
        await session.put("rows", "a", 1)
    assert held(path) == []
    assert sorted(one.key for one in fake.executed if not one.key.startswith("k")) == [
        "a",
        "late",
        "never",
        "told",
        "unheard",
    ]


async def test_doubts_that_fill_the_window_are_sent_again_and_their_fates_kept_on_disk(
    fake: FakeGateway, path: Path
) -> None:
    async with killed(fake, path, window=8) as before:
        fake.nodes[0].after = lose_answers
        doubts = [await doubted(before, f"n{number}") for number in range(3)]
        fake.nodes[0].after = None
        fake.nodes[0].before = keep_back
        doubts += [await doubted(before, f"n{number}") for number in range(3, 6)]
        fake.nodes[0].before = None
        for number in range(30):
            await before.put("rows", "k", number)
        await before._life.outbox.flush()
        assert {key for _, key, _ in held(path.with_suffix(".before"))} >= {f"n{number}" for number in range(6)}
    async with Client(fake.endpoints) as client, client.session(outbox=path) as session:
        assert {one.entry.key: one.fate.state for one in session.recovered} == {f"n{n}": "applied" for n in range(6)}
        assert [(await session.resolve(doubt.request_id or 0)).applied for doubt in doubts] == [True] * 6
    assert sorted(one.key for one in fake.executed if one.key != "k") == [f"n{number}" for number in range(6)]


@pytest.mark.parametrize("known", [False, True])
async def test_fate_that_is_forgotten_before_or_after_it_is_known_leaves_nothing_in_the_outbox(
    fake: FakeGateway, path: Path, known: bool
) -> None:
    async with killed(fake, path) as before:
        fake.nodes[0].freeze()
        late = asyncio.ensure_future(before.increment("rows", "late"))
        await arrived(fake.nodes[0])
        late.cancel()
        await asyncio.gather(late, return_exceptions=True)
        if not known:
            before.forget(1)
        fake.nodes[0].thaw()
        await before.drain()
        if known:
            await before._life.outbox.flush()
            assert [key for _, key, _ in held(path.with_suffix(".before"))] == ["late"]
            before.forget(1)
        await before._life.outbox.flush()
        assert held(path.with_suffix(".before")) == []
    async with Client(fake.endpoints) as client, client.session(outbox=path) as session:
        assert session.recovered == []


async def test_doubt_that_was_forgotten_is_sent_again_and_its_fate_kept_nowhere(fake: FakeGateway, path: Path) -> None:
    async with killed(fake, path, window=8) as before:
        fake.nodes[0].before = keep_back
        doubts = [await doubted(before, f"n{number}") for number in range(4)]
        for doubt in doubts:
            before.forget(doubt.request_id or 0)
        fake.nodes[0].before = None
        for number in range(30):
            await before.put("rows", "k", number)
        await before._life.outbox.flush()
        assert held(path.with_suffix(".before")) == []
        assert not len(before._sender.doubts)
        assert not len(before._sender.doubts.fates)
    assert sum(one.key != "k" for one in fake.executed) == 4


async def test_fates_that_a_session_knows_stay_in_its_outbox_when_it_opens_anew(fake: FakeGateway, path: Path) -> None:
    """This process tells them by itself; one that is killed afterwards has left them for the next."""
    async with killed(fake, path, window=8, renew_lost=True, on_unknown=print) as before:
        fake.nodes[0].freeze()
        late = asyncio.ensure_future(before.increment("rows", "late"))
        await arrived(fake.nodes[0])
        late.cancel()
        await asyncio.gather(late, return_exceptions=True)
        fake.nodes[0].thaw()
        await before.drain()
        lost = before.client_id
        fake.advance(61)
        assert (await before.put("rows", "a", 1)).client_id == before.client_id != lost
        assert before.recovered == []
        await before._life.outbox.flush()
    async with Client(fake.endpoints) as client, client.session(outbox=path, on_unknown=print) as session:
        assert [(one.entry.request_id, one.fate.state) for one in session.recovered] == [((lost, 1), "applied")]
        assert (await session.resolve((lost, 1))).applied  # type: ignore[arg-type]
