"""The last hour of a node: what becomes of two readings, and which moments are kept."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from oncegate.consensus.histogram import BOUNDS_S, Histogram
from oncegate.gateway.observability.last_hour import COLUMNS, MOMENTS_MAX, LastHour, Reading, quantile_ms
from oncegate.gateway.observability.request_times import RequestTimes

NONE = [0] * (len(BOUNDS_S) + 1)


def reading(clock_s: float, **given_: Any) -> Reading:
    counts = dict.fromkeys(("operations", "requests", "refused", "failed", "lag", "sessions", "connections"), 0)
    sizes = dict.fromkeys(("memory_bytes", "disk_free_bytes", "disk_size_bytes", "data_bytes"), 0)
    times = dict.fromkeys(("request_times", "entry_times", "flush_times"), NONE)
    known = {"at_ms": int(clock_s * 1000), "clock_s": clock_s, "cpu_s": 0.0, **counts, **sizes, **times}
    return Reading(**{**known, **given_})


def times(*seconds: float) -> list[int]:
    counted = Histogram()
    for one in seconds:
        counted.observe(one)
    return counted.counts


def test_moment_has_what_has_risen_since_the_reading_before_by_the_second() -> None:
    hour = LastHour()
    hour.take(reading(10, operations=100, requests=50, refused=4, failed=1, cpu_s=3.0, request_times=times(1.0)))
    assert hour.after(0) == []
    later = times(1.0, *[0.002] * 99, 0.2)
    hour.take(reading(14, operations=300, requests=54, refused=6, failed=2, cpu_s=5.0, request_times=later, sessions=7))
    (moment,) = hour.after(0)
    assert (moment.number, moment.at_ms, moment.sessions) == (1, 14_000, 7)
    assert (moment.operations_per_s, moment.requests_per_s) == (50.0, 1.0)
    assert (moment.refused_per_s, moment.failed_per_s, moment.cpu) == (0.5, 0.25, 0.5)
    # The second of the reading before is not in it; two milliseconds lie between the bounds 1 and 2.5.
    assert moment.request_p50_ms is not None
    assert 1.0 < moment.request_p50_ms < moment.request_p99_ms <= 2.5  # type: ignore[operator]
    assert moment.entry_p99_ms is None, "nothing was timed"


def test_each_column_of_a_moment_is_of_its_own_reading() -> None:
    requests, entries, flushes = times(*[0.002] * 96, *[0.2] * 4), times(0.03), times(0.7)
    sizes = {"memory_bytes": 11, "disk_free_bytes": 12, "disk_size_bytes": 13, "data_bytes": 14}
    now = {"lag": 15, "sessions": 16, "connections": 17, **sizes}
    hour = LastHour()
    hour.take(reading(10))
    hour.take(reading(9, operations=50))  # it is left out, and the next step begins where this one did
    hour.take(reading(12, request_times=requests, entry_times=entries, flush_times=flushes, operations=8, **now))
    (moment,) = hour.after(0)
    assert {name: getattr(moment, name) for name in now} == now
    assert moment.operations_per_s == 4.0
    assert moment.request_p99_ms == quantile_ms(requests, 0.99) != quantile_ms(requests, 0.95)
    assert (moment.entry_p99_ms, moment.flush_p99_ms) == (quantile_ms(entries, 0.99), quantile_ms(flushes, 0.99))


def test_counter_that_is_set_back_gives_no_negative_rate_and_a_step_without_length_is_left_out() -> None:
    hour = LastHour()
    hour.take(reading(10, operations=100))
    hour.take(reading(10, operations=900))
    assert hour.after(0) == []
    hour.take(reading(11, operations=40))
    assert [one.operations_per_s for one in hour.after(0)] == [0.0]


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 3 * MOMENTS_MAX), st.integers(0, 4 * MOMENTS_MAX))
def test_newest_moments_are_kept_in_order_and_asked_for_by_the_last_one_seen(taken: int, seen: int) -> None:
    hour = LastHour()
    for second in range(taken + 1):
        hour.take(reading(second + 1))
    expected = [number for number in range(max(0, taken - MOMENTS_MAX) + 1, taken + 1) if number > seen]
    assert [moment.number for moment in hour.after(seen)] == expected


@given(st.lists(st.floats(0, 20), min_size=1, max_size=50), st.floats(0.01, 1))
def test_quantile_is_within_the_bucket_that_holds_it(seconds: list[float], share: float) -> None:
    found = quantile_ms(times(*seconds), share)
    assert found is not None
    at = sorted(seconds)[max(0, -(-int(share * len(seconds) * 1_000_000) // 1_000_000) - 1)]
    bounds = [0.0, *BOUNDS_S]
    width = next((i for i, bound in enumerate(BOUNDS_S) if at <= bound), len(BOUNDS_S) - 1)
    assert 1000 * bounds[max(0, width - 1)] <= found + 1e-6
    assert found <= 1000 * bounds[min(width + 2, len(bounds) - 1)] + 1e-6


def test_quantile_of_nothing_is_unknown_and_beyond_the_last_bound_is_that_bound() -> None:
    assert quantile_ms(NONE, 0.5) is None
    assert quantile_ms(times(60.0), 0.5) == 1000 * BOUNDS_S[-1]


def test_columns_name_every_number_of_a_moment() -> None:
    hour = LastHour()
    hour.take(reading(1))
    hour.take(reading(2))
    (moment,) = hour.after(0)
    assert len(COLUMNS) == len(moment.__struct_fields__)
    assert COLUMNS[:2] == ("number", "at_ms")


def test_totals_leave_out_what_does_not_end() -> None:
    counted = RequestTimes({"row": ("GET", "/row"), "watch": ("GET", "/watch")})
    for status in (200, 404, 503):
        counted.observe("row", status, 0.001)
    counted.observe("watch", 200, 600.0)
    counted.observe(None, 404, 0.001)
    totals = counted.totals(without={"watch"})
    assert (totals.requests, totals.refused, totals.failed) == (4, 2, 1)
    assert totals.times.count == 4
    assert totals.times.sum_s < 1
