"""Tables: resident rows in the replicated state, and what an operation does to one.

Owns: row versions, conditions, business refusals and quotas of resident tables. Pure and total: a refusal is a
result, never an exception. Stream tables keep no rows here; theirs are in the flows' segments
(:mod:`oncegate.gateway.machine.flow_state`). Where rows live sits behind :class:`RowStore`.

Invariants; a :class:`Table` that finds one broken raises InvariantViolation before it writes:

- a row's version is below the commit number of what is executed next: a version names one value for ever;
- ``bytes`` is the sum of the rows' sizes, so it is never below the overhead of as many rows;
- ``ending`` counts the rows that end by themselves, which are those that ``ends`` holds of this table.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Literal, NamedTuple, Protocol, TypeAlias

import msgspec

from oncegate.gateway.machine.commands import LIST_BYTES_MAX, RESULT_BYTES_MAX, Op, OpKind, Test
from oncegate.gateway.machine.fronts import Fronts
from oncegate.gateway.machine.row_ends import (
    BOUND_ROWS_MAX,
    ENDING_ROWS_MAX,
    ENDING_ROWS_TABLE_MAX,
    NO_OWNER,
    Life,
    RowEnds,
)
from oncegate.rifl.errors import Code, InvariantViolation
from oncegate.rifl.ids import CommitNumber, Fingerprint, SequenceNumber
from oncegate.rifl.key_table import KEYS_CLIENT

QUOTA_BYTES_DEFAULT: Final = 1 * 2**30
QUOTA_BYTES_MAX: Final = 64 * 2**30
TABLES_MAX: Final = 1_000
TABLES_EVER_MAX: Final = 65_536
"""Tables that may be declared in the life of a cluster: the saved state numbers them with 16 bits, none twice."""
BYTES_MAX: Final = 2**63
"""Stands for no bound on the bytes of a page."""
ROW_OVERHEAD_BYTES: Final = 120
"""What a row costs beside key and value, for the quota."""
REFUSAL_VALUE_BYTES_MAX: Final = 2 * 1024
"""A refusal carries the row's value up to this size: a request of 4,096 refusals stays an answer that travels."""
INT64_MIN: Final = -(2**63)
INT64_MAX: Final = 2**63 - 1
INTEGER_BYTES_MAX: Final = 20
_COUNT_DIGITS: Final = 15
# Looking a member up in its enum costs a tenth of what applying an operation does.
_PUT: Final = OpKind.PUT.value
_DELETE: Final = OpKind.DELETE.value
_INCREMENT: Final = OpKind.INCREMENT.value
_GET: Final = OpKind.GET.value
_TAKE: Final = OpKind.TAKE.value
_AS_IT_IS: Final = Op(SequenceNumber(0), _INCREMENT, "", "", Fingerprint(0))
"""An increment by nothing: what it makes of a row is the number in it."""
_KINDS_OF_STREAMS: Final = (_PUT, _DELETE)

TableKind = Literal["resident", "stream"]


class StoredRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A row: the commit number of its last write, its value as JSON text, and when it ends; None for one that stays."""

    version: CommitNumber
    value: bytes
    life: Life | None = None

    @property
    def ends_ms(self) -> int:
        """Cluster time at which it ends, 0 for never."""
        return 0 if self.life is None else self.life.ends_ms

    @property
    def owner(self) -> int:
        """Client id of the session that it ends with, 0 for none."""
        return NO_OWNER if self.life is None else self.life.owner

    @property
    def then(self) -> str:
        """Key to which it is moved at its end, empty for a row that is deleted then."""
        return "" if self.life is None else self.life.then


RowChange: TypeAlias = tuple[int, int, str, str, StoredRow | None, StoredRow | None, str]
"""A change of a resident row: commit number, that of the last change which took effect together with it, table, key,
the row before, the row after, and why it was changed: empty for an operation.

A plain tuple: one is made for each write.
"""


class ChangeRun(NamedTuple):
    """Changes of one table by puts under adjacent commit numbers from ``first`` on; columns of equal length.

    ``size``: bytes of their keys and of the values before and after.
    """

    first: CommitNumber
    table: str
    keys: Sequence[str]
    before: Sequence[StoredRow | None]
    after: Sequence[StoredRow]
    size: int

    def each(self) -> list[RowChange]:
        """Return the changes one by one."""
        return [
            (after.version, after.version, self.table, key, before, after, "")
            for key, before, after in zip(self.keys, self.before, self.after, strict=True)
        ]


def each_change(changes: Iterable[RowChange | ChangeRun]) -> Iterator[RowChange]:
    """Yield changes one by one."""
    for change in changes:
        if type(change) is ChangeRun:
            yield from change.each()
        else:
            yield change  # type: ignore[misc]


class Remembered(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Result of an operation that says more than ``applied``; stored with the completion record.

    ``refusal`` is None for an applied increment or get; a get of an absent row has version 0 and no value. A plain
    applied put, delete or append stores no result at all.
    """

    refusal: str | None
    version: int
    value: bytes | None

    @property
    def size(self) -> int:
        """Bytes it occupies, roughly."""
        return 64 + (len(self.value) if self.value is not None else 0)


