"""Metrics in Prometheus' text format: how one is declared, and how it is written.

Owns: the form of a declaration and of its lines. Must not know which metrics exist:
:mod:`oncegate.gateway.http.metrics` declares them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Literal, NamedTuple

from oncegate.consensus.histogram import BOUNDS_S, Histogram

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
PREFIX: Final = "oncegate_"
_LE: Final = (*map(repr, BOUNDS_S), "+Inf")

Value = float | Histogram | Mapping[tuple[str, ...], float | Histogram] | None
"""A number or histogram; with labels those by their values; None where the node has nothing of the kind."""


class Metric(NamedTuple):
    """One metric.

    Attributes:
        name: without prefix and, of a counter, without ``_total``.
        kind: as Prometheus calls it.
        text: what it is, with the unit if the name has none.
        read: returns the value, of what all metrics are read from.
        labels: names of the labels, in the order of the value's keys.
        prefix: empty for names that Prometheus' own client libraries share.
    """

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    text: str
    read: Callable[[Any], Value]
    labels: tuple[str, ...] = ()
    prefix: str = PREFIX

    @property
    def full_name(self) -> str:
        """The name in the exposition."""
        return f"{self.prefix}{self.name}{'_total' if self.kind == 'counter' else ''}"

    def lines(self, of: object) -> list[str]:
        """Return the lines of the exposition."""
        value = self.read(of)
        if value is None:
            return []
        name = self.full_name
        values = value if isinstance(value, Mapping) else {(): value}
        lines = [f"# HELP {name} {self.text}", f"# TYPE {name} {self.kind}"]
        for labels, one in values.items():
            pairs = [f'{label}="{_escaped(text)}"' for label, text in zip(self.labels, labels, strict=True)]
            if isinstance(one, Histogram):
                lines.extend(_histogram(name, pairs, one))
            else:
                lines.append(f"{name}{_labelled(pairs)} {float(one)!r}")
        return lines


def _histogram(name: str, pairs: list[str], one: Histogram) -> Iterator[str]:
    cumulative = one.cumulative()
    for le, within in zip(_LE, cumulative, strict=True):
        labelled = _labelled([*pairs, f'le="{le}"'])
        yield f"{name}_bucket{labelled} {within}"
    yield f"{name}_sum{_labelled(pairs)} {one.sum_s!r}"
    yield f"{name}_count{_labelled(pairs)} {cumulative[-1]}"


def _labelled(pairs: list[str]) -> str:
    return f"{{{','.join(pairs)}}}" if pairs else ""


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
