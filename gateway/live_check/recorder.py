"""Which rows are sampled, the record of one operation on such a row, and the recording of answers as they are given.

Owns: the seeded choice, the same on every node with the same seed; the form in which an operation is kept and travels
to another node; the hot path (one call for each request, which returns at once if no row is sampled); the floor, which
stands for time; and the bound on the operations of a window. Event loop's thread. Read next:
:mod:`oncegate.gateway.live_check.order`.

The node's event loop orders requests and answers, so no clock is needed: one number, the newest commit number among the
answers, says what had been answered when a request came.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Final

import msgspec
import xxhash

from oncegate.gateway import wire
from oncegate.gateway.answer_values import json_of
from oncegate.gateway.answers import Answer
from oncegate.gateway.machine import commands as c
from oncegate.gateway.machine.effects import NO_SESSION
from oncegate.rifl.errors import OncegateError, Outcome
from oncegate.rifl.ids import format_client_id
from oncegate.rifl.key_table import KEYS_CLIENT

OPERATIONS_MAX: Final = 2_000
"""Of one window; what comes beyond is not recorded, and counted."""
UNKNOWN_ROWS_MAX: Final = 10_000
VALUE_BYTES_MAX: Final = 4 * 1024
"""A larger value is not kept: its version is checked, its content is not."""
READ: Final = "read"
"""A read outside the log; all other names are those of operations."""
_HASHES: Final = 2**64
_NAMES: Final = {kind.value: kind.name.lower() for kind in c.OpKind}
_digest = xxhash.xxh3_64_intdigest


Told = tuple[str, wire.OperationResult]
"""A verdict, and the place in its transaction of the write that it is of: each has a commit number of its own, and the
transaction's id stands for them all. Empty for an operation alone."""
Spread = Callable[[Any], list[Told]]
"""Returns what an answer tells, one for each operation that was noted."""


