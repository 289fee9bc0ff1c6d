"""What a page carries, as compact JSON: operations in columns, texts once, failures by row.

Owns: the shape that the assets read (``data.js``), and its bounds. Pure. Times are nanoseconds; ``invoked`` and
``index`` are differences from one row to the next; a text is its number in ``texts``, -1 for none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from oncegate.proof.check.folder import FaultNote, RunVerdict
from oncegate.proof.check.report.shown import (
    OPERATIONS_MAX,
    PROOF_CHARS_MAX,
    TEXT_CHARS_MAX,
    argument_of,
    key_name,
    lanes,
    result_of,
    sampled,
    shortened,
)
from oncegate.proof.lincheck.history import Operation
from oncegate.proof.lincheck.verdict import Failure, Result

FAILURES_MAX: Final = 100
"""Failures of a page, over all checks."""
FAULTS_MAX: Final = 2_000
WORDS_MAX: Final = 100
STATES_MAX: Final = 20
_COLUMNS: Final = (
    *("invoked", "length", "index", "process", "lane", "key", "status"),
    *("f", "argument", "result", "node", "request", "error"),
)
_STATUS: Final = {"ok": 0, "unknown": 1, "failed": 2}

__all__ = ["FAILURES_MAX", "FAULTS_MAX", "OPERATIONS_MAX", "payload"]


class _Texts:
    """Each text once, by number."""

    def __init__(self) -> None:
        self.all: list[str] = []
        self._numbers: dict[str, int] = {}

    def number(self, text: str | None) -> int:
        if not text:
            return -1
        number = self._numbers.setdefault(text, len(self.all))
        if number == len(self.all):
            self.all.append(text)
        return number


def payload(
    operations: Sequence[Operation],
    verdict: RunVerdict,
    faults: Sequence[FaultNote],
    ended: Mapping[int, tuple[int, str | None]],
    nodes: Sequence[str] = (),
    *,
    operations_max: int = OPERATIONS_MAX,
) -> dict[str, Any]:
    """Return what the page carries, ready for JSON.

    Args:
        operations: of the whole run.
        verdict: of the run.
        faults: by their start.
        ended: by index of an operation without an answer, when it was given up (ns), and the code.
        nodes: ids, in the order shown.
        operations_max: bound of operations; see :func:`oncegate.proof.check.report.shown.sampled`.
    """
    failures = [failure for check in verdict.checks for failure in check.failures][:FAILURES_MAX]
    sample = sampled(operations, failures, operations_max)
    shown = sorted((operations[row] for row in sample.rows), key=lambda operation: (operation.invoked, operation.index))
    last = max((end_of(operation, ended) for operation in operations), default=0)
    last = max([last, *(fault.end or fault.start for fault in faults)])
    begin = min([0, *(operation.invoked for operation in shown)])
    keys = _Keys(operations, verdict.checks)
    named = [*nodes, *sorted({operation.node for operation in operations if operation.node} - set(nodes))]
    unknown = (operation for operation in operations if operation.status == "unknown" and operation.index in ended)
    used = lanes(operations, {operation.process: ended[operation.index][0] for operation in unknown})
    # The operations whose texts are worth their length.
    proof = {index for failure in failures for index in [*failure.stuck, *failure.window, *failure.prefix[-20:]]}
    texts = _Texts()
    rows = {operation.index: row for row, operation in enumerate(shown)}
    return {
        "verdict": verdict.verdict,
        "from": begin,
        "to": last,
        "nodes": [shortened(node, TEXT_CHARS_MAX) for node in named],
        "operations": _columns(shown, proof, ended, texts, keys, named, last, used.of),
        "lanes": used.names,
        "keys": keys.shown(),
        "texts": texts.all,
        "checks": _checks(verdict.checks, failures, rows, keys),
        "faults": [
            {
                "start": fault.start,
                "end": fault.end,
                "name": shortened(fault.fault, TEXT_CHARS_MAX),
                "target": [shortened(node, TEXT_CHARS_MAX) for node in fault.target[:16]],
                "detail": shortened(fault.detail, TEXT_CHARS_MAX),
            }
            for fault in faults[:FAULTS_MAX]
        ],
        "sample": sample.words,
    }


def end_of(operation: Operation, ended: Mapping[int, tuple[int, str | None]]) -> int:
    """Return when the operation was over for its process, ns; its invocation if no end was noted."""
    if operation.returned is not None:
        return operation.returned
    return max(operation.invoked, ended.get(operation.index, (operation.invoked, None))[0])


def _columns(
    shown: Sequence[Operation],
    proof: set[int],
    ended: Mapping[int, tuple[int, str | None]],
    texts: _Texts,
    keys: _Keys,
    nodes: Sequence[str],
    last: int,
    lane: Mapping[int, int],
) -> dict[str, list[int]]:
    node_number: dict[str | None, int] = {node: number for number, node in enumerate(nodes)}
    columns: dict[str, list[int]] = {name: [] for name in _COLUMNS}
    before, index = 0, 0
    for operation in shown:
        most = PROOF_CHARS_MAX if operation.index in proof else TEXT_CHARS_MAX
        end = end_of(operation, ended)
        # The run ended before it was given up.
        end = last if operation.index not in ended and operation.returned is None else end
        error = ended.get(operation.index, (0, None))[1]
        request = shortened(operation.request, TEXT_CHARS_MAX) if operation.request else None
        values = (
            operation.invoked - before,
            end - operation.invoked,
            operation.index - index,
            operation.process,
            lane[operation.process],
            keys.number(operation.key),
            _STATUS[operation.status],
            texts.number(shortened(operation.f, TEXT_CHARS_MAX)),
            texts.number(argument_of(operation, most)),
            texts.number(result_of(operation, most)),
            node_number.get(operation.node, -1),
            texts.number(request),
            texts.number(None if error is None else shortened(error, TEXT_CHARS_MAX)),
        )
        for name, value in zip(_COLUMNS, values, strict=True):
            columns[name].append(value)
        before, index = operation.invoked, operation.index
    return columns


class _Keys:
    """Keys by number: those that fail first, then by name; with the worst verdict of any check."""

    def __init__(self, operations: Sequence[Operation], checks: Sequence[Result]) -> None:
        counts: dict[str, int] = {}
        cache: dict[Any, str] = {}
        self._cache = cache
        for operation in operations:
            name = self._name(operation.key)
            counts[name] = counts.get(name, 0) + 1
        bad = list(
            dict.fromkeys(self._name(f.key) for check in checks for f in check.failures if self._name(f.key) in counts)
        )
        rest = sorted(counts.keys() - set(bad), key=_natural)
        self._counts, self._order, self._bad = counts, [*bad, *rest], set(bad)
        self._numbers = {name: number for number, name in enumerate(self._order)}
        # A check that gave up does not say at which key: the keys that it may have left out are not called valid.
        self._other = (
            "valid"
            if all(check.verdict != "unknown" and not check.reason for check in checks) and checks
            else "unknown"
        )

    def _name(self, key: Any) -> str:
        known = (type(key), key)
        name = self._cache.get(known)
        if name is None:
            name = self._cache[known] = key_name(key)
        return name

    def number(self, key: Any) -> int:
        """Return the key's number, -1 for one without operations."""
        return self._numbers.get(self._name(key), -1)

    def shown(self) -> list[dict[str, Any]]:
        return [
            {"name": name, "count": self._counts[name], "verdict": "invalid" if name in self._bad else self._other}
            for name in self._order
        ]


