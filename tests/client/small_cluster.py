"""A cluster in this process for what recipes ask of a client and of sessions: no sockets, no time that passes.

What becomes of an operation is the machine's own: a :class:`oncegate.gateway.testing.state.SharedState` is below.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import selectors
from collections import Counter, deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from itertools import count, groupby
from operator import itemgetter
from typing import Any, Concatenate, ParamSpec
from unittest.mock import patch

import msgspec
import pytest

from oncegate import Code, OncegateError, OperationFailed, Outcome, OutcomeUnknown, Transaction
from oncegate.gateway import answer_values, wire
from oncegate.gateway.client.arguments import key_of, name_of, text
from oncegate.gateway.client.recipes import line
from oncegate.gateway.client.results import Change, Resolution, Row, WriteResult
from oncegate.gateway.client.verdicts import write_result
from oncegate.gateway.http import request_bodies
from oncegate.gateway.machine import commands as c
from oncegate.gateway.machine.rows import StoredRow, each_change
from oncegate.gateway.testing.state import SharedState
from oncegate.gateway.wire import Operation, OperationResult
from oncegate.rifl.ids import (
    LEASE_MS_MAX,
    WINDOW_MAX,
    ClientId,
    Fingerprint,
    RequestId,
    SequenceNumber,
    format_client_id,
    parse_client_id,
)
from oncegate.rifl.key_table import NO_TIME

P = ParamSpec("P")
Fate = str | OncegateError
"""``done``; an error: it is refused with it. ``lost``: it is done, and its answer lost; ``late``: it comes later, if at
all; ``stuck`` and ``stuck done``: nothing is heard of it, before or after it is done."""
UNSET = msgspec.UNSET
GONE = OperationFailed(Code.SESSION_EXPIRED, outcome=Outcome.NOT_APPLIED)
FULL = OperationFailed(Code.WINDOW_FULL)
LATE = OutcomeUnknown(Code.TIMEOUT)
TURNS_MAX = 20_000
TABLES = ("recipes", "others", "rows")


class _Clock(selectors.SelectSelector):
    """Nothing comes from outside: whatever all wait for in time is there at once, and else they wait for ever."""

    now_s = 0.0
    turns = 0

    def select(self, timeout: float | None = None) -> list[Any]:
        self.turns += 1
        assert timeout is not None, "all wait for something that does not come"
        assert self.turns < TURNS_MAX, "it goes on for ever"
        self.now_s += max(0.0, timeout)
        return []


class StillLoop(asyncio.SelectorEventLoop):
    """A loop whose time passes when nothing is left to do."""

    def __init__(self) -> None:
        self._still = _Clock()
        super().__init__(self._still)

    def time(self) -> float:
        return self._still.now_s


class _Leaving(set[Any]):
    """What recipes do to its end though nobody waits for it: an error of it would be seen by nobody either."""

    def __init__(self) -> None:
        super().__init__()
        self.failed: list[BaseException] = []

    def discard(self, task: Any) -> None:
        if not task.cancelled() and (failure := task.exception()) is not None:
            self.failed.append(failure)
        super().discard(task)


def in_memory(test: Callable[Concatenate[SmallCluster, P], Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run a test with a small cluster of its own; nothing that it began may be under way when it ends."""

    @functools.wraps(test)
    def whole(*given: P.args, **named: P.kwargs) -> None:
        async def alone() -> None:
            cluster = SmallCluster()
            await test(cluster, *given, **named)
            while leaving:
                await asyncio.sleep(0)
            assert not leaving.failed
            assert not cluster.watching

        assert isinstance(line._leaving, set)  # replaced here: tests of other loops may have left something in it
        with pytest.MonkeyPatch.context() as patch, asyncio.Runner(loop_factory=StillLoop) as runner:
            patch.setattr(line, "_leaving", leaving := _Leaving())
            runner.run(alone())

    signature = inspect.signature(test)
    whole.__signature__ = signature.replace(parameters=[*signature.parameters.values()][1:])  # type: ignore[attr-defined]
    return whole


async def settle() -> None:
    """Let everything go on that need not wait: this loop's time does not pass before."""
    await asyncio.sleep(1e-6)


