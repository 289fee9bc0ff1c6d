"""How response times change with the number of followers: a straight line through logarithms. Pure.

Few posts have an author with very many followers, so the medians of classes say little there; a line uses all posts.
What a moment does to all posts alike, whoever wrote them, is taken out: each is compared with those due in its second.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

DECADES: Final = 5
"""From 1 follower to 100,000."""
DRAWS: Final = 1_000
POSTS_MIN: Final = 100
_SEED: Final = 1


class Trend(NamedTuple):
    """Response with 100,000 followers over that with one, by the line: its value and its 95 % interval."""

    factor: float
    low: float
    high: float


def trend(
    followers: npt.NDArray[np.int64], took_s: npt.NDArray[np.float64], due_s: npt.NDArray[np.float64]
) -> Trend | None:
    """Return the trend; None for too few posts, or where all authors have as many followers.

    The interval is a bootstrap of whole seconds: posts of one moment are delayed by the same things.
    """
    if len(took_s) < POSTS_MIN:
        return None
    _, second = np.unique(np.floor(due_s).astype(np.int64), return_inverse=True)
    counts = np.bincount(second).astype(np.float64)
    x, y = np.log10(np.maximum(followers, 1)), np.log(np.maximum(took_s, 1e-6))
    x = x - (np.bincount(second, x) / counts)[second]
    y = y - (np.bincount(second, y) / counts)[second]
    products, squares = np.bincount(second, x * y), np.bincount(second, x * x)
    if not squares.sum() > 0:
        return None
    chance = np.random.default_rng(_SEED)
    slopes = []
    for _ in range(DRAWS):
        drawn = chance.integers(0, len(counts), len(counts))
        if (below := squares[drawn].sum()) > 0:
            slopes.append(products[drawn].sum() / below)
    low, high = np.percentile(slopes, [2.5, 97.5])
    return Trend(*(float(np.exp(DECADES * slope)) for slope in (products.sum() / squares.sum(), low, high)))
