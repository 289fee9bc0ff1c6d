"""How histories are judged: by a model, or by invariants that take linear time, so that no search hides a lost write.

Owns: limits of a check, the collection of an invariant's violations, and the invariants of values that are overwritten,
of versions, and of items of lists. These use final reads and real time only, and need values that are written once.
Pure but for the clock that bounds a search. The checker itself: :mod:`oncegate.proof.lincheck`.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec

from oncegate.proof.check.plan import PROCESSES_MAX
from oncegate.proof.check.recorder import LANES
from oncegate.proof.lincheck import MODELS, Failure, Limits, Operation, Result, check, history
from oncegate.proof.lincheck.verdict import Failures

CHECK_S: Final = 60.0
STATES_MAX: Final = 5_000_000
LOST: Final = "no acknowledged write lost"
"""Name of the check that every workload has: what it finds are acknowledged writes that are gone."""
EXACTLY_ONCE: Final = "each acknowledged item once, each unknown at most once, each refused never"


def linearizable(found: Sequence[Operation], model: str, fs: Sequence[str]) -> Result:
    """Check the operations ``fs`` of a history against a model of :data:`oncegate.proof.lincheck.MODELS`, key by key.

    ``found`` are the operations of the whole history: results name operations by their indexes in it.
    """
    limits = Limits(states_max=STATES_MAX, seconds=CHECK_S, clock=time.monotonic)
    result = check([op for op in found if op.f in fs], MODELS[model], limits)
    return msgspec.structs.replace(result, name=f"linearizable {model}")


class Findings:
    """Collects violations of one invariant, which ``name`` states."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.looked_at = 0
        self.keys: set[Any] = set()
        self._failures = Failures()
        self._undecided = ""

    def saw(self, key: Any, count: int = 1) -> None:
        """Note that ``count`` operations were looked at."""
        self.looked_at += count
        self.keys.add(key)

    def violated(self, key: Any, words: str, involved: Sequence[Operation] = ()) -> None:
        """Note a violation in words, with the operations that show it."""
        indexes = [operation.index for operation in involved]
        self._failures.add(Failure(key=key, stuck=indexes, window=indexes, words=[words]))

    def undecided(self, reason: str) -> None:
        """Note that something could not be looked at: the verdict is unknown unless something was violated."""
        self._undecided = self._undecided or reason

    def with_final_reads(
        self, found: Sequence[Operation], chosen: Callable[[Operation], bool], read: str = "read"
    ) -> Iterator[tuple[Any, list[Operation], list[Operation]]]:
        """Yield each key of the chosen operations with these and its answered reads after healing."""
        reads = by_key(found, lambda op: op.f == read and op.status == "ok" and is_final(op))
        for key, ops in by_key(found, chosen).items():
            self.saw(key, len(ops))
            if key not in reads:
                self.undecided(f"{key} has no final read")
            yield key, ops, reads.get(key, [])

    def result(self) -> Result:
        """Return the verdict: valid if nothing was violated and everything was looked at."""
        failures = self._failures.listed
        more = self._failures.count - len(failures)
        return Result(
            name=self.name,
            verdict="invalid" if failures else "unknown" if self._undecided else "valid",
            operations=self.looked_at,
            keys=len(self.keys),
            failures=failures,
            reason=f"{more} more violations are not listed" if more else self._undecided,
        )


def is_final(operation: Operation) -> bool:
    """Whether an operation is one of the reads after healing."""
    return operation.process % LANES >= PROCESSES_MAX


def by_key(found: Iterable[Operation], chosen: Callable[[Operation], bool]) -> dict[Any, list[Operation]]:
    """Return the chosen operations by their key."""
    grouped: dict[Any, list[Operation]] = {}
    for operation in found:
        if chosen(operation):
            grouped.setdefault(operation.key, []).append(operation)
    return grouped


def refused(operation: Operation) -> bool:
    """Whether it certainly had no effect: not applied, or a condition failed."""
    return operation.status == "failed" or history.refused(operation)


def acknowledged(operation: Operation) -> bool:
    """Whether its effect was acknowledged."""
    return operation.status == "ok" and not refused(operation)


def rising(findings: Findings, chosen: Iterable[Operation], span: Callable[[Operation], tuple[int, int]]) -> None:
    """Note operations that saw a number below one that another of their key, over before they began, had seen.

    Args:
        findings: where they are noted.
        chosen: operations with a result.
        span: the least and the greatest number that an operation saw.
    """
    for key, ops in by_key(chosen, lambda op: True).items():
        findings.saw(key, len(ops))
        ended, at, newest = sorted(ops, key=lambda op: op.returned or 0), 0, None
        for op in sorted(ops, key=lambda op: op.invoked):
            while (ended[at].returned or 0) < op.invoked:
                if newest is None or span(newest)[1] < span(ended[at])[1]:
                    newest = ended[at]
                at += 1
            if newest is not None and span(op)[0] < span(newest)[1]:
                findings.violated(key, f"{span(op)[0]} came after {span(newest)[1]}", [newest, op])