class Seen(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One answered operation, as its node saw it.

    Attributes:
        table, key: the row.
        what: name of the operation, or ``READ``.
        commit: its commit number; of a read, that of the state it was answered from.
        floor: the newest commit number that this node had answered with before it was asked for this.
        request: ``client_id/sequence``, of a transaction's write with its place there; empty for a read.
        replayed: answered from its completion record; the first attempt may have come to another node.
        refusal: why it was refused as a result, empty if it was not.
        version: of the row that it was told, its own commit number for a write that was applied; 0 for no row.
        value: JSON text in the answer, None if there was none or it is too large.
        argument: JSON text of the value or item written, None if there is none or it is too large.
        by, test, operand: as in :class:`oncegate.gateway.machine.commands.Op`.
    """

    table: str
    key: str
    what: str
    commit: int
    floor: int
    request: str = ""
    replayed: bool = False
    refusal: str = ""
    version: int = 0
    value: bytes | None = None
    argument: bytes | None = None
    by: int = 0
    test: int = 0
    operand: int | bytes | None = None

    @property
    def row(self) -> str:
        """Name of the row."""
        return f"{self.table}/{self.key}"

    @property
    def logged(self) -> bool:
        """It went through the log, so that its commit number is its own."""
        return self.what != READ

    @property
    def writes(self) -> bool:
        """It changed the row, or would have changed it."""
        return not self.refusal and self.what not in (READ, "get")


class RowSample:
    """The rows that are sampled.

    Args:
        share: of all rows, 0..1.
        seed: another one, other rows; the same on all nodes.
    """

    def __init__(self, share: float, seed: int) -> None:
        self._below = min(_HASHES, int(share * _HASHES))
        self._seed = seed

    def has(self, table: str, key: str) -> bool:
        """Tell whether a row is sampled."""
        return _digest((table + "\0" + key).encode(), self._seed) < self._below

    def of(self, ops: Sequence[c.Op]) -> list[int]:
        """Return the positions of the operations on sampled rows; a fifth of a microsecond an operation."""
        below, seed = self._below, self._seed
        return [at for at, op in enumerate(ops) if _digest((op.table + "\0" + op.key).encode(), seed) < below]


def of_result(op: c.Op, client_id: int, floor: int, result: wire.OperationResult, place: str = "") -> Seen | None:
    """Return the record of an operation's answer; None where nothing certain is known of its effect."""
    commit = result.commit
    if result.status == "rejected" or not isinstance(commit, int):
        return None
    version = result.version if isinstance(result.version, int) else 0
    return Seen(
        op.table,
        op.key,
        _NAMES[op.kind],
        commit,
        floor,
        f"{format_client_id(client_id)}/{result.sequence}{place}",
        replayed=result.replayed is True,
        refusal=str(result.code) if result.status == "refused" else "",
        version=version,
        value=_short(result.value),
        argument=op.value if op.value is not None and len(op.value) <= VALUE_BYTES_MAX else None,
        by=op.by,
        test=op.test,
        operand=op.operand if not isinstance(op.operand, bytes) or len(op.operand) <= VALUE_BYTES_MAX else None,
    )


def _written(ops: Sequence[c.Op], body: wire.CascadeWritten) -> list[Told]:
    """Return the verdicts of a cascade's writes: of an increment, and of what nobody remembers, nothing is known."""
    return [
        ("", wire.OperationResult(commit, "rejected", outcome=Outcome.UNKNOWN.value))
        if not body.commit or op.kind == c.OpKind.INCREMENT
        else ("", wire.OperationResult(commit, "applied", commit, commit, replayed=body.replayed))
        for commit, op in enumerate(ops, body.commit - len(ops) + 1)
    ]


def _moves(said: c.Options) -> bool:
    """Tell whether a write writes rows that it does not name, now or at its end."""
    return bool(said.numbered or said.then or said.to)


def _each_write(operations: Sequence[c.Op | c.Transaction]) -> Sequence[c.Op]:
    """Return operations one by one. Of a transaction's writes only the effect is checked: conditions see no order."""
    if c.Transaction not in map(type, operations):
        return c.writes_of(operations)
    return [
        write if isinstance(op, c.Op) else msgspec.structs.replace(write, test=0, operand=None)
        for op in operations
        for write in c.writes_of([op])
    ]


def _of_writes(operations: Sequence[c.Op | c.Transaction], body: wire.OperationsResponse) -> list[Told]:
    """Return a verdict for each write; of a refused transaction's, which have no place in the order, none is kept."""
    if c.Transaction not in map(type, operations):
        return [("", one) for one in body.results]
    told: list[Told] = []
    for op, one in zip(operations, body.results, strict=True):
        if isinstance(op, c.Op):
            told.append(("", one))
        elif one.status == "applied" and one.writes:
            for at, write in enumerate(one.writes):
                made = write.commit, write.version, write.value
                told.append(
                    (f" writes[{at}]", wire.OperationResult(one.sequence, one.status, *made, replayed=one.replayed))
                )
        else:
            outcome = one.outcome if one.status == "rejected" else Outcome.NOT_APPLIED.value
            told += [("", wire.OperationResult(one.sequence, "rejected", outcome=outcome)) for _ in op.writes]
    return told


def of_read(table: str, key: str, commit: int, floor: int, version: int, value: bytes | None) -> Seen:
    """Return the record of a read; version 0 for a row that was not there."""
    kept = value if value is not None and len(value) <= VALUE_BYTES_MAX else None
    return Seen(table, key, READ, commit, floor, version=version, value=kept)


def _short(value: Any) -> bytes | None:
    if value is msgspec.UNSET:
        return None
    text = json_of(value)
    return text if len(text) <= VALUE_BYTES_MAX else None


class WindowRecorder:
    """The operations of the present window.

    Args:
        choice: which rows are sampled.
        operations_max: of a window.

    Attributes:
        seen: answered operations that are not checked yet.
        dropped: operations on sampled rows that were not recorded.
        unknown: rows with an operation of which nobody knows whether it was or will be applied.
        moves: whether rows may have been written that their operation did not name: taken ones, and numbered ones.
    """

    def __init__(self, choice: RowSample, operations_max: int = OPERATIONS_MAX) -> None:
        self._choice = choice
        self._operations_max = operations_max
        self._floor = 0
        self._read_floor = 0
        self._pending: dict[int, int] = {}
        self._pending_operations = 0
        self._number = 0
        self.seen: list[Seen] = []
        self.dropped = 0
        self.unknown: set[str] = set()
        self.moves = False

    def samples(self, command: c.AnyOperate | c.Range) -> bool:
        """Tell whether :meth:`watch` would note operations of a command."""
        if not isinstance(command, c.AnyOperate):
            return False
        return bool(self._choice.of(c.writes_of(c.operations_of(command))))

    def watch(self, command: c.Command, future: asyncio.Future[Answer]) -> None:
        """Note a command that was just submitted, if it has operations on sampled rows."""
        if isinstance(command, c.AnyOperate):
            client_id = command.client_id if isinstance(command, c.Operate) else int(KEYS_CLIENT)
            operations = c.operations_of(command)
            ops, spread = _each_write(operations), partial(_of_writes, operations)
            self.moves = self.moves or True in [op.options is not None and _moves(op.options) for op in ops]
        elif type(command) is c.Cascade:
            ops, client_id = command.ops, NO_SESSION
            spread = partial(_written, ops)
        else:
            return
        chosen = self._choice.of(ops)
        if chosen:
            self._watch(ops, chosen, client_id, spread, future)

    def _watch(
        self, ops: Sequence[c.Op], chosen: list[int], client_id: int, spread: Spread, future: asyncio.Future[Answer]
    ) -> None:
        if self._pending_operations + len(self.seen) + len(chosen) > self._operations_max:
            self.dropped += len(chosen)
            return
        self._number += 1
        self._pending[self._number] = self._floor
        self._pending_operations += len(chosen)
        future.add_done_callback(partial(self._answered, ops, chosen, client_id, spread, self._number))

    def _answered(
        self,
        ops: Sequence[c.Op],
        chosen: list[int],
        client_id: int,
        spread: Spread,
        number: int,
        done: asyncio.Future[Answer],
    ) -> None:
        floor = self._pending.pop(number)
        self._pending_operations -= len(chosen)
        fault = None if done.cancelled() else done.exception()
        if done.cancelled() or fault is not None:
            if not isinstance(fault, OncegateError) or fault.outcome is not Outcome.NOT_APPLIED:
                self._doubt(ops[at] for at in chosen)
            return
        told = spread(done.result().body)
        for at in chosen:
            op, (place, result) = ops[at], told[at]
            seen = of_result(op, client_id, floor, result, place)
            if seen is not None:
                self.seen.append(seen)
                self._floor = max(self._floor, seen.commit)
            elif result.outcome != Outcome.NOT_APPLIED.value:
                self._doubt([op])

    def read_floor(self, *, linearizable: bool) -> int:
        """Return the floor of a read that comes now: of all answers, or of this node's reads if it is a weaker read."""
        return self._floor if linearizable else self._read_floor

    def has(self, table: str, key: str) -> bool:
        """Tell whether a row is sampled."""
        return self._choice.has(table, key)

    def read(self, table: str, key: str, commit: int, floor: int, version: int, value: bytes | None) -> None:
        """Note a read of a sampled row that is about to be answered; ``version`` 0 where there was no row."""
        self._read_floor = max(self._read_floor, commit)
        self._floor = max(self._floor, commit)
        if self._pending_operations + len(self.seen) >= self._operations_max:
            self.dropped += 1
            return
        self.seen.append(of_read(table, key, commit, floor, version, value))

    def take(self) -> list[Seen]:
        """Hand over the operations that can be checked; keep those whose place is after an answer still to come.

        An operation that is under way will have a commit number above its floor, unless it is a replay.
        """
        horizon = min(self._pending.values(), default=self._floor)
        ready = [seen for seen in self.seen if seen.commit <= horizon]
        self.seen = [seen for seen in self.seen if seen.commit > horizon]
        return ready

    def _doubt(self, ops: Iterable[c.Op]) -> None:
        for op in ops:
            if len(self.unknown) < UNKNOWN_ROWS_MAX:
                self.unknown.add(f"{op.table}/{op.key}")
            else:
                self.dropped += 1