class RowStore(Protocol):
    """Keyed rows of one table, in key order where asked for it."""

    def get(self, key: str) -> StoredRow | None:
        """Return the row, or None."""

    def look_ahead(self, keys: list[str]) -> None:
        """Prepare for a look at each of these rows before anything else is done; may do nothing."""

    def put(self, key: str, row: StoredRow, before: StoredRow | None) -> None:
        """Insert, or replace ``before``, which is what :meth:`get` has just returned."""

    def put_run(self, keys: Sequence[str], rows: Sequence[StoredRow]) -> list[StoredRow | None]:
        """Insert or replace one row after the other; returns what was there before each of them.

        Raises:
            InvariantViolation: what is there has no smaller version.
        """

    def delete(self, key: str, before: StoredRow) -> None:
        """Remove a row, which is what :meth:`get` has just returned."""

    def page(
        self, low: str, high: str | None, limit: int, bytes_max: int = BYTES_MAX, *, reverse: bool = False
    ) -> list[tuple[str, StoredRow]]:
        """Return up to ``limit`` rows from ``low`` on, below ``high`` (None: to the end), in key order or against it.

        It ends earlier with the row whose value takes the values together over ``bytes_max``.
        """

    def __len__(self) -> int:
        """Return how many rows there are."""

    def items(self) -> Iterator[tuple[str, StoredRow]]:
        """All rows, in key order."""


class DictRows:
    """A :class:`RowStore` in memory. Key order is built when first asked for and kept up from then on."""

    __slots__ = ("_order", "_rows", "get")

    def __init__(self) -> None:
        self._rows: dict[str, StoredRow] = {}
        self._order: list[str] | None = None
        self.get = self._rows.get

    def __len__(self) -> int:
        return len(self._rows)

    def look_ahead(self, keys: list[str]) -> None:
        """Do nothing: a look costs nothing."""

    def delete(self, key: str, before: StoredRow) -> None:
        """Remove a row."""
        del self._rows[key]
        if self._order is not None:
            del self._order[bisect_left(self._order, key)]

    def put(self, key: str, row: StoredRow, before: StoredRow | None) -> None:
        """Insert or replace."""
        if before is None and self._order is not None:
            insort(self._order, key)
        self._rows[key] = row

    def put_run(self, keys: Sequence[str], rows: Sequence[StoredRow]) -> list[StoredRow | None]:
        """Insert or replace one after the other."""
        stored, order = self._rows, self._order
        found: list[StoredRow | None] = []
        for key, row in zip(keys, rows, strict=True):
            before = stored.get(key)
            if before is None:
                if order is not None:
                    insort(order, key)
            elif before.version >= row.version:
                raise not_above(before, row)
            stored[key] = row
            found.append(before)
        return found

    def page(
        self, low: str, high: str | None, limit: int, bytes_max: int = BYTES_MAX, *, reverse: bool = False
    ) -> list[tuple[str, StoredRow]]:
        """Return a page in key order or against it; the first call sorts all keys once."""
        order = self._order
        if order is None:
            order = self._order = sorted(self._rows)
        start, end = bisect_left(order, low), len(order) if high is None else bisect_left(order, high)
        page: list[tuple[str, StoredRow]] = []
        size = 0
        for at in range(end - 1, start - 1, -1) if reverse else range(start, end):
            if len(page) == limit or size > bytes_max:
                break
            row = self._rows[order[at]]
            page.append((order[at], row))
            size += len(row.value)
        return page

    def items(self) -> Iterator[tuple[str, StoredRow]]:
        """All rows, in key order."""
        return ((key, self._rows[key]) for key in sorted(self._rows))


def not_above(before: StoredRow, after: StoredRow) -> InvariantViolation:
    """Return the fault of a write that finds a row which its own commit number does not follow."""
    return InvariantViolation(f"commit {after.version} finds a row that {before.version} has written")


