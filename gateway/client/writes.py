"""One write: its operation, encoded at the call, with the promise of its result.

Owns: how a write call becomes a :class:`oncegate.gateway.client.batch.Pending`. Must not know when it travels.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

import msgspec

from oncegate.gateway.client.arguments import (
    KEY_BYTES_MAX,
    TTL_MS_MAX,
    Encode,
    bad,
    canonical,
    flag,
    key_of,
    name_of,
    packed,
    plain,
    seconds,
    whole,
)
from oncegate.gateway.client.batch import Pending, PendingRows, RowPromise, RowsCollector
from oncegate.gateway.client.failures import OperationFailed
from oncegate.gateway.client.outbox_file import POSITION_BYTES_MAX
from oncegate.gateway.client.settings import TableKind
from oncegate.gateway.client.transaction import Transaction, operation_of
from oncegate.gateway.client.verdicts import late, not_applied
from oncegate.gateway.wire import Operation

if TYPE_CHECKING:
    from oncegate.gateway.client.connection import TableKinds

OperationName = Literal["put", "delete", "increment", "append", "get"]
UNSET: Final = msgspec.UNSET


class Writes:
    """Prepares the writes of one session; ``timeout_s`` is the total time of one that does not say otherwise.

    ``keeps``: an outbox keeps them. Then no put travels as a row of a range, and each may have a position. ``encode``
    turns what JSON has no type for into what it has, in every value, condition, item and position.
    """

    __slots__ = ("_closed", "_encode", "_keeps", "_kinds", "_known", "_loop", "_timeout_s")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        kinds: TableKinds,
        timeout_s: float,
        *,
        keeps: bool = False,
        encode: Encode | None = None,
    ) -> None:
        self._encode = encode
        self._keeps = keeps
        self._loop = loop
        self._kinds = kinds
        self._known = kinds.known
        self._timeout_s = timeout_s
        self._closed: OperationFailed | None = None

    def close(self, reason: OperationFailed) -> None:
        """Refuse further writes; those prepared before go on."""
        self._closed = reason

    def check(self) -> None:
        """Raise the reason why no further write is taken, if there is one."""
        if self._closed is not None:
            raise not_applied(self._closed)

    def deadline(self, timeout_s: float | None) -> float:
        """Return the deadline of a write that is called now; raises the reason why no further write is taken."""
        self.check()
        left_s = self._timeout_s if timeout_s is None else seconds(timeout_s)
        if left_s <= 0:
            raise late("it had passed at the call")
        return self._loop.time() + left_s

    def put(
        self,
        table: str,
        key: str,
        value: Any,
        if_absent: bool,
        if_version: int | None,
        if_value: Any,
        timeout_s: float | None,
    ) -> Pending:
        """Prepare a put; arguments as :meth:`oncegate.gateway.client.Session.put`."""
        if not (  # without a call for what is usual: this is the hot path
            type(table) is str
            and table in self._known
            and type(key) is str
            and key.isascii()
            and 0 < len(key) <= KEY_BYTES_MAX
            and "\0" not in key
        ):
            table, key = name_of(table), key_of(key)
        if self._encode is not None:
            value, if_value = self.plain(value), self.plain(if_value, "if_value")
        operation = Operation(0, "put", table, key, msgspec.Raw(packed(value, bytes_too=True)))
        text: str | None = None
        if if_absent is not False or if_version is not None or if_value is not UNSET:
            operation.if_ = _condition(if_version, if_value, if_absent=flag(if_absent, "if_absent"))
        elif not self._keeps:
            kind = self._known.get(table)
            if kind == "stream" and type(value) is not bytes:
                text = canonical(value, is_checked=True)
            elif kind is None:
                self._kinds.wonder(table)
        loop = self._loop
        if timeout_s is None and self._closed is None:
            deadline = loop.time() + self._timeout_s
        else:
            deadline = self.deadline(timeout_s)
        return Pending(operation, text, loop.create_future(), deadline)

    def other(
        self,
        name: OperationName,
        table: str,
        key: str,
        if_version: int | None,
        if_value: Any,
        timeout_s: float | None,
        *,
        by: int = 1,
        item: Any = UNSET,
    ) -> Pending:
        """Prepare a delete, an increment, an append, or a read whose result is remembered, which has no condition."""
        operation = Operation(0, name, name_of(table), key_of(key))
        if name != "get":
            operation.if_ = _condition(if_version, self.plain(if_value, "if_value"))
        if name == "increment":
            operation.by = whole(by, "by", -(2**63), 2**63 - 1)
        elif name == "append":
            operation.item = msgspec.Raw(packed(self.plain(item, "item"), "item"))
        return self._pending(operation, None, timeout_s)

    def transaction(self, transaction: Transaction, timeout_s: float | None) -> Pending:
        """Prepare a transaction; what is added to it later does not matter."""
        return self._pending(operation_of(transaction), None, timeout_s)

    def any(
        self,
        name: OperationName,
        table: str,
        key: str,
        value: Any,
        by: int,
        if_absent: bool,
        if_version: int | None,
        if_value: Any,
        timeout_s: float | None,
    ) -> Pending:
        """Prepare the write of that name; an argument that it does not take is refused, rather than left out."""
        if name == "put":
            unused = by != 1
        else:
            if not isinstance(name, str) or name not in get_args(OperationName):
                raise bad("an operation is put, delete, increment, append or get")
            conditional = if_version is not None or if_value is not UNSET
            unused = (
                if_absent is not False
                or (name != "increment" and by != 1)
                or (name != "append" and value is not UNSET)
                or (name == "get" and conditional)
            )
        if unused:
            raise bad(f"{name} does not take one of these arguments")
        if name == "put":
            return self.put(table, key, value, if_absent, if_version, if_value, timeout_s)
        return self.other(name, table, key, if_version, if_value, timeout_s, by=by, item=value)

    def many(
        self,
        table: str,
        pairs: list[tuple[str, Any]],
        kind: TableKind,
        collector: RowsCollector,
        deadline: float,
        rows_max: int,
    ) -> list[Pending | PendingRows]:
        """Prepare the rows of a ``put_many``: ranges of ``rows_max`` on a stream table, else one write a row."""
        if kind == "resident" or self._keeps:
            promise = RowPromise(collector)
            puts = [Operation(0, "put", table, key, msgspec.Raw(packed(value))) for key, value in pairs]
            return [Pending(put, None, promise, deadline, alone=False) for put in puts]
        keys = [key for key, _ in pairs]
        texts = [canonical(value) for _, value in pairs]
        return [
            PendingRows(table, keys[at : at + rows_max], texts[at : at + rows_max], collector, deadline)
            for at in range(0, len(keys), rows_max)
        ]

    def _pending(self, operation: Operation, text: str | None, timeout_s: float | None) -> Pending:
        deadline = self.deadline(timeout_s)  # first: it says why no further write is taken
        return Pending(operation, text, self._loop.create_future(), deadline)

    def note(self, pending: Pending | PendingRows, position: Any) -> None:
        """Give a write the position that the outbox is to keep with it: as it is now, whatever becomes of the object.

        Raises:
            OperationFailed: BAD_REQUEST without an outbox, or if it is not JSON; PAYLOAD_TOO_LARGE over 1 KiB.
        """
        if not self._keeps or isinstance(pending, PendingRows):
            raise bad("only a session with an outbox keeps a position")
        position = self.plain(position, "position")
        pending.position = msgspec.msgpack.decode(packed(position, "position", POSITION_BYTES_MAX))

    def plain(self, value: Any, what: str = "value") -> Any:
        """Return a value as JSON can say it."""
        return value if value is UNSET else plain(value, self._encode, what)

    def again(self, operation: Operation, timeout_s: float | None = None) -> Pending:
        """Prepare a write of an earlier process under its number."""
        return self._pending(operation, None, timeout_s)


def let_end(pending: Pending | PendingRows, ttl_ms: int | None, *, bound: bool) -> None:
    """Let the row that a write makes end: after ``ttl_ms`` of cluster time, with the session, or whichever is first.

    Raises:
        OperationFailed: BAD_REQUEST for a time that is no whole number of 1 and more, and for rows of a stream table.
    """
    if isinstance(pending, PendingRows):
        raise bad("rows of a stream table do not end")
    if ttl_ms is not None:
        pending.operation.ttl_ms = whole(ttl_ms, "ttl_ms", 1, TTL_MS_MAX)
    if flag(bound, "bound"):
        pending.operation.bound = True
    pending.text = None  # a range has no room for it


def _condition(if_version: int | None, if_value: Any, *, if_absent: bool = False) -> dict[str, Any] | msgspec.UnsetType:
    if if_absent + (if_version is not None) + (if_value is not UNSET) > 1:
        raise bad("an operation has one condition at most")
    if if_absent:
        return {"absent": True}
    if if_version is not None:
        return {"version": whole(if_version, "if_version", 0)}
    if if_value is not UNSET:
        return {"value": msgspec.Raw(packed(if_value, "if_value", bytes_too=True))}
    return msgspec.UNSET


def pairs_of(rows: Any) -> list[tuple[str, Any]]:
    """Return the rows of a ``put_many`` with their keys checked; raises BAD_REQUEST."""
    try:
        pairs = [(key_of(key), value) for key, value in (rows.items() if isinstance(rows, Mapping) else rows)]
    except (TypeError, ValueError) as malformed:
        raise bad(f"rows are pairs of key and value: {malformed}") from malformed
    if not pairs:
        raise bad("put_many needs at least one row")
    return pairs
