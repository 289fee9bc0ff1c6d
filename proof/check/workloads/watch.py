"""Watches and scans: every acknowledged change is told once and in order, and a scan is the state at its commit.

Two workers watch, one all rows and one a prefix, through the SDK. They are cut after a random number of changes and go
on from their last commit number at another node, as a program does that is started again. The others write, and scan
the table a few rows at a time while it changes. They write single rows and transactions; some rows end by themselves,
with their time or with their session. What a watch has told between two commit numbers, and that it has told all that
was between them, is one event ``told`` of the history; a past that no node keeps begins another one.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import aclosing
from itertools import count
from typing import Any, Final, NamedTuple

from oncegate.gateway.client import Code, OncegateError
from oncegate.gateway.client.paths import ROWS
from oncegate.gateway.machine.ending import SESSION_END
from oncegate.proof.check.checks import LOST, Findings, acknowledged, is_final, refused
from oncegate.proof.check.workload import FINAL_S, SDK_S, Worker, Workload, World
from oncegate.proof.lincheck import Event, Operation, Result, operations
from oncegate.rifl.ids import LEASE_MS_MIN

KEYS: Final = tuple(f"{letter}{number}" for letter in "ab" for number in range(6))
PREFIXES: Final = ("", "a")
"""What each of the watchers watches."""
CUT_MEAN: Final = 15
"""After so many changes, on average, a watcher ends and goes on elsewhere."""
PAGE_ROWS: Final = 3
WRITES_MAX: Final = 4
"""Writes of a transaction."""
TTLS_MS: Final = (50, 300)


class WatchCompleteness(Workload):
    """Two workers watch, the others write and scan."""

    name = "watch"
    proves = "watchers that are cut and moved see each change once and in order; a scan is the state at its commit"
    table = "watched"
    keys = KEYS
    lease_ms = LEASE_MS_MIN

    def __init__(self) -> None:
        self._values = count(1)
        self._positions: dict[int, int] = {}

    async def run_process(self, worker: Worker) -> None:
        if worker.process < len(PREFIXES):
            while worker.goes_on():
                await self._watch(worker, 1 + int(worker.random.expovariate(1 / CUT_MEAN)))
        else:
            await super().run_process(worker)
            if await worker.has_session(self.lease_ms):
                await worker.close_session()  # what is bound to it need not wait for the end of its lease

    async def step(self, worker: Worker) -> None:
        dice = worker.random.random()
        if dice < 0.1:
            await self._scan(worker)
        elif dice < 0.12:
            await worker.close_session()
        elif dice < 0.125:
            await asyncio.sleep(worker.random.uniform(0.5, 1.5) * self.lease_ms / 1000)
        elif dice < 0.35:
            await self._transaction(worker)
        else:
            f, operation = self._write(worker)
            await worker.write(operation, f, operation.get("value"), answer=_commit)

    def _write(self, worker: Worker) -> tuple[str, dict[str, Any]]:
        """Return a write, and its name in the history: a row that is held ends by itself."""
        random = worker.random
        operation: dict[str, Any] = {"table": self.table, "key": random.choice(KEYS)}
        if random.random() < 0.2:
            return "delete", {"op": "delete", **operation}
        operation |= {"op": "put", "value": next(self._values)}
        if random.random() < 0.6:
            return "put", operation
        time, bound = {"ttl_ms": random.choice(TTLS_MS)}, {"bound": True}
        return "hold", {**operation, **random.choice((time, bound, {**time, **bound}))}

    async def _transaction(self, worker: Worker) -> None:
        random = worker.random
        writes = [self._write(worker) for _ in range(random.randint(2, WRITES_MAX))]
        operation: dict[str, Any] = {"op": "transaction", "writes": [one for _, one in writes]}
        if random.random() < 0.3:
            operation["conditions"] = [{"table": self.table, "key": random.choice(KEYS), "if": {"present": True}}]
        argument = [[f, one["key"], one.get("value")] for f, one in writes]
        await worker.write(operation, "transaction", argument, key="many", answer=_commit)

    async def _watch(self, worker: Worker, most: int, until: int | None = None) -> None:
        """Watch until ``most`` changes were told, or commit number ``until`` is reached, or it takes too long."""
        watcher, seen = worker.process, list[list[Any]]()
        start = self._positions.get(watcher)
        recorded = worker.begin("told", PREFIXES[watcher], start)
        async with worker.world.client(worker.random.randrange(9)) as client:
            watch = client.watch(self.table, prefix=PREFIXES[watcher], from_commit=start)
            try:
                async with asyncio.timeout(SDK_S), aclosing(aiter(watch)) as changes:
                    while len(seen) < most and (until is None or (watch.commit or 0) < until):
                        change = await anext(changes)
                        start = change.version - 1 if start is None else start
                        value = None if change.deleted else change.value
                        seen.append([change.version, change.key, value, change.until, change.cause])
            except TimeoutError:
                pass  # nothing has changed
            except OncegateError as failure:
                if failure.code is Code.RETENTION_EXCEEDED:
                    self._positions.pop(watcher, None)
                    recorded.fail(failure.code)
                    return
        end = watch.commit if start is not None else None
        if end is None or start is None or end < start:
            recorded.fail("nothing was told")
            return
        self._positions[watcher] = end
        # What it left in the middle of is told again, as a whole, by the watch that follows.
        recorded.ok([start, end, [change for change in seen if change[3] <= end]])

    async def _scan(self, worker: Worker) -> None:
        recorded = worker.begin("scan", "all")
        async with worker.world.client(worker.random.randrange(9)) as client:
            scan = client.rows(self.table, page_rows=PAGE_ROWS, reverse=worker.random.random() < 0.5)
            try:
                rows = [[row.key, row.value] async for row in scan]
            except OncegateError as failure:
                recorded.fail(failure.code)
                return
        recorded.ok([scan.commit, sorted(rows)])

    async def finish(self, world: World) -> None:
        asked = {"rows": [{"table": self.table, "key": key} for key in KEYS]}

        async def stays() -> bool:
            rows = (await world.insist("POST", ROWS, asked)).body["rows"]
            return not any(row and ("ends_ms" in row or "owner" in row) for row in rows)

        await world.wait(stays, FINAL_S, "all rows that end have ended")
        await super().finish(world)
        reply = await world.insist("GET", "/v1/cluster")
        last = int(reply.body["commit"])
        for watcher in range(len(PREFIXES)):
            worker = Worker(world, watcher, float("inf"), world.random(f"drain {watcher}"))

            async def there(worker: Worker = worker, watcher: int = watcher) -> bool:
                if self._positions.get(watcher, last) < last:
                    await self._watch(worker, 10**9, last)
                return self._positions.get(watcher, last) >= last

            await world.wait(there, 2 * FINAL_S, f"watcher {watcher} has reached commit {last}")

    def check(self, history: Sequence[Event]) -> list[Result]:
        found = operations(history)
        return [_complete(found), _together(found), _ends(found), _scans(found)]


def _commit(result: Mapping[str, Any]) -> Any:
    """Return the commit number of an operation, of a transaction that of its first write."""
    return result["writes"][0]["commit"] if result.get("writes") else result["commit"]


class _Change(NamedTuple):
    """A change as a watch has told it: ``value`` None is a deletion, ``cause`` says why if no operation has done it."""

    commit: int
    key: str
    value: Any
    until: int
    cause: str


class _Told(NamedTuple):
    """What a watch has told of the changes above ``start``, up to ``end``."""

    op: Operation
    prefix: str
    start: int
    end: int
    changes: list[_Change]


class _Write(NamedTuple):
    """A write that was sent, alone or as one of a transaction's; ``commit`` is 0 unless it was acknowledged."""

    op: Operation
    f: str
    key: str
    value: Any
    commit: int