def prefix_end(prefix: str) -> str | None:
    """Return the smallest text above all that begin with ``prefix``; None if every text that is above it does."""
    for at in range(len(prefix) - 1, -1, -1):
        if prefix[at] != "\U0010ffff":
            after = ord(prefix[at]) + 1
            return prefix[:at] + chr(0xE000 if after == 0xD800 else after)  # between these are surrogates, no text
    return None


class Table:
    """A declared table with its quota; ``rows`` stays empty for a stream table.

    Each change of a row is appended to ``changes``, a list that whoever applies an entry empties before it. ``ends`` is
    the index of the rows that end, of all tables. ``number`` counts the declarations from 0, and no other table gets
    it. ``since`` is the last commit number that an earlier table of this name may have given; 0 before any table was
    ever dropped.
    """

    __slots__ = (
        "bytes",
        "changes",
        "ending",
        "ends",
        "fronts",
        "indexed",
        "kind",
        "name",
        "number",
        "quota_bytes",
        "rows",
        "since",
    )

    def __init__(
        self,
        name: str,
        kind: TableKind,
        quota_bytes: int,
        rows: RowStore | None = None,
        changes: list[RowChange | ChangeRun] | None = None,
        ends: RowEnds | None = None,
        *,
        number: int = 0,
        since: int = 0,
    ) -> None:
        self.name = name
        self.number = number
        self.since = since
        self.kind = kind
        self.quota_bytes = quota_bytes
        self.rows: RowStore = DictRows() if rows is None else rows
        self.ends = RowEnds() if ends is None else ends
        self.bytes = 0
        self.ending = 0
        self.fronts = Fronts()
        self.indexed = False
        """Whether each change goes through :meth:`change`: some rows end, or some were taken."""
        self.changes: list[RowChange | ChangeRun] = [] if changes is None else changes

    @property
    def incarnation(self) -> int:
        """Which of all tables that were ever declared it is, from 1."""
        return self.number + 1

    def put_back(self, size_bytes: int) -> None:
        """Count the rows that a saved table has as ``size_bytes``, as the table did that was saved."""
        rows = len(self.rows)
        if size_bytes < rows * ROW_OVERHEAD_BYTES or (size_bytes and not rows):
            raise InvariantViolation(f"{rows} rows of {self.name} occupy {size_bytes} bytes")
        self.bytes = size_bytes

    def put_back_end(self, key: str, life: Life) -> None:
        """Add to the index what a saved state says of a row of this table."""
        self.ends.put_back((self.name, key), life)
        self.ending += 1
        self.indexed = True

    def first_rows(self, prefix: str) -> Iterator[tuple[str, StoredRow]]:
        """Yield the rows whose keys begin with ``prefix``, in key order; not to be mixed with writes."""
        self.indexed = True
        return self.fronts.rows(self.rows, prefix, prefix_end(prefix))

    def check(self, op: Op) -> Code | None:
        """Return why the operation cannot be executed at all, or None. Changes nothing."""
        if self.kind == "stream":
            if op.test or op.kind not in _KINDS_OF_STREAMS:
                return Code.BAD_REQUEST
        elif op.kind == _GET:
            row = self.rows.get(op.key)
            if row is not None and len(row.value) > RESULT_BYTES_MAX:
                return Code.PAYLOAD_TOO_LARGE
        elif op.kind != _DELETE and op.kind != _TAKE:  # what is moved is counted already
            size = len(op.key) + (len(op.value) if op.value is not None else INTEGER_BYTES_MAX)
            if self.bytes + size > self.quota_bytes:
                return Code.QUOTA
        return None

    def check_life(self, op: Op, life: Life, more: int = 0) -> Code | None:
        """Return why a write cannot give its row this life, or None; ``more`` others are about to. Changes nothing."""
        if self.kind == "stream" or op.kind == _DELETE or op.kind == _GET or life.owner == KEYS_CLIENT:
            return Code.BAD_REQUEST
        if op.kind == _TAKE:
            return Code.QUOTA if self.room_to_end(life.owner, more) <= 0 else None
        row, ends = self.rows.get(op.key), self.ends
        known = None if row is None else row.life
        if known is None and (len(ends) + more >= ENDING_ROWS_MAX or self.ending + more >= ENDING_ROWS_TABLE_MAX):
            return Code.QUOTA
        adds = life.owner and (known is None or known.owner != life.owner)
        return Code.QUOTA if adds and ends.bound(life.owner) + more >= BOUND_ROWS_MAX else None

    def room_to_end(self, owner: int, more: int = 0) -> int:
        """Return how many rows more may end, with the session ``owner``; ``more`` others are about to."""
        room = min(ENDING_ROWS_MAX - len(self.ends), ENDING_ROWS_TABLE_MAX - self.ending)
        return (min(room, BOUND_ROWS_MAX - self.ends.bound(owner)) if owner else room) - more

    def put(self, key: str, value: bytes, commit: CommitNumber) -> bool:
        """Apply a put without condition and end to a resident table; False: it is over the quota, nothing happened.

        Does what :meth:`check` and :meth:`execute` do with such an operation, in one call.
        """
        size = len(key) + len(value)
        if self.bytes + size > self.quota_bytes:
            return False
        rows = self.rows
        row = rows.get(key)
        if row is not None and row.version >= commit:
            raise InvariantViolation(f"commit {commit} finds a row of {self.name} that {row.version} has written")
        after = StoredRow(commit, value)
        if self.indexed:
            self.change(key, row, _living(_PUT, after, row), commit)
            return True
        rows.put(key, after, row)
        self.bytes += size + ROW_OVERHEAD_BYTES if row is None else len(value) - len(row.value)
        self.changes.append((commit, commit, self.name, key, row, after, ""))
        return True

    def put_run(self, keys: Sequence[str], values: Sequence[bytes], first: CommitNumber) -> None:
        """Do what :meth:`put` does with each of these, under adjacent commit numbers; all are within the quota."""
        if self.indexed:
            for at, (key, value) in enumerate(zip(keys, values, strict=True)):
                if not self.put(key, value, CommitNumber(first + at)):
                    raise InvariantViolation(f"a run of puts was within the quota of {self.name}, and is over it")
            return
        after: list[StoredRow] = list(map(StoredRow, range(first, first + len(keys)), values))  # type: ignore[arg-type]
        before = self.rows.put_run(keys, after)
        size, gone = sum(map(len, keys)) + sum(map(len, values)), 0
        new_rows = before.count(None)
        if new_rows == len(keys):
            self.bytes += size + ROW_OVERHEAD_BYTES * new_rows
        else:
            gone = sum([len(row.value) for row in before if row is not None])
            known = sum([len(key) for key, row in zip(keys, before, strict=True) if row is not None])
            self.bytes += size - gone - known + ROW_OVERHEAD_BYTES * new_rows
        self.changes.append(ChangeRun(first, self.name, keys, before, after, size + gone))

    def execute(self, op: Op, commit: CommitNumber, life: Life | None = None) -> Remembered | None:
        """Apply one operation to a resident table, ``life`` as of :func:`row_after`; None says plainly applied.

        Raises:
            InvariantViolation: ``commit`` does not follow the row's version, or the row has bytes nobody counted.
        """
        row = self.rows.get(op.key)
        if row is not None and row.version >= commit:
            raise InvariantViolation(f"commit {commit} finds a row of {self.name} that {row.version} has written")
        if op.test and not holds(op.test, op.operand, row):
            return refused("CONDITION_FAILED", row)
        kind = op.kind
        if kind == _PUT:  # as row_after and change do it: two calls are a seventh of what a write costs
            value = op.value or b"null"
        elif kind == _GET:
            return Remembered(None, 0, None) if row is None else Remembered(None, row.version, row.value)
        elif kind == _DELETE:
            self.change(op.key, row, None, commit)
            return None
        else:
            made = incremented(op, row) if kind == _INCREMENT else _appended(op, row)
            if isinstance(made, Remembered):
                return made
            value = made
        if life is not None or self.indexed:  # a table without rows that end pays for one look
            self.change(op.key, row, _living(kind, StoredRow(commit, value, life), row), commit)
            return Remembered(None, commit, value) if kind == _INCREMENT else None
        after = StoredRow(commit, value)
        self.rows.put(op.key, after, row)
        if row is None:
            self.bytes += len(op.key) + len(value) + ROW_OVERHEAD_BYTES
        else:
            self.bytes += len(value) - len(row.value)
        self.changes.append((commit, commit, self.name, op.key, row, after, ""))
        return Remembered(None, commit, value) if kind == _INCREMENT else None

    def change(
        self, key: str, before: StoredRow | None, after: StoredRow | None, commit: CommitNumber, cause: str = ""
    ) -> None:
        """Put a row in the place of ``before``, which is there now; None: there is none.

        ``cause``: why, unless an operation has asked for it.

        Raises:
            InvariantViolation: the row has bytes nobody counted, or is not filed under its end.
        """
        if self.ending or (after is not None and after.life is not None):
            was, will = (None if row is None else row.life for row in (before, after))
            if was is not None or will is not None:
                self.ends.change((self.name, key), was, will)
                self.ending += (will is not None) - (was is not None)
                self.indexed = bool(self.ending or self.fronts)
        if after is not None:
            self.rows.put(key, after, before)
            if before is None:
                self.bytes += len(key) + len(after.value) + ROW_OVERHEAD_BYTES
                if self.fronts:
                    self.fronts.note(key)
            else:
                self.bytes += len(after.value) - len(before.value)
        elif before is not None:
            size = len(key) + len(before.value) + ROW_OVERHEAD_BYTES
            if size > self.bytes:
                raise InvariantViolation(f"{self.bytes} bytes of {self.name} hold a row of {size}")
            self.rows.delete(key, before)
            self.bytes -= size
        else:
            return
        self.changes.append((commit, commit, self.name, key, before, after, cause))


