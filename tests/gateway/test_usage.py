"""What a sender uses at a node: its rate against exact arithmetic, its places, and what it is told of both."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncegate.gateway.http.admission.desk import OperationRate, Usage
from oncegate.rifl.errors import Code, OncegateError

TICK = Fraction(1, 64)
"""Time passes in parts of a second that a float holds exactly."""
takes = st.lists(st.tuples(st.integers(0, 200), st.integers(0, 40)), max_size=30)


@given(st.integers(1, 20), st.integers(1, 40), takes)
def test_rate_says_of_wait_level_and_headers_what_exact_arithmetic_does(
    per_s: int, burst: int, taken: list[tuple[int, int]]
) -> None:
    rate, now, seen, level = OperationRate(per_s, burst), Fraction(0), Fraction(0), Fraction(burst)
    for ticks, size in taken:
        now += ticks * TICK
        level, seen = min(Fraction(burst), level + (now - seen) * per_s), now
        # The look that tells whether it is full is the first one at this time.
        assert rate.is_full(float(now)) is (level == burst)
        exact_ms = 0 if level > 0 else math.ceil((1 - level) / per_s * 1000)
        assert rate.wait_ms(float(now)) - exact_ms in ((0,) if level > 0 else (0, 1))
        assert rate.remaining == max(0, math.floor(level))
        assert rate.state == f'"operations";r={max(0, math.floor(level))};t={math.ceil((burst - level) / per_s)}'
        assert rate.policy == f'"operations";q={burst};w={max(1, math.ceil(Fraction(burst, per_s)))}'
        rate.take(size)
        level -= size


def test_full_bucket_is_full_now_although_a_body_without_operations_gave_its_one_back() -> None:
    usage = Usage(OperationRate(1, 5))
    usage.charge(0)
    headers = dict[str, str]()
    usage.describe(headers)
    assert headers["RateLimit"] == '"operations";r=6;t=0'


def test_sender_with_a_rate_is_told_it_and_one_without_is_told_nothing() -> None:
    rated, free = Usage(OperationRate(2, 10)), Usage(None)
    rated.charge(4)
    free.charge(4)
    headers, none = dict[str, str](), dict[str, str]()
    rated.describe(headers)
    free.describe(none)
    # One operation was taken when the request was admitted.
    assert headers == {"RateLimit-Policy": '"operations";q=10;w=5', "RateLimit": '"operations";r=7;t=2'}
    assert none == {}


@given(st.integers(1, 5), st.integers(0, 5), st.booleans())
def test_place_given_back_while_a_body_arrives_is_taken_again_unless_others_took_the_last(
    requests_max: int, others: int, fails: bool
) -> None:
    usage = Usage(None, requests_max)
    usage.requests += 1
    refused: Exception | None = None
    try:
        with usage.receiving():
            assert usage.requests == 0
            usage.requests += others
            if fails:
                raise TimeoutError
    except (OncegateError, TimeoutError) as ended:
        refused = ended
    assert usage.requests == others + 1, "its end takes it off again, however it went"
    if fails:
        assert isinstance(refused, TimeoutError)
    elif others + 1 > requests_max:
        assert isinstance(refused, OncegateError)
        assert (refused.code, refused.retry_after_ms) == (Code.OVERLOADED, 100)
        assert refused.detail.startswith(f"{requests_max} requests ")
    else:
        assert refused is None


def test_usage_without_a_bound_never_lacks_a_place() -> None:
    usage = Usage(None)
    usage.requests = 2**40
    with usage.receiving():
        pass
    assert usage.requests == 2**40


@pytest.mark.parametrize(("per_s", "burst", "window_s"), [(100, 100, 1), (100, 10, 1), (10, 100, 10), (3, 100, 34)])
def test_window_of_the_policy_is_the_time_in_which_the_bucket_fills_in_whole_seconds(
    per_s: int, burst: int, window_s: int
) -> None:
    assert OperationRate(per_s, burst).policy == f'"operations";q={burst};w={window_s}'