def _told(found: Sequence[Operation]) -> list[_Told]:
    return [
        _Told(op, op.key, op.result[0], op.result[1], [_Change(*change) for change in op.result[2]])
        for op in found
        if op.f == "told" and op.status == "ok"
    ]


def _writes(found: Sequence[Operation]) -> Iterator[_Write]:
    for op in found:
        many = op.argument if op.f == "transaction" else [[op.f, op.key, op.argument]]
        if op.f in ("put", "hold", "delete", "transaction"):
            for at, (f, key, value) in enumerate(many):
                yield _Write(op, f, key, value, op.result + at if acknowledged(op) else 0)


def _by_value(found: Sequence[Operation]) -> dict[Any, _Write]:
    return {write.value: write for write in _writes(found) if write.value is not None}


def _complete(found: Sequence[Operation]) -> Result:
    findings = Findings(LOST)
    told = _told(found)
    writes = {write.commit: write for write in _writes(found) if write.commit}
    commits = sorted(writes)
    sent = _by_value(found)
    by_commit: dict[int, tuple[_Change, _Told]] = {}
    for one in told:
        findings.saw(one.prefix, len(one.changes))
        last = one.start
        here: dict[int, _Change] = {}
        for change in one.changes:
            commit, key, value, *_ = change
            if commit <= last:
                findings.violated(key, f"a watch tells commit {commit} of {key} after commit {last}", [one.op])
            last = max(last, commit)
            here[commit] = change
            other = by_commit.setdefault(commit, (change, one))
            if other[0] != change:
                findings.violated(key, f"one watch tells {other[0]}, another {change}", [other[1].op, one.op])
            source = sent.get(value)
            if value is not None and (source is None or source.key != key):
                findings.violated(key, f"{key} = {value} was told and nobody wrote it", [one.op])
            elif source is not None and refused(source.op):
                findings.violated(key, f"{key} = {value} was told and was refused", [source.op, one.op])
        there: dict[str, bool] = {}
        for commit in sorted({*here, *commits[bisect_right(commits, one.start) : bisect_right(commits, one.end)]}):
            write = writes.get(commit)
            if commit in here:
                _, key, value, *_ = here[commit]
                if write is not None and (write.key, write.value) != (key, value):
                    words = f"commit {commit} is {write.key} = {write.value} as acknowledged, and was told as {key}"
                    findings.violated(key, f"{words} = {value}", [write.op, one.op])
                there[key] = value is not None
            elif (
                write is not None and write.key.startswith(one.prefix) and (write.f != "delete" or there.get(write.key))
            ):
                # The deletion of a row that is not there changes nothing; whether it was is known from its last change.
                words = f"{write.f} of {write.key} was acknowledged at {commit}; a watch of {one.start}..{one.end}"
                findings.violated(write.key, f"{words} has not told it", [write.op, one.op])
    if not told:
        findings.undecided("nothing was watched")
    return findings.result()


