"""Tables: resident rows in the replicated state, the room they have, and what a change of one takes with it.

Owns: quotas of resident tables, and that rows, their bytes, the index of those that end and the changes that are told
fit together. Pure and total: a refusal is a result, never an exception. What an operation makes of a row says
:mod:`oncegate.gateway.machine.row_rule`. Stream tables keep no rows here; theirs are in the flows' segments
(:mod:`oncegate.gateway.machine.flow_state`).

Invariants; a :class:`Table` that finds one broken raises InvariantViolation before it writes:

- a row's version is below the commit number of what is executed next: a version names one value for ever;
- ``bytes`` is the sum of the rows' sizes, so it is never below the overhead of as many rows;
- ``ending`` counts the rows that end by themselves, which are those that ``ends`` holds of this table.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, Literal

from oncegate.gateway.machine.commands import RESULT_BYTES_MAX, Op, OpKind
from oncegate.gateway.machine.fronts import Fronts
from oncegate.gateway.machine.row_ends import (
    BOUND_ROWS_MAX,
    ENDING_ROWS_MAX,
    ENDING_ROWS_TABLE_MAX,
    Life,
    RowEnds,
)
from oncegate.gateway.machine.row_rule import INTEGER_BYTES_MAX
from oncegate.gateway.machine.rows import ChangeRun, DictRows, RowChange, RowStore, StoredRow, prefix_end
from oncegate.rifl.errors import Code, InvariantViolation
from oncegate.rifl.ids import CommitNumber
from oncegate.rifl.key_table import KEYS_CLIENT

QUOTA_BYTES_DEFAULT: Final = 1 * 2**30
QUOTA_BYTES_MAX: Final = 64 * 2**30
TABLES_MAX: Final = 1_000
TABLES_EVER_MAX: Final = 65_536
"""Tables that may be declared in the life of a cluster: the saved state numbers them with 16 bits, none twice."""
ROW_OVERHEAD_BYTES: Final = 120
"""What a row costs beside key and value, for the quota."""
# Looking a member up in its enum costs a tenth of what applying an operation does.
_PUT: Final = OpKind.PUT.value
_DELETE: Final = OpKind.DELETE.value
_GET: Final = OpKind.GET.value
_TAKE: Final = OpKind.TAKE.value
_KINDS_OF_STREAMS: Final = (_PUT, _DELETE)

TableKind = Literal["resident", "stream"]


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
        """Whether each change has to be looked at, also in a run: some rows end, or some were taken."""
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

    def row_before(self, key: str, commit: CommitNumber) -> StoredRow | None:
        """Return what ``commit``, which is about to be given out, finds: the row, or None; of a stream table None.

        Raises:
            InvariantViolation: the row's version is not below it.
        """
        if self.kind == "stream":
            return None
        row = self.rows.get(key)
        if row is not None and row.version >= commit:
            raise InvariantViolation(f"commit {commit} finds a row of {self.name} that {row.version} has written")
        return row

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

    def put_run(self, keys: Sequence[str], values: Sequence[bytes], first: CommitNumber) -> bool:
        """Put rows without end under adjacent commit numbers, as :meth:`change` would one by one.

        False: not all of them may be within the quota; nothing has happened.

        Raises:
            InvariantViolation: a row's version is not below its new one.
        """
        size = sum(map(len, keys)) + sum(map(len, values))
        if self.bytes + size + ROW_OVERHEAD_BYTES * len(keys) > self.quota_bytes:
            return False
        if self.indexed:
            for at, (key, value) in enumerate(zip(keys, values, strict=True)):
                commit = CommitNumber(first + at)
                self.change(key, self.row_before(key, commit), StoredRow(commit, value), commit)
            return True
        after: list[StoredRow] = list(map(StoredRow, range(first, first + len(keys)), values))  # type: ignore[arg-type]
        before = self.rows.put_run(keys, after)
        gone, new_rows = 0, before.count(None)
        if new_rows == len(keys):
            self.bytes += size + ROW_OVERHEAD_BYTES * new_rows
        else:
            gone = sum([len(row.value) for row in before if row is not None])
            known = sum([len(key) for key, row in zip(keys, before, strict=True) if row is not None])
            self.bytes += size - gone - known + ROW_OVERHEAD_BYTES * new_rows
        self.changes.append(ChangeRun(first, self.name, keys, before, after, size + gone))
        return True

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
                if self.indexed and self.fronts:  # the look at the first spares a call
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


class Closing:
    """A dropped table whose rows are being removed, which nobody is told; those up to the key ``swept`` are gone."""

    __slots__ = ("swept", "table")

    def __init__(self, table: Table, swept: str = "") -> None:
        table.changes = []
        self.table = table
        self.swept = swept


class Swept:
    """The last deletions of a table that is gone; whoever saves the state writes them, once."""

    __slots__ = ("ends", "number", "rows")

    def __init__(self, number: int, rows: RowStore, ends: dict[str, Life | None]) -> None:
        self.number = number
        self.rows = rows
        self.ends = ends
