"""One write: its operation, encoded at the call, with the promise of its result.

Owns: how a write call becomes a :class:`oncegate.gateway.client.batch.Pending`. Must not know when it travels.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from oncegate.gateway.client.batch import Pending, PendingRows, RowPromise, RowsCollector
from oncegate.gateway.client.failures import OperationFailed
from oncegate.gateway.client.outbox_file import POSITION_BYTES_MAX
from oncegate.gateway.client.settings import TableKind
from oncegate.gateway.client.verdicts import not_applied
from oncegate.gateway.wire import Operation
from oncegate.rifl.errors import Code

if TYPE_CHECKING:
    from oncegate.gateway.client.connection import TableKinds

OperationName = Literal["put", "delete", "increment", "append", "get"]
UNSET: Final = msgspec.UNSET
_encode: Final = msgspec.msgpack.Encoder().encode
_encode_text: Final = msgspec.json.Encoder(order="deterministic").encode


def encoded_text(value: Any) -> str:
    """Return a value as canonical JSON, the form the server hashes: one fingerprint, alone or in a range.

    Raises:
        OperationFailed: BAD_REQUEST for a number that JSON has no word for; msgspec would write ``null``.
    """
    text = _encode_text(value).decode()
    if "null" in text:
        try:
            json.dumps(msgspec.to_builtins(value), allow_nan=False)
        except ValueError as refused:
            raise OperationFailed(Code.BAD_REQUEST, f"JSON cannot say this value: {refused}") from refused
    return text


def _check_text(*texts: Any) -> None:
    """Refuse what could not be encoded when it travels, together with writes of others: BAD_REQUEST."""
    for text in texts:
        if not isinstance(text, str):
            raise OperationFailed(Code.BAD_REQUEST, f"a table and a key are text, not {type(text).__name__}")
        if not text.isascii():
            try:
                text.encode()
            except UnicodeEncodeError as refused:
                raise OperationFailed(Code.BAD_REQUEST, f"UTF-8 cannot say {text!a}") from refused


def _check_number(number: Any, what: str) -> None:
    if not isinstance(number, int) or not -(2**63) <= number < 2**63:
        raise OperationFailed(Code.BAD_REQUEST, f"{what} is a whole number of 64 bits")


class Writes:
    """Prepares the writes of one session; ``timeout_s`` is the total time of one that does not say otherwise.

    ``keeps``: an outbox keeps them. Then no put travels as a row of a range, and each may have a position.
    """

    __slots__ = ("_closed", "_keeps", "_kinds", "_known", "_loop", "_timeout_s")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, kinds: TableKinds, timeout_s: float, *, keeps: bool = False
    ) -> None:
        self._keeps = keeps
        self._loop = loop
        self._kinds = kinds
        self._known = kinds.known
        self._timeout_s = timeout_s
        self._closed: OperationFailed | None = None

    def close(self, reason: OperationFailed) -> None:
        """Refuse further writes; those prepared before go on."""
        self._closed = reason

    def deadline(self, timeout_s: float | None) -> float:
        """Return the deadline of a write that is called now; raises the reason why no further write is taken."""
        if self._closed is not None:
            raise not_applied(self._closed)
        return self._loop.time() + (self._timeout_s if timeout_s is None else timeout_s)

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
        text: str | None = None
        if not (table.__class__ is str is key.__class__ and table.isascii() and key.isascii()):
            _check_text(table, key)  # called for the rare case only: this is the hot path
        operation = Operation(0, "put", table, key, msgspec.Raw(_encode(value)))
        if if_absent or if_version is not None or if_value is not UNSET:
            operation.if_ = _condition(if_version, if_value, if_absent=if_absent)
        elif not self._keeps:
            kind = self._known.get(table)
            if kind == "stream":
                text = encoded_text(value)
            elif kind is None:
                self._kinds.wonder(table)
        return self._pending(operation, text, timeout_s)

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
        _check_text(table, key)
        operation = Operation(0, name, table, key)
        if name != "get":
            operation.if_ = _condition(if_version, if_value)
        match name:
            case "increment":
                _check_number(by, "by")
                operation.by = by
            case "append":
                operation.item = msgspec.Raw(_encode(item))
            case "delete" | "get":
                pass
            case _:
                raise OperationFailed(Code.BAD_REQUEST, "an operation is put, delete, increment, append or get")
        return self._pending(operation, None, timeout_s)

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
        _check_text(table, *(key for key, _ in pairs))
        if kind == "resident" or self._keeps:
            promise = RowPromise(collector)
            puts = [Operation(0, "put", table, key, msgspec.Raw(_encode(value))) for key, value in pairs]
            return [Pending(put, None, promise, deadline) for put in puts]
        keys = [key for key, _ in pairs]
        texts = [encoded_text(value) for _, value in pairs]
        return [
            PendingRows(table, keys[at : at + rows_max], texts[at : at + rows_max], collector, deadline)
            for at in range(0, len(keys), rows_max)
        ]

    def _pending(self, operation: Operation, text: str | None, timeout_s: float | None) -> Pending:
        return Pending(operation, text, self._loop.create_future(), self.deadline(timeout_s))

    def note(self, pending: Pending, position: Any) -> None:
        """Give a write the position that the outbox is to keep with it.

        Raises:
            OperationFailed: BAD_REQUEST without an outbox; PAYLOAD_TOO_LARGE if it is longer than 1 KiB.
        """
        if not self._keeps:
            raise OperationFailed(Code.BAD_REQUEST, "only a session with an outbox keeps a position")
        if len(msgspec.msgpack.encode(position)) > POSITION_BYTES_MAX:
            raise OperationFailed(Code.PAYLOAD_TOO_LARGE, f"a position is {POSITION_BYTES_MAX} bytes at most")
        pending.position = position

    def again(self, operation: Operation, timeout_s: float | None = None) -> Pending:
        """Prepare a write of an earlier process under its number."""
        return self._pending(operation, None, timeout_s)


def _condition(if_version: int | None, if_value: Any, *, if_absent: bool = False) -> dict[str, Any] | msgspec.UnsetType:
    if if_absent + (if_version is not None) + (if_value is not UNSET) > 1:
        raise OperationFailed(Code.BAD_REQUEST, "an operation has one condition at most")
    if if_absent:
        return {"absent": True}
    if if_version is not None:
        _check_number(if_version, "if_version")
        return {"version": if_version}
    if if_value is not UNSET:
        return {"value": msgspec.Raw(_encode(if_value))}
    return msgspec.UNSET
