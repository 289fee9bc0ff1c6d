"""Write timestamps: which order of rows a store keeps, across clusters, clocks and repairs by hand. Pure.

Owns: the mapping from (epoch, commit number) to the timestamp that a store compares, and back. Must not know who holds
a store. Read next: :mod:`oncegate.stores.claims`; why: docs/decisions/0017-whose-rows.md.

Layout, version 1, from the highest bit: 0, then 1, 12 bits of epoch, 49 bits of commit number, one bit that jobs leave
0. So a timestamp is positive, above every clock in microseconds (2^62 µs are 146,000 years) and, until 2116, in
nanoseconds; a row of a later epoch beats all of an earlier one; and between two commits there is room for one repair by
hand, at the timestamp of the row plus one.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from oncegate.stores.errors import StoreCode, StoreError
from oncegate.stores.tables import WRITE_TS

_COMMIT_BITS: Final = 49
_EPOCH_SHIFT: Final = _COMMIT_BITS + 1
_BASE: Final = 1 << 62
EPOCH_MAX: Final = (1 << 12) - 1
COMMIT_MAX: Final = (1 << _COMMIT_BITS) - 1
"""Seventeen years of a million commits a second; a clock in microseconds, taken for a commit number, is above it."""


class Written(NamedTuple):
    """When a row was written: epoch 0 and commit 0 for a timestamp that is no job's, a clock's for instance."""

    epoch: int
    commit: int


def timestamp(epoch: int, commit: int) -> int:
    """Return what a store compares; 1 <= epoch <= ``EPOCH_MAX``, 0 <= commit <= ``COMMIT_MAX``."""
    return _BASE | epoch << _EPOCH_SHIFT | commit << 1


def written(ts: int) -> Written:
    """Return the epoch and commit number of a store's timestamp."""
    if ts < _BASE:
        return Written(0, 0)
    return Written((ts - _BASE) >> _EPOCH_SHIFT, (ts >> 1) & COMMIT_MAX)


def stamped(rows: pa.RecordBatch, epoch: int) -> pa.RecordBatch:
    """Return the rows with commit numbers, in `write_ts`, turned into a store's timestamps.

    Raises:
        StoreError: BAD_ROWS, when `write_ts` is no int64 without nulls, or not in 1 .. ``COMMIT_MAX``.
    """
    at = rows.schema.get_field_index(WRITE_TS)
    if at < 0 or not pa.types.is_int64(rows.schema.field(at).type) or rows.column(at).null_count:
        raise StoreError(StoreCode.BAD_ROWS, f"rows need {WRITE_TS}, an int64 without nulls")
    commits = np.asarray(rows.column(at))
    if len(commits) and not (commits.min() >= 1 and commits.max() <= COMMIT_MAX):
        raise StoreError(StoreCode.BAD_ROWS, f"{WRITE_TS} is the commit number of an item, 1..{COMMIT_MAX}")
    return rows.set_column(at, rows.schema.field(at), pa.array(timestamp(epoch, 0) + (commits << 1)))


def epochs_and_commits(rows: pa.RecordBatch) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return two int64 arrays: `written` of each row's `write_ts`."""
    ts = np.asarray(rows.column(WRITE_TS))
    ours = ts >= _BASE
    return np.where(ours, (ts - _BASE) >> _EPOCH_SHIFT, 0), np.where(ours, (ts >> 1) & COMMIT_MAX, 0)
