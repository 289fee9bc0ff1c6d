"""How many requests a node has answered, and how long each took: by route and status.

Owns: one histogram a route and status. Pure; durations are passed in. It is called once a request, on the hot path too:
no lookup there makes an object, once a route has answered with a status before.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from typing import Final, NamedTuple

from oncegate.consensus.histogram import Histogram

GONE: Final = 499
"""The client has gone before there was an answer; not a status of HTTP, and nobody receives it."""
UNROUTED: Final = ("other", "none")
"""What requests count as that no route serves, or that were refused before one was looked for."""


def outcome(status: int) -> str:
    """Return which of four ends a request had."""
    if status == GONE:
        return "gone"
    return "ok" if status < 400 else "refused" if status < 500 else "failed"


class Labels(NamedTuple):
    """Which requests a histogram has counted."""

    method: str
    path: str
    status: int


class Totals(NamedTuple):
    """Requests of several routes: all, those that were refused and that failed of them, and their durations."""

    requests: int
    refused: int
    failed: int
    times: Histogram


class RequestTimes:
    """The requests of one node.

    Args:
        routes: by what identifies a route: its method and its path.
    """

    def __init__(self, routes: Mapping[object, tuple[str, str]]) -> None:
        self._names = {**routes, None: UNROUTED}
        self._times: dict[object, dict[int, Histogram]] = {route: {} for route in self._names}

    def observe(self, route: object, status: int, seconds: float) -> None:
        """Count a request that was answered; ``route`` None: none serves it."""
        of_route = self._times[route]
        times = of_route.get(status)
        if times is None:
            times = of_route[status] = Histogram()
        times.observe(seconds)

    def all(self) -> Iterator[tuple[Labels, Histogram]]:
        """Yield what was counted, by route and status."""
        for route, of_route in self._times.items():
            for status, times in of_route.items():
                yield Labels(*self._names[route], status), times

    def counts(self) -> dict[tuple[str, ...], float]:
        """Return the numbers of requests by method, path and status."""
        return {(labels.method, labels.path, str(labels.status)): times.count for labels, times in self.all()}

    def by_outcome(self) -> dict[tuple[str, ...], Histogram]:
        """Return the durations by method, path and outcome."""
        found: dict[tuple[str, ...], Histogram] = {}
        for labels, times in self.all():
            found.setdefault((labels.method, labels.path, outcome(labels.status)), Histogram()).add(times)
        return found

    def totals(self, without: Container[object] = ()) -> Totals:
        """Return what was counted of all routes together, but for the routes ``without``, whose answers do not end."""
        requests = refused = failed = 0
        times = Histogram()
        for route, of_route in self._times.items():
            if route in without:
                continue
            for status, counted in of_route.items():
                count = counted.count
                requests += count
                refused += count if outcome(status) == "refused" else 0
                failed += count if outcome(status) == "failed" else 0
                times.add(counted)
        return Totals(requests, refused, failed, times)
