"""Linear-time checks that no search can time out on: nothing acknowledged is lost, nothing is there twice.

Owns: these invariants, for values that are overwritten, for versions, and for items of lists. They use final reads and
real time only, and need values and items that are written once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from oncegate.proof.check.checks import Findings, by_key, is_final
from oncegate.proof.check.soak import LOST
from oncegate.proof.lincheck import Operation, Result, history

EXACTLY_ONCE = "each acknowledged item once, each unknown at most once, each refused never"


def refused(operation: Operation) -> bool:
    """Whether it certainly had no effect: not applied, or a condition failed."""
    return operation.status == "failed" or history.refused(operation)


def acknowledged(operation: Operation) -> bool:
    """Whether its effect was acknowledged."""
    return operation.status == "ok" and not refused(operation)


def final_reads(found: Sequence[Operation], read: str) -> dict[Any, list[Operation]]:
    """Return the answered reads after healing, by key."""
    return by_key(found, lambda op: op.f == read and op.status == "ok" and is_final(op))


def no_lost_write(
    found: Sequence[Operation],
    fs: Sequence[str],
    read: str = "read",
    stored: Callable[[Operation], Any] = lambda operation: operation.argument,
) -> Result:
    """Check what final reads say against every acknowledged write of the same key.

    Found: a value that is older than an acknowledged one; a value that nobody wrote, or whose write was refused.

    Args:
        found: the operations of the history.
        fs: operations that store a value.
        read: the operation whose result is the value, None if absent.
        stored: which value an operation stores; no two store equal ones.
    """
    findings = Findings(LOST)
    writes = by_key(found, lambda operation: operation.f in fs)
    reads = final_reads(found, read)
    for key, ops in writes.items():
        findings.saw(key, len(ops))
        # What was acknowledged and invoked last: what is read in the end may not be surely older than it.
        newest = max(filter(acknowledged, ops), key=lambda op: op.invoked, default=None)
        by_value = {repr(stored(op)): op for op in ops}
        for seen in reads.get(key, ()):
            _judge(findings, seen, by_value.get(repr(seen.result)), newest)
        if key not in reads:
            findings.undecided(f"{key} has no final read")
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


def no_lost_version(found: Sequence[Operation], fs: Sequence[str], read: str = "get") -> Result:
    """Check that no final read is of a version older than any acknowledged write's, and no two writes share one.

    Args:
        found: the operations of the history.
        fs: operations that write a row; their results carry ``version``.
        read: the operation whose result carries ``version``, 0 if absent.
    """
    findings = Findings(LOST)
    reads = final_reads(found, read)
    doubtful = by_key(found, lambda op: op.f == "delete" and op.status == "unknown")
    owners: dict[int, Operation] = {}
    for key, ops in by_key(found, lambda op: op.f in fs and acknowledged(op)).items():
        findings.saw(key, len(ops))
        for op in ops:
            version = op.result["version"]
            if version in owners:
                findings.violated(key, f"two writes have the version {version}", [owners[version], op])
            owners[version] = op
        newest = max(ops, key=lambda op: op.result["version"])
        for seen in reads.get(key, ()):
            version = seen.result["version"]
            # A row that is absent has no version to compare: the newest write, or one in doubt, can have removed it.
            removed = not version and (newest.f == "delete" or key in doubtful)
            if version < newest.result["version"] and not removed:
                words = f"{key} ends at version {version} at {seen.node}, before the acknowledged"
                findings.violated(key, f"{words} {newest.result['version']}", [newest, seen])
        if key not in reads:
            findings.undecided(f"{key} has no final read")
    return findings.result()


def no_lost_item(found: Sequence[Operation], append: str = "append", read: str = "read") -> Result:
    """Check that every acknowledged item is in every final read of its list."""
    findings = Findings(LOST)
    reads = final_reads(found, read)
    for key, ops in by_key(found, lambda op: op.f == append).items():
        findings.saw(key, len(ops))
        for seen in reads.get(key, ()):
            there = set(seen.result or ())
            for op in ops:
                if acknowledged(op) and op.argument not in there:
                    words = f"{op.argument!r} was acknowledged and is not in {key} at {seen.node} in the end"
                    findings.violated(key, words, [op, seen])
        if key not in reads:
            findings.undecided(f"{key} has no final read")
    return findings.result()


def exactly_once(found: Sequence[Operation], append: str = "append", read: str = "read") -> Result:
    """Check every read of a list: no item twice, none that was refused, none that nobody sent."""
    findings = Findings(EXACTLY_ONCE)
    sent = by_key(found, lambda op: op.f == append)
    for key, reads in by_key(found, lambda op: op.f == read and op.status == "ok").items():
        by_item = {op.argument: op for op in sent.get(key, ())}
        findings.saw(key, len(by_item))
        told: set[Any] = set()
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
                if why and item not in told:
                    told.add(item)
                    findings.violated(key, f"{item!r} {why}", [op for op in (source, seen) if op is not None])
    return findings.result()