def now_s() -> float:
    return asyncio.get_running_loop().time()


class SmallCluster:
    """Tables ``recipes``, ``others`` and ``rows``, with sessions (:meth:`session`) and one client of them."""

    def __init__(self) -> None:
        self.state = SharedState()
        for table in TABLES:
            self.state.declare(table)
        self.kept_from = 0
        """Changes up to this commit number are not kept."""
        self.told_bytes_max = c.RESULT_BYTES_MAX
        """A row whose value is longer ends a take, or is told without it."""
        self.client: Any = SmallClient(self)
        self.watching = 0
        self.changes: list[tuple[str, Change]] = []
        self.broken: list[OperationFailed] = []
        """What watches that are under way have met."""
        self._something = asyncio.Event()
        self._planted = count()

    @property
    def tables(self) -> dict[str, dict[str, StoredRow]]:
        return {table: dict(self.state.machine.tables[table].rows.items()) for table in TABLES}

    @property
    def commit(self) -> int:
        return self.state.commit

    def session(self, lease_ms: int = 60_000) -> Any:
        return SmallSession(self, lease_ms)

    def names(self, table: str = "recipes") -> list[str]:
        return sorted(self.tables[table])

    def value(self, key: str, table: str = "recipes") -> Any:
        return msgspec.json.decode(self.tables[table][key].value)

    def values(self, table: str = "recipes") -> dict[str, Any]:
        return {key: self.value(key, table) for key in self.names(table)}

    def plant(self, key: str, value: Any, table: str = "recipes") -> int:
        """Put a row there, whoever has written it; return its version."""
        self._by_others(c.OpKind.PUT, table, key, msgspec.json.encode(value))
        return self.commit

    def remove(self, key: str, table: str = "recipes") -> None:
        self._by_others(c.OpKind.DELETE, table, key)

    def expire(self, session: Any) -> None:
        """End a session, and the rows that are bound to it."""
        session.ended = True
        self.apply(c.CloseSession(session.client_id, 1))

    def advance(self, ms: int) -> None:
        """Let cluster time pass for rows; sessions go on, whose leases are measured by the loop's time."""
        self.state.time_ms += ms
        ends = {table: [*rows] for table, rows in self.tables.items()}
        self.apply(c.EndRows(ends))  # those whose time is over

    def apply(self, command: c.Command) -> Any:
        """Apply a command, tell the watches, and return the body of its answer."""
        with patch.object(c, "RESULT_BYTES_MAX", self.told_bytes_max):
            body = self.state.apply(command).body
        for until, together in groupby(each_change(self.state.machine.changes), itemgetter(1)):
            several = list(together)
            for number, _, table, key, _, after, cause in several:
                told = until if number == several[-1][0] else several[0][0] - 1
                value = None if after is None else msgspec.json.decode(after.value)
                self.changes.append((table, Change(key, told, value, after is None, cause, until, number)))
        self.wake()
        return body

    def cut_watches(self, failure: OperationFailed) -> None:
        """End all watches that are under way."""
        self.broken.append(failure)
        self.wake()

    def wake(self) -> None:
        self._something.set()
        self._something = asyncio.Event()

    async def something(self) -> None:
        """Wait until anything has changed."""
        await self._something.wait()

    def _by_others(self, kind: c.OpKind, table: str, key: str, value: bytes | None = None) -> None:
        op = c.Op(SequenceNumber(0), kind.value, table, key, Fingerprint(0), value)
        self.apply(c.Keyed(1, [c.KeyedOp(f"others-{next(self._planted)}", NO_TIME, op)]))


