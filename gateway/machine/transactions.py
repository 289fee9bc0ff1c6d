"""Transactions: several writes on several rows and tables under one request id, all or none (RIFL §6, for one shard).

Owns: what refuses a transaction, its trial, and its effects. Pure, deterministic and total, as
:mod:`oncegate.gateway.machine.machine` is, which calls it once the rule has said that the transaction is new.

In this order, and nothing has changed before the last step:

1. What a table would refuse is refused without a record: no such table, an operation that it does not take, no room
   for all writes together.
2. The conditions, those of the transaction and then those of its writes, are judged on the state before it.
3. The trial makes each row as the writes so far leave it. A take finds the first rows of its prefix as they were before
   the transaction, without those that it writes itself. A row that cannot be counted, or a sum beyond its floor or
   ceiling, refuses.
4. The effects: write *i* has the first commit number + *i*. A take is the last write, and each row that it moves has
   two more: it is gone under the first, and there under the second. The items of a flow reach it as one group.

A refusal of step 2 or 3 is a business refusal: it has one commit number, and is recorded and replayed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec

from oncegate.gateway.machine import commands as c
from oncegate.gateway.machine.effects import Write, write_together
from oncegate.gateway.machine.machine import Machine
from oncegate.gateway.machine.row_ends import NO_OWNER
from oncegate.gateway.machine.row_rule import INTEGER_BYTES_MAX, Remembered, counted, holds, life_of, refused, row_after
from oncegate.gateway.machine.rows import StoredRow
from oncegate.gateway.machine.tables import Table
from oncegate.rifl.completion import CompletionRecord
from oncegate.rifl.errors import Code
from oncegate.rifl.ids import CommitNumber
from oncegate.rifl.key_table import KeySlot
from oncegate.rifl.result_tracker import ResultTracker

# Looking a member up in its enum costs a tenth of what applying an operation does.
_DELETE: Final = c.OpKind.DELETE.value
_INCREMENT: Final = c.OpKind.INCREMENT.value
_GET: Final = c.OpKind.GET.value
_TAKE: Final = c.OpKind.TAKE.value
_WITHOUT_VALUE: Final = (_DELETE, _GET, _TAKE)
_SESSION_LIVE: Final = c.Test.SESSION_LIVE.value


class Taken(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A row that was taken, as it is since; ``value`` is None where it is too large to be remembered."""

    key: str
    version: int
    value: bytes | None


class Transacted(Remembered, frozen=True, array_like=True, gc=False):
    """Result of a transaction. An applied one has ``count`` commit numbers from its record's on, one a write.

    Attributes:
        refusal, version, value: of a refused one why, and the row that refused it, as of an operation.
        count: its writes; 0 if it was refused.
        results: of writes that say more than ``applied``, with their position.
        failed: what refused it, as ``conditions[0]`` or ``writes[0]``.
    """

    count: int = 0
    results: list[tuple[int, Remembered]] = msgspec.field(default_factory=list)
    failed: str = ""

    def last_of(self, first: CommitNumber) -> CommitNumber:
        """Return its last commit number, given that of its record: the one that it is told under."""
        return CommitNumber(first + self.commits - 1)

    @property
    def commits(self) -> int:
        """How many commit numbers it has: 1 if it was refused."""
        return self.count or 1

    @property
    def size(self) -> int:
        """Bytes it occupies, roughly."""
        return 128 + len(self.value or b"") + sum([one.size for _, one in self.results])


class Took(Transacted, frozen=True, array_like=True, gc=False):
    """Result of an applied transaction whose last write is a take, which has two more commit numbers for each row."""

    taken: list[Taken] = msgspec.field(default_factory=list)

    @property
    def commits(self) -> int:
        """How many commit numbers it has."""
        return self.count + 2 * len(self.taken)

    @property
    def size(self) -> int:
        """Bytes it occupies, roughly."""
        taken = sum([64 + len(one.key) + len(one.value or b"") for one in self.taken])
        return 128 + sum([one.size for _, one in self.results]) + taken


class TableRefusal(NamedTuple):
    """Why a table does not take a transaction, before execution; ``where`` as :attr:`Transacted.failed`."""

    code: Code
    table: str
    where: str


