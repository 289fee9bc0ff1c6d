"""Exactly once, counted: each acknowledged effect is there once, each unknown at most once, each refused never.

Owns: the linear-time audit of a history against what it left behind: a change log with request ids, or final values of
lists and counters. Knows nothing of order; that is the checker's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, Final

from oncegate.proof.lincheck.history import Event, Operation, freeze, refused, thaw
from oncegate.proof.lincheck.sentences import shown, what
from oncegate.proof.lincheck.verdict import FAILURES_MAX, Failure, Failures, Result, Verdict

_READS: Final = frozenset({"read", "get"})
_SUMS_MAX: Final = 1_000_000
"""Different sums of unknown increments that are looked at; over it the verdict is unknown."""


def audit(
    operations: Iterable[Operation], log: Iterable[str] | None = None, final: Mapping[Any, Any] | None = None
) -> Result:
    """Count effects.

    Args:
        operations: of the whole history.
        log: request ids of all applied effects, one an effect. Operations without a request are not looked at.
        final: value of each key after everything: a list of items (``append``, ``add``, ``enqueue``) or a number
            (``increment``). A key that is missing has none.

    Returns:
        A failure an anomaly, at most ``FAILURES_MAX``; ``unknown`` where unknown increments make too many sums.
    """
    listed = [op for op in operations if op.f not in _READS]
    count = _Count()
    if log is not None:
        _requests(listed, log, count)
    if final is not None:
        keys: dict[Hashable, list[Operation]] = {}
        for op in listed:
            keys.setdefault(freeze(op.key), []).append(op)
        values = {freeze(key): value for key, value in final.items()}
        for key in [*keys, *(key for key in values if key not in keys)]:
            value, asked = values.get(key), keys.get(key, [])
            if any(op.f in ("increment", "add") and type(_item(op)) is int for op in asked) and not isinstance(
                value, list
            ):
                _number(thaw(key), asked, value, count)
            else:
                _items(thaw(key), asked, value if isinstance(value, list) else [], count)
    verdict: Verdict = "invalid" if count.count else "unknown" if count.reason else "valid"
    return Result(
        name="exactly once",
        verdict=verdict,
        operations=len(listed),
        keys=len({freeze(op.key) for op in listed}),
        failures=count.listed,
        reason=count.reason or (f"{count.count} anomalies" if count.count > FAILURES_MAX else ""),
    )


def same_answers(events: Iterable[Event]) -> Result:
    """Check that all acknowledged attempts of one request got the same answer."""
    asked: dict[int, str | None] = {}
    first: dict[str, Event] = {}
    count = _Count()
    number = 0
    for event in events:
        if event.type == "invoke":
            asked[event.process] = event.request
            continue
        request = asked.pop(event.process, None)
        if event.type != "ok" or request is None:
            continue
        number += 1
        before = first.setdefault(request, event)
        if freeze(before.value) != freeze(event.value):
            text = f"request {request} was told {shown(before.value)} and then {shown(event.value)}"
            count.add(Failure(key=event.key, words=[text]))
    return Result("same answers", "invalid" if count.count else "valid", number, len(first), count.listed)


class _Count(Failures):
    reason = ""

    def compare(self, key: Any, name: str, asked: Sequence[Operation], times: int) -> None:
        """Compare how often an effect is there with the answers to its operations."""
        known = sum(op.status == "ok" and not refused(op) for op in asked)
        most = known + sum(op.status == "unknown" for op in asked)
        if known <= times <= most:
            return
        if times < known:
            text = f"{name} was acknowledged {_times(known)} and is there {_times(times)}"
        elif not asked:
            text = f"{name} is there {_times(times)}, and nobody asked for it"
        elif most == 0:
            text = f"{name} was refused and is there {_times(times)}"
        else:
            text = f"{name} can have happened {_times(most)} at most and is there {_times(times)}"
        indexes = [op.index for op in asked]
        self.add(Failure(key=key, window=indexes, words=[text, *(what(op) for op in asked[:4])]))


def _times(count: int) -> str:
    return "never" if count == 0 else "once" if count == 1 else f"{count} times"


def _item(op: Operation) -> Any:
    if isinstance(op.argument, dict):
        return op.argument.get("item", op.argument.get("by", 1))
    return 1 if op.argument is None else op.argument


def _requests(operations: Sequence[Operation], log: Iterable[str], count: _Count) -> None:
    applied = Counter(log)
    for op in operations:
        if op.request is not None:
            count.compare(op.key, f"request {op.request}", [op], applied.pop(op.request, 0))
    for request, times in applied.items():
        count.compare(None, f"request {request}", [], times)


def _items(key: Any, operations: Sequence[Operation], value: Sequence[Any], count: _Count) -> None:
    there = Counter(map(freeze, value))
    asked: dict[Hashable, list[Operation]] = {}
    for op in operations:
        if op.f in ("append", "add", "enqueue"):
            asked.setdefault(freeze(_item(op)), []).append(op)
    for item, ops in asked.items():
        count.compare(key, f"item {shown(thaw(item))} of {shown(key)}", ops, there.pop(item, 0))
    for item, times in there.items():
        count.compare(key, f"item {shown(thaw(item))} of {shown(key)}", [], times)


def _number(key: Any, operations: Sequence[Operation], value: Any, count: _Count) -> None:
    adds = [op for op in operations if op.f in ("increment", "add") and op.status != "failed" and not refused(op)]
    known = sum(_item(op) for op in adds if op.status == "ok")
    total = value if type(value) is int else 0
    unknown = Counter(_item(op) for op in adds if op.status == "unknown")
    rest = total - known
    low = sum(amount * times for amount, times in unknown.items() if amount < 0)
    high = sum(amount * times for amount, times in unknown.items() if amount > 0)
    fits = low <= rest <= high
    if fits and len(unknown) == 1:
        fits = rest % next(iter(unknown)) == 0
    elif fits and rest and len(unknown) > 1:
        sums = _sums(unknown)
        if sums is None:
            count.reason = f"the unknown increments of {shown(key)} make over {_SUMS_MAX} sums"
            return
        fits = rest in sums
    if not fits:
        text = (
            f"{shown(key)} is {total}; acknowledged increments make {known}, unknown ones between {low} and {high} more"
        )
        count.add(Failure(key=key, window=[op.index for op in adds if op.status == "unknown"], words=[text]))


def _sums(amounts: Mapping[int, int]) -> set[int] | None:
    sums = {0}
    for amount, times in amounts.items():
        if len(sums) * (times + 1) > _SUMS_MAX * 4:
            return None
        sums = {total + amount * taken for total in sums for taken in range(times + 1)}
        if len(sums) > _SUMS_MAX:
            return None
    return sums
