"""Latency and rate of a run over time.

Owns: buckets, percentiles, counts by status. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from oncegate.proof.check.report.payload import end_of
from oncegate.proof.lincheck.history import Operation

Floats = npt.NDArray[np.float64]

BUCKETS_MAX: Final = 180
_WIDTHS_S: Final = (
    1e-6,
    1e-5,
    1e-4,
    0.001,
    0.01,
    0.02,
    0.05,
    0.1,
    0.2,
    0.5,
    1.0,
    2.0,
    5.0,
    10.0,
    30.0,
    60.0,
    300.0,
    900.0,
    3600.0,
)
_STATUSES: Final = ("ok", "unknown", "fail")


class Series(NamedTuple):
    """Values by bucket, float64 of shape (buckets,).

    Attributes:
        at_s: middles of the buckets, seconds since the run began.
        width_s: of a bucket.
        p50_ms, p99_ms, max_ms: latency of answered operations by the time of the answer; NaN where there is none.
        rates: by status (``ok``, ``unknown``, ``fail``), ended operations per second.
        end_s: when the run ended.
    """

    at_s: Floats
    width_s: float
    p50_ms: Floats
    p99_ms: Floats
    max_ms: Floats
    rates: dict[str, Floats]
    end_s: float


def series(operations: Sequence[Operation], ended: Mapping[int, tuple[int, str | None]], end: int) -> Series:
    """Return the series of a run that ended at ``end`` (ns); at most ``BUCKETS_MAX`` buckets of a round width."""
    end_s = max(end / 1e9, 1e-6)
    width = next((width for width in _WIDTHS_S if end_s / width <= BUCKETS_MAX), end_s / BUCKETS_MAX)
    buckets = max(1, int(np.ceil(end_s / width - 1e-9)))
    finish = np.array([end_of(operation, ended) for operation in operations], dtype=np.float64) / 1e9
    begin = np.array([operation.invoked for operation in operations], dtype=np.float64) / 1e9
    status = np.array([("ok", "unknown", "failed").index(operation.status) for operation in operations], dtype=np.int64)
    bucket = np.clip((finish / width).astype(np.int64), 0, buckets - 1)
    rates = {
        name: np.bincount(bucket[status == number], minlength=buckets).astype(np.float64) / width
        for number, name in enumerate(_STATUSES)
    }
    p50, p99, worst = (np.full(buckets, np.nan, dtype=np.float64) for _ in range(3))
    answered = status != 1
    latency, of = (finish - begin)[answered] * 1e3, bucket[answered]
    order = np.argsort(of, kind="stable")
    latency, of = latency[order], of[order]
    for number, values in zip(*_groups(of, latency), strict=True):
        p50[number], p99[number], worst[number] = np.percentile(values, (50, 99, 100))
    middles: Floats = (np.arange(buckets, dtype=np.float64) + 0.5) * width
    return Series(middles, width, p50, p99, worst, rates, end_s)


def _groups(of: npt.NDArray[np.int64], values: Floats) -> tuple[list[int], list[Floats]]:
    """Split sorted values by bucket."""
    if not len(of):
        return [], []
    numbers, firsts = np.unique(of, return_index=True)
    return numbers.tolist(), np.split(values, firsts[1:])
