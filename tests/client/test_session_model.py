"""A session against the real machine, over a network that loses, doubles and delays: nothing of it is a socket.

Client, session, sender, queue, doubts and courier are the real ones; the pool of connections is the model's, and time
is the loop's. The account of the machine says what was applied: each write is judged by it, whatever it was told.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter, deque
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar
from urllib.parse import parse_qsl

import msgspec
import pytest

from oncegate import (
    Client,
    Code,
    DeadlineExceeded,
    NeverKnown,
    NotKnownYet,
    OncegateError,
    OperationFailed,
    Outcome,
    OutcomeUnknown,
    PartialFailure,
    RequestId,
    Tuning,
    WriteResult,
)
from oncegate.gateway import answer_values, wire
from oncegate.gateway.answers import request_state
from oncegate.gateway.client.answer_head import AnswerHead
from oncegate.gateway.client.courier import Courier
from oncegate.gateway.client.direct_http import NoAnswer
from oncegate.gateway.http import exchange, range_bodies, request_bodies
from oncegate.gateway.machine import commands as c
from oncegate.gateway.testing.state import SharedState
from oncegate.rifl.ids import SequenceNumber, parse_client_id
from tests.client.small_cluster import StillLoop

Sent = tuple[str, str, dict[str, str], bytes]
"""Method, path, headers and body."""

LEASE_S = 20.0
TUNING = Tuning(
    attempt_timeout_s=1.0,
    backoff_first_s=0.05,
    backoff_cap_s=0.5,
    retry_budget=10_000,
    range_min=3,
    pipeline_min=2,
    batch_operations_max=5,
    range_rows_max=6,
    in_flight_max=3,
)
STEPS = ("write",) * 12 + ("wait",) * 3 + ("cancel", "ask", "long", "trouble", "arrive", "arrive")
TROUBLES = "before", "before", "after", "late", "busy", "forbidden", "later"
REFUSALS = Code.WINDOW_FULL, Code.OVERLOADED, Code.FORBIDDEN
SLACK_S = 1e-3
"""Callers are told their deadlines by sweeps, which may be so late."""


def read(request: bytes) -> Sent:
    """What a request asks."""
    head, _, body = request.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    method, path, _ = first.split(" ")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    return method, path, headers, body


class Nodes:
    """What stands for the nodes and for all connections to them; ``trouble``: how likely an attempt fails."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.loop = asyncio.get_running_loop()
        self.closed = False
        self.trouble = 0.0
        self.fates: deque[str] = deque()
        """Of the next requests, whatever the dice say."""
        self.asked: Counter[str] = Counter()
        self.nonces: dict[str, str] = {}
        """Under which each session was opened: a node may still know the one of a session that has ended."""
        self.reused = False
        self.closed_ids: set[int] = set()
        self.writing = self.writing_max = 0
        """Requests with writes that are under way, and the most there were at once."""
        self.late: list[Sent] = []
        """Copies that are still under way."""
        self.state = SharedState()
        self.state.declare("rows")
        self.state.declare("events", "stream")

    # The pool

    def host(self, endpoint: str) -> str:
        return endpoint

    def idle(self, _: str) -> Nodes:
        return self

    async def ask(self, request: bytes, due: float, finish: Callable[[AnswerHead, bytes], Any]) -> Any:
        is_write = read(request)[1].endswith(("/operations", "/ranges"))
        self.writing += is_write
        self.writing_max = max(self.writing_max, self.writing)
        try:
            return await self._answer(request, due, finish)
        finally:
            self.writing -= is_write

    async def _answer(self, request: bytes, due: float, finish: Callable[[AnswerHead, bytes], Any]) -> Any:
        sent = method, path, headers, body = read(request)
        self.asked[f"{method} {path.rpartition('/')[2].partition('?')[0]}"] += 1
        how = self.dice.choice(TROUBLES) if self.dice.random() < self.trouble else ""
        if self.fates:
            how = self.fates.popleft()
        await self._pass(0.001 + 0.2 * self.dice.random() * (self.dice.random() < 0.3), due)
        if how == "late":
            self.late.append(sent)
            await self._pass(60.0, due)
            raise NoAnswer("none", silent=True)
        if how == "busy":
            status, headers, body = self._refusal(OncegateError(Code.OVERLOADED, "for now"))
        elif how == "forbidden" and path.endswith(("/operations", "/ranges")):
            status, headers, body = self._refusal(OncegateError(Code.FORBIDDEN, "one of them"))
        elif how == "later" and path.endswith("/operations"):
            asked = msgspec.msgpack.decode(body, type=wire.OperationsRequest)
            told = [
                wire.OperationResult(one.sequence, "rejected", code="OVERLOADED", outcome="not_applied", retryable=True)
                for one in asked.operations
            ]
            status, headers, body = 200, {}, msgspec.msgpack.encode(wire.OperationsResponse(told, 0))
        elif how in ("before", "forbidden", "later"):
            raise NoAnswer("lost")
        else:
            status, headers, body = self.serve(*sent)
        if self.dice.random() < self.trouble / 4 and how in ("", "after"):
            self.late.append(sent)  # the network doubles it; of a copy of what a node has refused nobody could know
        if how == "after":
            raise NoAnswer("lost")
        await self._pass(0.001 + self.dice.random() * (self.dice.random() < 0.2), due)
        return finish(AnswerHead(status, len(body), True, headers), body)

    async def _pass(self, s: float, due: float) -> None:
        left = due - self.loop.time()
        await asyncio.sleep(min(s, max(0.0, left)))
        if s >= left:
            raise NoAnswer("none", silent=True)

    # A node

    def arrive(self) -> None:
        """Let what is late come now, in any order."""
        late, self.late, reused = self.late, [], self.reused
        self.dice.shuffle(late)
        for sent in late:
            self.serve(*sent)
        self.reused = reused  # by a copy that comes after the end of its session

    def serve(self, method: str, path: str, headers: dict[str, str], body: bytes) -> tuple[int, dict[str, str], bytes]:
        self.pass_time()
        try:
            made = self._do(method, *_parts(path), headers, body)
        except OncegateError as refusal:
            return self._refusal(refusal)
        encoder: Any = answer_values.MSGPACK if headers.get("accept") == wire.MSGPACK else answer_values.JSON
        told = {wire.H_COMMIT: str(self.state.commit)} if path.endswith("/take-over") else {}
        return (204, {}, b"") if method == "DELETE" else (200, told, encoder.encode(made))

    def pass_time(self) -> None:
        self.state.advance(self.loop.time() - self.state.time_ms / 1000)

    def _do(self, method: str, path: list[str], query: dict[str, str], headers: dict[str, str], body: bytes) -> Any:
        given = msgspec.json.decode(body) if body and headers["content-type"] == wire.JSON else {}
        command: Any
        match method, path:
            case "POST", ["sessions"]:
                command = c.OpenSession(given["nonce"], given["lease_ms"], given["window"])
            case "POST", ["sessions", client, "renew"]:
                command = c.RenewSession(parse_client_id(client), given["epoch"])
            case "POST", ["sessions", client, "take-over"]:
                command = c.TakeOver(parse_client_id(client), given["nonce"])
            case "DELETE", ["sessions", client]:
                command = c.CloseSession(parse_client_id(client), int(query["epoch"]))
                self.closed_ids.add(command.client_id)
            case "POST", ["operations"]:
                command = request_bodies.operate(body, wire.MSGPACK, "", "")
            case "POST", ["tables", table, "ranges"]:
                names = wire.H_EPOCH, wire.H_FIRST_INCOMPLETE, wire.H_FIRST_SEQUENCE
                epoch, ack, first = (int(headers[name.lower()]) for name in names)
                owner = parse_client_id(headers[wire.H_CLIENT.lower()])
                command = range_bodies.range_command(table, owner, epoch, ack, first, body, wire.MSGPACK)
            case "POST", ["requests", client, number, "resolve"]:
                asked = msgspec.convert(given, wire.ResolveRequest)
                command = request_bodies.resolve(parse_client_id(client), SequenceNumber(int(number)), asked)
            case "GET", ["requests", client, number]:
                return request_state(self.state.machine, parse_client_id(client), SequenceNumber(int(number)), "")
            case "GET", ["cluster"]:
                return {"identity": "one"}
            case "GET", ["tables", table]:
                return {"kind": self.state.machine.tables[table].kind}
        told = self.state.apply(command).body
        if path == ["sessions"]:
            self.reused |= self.nonces.setdefault(given["nonce"], told.client_id) != told.client_id
        return told

    def _refusal(self, refusal: OncegateError) -> tuple[int, dict[str, str], bytes]:
        reply = exchange.bare_refusal(refusal)
        return reply.status, {}, reply.body

    def executed(self, key: str, value: object = None) -> list[Any]:
        return [one for one in self.state.executed if one.key == key and value in (None, one.value)]

    def known(self, client_id: int) -> bool:
        self.pass_time()
        return self.state.machine.sessions.get(client_id) is not None


