"""Read, compute, write, and again if another writer was faster.

Owns: the loop. Each write is an operation of its own, under a new id, on the version that was read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import msgspec

from oncegate.gateway.client.arguments import bad, whole
from oncegate.gateway.client.failures import OperationFailed
from oncegate.gateway.client.results import Json, Value, WriteResult
from oncegate.rifl.errors import Code, Outcome

if TYPE_CHECKING:
    from oncegate.gateway.client.session import Session

ATTEMPTS_MAX: Final = 64


class Updated(msgspec.Struct, frozen=True):
    """What an update wrote, with the ``result`` of the write that was applied, and how many ``attempts`` it took."""

    value: Value
    result: WriteResult
    attempts: int


async def update(
    session: Session,
    table: str,
    key: str,
    change: Callable[[Json], Value],
    attempts_max: int,
    *,
    ttl_ms: int | None,
    bound: bool,
    timeout_s: float | None,
) -> Updated:
    """Do as :meth:`oncegate.gateway.client.Session.update` says."""
    if not callable(change):
        raise bad("change is a function")
    for attempt in range(1, whole(attempts_max, "attempts_max") + 1):
        row = await session.get(table, key, consistency="linearizable", timeout_s=timeout_s)
        value = change(None if row is None else row.value)
        unchanged: dict[str, Any] = {"if_absent": True} if row is None else {"if_version": row.version}
        result = await session.put(table, key, value, **unchanged, ttl_ms=ttl_ms, bound=bound, timeout_s=timeout_s)
        if result.applied:
            return Updated(value, result, attempt)
    detail = f"row {key!r} of {table} was changed by others in each of {attempts_max} attempts"
    raise OperationFailed(Code.CONFLICT, detail, outcome=Outcome.NOT_APPLIED)
