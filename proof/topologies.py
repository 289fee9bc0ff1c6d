"""Clusters that are connected in part: which two reach each other. Pure; real and simulated links are cut by it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import combinations, pairwise, permutations

Links = set[frozenset[str]]
"""Sets of two names."""


def topology(shape: str, order: Sequence[str]) -> Links:
    """Return the links of a shape; who stands where depends on the order of the names.

    Raises:
        ValueError: there is no such shape.
    """
    first, rest = order[0], order[1:]
    chain = {frozenset(pair) for pair in pairwise(order)}
    match shape:
        case "chain":
            return chain
        case "ring":
            # Three in a ring are three that all reach each other.
            return chain | {frozenset((first, order[-1]))} if len(order) > 3 else chain
        case "star":
            return {frozenset((first, other)) for other in rest}
        case "bridge":
            half = len(rest) // 2
            sides = (*combinations(rest[:half], 2), *combinations(rest[half:], 2))
            return {frozenset((first, other)) for other in rest} | {frozenset(pair) for pair in sides}
    raise ValueError(shape)


def cut_for(links: Collection[frozenset[str]], order: Sequence[str]) -> list[tuple[str, str]]:
    """Return the directions that are cut where only these links are left."""
    return [pair for pair in permutations(order, 2) if frozenset(pair) not in links]
