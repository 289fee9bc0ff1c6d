"""The hot path is aiohttp's, but for its cost: the same bytes sent to a node with it and to one without get the same
answers, to the byte, and the same end of the connection; and what only it has keeps to its bounds.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import operator
import re
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
import trustme
from hypothesis import strategies as st

from oncegate.gateway.http import exchange
from oncegate.gateway.http.admission.connections import Guard
from oncegate.gateway.http.exchange import UsualAnswers
from oncegate.gateway.http.hot import connection, framing, shared
from oncegate.gateway.http.hot.connection import AiohttpSide
from oncegate.gateway.http.hot.request import Aside, HotRequest
from oncegate.gateway.http.request_bodies import CONTROL_BYTES_MAX
from oncegate.gateway.http.server import running
from oncegate.gateway.machine import commands as c
from oncegate.gateway.node.attempts import Waiter
from oncegate.gateway.node.node import Node
from oncegate.gateway.node.settings import Settings
from oncegate.gateway.observability.request_times import RequestTimes
from tests.gateway.http_contract import founded, one_node, operations, put
from tests.gateway.test_auth import ALL, WRITER, _certificate, written
from tests.gateway.test_http_fuzz import _drawn

WAIT_S = 20.0
LAST = b"GET /v1/tables/none HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
"""Sent behind what is drawn: if the connection lives, and has read the drawn bytes to their end, this ends it."""
VOLATILE = re.compile(
    rb'(?m)(?<=^Date: )[^\r]*|(?<=^Oncegate-Time-Ms: )\d+|(?<=^Oncegate-Memory-Ms: )\d+|(?<="memory_ms":)\d+'
    rb"|(?<=^Oncegate-Age-Ms: )\d+"
    rb'|(?<=^RateLimit: "operations";r=)\d+;t=\d+|(?<=127\.0\.0\.1:)\d+|(?<=\xa9memory_ms).{5}'
)

NO_HTTP = re.compile(rb'Content-Length: \d+(?P<between>[^{]*{[^{]*not HTTP as this node reads it)(?:[^"\\]|\\.)*')
"""Which bytes are wrong is told with those that came in the same read."""


class Sent(NamedTuple):
    """Bytes for one connection, and where they are cut apart."""

    data: bytes
    cuts: list[int]


@contextlib.asynccontextmanager
async def node(settings: Settings, *, hot: bool = True) -> AsyncIterator[Node]:
    async with running(settings, hot=hot) as started:
        await founded(started)
        yield started


def _port(one: Node) -> int:
    return one.settings.address.http_port


async def answered(port: int, sent: Sent, patience_s: float = WAIT_S) -> bytes:
    """Send; return everything that came until the node closed, and how it ended."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    came = bytearray()
    try:
        edges = [0, *sorted(cut % (len(sent.data) + 1) for cut in sent.cuts), len(sent.data)]
        for begin, end in itertools.pairwise(edges):
            writer.write(sent.data[begin:end])
            await asyncio.sleep(0)
        async with asyncio.timeout(patience_s):
            while piece := await reader.read(65536):
                came += piece
    except ConnectionError:
        pass
    except TimeoutError:
        came += b"<waits>"
    finally:
        writer.transport.abort()
    return NO_HTTP.sub(rb"-\g<between>", VOLATILE.sub(b"-", bytes(came)))


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How many requests were hot, and how many bytes aiohttp got."""
    found = {"hot": 0, "aiohttp": 0}
    begin, received = HotRequest.begin, AiohttpSide.data_received

    def counted(self: HotRequest, *how: Any) -> None:
        found["hot"] += 1
        begin(self, *how)

    def taken(self: AiohttpSide, data: bytes) -> None:
        found["aiohttp"] += len(data)
        received(self, data)

    monkeypatch.setattr(HotRequest, "begin", counted)
    monkeypatch.setattr(AiohttpSide, "data_received", taken)
    return found


def http(start: str, *lines: str, body: bytes = b"", host: str = "localhost") -> bytes:
    """Return a request that says how long its body is."""
    head = [start + " HTTP/1.1", f"Host: {host}", *lines, f"Content-Length: {len(body)}", "", ""]
    return "\r\n".join(head).encode() + body


def operate(*many: Any, lines: tuple[str, ...] = ("Content-Type: application/json",)) -> bytes:
    """Return a request with operations of the session 1."""
    return http("POST /v1/operations", *lines, body=json.dumps(operations("0" * 15 + "1", *many)).encode())


STARTS = """
POST /v1/operations|PUT /v1/tables/rows/rows/a|DELETE /v1/tables/rows/rows/a|POST /v1/tables/rows/rows/a/increment
POST /v1/operations|PUT /v1/tables/rows/rows/b|DELETE /v1/tables/rows/rows/b|POST /v1/tables/rows/rows/a/increment
POST /v1/operations|POST /v1/tables/rows/rows/b/append|PUT /v1/tables/none/rows/a|PUT /v1/tables/rows/rows/a%20b
POST /v1/operations?x=1|POST /v1/operations/|GET /v1/operations|PUT /v1/tables/rows/rows/..|POST /|HEAD /livez
PUT /v1/tables/ROWS/rows/a|PUT /v1/tables/rows/rows/a/b|PUT /v1/tables/rows/rows/%ff|GET /livez|PATCH /v1/operations
POST //v1/operations|GET /v1/tables/rows/rows/a|post /v1/operations|GET /v1/tables/none/rows/a
GET /v1/tables/rows/rows/a|GET /v1/tables/rows/rows/a?consistency=stale|GET /v1/tables/rows/rows/b?consistency=session
GET /v1/tables/rows/rows/none?consistency=stale|GET /v1/tables/rows/rows/a?min_commit=1&consistency=session
GET /v1/tables/rows/rows/a?consistency=late|GET /v1/tables/rows/rows/a?min_commit=x|GET /v1/tables/rows/rows/a?
GET /v1/tables/rows/rows/a?min_commit=1&min_commit=1|GET /v1/tables/rows/rows/a?min=1|GET /v1/tables/rows/rows/a?%61=1
GET /v1/tables/rows/rows/c?consistency=|GET /v1/tables/rows/rows/long|GET /v1/tables/rows/rows/a%2f
HEAD /v1/tables/rows/rows/a
POST /v1/tables/events/ranges|POST /v1/tables/rows/ranges|POST /v1/tables/EVENTS/ranges
"""
IN_SESSION = ("Oncegate-Client: 0000000000000001", "Oncegate-Epoch: 1", "Oncegate-First-Incomplete: 1")
"""What a range says of its place, but for its first number."""
SOUND = """
Accept: application/json|Accept: application/vnd.oncegate+msgpack|Accept: */*|Accept: text/html|X-Any: thing
Idempotency-Key: "k"|Idempotency-Key: k|Idempotency-Key:|If-Match: "1"|If-Match: *|If-None-Match: *|traceparent: x
If-None-Match: W/"1"|If-None-Match: "1", "2"|If-None-Match: "2", x, "1"
Oncegate-Request: 0000000000000001/2|Oncegate-First-Incomplete: 1|Oncegate-Epoch: 1|Oncegate-TTL-Ms: 90000
traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01|Origin: http://localhost|Origin: http://a.example
Authorization: Bearer no|Authorization: Basic eDp5|Connection: keep-alive|Content-Encoding: identity
Content-Encoding: gzip|Authorization: Bearer t-reader
"""
KINDS = """
Content-Type: application/json|Content-Type: application/vnd.oncegate+msgpack|Content-Type: text/plain|Content-Type:
Content-Type: Application/JSON; charset=utf-8|Content-Type: application/json; charset=utf-8|Content-Type: a/b/c
Content-Type: application/octet-stream|Content-Type: application/x-www-form-urlencoded|Content-Type: text/plain; q
"""
ODD = """
X|X : y| folded|X: \x01|X: \u00e9|Host: a.example|Host: localhost|Connection: close|Connection: upgrade|Upgrade: h2c
Upgrade: websocket|Expect: 100-continue|Expect: more|TE: trailers|Transfer-Encoding: chunked|Transfer-Encoding: gzip
Content-Length: 3|Content-Length: x|Accept: a|Content-Type: text/plain|Idempotency-Key: "k"|Proxy-Connection: close
"""


def _each(text: str) -> list[str]:
    return text.strip("\n").replace("\n", "|").split("|")


def _of(text: str) -> st.SearchStrategy[str]:
    return st.sampled_from(_each(text))


def corpus() -> list[Sent]:
    """Return each thing that a request may have alone, on hot routes, and each other route and end of a line."""
    found = []
    proved = f"Authorization: Bearer {WRITER}", "Content-Type: application/json"
    own = {number: (f'Idempotency-Key: "c{number}"',) for number in range(100)}
    placed = {number: (*IN_SESSION, f"Oncegate-First-Sequence: {20 + 2 * number}") for number in range(100)}
    rows = b'{"key":"k","value":1}\n{"key":"l","value":"x"}'
    for start, body, named in (
        ("POST /v1/operations", json.dumps(operations("0" * 15 + "1", put(1, "a", 1))).encode(), own),
        ("PUT /v1/tables/rows/rows/c", b"5", own),
        ("POST /v1/tables/rows/rows/d/increment", b"", own),
        ("POST /v1/tables/events/ranges", rows, placed),
        ("GET /v1/tables/rows/rows/a?consistency=stale", b"", own),
    ):
        for number, odd in enumerate(_each(SOUND + KINDS.lstrip() + ODD.lstrip())):
            name = odd.partition(":")[0]
            lines = [line for line in (*proved, *named[number]) if not line.startswith(name)]
            found.append(http(start, *lines, odd, body=body))
    columns = {"keys": [f"k{at}" for at in range(900)], "values": ["1"] * 900}
    found += [
        http("POST /v1/tables/events/ranges", proved[0], kind, *placed[99], body=msgspec.msgpack.encode(columns))
        for kind in ("Content-Type: application/vnd.oncegate+msgpack", "Content-Type: application/json")
    ]
    found += [
        http("POST /v1/tables/events/ranges", *proved, *(one for one in placed[98] if one != left), body=rows)
        for left in placed[98]
    ]
    found += [http(start, *proved, body=b"{}") for start in _each(STARTS)]
    found += [http(start, *proved) for start in _each(STARTS) if start[:3] == "GET"]
    found.append(http("GET /v1/tables/rows/rows/long", *proved, "Accept: application/vnd.oncegate+msgpack"))
    usual = http("POST /v1/operations", *proved, body=b"{}")
    for end in (b"\n", b"\r", b"\r\r\n", b"\r\n "):
        pieces = usual.split(b"\r\n")
        found += [b"\r\n".join(pieces[:at]) + end + b"\r\n".join(pieces[at:]) for at in range(1, len(pieces) - 1)]
    found += [http("POST /v1/operations", *proved, body=b"{}", host=host) for host in ("a.example", "[", "", "a b")]
    return [Sent(one + LAST, []) for one in found]


def _body(number: int) -> st.SearchStrategy[bytes]:
    """Bodies of the example with this number; its puts are new, its other operations replays and refusals."""
    key = f"k{number % 7}"
    one = st.sampled_from(
        [put(number, key, number), put(1, "a", 1), put(number, key, "x" * 40_000), {"sequence": number, "op": "get"}]
    )
    many = st.lists(one, max_size=3).map(lambda ops: json.dumps(operations("0" * 15 + "1", *ops)).encode())
    rows = st.just(b'{"key":"k","value":1}')
    return (
        many
        | rows
        | st.sampled_from([b"", b"5", b"{}", b'{"item":[1]}', b'{"by":2}', b"\xff", b'{"by":"x"}', b"[" * 300])
    )


@st.composite
def requests(draw: st.DrawFn, *, any_form: bool) -> bytes:
    """Requests that are HTTP, or with ``any_form`` may be none; most prove who they are."""
    start, lines = draw(_of(STARTS)), draw(st.lists(_of(SOUND), max_size=3))
    placed = (*IN_SESSION, f"Oncegate-First-Sequence: {draw(st.integers(100, 4000))}") if "ranges" in start else ()
    lines = [*{line.partition(":")[0]: line for line in [f"Authorization: Bearer {WRITER}", *placed, *lines]}.values()]
    lines.append(draw(st.just("Content-Type: application/json") | _of(KINDS)))
    host = draw(st.sampled_from(["localhost"] * 9 + ["a.example", "127.0.0.1:1"]))
    body = draw(_body(draw(st.integers(2, 10_000))))
    if start[:3] == "GET" and draw(st.booleans()):
        body = b""
    if not any_form:
        return http(start.replace("post", "POST"), *lines, body=body, host=host)
    request = http(start, *lines, *draw(st.lists(_of(ODD), max_size=2)), body=body, host=host)
    return request.replace(b"\r\n", draw(st.sampled_from([b"\r\n"] * 5 + [b"\n", b"\r"])), draw(st.integers(1, 9)))


# One that is no HTTP stands alone: aiohttp drops what came with it in the same read.
# A request that comes again is read by comparing its head with the one before.
PIPELINES = st.builds(
    lambda many, cuts: Sent(b"".join(many) + LAST, cuts),
    st.lists(requests(any_form=False), min_size=1, max_size=3)
    | st.builds(operator.mul, st.lists(requests(any_form=False), min_size=1, max_size=2), st.just(3))
    | st.lists(requests(any_form=True), min_size=1, max_size=1),
    st.lists(st.integers(0, 100_000), max_size=2),
)


@pytest.mark.parametrize("kind", ["open", "tokens"])
async def test_any_bytes_get_the_same_answers_as_from_aiohttp(tmp_path: Path, seen: dict[str, int], kind: str) -> None:
    given: dict[str, Any] = {"body_ms_max": 500}
    if kind == "tokens":
        tokens = written(tmp_path / "tokens.toml", ALL)
        given |= {"tokens_file": tokens, "tenant_operations_per_s": 1_000_000}
    async with (
        node(one_node(tmp_path / "hot", **given)) as new,
        node(one_node(tmp_path / "not", **given), hot=False) as old,
    ):
        who = (f"Authorization: Bearer {WRITER}", "Content-Type: application/json")
        admin = ("Authorization: Bearer t-admin", "Content-Type: application/json")
        first = [
            http("PUT /v1/tables/rows", *admin, body=b'{"kind":"resident"}'),
            http("PUT /v1/tables/events", *admin, body=b'{"kind":"stream"}'),
            http("POST /v1/sessions", *who, body=b'{"nonce":"n","window":4096}'),
            operate(put(1, "a", 1), lines=who),
            http("PUT /v1/tables/rows/rows/long", *who, 'Idempotency-Key: "long"', body=b'"%b"' % (b"x" * 40_000)),
        ]
        drawn = [Sent(b"".join(first) + LAST, [])]
        drawn += [*corpus(), *(one["sent"] for one in await _drawn(100, sent=PIPELINES))]
        for sent in drawn:
            # An unfinished body is refused after 500 ms, and lingered for: its client goes.
            got, wanted = await asyncio.gather(answered(_port(new), sent, 3), answered(_port(old), sent, 3))
            assert got == wanted, sent
        assert seen["hot"] > len(drawn) / 5, "too few of them were hot"


class Line:
    """One connection on which requests and answers alternate."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def call(self, *pieces: bytes) -> tuple[int, Any]:
        """Send a request in pieces, each in a turn of its own; return status and body of the answer."""
        for piece in pieces:
            self.writer.write(piece)
            await asyncio.sleep(0.01)
        return await self.answer()

    async def answer(self) -> tuple[int, Any]:
        """Read one answer."""
        async with asyncio.timeout(WAIT_S):
            head = await self.reader.readuntil(b"\r\n\r\n")
            length = next(int(one.split()[1]) for one in head.split(b"\r\n") if one.startswith(b"Content-Length"))
            return int(head.split()[1]), json.loads(await self.reader.readexactly(length))


@contextlib.asynccontextmanager
async def line(settings: Settings) -> AsyncIterator[tuple[Line, Node]]:
    """A connection to a node with the table ``rows`` and the session 1."""
    async with node(settings) as started:
        one = Line(*await asyncio.open_connection("127.0.0.1", _port(started)))
        await one.call(http("PUT /v1/tables/rows", "Content-Type: application/json", body=b'{"kind":"resident"}'))
        await one.call(http("POST /v1/sessions", "Content-Type: application/json", body=b'{"nonce":"n"}'))
        yield one, started
        one.writer.transport.abort()


async def test_what_aiohttp_served_leaves_the_connection_hot(tmp_path: Path, seen: dict[str, int]) -> None:
    async with line(one_node(tmp_path)) as (one, _):
        before = seen["aiohttp"]
        for sequence in range(1, 4):
            status, body = await one.call(operate(put(sequence, "a", sequence)))
            assert (status, body["results"][0]["status"]) == (200, "applied")
        assert (seen["hot"], seen["aiohttp"]) == (3, before), "a hot request reached aiohttp"
        assert (await one.call(http("GET /v1/tables/rows")))[1]["rows"] == 1
        assert (seen["hot"], seen["aiohttp"] > before) == (3, True)
        large = operate(put(4, "a", "x" * connection.BODY_BYTES_MAX), put(5, "a", 5))  # refused, and read whole
        assert (await one.call(*(large[at : at + 65_536] for at in range(0, len(large), 65_536))))[0] == 413
        assert seen["hot"] == 3
        assert (await one.call(operate(put(4, "a", 4))))[0] == 200
        assert seen["hot"] == 4


async def test_reads_of_a_row_are_hot_at_each_level_and_alone_when_they_wait(
    tmp_path: Path, seen: dict[str, int]
) -> None:
    row = "GET /v1/tables/rows/rows/a"
    async with line(one_node(tmp_path)) as (one, started):
        before = seen["aiohttp"]
        assert (await one.call(operate(put(1, "a", 1))))[0] == 200
        for query in ("", "?consistency=linearizable", "?consistency=session&min_commit=1", "?consistency=stale"):
            assert (await one.call(http(row + query)))[1]["value"] == 1
        assert (await one.call(http("GET /v1/tables/rows/rows/b")))[1]["code"] == "NOT_FOUND"
        one.writer.write(http(row, 'If-None-Match: "1"'))
        told = (await one.reader.readuntil(b"\r\n\r\n")).decode()
        assert told.startswith("HTTP/1.1 304")
        assert "Content-Length" not in told
        assert (seen["hot"], seen["aiohttp"]) == (7, before), "a hot request reached aiohttp"
        other = Line(*await asyncio.open_connection("127.0.0.1", _port(started)))
        one.writer.write(http(row + "?consistency=session&min_commit=2") + operate(put(3, "a", 3)))
        while not started.reads.commit_waiters:
            await asyncio.sleep(0.01)
        assert started.machine.commit == 1, "a request was served before the one ahead of it was answered"
        assert (await other.call(operate(put(2, "a", 2))))[0] == 200
        assert (await one.answer())[1]["value"] == 2
        assert (await one.answer())[1]["results"][0]["sequence"] == 3
        assert seen["aiohttp"] == before
        other.writer.transport.abort()


async def test_range_of_a_thousand_rows_is_hot_and_checked_at_once(
    tmp_path: Path, seen: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    beside: list[str] = []
    run = Aside.run
    monkeypatch.setattr(Aside, "run", lambda self, tenant, work: beside.append(tenant) or run(self, tenant, work))
    async with line(one_node(tmp_path)) as (one, started):
        await one.call(http("PUT /v1/tables/events", "Content-Type: application/json", body=b'{"kind":"stream"}'))
        columns = {"keys": [f"k{at}" for at in range(1024)], "values": [json.dumps("x" * 198)] * 1024}
        kinds = "Content-Type: application/vnd.oncegate+msgpack", "Accept: application/json"
        body = msgspec.msgpack.encode(columns)
        sent = http("POST /v1/tables/events/ranges", *kinds, *IN_SESSION, "Oncegate-First-Sequence: 1", body=body)
        before = dict(seen)
        status, answer = await one.call(sent)
        assert (status, [(part["first"], part["last"]) for part in answer["results"]]) == (200, [(1, 1024)])
        assert seen == {"hot": before["hot"] + 1, "aiohttp": before["aiohttp"]}
        assert started.machine.commit == answer["results"][0]["commit"] + 1023
        assert beside == []
        columns["values"] = [f"[{10**20}, {10**60}]"] * 1024  # built beside the loop, and refused there
        body = msgspec.msgpack.encode(columns)
        sent = http("POST /v1/tables/events/ranges", *kinds, *IN_SESSION, "Oncegate-First-Sequence: 2000", body=body)
        assert (await one.call(sent))[0] == 400
        assert len(beside) == 1


async def test_answers_keep_the_order_of_their_requests_whoever_serves_them(tmp_path: Path) -> None:
    async with line(one_node(tmp_path)) as (one, started):
        other = Line(*await asyncio.open_connection("127.0.0.1", _port(started)))
        # Not hot, as it stands there; it waits for a commit.
        one.writer.write(http("GET /v1/tables/rows/rows?consistency=session&min_commit=1"))
        while not started.reads.commit_waiters:
            await asyncio.sleep(0.01)
        one.writer.write(operate(put(2, "a", 2)))
        await asyncio.sleep(0.1)  # it arrives while aiohttp is at work on the first
        assert (await other.call(operate(put(1, "a", 1))))[0] == 200
        assert (await one.answer())[1]["rows"][0]["value"] == 1
        assert (await one.answer())[1]["results"][0]["sequence"] == 2
        other.writer.transport.abort()


async def test_requests_are_hot_under_tls(tmp_path: Path, seen: dict[str, int]) -> None:
    authority = trustme.CA()
    certificate, key = _certificate(authority, tmp_path)
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    settings = one_node(tmp_path, tls_certificate=certificate, tls_key=key)
    async with node(settings) as started:
        one = Line(*await asyncio.open_connection("127.0.0.1", _port(started), ssl=trusting))
        assert (await one.call(http("PUT /v1/tables/rows", body=b'{"kind":"resident"}')))[0] == 200
        large = http("PUT /v1/tables/rows/rows/a", 'Idempotency-Key: "k"', body=json.dumps("x" * 100_000).encode())
        assert (await one.call(large))[0] == 200
        assert (await one.call(http("POST /v1/tables/rows/rows/n/increment", 'Idempotency-Key: "n"')))[1]["value"] == 1
        assert (await one.call(http("GET /v1/tables/rows/rows/a")))[1]["value"] == "x" * 100_000
        assert seen["hot"] >= 1
        one.writer.transport.abort()


@pytest.mark.parametrize("hot", [True, False])
async def test_request_for_which_there_was_no_place_is_not_executed_although_it_came_with_the_handshake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hot: bool
) -> None:
    authority = trustme.CA()
    certificate, key = _certificate(authority, tmp_path)
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    async with node(one_node(tmp_path, tls_certificate=certificate, tls_key=key), hot=hot) as started:
        one = Line(*await asyncio.open_connection("127.0.0.1", _port(started), ssl=trusting))
        assert (await one.call(http("PUT /v1/tables/rows", body=b'{"kind":"resident"}')))[0] == 200
        one.writer.transport.abort()
        ordered: list[Any] = []
        monkeypatch.setattr(started, "attempt", lambda *what: ordered.append(what))
        monkeypatch.setattr(Guard, "has_room", lambda _: False)
        reader, writer = await asyncio.open_connection("127.0.0.1", _port(started))
        comes, leaves = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = trusting.wrap_bio(comes, leaves, server_hostname="127.0.0.1")
        with pytest.raises(ssl.SSLWantReadError):
            client.do_handshake()
        writer.write(leaves.read())
        comes.write(await reader.read(65_536))
        client.do_handshake()
        client.write(http("PUT /v1/tables/rows/rows/a", 'Idempotency-Key: "k"', body=b"5"))
        writer.write(leaves.read())
        answer = b""
        async with asyncio.timeout(WAIT_S):
            while b"no place" not in answer:
                comes.write(await reader.read(65_536))
                with contextlib.suppress(ssl.SSLWantReadError):
                    answer += client.read(65_536)
            assert b'"outcome":"not_applied"' in answer
            with contextlib.suppress(ConnectionError):
                await reader.read()  # its descriptor is free soon, although this side says no goodbye
        assert not ordered
        writer.transport.abort()


async def test_request_in_pieces_is_hot_and_one_that_stalls_is_refused_as_ever(
    tmp_path: Path, seen: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with line(one_node(tmp_path, body_ms_max=50)) as (one, started):
        monkeypatch.setattr("oncegate.gateway.http.admission.connections.SWEEP_S", 0.2)
        request = operate(put(1, "a", 1))
        # Between two sweeps, or a piece too late: both are answered.
        for cut in (5, request.index(b"\r\n\r\n") + 2, len(request) - 1):
            assert (await one.call(request[:cut], request[cut:]))[0] == 200
        assert seen["hot"] >= 1
        stalled = Line(*await asyncio.open_connection("127.0.0.1", _port(started)))
        status, body = await stalled.call(request[:-1])
        assert (status, body["code"], body["outcome"]) == (504, "TIMEOUT", "not_applied")
        # aiohttp reads the rest of what it has refused, and serves what comes behind it.
        assert (await stalled.call(request[-1:] + operate(put(1, "a", 1))))[0] == 200
        stalled.writer.transport.abort()


async def test_requests_that_are_not_whole_have_their_bound(
    tmp_path: Path, seen: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "WAITING_BYTES_MAX", 100)
    async with line(one_node(tmp_path)) as (one, _):
        before, request = seen["aiohttp"], operate(put(1, "a", 1))
        assert (await one.call(request[:-1], request[-1:]))[0] == 200
        assert seen == {"hot": 0, "aiohttp": before + len(request)}, "it waited beyond the bound"


async def _until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not holds():
            await asyncio.sleep(0.001)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[connection.Connection]:
    """The connections of a node that looks at them once only, when it starts."""
    found: list[connection.Connection] = []
    connected = connection.Connection.connection_made

    def noted(self: connection.Connection, transport: asyncio.BaseTransport) -> None:
        found.append(self)
        connected(self, transport)

    monkeypatch.setattr(connection.Connection, "connection_made", noted)
    monkeypatch.setattr("oncegate.gateway.http.admission.connections.SWEEP_S", 600.0)
    return found


async def test_bytes_of_a_request_count_once_until_it_is_whole_or_its_client_has_gone(
    tmp_path: Path, made: list[connection.Connection]
) -> None:
    async with line(one_node(tmp_path)) as (one, started):
        (served,), request = made, operate(put(1, "a", 1))
        bodies = served._shared.aside.bodies
        cuts = [0, 10, 30, request.index(b"\r\n\r\n") + 6]
        for begin, end in itertools.pairwise(cuts):
            one.writer.write(request[begin:end])
            await _until(lambda end=end: bodies.waiting_bytes >= end)
            assert bodies.waiting_bytes == end
        assert (await one.call(request[cuts[-1] :]))[0] == 200
        assert bodies.waiting_bytes == 0
        for cut in (20, len(request) - 1):
            _, leaving = await asyncio.open_connection("127.0.0.1", _port(started))
            leaving.write(request[:cut])
            await _until(lambda cut=cut: bodies.waiting_bytes == cut)
            leaving.transport.abort()
            await _until(lambda: bodies.waiting_bytes == 0)


async def test_connection_whose_requests_are_hot_has_asked_and_is_idle_between_two_of_them_only(
    tmp_path: Path, made: list[connection.Connection]
) -> None:
    async with line(one_node(tmp_path)) as (_, started):
        other, request = Line(*await asyncio.open_connection("127.0.0.1", _port(started))), operate(put(1, "a", 1))
        await _until(lambda: len(made) == 2)
        served = made[1]
        assert (served.has_asked, served.is_idle) == (False, True)
        assert (await other.call(request))[0] == 200
        assert (served.has_asked, served.is_idle) == (True, True)
        for cut, idle in ((9, True), (len(request) - 1, False)):  # of a head, which may never come, or of a body
            other.writer.write(request[:cut])
            await _until(lambda cut=cut: len(served._unread) == cut)
            assert served.is_idle == idle
            assert (await other.call(request[cut:]))[0] == 200
        assert served._side is None
        other.writer.transport.abort()


async def test_head_that_is_remembered_has_a_bound(tmp_path: Path, made: list[connection.Connection]) -> None:
    async with line(one_node(tmp_path)) as (_, started):
        for more, remembered in ((0, True), (framing.KNOWN_BYTES_MAX, False)):
            lines = ("Content-Type: application/json", "X-Any: " + "x" * more)
            other = Line(*await asyncio.open_connection("127.0.0.1", _port(started)))
            for sequence in range(1, 2 + framing.MISSES_MIN):
                assert (await other.call(operate(put(sequence, "a", sequence), lines=lines)))[0] == 200
            assert (made[-1]._known is not None) == remembered
            other.writer.transport.abort()


async def test_node_that_stops_waits_for_no_request_whose_client_has_gone(
    tmp_path: Path, made: list[connection.Connection], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with line(one_node(tmp_path)) as (one, started):
        (served,), held = made, list[Any]()
        monkeypatch.setattr(started, "attempt", lambda *what: held.append(what))
        one.writer.write(operate(put(1, "a", 1)))
        await _until(lambda: bool(held))
        ends = served.drain()
        assert ends is not None
        assert not ends.done()
        one.writer.transport.abort()
        async with asyncio.timeout(WAIT_S):
            await ends


async def test_what_arrives_behind_a_request_under_way_is_not_read_on(
    tmp_path: Path, made: list[connection.Connection], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared, "READ_BYTES", 4096)
    async with line(one_node(tmp_path)) as (one, started):
        (served,), held = made, list[Any]()
        attempt = started.attempt
        monkeypatch.setattr(started, "attempt", lambda *what: held.append(what))
        request = operate(put(1, "a", 1))
        one.writer.write(request)
        await _until(lambda: bool(held))
        count = 4 * shared.READ_BYTES // len(request)
        one.writer.write(request * count)
        await _until(lambda: served._paused)
        assert len(served._unread) <= shared.READ_BYTES
        monkeypatch.setattr(started, "attempt", attempt)
        attempt(*held[0])
        for _ in range(1 + count):
            assert (await one.answer())[0] == 200


async def test_large_body_is_held_until_its_request_is_answered_and_no_longer(
    tmp_path: Path, seen: dict[str, int], made: list[connection.Connection], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with line(one_node(tmp_path)) as (one, started):
        (served,), held, attempt = made, list[int](), started.attempt
        bodies, before = served._shared.aside.bodies, seen["hot"]

        def ordered(*what: Any) -> None:
            held.append(bodies.held_bytes)
            attempt(*what)

        monkeypatch.setattr(started, "attempt", ordered)
        body = json.dumps("x" * 60_000).encode()
        for number, wanted in enumerate((200, 200, 404)):
            table = "none" if wanted == 404 else "rows"
            headers = ("Content-Type: application/json", f'Idempotency-Key: "{number}"')
            assert (await one.call(http(f"PUT /v1/tables/{table}/rows/a", *headers, body=body)))[0] == wanted
            assert bodies.held_bytes == 0
        assert held == [len(body)] * 3
        assert seen["hot"] == before + 3


async def test_body_over_the_bound_of_its_route_is_refused_however_small_others_may_be(tmp_path: Path) -> None:
    async with line(one_node(tmp_path)) as (one, _):
        for size, wanted in ((CONTROL_BYTES_MAX, 200), (CONTROL_BYTES_MAX + 1, 413)):
            lines = ("Content-Type: application/json", f'Idempotency-Key: "{size}"')
            body = b'{"by":1}'.ljust(size)
            assert (await one.call(http("POST /v1/tables/rows/rows/n/increment", *lines, body=body)))[0] == wanted


async def test_connections_that_stall_together_are_handed_over_a_few_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, made, turn = asyncio.get_running_loop(), list[int](), 0

    def count() -> None:
        nonlocal turn
        turn += 1
        if len(made) < 12:
            loop.call_soon(count)

    def connected(self: AiohttpSide, transport: asyncio.BaseTransport) -> None:
        made.append(turn)
        connection_made(self, transport)

    async with line(one_node(tmp_path)) as (_, started):
        connection_made = AiohttpSide.connection_made
        monkeypatch.setattr(AiohttpSide, "connection_made", connected)
        monkeypatch.setattr(shared, "STALLED_AT_ONCE", 3)
        many = [await asyncio.open_connection("127.0.0.1", _port(started)) for _ in range(12)]
        request = operate(put(1, "a", 1))
        for number, (_, writer) in enumerate(many):
            writer.write(request[: 20 if number % 2 else -1])  # half of the heads, the others' bodies
        count()
        async with asyncio.timeout(WAIT_S):
            while len(made) < len(many):
                await asyncio.sleep(0.01)
        assert max(made.count(one) for one in made) <= 3
        for _, writer in many:
            writer.transport.abort()


async def test_client_that_does_not_read_is_not_served_on(tmp_path: Path, seen: dict[str, int]) -> None:
    async with line(one_node(tmp_path)) as (one, _):
        many = [
            {"sequence": n, "op": "put", "table": "rows", "key": f"k{n}", "value": "x" * 60_000} for n in range(1, 5)
        ]
        assert (await one.call(operate(*many)))[0] == 200
        reading = operate({"sequence": 5, "op": "get", "table": "rows", "key": "k1"})
        one.writer.transport.pause_reading()  # type: ignore[attr-defined]
        before, count = seen["hot"], 2_000  # 120 MB of answers: more than the buffers between the two hold
        one.writer.write(reading * count)
        async with asyncio.timeout(WAIT_S):
            served = -1
            while served != seen["hot"]:  # until it comes to a stop
                served = seen["hot"]
                await asyncio.sleep(0.3)
        assert served - before < count, "everything was served to a client that reads nothing"
        one.writer.transport.resume_reading()  # type: ignore[attr-defined]
        for _ in range(served - before + 5):
            status, body = await one.answer()
            assert (status, len(body["results"][0]["value"])) == (200, 60_000)


async def test_client_that_sends_request_by_request_and_reads_nothing_is_not_served_on(
    tmp_path: Path, seen: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is under way when the next request arrives: that the client does not read is all that is known of it."""
    made: list[connection.Connection] = []
    connected = connection.Connection.connection_made

    def noted(self: connection.Connection, transport: asyncio.BaseTransport) -> None:
        made.append(self)
        connected(self, transport)

    monkeypatch.setattr(connection.Connection, "connection_made", noted)
    async with line(one_node(tmp_path)) as (one, _):
        assert (await one.call(operate(put(1, "a", "x" * 60_000))))[0] == 200
        (served,), reading = made, operate({"sequence": 2, "op": "get", "table": "rows", "key": "a"})
        one.writer.transport.pause_reading()  # type: ignore[attr-defined]
        before, count = seen["hot"], 400  # 24 MB of answers: more than the buffers between the two hold
        async with asyncio.timeout(WAIT_S):
            for sent in range(1, count + 1):
                one.writer.write(reading)
                while not (stopped := served._paused) and (seen["hot"] < before + sent or served._request is not None):
                    await asyncio.sleep(0)
                if stopped:
                    break
        assert stopped, "the node reads on from a client that takes no answer"
        assert seen["hot"] == before + sent - 1, "the last one was served nevertheless"
        assert 0 < served.pending_bytes < 3 * 65_536, "the answer at which the transport was full is the last one"
        one.writer.transport.resume_reading()  # type: ignore[attr-defined]
        for _ in range(sent):
            assert (await one.answer())[0] == 200
        assert (await one.call(operate(put(3, "a", 3))))[0] == 200


async def test_request_under_way_is_answered_when_the_node_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seen: dict[str, int]
) -> None:
    loop = asyncio.get_running_loop()
    held: list[Waiter] = []
    async with node(one_node(tmp_path)) as started:
        one, idle = [Line(*await asyncio.open_connection("127.0.0.1", _port(started))) for _ in range(2)]
        await idle.call(http("POST /v1/sessions", "Content-Type: application/json", body=b'{"nonce":"n"}'))
        attempt, drain = started.attempt, connection.Connection.drain

        def hold(command: Any, size: int, waiter: Waiter) -> None:
            held.append(waiter)
            attempt(command, size, ordered)

        def draining(self: connection.Connection) -> asyncio.Future[None] | None:
            waits = drain(self)
            if waits is not None:  # not before the node waits for it
                loop.call_soon(held[0].set_result, ordered.result())
            return waits

        ordered: asyncio.Future[Any] = loop.create_future()
        monkeypatch.setattr(started, "attempt", hold)
        monkeypatch.setattr(connection.Connection, "drain", draining)
        answer = asyncio.create_task(one.call(operate(put(1, "a", 1))))
        await ordered
    assert seen["hot"] == 1
    assert (await answer)[1]["results"][0]["code"] == "NOT_FOUND"
    async with asyncio.timeout(WAIT_S):
        assert await one.reader.read() == await idle.reader.read() == b""
    one.writer.close()
    idle.writer.close()


@pytest.mark.parametrize(
    ("failing", "faults", "wanted"),
    [
        # Behind the answers of two.
        ([(RequestTimes, "observe")], 2, [200, 200, 200, 200]),
        # The answers of two, and the refusal of the first of them.
        ([(UsualAnswers, "written"), (exchange, "written")], 3, [200, 200, 500, 500]),
    ],
)
async def test_fault_at_the_end_of_a_request_ends_it_once_and_leaves_nobody_else_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: list[tuple[Any, str]], faults: int, wanted: list[int]
) -> None:
    usages, left = list[Any](), [0]
    begin = HotRequest.begin

    def noted(self: HotRequest, *how: Any) -> None:
        usages.append(self._exchange.usage)
        begin(self, *how)

    def failing_first(whole: Any) -> Any:
        def called(*given: Any, **named: Any) -> Any:
            if left[0]:
                left[0] -= 1
                raise OSError("no room")
            return whole(*given, **named)

        return called

    monkeypatch.setattr(HotRequest, "begin", noted)
    for owner, name in failing:
        monkeypatch.setattr(owner, name, failing_first(getattr(owner, name)))
    async with node(one_node(tmp_path)) as started:
        await started.submit(c.DeclareTable("rows", "resident", 2**30), 64)
        lines = [Line(*await asyncio.open_connection("127.0.0.1", _port(started))) for _ in wanted]
        left[0] = faults
        for number, one in enumerate(lines):
            headers = ("Content-Type: application/json", f'Idempotency-Key: "{number}"')
            one.writer.write(http(f"PUT /v1/tables/rows/rows/{number}", *headers, body=b"1"))
        heads = []
        for one in lines:
            async with asyncio.timeout(WAIT_S):
                came = await one.reader.readuntil(b"\r\n\r\n")
                one.writer.write(LAST)
                came += await one.reader.read(-1)
            heads.append([int(status) for status in re.findall(rb"HTTP/1\.1 (\d+) ", came)])
            one.writer.close()
    assert sorted(heads) == [[status, 404] for status in wanted]
    assert left == [0]
    assert len(usages) == len(wanted)
    assert not any(usage.requests for usage in usages)
