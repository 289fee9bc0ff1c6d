"""The weaker levels that versions decide: session guarantees, and how old a read may be.

Owns: read your writes, monotonic reads, monotonic writes, writes follow reads (Terry et al. 1994), and the bound on
stale reads. A version is the ``version`` of a result: unique, growing; of a read of a list it is the length. Operations
of one session are ordered where one had ended before the other began. Both checks sort and sweep.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Final

from oncegate.proof.lincheck.history import Operation, refused
from oncegate.proof.lincheck.sentences import seconds, what, when
from oncegate.proof.lincheck.values import freeze
from oncegate.proof.lincheck.verdict import Failure, Result

FAILURES_MAX: Final = 20
_READS: Final = frozenset({"read", "get"})
_Top = tuple[int, Operation]


def version_of(op: Operation) -> int | None:
    """Return the version that an operation made or saw; None if it was told none."""
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
        ``unknown`` if no operation was told a version.
    """
    return _Sweep("session guarantees").run(operations, session, 0)


def stale_reads(operations: Iterable[Operation], bound_ns: int = 0) -> Result:
    """Check that no read is older than a bound.

    Args:
        operations: of the whole history.
        bound_ns: a read may miss what was acknowledged at most so many nanoseconds before it began.

    Returns:
        ``unknown`` if no operation was told a version.
    """
    return _Sweep(f"reads at most {seconds(bound_ns)} old", stale=True).run(operations, lambda _: None, bound_ns)


class _Sweep:
    def __init__(self, name: str, *, stale: bool = False) -> None:
        self.name = name
        self.stale = stale
        self.failures: list[Failure] = []
        self.anomalies = 0

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
            "invalid" if self.anomalies else "valid" if groups or not total else "unknown",
            total,
            len({key for key, _ in groups}),
            self.failures,
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
        self.anomalies += 1
        if len(self.failures) < FAILURES_MAX:
            words = [
                f"{name}: {what(before)}{when(before)}",
                f"then {what(op)}{when(op)}",
                f"version {version_of(op)} is older than {version_of(before)}",
            ]
            self.failures.append(Failure(key=op.key, window=[before.index, op.index], words=words))


def _reads(op: Operation) -> bool:
    return op.f in _READS or refused(op)


def _top(top: _Top | None, op: Operation) -> _Top:
    version = version_of(op) or 0
    return top if top is not None and top[0] >= version else (version, op)
