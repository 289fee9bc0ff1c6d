"""What a run says: rates and costs by round, and ratios of two figures of one round. Pure.

A ratio is formed within each round and then summed up: its median, and its smallest and greatest, which is the spread.
Ratios of medians are never formed: the machine changes more between rounds than systems differ.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

ByRound = Mapping[int, float]
"""A figure by the number of its round."""


class Key(NamedTuple):
    """One load of one system."""

    peer: str
    mode: str
    outstanding: int


class Spread(NamedTuple):
    """Median, smallest and greatest of ``rounds`` values."""

    median: float
    low: float
    high: float
    rounds: int

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread | None:
        """Sum up values; None without any."""
        found = sorted(values)
        return cls(statistics.median(found), found[0], found[-1], len(found)) if found else None


def told(spread: Spread | None, decimals: int) -> str:
    """Return a spread for people: the median, and what it lies between."""
    if spread is None:
        return "-"
    middle, low, high = (f"{value:,.{decimals}f}" for value in spread[:3])
    return f"{middle} ({low}\N{EN DASH}{high})" if spread.rounds != 1 else middle


class Run:
    """One run as it is stored: a line for each attempt of a round, and one for the kills.

    Of a round that was run again only its last attempt counts.
    """

    def __init__(self, parts: Sequence[Mapping[str, Any]]) -> None:
        if not parts:
            raise ValueError("a run has at least one part")
        self.about = parts[0]
        last = {part["round"]: part for part in parts if part["part"] == "round"}
        self.rounds = [last[number] for number in sorted(last)]
        self.repeated = sum(part["part"] == "round" for part in parts) - len(self.rounds)
        self.kills: list[dict[str, Any]] = next((part["rows"] for part in parts if part["part"] == "kills"), [])

    @property
    def disturbed(self) -> list[Mapping[str, Any]]:
        """Rounds that count although something disturbed them."""
        return [one for one in self.rounds if one["disturbed"]]

    @property
    def failed(self) -> list[Mapping[str, Any]]:
        """Loads and kills that ended without a result."""
        rows = [row for one in self.rounds for row in one["rows"]]
        return [row for row in [*rows, *self.kills] if "failed" in row]

    def loads(self) -> list[Key]:
        """Return all loads, in the order of the first round."""
        rows = (row for one in self.rounds for row in one["rows"])
        return list(dict.fromkeys(Key(row["peer"], row["mode"], row["outstanding"]) for row in rows))

    def figure(self, key: Key, name: str) -> ByRound:
        """Return a figure of a load by round; rounds without it are left out."""
        return {
            one["round"]: row[name]
            for one in self.rounds
            for row in one["rows"]
            if (row["peer"], row["mode"], row["outstanding"]) == key and row.get(name) is not None
        }

    def ratio(
        self, ours: Key, others: Sequence[Key], name: str, best: Callable[[Iterable[float]], float]
    ) -> Spread | None:
        """Return our figure over the best of the others, round by round; None where no round has all of them."""
        return over_best(self.figure(ours, name), [self.figure(other, name) for other in others], best)


def over_best(ours: ByRound, others: Sequence[ByRound], best: Callable[[Iterable[float]], float]) -> Spread | None:
    """Return ``ours`` over the best of ``others`` within each round that has all of them."""
    shared = [number for number in ours if others and all(other.get(number) for other in others)]
    return Spread.of(ours[number] / best(other[number] for other in others) for number in shared)


def runs(parts: Iterable[Mapping[str, Any]]) -> list[Run]:
    """Return the runs that stored lines make up, the oldest first."""
    by_run: dict[str, list[Mapping[str, Any]]] = {}
    for part in parts:
        by_run.setdefault(part["run"], []).append(part)
    return [Run(of) for of in by_run.values()]