def _together(found: Sequence[Operation]) -> Result:
    """Check that all changes of a transaction, and no others, were told up to one commit number.

    What ends with one session ends together too.
    """
    findings = Findings("what a transaction has changed is told together")
    sent = _by_value(found)
    by_commit = {write.commit: write for write in _writes(found) if write.commit}
    untils: dict[int, tuple[int, _Told]] = {}
    for one in _told(found):
        for change in one.changes:
            findings.saw(change.key)
            write = by_commit.get(change.commit) if change.value is None else sent.get(change.value)
            if change.cause or (write is not None and write.op.f != "transaction"):
                if change.until != change.commit and change.cause != SESSION_END:
                    findings.violated(change.key, f"{change} is told with others", [one.op])
            elif write is not None:
                until, other = untils.setdefault(write.op.index, (change.until, one))
                if until != change.until:
                    words = f"{change} was told apart from a change of the same transaction, up to {until}"
                    findings.violated(change.key, words, [write.op, other.op, one.op])
    return findings.result()


def _ends(found: Sequence[Operation]) -> Result:
    """Check what each watch says of a row in its order: no row goes twice, and those that end, and only they, end."""
    findings = Findings("each end is told once, and of rows that were to end")
    sent = _by_value(found)
    finals = {op.key: op for op in found if op.f == "read" and op.status == "ok" and is_final(op)}
    for prefix in PREFIXES:
        rows: dict[str, Any] = {}
        known = -1
        for one in sorted((one for one in _told(found) if one.prefix == prefix), key=lambda one: one.start):
            rows = rows if one.start == known else {}
            known = one.end
            for change in one.changes:
                findings.saw(change.key)
                before = rows.get(change.key, change)
                if change.value is None and before is None:
                    findings.violated(change.key, f"{change} tells the end of a row that was gone", [one.op])
                elif change.cause and before is not change and before in sent and sent[before].f != "hold":
                    findings.violated(change.key, f"{change} ends {before}, which was to stay", [one.op])
                rows[change.key] = change.value
        for key, value in rows.items():
            if key in finals and finals[key].result != value:
                words = f"{key} ends as {finals[key].result}, and was told as {value}"
                findings.violated(key, words, [finals[key]])
    return findings.result()


def _scans(found: Sequence[Operation]) -> Result:
    """Check each scan against the changes of the watch of all rows, from the beginning or from an earlier scan on."""
    findings = Findings("a scan is the state at its commit number")
    covers = sorted((one for one in _told(found) if not one.prefix), key=lambda one: one.start)
    scans = [op for op in found if op.f == "scan" and op.status == "ok"]
    state: dict[str, Any] = {}
    known = 0 if covers and covers[0].start == 0 else -1  # the table is empty at first
    at = 0
    for op in sorted(scans, key=lambda op: op.result[0]):
        commit, rows = op.result[0], dict(op.result[1])
        findings.saw("all")
        if len(rows) != len(op.result[1]):
            findings.violated("all", f"a scan at {commit} has a row twice", [op])
        while 0 <= known < commit and at < len(covers) and covers[at].start <= known:
            state |= {one.key: one.value for one in covers[at].changes if known < one.commit <= commit}
            if covers[at].end >= commit:
                known = commit
            else:
                known, at = max(known, covers[at].end), at + 1
        if known == commit:
            expected = {key: value for key, value in state.items() if value is not None}
            for key in sorted(expected.keys() | rows.keys()):
                if expected.get(key) != rows.get(key):
                    words = (
                        f"{key} is {rows.get(key)} in a scan at {commit}, the changes up to it say {expected.get(key)}"
                    )
                    findings.violated(key, words, [op])
        else:  # nothing is known of what was between: this scan is where the next ones are judged from
            while at < len(covers) and covers[at].end < commit:
                at += 1
            state, known = dict(rows), commit
    return findings.result()
