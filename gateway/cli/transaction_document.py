"""A transaction as a document of JSON, in the form of the body of ``POST /v1/transactions``, for ``oncegate txn``.

Owns: which member of the document is which argument of the SDK, which checks it. What a transaction does: docs/API.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from oncegate.gateway.client import OncegateError, OperationFailed
from oncegate.gateway.wire import Transaction as Document
from oncegate.rifl.errors import Code
from oncegate.rifl.ids import parse_client_id

if TYPE_CHECKING:
    from oncegate.gateway.client import Json, Transaction
    from oncegate.gateway.wire import Condition, Write

_TAKES: Final = {
    "put": {"value", "ttl_ms", "bound", "numbered", "then"},
    "delete": set[str](),
    "increment": {"by", "floor", "ceiling", "ttl_ms", "bound"},
    "append": {"item", "ttl_ms", "bound"},
    "get": set[str](),
    "take": {"to", "count", "ttl_ms", "bound"},
}
"""The members of a write, beside op, table, key and if."""
_NEEDS: Final = {"put": "value", "append": "item", "take": "to"}
_MEMBERS: Final = ("value", "item", "by", "floor", "ceiling", "ttl_ms", "bound", "numbered", "then", "to", "count")
_OWN_IF: Final = {"put": {"absent", "version", "value"}, "delete": {"version", "value"}}
"""Tests that the SDK takes with the write; the others, and those of other writes, go beside it as conditions."""


def into(made: Transaction, document: Json) -> None:
    """Add what a document says to a transaction.

    Raises:
        OncegateError: BAD_REQUEST, with the place of what is wrong.
    """
    try:
        body = msgspec.convert(document, Document)
    except msgspec.ValidationError as fault:
        raise _bad(str(fault)) from None
    for at, condition in enumerate(body.conditions):
        _at(f"conditions[{at}]", _add_condition, made, condition)
    for at, write in enumerate(body.writes):
        _at(f"writes[{at}]", _add_write, made, write)


def _at(place: str, add: Any, made: Transaction, one: Any) -> None:
    try:
        add(made, one)
    except OncegateError as fault:
        raise OperationFailed(fault.code, f"{place}: {fault.detail}") from None
    except (TypeError, ValueError) as fault:
        raise _bad(f"{place}: {fault}") from None


def _add_condition(made: Transaction, condition: Condition) -> None:
    if condition.session is not msgspec.UNSET:
        if (condition.table, condition.key, condition.if_) != (msgspec.UNSET,) * 3:
            raise _bad("a condition is of a session, or of a row")
        made.check_session(parse_client_id(condition.session))
    elif condition.table is msgspec.UNSET or condition.key is msgspec.UNSET or condition.if_ is msgspec.UNSET:
        raise _bad("a condition has session, or table, key and if")
    else:
        made.check(condition.table, condition.key, **_tests(condition.if_))


def _add_write(made: Transaction, write: Write) -> None:
    if write.op not in _TAKES:
        raise _bad(f"op is one of {', '.join(_TAKES)}")
    members = {name: getattr(write, name) for name in _MEMBERS}
    given = {name: one for name, one in members.items() if one is not msgspec.UNSET}
    wrong = sorted(given.keys() - _TAKES[write.op])
    if wrong:
        raise _bad(f"{write.op} does not take {', '.join(wrong)}")
    needed = _NEEDS.get(write.op)
    if needed is not None and needed not in given:
        raise _bad(f"{write.op} needs {needed}")
    tests = {} if write.if_ is msgspec.UNSET else _tests(write.if_)
    if tests and write.op == "take":
        raise _bad("take does not take if")
    if tests and tests.keys() <= _OWN_IF.get(write.op, set()):
        given |= {f"if_{name}": one for name, one in tests.items()}
    elif tests:
        made.check(write.table, write.key, **tests)
    getattr(made, write.op)(write.table, write.key, **given)


def _tests(tests: dict[str, Any]) -> dict[str, Any]:
    wrong = sorted(tests.keys() - {"absent", "present", "version", "value", "at_least", "at_most"})
    if wrong:
        raise _bad(f"if does not take {', '.join(wrong)}")
    return tests


def _bad(detail: str) -> OperationFailed:
    return OperationFailed(Code.BAD_REQUEST, detail)