def row_after(
    op: Op, row: StoredRow | None, commit: CommitNumber, life: Life | None = None
) -> StoredRow | Remembered | None:
    """Return a row as a write leaves it, None for none, or why the row does not take it. Not for a get.

    ``life`` is what the write says of the row's end. A put without one makes a row that stays; an increment or append
    leaves what the row has, but for what ``life`` says.
    """
    kind = op.kind
    if kind == _PUT:
        return StoredRow(commit, op.value or b"null", life)
    if kind == _DELETE:
        return None
    made = incremented(op, row) if kind == _INCREMENT else _appended(op, row)
    if isinstance(made, Remembered):
        return made
    return _living(kind, StoredRow(commit, made, life), row)


def _living(kind: int, after: StoredRow, before: StoredRow | None) -> StoredRow:
    """Return a written row with the end that an increment or append leaves it."""
    was, will = None if before is None else before.life, after.life
    if was is None or kind == _PUT:
        return after
    life = was if will is None else Life(will.ends_ms or was.ends_ms, will.owner or was.owner, will.then or was.then)
    return StoredRow(after.version, after.value, life)


def _appended(op: Op, row: StoredRow | None) -> bytes | Remembered:
    """Return the row's list, which begins empty, with an item more; made without reading what is in it."""
    item = op.value or b"null"
    before = b"[]" if row is None else row.value
    if before[:1] != b"[":
        return refused("NOT_A_LIST", row)
    if len(before) + len(item) + 1 > LIST_BYTES_MAX:
        return refused("LIST_FULL", row)
    return before[:-1] + (b"," if len(before) > 2 else b"") + item + b"]"


