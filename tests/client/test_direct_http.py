"""Requests without aiohttp: what is taken for an answer, what is never, and what a caller is told of the rest."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import h11
import msgspec
import pytest
import trustme
from aiohttp import web
from hypothesis import example, given
from hypothesis import strategies as st

from oncegate import Client, Code, DeadlineExceeded, Outcome, Session, Tuning
from oncegate.gateway import wire
from oncegate.gateway.client import courier
from oncegate.gateway.client.answer_head import BODY_BYTES_MAX, HEAD_BYTES_MAX, AnswerHead, UnusualAnswer, read_head
from oncegate.gateway.client.direct_http import BUFFER_BYTES, DirectConnection, DirectPool, NoAnswer, request_head
from oncegate.testing import FakeGateway
from tests.client.answers import OPERATIONS, Answer, arrived, fails, intercept, rejected, results, settle

Made = tuple[int, dict[str, str], bytes]


class Wire(asyncio.BaseTransport):
    """Where a connection writes, and whether it was closed."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = b""
        self.gone = False

    def write(self, data: Any) -> None:
        self.sent += bytes(data)

    def abort(self) -> None:
        self.gone = True

    def is_closing(self) -> bool:
        return self.gone


def give(connection: DirectConnection, data: bytes) -> None:
    """Let bytes arrive as the loop does."""
    while data and not connection.closed:
        room = connection.get_buffer(-1)
        count = min(len(room), len(data))
        room[:count] = data[:count]
        connection.buffer_updated(count)
        data = data[count:]


async def answered(pieces: list[bytes]) -> tuple[Made | str, bool]:
    """Ask, let these bytes arrive and then the end of the connection: what is made of it, and whether it stays."""
    pool = DirectPool(asyncio.get_running_loop(), None)
    connection, transport = DirectConnection(pool, "http://node:1"), Wire()
    connection.connection_made(transport)

    def finish(head: AnswerHead, body: bytes) -> Made:
        return head.status, head.headers, body

    asking = asyncio.ensure_future(connection.ask(b"request", pool.loop.time() + 60, finish))
    await asyncio.sleep(0)
    assert transport.sent == b"request"
    for piece in pieces:
        give(connection, piece)
    stays = not transport.gone and pool.idle("http://node:1") is connection
    connection.connection_lost(None)
    pool.sweep.cancel()
    assert not pool.busy
    try:
        return await asking, stays
    except (NoAnswer, UnusualAnswer) as failure:
        return str(failure), stays


def fields(*more: str) -> bytes:
    return "".join(f"{line}\r\n" for line in ("HTTP/1.1 200 OK", *more)).encode() + b"\r\n"


names = st.sampled_from(["Content-Type", "Date", "Server", "Oncegate-Commit", "oncegate-leader", "X-Proxy", "VIA"])
values = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=20)


@given(
    status=st.sampled_from([200, 201, 304, 400, 421, 503]),
    more=st.lists(st.tuples(names, values), max_size=6),
    body=st.binary(max_size=300) | st.just(b"\r\n\r\n" * 20_000),
    cuts=st.lists(st.integers(0, 600), max_size=8),
)
def test_answer_is_the_same_however_it_is_cut(
    status: int, more: list[tuple[str, str]], body: bytes, cuts: list[int]
) -> None:
    body = b"" if status == 304 else body
    lines = [f"HTTP/1.1 {status} Some Words", *(f"{name}: {value}" for name, value in more)]
    sent = "\r\n".join([*lines, f"content-Length:{len(body)} ", "\r\n"]).encode() + body
    ends = sorted({min(cut, len(sent)) for cut in cuts})
    pieces = [sent[begin:end] for begin, end in zip([0, *ends], [*ends, len(sent)], strict=True)]
    whole, stays = asyncio.run(answered([sent]))
    assert asyncio.run(answered(pieces)) == (whole, stays)
    assert stays
    told: dict[str, str] = {}
    for name, value in more:
        if (
            known := {"oncegate-commit": wire.H_COMMIT, "oncegate-leader": wire.H_LEADER}.get(name.lower())
        ) is not None:
            told.setdefault(known, value.strip())
    assert whole == (status, told, body)


