"""Whether a state agrees with itself, and where two states that should be equal differ first.

Owns: what must hold of any state, whatever log led to it (rows, completion records and flow items tell of the same
commit), which finds damage that checksums cannot show in a state whose log is gone; and the walk through two states in
the order of :func:`oncegate.gateway.machine.state.digest.state_digest`, with a name for each part.
Read next: :mod:`oncegate.rifl.completion`, :mod:`oncegate.gateway.machine.tables`.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from itertools import zip_longest
from typing import Any, NamedTuple, Self

import numpy as np

from oncegate.flows.chunks import RangeChunk, SealedChunk
from oncegate.gateway.machine.flow_state import Flow
from oncegate.gateway.machine.machine import Machine
from oncegate.gateway.machine.row_rule import Remembered
from oncegate.gateway.machine.rows import StoredRow
from oncegate.gateway.machine.tables import ROW_OVERHEAD_BYTES, Table
from oncegate.gateway.machine.transactions import Took, Transacted
from oncegate.proof.verify.findings import Difference, Report
from oncegate.rifl.completion import CompletionRecord
from oncegate.rifl.ids import format_client_id
from oncegate.rifl.key_buckets import Held
from oncegate.rifl.key_table import KEYS_CLIENT


class _Record(NamedTuple):
    """A completion record, the request id it is under, and what it says of its write ``at``; None: nothing more."""

    request: str
    record: CompletionRecord
    at: int = 0
    result: object = None

    def writes(self) -> Iterator[Self]:
        """Yield it for each commit number that its operation has taken: a transaction takes one for each write, and
        two more for each row that it moves.
        """
        result = self.record.result
        if isinstance(result, Transacted) and result.refusal is None:
            told = dict(result.results)
            if isinstance(result, Took):
                # A value that is too large to be remembered says nothing of the row.
                moved = [one for one in result.taken if one.value is not None]
                told |= {one.version - self.record.commit: Remembered(None, one.version, one.value) for one in moved}
            for at in range(result.commits):
                yield self._replace(at=at, result=told.get(at))
        else:
            yield self._replace(result=result)


class StateCheck:
    """The checks of one state, which lies at ``place`` of ``node``; nothing may be applied to it meanwhile.

    Takes memory that follows records, and 8 bytes a row.
    """

    def __init__(self, node: str, place: object, machine: Machine, report: Report) -> None:
        self._node, self._place, self._machine, self._report = node, place, machine, report
        self._by_commit: dict[int, _Record] = {}

    def check(self) -> None:
        """Raise Difference for the first contradiction."""
        for record in self._records():
            self._report.records += 1
            for known in record.writes():
                self._file(known, known.record.commit + known.at)
        versions = array("q")
        for table in self._machine.every_table():
            if table.kind == "resident":
                self._check_table(table, versions)
        self._check_unique(versions)
        self._check_open_items()

    def _file(self, known: _Record, commit: int) -> None:
        if commit > self._machine.commit:
            raise self._difference(f"record of {known.request}", f"a commit up to {self._machine.commit}", commit)
        if (other := self._by_commit.setdefault(commit, known)) is not known:
            raise self._difference(f"commit {commit}", f"one record, {other.request}'s", f"{known.request}'s too")

    def _records(self) -> Iterator[_Record]:
        machine = self._machine
        for session in machine.sessions:
            name = format_client_id(session.client_id)
            for sequence, record in machine.trackers[session.client_id].records.items():
                if not record.sealed:
                    yield _Record(f"{name}/{sequence}", record)
        keys, found = machine.keys, Held()
        for used in keys:
            if (number := keys.number_of(used.tenant, used.key)) != used.number:
                raise self._difference(f"idempotency key {used.number}", f"{used.number} under its name", number)
            found.add(1, used.size)
            yield _Record(f"{format_client_id(KEYS_CLIENT)}/{used.number}", used.record)
        if (told := Held(len(keys), keys.bytes)) != found:
            raise self._difference("idempotency keys", told, found)

    def _check_table(self, table: Table, versions: array[int]) -> None:
        size = count = 0
        ending: set[str] = set()
        for key, row in table.rows.items():
            count += 1
            if row.life is not None:
                ending.add(key)
            size += len(key) + len(row.value) + ROW_OVERHEAD_BYTES
            versions.append(row.version)
            if not 1 <= row.version <= self._machine.commit:
                expected = f"a version in 1..{self._machine.commit}"
                raise self._difference(f"row {table.name}/{key}", expected, row.version)
            known = self._by_commit.get(row.version)
            if known is not None:
                self._check_row(f"row {table.name}/{key}, commit {row.version}", row, known)
        self._report.rows += count
        if count != len(table.rows):
            raise self._difference(f"table {table.name}", f"{len(table.rows)} rows", count)
        if size != table.bytes:
            raise self._difference(f"table {table.name}", f"{table.bytes} bytes", size)
        filed = {key for name, key in self._machine.ends.places() if name == table.name}
        if filed != ending:
            what = f"table {table.name}, rows that end by themselves"
            raise self._difference(what, sorted(ending - filed)[:5], sorted(filed - ending)[:5])

    def _check_row(self, what: str, row: StoredRow, known: _Record) -> None:
        result = known.result
        if not isinstance(result, Remembered):
            return
        if result.refusal is not None:
            raise self._difference(what, f"no row, {known.request} was refused with {result.refusal}", row.value)
        if result.version != row.version:
            raise self._difference(what, f"no row, {known.request} was a read", row.value)
        if result.value != row.value:
            raise self._difference(what, f"{result.value!r}, the result of {known.request}", row.value)

    def _check_unique(self, versions: array[int]) -> None:
        ordered = np.sort(np.frombuffer(versions, np.int64)) if versions else np.empty(0, np.int64)
        twice = ordered[1:][ordered[1:] == ordered[:-1]]
        if not len(twice):
            return
        version = int(twice[0])
        rows = [
            f"{table.name}/{key}"
            for table in self._machine.every_table()
            for key, row in table.rows.items()
            if row.version == version
        ]
        raise self._difference(f"commit {version}", f"one row, {rows[0]}", f"{rows[1]} too")

    def _check_open_items(self) -> None:
        for flow in self._machine.flows.all():
            name = flow.declaration.name
            for commit, item in open_items(flow):
                if not isinstance(item, tuple):
                    continue
                _, _, client_id, sequence = item
                tracker = self._machine.trackers.get(client_id)
                record = None if tracker is None else tracker.find(sequence)
                if record is not None and record.commit != commit:
                    request = f"{format_client_id(client_id)}/{sequence}"
                    raise self._difference(f"open item of {name}, {request}", f"commit {record.commit}", commit)

    def _difference(self, what: str, expected: object, found: object) -> Difference:
        return Difference(self._node, self._place, what, expected, found)


class Unequal(NamedTuple):
    """A part of the state and its two values."""

    what: str
    left: object
    right: object


ABSENT = "nothing"


def first_unequal(left: Machine, right: Machine) -> Unequal | None:
    """Return where two states differ first, None if they are equal."""
    return next(_unequal(left, right), None)


def _unequal(left: Machine, right: Machine) -> Iterator[Unequal]:
    for name in ("commit", "time_ms", "replayed", "identity", "level", "origin"):
        yield from _same(name, getattr(left, name), getattr(right, name))
    yield from _same("next client id", left.sessions.next_id, right.sessions.next_id)
    yield from _same("tables ever declared", left.tables_declared, right.tables_declared)
    names, others = ([(one.name, one.number, one.since) for one in m.every_table()] for m in (left, right))
    yield from _same("tables", names, others)
    yield from _same("dropped tables", list(left.closing), list(right.closing))
    for table in left.every_table():
        yield from _tables(table.name, table, right.table_of(table.name))
    yield from _keyed("session", _sessions(left), _sessions(right))
    for name in ("first", "next", "forgotten_ms", "bytes"):
        yield from _same(f"idempotency keys, {name}", getattr(left.keys, name), getattr(right.keys, name))
    yield from _same("idempotency keys, buckets", left.keys.buckets, right.keys.buckets)
    yield from _keyed(
        "idempotency key", ((used.number, used) for used in left.keys), ((used.number, used) for used in right.keys)
    )
    yield from _same("deleted flows", left.flows.retired.snapshot(), right.flows.retired.snapshot())
    yield from _same("flows", left.flows.names(), right.flows.names())
    for one, other in zip(left.flows.all(), right.flows.all(), strict=True):
        yield from _flows(one, other)


def _tables(name: str, left: Table, right: Table) -> Iterator[Unequal]:
    yield from _same(f"table {name}, kind", left.kind, right.kind)
    yield from _same(f"table {name}, quota_bytes", left.quota_bytes, right.quota_bytes)
    yield from _keyed(f"row {name}/", left.rows.items(), right.rows.items(), joined="")
    yield from _same(f"table {name}, bytes", left.bytes, right.bytes)
    yield from _same(f"table {name}, number of rows", len(left.rows), len(right.rows))
    yield from _same(f"table {name}, rows that end", left.ending, right.ending)


def _sessions(machine: Machine) -> Iterator[tuple[int, Any]]:
    for session in sorted(machine.sessions, key=lambda session: session.client_id):
        yield session.client_id, (session, machine.trackers[session.client_id].dump())


def _flows(left: Flow, right: Flow) -> Iterator[Unequal]:
    name = left.declaration.name
    yield from _same(f"flow {name}, declaration", left.declaration, right.declaration)
    for what in ("version", "altered_ms"):
        yield from _same(f"flow {name}, {what}", getattr(left, what), getattr(right, what))
    yield from _same(f"flow {name}, fences", left.consumers.fences, right.consumers.fences)
    yield from _same(f"flow {name}, consumers", left.consumers.snapshot(), right.consumers.snapshot())
    yield from _same(f"flow {name}, first batch", left.batches.first, right.batches.first)
    yield from _same(f"flow {name}, newest batch", left.batches.last, right.batches.last)
    for number in range(left.batches.first, left.batches.last + 1):
        yield from _same(f"batch {number} of {name}", left.batches.get(number), right.batches.get(number))
    yield from _same(f"flow {name}, retained_bytes", left.retained_bytes, right.retained_bytes)
    yield from _keyed(f"open item of {name}, commit", open_items(left), open_items(right))
    yield from _same(f"flow {name}, open bytes", left.segment.size_bytes, right.segment.size_bytes)


def open_items(flow: Flow) -> Iterator[tuple[int, Any]]:
    """Yield (first commit number, content) of what no batch holds yet: an item, or a range as one."""
    segment = flow.segment
    run = segment.run_view()
    chunks: Iterable[SealedChunk] = (*segment.closed_chunks, run.chunk(0, run.items))
    for chunk in chunks:
        if isinstance(chunk, RangeChunk):
            yield chunk.first_commit, chunk
            continue
        for row, key in enumerate(chunk.keys):
            numbers = (column[8 * row : 8 * row + 8] for column in (chunk.commits, chunk.client_ids, chunk.sequences))
            commit, client_id, sequence = (int.from_bytes(number, "little", signed=True) for number in numbers)
            yield commit, (key, chunk.values[row], client_id, sequence)


def _same(what: str, left: object, right: object) -> Iterator[Unequal]:
    if left != right:
        yield Unequal(what, left, right)


def _keyed(
    what: str, left: Iterable[tuple[Any, Any]], right: Iterable[tuple[Any, Any]], *, joined: str = " "
) -> Iterator[Unequal]:
    """Compare two sequences of (key, value) in ascending key order."""
    for one, other in zip_longest(left, right):
        if one == other:
            continue
        if one is None or (other is not None and other[0] < one[0]):
            yield Unequal(f"{what}{joined}{other[0]}", ABSENT, other[1])
        elif other is None or one[0] < other[0]:
            yield Unequal(f"{what}{joined}{one[0]}", one[1], ABSENT)
        else:
            yield Unequal(f"{what}{joined}{one[0]}", one[1], other[1])
