"""Whether a machine, and a cluster, is good enough: the thresholds of ``oncegate perf``, and the verdict. Pure.

Owns: which figures count, what each has to be for which size of cluster, and where that comes from. Must not know how a
figure is measured: :mod:`oncegate.gateway.cli.perf_host` and :mod:`oncegate.gateway.cli.perf_load` do.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final, Literal, NamedTuple


class Size(StrEnum):
    """What the cluster is to carry: as etcd's ``check perf``, by writes a second."""

    SMALL = "small"
    MEDIUM = "medium"
    LARGE = "large"


Unit = Literal["ms", "GiB", "cores", "/s", ""]


class Threshold(NamedTuple):
    """One figure and its bounds.

    Attributes:
        figure: its name in ``-o json``.
        words: what it is.
        unit: of the figure and the bounds.
        least: True: the figure may not be below the bound; False: not above.
        bounds: small, medium, large.
        source: where the bound comes from.
    """

    figure: str
    words: str
    unit: Unit
    least: bool
    bounds: tuple[float, float, float]
    source: str

    def bound(self, size: Size) -> float:
        """Return the bound for a size."""
        return self.bounds[list(Size).index(size)]


THRESHOLDS: Final = (
    Threshold(
        "flush_p99_ms", "fdatasync of 4 KiB, p99", "ms", False, (25, 10, 5),
        "a write waits for the flush of a majority; 10 ms is what etcd asks of a disk",
    ),
    Threshold(
        "flush_max_ms", "fdatasync of 4 KiB, worst", "ms", False, (600, 300, 150),
        "followers elect another leader after 600 ms of silence, and a flush is silence",
    ),
    Threshold(
        "pause_max_ms", "longest pause of an idle process", "ms", False, (300, 200, 100),
        "heartbeats leave every 100 ms; three missed ones and little more are an election",
    ),
    Threshold(
        "clock_step_ms", "largest step of the wall clock", "ms", False, (100, 100, 100),
        "cluster time follows the leader's clock: a step ages leases, the shortest of which last 1,000 ms",
    ),
    Threshold(
        "cores", "cores that this process may use", "cores", True, (1, 2, 4),
        "a node's event loop takes one; saves, merges and flushes want another",
    ),
    Threshold(
        "memory_gib", "memory available", "GiB", True, (1, 4, 16),
        "program, caches, log and history in memory: 0.4 GiB; the rest is sessions and results: the tables above",
    ),
    Threshold(
        "disk_free_gib", "free on the data directory's file system", "GiB", True, (2, 20, 100),
        "log kept and its segments 0.4 GiB, the state twice (a snapshot arrives beside it), retained batches",
    ),
    Threshold(
        "loopback_p99_ms", "round trip on loopback, p99", "ms", False, (10, 5, 2),
        "what the machine alone adds to each message",
    ),
    Threshold(
        "peer_p50_ms", "round trip to the farthest member, median", "ms", False, (50, 20, 10),
        "a heartbeat has to be answered before the next one, 100 ms later",
    ),
    Threshold(
        "write_1_p99_ms", "a write, 1 outstanding, p99", "ms", False, (200, 100, 50),
        "two round trips and two flushes at their bounds",
    ),
    Threshold(
        "write_64_per_s", "writes a second, 64 outstanding", "/s", True, (150, 1000, 8000),
        "the rates at which etcd's check perf tests its sizes s, m and l",
    ),
    Threshold(
        "write_64_p99_ms", "a write, 64 outstanding, p99", "ms", False, (400, 200, 100),
        "twice the bound of a write alone",
    ),
    Threshold(
        "write_max_ms", "slowest write", "ms", False, (500, 500, 500),
        "etcd's check perf fails above it, whatever the size",
    ),
)  # fmt: skip
"""All that is judged, in the order in which it is shown; docs/sizing.md has it as a table."""


class Finding(NamedTuple):
    """A figure beside its bound."""

    threshold: Threshold
    measured: float
    bound: float

    @property
    def good(self) -> bool:
        """Whether the figure is within its bound, which it may equal; a figure that is no number is not."""
        return self.measured >= self.bound if self.threshold.least else self.measured <= self.bound

    @property
    def limit(self) -> str:
        """The bound in words."""
        return f"at {'least' if self.threshold.least else 'most'} {shown(self.bound, self.threshold.unit)}"

    @property
    def reason(self) -> str:
        """Why this fails, in a line."""
        one = self.threshold
        return f"{one.words}: {shown(self.measured, one.unit)}, wanted {self.limit} ({one.source})"


class Verdict(NamedTuple):
    """All findings of one size."""

    size: Size
    findings: list[Finding]

    @property
    def good(self) -> bool:
        """Whether all of them are."""
        return all(finding.good for finding in self.findings)

    @property
    def reasons(self) -> list[str]:
        """What is not good enough, in the order of the thresholds."""
        return [finding.reason for finding in self.findings if not finding.good]

    def as_json(self) -> dict[str, Any]:
        """Return what ``-o json`` shows of it."""
        return {
            "verdict": "PASS" if self.good else "FAIL",
            "size": self.size.value,
            "reasons": self.reasons,
            "figures": {
                finding.threshold.figure: {
                    "measured": finding.measured,
                    "at_least" if finding.threshold.least else "at_most": finding.bound,
                    "unit": finding.threshold.unit,
                    "good": finding.good,
                }
                for finding in self.findings
            },
        }


def judge(figures: Mapping[str, float], size: Size) -> Verdict:
    """Judge what was measured; a figure that was not measured is left out.

    Raises:
        ValueError: there is no threshold for a figure: it would count for nothing.
    """
    unknown = figures.keys() - {one.figure for one in THRESHOLDS}
    if unknown:
        raise ValueError(f"no threshold for {', '.join(sorted(unknown))}")
    return Verdict(
        size, [Finding(one, figures[one.figure], one.bound(size)) for one in THRESHOLDS if one.figure in figures]
    )


def unfit(states: Mapping[str, Mapping[str, Any] | str], ready: Mapping[str, bool]) -> str | None:
    """Say why a cluster must not be loaded now; None if it may be.

    Args:
        states: of each member ``/v1/cluster``, or in a word why it does not say.
        ready: whether each member answers linearizable reads.
    """
    for name, state in states.items():
        if isinstance(state, str):
            return f"{name} does not answer: {state}"
        if state.get("damage"):
            return f"the state of {name} is damaged: {state['damage']}"
        if not ready.get(name, False):
            return f"{name} is not ready"
    told = {name: state for name, state in states.items() if not isinstance(state, str)}
    leaders = sorted({str(state.get("leader")) for state in told.values()})
    if len(leaders) != 1 or leaders == ["None"]:
        return f"the members do not agree on a leader: {', '.join(leaders) or 'there is none'}"
    for name, state in told.items():
        if state.get("change_pending"):
            return f"a change of members is under way, says {name}"
    newest = max(int(state["commit_index"]) for state in told.values())
    for name, state in told.items():
        behind = newest - int(state["applied_index"])
        if behind > BEHIND_MAX:
            return f"{name} is {behind:,} entries behind"
    return None


BEHIND_MAX: Final = 1_000
"""Entries: a second of a busy log. A member that lacks more is catching up, and a load would keep it from that."""


def shown(value: float, unit: Unit) -> str:
    """Return a figure as it is shown."""
    digits = f"{value:,.0f}" if unit in ("/s", "cores") or abs(value) >= 100 else f"{value:.3g}"
    return f"{digits}{unit}" if unit == "/s" else f"{digits} {unit}".rstrip()