async def test_answer_that_comes_byte_by_byte_is_the_same() -> None:
    sent = fields("Content-Length: 5", "Oncegate-Commit: 7") + b"hello"
    assert await answered([bytes([byte]) for byte in sent]) == ((200, {wire.H_COMMIT: "7"}, b"hello"), True)


@pytest.mark.parametrize("size", [BUFFER_BYTES, 5 * BUFFER_BYTES])
async def test_answer_longer_than_the_buffer_is_whole_and_the_buffer_small_again(size: int) -> None:
    pool = DirectPool(asyncio.get_running_loop(), None)
    connection = DirectConnection(pool, "http://node:1")
    connection.connection_made(Wire())
    asking = asyncio.ensure_future(connection.ask(b"", pool.loop.time() + 60, lambda _, body: body))
    await asyncio.sleep(0)
    body = bytes(range(256)) * (size // 256)
    give(connection, fields(f"Content-Length: {size}") + body)
    assert await asking == body
    assert len(connection.get_buffer(-1)) == BUFFER_BYTES
    pool.sweep.cancel()


PIECES = (
    *(b"HTTP/1.1 200 OK\r\n", b"HTTP/1.0 200\r\n", b"HTTP/1.1 200", b"HTTP/1.1 099 X\r\n", b"HTTP/1.1 204 No\r\n"),
    *(b"Content-Length: 1\r\n", b"Content-Length: 2, 2\r\n", b"Content-Length : 1\r\n", b"content-length:+1\r\n"),
    *(b"Content-Length:\r\n", b"Transfer-Encoding: chunked\r\n", b" folded\r\n", b"Connection: close\r\n", b"\r\n"),
    *(b"\n", b"\0", b": x\r\n", b"a", b"1\r\n", b"HTTP/1.1 100 Continue\r\n\r\n", b"\xff: \xff\r\n", b"X: \xff\r\n"),
)
pieces_of_heads = st.lists(st.sampled_from(PIECES) | st.binary(max_size=4), max_size=8).map(b"".join)


@given(head=pieces_of_heads)
@example(head=b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 1")
def test_head_that_is_taken_says_to_others_what_it_says_here(head: bytes) -> None:
    try:
        told = read_head(head)
    except UnusualAnswer:
        return
    oracle = h11.Connection(h11.CLIENT)
    oracle.send(h11.Request(method="GET", target="/", headers=[("Host", "a")]))
    oracle.send(h11.EndOfMessage())
    oracle.receive_data(head + b"\r\n\r\n" + bytes(min(told.length, 10)))
    response = oracle.next_event()
    assert isinstance(response, h11.Response)
    assert response.status_code == told.status
    lengths = [int(value) for name, value in response.headers if name == b"content-length"]
    assert told.length == (0 if told.status in (204, 304) else lengths[0])


@pytest.mark.parametrize("status", [204, 304])
@pytest.mark.parametrize("told", [b"", b"\r\nContent-Length: 7"])
def test_answer_that_never_has_a_body_is_whole_after_its_head(status: int, told: bytes) -> None:
    assert read_head(b"HTTP/1.1 %d X%b" % (status, told)) == (status, 0, True, {})


def test_largest_body_is_taken() -> None:
    assert read_head(b"HTTP/1.1 200 OK\r\nContent-Length: %d" % BODY_BYTES_MAX).length == BODY_BYTES_MAX


@given(garbage=pieces_of_heads, cut=st.integers(0, 40))
def test_garbage_ends_the_attempt_and_is_no_answer_unless_it_is_one(garbage: bytes, cut: int) -> None:
    made, stays = asyncio.run(answered([garbage[:cut], garbage[cut:]]))
    head, ends, body = garbage.partition(b"\r\n\r\n")
    try:
        length = read_head(head).length if ends else BODY_BYTES_MAX
    except UnusualAnswer:
        length = BODY_BYTES_MAX
    assert isinstance(made, tuple) == (len(body) >= length)
    assert not stays or len(body) == length


@pytest.mark.parametrize(
    "sent",
    [
        fields("Transfer-Encoding: chunked"),
        fields("Content-Length: 0", "Transfer-Encoding: gzip"),
        fields("Content-Type: text/plain"),
        fields("Content-Length: 1", "Content-Length: 1"),
        fields("Content-Length: 1_0"),
        fields("Content-Length: ¹"),
        fields(f"Content-Length: {BODY_BYTES_MAX + 1}"),
        fields("Content-Length: " + "0" * 5_000),  # more digits than Python makes a number of
        b"HTTP/1.1 100 Continue\r\n\r\n",
        b"HTTP/1.1 101 Switching\r\n\r\n",
        b"HTTP/2 200 OK\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n folded\r\n\r\n",
        b"x" * (HEAD_BYTES_MAX + 1),
    ],
)
async def test_answer_in_another_form_is_not_taken_and_its_connection_closed(sent: bytes) -> None:
    made, stays = await answered([sent, b"0\r\n\r\n" * 10])
    assert isinstance(made, str)
    assert not stays


@pytest.mark.parametrize(
    "sent",
    [
        fields("Content-Length: 2", "Connection: close") + b"ok",
        b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
        fields("Content-Length: 2") + b"ok" + fields("Content-Length: 2") + b"no",
    ],
    ids=["close", "1.0", "another answer behind it"],
)
async def test_connection_serves_no_further_request_where_its_answers_could_be_mixed_up(sent: bytes) -> None:
    assert await answered([sent]) == ((200, {}, b"ok"), False)


async def test_bytes_that_nobody_asked_for_close_the_connection() -> None:
    pool = DirectPool(asyncio.get_running_loop(), None)
    connection, transport = DirectConnection(pool, "http://node:1"), Wire()
    connection.connection_made(transport)
    pool.rest(connection)
    give(connection, fields("Content-Length: 0"))
    assert transport.gone
    assert pool.idle("http://node:1") is None
    pool.sweep.cancel()


@pytest.mark.parametrize("value", ["a\r\nX: b", "a\nb", "a\rb", "a\0b"])
def test_header_cannot_begin_another_one(value: str) -> None:
    with pytest.raises(ValueError, match="end of a line"):
        request_head("GET", "node", "/", {"traceparent": value}, None)
    with pytest.raises(ValueError, match="end of a line"):
        request_head("GET", "node", f"/{value}", {}, 1)


# Against a gateway


@asynccontextmanager
async def server(answer: bytes) -> AsyncIterator[str]:
    """Something at an address that gives this answer to everything."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as listening:
        yield f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"


async def test_answer_in_chunks_is_read_through_aiohttp_and_applied_once(fake: FakeGateway, session: Session) -> None:
    chunked = 0

    async def in_chunks(request: web.Request) -> Answer:
        nonlocal chunked
        chunked += 1
        whole = await fake.nodes[0].serve(request)
        assert isinstance(whole, web.Response)
        assert isinstance(whole.body, bytes)
        answer = web.StreamResponse(headers={"Content-Type": wire.MSGPACK})
        answer.enable_chunked_encoding()
        await answer.prepare(request)
        await answer.write(whole.body)
        await answer.write_eof()
        return answer

    intercept(fake.nodes[0], OPERATIONS, in_chunks)
    first, second = await session.put("rows", "k", 1), await session.put("rows", "k", 2)
    assert (first.replayed, second.replayed) == (True, False)
    assert chunked == 3, "the first one was asked for again, and then the endpoint is known"
    assert len(fake.executed) == 2


async def test_answer_in_chunks_without_end_is_not_kept_beyond_the_bound(
    fake: FakeGateway, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(courier, "BODY_BYTES_MAX", 1 << 20)
    endless, sent = 0, 0

    async def without_end(request: web.Request) -> Answer:
        nonlocal endless, sent
        endless += 1
        if endless > 2:
            return None
        await fake.nodes[0].serve(request)
        answer = web.StreamResponse()
        answer.enable_chunked_encoding()
        await answer.prepare(request)
        with contextlib.suppress(ConnectionError):
            while True:
                await answer.write(bytes(65_536))
                sent += 65_536
        return answer

    intercept(fake.nodes[0], OPERATIONS, without_end)
    assert (await session.increment("rows", "n")).value == 1
    assert endless == 3, "read through aiohttp, and given up at the bound"
    assert sent < 32 << 20, "what both sides buffer, not what arrives until the attempt ends"
    assert len(fake.executed) == 1


async def test_connection_that_the_node_closed_meanwhile_costs_no_attempt(
    fake: FakeGateway, client: Client, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    await session.put("rows", "k", 1)
    lost: list[object] = []
    monkeypatch.setattr(type(client._connection.router), "unreachable", lambda *told, **_: lost.append(told))
    [idle] = client._connection._pool._idle.values()
    for connection in idle:
        assert connection._transport is not None
        connection._transport.close()  # as the loop does at its end, a turn before it tells that it is lost
    assert (await session.put("rows", "k", 2)).applied
    assert not lost
    assert len(fake.executed) == 2


async def test_write_whose_connection_is_never_made_was_surely_not_applied(
    fake: FakeGateway, client: Client, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    await session.put("rows", "warm", 1)
    for connection in list(*client._connection._pool._idle.values()):
        connection.abort()
    dialled = 0

    async def never(*_: object, **__: object) -> None:
        nonlocal dialled
        dialled += 1
        await asyncio.Event().wait()

    with monkeypatch.context() as patched:
        patched.setattr(asyncio.get_running_loop(), "getaddrinfo", never)
        with fails(Code.TIMEOUT, Outcome.NOT_APPLIED, kind=DeadlineExceeded):
            await session.put("rows", "k", 1, timeout_s=0.05)
    assert dialled
    await settle()
    assert (await session.put("rows", "k", 2)).sequence == 2, "the number of the write that never left is reused"


async def test_connection_that_is_made_just_as_its_attempt_ends_serves_the_next_one(
    fake: FakeGateway, client: Client, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    await session.put("rows", "warm", 1)
    pool, asked = client._connection._pool, client._connection.courier
    for connection in list(*pool._idle.values()):
        connection.abort()
    await settle()
    dialled: list[DirectConnection] = []
    dial = pool.dial

    async def in_the_last_moment(endpoint: str, due: float) -> DirectConnection:
        connection = await dial(endpoint, due)
        dialled.append(connection)
        if len(dialled) == 1:
            monkeypatch.setattr(asked, "clock", lambda: due)
        return connection

    monkeypatch.setattr(pool, "dial", in_the_last_moment)
    assert (await session.put("rows", "k", 1, timeout_s=60)).applied
    assert len(dialled) == 1, "the next attempt has it"
    [idle] = pool._idle.values()
    assert idle == dialled
    assert len(fake.executed) == 2


async def test_write_that_expires_while_a_connection_is_made_does_not_travel(
    fake: FakeGateway, client: Client, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    await session.put("rows", "warm", 1)
    pool = client._connection._pool
    for connection in list(*pool._idle.values()):
        connection.abort()
    await settle()
    dial, told = pool.dial, asyncio.Event()

    async def slowly(endpoint: str, due: float) -> DirectConnection:
        await told.wait()
        return await dial(endpoint, due)

    monkeypatch.setattr(pool, "dial", slowly)
    patient = asyncio.create_task(session.put("rows", "patient", 1, timeout_s=60))
    hasty = asyncio.create_task(session.put("rows", "hasty", 1, timeout_s=0.01))
    with pytest.raises(DeadlineExceeded) as refusal:
        await hasty
    assert refusal.value.outcome is Outcome.NOT_APPLIED
    told.set()
    assert (await patient).applied
    assert [write.key for write in fake.executed] == ["warm", "patient"]


async def test_write_that_expires_after_its_batch_was_taken_in_part_does_not_travel_on(
    fake: FakeGateway, client: Client, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one of the two that is taken had more time: it does not lend it to the other."""
    await session.put("rows", "warm", 1)
    await settle()
    pool = client._connection._pool
    dial, told = pool.dial, asyncio.Event()

    async def slowly(endpoint: str, due: float) -> DirectConnection:
        await told.wait()
        return await dial(endpoint, due)

    async def take_the_first(request: web.Request) -> Answer:
        if told.is_set():
            return None
        monkeypatch.setattr(pool, "dial", slowly)
        for connection in list(*pool._idle.values()):
            connection.abort()
        sent = msgspec.msgpack.decode(await request.read(), type=wire.OperationsRequest).operations
        first, second = [operation.sequence for operation in sent]
        answer = results(
            wire.OperationResult(first, "applied", commit=1, version=1), rejected(second, "OVERLOADED", later=True)
        )
        answer.force_close()
        return answer

    intercept(fake.nodes[0], OPERATIONS, take_the_first)
    patient = session.submit("put", "rows", "patient", 1, timeout_s=60)
    hasty = session.submit("put", "rows", "hasty", 1, timeout_s=2)
    assert (await patient).applied
    with pytest.raises(DeadlineExceeded):
        await hasty
    told.set()
    await session.drain()
    assert [write.key for write in fake.executed] == ["warm"]


async def test_request_that_ends_in_an_error_nobody_foresaw_may_have_been_applied(
    fake: FakeGateway, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    await session.put("rows", "warm", 1)
    ask = DirectConnection.ask

    async def fail(self: DirectConnection, *words: Any) -> Any:
        await ask(self, words[0], words[1], lambda *_: None)
        raise RuntimeError("not foreseen")

    monkeypatch.setattr(DirectConnection, "ask", fail)
    with fails(Code.INTERNAL, Outcome.UNKNOWN):
        await session.put("rows", "k", 1)
    assert [write.key for write in fake.executed] == ["warm", "k"]


async def test_request_that_cannot_be_written_takes_no_connection(
    fake: FakeGateway, client: Client, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    await session.put("rows", "k", 1)
    pool = client._connection._pool
    [kept] = [list(idle) for idle in pool._idle.values()]
    monkeypatch.setattr(client._connection.courier, "_authorization", lambda: "Bearer a\nb")
    with pytest.raises(ValueError, match="end of a line"):
        await client.get("rows", "k")
    assert list(pool._idle.values()) == [kept]
    monkeypatch.undo()
    assert await client.get("rows", "k") is not None


async def test_late_answer_closes_its_connection_and_answers_no_later_request(fake: FakeGateway) -> None:
    held = asyncio.Event()

    async def late(_: web.Request) -> Answer:
        if not held.is_set():
            await held.wait()
        return None

    async with Client(fake.endpoints, tuning=Tuning(attempt_timeout_s=0.05)) as client, client.session() as session:
        intercept(fake.nodes[0], OPERATIONS, late)
        writing = session.submit("increment", "rows", "n")
        await arrived(fake.nodes[0], count=3)
        assert len(client._connection._pool.busy) <= 1
        held.set()
        assert (await writing).value == 1
        assert (await session.increment("rows", "n")).value == 2


async def test_cancelled_read_closes_its_connection(fake: FakeGateway, client: Client) -> None:
    async def never(request: web.Request) -> Answer:
        if "/rows/" in request.path:
            await asyncio.Event().wait()
        return None

    fake.nodes[0].before = never
    reading = asyncio.create_task(client.get("rows", "k"))
    await arrived_read(fake)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    await settle()
    pool = client._connection._pool
    assert (pool.busy, pool.idle(fake.endpoints[0])) == (set(), None)
    fake.nodes[0].before = None
    assert await client.get("rows", "k") is None


async def arrived_read(fake: FakeGateway) -> None:
    while not any(asked.startswith("GET /v1/tables/rows/rows/") for asked in fake.nodes[0].requests):
        await asyncio.sleep(0)


async def test_session_that_ends_in_the_turn_of_an_answer_accounts_for_it_once(
    session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    sender, writing = session._sender, session.submit("put", "rows", "k", 1)

    def end(_: object) -> None:  # the verdict has been given, and the task that sends has not gone on yet
        [task] = sender._tasks
        task.cancel()

    writing._pending.promise.add_done_callback(end)  # type: ignore[attr-defined]
    assert (await writing).applied
    await settle()
    assert not sender._tasks
    assert not caplog.records
    assert (sender.tracker.incomplete, session.outstanding) == (0, 0)


async def test_connections_that_wait_for_work_are_closed_after_a_while(client: Client, session: Session) -> None:
    await session.put("rows", "k", 1)
    pool = client._connection._pool
    [[connection, *_]] = pool._idle.values()
    pool._expire(connection.idle_until - 0.001)
    assert connection.usable
    pool._expire(connection.idle_until)
    assert not connection.usable


async def test_both_sides_prove_who_they_are(fake: FakeGateway) -> None:
    authority = trustme.CA()
    serving, dialling = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
    authority.issue_cert("localhost").configure_cert(serving)
    authority.issue_cert("client").configure_cert(dialling)
    for context in (serving, dialling):
        authority.configure_trust(context)
    serving.verify_mode = ssl.CERT_REQUIRED
    runner = fake.nodes[0]._runner
    assert runner is not None
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=serving).start()
    endpoint = f"https://localhost:{runner.addresses[-1][1]}"
    async with Client(endpoint, tls=dialling) as client, client.session() as session:
        assert (await session.put("rows", "k", "v" * 100_000)).applied
        row = await client.get("rows", "k")
        assert row is not None
        assert row.value == "v" * 100_000


async def test_garbage_from_a_node_is_told_as_unknown_and_never_as_success(fake: FakeGateway) -> None:
    tuning = Tuning(backoff_first_s=0.001)
    async with (
        server(b"\x16\x03\x01garbage\r\n\r\n") as liar,
        Client(fake.endpoints, tuning=tuning) as client,
        client.session() as session,
    ):
        router = client._connection.router
        router.endpoints[:] = [liar]
        router.leader = None
        with fails(Code.TIMEOUT, Outcome.UNKNOWN):
            await session.put("rows", "k", 1, timeout_s=0.1)
        router.endpoints[:] = fake.endpoints
    assert not fake.executed


async def test_no_more_than_so_many_connections_are_open_or_wait_for_work(fake: FakeGateway) -> None:
    came, held = 0, asyncio.Event()

    async def together(request: web.Request) -> Answer:
        nonlocal came
        if "/rows/" in request.path:
            came += 1
            await held.wait()
        return None

    fake.nodes[0].before = together
    async with Client(fake.endpoints, tuning=Tuning(connections_max=2)) as client:
        reads = [asyncio.create_task(client.get("rows", f"k{number}")) for number in range(5)]
        while came < 2:
            await asyncio.sleep(0)
        await settle()
        pool = client._connection._pool
        assert len(pool.busy) == came == 2
        held.set()
        assert await asyncio.gather(*reads) == [None] * len(reads)
        assert not pool.busy
        assert [len(idle) for idle in pool._idle.values()] == [2]