class Write:
    """One call of the application, and how it ended."""

    def __init__(self, row: str, items: list[Any], future: asyncio.Future[Any], due: float) -> None:
        self.row, self.items, self.future, self.due = row, items, future, due
        self.ended_at = 0.0
        future.add_done_callback(self._ended)
        self.ids: tuple[RequestId, ...] = ()

    def _ended(self, _: object) -> None:
        self.ended_at = asyncio.get_running_loop().time()


class Walk:
    """A session, what is asked of it, and what is to be true of each answer."""

    def __init__(self, nodes: Nodes, client: Client, *, renews: bool, in_order: bool) -> None:
        self.nodes, self.dice, self.loop = nodes, nodes.dice, nodes.loop
        self.renews, self.in_order = renews, in_order
        self.writes: list[Write] = []
        self.asked: set[asyncio.Task[None]] = set()
        self.reported: list[Code] = []
        self.expired = 0
        """How often its session was ended."""
        self.session = client.session(
            lease_ms=round(LEASE_S * 1000),
            window=8,
            renew_lost=renews,
            in_order=in_order,
            on_lost=lambda why: self.reported.append(why.code),
        )

    def write(self) -> None:
        dice, number = self.dice, len(self.writes)
        timeout_s = dice.choice((0.3, 3.0, 12.0))
        due = self.loop.time() + timeout_s
        try:
            if dice.random() < 0.75:
                row = f"l{dice.randrange(3)}"
                future: asyncio.Future[Any] = self.session.submit("append", "rows", row, number, timeout_s=timeout_s)
                self.writes.append(Write(row, [number], future, due))
            elif dice.random() < 0.5:
                row = f"e{dice.randrange(3)}"
                future = self.session.submit("put", "events", row, number, timeout_s=timeout_s)
                self.writes.append(Write(row, [number], future, due))
            else:
                rows = [(f"m{number}-{at}", [number, at]) for at in range(dice.randint(1, 9))]
                future = self.loop.create_task(self.session.put_many("events", rows, timeout_s=timeout_s))
                self.writes.append(Write("", [value for _, value in rows], future, due))
        except OperationFailed as failure:
            refused = failure
        else:
            return
        assert refused.outcome is Outcome.NOT_APPLIED
        full = self.session.outstanding or not all(one.future.done() for one in self.writes)
        assert full if refused.code is Code.WINDOW_FULL else not self.lives

    @property
    def lives(self) -> bool:
        return self.renews or not self.expired

    def cancel(self) -> None:
        if open_ := [one for one in self.writes if not one.future.done()]:
            one = self.dice.choice(open_)
            one.future.cancel()

    def ask(self) -> None:
        """Ask what became of a write whose caller was not told."""
        ended = [one for one in self.writes if len(one.items) == 1 and one.row and one.future.done()]
        if doubtful := [one for one in ended if _id(one.future) is not None]:
            self.asked.add(self.loop.create_task(self._ask(self.dice.choice(doubtful))))

    async def _ask(self, one: Write) -> None:
        request = _id(one.future)
        assert request is not None
        try:
            told = await self.session.resolve(request, timeout_s=self.dice.choice((0.5, 20.0)))
        except NotKnownYet:
            assert self.nodes.trouble or self.expired
        except NeverKnown:
            assert not self.nodes.known(request.client_id)
        else:
            done = self.nodes.executed(one.row, one.items[0])
            assert told.executed == bool(done), f"{request} is told to be {told.state}"
            assert told.result is None or [one.commit for one in done] == [told.result.commit]

    def expire(self) -> None:
        self.nodes.pass_time()
        if self.nodes.known(self.session.client_id):
            self.nodes.state.expire(self.session.client_id)
            self.expired += 1

    def check(self) -> None:
        state, session = self.nodes.state, self.session
        self.nodes.pass_time()
        assert session.outstanding <= 8
        assert not self.nodes.reused
        assert len(self.reported) <= self.expired, "lost without reason"
        record = state.machine.sessions.get(session.client_id)
        if record is not None:
            left_ms = record.ends_ms - state.time_ms
            assert session.memory_ms_left <= left_ms + 2, "it believes that the cluster remembers longer"
        elif session.client_id:
            assert self.expired, "its lease has ended"

    def judge(self) -> None:
        """All that is late has arrived: what each caller was told is true."""
        order: dict[str, list[int]] = {}
        for at, made in enumerate(self.nodes.state.executed):
            order.setdefault(made.key, []).append(made.value if isinstance(made.value, int) else at)
        for one in self.writes:
            assert one.future.done()
            if one.row:
                done = [len(self.nodes.executed(one.row, one.items[0]))]
            else:
                done = [len(self.nodes.executed(f"m{first}-{at}")) for first, at in one.items]
            assert max(done) <= 1, f"{one.items} was applied twice"
            assert one.ended_at <= one.due + SLACK_S, "its caller waited for longer than its deadline"
            if one.future.cancelled():
                # The ids of a cancelled range are those of its error, which a task does not hand over.
                assert not one.row or _id(one.future) is not None or not sum(done), "it was sent, and nobody can ask"
                continue
            match one.future.exception():
                case None:
                    result = one.future.result()
                    assert all(done)
                    if isinstance(result, WriteResult):
                        (made,) = self.nodes.executed(one.row, one.items[0])
                        assert (result.client_id, result.sequence) == (made.client_id, made.sequence)
                        assert result.commit == made.commit
                case PartialFailure() as failure:
                    assert failure.applied <= sum(done)
                    assert isinstance(failure, OutcomeUnknown) or failure.applied == sum(done)
                    assert failure.applied + failure.failed == len(done)
                case OperationFailed() as failure:
                    assert isinstance(failure, OutcomeUnknown) == (failure.outcome is Outcome.UNKNOWN)
                    assert failure.outcome is Outcome.UNKNOWN or not any(done), f"{failure} is not true"
                    if failure.code is Code.TIMEOUT:
                        early = one.due - one.ended_at
                        assert early <= TUNING.backoff_cap_s + TUNING.attempt_timeout_s, "given up too early"
                    else:
                        assert self.expired or failure.code in REFUSALS, str(failure)
        for row, items in order.items():
            assert row.startswith("m") or items == sorted(items), f"the order of the calls is not that of {row}"
        if self.in_order:
            of_rows = [made.value for made in self.nodes.state.executed if isinstance(made.value, int)]
            assert of_rows == sorted(of_rows)


