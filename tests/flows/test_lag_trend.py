"""The verdict on a window of samples of a consumer's lag."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncegate.flows import lag_trend
from oncegate.flows.lag_trend import SAMPLE_MS, SAMPLES_MAX, SPAN_MS_MIN, WINDOW_MS, LagTrends, Sample, verdict

FULL = WINDOW_MS // SAMPLE_MS + 1


def samples(count: int, cursor: Callable[[int], int], lag: Callable[[int], int]) -> list[Sample]:
    return [Sample(number * SAMPLE_MS, cursor(number), lag(number)) for number in range(count)]


@pytest.mark.parametrize(
    ("window", "attached", "expected"),
    [
        (samples(1, lambda n: 0, lambda n: 0), True, "ok"),
        (samples(FULL, lambda n: 0, lambda n: 0), False, "ok"),
        (samples(1, lambda n: 0, lambda n: 9), False, "stalled"),
        (samples(1, lambda n: 0, lambda n: 9), True, "unknown"),
        (samples(6, lambda n: 0, lambda n: 9), True, "unknown"),
        (samples(7, lambda n: n, lambda n: 9), True, "ok"),
        (samples(FULL, lambda n: 4, lambda n: 9), True, "stalled"),
        (samples(FULL, lambda n: 4, lambda n: 9 + n), True, "stalled"),
        (samples(FULL - 5, lambda n: 4, lambda n: 9), True, "ok"),
        (samples(FULL, lambda n: 4, lambda n: 0 if n == 9 else 5), True, "ok"),
        (samples(FULL, lambda n: n, lambda n: 100 + 10 * n), True, "falling_behind"),
        (samples(FULL, lambda n: n, lambda n: 1000 - 10 * n), True, "ok"),
        # A saw-tooth of a job that commits every minute: as high at the end as at the beginning.
        (samples(FULL, lambda n: n // 6, lambda n: 50 + n % 6 * 100), True, "ok"),
        # The same, but each time it leaves more.
        (samples(FULL, lambda n: n // 6, lambda n: 50 + n % 6 * 100 + n // 6 * 40), True, "falling_behind"),
    ],
)
def test_verdict_follows_the_rule(window: list[Sample], attached: bool, expected: str) -> None:
    assert verdict(window, attached=attached) == expected


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 50)), min_size=1, max_size=60), st.integers(0, 10**9))
def test_what_is_older_than_the_window_and_where_the_clock_began_change_nothing(
    told: list[tuple[int, int]], begin_ms: int
) -> None:
    window = [Sample(begin_ms + number * SAMPLE_MS, *one) for number, one in enumerate(told)]
    found = verdict(window, attached=True)
    recent = [one for one in window if window[-1].at_ms - one.at_ms <= WINDOW_MS]
    assert verdict(recent, attached=True) == found
    moved = [one._replace(at_ms=one.at_ms - begin_ms) for one in window]
    assert verdict(moved, attached=True) == found


def by_the_table(window: list[Sample], *, attached: bool) -> str:
    """The rule as the module tells it, row by row."""
    now = window[-1]
    inside = [one for one in window if one.at_ms >= now.at_ms - WINDOW_MS]
    span_ms = now.at_ms - inside[0].at_ms
    if now.lag_items == 0:
        return "ok"
    if not attached:
        return "stalled"
    if span_ms < SPAN_MS_MIN or len(inside) < 3:
        return "unknown"
    stood = {one.cursor for one in inside} == {now.cursor} and min(one.lag_items for one in inside) > 0
    if stood and span_ms > WINDOW_MS - SAMPLE_MS:
        return "stalled"
    third = len(inside) // 3
    first, last = min(one.lag_items for one in inside[:third]), min(one.lag_items for one in inside[-third:])
    middle = min(one.lag_items for one in inside[third : len(inside) - third])
    return "falling_behind" if first < middle and middle < last else "ok"


def test_verdict_is_that_of_the_table_also_where_thirds_are_alike_and_samples_come_late() -> None:
    dice, found = random.Random(1), set[str]()
    for _ in range(4_000):
        at_ms, window = 0, list[Sample]()
        floors = [dice.randint(0, 2) for _ in range(3)]
        moves = dice.random() < 0.5
        count = dice.choice((1, 2, 6, 7, 8, FULL - 1, FULL, FULL + 3))
        for number in range(count):
            at_ms += dice.choice((SAMPLE_MS, SAMPLE_MS, SAMPLE_MS, SAMPLE_MS + 1, SAMPLE_MS - 1, 3 * SAMPLE_MS))
            lag = floors[min(2, 3 * number // count)] + dice.choice((0, 0, 0, 4))
            window.append(Sample(at_ms, number if moves else 7, lag))
        attached = dice.random() < 0.9
        assert verdict(window, attached=attached) == by_the_table(window, attached=attached), window
        found.add(verdict(window, attached=attached))
    assert found == {"ok", "stalled", "unknown", "falling_behind"}


def test_samples_are_bounded_by_consumer_and_in_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lag_trend, "CONSUMERS_SAMPLED_MAX", 2)
    trends = LagTrends()
    for number in range(3 * SAMPLES_MAX):
        for consumer in ("a", "b", "c"):
            trends.add("f", consumer, Sample(number * SAMPLE_MS, 1, 9))
    assert {len(kept) for kept in trends._samples.values()} == {SAMPLES_MAX}
    now = Sample(3 * SAMPLES_MAX * SAMPLE_MS, 1, 9)
    assert [trends.verdict("f", one, now, attached=True) for one in "abc"] == ["stalled", "stalled", "unknown"]
    trends.keep({("f", "b")})
    assert [trends.verdict("f", one, now, attached=True) for one in "ab"] == ["unknown", "stalled"]
