"""What a job's progress file tells: totals, rates, lag and the time left, for people and for Prometheus. Pure.

Owns: the figures. The lines are those that `oncegate.spark_sink.sink` appends, one a micro-batch. Read next: `submit`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from oncegate.spark_sink.dead_letters import DEAD_LETTERS

_WINDOW_MS: Final = 60_000
_MS: Final = 1000
_HELP: Final = {
    "items_total": "Items read.",
    "rows_total": "Rows written and deleted, dead letters among them.",
    "dead_letters_total": "Items that became dead letters.",
    "restarts_total": "Times that the job was started again.",
    "spans_dropped_total": "Spans that no collector has taken.",
    "last_batch": "Newest batch whose rows are durable.",
    "lag_batches": "Sealed batches that are not read yet.",
    "lag_items": "Items of these batches.",
    "lag_seconds": "Age of the oldest of them.",
    "items_per_second": "Items read a second in the last minute.",
    "seconds_left": "Until nothing is left to read, if the lag goes on as it did.",
}
"""Of each metric, without its prefix."""


class _Seen(NamedTuple):
    time_ms: int
    items: int
    rows: int
    behind: int


@dataclass
class Progress:
    """The progress of one job since its supervisor began; rates are those of the last minute."""

    items: int = 0
    rows: int = 0
    dead_letters: int = 0
    last_batch: int = 0
    lag_batches: int = 0
    lag_items: int = 0
    lag_ms: int = 0
    restarts: int = 0
    spans_dropped: int = 0
    _recent: deque[_Seen] = field(default_factory=deque)

    def add(self, line: Mapping[str, Any]) -> None:
        """Take the next line; a micro-batch that ran again counts again."""
        self.items += line["items"]
        self.rows += line["rows"]
        self.dead_letters += line["rows_by_table"].get(DEAD_LETTERS.name, 0)
        self.spans_dropped += line.get("spans_dropped", 0)  # older jobs do not tell
        self.last_batch = max(self.last_batch, line["last_batch"])
        for name in ("lag_batches", "lag_items", "lag_ms"):
            if line.get(name) is not None:
                setattr(self, name, line[name])
        self._recent.append(_Seen(line["time_ms"], self.items, self.rows, self.lag_items))
        while self._recent[0].time_ms < line["time_ms"] - _WINDOW_MS:
            self._recent.popleft()

    def per_second(self) -> tuple[float, float]:
        """Return items read and rows written a second."""
        first, last, seconds = self._span()
        return (last.items - first.items) / seconds, (last.rows - first.rows) / seconds

    def time_left_s(self) -> float | None:
        """Return when nothing is left to read if the lag goes on as it did; None where it does not shrink."""
        if not self.lag_items:
            return 0.0
        first, last, seconds = self._span()
        shrinks = (first.behind - last.behind) / seconds
        return self.lag_items / shrinks if shrinks > 0 else None

    def text(self) -> str:
        """Return one line for people."""
        items, rows = self.per_second()
        left = self.time_left_s()
        ends = "nothing left" if left == 0 else "does not catch up" if left is None else f"{left:.0f} s left"
        dead = f", {self.dead_letters:,} dead letters" if self.dead_letters else ""
        return (
            f"batch {self.last_batch:,}: {self.items:,} items in ({items:,.0f}/s), {self.rows:,} rows out "
            f"({rows:,.0f}/s){dead}; behind {self.lag_items:,} items, {self.lag_ms / _MS:.1f} s: {ends}"
        )

    def metrics(self, job: str) -> str:
        """Return the figures in Prometheus' text format; ``job`` is the consumer's name, which needs no escaping."""
        counted = {"items": self.items, "rows": self.rows, "dead_letters": self.dead_letters, "restarts": self.restarts}
        counted["spans_dropped"] = self.spans_dropped
        gauges = {
            "last_batch": float(self.last_batch),
            "lag_batches": float(self.lag_batches),
            "lag_items": float(self.lag_items),
            "lag_seconds": self.lag_ms / _MS,
            "items_per_second": self.per_second()[0],
        }
        if (left := self.time_left_s()) is not None:
            gauges["seconds_left"] = left
        told = [(f"{name}_total", "counter", float(value)) for name, value in counted.items()]
        told += [(name, "gauge", value) for name, value in gauges.items()]
        return "".join(
            f"# HELP oncegate_job_{name} {_HELP[name]}\n# TYPE oncegate_job_{name} {kind}\n"
            f'oncegate_job_{name}{{consumer="{job}"}} {value:.10g}\n'
            for name, kind, value in told
        )

    def _span(self) -> tuple[_Seen, _Seen, float]:
        if not self._recent:
            return _Seen(0, 0, 0, 0), _Seen(0, 0, 0, 0), 1.0
        first, last = self._recent[0], self._recent[-1]
        return first, last, max(last.time_ms - first.time_ms, 1) / _MS