def incremented(op: Op, row: StoredRow | None) -> bytes | Remembered:
    """Return the number that an increment makes of a row, as text, or why the row does not take it."""
    before = 0
    if row is not None:
        text = row.value
        if len(text) > INTEGER_BYTES_MAX or not (text.isdigit() or (text[:1] == b"-" and text[1:].isdigit())):
            return refused("NOT_AN_INTEGER", row)
        before = int(text)
    after = before + op.by
    if not INT64_MIN <= after <= INT64_MAX:
        return refused("OVERFLOW", row)
    said = op.options
    if said is not None and (
        (said.floor is not None and after < said.floor) or (said.ceiling is not None and after > said.ceiling)
    ):
        return refused("CONDITION_FAILED", row)
    return b"%d" % after


def counted(value: bytes) -> bytes:
    """Return the value of a row that is taken: a list that begins with a count has one more there, e.g. ``[0,"job"]``.

    Made without reading what is in it; any other value is left as it is.
    """
    at = 1
    while at <= _COUNT_DIGITS and value[at : at + 1].isdigit():
        at += 1
    if at == 1 or value[:1] != b"[" or value[at : at + 1] not in (b",", b"]"):
        return value
    return b"[%d%b" % (int(value[1:at]) + 1, value[at:])


def refused(code: str, row: StoredRow | None) -> Remembered:
    """Refuse, and show the row as it is unless it is so large that remembering it would cost more than it tells."""
    if row is None:
        return Remembered(code, 0, None)
    return Remembered(code, row.version, row.value if len(row.value) <= REFUSAL_VALUE_BYTES_MAX else None)


def holds(test: int, operand: int | bytes | None, row: StoredRow | None) -> bool:
    """Tell whether a condition holds on a row; of no row the version is 0, and the number as an increment finds it."""
    if test == Test.ABSENT:
        return row is None
    if test == Test.PRESENT:
        return row is not None
    if test == Test.VERSION:
        return (row.version if row is not None else 0) == operand
    if test == Test.AT_LEAST or test == Test.AT_MOST:
        found = incremented(_AS_IT_IS, row)
        if isinstance(found, Remembered) or not isinstance(operand, int):
            return False
        return int(found) >= operand if test == Test.AT_LEAST else int(found) <= operand
    return row is not None and row.value == operand
