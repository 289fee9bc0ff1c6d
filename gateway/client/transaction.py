"""Transactions: writes and conditions that are collected, travel as one operation, and happen together or not at all.

Owns: how a transaction is written down. It is checked and encoded call by call, so that a later change of a value does
not matter. When it travels is :mod:`oncegate.gateway.client.session`'s, what it does
:mod:`oncegate.gateway.machine.transactions`'.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Final, Self

import msgspec
from msgspec import UnsetType

from oncegate.gateway.client.arguments import (
    TTL_MS_MAX,
    Encode,
    bad,
    encoder,
    flag,
    key_of,
    name_of,
    packed,
    plain,
    whole,
)
from oncegate.gateway.client.failures import OperationFailed
from oncegate.gateway.client.results import Value, WriteResult
from oncegate.gateway.wire import Condition, Operation, Write
from oncegate.rifl.errors import Code
from oncegate.rifl.ids import ID_MAX, format_client_id

UNSET: Final = msgspec.UNSET
TAKE_MAX: Final = 64
"""Rows that one take moves."""
WRITES_MAX: Final = 128
"""Writes of one transaction, and its conditions."""
INT64: Final = (-(2**63), 2**63 - 1)


class Transaction:
    """Up to 128 writes, and as many conditions, of any rows and tables; each call returns the transaction.

    All conditions are judged on the state before it, those of its writes too; its writes are done in the order of the
    calls, and several may be of one row. A floor or ceiling is judged on the sum. A table of conditions is resident; a
    stream table takes ``put`` and ``delete``.

    Args:
        encode: as of :class:`oncegate.Client`; :meth:`oncegate.Session.transaction` brings its client's.
    """

    def __init__(self, *, encode: Encode | None = None) -> None:
        self._encode = encoder(encode)
        self._writes: list[Write] = []
        self._conditions: list[Condition] = []

    def copy(self) -> Transaction:
        """Return another one with the same writes and conditions: what is added to it is not added here."""
        copied = Transaction()
        copied._encode, copied._writes, copied._conditions = self._encode, [*self._writes], [*self._conditions]
        return copied

    def put(
        self,
        table: str,
        key: str,
        value: Value,
        *,
        if_absent: bool = False,
        if_version: int | None = None,
        if_value: Value | UnsetType = UNSET,
        ttl_ms: int | None = None,
        bound: bool = False,
        numbered: bool = False,
        then: str | None = None,
    ) -> Self:
        """Write a row; ``ttl_ms`` and ``bound`` let it end, as :meth:`oncegate.Session.put` says.

        With ``numbered`` the row's key is ``key`` and 19 digits more, those of the write's commit number, which is the
        version in its result: keys that only rise, and that nobody has to ask for. With ``then``, a key that is not
        longer, a row that ends is moved there, as one that stays; with ``numbered`` the number stands behind it too.
        Neither goes with a condition.
        """
        conditions = self._tests(absent=if_absent, version=if_version, value=if_value)
        more: dict[str, Any] = {"numbered": True} if flag(numbered, "numbered") else {}
        if then is not None:
            more["then"] = key_of(then)
        raw = msgspec.Raw(packed(plain(value, self._encode), bytes_too=True))
        return self._write("put", table, key, conditions, value=raw, **_end(ttl_ms, bound=bound), **more)

    def take(
        self, table: str, prefix: str, to: str, count: int = 1, *, ttl_ms: int | None = None, bound: bool = False
    ) -> Self:
        """Take the first rows of a prefix; the last write of its transaction.

        Up to ``count`` rows, those with the smallest keys, are moved: to keys that begin with ``to`` in the place of
        ``prefix``. Nobody else gets them, whoever takes at the same time. Those that end, by ``ttl_ms`` or ``bound``,
        come back under their own keys then; others stay. A value that is a list whose first item is a whole number has
        it counted up: so often it was taken. The result's ``rows`` have keys, versions and values.

        Args:
            table: a resident table.
            prefix: not empty.
            to: another prefix, which is not longer; neither begins with the other.
            count: 1 to 64; fewer are taken if there are no more, or their values together are over 64 KiB.
            ttl_ms: after how much cluster time they come back.
            bound: they come back when this session ends.
        """
        more = {"to": key_of(to), "count": whole(count, "count", 1, TAKE_MAX), **_end(ttl_ms, bound=bound)}
        return self._write("take", table, prefix, {}, **more)

    def insert(self, table: str, key: str, value: Value, *, ttl_ms: int | None = None, bound: bool = False) -> Self:
        """Write a row; the whole transaction is refused if it is there."""
        return self.put(table, key, value, if_absent=True, ttl_ms=ttl_ms, bound=bound)

    def delete(
        self, table: str, key: str, *, if_version: int | None = None, if_value: Value | UnsetType = UNSET
    ) -> Self:
        """Delete a row."""
        return self._write("delete", table, key, self._tests(version=if_version, value=if_value))

    def increment(
        self,
        table: str,
        key: str,
        by: int = 1,
        *,
        floor: int | None = None,
        ceiling: int | None = None,
        ttl_ms: int | None = None,
        bound: bool = False,
    ) -> Self:
        """Add to a row's number; the whole transaction is refused if the sum is below the floor or above the ceiling.

        All four are whole numbers of 64 bits.
        """
        low, high = edges(floor, ceiling)
        step = {"by": whole(by, "by", *INT64), "floor": low, "ceiling": high}
        return self._write("increment", table, key, {}, **step, **_end(ttl_ms, bound=bound))

    def append(self, table: str, key: str, item: Value, *, ttl_ms: int | None = None, bound: bool = False) -> Self:
        """Add an item to the end of a row's bounded list."""
        raw = msgspec.Raw(packed(plain(item, self._encode, "item"), "item"))
        return self._write("append", table, key, {}, item=raw, **_end(ttl_ms, bound=bound))

    def get(self, table: str, key: str) -> Self:
        """Read a row as the writes before leave it: its result has the value. All values together: 64 KiB."""
        return self._write("get", table, key, {})

    def check(
        self,
        table: str,
        key: str,
        *,
        absent: bool = False,
        present: bool = False,
        version: int | None = None,
        value: Value | UnsetType = UNSET,
        at_least: int | None = None,
        at_most: int | None = None,
    ) -> Self:
        """Require something of a row, which need not be written: exactly one of these.

        Args:
            table: a resident table.
            key: the row's.
            absent: there is no such row.
            present: there is one.
            version: its version; 0 for no row.
            value: its value.
            at_least: it holds a whole number that is not less; no row counts as 0, as an increment finds it.
            at_most: likewise, not more.
        """
        numbers = {"version": version, "at_least": at_least, "at_most": at_most}
        tests = self._tests(absent=absent, present=present, value=value, **numbers)
        if not tests:
            raise bad("check needs absent, present, version, value, at_least or at_most")
        self._conditions.append(Condition(name_of(table), key_of(key), tests))
        return self._bounded(self._conditions)

    def check_session(self, client_id: int) -> Self:
        """Require that a session, of this application or another of its tenant, is alive."""
        self._conditions.append(Condition(session=format_client_id(whole(client_id, "client_id", 1, ID_MAX))))
        return self._bounded(self._conditions)

    @property
    def empty(self) -> bool:
        """Whether it has no write: there is nothing to send."""
        return not self._writes

    @property
    def operation(self) -> Operation:
        """It as an operation; raises BAD_REQUEST without a write."""
        if not self._writes:
            raise bad("a transaction needs a write")
        return Operation(0, "transaction", writes=[*self._writes], conditions=[*self._conditions])

    def _tests(self, *, value: Any = UNSET, **others: Any) -> dict[str, Any]:
        return _tests(value=value if value is UNSET else plain(value, self._encode, "if_value"), **others)

    def _write(self, op: str, table: str, key: str, tests: dict[str, Any], **more: Any) -> Self:
        if tests:
            more["if_"] = tests
        if self._writes and self._writes[-1].op == "take":
            raise bad("a take is the last write of its transaction")
        self._writes.append(Write(op, name_of(table), key_of(key), **more))
        return self._bounded(self._writes)

    def _bounded(self, many: list[Any]) -> Self:
        if len(many) > WRITES_MAX:
            many.pop()
            detail = f"a transaction has {WRITES_MAX} writes and as many conditions at most"
            raise OperationFailed(Code.PAYLOAD_TOO_LARGE, detail)
        return self


