"""Slow and malicious clients against a real node process, while a well-behaved client goes on being served.

Each attack is held until the node has ended it or the well-behaved client has been answered many times beside it.
"""

from __future__ import annotations

import asyncio
import io
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import aiohttp
import msgspec
import pytest

from oncegate.gateway.local.cluster import LocalCluster
from tests.gateway.http_contract import operations, put

CONNECTIONS_MAX = 48
FLAGS = (
    "--connections-max", str(CONNECTIONS_MAX), "--headers-ms-max", "1500", "--body-ms-max", "1500",
    "--idle-ms-max", "4000", "--unsent-ms-max", "1000", "--receiving-bytes-max", str(8 * 2**20),
)  # fmt: skip
ANSWERS = 20
WAIT_S = 30.0

Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    directory: Path = tmp_path_factory.mktemp("abused")
    with LocalCluster(directory, 1, flags=FLAGS) as started:
        started.start()
        started.wait_ready()
        yield started


class Witness:
    """A client that behaves: each answer must be the right one, whatever happens beside it."""

    def __init__(self, http: aiohttp.ClientSession, client_id: str) -> None:
        self._http = http
        self._client_id = client_id
        self.served = 0

    async def once(self) -> None:
        number = self.served + 1
        operation = {"sequence": number, "op": "increment", "table": "rows", "key": self._client_id, "by": 1}
        body = operations(self._client_id, operation, first_incomplete=number)
        async with self._http.post("/v1/operations", json=body) as answer:
            found = await answer.json()
            assert answer.status == 200, found
            assert found["results"][0]["value"] == number
        self.served = number

    async def is_served(self) -> bool:
        """Tell whether a request is answered with 200 now."""
        async with self._http.get("/livez") as answer:
            return answer.status == 200

    async def declare(self, table: str, kind: str) -> None:
        async with self._http.put(f"/v1/tables/{table}", json={"kind": kind}) as declared:
            assert declared.status == 200

    async def served_beside(self, count: int = ANSWERS) -> None:
        """Return when that many more requests have been answered."""
        for _ in range(count):
            async with asyncio.timeout(WAIT_S):
                await self.once()


@asynccontextmanager
async def witness(node: LocalCluster) -> AsyncIterator[Witness]:
    async with aiohttp.ClientSession(base_url=node.endpoints[0]) as http:
        async with http.post("/v1/sessions", json={"nonce": f"witness-{time.monotonic_ns()}"}) as opened:
            good = Witness(http, (await opened.json())["client_id"])
        await good.declare("rows", "resident")
        yield good


async def _answer(stream: Stream, *, expected: bytes = b"") -> tuple[int, dict[str, object]]:
    """Read a whole answer, in whose head ``expected`` stands: status and problem."""
    async with asyncio.timeout(WAIT_S):
        head = await stream[0].readuntil(b"\r\n\r\n")
        assert expected in head
        length = next(int(line.split()[1]) for line in head.splitlines() if line.lower().startswith(b"content-length"))
        return int(head.split()[1]), json.loads(await stream[0].readexactly(length))


async def _ended(stream: Stream) -> None:
    """Return when the node has ended the connection."""
    async with asyncio.timeout(WAIT_S):
        try:
            while await stream[0].read(65536):
                pass
        except ConnectionError:
            pass


@asynccontextmanager
async def _many(node: LocalCluster, count: int, sent: bytes = b"") -> AsyncIterator[list[Stream]]:
    """Open that many connections and send the same on each."""
    member = node.members[0]
    streams = [await asyncio.open_connection(member.host, member.http_port) for _ in range(count)]
    try:
        for _, writer in streams:
            writer.write(sent)
        yield streams
    finally:
        for _, writer in streams:
            writer.transport.abort()


_POST = b"POST /v1/operations HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"


async def _drip(streams: list[Stream], piece: Callable[[int], bytes]) -> None:
    """Send a piece on each connection again and again until cancelled or all are closed."""
    turn = 0
    while any(not writer.transport.is_closing() for _, writer in streams):
        turn += 1
        for _, writer in streams:
            if not writer.transport.is_closing():
                writer.write(piece(turn))
        await asyncio.sleep(0.01)


async def test_headers_that_never_end_are_ended(node: LocalCluster) -> None:
    async with witness(node) as good, _many(node, 8, b"GET /livez HTTP/1.1\r\nHost: localhost\r\n") as slow:
        # One byte at a time of one header line: within every limit but time.
        drip = asyncio.create_task(_drip(slow, lambda turn: b"a" if turn > 1 else b"X: "))
        await good.served_beside()
        await asyncio.gather(*map(_ended, slow))
        drip.cancel()


async def test_endless_headers_are_refused_while_they_arrive(node: LocalCluster) -> None:
    headers = b"".join(b"X-%d: y\r\n" % i for i in range(5000))
    async with witness(node) as good, _many(node, 4, b"GET /livez HTTP/1.1\r\n" + headers) as endless:
        for stream in endless:
            status, problem = await _answer(stream)
            assert (status, problem["code"]) == (400, "BAD_REQUEST")
        await good.served_beside()


async def test_bodies_that_trickle_are_refused_and_hold_up_nobody(node: LocalCluster) -> None:
    async with witness(node) as good, _many(node, 16, _POST % 1_000_000) as slow:
        drip = asyncio.create_task(_drip(slow, lambda _: b" "))
        await good.served_beside()
        for stream in slow:
            status, problem = await _answer(stream)
            assert (status, problem["code"], problem["outcome"]) == (504, "TIMEOUT", "not_applied")
        drip.cancel()


