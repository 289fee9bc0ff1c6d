"""One machine with its log, and the operations that it is fed: what the tests of the state machine share."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec

from oncegate.flows.chunks import RangeChunk, int64s_from_bytes
from oncegate.flows.range_body import decode
from oncegate.gateway.explain.memory import VerdictLog
from oncegate.gateway.machine import commands as c
from oncegate.gateway.machine.apply import apply
from oncegate.gateway.machine.machine import Machine
from oncegate.gateway.machine.results import Operated
from oncegate.gateway.machine.rows import StoredRow
from oncegate.gateway.machine.state import state_digest
from oncegate.rifl.errors import OncegateError
from oncegate.rifl.rule import OpVerdict
from tests.gateway.logs import told

QUOTA = 1 << 20


def op(sequence: int, kind: c.OpKind, key: str = "k", *, table: str = "t", **fields: Any) -> c.Op:
    """Return an operation as it passes the edge."""
    options = {name: fields.pop(name) for name in ("ttl_ms", "bound") if name in fields}
    draft = c.with_options(c.Op(sequence, int(kind), table, key, 0, **fields), **options)  # type: ignore[arg-type]
    return msgspec.structs.replace(draft, fingerprint=c.fingerprint(draft))


def put(sequence: int, value: Any = 1, key: str = "k", *, table: str = "t", **fields: Any) -> c.Op:
    return op(sequence, c.OpKind.PUT, key, table=table, value=msgspec.json.encode(value), **fields)


def increment(sequence: int, by: int = 1, key: str = "n", **fields: Any) -> c.Op:
    return op(sequence, c.OpKind.INCREMENT, key, by=by, **fields)


def answer_of(verdict: OpVerdict) -> Any:
    """Return the code of a refusal, else (commit, result, replayed)."""
    _, code, record, replayed = told(verdict)
    assert (code is None) != (record is None)
    return code if record is None else (record.commit, record.result, replayed)


def batches(machine: Machine, flow: str) -> Iterator[list[tuple[int, str, Any, int]]]:
    """Yield the (commit, key, value, sequence) of each batch sealed since the last look, then of the open items."""
    sealed = [batch.chunks for batch in machine.flows.take_sealed() if batch.flow == flow]
    for chunks in (*sealed, machine.flows.get(flow).segment.snapshot().chunks):
        yield [item for chunk in chunks for item in _items(chunk)]


def _items(chunk: Any) -> Iterator[tuple[int, str, Any, int]]:
    if isinstance(chunk, RangeChunk):
        keys, values = (column.to_pylist() for column in decode(chunk.body, chunk.offset, chunk.count))
        for at, (key, value) in enumerate(zip(keys, values, strict=True)):
            yield chunk.first_commit + at, key, json.loads(value), chunk.first_sequence + at
        return
    columns = int64s_from_bytes(chunk.commits), chunk.keys, chunk.values, int64s_from_bytes(chunk.sequences)
    for commit, key, text, sequence in zip(*columns, strict=True):
        yield commit, key, None if text is None else json.loads(text), sequence


class MachineLog:
    """A machine, and the entries that it has applied, one for each call."""

    def __init__(self, *first: c.Command, machine: Machine | None = None) -> None:
        self.machine = machine or Machine()
        self.at = 0
        self.entries: list[bytes] = []
        self.verdicts = VerdictLog()
        self.now_ms = 0
        self.numbers: dict[int, int] = {}
        """Of each session, the highest number that :meth:`write` has given out."""
        if first:
            self.do(*first)

    def do(self, *commands: c.Command, at_ms: int | None = None) -> list[Any]:
        self.now_ms = self.now_ms if at_ms is None else at_ms
        self.at += 1
        self.entries.append(c.encode_entry(self.now_ms, list(commands)))
        before = self.machine.commit
        results = apply(self.machine, self.at, 1, self.entries[-1])
        self.verdicts.applied(self.at, before, results)
        return results

    def one(self, command: c.Command, at_ms: int | None = None) -> Any:
        """Apply an entry of one command, and return its result."""
        [result] = self.do(command, at_ms=at_ms)
        return result

    def done(self, command: c.Command, at_ms: int | None = None) -> Any:
        """Return the result of a command that is not refused."""
        result = self.one(command, at_ms)
        assert not isinstance(result, OncegateError), result
        return result

    def refused(self, command: c.Command) -> OncegateError:
        """Return the refusal of a command, which changes nothing."""
        before = state_digest(self.machine)
        result = self.one(command)
        assert isinstance(result, OncegateError), result
        assert state_digest(self.machine) == before, "a refusal changes nothing"
        return result

    def ops(
        self, *ops: c.Op | c.Transaction, client: int = 1, epoch: int = 1, fi: int = 1, at_ms: int | None = None
    ) -> Operated:
        """Let a session send operations in one request; ``fi`` is the first that it has no answer to."""
        operated = self.one(c.Operate(client, epoch, fi, list(ops)), at_ms)  # type: ignore[arg-type]
        assert isinstance(operated, Operated)
        return operated

    def send(self, *ops: c.Op | c.Transaction, **how: Any) -> list[Any]:
        """Return the verdicts of operations sent in one request."""
        return list(self.ops(*ops, **how).verdicts)

    def answer(self, op: c.Op, **how: Any) -> Any:
        """Return the code of a refusal, else (commit, result, replayed)."""
        [verdict] = self.send(op, **how)
        assert told(verdict)[0] == op.sequence
        return answer_of(verdict)

    def write(
        self, key: str, what: str = "put", *, client: int = 1, number: int = 0, at_ms: int | None = None, **more: Any
    ) -> Any:
        """Let a session write a row under its next number, unless one is given; returns the verdict."""
        number = number or self.numbers.get(client, 0) + 1
        self.numbers[client] = max(number, self.numbers.get(client, 0))
        kind = c.OpKind[what.upper()]
        if kind in (c.OpKind.PUT, c.OpKind.APPEND):
            more.setdefault("value", b"1")
        [verdict] = self.send(op(number, kind, key, **{"by": 1} | more), client=client, at_ms=at_ms)
        return verdict

    def row(self, key: str, table: str = "t") -> StoredRow | None:
        return self.machine.tables[table].rows.get(key)

    def value(self, key: str, table: str = "t") -> Any:
        row = self.row(key, table)
        return None if row is None else msgspec.json.decode(row.value)

    def rows(self) -> dict[tuple[str, str], Any]:
        """Return version and value of every row."""
        return {
            (name, key): (row.version, row.value)
            for name, table in self.machine.tables.items()
            for key, row in table.rows.items()
        }