def _end(ttl_ms: int | None, *, bound: bool) -> dict[str, Any]:
    end: dict[str, Any] = {} if ttl_ms is None else {"ttl_ms": whole(ttl_ms, "ttl_ms", 1, TTL_MS_MAX)}
    return {**end, "bound": True} if flag(bound, "bound") else end


def operation_of(transaction: Transaction) -> Operation:
    """Return a transaction as an operation; raises BAD_REQUEST for what is none, and for one without a write."""
    if not isinstance(transaction, Transaction):
        raise bad(f"a transaction is a Transaction, not {type(transaction).__name__}")
    return transaction.operation


class OpenTransaction(Transaction):
    """A transaction of a session: ``async with session.transaction() as t``, and ``with`` in the sync SDK.

    It is sent when the block ends, unless by an exception: then nothing is. ``result`` is there afterwards; look at
    ``result.applied``, since a condition that does not hold is a result and not an error. An empty one is not sent.
    When the block has ended, nothing can be added, and it cannot be entered again: that would be lost, or sent twice.
    """

    def __init__(self, send: Callable[[Transaction], Any], encode: Encode | None = None) -> None:
        super().__init__(encode=encode)
        self._send = send
        self._result: WriteResult | None = None
        self._is_over = False

    def _bounded(self, many: list[Any]) -> Self:
        if self._is_over:
            many.pop()
            raise bad("the transaction's block has ended: what is added now would not be sent")
        return super()._bounded(many)

    def _enter(self) -> Self:
        if self._is_over:
            raise bad("a transaction is entered once")
        return self

    def _sends(self, kind: type[BaseException] | None) -> bool:
        self._is_over = True
        return kind is None and not self.empty

    @property
    def result(self) -> WriteResult:
        """What became of it; raises BAD_REQUEST before the block has ended, or if it was empty."""
        if self._result is None:
            raise bad("the transaction was not sent")
        return self._result

    async def __aenter__(self) -> Self:
        return self._enter()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._sends(kind):
            sent: Awaitable[WriteResult] = self._send(self)
            self._result = await sent

    def __enter__(self) -> Self:
        return self._enter()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._sends(kind):
            self._result = self._send(self)


def edges(floor: int | None, ceiling: int | None) -> tuple[int | UnsetType, int | UnsetType]:
    """Return the bounds of a sum as they travel."""
    low = UNSET if floor is None else whole(floor, "floor", *INT64)
    return low, UNSET if ceiling is None else whole(ceiling, "ceiling", *INT64)


def _tests(
    *,
    absent: bool = False,
    present: bool = False,
    version: int | None = None,
    value: Any = UNSET,
    at_least: int | None = None,
    at_most: int | None = None,
) -> dict[str, Any]:
    """Return the one condition that is given, or none."""
    tests: dict[str, Any] = {}
    if flag(absent, "absent"):
        tests["absent"] = True
    if flag(present, "present"):
        tests["present"] = True
    if version is not None:
        tests["version"] = whole(version, "version", 0, ID_MAX)
    if value is not UNSET:
        tests["value"] = msgspec.Raw(packed(value, bytes_too=True))
    for name, bound in (("at_least", at_least), ("at_most", at_most)):
        if bound is not None:
            tests[name] = whole(bound, name, *INT64)
    if len(tests) > 1:
        raise bad("one condition at most")
    return tests