async def test_large_bodies_that_stall_make_room_for_large_bodies_that_do_not(node: LocalCluster) -> None:
    half_sent = _POST % 4_000_000 + b" " * 3_000_000  # 12 MB of 8 MiB: some must give way
    async with witness(node) as good, _many(node, 4, half_sent) as stalled:
        codes = set()
        for stream in stalled:
            status, problem = await _answer(stream)
            codes.add((status, problem["code"]))
        assert codes <= {(429, "OVERLOADED"), (504, "TIMEOUT")}
        assert (429, "OVERLOADED") in codes
        await good.served_beside(3)


async def test_crowd_of_idle_connections_displaces_itself_and_not_a_client_at_work(node: LocalCluster) -> None:
    async with witness(node) as good:
        await good.once()
        async with _many(node, 4 * CONNECTIONS_MAX) as crowd:
            await good.served_beside()
            async with witness(node) as newcomer:
                await newcomer.served_beside(3)
            await asyncio.gather(*map(_ended, crowd[: 2 * CONNECTIONS_MAX]))


async def test_connections_that_are_all_at_work_leave_a_typed_refusal_for_the_next(node: LocalCluster) -> None:
    async with witness(node) as good:
        await good.declare("events", "stream")
        async with AsyncExitStack() as stack:
            watch = b"GET /v1/flows/events/watch HTTP/1.1\r\nHost: localhost\r\n\r\n"
            for _ in range(CONNECTIONS_MAX):
                ((reader, _),) = await stack.enter_async_context(_many(node, 1, watch))
                async with asyncio.timeout(WAIT_S):
                    assert (await reader.readline()).startswith(b"HTTP/1.1 200")
            (refused,) = await stack.enter_async_context(_many(node, 1))
            status, problem = await _answer(refused, expected=b"\r\nConnection: close\r\n")
            assert (status, problem["code"]) == (429, "OVERLOADED"), node.log_tail("n1")
        async with asyncio.timeout(WAIT_S):
            while not await good.is_served():
                pass


async def test_client_that_reads_no_answer_is_cut_off(node: LocalCluster) -> None:
    async with witness(node) as good, aiohttp.ClientSession(base_url=node.endpoints[0]) as http:
        async with http.post("/v1/sessions", json={"nonce": "large"}) as opened:
            client_id = (await opened.json())["client_id"]
        body = operations(client_id, *(put(i, f"large-{i:02}", "x" * 200_000) for i in range(1, 16)))
        async with http.post("/v1/operations", data=io.BytesIO(json.dumps(body).encode())) as answer:
            assert answer.status == 200
        async with _many(node, 3) as deaf:
            request = b"GET /v1/tables/rows/rows?prefix=large&limit=15 HTTP/1.1\r\nHost: localhost\r\n\r\n"
            for reader, writer in deaf:
                writer.transport.pause_reading()  # type: ignore[attr-defined]
                writer.write(request * 10)  # 30 MB: more than any socket buffer holds
                assert not reader.at_eof()
            await good.served_beside()
            async with asyncio.timeout(WAIT_S):
                while (await _connections(http)) > 2:
                    await good.once()


async def _connections(http: aiohttp.ClientSession) -> int:
    """Return how many connections the node says it has."""
    async with http.get("/metrics") as answer:
        text = await answer.text()
    return next(int(float(line.split()[1])) for line in text.splitlines() if line.startswith("oncegate_connections "))


async def test_pipelined_flood_on_one_connection_holds_up_nobody(node: LocalCluster) -> None:
    async with witness(node) as good, _many(node, 2) as flood:
        for reader, writer in flood:
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            writer.write(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n" * 50_000)
            assert not reader.at_eof()
        await good.served_beside()


async def test_idle_connection_is_closed(node: LocalCluster) -> None:
    async with _many(node, 1, b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n") as (stream,):
        async with asyncio.timeout(WAIT_S):
            assert (await stream[0].readline()).startswith(b"HTTP/1.1 200")
        await _ended(stream)


def test_node_outlived_all_of_it(node: LocalCluster) -> None:
    assert node.is_running("n1")
    assert "ERROR" not in node.log_tail("n1", 1000).upper().replace("ERRORS", "")


async def test_requests_for_millions_of_objects_do_not_cost_a_leader_its_office(tmp_path: Path) -> None:
    """Each byte of a msgpack body may ask for an object: 8 MiB of them, from several senders at once."""
    body = msgspec.msgpack.encode(operations("0" * 15 + "1", put(1, "k", msgspec.Raw(_DENSE))))
    headers = {"Content-Type": "application/vnd.oncegate+msgpack"}
    with LocalCluster(tmp_path, 3) as cluster:
        cluster.start()
        cluster.wait_ready()
        leader = cluster.leader()
        endpoint = next(one.http for one in cluster.members if one.node_id == leader)
        async with aiohttp.ClientSession(base_url=endpoint) as http:

            async def term() -> int:
                async with http.get("/v1/cluster") as answer:
                    state = await answer.json()
                assert state["leader"] == leader
                found: int = state["term"]
                return found

            async def attack() -> None:
                for _ in range(3):
                    async with http.post("/v1/operations", data=io.BytesIO(body), headers=headers) as answer:
                        assert answer.status == 413

            before = await term()
            attacks = [asyncio.create_task(attack()) for _ in range(4)]
            while not all(one.done() for one in attacks):
                async with http.get("/livez") as answer:
                    assert answer.status == 200
            await asyncio.gather(*attacks)
            assert await term() == before


_DENSE = b"\xdd" + (8 * 2**20 - 300).to_bytes(4, "big") + b"\x80" * (8 * 2**20 - 300)
