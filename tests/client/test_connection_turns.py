"""Connections are few whatever is asked at once: who waits, in which order, for how long, and where they go then."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from oncegate import Client, Code, DeadlineExceeded, Outcome, Tuning, sync
from oncegate.gateway.client import arguments
from oncegate.gateway.client.connection_turns import FIRST, ConnectionTurns
from oncegate.gateway.client.routing import AttemptFailed, Router
from oncegate.gateway.sweep import NEVER
from oncegate.testing import FakeGateway
from tests.client.answers import Answer, fails, settle
from tests.descriptors import descriptors

ROW = b'{"key":"k","value":1,"version":1}'
APPLIED = b'{"request":"0000000000000001/1","commit":1,"writes":[{"commit":1,"version":1,"value":1}]}'
PATIENT_S = 600.0
"""Longer than a busy machine takes for what a test asks at once."""


class Listening:
    """A server that answers reads and keyed writes in one form, once it may, and notes how it was asked."""

    def __init__(self) -> None:
        self.open = 0
        self.open_most = 0
        self.asked: list[str] = []
        self.held: list[asyncio.Transport] = []
        self.holds = False
        self.chunks = False
        self.endpoint = ""

    def let_go(self, count: int = 1) -> None:
        """Answer what has waited longest."""
        for _ in range(count):
            self.answer(self.held.pop(0))

    def answer(self, transport: asyncio.Transport) -> None:
        body = APPLIED if self.asked[-1].startswith("POST") else ROW
        if self.chunks:
            transport.write(
                b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
            )
        else:
            transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))


class _Served(asyncio.Protocol):
    def __init__(self, server: Listening) -> None:
        self._server = server
        self._came = b""
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        server = self._server
        server.open += 1
        server.open_most = max(server.open_most, server.open)

    def connection_lost(self, error: Exception | None) -> None:
        self._server.open -= 1

    def data_received(self, data: bytes) -> None:
        self._came += data
        head, end, body = self._came.partition(b"\r\n\r\n")
        length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
        if not end or len(body) < int(length or 0):
            return
        self._came = b""
        self._server.asked.append(head.partition(b" HTTP/")[0].decode())
        if self._server.holds:
            self._server.held.append(self._transport)
        else:
            self._server.answer(self._transport)


@asynccontextmanager
async def listening() -> AsyncIterator[Listening]:
    made = Listening()
    server = await asyncio.get_running_loop().create_server(lambda: _Served(made), "127.0.0.1", 0, backlog=1024)
    made.endpoint = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        yield made


async def until(condition: object) -> None:
    assert callable(condition)
    async with asyncio.timeout(60):  # what never comes is told sooner than by the time limit of all tests
        while not condition():
            await asyncio.sleep(0.001)


def sockets(endpoint: str) -> int:
    """Return how many sockets of this process are of connections to a port of it, at either end."""
    ours = {*descriptors().values()}
    port, count = f":{int(endpoint.rpartition(':')[2]):04X}", 0
    for line in Path("/proc/self/net/tcp").read_text().splitlines()[1:]:
        _, local, remote, *_, inode = line.split()[:10]
        count += f"socket:[{inode}]" in ours and (local.endswith(port) or remote.endswith(port))
    return count


# What many calls at once cost


async def test_ten_thousand_reads_and_keyed_writes_at_once_succeed_on_so_many_connections() -> None:
    async with listening() as server, Client(server.endpoint, timeout_s=PATIENT_S) as client:
        before = sockets(server.endpoint)
        reads = [client.get("rows", f"k{number}") for number in range(10_000)]
        writes = [client.increment("rows", "n", idempotency_key=f"e{number}") for number in range(10_000)]
        asked = asyncio.gather(*reads, *writes)
        await until(lambda: len(server.asked) > 1_000)
        assert 0 < sockets(server.endpoint) - before <= 2 * 64  # the server's ends too
        await asked
        assert len(server.asked) == 20_000
        assert server.open_most <= Tuning().connections_max == 64


async def test_keyed_increments_at_once_are_all_done_once_and_stale_reads_spread_over_three_nodes(
    trio: FakeGateway,
) -> None:
    async with Client(trio.endpoints, timeout_s=PATIENT_S, tuning=Tuning(connections_max=8)) as client:
        most = 0

        async def count(request: web.Request) -> Answer:
            nonlocal most
            most = max(most, len(client._connection._pool.busy))
            return None

        for node in trio.nodes:
            node.before = count
        done = await asyncio.gather(*(client.increment("rows", "n", idempotency_key=f"e{one}") for one in range(300)))
        assert sorted(one.value for one in done) == list(range(1, 301))  # type: ignore[type-var]
        assert most == 8
        await asyncio.gather(*(client.get("rows", "n", consistency="stale") for _ in range(300)))
        assert 8 < most <= 3 * 8


def test_threads_of_the_sync_client_share_the_connections() -> None:
    async def serve(done: asyncio.Event, told: asyncio.Future[str], server: list[Listening]) -> None:
        async with listening() as made:
            server.append(made)
            told.set_result(made.endpoint)
            await done.wait()

    async def main() -> None:
        done, server = asyncio.Event(), list[Listening]()
        told: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        serving = asyncio.create_task(serve(done, told, server))
        endpoint = await told

        def threads() -> None:
            with (
                sync.Client(endpoint, timeout_s=PATIENT_S, tuning=Tuning(connections_max=3)) as client,
                ThreadPoolExecutor(30) as pool,
            ):
                assert len(list(pool.map(lambda number: client.get("rows", f"k{number}"), range(300)))) == 300

        await asyncio.to_thread(threads)
        assert len(server[0].asked) == 300
        assert server[0].open_most <= 3
        done.set()
        await serving

    asyncio.run(main())


async def test_requests_through_aiohttp_are_bounded_too() -> None:
    tuning = Tuning(connections_max=3, backoff_first_s=0.001)
    async with listening() as server, Client(server.endpoint, timeout_s=PATIENT_S, tuning=tuning) as client:
        server.chunks = True
        await client.get("rows", "first")  # from now on this endpoint is asked through aiohttp
        server.holds = True
        reads = [asyncio.create_task(client.get("rows", f"k{number}")) for number in range(30)]
        await until(lambda: len(server.held) == 3)
        await settle()
        assert len(server.held) == 3
        assert server.open <= 3
        server.holds = False
        server.let_go(3)
        await asyncio.gather(*reads)
        assert server.open_most <= 3 + 1  # that of the answer which was not read


# Order, deadlines, cancellation


async def test_first_come_is_first_served_whatever_is_asked() -> None:
    async with listening() as server:
        async with Client(server.endpoint, timeout_s=PATIENT_S, tuning=Tuning(connections_max=1)) as client:
            calls = [
                client.increment("rows", "n", idempotency_key=f"e{number}") if number % 3 == 0
                else client.get("rows", f"k{number}")
                for number in range(60)
            ]  # fmt: skip
            await asyncio.gather(*calls)
        expected = [
            "POST /v1/transactions" if one % 3 == 0 else f"GET /v1/tables/rows/rows/k{one}" for one in range(60)
        ]
        assert server.asked == expected


@pytest.mark.parametrize("writes", [False, True], ids=["read", "write"])
async def test_call_that_ran_out_of_time_waiting_for_a_connection_says_so_and_was_not_sent(writes: bool) -> None:
    async with listening() as server:
        server.holds = True
        async with Client(server.endpoint, timeout_s=PATIENT_S, tuning=Tuning(connections_max=2)) as client:
            held = [asyncio.create_task(client.get("rows", f"k{number}")) for number in range(2)]
            await until(lambda: len(server.held) == 2)
            asked, budget = list(server.asked), client._connection.courier.budget._tenths
            late = (
                client.put("rows", "k", 1, idempotency_key="e", timeout_s=0.05)
                if writes
                else client.get("rows", "k", timeout_s=0.05)
            )
            with pytest.raises(DeadlineExceeded, match=r"waited \S+ s for a connection: all 2 to a node") as caught:
                await late
            assert (caught.value.code, caught.value.outcome) == (Code.TIMEOUT, Outcome.NOT_APPLIED)
            assert server.asked == asked
            assert client._connection.courier.budget._tenths == budget  # nor does it use up the retries of others
            server.let_go(2)
            await asyncio.gather(*held)
            server.holds = False
            await client.get("rows", "k")


async def test_call_that_is_cancelled_while_it_waits_leaves_its_turn_to_the_next() -> None:
    async with listening() as server:
        server.holds = True
        async with Client(server.endpoint, timeout_s=PATIENT_S, tuning=Tuning(connections_max=1)) as client:
            reads = [asyncio.create_task(client.get("rows", f"k{number}")) for number in range(4)]
            await until(lambda: server.held)
            reads[1].cancel()
            await settle()
            server.let_go()
            # The turn is handed to the third call; it is cancelled before it runs.
            await until(lambda: reads[0].done())
            reads[2].cancel()
            await until(lambda: len(server.held) == 1)
            server.let_go()
            await until(lambda: reads[3].done() or server.held)
            if server.held:  # the third one had left already
                server.let_go()
            assert (await reads[3]) is not None
            assert [read.cancelled() for read in reads] == [False, True, True, False]
            server.holds = False
            await client.get("rows", "k")


async def test_calls_that_wait_when_the_client_is_left_are_refused_and_were_not_sent() -> None:
    async with listening() as server:
        server.holds = True
        async with Client(server.endpoint, timeout_s=PATIENT_S, tuning=Tuning(connections_max=1)) as client:
            reads = [asyncio.create_task(client.get("rows", f"k{number}")) for number in range(3)]
            await until(lambda: server.held)
        for read in reads[1:]:
            with fails(Code.CONFLICT, Outcome.NOT_APPLIED):
                await read
        reads[0].cancel()
        assert len(server.asked) == 1


# Nodes that fail, sessions, streams


async def test_calls_that_wait_for_a_frozen_node_go_elsewhere_and_were_never_sent_to_it(trio: FakeGateway) -> None:
    tuning = Tuning(connections_max=4, attempt_timeout_s=0.3, backoff_first_s=0.001, backoff_cap_s=0.01)
    async with Client(trio.endpoints, timeout_s=PATIENT_S, tuning=tuning) as client:
        await client.get("rows", "k")
        trio.nodes[0].freeze()
        reads = [client.get("rows", f"k{number}") for number in range(100)]
        assert await asyncio.gather(*reads) == [None] * 100
        sent = {at: sum(count for path, count in node.requests.items() if "/rows/k" in path) for at, node in
                enumerate(trio.nodes)}  # fmt: skip
        assert sent[0] <= 1 + 2 * 4  # as many as it had turns, once more where it was taken for well again
        assert sent[1] + sent[2] >= 100


async def test_renewal_of_a_lease_does_not_wait_behind_reads(hasty: FakeGateway) -> None:
    node, shorten, holds = hasty.nodes[0], hasty.nodes[0].before, asyncio.Event()
    assert shorten is not None
    came: list[str] = []

    async def hold(request: web.Request) -> Answer:
        came.append(request.path)
        if "/rows/" in request.path:
            await holds.wait()
        return await shorten(request)

    tuning = Tuning(connections_max=1)
    async with Client(hasty.endpoints, timeout_s=PATIENT_S, tuning=tuning) as client, client.session():
        node.before = hold
        reads = [asyncio.create_task(client.get("rows", f"k{number}")) for number in range(20)]
        turns = client._connection.courier._turns
        await until(lambda: "/v1/tables/rows/rows/k0" in came)
        await until(lambda: turns._lines[0] and turns._lines[0][0][0] == FIRST)
        at = len(came)
        holds.set()
        await asyncio.gather(*reads)
        assert came[at].endswith("/renew")


async def test_streams_take_no_turn_and_have_a_bound_of_their_own(fake: FakeGateway) -> None:
    tuning = Tuning(connections_max=1, streams_max=2)
    async with Client(fake.endpoints, timeout_s=PATIENT_S, tuning=tuning) as client, client.session() as session:
        watches = [aiter(client.watch("rows", from_commit=0)) for _ in range(3)]
        first = [asyncio.ensure_future(anext(watch)) for watch in watches[:2]]
        await until(lambda: client._connection.streams)
        assert (await session.put("rows", "k", 1)).applied
        assert [change.key for change in await asyncio.gather(*first)] == ["k", "k"]
        assert await client.get("rows", "k") is not None
        with fails(Code.OVERLOADED, Outcome.NOT_APPLIED):
            await anext(watches[2])
        await watches[0].aclose()
        watch = aiter(client.watch("rows", from_commit=0))
        assert (await anext(watch)).key == "k"
        await watch.aclose()
        await watches[1].aclose()


@pytest.mark.parametrize(
    "wrong",
    [
        *({name: 0} for name in ("connections_max", "in_flight_max", "batch_operations_max", "batch_bytes_max")),
        *({name: -1} for name in ("streams_max", "retry_budget", "linger_s", "attempt_timeout_s", "backoff_cap_s")),
        *({"connections_max": wrong} for wrong in (4097, True, 1.5, "64", None)),
        {"backoff_first_s": float("nan")},
    ],
    ids=str,
)
def test_tuning_out_of_its_bounds_is_refused_at_once(wrong: dict[str, Any]) -> None:
    with fails(Code.BAD_REQUEST):
        Client("http://127.0.0.1:1", tuning=Tuning(**wrong))


def test_tuning_is_checked_whole_and_the_defaults_are_within_their_bounds() -> None:
    assert {*arguments._WHOLE, *arguments._SECONDS} == set(Tuning.__struct_fields__)
    assert arguments.tuned(Tuning()) == arguments.tuned(None)
    with fails(Code.BAD_REQUEST):
        arguments.tuned({"connections_max": 64})


# The turns themselves

NODES = ["http://a:1", "http://b:1", "http://c:1"]
actions = st.lists(
    st.tuples(st.sampled_from(["call", "call", "call", "end", "end", "cancel"]), st.integers(0, 30), st.booleans()),
    max_size=60,
)
ends = st.sampled_from(["answered", "leads", "unreachable", "refused"])


class StillLoop(asyncio.SelectorEventLoop):
    """A loop whose time passes when the test says so."""

    now = 1.0

    def time(self) -> float:
        return self.now


@given(actions=actions, how=st.lists(ends, min_size=60, max_size=60), most=st.integers(1, 3), leader=st.booleans())
def test_turns_are_bounded_in_order_and_never_left_unused(
    actions: list[tuple[str, int, bool]], how: list[str], most: int, leader: bool
) -> None:
    loop = StillLoop()
    try:
        loop.run_until_complete(_play(loop, actions, how, most, prefer_leader=leader))
    finally:
        loop.close()


@pytest.mark.parametrize("seed", range(60))
def test_so_are_they_on_long_walks(seed: int) -> None:
    dice = random.Random(seed)
    actions = [
        (dice.choice(("call", "call", "call", "end", "end", "cancel")), dice.randint(0, 30), dice.random() < 0.5)
        for _ in range(60)
    ]
    how = [dice.choice(("answered", "leads", "unreachable", "refused")) for _ in range(60)]
    loop = StillLoop()
    try:
        loop.run_until_complete(_play(loop, actions, how, dice.randint(1, 3), prefer_leader=dice.random() < 0.5))
    finally:
        loop.close()


async def _play(
    loop: StillLoop, actions: list[tuple[str, int, bool]], how: list[str], most: int, *, prefer_leader: bool
) -> None:
    router = Router(NODES, prefer_leader=prefer_leader)
    turns = ConnectionTurns(loop, router, most)
    waiting: dict[float, tuple[asyncio.Task[str | None], bool]] = {}
    under_way: list[str] = []
    for step, (action, at, anywhere) in enumerate(actions):
        loop.now += at / 100
        now = loop.now
        if action == "call":
            endpoint = turns.take(now, anywhere=anywhere)
            if endpoint is not None:
                assert not waiting  # nobody is overtaken
                under_way.append(endpoint)
            else:
                began = step - 0.5 if at < 20 else step - at  # made again, it is older than those that came since
                while began in waiting:
                    began -= 0.01
                waiting[began] = asyncio.create_task(turns.wait(began, NEVER, anywhere=anywhere)), anywhere
        elif action == "end" and under_way:
            endpoint = under_way.pop(at % len(under_way))
            match how[step]:
                case "answered":
                    router.answered(endpoint, None, now)
                case "leads":
                    router.answered(endpoint, endpoint, now)
                case "unreachable":
                    router.unreachable(endpoint, now)
                case _:
                    router.refused(endpoint, NODES[at % 3], now)
            turns.give_back(endpoint)
        elif action == "cancel" and waiting:
            waiting.pop(sorted(waiting)[at % len(waiting)])[0].cancel()
        else:
            continue
        await settle()
        came = {began: waiting.pop(began) for began, (task, _) in [*waiting.items()] if task.done()}
        for began, (task, kind) in came.items():
            assert not [older for older, (_, other) in waiting.items() if other == kind and older < began]
            given_to = task.result()
            assert given_to is not None
            under_way.append(given_to)
        used = Counter(under_way)
        assert max(used.values(), default=0) <= most
        if action != "cancel":  # whoever waits could not have been sent anywhere
            for kind in {kind for _, kind in waiting.values()}:
                tries = len(NODES) if kind or not prefer_leader else 1
                assert all(used[router.pick(now, anywhere=kind)] == most for _ in range(tries))
    turns.close()
    assert [await task for task, _ in waiting.values()] == [None] * len(waiting)


async def test_call_that_gets_its_turn_as_its_deadline_passes_has_one_or_the_other() -> None:
    loop, router = asyncio.get_running_loop(), Router(NODES[:1])
    turns = ConnectionTurns(loop, router, 1)
    assert turns.take(loop.time(), anywhere=False) == NODES[0]
    late = asyncio.create_task(turns.wait(1.0, loop.time(), anywhere=False))
    with pytest.raises(AttemptFailed, match="waited"):
        await late
    lucky = asyncio.create_task(turns.wait(2.0, NEVER, anywhere=False))
    await settle()
    turns.give_back(NODES[0])
    lucky.cancel()  # in the turn of the loop in which it got it
    with pytest.raises(asyncio.CancelledError):
        await lucky
    assert turns.take(loop.time(), anywhere=False) == NODES[0]


@pytest.mark.parametrize("others", [1, 3])
async def test_turn_of_one_who_goes_as_it_comes_is_the_next_ones(others: int) -> None:
    """Also where nobody gives a turn back any more, whoever else has gone or been late meanwhile."""
    loop, router = asyncio.get_running_loop(), Router(NODES[:1])
    turns = ConnectionTurns(loop, router, 1)
    assert turns.take(loop.time(), anywhere=False) == NODES[0]
    waiting = [asyncio.create_task(turns.wait(float(at), NEVER, anywhere=False)) for at in range(others + 1)]
    late = [asyncio.create_task(turns.wait(9.0, loop.time(), anywhere=False)) for _ in range(2)]
    for end in await asyncio.gather(*late, return_exceptions=True):
        assert isinstance(end, AttemptFailed)
    turns.give_back(NODES[0])
    for one in waiting[:others]:
        one.cancel()
    await settle()
    assert waiting[-1].done()
    assert waiting[-1].result() == NODES[0]
    assert (turns._all, turns._taken, turns._gone) == (1, {NODES[0]: 1}, 0)


async def test_calls_that_have_gone_are_not_kept_behind_one_that_waits() -> None:
    loop, router = asyncio.get_running_loop(), Router(NODES[:1])
    turns = ConnectionTurns(loop, router, 1)
    assert turns.take(loop.time(), anywhere=False) == NODES[0]
    stays = asyncio.create_task(turns.wait(0.0, NEVER, anywhere=False))
    for round_ in range(10):
        gone = [asyncio.create_task(turns.wait(1.0 + round_, NEVER, anywhere=False)) for _ in range(100)]
        await settle()
        for task in gone:
            task.cancel()
        await asyncio.gather(*gone, return_exceptions=True)
    assert len(turns._lines[0]) < 200
    turns.give_back(NODES[0])
    assert await stays == NODES[0]