def _natural(name: str) -> tuple[Any, ...]:
    """Sort k2 before k10."""
    digits = "".join(char if char.isdigit() and char.isascii() else " " for char in name).split()
    stem = name.rstrip("0123456789")
    return (stem, int(digits[-1]) if digits and len(stem) < len(name) and len(digits[-1]) < 19 else -1, name)


def _checks(
    checks: Sequence[Result], failures: Sequence[Failure], rows: Mapping[int, int], keys: _Keys
) -> list[dict[str, Any]]:
    kept = {id(failure) for failure in failures}
    return [
        {"name": check.name, "failures": [_failure(f, rows, keys) for f in check.failures if id(f) in kept]}
        for check in checks
    ]


def _failure(failure: Failure, rows: Mapping[int, int], keys: _Keys) -> dict[str, Any]:
    prefix = [(place, rows[index]) for place, index in enumerate(failure.prefix, 1) if index in rows]
    whole = len(prefix) == len(failure.prefix)
    return {
        "key": keys.number(failure.key),
        "prefix": [row for _, row in prefix],
        "places": None if whole else [place for place, _ in prefix],
        "left_out": len(failure.prefix) - len(prefix),
        "stuck": [rows[index] for index in failure.stuck if index in rows],
        "window": [rows[index] for index in failure.window if index in rows],
        "states": [shortened(state, PROOF_CHARS_MAX) for state in failure.states[:STATES_MAX]],
        "words": [shortened(word, PROOF_CHARS_MAX) for word in failure.words[:WORDS_MAX]],
    }