def no_lost_write(
    found: Sequence[Operation],
    fs: Sequence[str],
    stored: Callable[[Operation], Any] = lambda operation: operation.argument,
) -> Result:
    """Check that no final read is older than an acknowledged write, was never written, or was refused.

    Args:
        found: the operations of the history.
        fs: operations that store a value.
        stored: which value an operation stores; no two store equal ones.
    """
    findings = Findings(LOST)
    for _, ops, reads in findings.with_final_reads(found, lambda op: op.f in fs):
        # The acknowledged write that was invoked last: a final read may not be surely older than it.
        newest = max(filter(acknowledged, ops), key=lambda op: op.invoked, default=None)
        by_value = {repr(stored(op)): op for op in ops}
        for seen in reads:
            _judge(findings, seen, by_value.get(repr(seen.result)), newest)
    return findings.result()


def _judge(findings: Findings, seen: Operation, source: Operation | None, newest: Operation | None) -> None:
    where = f"{seen.key} was read as {seen.result!r} at {seen.node} in the end"
    if source is None and seen.result is not None:
        findings.violated(seen.key, f"{where}: nobody wrote that", [seen])
    elif source is None and newest is not None:
        words = f"{where}, but {newest.f} {newest.argument!r} was acknowledged before"
        findings.violated(seen.key, words, [newest, seen])
    elif source is not None and refused(source):
        findings.violated(seen.key, f"{where}: that write was refused", [source, seen])
    elif (
        source is not None
        and newest is not None
        and source.status == "ok"
        and source.returned is not None
        and source.returned < newest.invoked
    ):
        words = f"{where}, but {newest.f} {newest.argument!r} came after it and was acknowledged"
        findings.violated(seen.key, words, [source, newest, seen])


def no_lost_version(found: Sequence[Operation], fs: Sequence[str]) -> Result:
    """Check that no final ``get`` is of a version older than any acknowledged write's, and no two writes share one.

    The results of the operations ``fs``, which write a row, carry ``version``; that of a ``get`` is 0 without a row.
    """
    findings = Findings(LOST)
    doubtful = by_key(found, lambda op: op.f == "delete" and op.status == "unknown")
    owners: dict[int, Operation] = {}
    for key, ops, reads in findings.with_final_reads(found, lambda op: op.f in fs and acknowledged(op), "get"):
        for op in ops:
            version = op.result["version"]
            if version in owners:
                findings.violated(key, f"two writes have the version {version}", [owners[version], op])
            owners[version] = op
        newest = max(ops, key=lambda op: op.result["version"])
        for seen in reads:
            version = seen.result["version"]
            # A row that is absent has no version to compare: the newest write, or one in doubt, can have removed it.
            removed = not version and (newest.f == "delete" or key in doubtful)
            if version < newest.result["version"] and not removed:
                words = f"{key} ends at version {version} at {seen.node}, before the acknowledged"
                findings.violated(key, f"{words} {newest.result['version']}", [newest, seen])
    return findings.result()


def no_lost_item(found: Sequence[Operation]) -> Result:
    """Check that every acknowledged item is in every final read of its list."""
    findings = Findings(LOST)
    for key, ops, reads in findings.with_final_reads(found, lambda op: op.f == "append"):
        for seen in reads:
            there = set(seen.result or ())
            for op in ops:
                if acknowledged(op) and op.argument not in there:
                    words = f"{op.argument!r} was acknowledged and is not in {key} at {seen.node} in the end"
                    findings.violated(key, words, [op, seen])
    return findings.result()


def exactly_once(found: Sequence[Operation]) -> Result:
    """Check every read of a list: no item twice, none that was refused, none that was never sent."""
    findings = Findings(EXACTLY_ONCE)
    sent = by_key(found, lambda op: op.f == "append")
    for key, reads in by_key(found, lambda op: op.f == "read" and op.status == "ok").items():
        by_item = {op.argument: op for op in sent.get(key, ())}
        findings.saw(key, len(by_item))
        listed: set[Any] = set()
        for seen in reads:
            for item, times in Counter(seen.result or ()).items():
                source = by_item.get(item)
                why = (
                    f"is in {key} {times} times"
                    if times > 1
                    else f"is in {key} and nobody sent it"
                    if source is None
                    else f"is in {key} and was refused"
                    if refused(source)
                    else f"is in {key} before it was sent"
                    if source.invoked > (seen.returned or 0)
                    else ""
                )
                if why and item not in listed:
                    listed.add(item)
                    findings.violated(key, f"{item!r} {why}", [op for op in (source, seen) if op is not None])
    return findings.result()
