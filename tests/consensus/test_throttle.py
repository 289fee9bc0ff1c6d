"""How much may leave at once: the rate of what is old, and how fast the log grows."""

from __future__ import annotations

import random

import pytest

from oncegate.consensus.snapshot.throttle import Growth, TokenBucket


def test_growth_is_that_of_the_last_window_and_forgotten_after_a_pause():
    growth = Growth()
    growth.observe(1000, 0.0)
    assert growth.per_s == 0
    growth.observe(1100, 0.1)
    growth.observe(1600, 0.5)
    assert growth.per_s == 1200
    growth.observe(9000, 100.0)
    assert growth.per_s == 1200
    growth.observe(9000, 100.6)
    assert growth.per_s == 0


@pytest.mark.parametrize("seed", range(5))
def test_a_token_bucket_keeps_the_rate_over_any_interval(seed):
    rng = random.Random(seed)
    bucket, now, taken = TokenBucket(1000, 200), 0.0, []
    for _ in range(2000):
        now += rng.choice((0.0, 0.001, 0.1))
        if bucket.open_at(now) <= now:
            size = rng.randrange(1, 500)
            bucket.take(size)
            taken.append((now, size))
        else:
            now = bucket.open_at(now)
            assert bucket.open_at(now) == now
    for start in range(0, len(taken), 37):
        total = 0
        for at, size in taken[start:]:
            total += size
            assert total <= 1000 * (at - taken[start][0]) + 200 + 500
    assert sum(size for _, size in taken) > 0.9 * 1000 * now
