"""The independent recount: what must be there, from the file alone, against what is there, row by row.

Owns: the expected messages and timeline rows, and the naming of what differs. Pure, vectorised. Shares no code with
the fan-out job: it must be able to catch its faults. What it takes from the run is the commit number that the SDK was
told for each message, because keys and write timestamps follow from it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from examples.demo.dataset import EDGES_ALL, MESSAGES_ALL, ROWS_ALL, Int64s, Messages, key_of

NAMED_MAX: Final = 5
"""Differing keys that are named, of each kind."""
_BUCKET_BITS: Final = 20
_NUMBER_BITS: Final = 24
"""A row is told from the others by user and line number, in one integer: user << 24 | number."""
_KEY_PATTERN: Final = "^m[0-9]{7}$"


class Check(NamedTuple):
    """One line of the result: what was to be shown, and whether it was; ``named`` says what differs."""

    name: str
    expected: str
    found: str
    passed: bool
    named: tuple[str, ...] = ()


def expected_rows(messages: Messages) -> Int64s:
    """Return the code of every row that must exist, ascending: each message, to each contact of its sender."""
    sender, contact = messages.edges[:, 0], messages.edges[:, 1]
    low = np.searchsorted(sender, messages.sender, side="left")
    high = np.searchsorted(sender, messages.sender, side="right")
    degree = high - low
    number = np.repeat(np.arange(1, len(messages) + 1, dtype=np.int64), degree)
    starts = np.cumsum(degree) - degree
    edge = np.arange(len(number), dtype=np.int64) - np.repeat(starts - low, degree)
    return np.sort(contact[edge] << _NUMBER_BITS | number)


def check_dataset(messages: Messages, rows: int) -> list[Check]:
    """Compare the file, and the number of :func:`expected_rows`, with what is published; only the whole file has it."""
    if not messages.is_whole:
        return []
    counts = (len(messages), len(messages.edges), rows)
    published = (MESSAGES_ALL, EDGES_ALL, ROWS_ALL)
    return [Check("File: messages, contacts, rows", _join(published), _join(counts), counts == published)]


def check_flow(messages: Messages, commits: Int64s, items: pa.Table) -> list[Check]:
    """Compare all items of the flow with the file and with the acknowledgements.

    Args:
        messages: the file.
        commits: commit number acknowledged for each message, int64.
        items: columns of a flow batch; all batches in one.
    """
    total = len(messages)
    number = _numbers(items.column("key"), total)
    commit = _int64(items.column("commit"))
    known = number > 0
    times = np.bincount(number[known], minlength=total + 1)[1:]
    missing, repeated = np.flatnonzero(times == 0) + 1, np.flatnonzero(times > 1) + 1
    strangers = [str(key) for key in items.column("key").filter(pa.array(~known)).slice(0, NAMED_MAX).to_pylist()]
    named = (
        *_name("missing", missing),
        *_name("applied more than once", repeated),
        *(f"surplus: {key}" for key in strangers),
    )
    once = int((times == 1).sum())
    passed = once == total == len(number)
    checks = [Check("Messages applied exactly once", f"{total:,}", f"{once:,}", passed, named)]

    ids = np.stack([_int64(items.column("client_id")), _int64(items.column("sequence"))], axis=1)
    distinct = (len(np.unique(commit)), len(np.unique(ids, axis=0)))
    checks.append(
        Check("Commit numbers and request ids, all distinct", _join((total, total)), _join(distinct),
              distinct == (total, total))
    )  # fmt: skip

    differs = known.copy()
    differs[known] = commits[number[known] - 1] != commit[known]
    wrong = tuple(
        f"{key_of(n)}: commit {c}, acknowledged as {commits[n - 1]}"
        for n, c in zip(number[differs][:NAMED_MAX].tolist(), commit[differs][:NAMED_MAX].tolist(), strict=True)
    )
    agree = int(known.sum() - differs.sum())
    checks.append(
        Check("Commit number is the acknowledged one", f"{total:,}", f"{agree:,}", agree == total and not wrong, wrong)
    )
    checks.append(_check_values(messages, number, items))
    return checks


def check_timeline(
    messages: Messages, commits: Int64s, expected: Int64s, rows: Iterable[pa.RecordBatch]
) -> list[Check]:
    """Compare all rows of the timeline table with the file and with the acknowledgements.

    Args:
        messages: the file.
        commits: commit number acknowledged for each message, int64.
        expected: of :func:`expected_rows`.
        rows: batches with the columns user, bucket, commit, ordinal, message, sender, sent_at, write_ts.
    """
    found = _Rows.read(rows, len(messages))
    code = found.user << _NUMBER_BITS | found.number
    code[found.number == 0] = -1
    distinct, counts = np.unique(code, return_counts=True)
    missing = surplus = np.zeros(0, dtype=np.int64)
    if not np.array_equal(distinct, expected):
        missing = np.setdiff1d(expected, distinct, assume_unique=True)
        surplus = np.setdiff1d(distinct, expected, assume_unique=True)
    repeated = distinct[(counts > 1) & (distinct >= 0)]
    right = len(expected) - len(missing)
    checks = [
        Check(
            "Timeline rows",
            f"{len(expected):,}",
            f"{len(code):,}",
            len(code) == len(expected) == right,
            (
                *_name_rows("missing", missing, commits),
                *_name_rows("surplus", surplus, commits),
                *_name_rows("more than once", repeated, commits),
                *(f"surplus: message {key!r}" for key in found.strangers),
            ),
        )
    ]
    checks.append(_check_columns(messages, commits, found))
    return checks


class _Rows(NamedTuple):
    """Scanned rows as columns of int64, equally long; ``number`` is 0 where the message is not one of the file.

    ``strangers`` holds the first such messages.
    """

    strangers: tuple[str, ...]
    number: Int64s
    user: Int64s
    bucket: Int64s
    commit: Int64s
    ordinal: Int64s
    sender: Int64s
    sent_at: Int64s
    write_ts: Int64s

    @classmethod
    def read(cls, rows: Iterable[pa.RecordBatch], total: int) -> _Rows:
        names = ("user", "bucket", "commit", "ordinal", "sender", "sent_at", "write_ts")
        columns: dict[str, list[Int64s]] = {name: [np.zeros(0, dtype=np.int64)] for name in names}
        numbers: list[Int64s] = [np.zeros(0, dtype=np.int64)]
        strangers: list[str] = []
        for batch in rows:
            number = _numbers(batch.column("message"), total)
            numbers.append(number)
            for name in names:
                columns[name].append(_int64(batch.column(name)))
            if len(strangers) < NAMED_MAX and (number == 0).any():
                odd = batch.column("message").filter(pa.array(number == 0)).slice(0, NAMED_MAX)
                strangers.extend(str(key) for key in odd.to_pylist())
        joined = [np.concatenate(columns[name]) for name in names]
        return cls(tuple(strangers[:NAMED_MAX]), np.concatenate(numbers), *joined)


def _check_columns(messages: Messages, commits: Int64s, found: _Rows) -> Check:
    known = found.number > 0
    at = found.number[known] - 1
    commit = commits[at]
    wanted = {
        "commit": commit,
        "write_ts": commit,
        "bucket": commit >> _BUCKET_BITS,
        "ordinal": np.zeros(len(at), dtype=np.int64),
        "sender": messages.sender[at],
        "sent_at": messages.sent_at[at],
    }
    users, numbers = found.user[known], found.number[known]
    right = np.ones(len(at), dtype=np.bool_)
    named: list[str] = []
    for name, values in wanted.items():
        column: Int64s = getattr(found, name)[known]
        wrong = np.flatnonzero(column != values)
        right[wrong] = False
        named.extend(
            f"different: user {users[i]}, {key_of(int(numbers[i]))}: {name} is {column[i]}, not {values[i]}"
            for i in wrong[:NAMED_MAX].tolist()
        )
    total = len(found.number)
    name = "Rows with the right commit, write timestamp and content"
    return Check(name, f"{total:,}", f"{int(right.sum()):,}", total == int(right.sum()), tuple(named))


def _check_values(messages: Messages, number: Int64s, items: pa.Table) -> Check:
    wrong: list[str] = []
    right = 0
    for n, text in zip(number.tolist(), items.column("value").to_pylist(), strict=True):
        if n and _parsed(text) == messages.value(n):
            right += 1
        elif n:
            wrong.append(f"{key_of(n)}: value {text!r}, line {n} says {messages.value(n)}")
    passed = right == len(messages) and not wrong
    return Check("Content is that of the line", f"{len(messages):,}", f"{right:,}", passed, tuple(wrong[:NAMED_MAX]))


def _parsed(text: str | None) -> object:
    try:
        return json.loads(text or "null")
    except ValueError:
        return None


def _numbers(keys: pa.Array | pa.ChunkedArray, total: int) -> Int64s:
    """Return the line number in each key, 0 for a key that no line of 1 .. ``total`` has."""
    well_formed = pc.match_substring_regex(keys, _KEY_PATTERN)
    digits = pc.if_else(well_formed, pc.utf8_slice_codeunits(keys, 1), "0")
    number = _int64(pc.cast(digits, pa.int64()))
    return np.where(number <= total, number, 0)


def _int64(column: pa.Array | pa.ChunkedArray) -> Int64s:
    values: npt.NDArray[np.int64] = column.to_numpy() if isinstance(column, pa.ChunkedArray) else np.asarray(column)
    return values.astype(np.int64, copy=False)


def _name(kind: str, numbers: Int64s) -> tuple[str, ...]:
    return tuple(f"{kind}: {key_of(number)}" for number in numbers[:NAMED_MAX].tolist())


def _name_rows(kind: str, codes: Int64s, commits: Int64s) -> tuple[str, ...]:
    named = []
    for code in codes[codes >= 0][:NAMED_MAX].tolist():
        number = code & (1 << _NUMBER_BITS) - 1
        named.append(f"{kind}: user {code >> _NUMBER_BITS}, {key_of(number)}, commit {commits[number - 1]}")
    return tuple(named)


def _join(counts: Sequence[int]) -> str:
    return " / ".join(f"{count:,}" for count in counts)
