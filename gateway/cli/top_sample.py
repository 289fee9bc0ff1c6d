"""What ``oncegate top`` knows of a cluster at one moment: the answers of its nodes, decoded. Pure.

Owns: the form of a sample, and how Prometheus text becomes one. Must not know how answers are fetched
(:mod:`oncegate.gateway.cli.top`) or what is shown (:mod:`oncegate.gateway.cli.top_frame`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

Labels = tuple[tuple[str, str], ...]
Series = dict[str, dict[Labels, float]]
"""Values by name, then by their labels in the order of their names."""

LINES_MAX: Final = 500_000
"""Of one node's metrics; what follows is left out."""
VALUE_MAX: Final = 2.0**64
"""Of a metric, and its opposite the least: sums and differences of such values are finite."""
_LINE: Final = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)", re.ASCII)
_LABEL: Final = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"', re.ASCII)
_ESCAPE: Final = re.compile(r"\\(.)")


class NodeSample(NamedTuple):
    """One member at one moment."""

    node: str
    http: str
    at_s: float
    """When it answered, by a clock that never goes back."""
    cluster: Mapping[str, Any] | None
    """``/v1/cluster``; None if it did not answer."""
    metrics: Series
    """Empty where they are not to be had."""
    error: str = ""
    """Why something is missing."""
    asked: bool = True
    """False for a member whose address is not to be asked; ``error`` says why."""


class Sample(NamedTuple):
    """The cluster at one moment."""

    unix_s: float
    nodes: dict[str, NodeSample]
    """By id; all members that are known."""


def parse(text: str) -> Series:
    """Return the values of Prometheus text; other lines, and values beyond VALUE_MAX or ``NaN``, are left out."""
    found: Series = {}
    for line in text.splitlines()[:LINES_MAX]:
        match = _LINE.fullmatch(line)
        if match is None:  # a comment, or no metric
            continue
        name, labels, number = match.groups()
        try:
            value = float(number)
        except ValueError:
            continue
        if abs(value) <= VALUE_MAX:  # not of NaN
            pairs = sorted((key, _unescaped(text)) for key, text in _LABEL.findall(labels or ""))
            found.setdefault(name, {})[tuple(pairs)] = value
    return found


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(lambda match: "\n" if match[1] == "n" else match[1], text)


def value(series: Series, name: str, /, **labels: str) -> float | None:
    """Return the value of a name with exactly these labels, or None."""
    return series.get(name, {}).get(tuple(sorted(labels.items())))


def quantile(share: float, buckets: Mapping[float, float]) -> float | None:
    """Return a percentile of a histogram as Prometheus' ``histogram_quantile`` has it, or None for no observation.

    Args:
        share: 0.99 for the 99th percentile.
        buckets: by upper bound, ``inf`` last, how many observations are within it.
    """
    bounds = sorted(buckets)
    if not bounds or not math.isinf(bounds[-1]) or buckets[bounds[-1]] <= 0:
        return None
    rank = share * buckets[bounds[-1]]
    low, below = 0.0, 0.0
    for bound in bounds:
        within = buckets[bound]
        if within >= rank and within > below:
            # In the last bucket nothing is known but that it is beyond the last bound.
            return low if math.isinf(bound) else low + (bound - low) * (rank - below) / (within - below)
        low, below = bound, max(below, within)
    return low