def execute(
    machine: Machine, client_id: int, tracker: ResultTracker | KeySlot, transaction: c.Transaction, traceparent: str
) -> CompletionRecord | Code:
    """Run a new transaction: effects, record and flow items are one transition. A code: nothing has happened."""
    stopped = table_that_refuses(machine, transaction, client_id, applying=True)
    if stopped is not None:
        return stopped.code
    first = CommitNumber(machine.commit + 1)
    writes: list[Write] = []
    failed = _failed_condition(machine, client_id, tracker, transaction)
    done = _trial(machine, client_id, transaction, first, writes) if failed is None else failed
    if isinstance(done, Code):
        return done
    machine.commit = CommitNumber(machine.commit + done.commits)
    if done.refusal is None:
        write_together(machine, first, writes, client_id, transaction.sequence, traceparent)
    return tracker.record(transaction.sequence, transaction.fingerprint, first, done, traceparent)


def table_that_refuses(
    machine: Machine, transaction: c.Transaction, client_id: int = NO_OWNER, *, applying: bool = False
) -> TableRefusal | None:
    """Say which table would refuse a transaction before execution. What its writes replace counts as if it stayed.

    Without the session ``client_id`` nothing is said of how many rows are bound to it. Changes nothing, unless it is
    ``applying``: a full stream table then drops the batches whose time is over, which only the log may do.
    """
    tables, grown = machine.tables, dict[str, int]()
    for at, condition in enumerate(transaction.conditions):
        if condition.test != _SESSION_LIVE:
            read = tables.get(condition.table)
            if read is None or read.kind == "stream":
                missing = Code.NOT_FOUND if read is None else Code.BAD_REQUEST
                return TableRefusal(missing, condition.table, f"conditions[{at}]")
    for at, op in enumerate(transaction.writes):
        name = op.table
        table = tables.get(name)
        if table is None:
            return TableRefusal(Code.NOT_FOUND, name, f"writes[{at}]")
        life = life_of(op.options, client_id, machine.time_ms)
        code = table.check(op) or (None if life is None else table.check_life(op, life, at))
        if code is not None:
            return TableRefusal(code, name, f"writes[{at}]")
        if table.kind == "stream":
            flows, quota = machine.flows, table.quota_bytes
            if flows.is_full(name, quota, machine.time_ms) if applying else flows.looks_full(name, quota):
                return TableRefusal(Code.QUOTA, name, f"writes[{at}]")
        elif op.kind not in _WITHOUT_VALUE:
            size = len(op.key) + (INTEGER_BYTES_MAX if op.value is None else len(op.value))
            before = grown.get(name)
            if before is not None:
                size += before
                if table.bytes + size > table.quota_bytes:
                    return TableRefusal(Code.QUOTA, name, f"writes[{at}]")
            grown[name] = size
    return None


def _failed_condition(
    machine: Machine, client_id: int, tracker: ResultTracker | KeySlot, transaction: c.Transaction
) -> Transacted | None:
    """Judge all conditions on the state before the transaction; None: they hold."""
    for at, condition in enumerate(transaction.conditions):
        row = None
        if condition.test == _SESSION_LIVE:
            held = _is_live(machine, client_id, tracker, condition.operand)
        else:
            row = machine.tables[condition.table].rows.get(condition.key)
            held = holds(condition.test, condition.operand, row)
        if not held:
            return _stopped(refused("CONDITION_FAILED", row), f"conditions[{at}]")
    for at, op in enumerate(transaction.writes):
        if op.test:
            row = machine.tables[op.table].rows.get(op.key)
            if not holds(op.test, op.operand, row):
                return _stopped(refused("CONDITION_FAILED", row), f"writes[{at}]")
    return None


def _is_live(machine: Machine, client_id: int, tracker: ResultTracker | KeySlot, asked: int | bytes | None) -> bool:
    """Tell whether a session of the caller's tenant has a live lease; of another tenant's nothing is said."""
    session = machine.sessions.get(asked) if isinstance(asked, int) else None
    if session is None or session.ends_ms < machine.time_ms:
        return False
    if isinstance(tracker, KeySlot):
        return session.tenant == tracker.tenant
    own = machine.sessions.get(client_id)
    return own is not None and session.tenant == own.tenant


