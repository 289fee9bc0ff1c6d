"""The weaker levels: sequential consistency of each key, session guarantees, and how old a read may be.

Owns: the search for an order that keeps what each process did in its order, not real time (Lamport 1979). Deciding all
keys together is another, harder question; this is each key by itself. An unknown operation may come after what its
process did before, or never.

Versions decide read your writes, monotonic reads, monotonic writes, writes follow reads (Terry et al. 1994), and the
bound on stale reads. A version is the ``version`` of a result: unique, growing; of a read of a list it is the length.
Operations of one session are ordered where one had ended before the other began. Both checks sort and sweep.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from sys import getsizeof
from typing import Any, Final

from oncegate.proof.lincheck.check import over_keys, split
from oncegate.proof.lincheck.history import Operation, freeze, refused
from oncegate.proof.lincheck.models import ILLEGAL, Model, changes_nothing, describe, prepared
from oncegate.proof.lincheck.search import SearchOutcome, checked, decide
from oncegate.proof.lincheck.sentences import no_proof, seconds, what, when
from oncegate.proof.lincheck.verdict import Failure, Failures, Limits, Result

_PLACE_BYTES: Final = 400
_WINDOW_MAX: Final = 8
_READS: Final = frozenset({"read", "get"})
_Top = tuple[int, Operation]


def sequential(operations: Iterable[Operation], model: Model, limits: Limits = Limits()) -> Result:  # noqa: B008
    """Decide whether each key's operations are sequentially consistent.

    Args, returns and errors are those of :func:`oncegate.proof.lincheck.check.check`.
    """
    parts = split(checked(model, operations), model)
    return over_keys("sequential", model, parts, limits, partial(_decide, model), partial(_failure, model))


def _special(model: Model, part: Sequence[Operation]) -> Model:
    return model if getattr(model, "prepares_by_time", False) else prepared(model, part)


def _decide(model: Model, part: Sequence[Operation], limits: Limits) -> SearchOutcome:
    found = SearchOutcome("unknown")
    if not _overlap(part):
        # What is linearizable is sequentially consistent too, and mostly decided much faster.
        half = replace(limits, seconds=limits.seconds / 2, states_max=limits.states_max // 2 + 1)
        found = decide(model, part, half)
    return found if found.verdict == "valid" else _search(_special(model, part), part, limits)


def _failure(model: Model, key: Any, part: Sequence[Operation], found: SearchOutcome, _: Limits) -> Failure:
    window = found.stuck[:_WINDOW_MAX]
    return Failure(
        key=key,
        prefix=[op.index for op in found.order],
        stuck=[op.index for op in found.stuck],
        window=[op.index for op in window],
        states=[describe(_special(model, part), state) for state in found.states],
        words=no_proof(window, len(found.order)),
    )


def _overlap(operations: Sequence[Operation]) -> bool:
    """Tell whether a process ran two operations at once: attempts of one request at several processes are one."""
    ends: dict[int, int] = {}
    for op in sorted(operations, key=lambda op: (op.invoked, op.index)):
        if op.status == "ok" and op.invoked <= ends.get(op.process, -1):
            return True
        ends[op.process] = max(ends.get(op.process, -1), op.returned or 0)
    return False


def _search(model: Model, operations: Sequence[Operation], limits: Limits) -> SearchOutcome:
    lanes: dict[int, list[Operation]] = {}
    loose: list[tuple[Operation, int, int]] = []
    numbers: dict[int, int] = {}
    for op in sorted(operations, key=lambda op: (op.invoked, op.index)):
        lane = lanes.setdefault(op.process, [])
        number = numbers.setdefault(op.process, len(numbers))
        if op.status == "ok":
            lane.append(op)
        elif not changes_nothing(model, op):
            loose.append((op, number, len(lane)))
    rows = list(lanes.values())
    count = sum(map(len, rows))
    start = tuple(0 for _ in rows)
    ends = limits.clock() + limits.seconds
    seen: set[Hashable] = set()
    held = 0
    best, most = None, -1
    found = SearchOutcome("invalid")
    # A frame: places in the lanes, unknown operations done, state, order so far as a chain.
    stack: list[tuple[tuple[int, ...], int, Any, Any, int]] = [(start, 0, model.initial(), None, 0)]
    while stack:
        places, used, state, chain, length = stack.pop()
        places, chain, length = _possible_reads(model, rows, places, state, chain, length)
        place = (places, used, state)
        if place in seen:
            continue
        seen.add(place)
        held += _PLACE_BYTES + 16 * len(places) + getsizeof(state)
        if length > most:
            best, most = chain, length
            found.stuck = [row[at] for row, at in zip(rows, places, strict=True) if at < len(row)]
            found.states = [state]
        if sum(places) == count:
            return SearchOutcome("valid", order=_order(chain), visited=len(seen), bytes=held)
        if len(seen) > limits.states_max or held > limits.bytes_max:
            found.verdict, found.reason = "unknown", f"over {len(seen) - 1} states or {held} bytes"
            break
        if not len(seen) % 256 and limits.clock() > ends:
            found.verdict, found.reason = "unknown", f"no time left after {limits.seconds:g} s"
            break
        for number, (op, track, after) in enumerate(loose):
            if not used >> number & 1 and places[track] >= after:
                result = model.step(state, op)
                if result is not ILLEGAL and result != state:
                    stack.append((places, used | 1 << number, result, (chain, op), length + 1))
        for track, at in sorted(enumerate(places), key=lambda item: -_end(rows, item)):
            if at < len(rows[track]):
                result = model.step(state, rows[track][at])
                if result is not ILLEGAL:
                    moved = (*places[:track], at + 1, *places[track + 1 :])
                    stack.append((moved, used, result, (chain, rows[track][at]), length + 1))
    found.order, found.visited, found.bytes = _order(best), len(seen), held
    return found


def _end(rows: Sequence[Sequence[Operation]], item: tuple[int, int]) -> int:
    lane, at = item
    return (rows[lane][at].returned or 0) if at < len(rows[lane]) else 0


def _possible_reads(
    model: Model, rows: Sequence[Sequence[Operation]], places: tuple[int, ...], state: Any, chain: Any, length: int
) -> tuple[tuple[int, ...], Any, int]:
    """Do all reads that are possible: later they would only hold others up."""
    moved = list(places)
    again = True
    while again:
        again = False
        for lane, row in enumerate(rows):
            while moved[lane] < len(row):
                op = row[moved[lane]]
                if not changes_nothing(model, op) or model.step(state, op) != state:
                    break
                moved[lane] += 1
                chain, length, again = (chain, op), length + 1, True
    return tuple(moved), chain, length


def _order(chain: Any) -> list[Operation]:
    order: list[Operation] = []
    while chain is not None:
        chain, op = chain
        order.append(op)
    order.reverse()
    return order


def version_of(op: Operation) -> int | None:
    """Return the version that an operation made or saw; None if its answer has none."""
    if op.status != "ok":
        return None
    if isinstance(op.result, dict):
        version = op.result.get("version")
        return version if type(version) is int else None
    return len(op.result) if op.f in _READS and isinstance(op.result, list) else None


def client_of(op: Operation) -> Hashable:
    """Return the session of an operation: the client id of its request, else its process."""
    return op.process if op.request is None else op.request.partition("/")[0]


def sessions(operations: Iterable[Operation], session: Callable[[Operation], Hashable] = client_of) -> Result:
    """Check the four session guarantees, key by key.

    Returns:
        ``unknown`` if no answer has a version.
    """
    return _Sweep("session guarantees").run(operations, session, 0)


def stale_reads(operations: Iterable[Operation], bound_ns: int = 0) -> Result:
    """Check that no read is older than a bound.

    Args:
        operations: of the whole history.
        bound_ns: a read may miss what was acknowledged at most so many nanoseconds before it began.

    Returns:
        ``unknown`` if no answer has a version.
    """
    return _Sweep(f"reads at most {seconds(bound_ns)} old", stale=True).run(operations, lambda _: None, bound_ns)


class _Sweep:
    def __init__(self, name: str, *, stale: bool = False) -> None:
        self.name = name
        self.stale = stale
        self.failures = Failures()

    def run(self, operations: Iterable[Operation], session: Callable[[Operation], Hashable], bound_ns: int) -> Result:
        groups: dict[tuple[Hashable, Hashable], list[Operation]] = {}
        deleted: set[Hashable] = set()
        total = 0
        for op in operations:
            total += 1
            if op.f == "delete" and op.status != "failed":
                deleted.add(freeze(op.key))
            if version_of(op) is not None:
                groups.setdefault((freeze(op.key), session(op)), []).append(op)
        for group in groups.values():
            gone = freeze(group[0].key) in deleted
            self._group([op for op in group if version_of(op) or not gone], bound_ns)
        return Result(
            self.name,
            "invalid" if self.failures.count else "valid" if groups or not total else "unknown",
            total,
            len({key for key, _ in groups}),
            self.failures.listed,
            "" if groups or not total else "no operation was told a version",
        )

    def _group(self, group: Sequence[Operation], bound_ns: int) -> None:
        by_end = sorted(group, key=lambda op: op.returned or 0)
        wrote: _Top | None = None
        saw: _Top | None = None
        place = 0
        for op in sorted(group, key=lambda op: op.invoked):
            while place < len(by_end) and (by_end[place].returned or 0) + bound_ns < op.invoked:
                done = by_end[place]
                if _reads(done):
                    saw = _top(saw, done)
                else:
                    wrote = _top(wrote, done)
                place += 1
            version = version_of(op) or 0
            for top, after_read, after_write in (
                (wrote, "read your writes", "monotonic writes"),
                (saw, "monotonic reads", "writes follow reads"),
            ):
                if top is None or version >= top[0]:
                    continue
                if self.stale:
                    if _reads(op):
                        self._fail(op, top[1], "stale read")
                        break
                else:
                    self._fail(op, top[1], after_read if _reads(op) else after_write)

    def _fail(self, op: Operation, before: Operation, name: str) -> None:
        words = [
            f"{name}: {what(before)}{when(before)}",
            f"then {what(op)}{when(op)}",
            f"version {version_of(op)} is older than {version_of(before)}",
        ]
        self.failures.add(Failure(key=op.key, window=[before.index, op.index], words=words))


def _reads(op: Operation) -> bool:
    return op.f in _READS or refused(op)


def _top(top: _Top | None, op: Operation) -> _Top:
    version = version_of(op) or 0
    return top if top is not None and top[0] >= version else (version, op)