class SmallSession:
    """A session of a small cluster; ``fates`` are of its next operations, ``refusals`` of its next resolutions."""

    def __init__(self, cluster: SmallCluster, lease_ms: int) -> None:
        opening = c.OpenSession(f"nonce-{cluster.state.machine.sessions.next_id}", LEASE_MS_MAX, WINDOW_MAX)
        self.client_id = parse_client_id(cluster.apply(opening).client_id)
        self.ended = False
        self.ends_s = now_s() + lease_ms / 1000
        self.fates: deque[Fate] = deque()
        self.refusals: deque[OncegateError] = deque()
        self.asked: Counter[str] = Counter()
        self.did: list[Operation] = []
        self._cluster = cluster
        self._numbers = 0
        self._late: dict[RequestId, Operation] = {}

    @property
    def memory_ms_left(self) -> int:
        return max(0, int((self.ends_s - now_s()) * 1000))

    def renew(self, lease_ms: int) -> None:
        self.ends_s = now_s() + lease_ms / 1000

    def transaction(self) -> Transaction:
        return Transaction()

    async def put(self, table: str, key: str, value: Any, *, bound: bool = False) -> WriteResult:
        return await self._do("put", Transaction().put(table, key, value, bound=bound).operation)

    async def delete(self, table: str, key: str, *, if_version: int | None = None) -> WriteResult:
        return await self._do("delete", Transaction().delete(table, key, if_version=if_version).operation)

    async def insert(
        self, table: str, key: str, value: Any, *, bound: bool = False, ttl_ms: int | None = None
    ) -> WriteResult:
        more = Transaction().insert(table, key, value, bound=bound, ttl_ms=ttl_ms)
        return await self._do("insert", more.operation)

    async def increment(self, table: str, key: str, by: int = 1) -> WriteResult:
        whole = await self._do("increment", Transaction().increment(table, key, by).operation)
        return msgspec.structs.replace(whole, value=whole.writes[0].value, writes=())

    async def transact(self, transaction: Transaction, *, idempotency_key: str | None = None) -> WriteResult:
        if idempotency_key is not None:
            told: WriteResult = await self._cluster.client.transact(transaction, idempotency_key=idempotency_key)
            return told
        return await self._do("transact", transaction.operation)

    async def drain(self) -> None:
        self.asked["drain"] += 1
        await asyncio.sleep(0)

    async def resolve(self, request: RequestId) -> Resolution:
        assert isinstance(request, RequestId)
        self.asked["resolve"] += 1
        await asyncio.sleep(0)
        if self.refusals:
            raise self.refusals.popleft()
        told = self._cluster.apply(c.Resolve(self.client_id, request.sequence, 1))
        if told.result is None:
            return Resolution(told.state)
        return Resolution(told.state, self._read(told.result))

    def arrive(self) -> None:
        """Let what is late come now: what was resolved meanwhile is not taken any more."""
        late, self._late = self._late, {}
        if not self.ended:
            for request, operation in late.items():
                with contextlib.suppress(OperationFailed):  # it was sealed
                    self._done(request, operation)

    def _done(self, request: RequestId, operation: Operation) -> WriteResult:
        sent = msgspec.structs.replace(operation, sequence=request.sequence)
        body = wire.OperationsRequest(format_client_id(self.client_id), 1, 1, [sent])
        command = request_bodies.operate(msgspec.msgpack.encode(body), wire.MSGPACK, "", "")
        (told,) = self._cluster.apply(command).results
        if told.status == "rejected":
            raise OperationFailed(Code(told.code), told.detail)
        return self._read(told)

    def _read(self, told: OperationResult) -> WriteResult:
        """Read a result as a client does, from the bytes that a node sends."""
        sent = msgspec.msgpack.decode(answer_values.MSGPACK.encode(told), type=OperationResult)
        return write_result(sent, ClientId(self.client_id), 1)

    async def _do(self, name: str, operation: Operation) -> WriteResult:
        self.asked[name] += 1
        await asyncio.sleep(0)
        if self.ended:
            raise OperationFailed(Code.SESSION_EXPIRED, outcome=Outcome.NOT_APPLIED)
        self.did.append(operation)
        self._numbers += 1
        request = RequestId(self.client_id, self._numbers)  # type: ignore[arg-type]
        fate = self.fates.popleft() if self.fates else "done"
        if isinstance(fate, OncegateError):
            raise fate
        if fate in ("late", "stuck"):
            self._late[request] = operation
        else:
            result = self._done(request, operation)
        if fate.startswith("stuck"):
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError as cut:
                cut.request_ids = (request,)  # type: ignore[attr-defined]
                raise
        if fate in ("late", "lost"):
            raise OutcomeUnknown(Code.TIMEOUT, request_id=request)
        return result