def _trial(
    machine: Machine, client_id: int, transaction: c.Transaction, first: CommitNumber, writes: list[Write]
) -> Transacted | Code:
    """Make each row as the writes so far leave it, in ``writes``; changes nothing.

    Raises:
        InvariantViolation: ``first`` does not follow a row's version.
    """
    tables, made = machine.tables, dict[tuple[str, str], StoredRow | None]()
    results: list[tuple[int, Remembered]] = []
    taken: list[Taken] | None = None
    size = 0
    for at, op in enumerate(transaction.writes):
        table = tables[op.table]
        commit: CommitNumber = first + at  # type: ignore[assignment]  # the hot path spares a call
        if op.options is not None:
            if op.kind == _TAKE:
                taken = _take(machine, client_id, table, op, commit, made, c.RESULT_BYTES_MAX - size, writes)
                break  # it is the last write
            op = _numbered(op, commit)
        if table.kind == "stream":
            writes.append((commit, table, op.key, None, None, op.value))
            continue
        place = op.table, op.key
        row = made[place] if place in made else table.row_before(op.key, commit)
        if op.kind == _GET:
            read = Remembered(None, 0, None) if row is None else Remembered(None, row.version, row.value)
            results.append((at, read))
            size += read.size
            if size > c.RESULT_BYTES_MAX:
                return Code.PAYLOAD_TOO_LARGE
            continue
        after = row_after(op, row, commit, life_of(op.options, client_id, machine.time_ms))
        if isinstance(after, Remembered):
            return _stopped(after, f"writes[{at}]")
        if op.kind == _INCREMENT and after is not None:
            results.append((at, Remembered(None, commit, after.value)))
        made[place] = after
        writes.append((commit, table, op.key, row, after, None if after is None else after.value))
    done = None, 0, None, len(transaction.writes), results
    return Transacted(*done) if taken is None else Took(*done, taken=taken)


def _numbered(op: c.Op, commit: int) -> c.Op:
    """Return a write whose keys are written out."""
    said = op.options
    if said is None or not said.numbered:
        return op
    number = f"{commit:0{c.NUMBER_DIGITS}d}"
    return c.with_options(msgspec.structs.replace(op, key=op.key + number), then=said.then and said.then + number)


def _take(
    machine: Machine,
    client_id: int,
    table: Table,
    op: c.Op,
    commit: int,
    made: Mapping[tuple[str, str], StoredRow | None],
    bytes_left: int,
    writes: list[Write],
) -> list[Taken]:
    """Find the first rows that the transaction does not write itself, and move each; changes nothing.

    There is room for one at least: :func:`table_that_refuses` counts each write before it as a row that ends. Values
    beyond ``bytes_left`` are not remembered: the taking ends before such a row, but for the first one, which is told
    without its value.
    """
    said = op.options or c.NO_OPTIONS
    life = life_of(op.options, client_id, machine.time_ms)
    most = said.count if life is None else min(said.count, table.room_to_end(life.owner, len(made)))
    taken: list[Taken] = []
    for key, row in table.first_rows(op.key):
        if (op.table, key) in made:
            continue
        value = counted(row.value)
        told = value if len(value) <= bytes_left else None
        if taken and told is None:
            break
        bytes_left -= len(value)
        gone, moved = CommitNumber(commit + 1 + 2 * len(taken)), CommitNumber(commit + 2 + 2 * len(taken))
        after = said.to + key[len(op.key) :]
        place = op.table, after
        before = made[place] if place in made else table.rows.get(after)
        ends = None if life is None else life._replace(then=key)
        writes.append((gone, table, key, row, None, None))
        writes.append((moved, table, after, before, StoredRow(moved, value, ends), value))
        taken.append(Taken(after, moved, told))
        if len(taken) == most:
            break
    return taken


def _stopped(why: Remembered, failed: str) -> Transacted:
    return Transacted(why.refusal, why.version, why.value, failed=failed)