def _parts(path: str) -> tuple[list[str], dict[str, str]]:
    way, _, query = path.partition("?")
    return way.split("/")[2:], dict(parse_qsl(query))


def _id(future: asyncio.Future[Any]) -> RequestId | None:
    found: Any = future if future.cancelled() else future.exception()
    if not future.cancelled() and not isinstance(found, OutcomeUnknown):
        return None
    told: RequestId | None = getattr(found, "request_id", None)
    return told


N = TypeVar("N", bound=Nodes)


def run(seed: int, test: Callable[[N, Client], Coroutine[Any, Any, None]], kind: type[N] = Nodes) -> None:  # type: ignore[assignment]
    async def whole() -> None:
        await asyncio.sleep(1.0)
        nodes = kind(seed)
        async with Client(["http://n:1"]) as client:
            link = client._connection
            link.tuning = TUNING
            link.courier = Courier(link.http, nodes, link.router, TUNING, nodes.loop.time)  # type: ignore[arg-type]
            await test(nodes, client)
            assert not link._sessions
        assert asyncio.all_tasks() == {asyncio.current_task()}

    random.seed(seed)
    with asyncio.Runner(loop_factory=StillLoop) as runner:
        runner.run(whole())


@pytest.mark.parametrize("in_order", [False, True])
@pytest.mark.parametrize("renews", [False, True])
@pytest.mark.parametrize("seed", range(10))
def test_what_each_caller_of_a_session_is_told_is_true_and_in_time(seed: int, renews: bool, in_order: bool) -> None:
    async def walk(nodes: Nodes, client: Client) -> None:
        walk, dice = Walk(nodes, client, renews=renews, in_order=in_order), nodes.dice
        async with walk.session as session:
            for _ in range(80):
                match dice.choice(STEPS):
                    case "write":
                        walk.write()
                    case "cancel":
                        walk.cancel()
                    case "ask":
                        walk.ask()
                    case "wait":
                        await asyncio.sleep(dice.choice((0.0, 0.001, 0.1, 1.0)))
                    case "long":
                        if not nodes.trouble:
                            renewals = nodes.asked["POST renew"]
                            await asyncio.sleep(3 * LEASE_S)
                            assert nodes.asked["POST renew"] - renewals <= 7, "half of a lease lies between renewals"
                        if dice.random() < 0.3:
                            walk.expire()
                    case "trouble":
                        nodes.trouble = dice.choice((0.0, 0.0, 0.3, 0.7))
                    case "arrive":
                        nodes.arrive()
                walk.check()
            nodes.trouble = 0.0
            await asyncio.sleep(LEASE_S)
            walk.check()
            if walk.lives:
                assert (await session.put("rows", "last", "last")).applied, "it goes on"
            await asyncio.gather(*walk.asked)
            for one in walk.writes:
                if one.row and _id(one.future) is not None:
                    await walk._ask(one)
            lost = 0 if renews else min(1, walk.expired)
            assert session.lost.is_set() == bool(lost)
            assert len(walk.reported) == (walk.expired if renews else lost)
            assert set(walk.reported) <= {Code.SESSION_EXPIRED}
        assert (nodes.writing_max == 1) if in_order else (1 < nodes.writing_max <= TUNING.in_flight_max)
        nodes.arrive()
        walk.judge()
        assert session.lost.is_set() == bool(lost), "leaving is no loss"
        assert len(walk.reported) == (walk.expired if renews else lost)
        assert not session.outstanding
        assert not nodes.known(session.client_id)

    run(seed, walk)