class SmallClient:
    """A client of a small cluster."""

    def __init__(self, cluster: SmallCluster) -> None:
        self._cluster = cluster
        self.asked: Counter[str] = Counter()
        self.page_rows: list[int] = []
        self.fates: deque[OncegateError | Callable[[], object]] = deque()
        """Of its next single reads: an error, or what happens before."""
        self.watch_refusals: deque[OncegateError] = deque()
        self._keyed: dict[str, WriteResult] = {}

    def rows(self, table: str, *, prefix: str = "", page_rows: int = 500) -> SmallScan:
        assert isinstance(page_rows, int)
        self.asked["rows"] += 1
        self.page_rows.append(page_rows)
        return SmallScan(self._cluster, name_of(table), text(prefix, "prefix", 512))

    def watch(
        self, table: str, *, prefix: str = "", key: str | None = None, from_commit: int | None = None
    ) -> AsyncGenerator[Change, None]:
        assert from_commit is None or isinstance(from_commit, int)
        self.asked["watch"] += 1
        prefix = text(prefix, "prefix", 512)
        return self._watch(name_of(table), prefix, key if key is None else key_of(key), from_commit)

    async def _watch(
        self, table: str, prefix: str, key: str | None, from_commit: int | None
    ) -> AsyncGenerator[Change, None]:
        cluster = self._cluster
        met, told = len(cluster.broken), 0
        cluster.watching += 1
        try:
            await asyncio.sleep(0)
            at = cluster.commit if from_commit is None else from_commit
            if self.watch_refusals:
                raise self.watch_refusals.popleft()
            if at < cluster.kept_from:
                raise OperationFailed(Code.RETENTION_EXCEEDED)
            while True:
                while told < len(cluster.changes):
                    of, change = cluster.changes[told]
                    told += 1
                    named = change.key.startswith(prefix) if key is None else change.key == key
                    if of == table and named and change.until > at:
                        yield change
                if met < len(cluster.broken):
                    raise cluster.broken[met]
                await cluster.something()
        finally:
            cluster.watching -= 1

    async def get(self, table: str, key: str) -> Row | None:
        self.asked["get"] += 1
        await asyncio.sleep(0)
        if self.fates:
            if isinstance(fate := self.fates.popleft(), OncegateError):
                raise fate
            fate()
        row = self._cluster.tables[name_of(table)].get(key_of(key))
        return None if row is None else _row(self._cluster, key, row)

    async def turns(self, table: str, *, prefix: str, count: int = 1) -> int:
        self.asked["turns"] += 1
        table, prefix = name_of(table), key_of(prefix)
        while not (there := sum(key.startswith(prefix) for key in self._cluster.tables[table])):
            await self._cluster.something()
        return min(count, there)

    async def transact(self, transaction: Transaction, *, idempotency_key: str) -> WriteResult:
        self.asked["transact"] += 1
        assert isinstance(idempotency_key, str)
        await asyncio.sleep(0)
        if idempotency_key not in self._keyed:
            session = self._cluster.session()
            self._keyed[idempotency_key] = await session.transact(transaction)
        return self._keyed[idempotency_key]


class SmallScan:
    """Rows under a prefix as they are when it begins."""

    def __init__(self, cluster: SmallCluster, table: str, prefix: str) -> None:
        self.commit: int | None = None
        self._cluster, self._table, self._prefix = cluster, table, prefix

    async def __aiter__(self) -> AsyncGenerator[Row, None]:
        await asyncio.sleep(0)
        self.commit = self._cluster.commit
        for row in [*self._found()]:
            yield row

    def _found(self) -> Iterator[Row]:
        for key, row in sorted(self._cluster.tables[self._table].items()):
            if key.startswith(self._prefix):
                yield _row(self._cluster, key, row)


def _row(cluster: SmallCluster, key: str, row: StoredRow) -> Row:
    return Row(key, msgspec.json.decode(row.value), row.version, cluster.commit)
