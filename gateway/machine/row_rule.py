"""What an operation makes of a row. Pure and total: a refusal is a result, never an exception.

Owns: conditions, increments, appends, and business refusals, which are remembered with the completion record. Whether
a table has room for an operation says :class:`oncegate.gateway.machine.tables.Table`.
"""

from __future__ import annotations

from typing import Final

import msgspec

from oncegate.gateway.machine.commands import LIST_BYTES_MAX, Op, OpKind, Options, Test
from oncegate.gateway.machine.row_ends import NO_OWNER, Life
from oncegate.gateway.machine.rows import StoredRow
from oncegate.rifl.ids import CommitNumber, Fingerprint, SequenceNumber

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
_AS_IT_IS: Final = Op(SequenceNumber(0), _INCREMENT, "", "", Fingerprint(0))
"""An increment by nothing: what it makes of a row is the number in it."""


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


def life_of(said: Options | None, client_id: int, now_ms: int) -> Life | None:
    """Return what a write of a session at cluster time ``now_ms`` says of its row's end; None: nothing."""
    if said is None or (not said.ttl_ms and not said.bound):
        return None
    return Life(now_ms + said.ttl_ms if said.ttl_ms else 0, client_id if said.bound else NO_OWNER, said.then)


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
    return _living(StoredRow(commit, made, life), row)


def _living(after: StoredRow, before: StoredRow | None) -> StoredRow:
    """Return a written row with the end that an increment or append leaves it."""
    was, will = None if before is None else before.life, after.life
    if was is None:
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
