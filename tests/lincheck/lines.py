"""Short ways to write histories down."""

from __future__ import annotations

from typing import Any

from oncegate.proof.lincheck import Event, Operation


def op(index: int, f: str, argument: Any, result: Any, invoked: int, returned: int | None, **more: Any) -> Operation:
    """An operation that is ok if it has an end, else unknown."""
    given = {"process": index, "key": None, "status": "unknown" if returned is None else "ok"} | more
    return Operation(index=index, f=f, argument=argument, result=result, invoked=invoked, returned=returned, **given)


def one_by_one(*calls: tuple[str, Any, Any]) -> list[Operation]:
    """Operations that follow each other: (f, argument, result)."""
    return [op(place, *call, 10 * place, 10 * place + 5) for place, call in enumerate(calls)]


def event(process: int, kind: Any, f: str, value: Any = None, **more: Any) -> Event:
    return Event(process, kind, f, value=value, **more)