def test_write_in_doubt_never_comes_behind_a_later_one_of_a_session_in_order() -> None:
    async def walk(nodes: Nodes, client: Client) -> None:
        async with client.session(in_order=True) as session:
            nodes.fates.append("late")
            with pytest.raises(OutcomeUnknown):
                await session.append("rows", "a", 1, timeout_s=0.3)
            await session.append("rows", "b", 2)
            nodes.arrive()
        assert [made.value for made in nodes.state.executed] in ([2], [1, 2])

    run(0, walk)


def test_doubt_about_a_batch_stays_with_each_of_its_parts() -> None:
    async def walk(nodes: Nodes, client: Client) -> None:
        async with client.session() as session:
            nodes.fates.extend(["after", "forbidden", "forbidden", "forbidden"])
            ends = await asyncio.gather(*(session.append("rows", key, 1) for key in "ab"), return_exceptions=True)
            assert len(nodes.state.executed) == 2
            assert [isinstance(end, OutcomeUnknown) for end in ends] == [True, True]

    run(0, walk)


@pytest.mark.parametrize("in_order", [False, True])
def test_rows_of_a_table_whose_kind_nobody_tells_end_at_their_deadline(in_order: bool) -> None:
    async def walk(nodes: Nodes, client: Client) -> None:
        async with client.session(in_order=in_order) as session:
            await session.put("rows", "k", 0)
            nodes.fates.extend(["late"] * 20)
            due = nodes.loop.time() + 0.3
            with pytest.raises(DeadlineExceeded) as late:
                await session.put_many("events", [("a", 1), ("b", 2)], timeout_s=0.3)
            assert nodes.loop.time() <= due + SLACK_S
            assert late.value.outcome is Outcome.NOT_APPLIED
            nodes.fates.clear()
            await session.put_many("events", [("c", 3), ("d", 4)])

    run(0, walk)
