"""Tables: resident rows in the replicated state, and what an operation does to one.

Owns: row versions, conditions, business refusals and quotas of resident tables. Pure and total: a refusal is a
result, never an exception. Stream tables keep no rows here; theirs are in the flows' segments
(:mod:`oncegate.gateway.machine.flow_state`). Where rows live sits behind :class:`RowStore`.

Invariants; a :class:`Table` that finds one broken raises InvariantViolation before it writes:

- a row's version is below the commit number of what is executed next: a version names one value for ever;
- ``bytes`` is the sum of the rows' sizes, so it is never below the overhead of as many rows.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from typing import Final, Literal, Protocol

import msgspec

from oncegate.gateway.machine.commands import LIST_BYTES_MAX, RESULT_BYTES_MAX, Op, OpKind, Test
from oncegate.rifl.errors import Code, InvariantViolation
from oncegate.rifl.ids import CommitNumber

QUOTA_BYTES_DEFAULT: Final = 1 * 2**30
QUOTA_BYTES_MAX: Final = 64 * 2**30
TABLES_MAX: Final = 1_000
ROW_OVERHEAD_BYTES: Final = 120
"""What a row costs beside key and value, for the quota."""
REFUSAL_VALUE_BYTES_MAX: Final = 2 * 1024
"""A refusal carries the row's value up to this size: a request of 4,096 refusals stays an answer that travels."""
INT64_MIN: Final = -(2**63)
INT64_MAX: Final = 2**63 - 1
_INTEGER_BYTES_MAX: Final = 20
# Looking a member up in its enum costs a tenth of what applying an operation does.
_PUT: Final = OpKind.PUT.value
_DELETE: Final = OpKind.DELETE.value
_INCREMENT: Final = OpKind.INCREMENT.value
_GET: Final = OpKind.GET.value
_KINDS_OF_STREAMS: Final = (_PUT, _DELETE)

TableKind = Literal["resident", "stream"]


class StoredRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A row: the commit number of its last write and its value as JSON text."""

    version: CommitNumber
    value: bytes


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

    def delete(self, key: str, before: StoredRow) -> None:
        """Remove a row, which is what :meth:`get` has just returned."""

    def page(self, prefix: str, after: str, limit: int) -> list[tuple[str, StoredRow]]:
        """Return up to ``limit`` rows with that prefix and a key greater than ``after``, in key order."""

    def __len__(self) -> int: ...

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

    def page(self, prefix: str, after: str, limit: int) -> list[tuple[str, StoredRow]]:
        """Return a page in key order; the first call sorts all keys once."""
        if self._order is None:
            self._order = sorted(self._rows)
        start = bisect_left(self._order, max(prefix, after))
        page: list[tuple[str, StoredRow]] = []
        for key in self._order[start : start + limit + 1]:
            if not key.startswith(prefix):
                break
            if key > after or not after:
                page.append((key, self._rows[key]))
            if len(page) == limit:
                break
        return page

    def items(self) -> Iterator[tuple[str, StoredRow]]:
        """All rows, in key order."""
        return ((key, self._rows[key]) for key in sorted(self._rows))


class Table:
    """A declared table with its quota; ``rows`` stays empty for a stream table."""

    __slots__ = ("bytes", "kind", "name", "quota_bytes", "rows")

    def __init__(self, name: str, kind: TableKind, quota_bytes: int, rows: RowStore | None = None) -> None:
        self.name = name
        self.kind = kind
        self.quota_bytes = quota_bytes
        self.rows: RowStore = DictRows() if rows is None else rows
        self.bytes = 0

    def put_back(self, size_bytes: int) -> None:
        """Count the rows that a saved table has as ``size_bytes``, as the table did that was saved."""
        rows = len(self.rows)
        if size_bytes < rows * ROW_OVERHEAD_BYTES or (size_bytes and not rows):
            raise InvariantViolation(f"{rows} rows of {self.name} occupy {size_bytes} bytes")
        self.bytes = size_bytes

    def check(self, op: Op) -> Code | None:
        """Return why the operation cannot be executed at all, or None. Changes nothing."""
        if self.kind == "stream":
            if op.test or op.kind not in _KINDS_OF_STREAMS:
                return Code.BAD_REQUEST
        elif op.kind == _GET:
            row = self.rows.get(op.key)
            if row is not None and len(row.value) > RESULT_BYTES_MAX:
                return Code.PAYLOAD_TOO_LARGE
        elif op.kind != _DELETE:
            size = len(op.key) + (len(op.value) if op.value is not None else _INTEGER_BYTES_MAX)
            if self.bytes + size > self.quota_bytes:
                return Code.QUOTA
        return None

    def execute(self, op: Op, commit: CommitNumber) -> Remembered | None:
        """Apply one operation to a resident table; None says plainly applied.

        Raises:
            InvariantViolation: ``commit`` does not follow the row's version, or the row has bytes nobody counted.
        """
        row = self.rows.get(op.key)
        if row is not None and row.version >= commit:
            raise InvariantViolation(f"commit {commit} finds a row of {self.name} that {row.version} has written")
        if op.test:
            refused = _test(op, row)
            if refused is not None:
                return refused
        kind = op.kind
        if kind == _PUT:
            value = op.value or b"null"
        elif kind == _DELETE:
            if row is not None:
                size = len(op.key) + len(row.value) + ROW_OVERHEAD_BYTES
                if size > self.bytes:
                    raise InvariantViolation(f"{self.bytes} bytes of {self.name} hold a row of {size}")
                self.rows.delete(op.key, row)
                self.bytes -= size
            return None
        elif kind == _GET:
            return Remembered(None, 0, None) if row is None else Remembered(None, row.version, row.value)
        else:
            made = _incremented(op, row) if kind == _INCREMENT else _appended(op, row)
            if isinstance(made, Remembered):
                return made
            value = made
        self.rows.put(op.key, StoredRow(commit, value), row)
        if row is None:
            self.bytes += len(op.key) + len(value) + ROW_OVERHEAD_BYTES
        else:
            self.bytes += len(value) - len(row.value)
        return Remembered(None, commit, value) if kind == _INCREMENT else None


def _appended(op: Op, row: StoredRow | None) -> bytes | Remembered:
    """Return the row's list, which begins empty, with an item more; made without reading what is in it."""
    item = op.value or b"null"
    before = b"[]" if row is None else row.value
    if before[:1] != b"[":
        return _refused("NOT_A_LIST", row)
    if len(before) + len(item) + 1 > LIST_BYTES_MAX:
        return _refused("LIST_FULL", row)
    return before[:-1] + (b"," if len(before) > 2 else b"") + item + b"]"


def _incremented(op: Op, row: StoredRow | None) -> bytes | Remembered:
    before = 0
    if row is not None:
        text = row.value
        if len(text) > _INTEGER_BYTES_MAX or not (text.isdigit() or (text[:1] == b"-" and text[1:].isdigit())):
            return _refused("NOT_AN_INTEGER", row)
        before = int(text)
    after = before + op.by
    if not INT64_MIN <= after <= INT64_MAX:
        return _refused("OVERFLOW", row)
    return b"%d" % after


def _refused(code: str, row: StoredRow | None) -> Remembered:
    """Refuse, and show the row as it is unless it is so large that remembering it would cost more than it tells."""
    if row is None:
        return Remembered(code, 0, None)
    return Remembered(code, row.version, row.value if len(row.value) <= REFUSAL_VALUE_BYTES_MAX else None)


def _test(op: Op, row: StoredRow | None) -> Remembered | None:
    if op.test == Test.ABSENT:
        holds = row is None
    elif op.test == Test.PRESENT:
        holds = row is not None
    elif op.test == Test.VERSION:
        holds = (row.version if row is not None else 0) == op.operand
    else:
        holds = row is not None and row.value == op.operand
    if holds:
        return None
    return _refused("CONDITION_FAILED", row)
