"""The rows of a cluster in memory, for what recipes ask of a client and of sessions: no sockets, no time that passes.

What the machine does with an operation is said once more here, in a few lines; that a node keeps the same contract is
shown where recipes meet one (tests/client/test_recipes.py).
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import selectors
from collections import Counter, deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from typing import Any, Concatenate, NamedTuple, ParamSpec

import msgspec
import pytest

from oncegate import Code, OncegateError, OperationFailed, Outcome, OutcomeUnknown, Transaction
from oncegate.gateway.client.arguments import key_of, name_of, text
from oncegate.gateway.client.recipes import line
from oncegate.gateway.client.results import Change, Resolution, Row, WriteResult
from oncegate.gateway.wire import Condition, Operation, TakenRow, TransactionWrite, Write
from oncegate.rifl.ids import RequestId

P = ParamSpec("P")
Fate = str | OncegateError
"""``done``; an error: it is refused with it. ``lost``: it is done, and its answer lost; ``late``: it comes later, if at
all; ``stuck`` and ``stuck done``: nothing is heard of it, before or after it is done."""
UNSET = msgspec.UNSET
GONE = OperationFailed(Code.SESSION_EXPIRED, outcome=Outcome.NOT_APPLIED)
FULL = OperationFailed(Code.WINDOW_FULL)
LATE = OutcomeUnknown(Code.TIMEOUT)
TURNS_MAX = 20_000


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


class Stored(NamedTuple):
    """A row; ``owner``: the session that it ends with, ``then``: where it is moved at its end."""

    value: bytes
    version: int
    owner: int | None = None
    ends_ms: int | None = None
    then: str | None = None


class SmallCluster:
    """Tables ``recipes``, ``others`` and ``rows``, with sessions (:meth:`session`) and one client of them."""

    def __init__(self) -> None:
        self.tables: dict[str, dict[str, Stored]] = {"recipes": {}, "others": {}, "rows": {}}
        self.commit = 0
        self.now_ms = 0
        self.kept_from = 0
        """Changes up to this commit number are not kept."""
        self.told_bytes_max = 64 * 1024
        """A value that is longer is left out of the result of a take."""
        self.client: Any = SmallClient(self)
        self.watching = 0
        self.changes: list[tuple[str, Change]] = []
        self.broken: list[OperationFailed] = []
        """What watches that are under way have met."""
        self._something = asyncio.Event()
        self._sessions = 0

    def session(self, lease_ms: int = 60_000) -> Any:
        self._sessions += 1
        return SmallSession(self, self._sessions, lease_ms)

    def names(self, table: str = "recipes") -> list[str]:
        return sorted(self.tables[table])

    def value(self, key: str, table: str = "recipes") -> Any:
        return msgspec.msgpack.decode(self.tables[table][key].value)

    def values(self, table: str = "recipes") -> dict[str, Any]:
        return {key: self.value(key, table) for key in self.names(table)}

    def plant(self, key: str, value: Any, table: str = "recipes", owner: int | None = None) -> int:
        """Put a row there, whoever has written it; return its version."""
        self.commit += 1
        self._set(table, key, Stored(msgspec.msgpack.encode(value), self.commit, owner), self.commit)
        self.wake()
        return self.commit

    def remove(self, key: str, table: str = "recipes") -> None:
        self.commit += 1
        self._set(table, key, None, self.commit)
        self.wake()

    def expire(self, session: Any) -> None:
        """End a session, and the rows that are bound to it."""
        session.ended = True
        self._end(lambda row: row.owner == session.client_id)

    def advance(self, ms: int) -> None:
        """Let cluster time pass."""
        self.now_ms += ms
        self._end(lambda row: row.ends_ms is not None and row.ends_ms <= self.now_ms)

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

    def _end(self, over: Callable[[Stored], bool]) -> None:
        for table, rows in self.tables.items():
            for key, row in sorted(rows.items()):
                if over(row):
                    self.commit += 2
                    self._set(table, key, None, self.commit - 1)
                    if row.then is not None:
                        self._set(table, row.then, Stored(row.value, self.commit), self.commit)
        self.wake()

    def _set(self, table: str, key: str, row: Stored | None, version: int) -> None:
        if row is None:
            self.tables[table].pop(key, None)
        else:
            self.tables[table][key] = row
        value = None if row is None else msgspec.msgpack.decode(row.value)
        self.changes.append((table, Change(key, version, value, row is None, "", version, version)))

    def do(self, operation: Operation, client_id: int) -> dict[str, Any]:
        """Do a transaction or nothing of it; return what its result says."""
        for at, one in enumerate(operation.conditions or ()):
            if not self._holds(one.table, one.key, one.if_):
                return {"applied": False, "failed": f"conditions[{at}]", "code": "CONDITION_FAILED"}
        writes: list[Write] = operation.writes  # type: ignore[assignment]
        for at, write in enumerate(writes):
            if write.if_ and not self._holds(write.table, write.key, write.if_):
                return {"applied": False, "failed": f"writes[{at}]", "code": "CONDITION_FAILED"}
        done = [self._write(write, client_id) for write in writes]
        self.wake()
        return {"applied": True, "writes": tuple(done)}

    def _holds(self, table: Any, key: Any, tests: Any) -> bool:
        row = self.tables[table].get(key)
        ((name, wanted),) = tests.items()
        match name:
            case "absent":
                return row is None
            case "version":
                return wanted == (0 if row is None else row.version)  # type: ignore[no-any-return]
            case "value":
                return row is not None and row.value == bytes(wanted)
        raise NotImplementedError(name)

    def _write(self, write: Write, client_id: int) -> TransactionWrite:
        self.commit += 1
        commit, number = self.commit, f"{self.commit:019d}" if write.numbered is True else ""
        if write.op == "take":
            return TransactionWrite(commit, commit, rows=self._take(write, client_id))
        row = None
        if write.op == "put":
            row = Stored(bytes(write.value), commit, *self._life(write, client_id))
            row = row._replace(then=write.then + number if isinstance(write.then, str) else None)
        self._set(write.table, write.key + number, row, commit)
        return TransactionWrite(commit, commit)

    def _life(self, write: Write, client_id: int) -> tuple[int | None, int | None]:
        ends = self.now_ms + write.ttl_ms if isinstance(write.ttl_ms, int) else None
        return client_id if write.bound is True else None, ends

    def _take(self, write: Write, client_id: int) -> list[TakenRow]:
        rows, taken = self.tables[write.table], list[TakenRow]()
        assert isinstance(write.count, int)
        assert isinstance(write.to, str)
        for key in sorted(key for key in rows if key.startswith(write.key))[: write.count]:
            value, to = msgspec.msgpack.decode(rows[key].value), write.to + key[len(write.key) :]
            value[0] += 1
            packed = msgspec.msgpack.encode(value)
            self.commit += 2
            self._set(write.table, key, None, self.commit - 1)
            moved = Stored(packed, self.commit, *self._life(write, client_id), then=key)
            self._set(write.table, to, moved, self.commit)
            taken.append(TakenRow(to, self.commit, value if len(packed) <= self.told_bytes_max else UNSET))
        return taken


class SmallSession:
    """A session of a small cluster; ``fates`` are of its next operations, ``refusals`` of its next resolutions."""

    def __init__(self, cluster: SmallCluster, client_id: int, lease_ms: int) -> None:
        self.client_id = client_id
        self.ended = False
        self.ends_s = now_s() + lease_ms / 1000
        self.fates: deque[Fate] = deque()
        self.refusals: deque[OncegateError] = deque()
        self.asked: Counter[str] = Counter()
        self.did: list[Operation] = []
        self._cluster = cluster
        self._numbers = 0
        self._results: dict[RequestId, WriteResult] = {}
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

    async def delete(
        self, table: str, key: str, *, if_version: int | None = None, if_value: Any = UNSET
    ) -> WriteResult:
        deleting = Transaction().delete(table, key, if_version=if_version, if_value=if_value)
        return await self._do("delete", deleting.operation)

    async def transact(self, transaction: Transaction) -> WriteResult:
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
        self._late.pop(request, None)
        result = self._results.get(request)
        if result is None:
            return Resolution("sealed")
        return Resolution("applied" if result.applied else "refused", result)

    def arrive(self) -> None:
        """Let what is late come now: what was resolved meanwhile is not taken any more."""
        late, self._late = self._late, {}
        if not self.ended:
            for request, operation in late.items():
                self._done(request, operation)

    def _done(self, request: RequestId, operation: Operation) -> WriteResult:
        said = self._cluster.do(operation, self.client_id)
        result = WriteResult(*request, commit=self._cluster.commit, version=None, value=None, replayed=False,
            memory_ms_left=1, **said)  # fmt: skip
        self._results[request] = result
        return result

    async def _do(self, name: str, operation: Operation) -> WriteResult:
        self.asked[name] += 1
        await asyncio.sleep(0)
        if self.ended:
            raise OperationFailed(Code.SESSION_EXPIRED, outcome=Outcome.NOT_APPLIED)
        for one in [*(operation.writes or ()), *(operation.conditions or ())]:
            _known(self._cluster, one)
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
                    if of == table and named and change.version > at:
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
        rows, prefix = self._cluster.tables[name_of(table)], key_of(prefix)
        while not (there := sum(key.startswith(prefix) for key in rows)):
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


def _row(cluster: SmallCluster, key: str, row: Stored) -> Row:
    return Row(key, msgspec.msgpack.decode(row.value), row.version, cluster.commit)


def _known(cluster: SmallCluster, one: Write | Condition) -> None:
    if one.table not in cluster.tables:
        raise OperationFailed(Code.NOT_FOUND)
