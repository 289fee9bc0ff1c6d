"""A frame of ``oncegate top`` as lines of a screen. Pure.

Owns: what fits where. A line is never wider than the screen, and there are never more lines than it has; what is left
out at the end of a list is counted. Nothing is said by colour alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final, NamedTuple

from oncegate.gateway.cli.output import printable
from oncegate.gateway.cli.top_frame import FlowRow, Frame, Latency, NodeRow

KEYS: Final = "q quit   space pause"
_NONE: Final = "-"
_NODE_HEADER: Final = (
    "node", "state", "term", "applied", "behind", "/s", "flush ms", "p99", "cpu", "memory", "disk", "free",
)  # fmt: skip
_FLOW_HEADER: Final = ("flow", "consumer", "behind: batches", "items", "seconds", "trend")
_WELL: Final = frozenset({"leader", "follower", "learner"})


class Style(StrEnum):
    """How a line is set off, where the terminal can."""

    PLAIN = "plain"
    HEAD = "head"
    LEADER = "leader"
    BAD = "bad"


class Line(NamedTuple):
    """A line of the screen."""

    text: str
    style: Style = Style.PLAIN


def screen(frame: Frame, width: int, height: int, *, paused: bool = False, keys: bool = True) -> list[Line]:
    """Return a frame as at most ``height`` lines of at most ``width`` columns.

    Args:
        frame: what to show.
        width: of the screen in columns, at least 1.
        height: of the screen in lines, at least 1.
        paused: whether the screen stands still, which it says.
        keys: whether its last line names the keys.
    """
    footer = [Line(KEYS + ("   PAUSED" if paused else ""), Style.HEAD)] if keys else []
    lines = [*_summary(frame), Line("")]
    nodes, flows = _nodes(frame.nodes), _flows(frame.flows)
    room = height - len(footer) - len(lines)
    if len(nodes) + len(flows) + 1 <= room:
        lines += [*nodes, Line(""), *flows]
    else:
        # Nodes first: there are few. Flows get what is left, at least their header and the worst of them if that fits.
        shown = _cut(nodes, max(room - 4, min(room, len(nodes))) if flows else room, "nodes")
        left = room - len(shown) - 1
        lines += [*shown, *([Line(""), *_cut(flows, left, "consumers")] if left > 1 and flows else [])]
    lines = lines[: max(0, height - len(footer))] + footer
    return [Line(line.text[:width].rstrip(), line.style) for line in lines[:height]]


def text(frame: Frame) -> str:
    """Return a frame as text without bounds, for where no terminal is."""
    return "\n".join(line.text.rstrip() for line in screen(frame, 10_000, 10_000, keys=False)).rstrip() + "\n"


def _summary(frame: Frame) -> list[Line]:
    at = datetime.fromtimestamp(frame.unix_s, UTC).strftime("%H:%M:%S")
    leader = frame.leader if frame.leader is not None else "NONE"
    whole = f"{frame.answering} of {frame.members} nodes answer"
    head = f"oncegate top   {at} UTC   {frame.interval_s:.1f} s   {whole}   leader {printable(leader)}   "
    head += f"term {_count(frame.term)}"
    well = frame.leader is not None and frame.answering == frame.members
    return [
        Line(head, Style.HEAD if well else Style.BAD),
        Line(
            f"operations {_rate(frame.commits_per_s)}   replays {_rate(frame.replays_per_s)}   "
            f"requests {_rate(frame.requests_per_s)}   refused {_rate(frame.refused_per_s)}   "
            f"failed {_rate(frame.failed_per_s)}",
            Style.BAD if frame.failed_per_s else Style.PLAIN,
        ),
        Line(f"p50/p99 ms: writes {_both(frame.writes)}   reads {_both(frame.reads)}   entries {_both(frame.entries)}"),
        Line(f"sessions {_count(frame.sessions)}   idempotency keys {_count(frame.keys)}"),
    ]


def _nodes(rows: Sequence[NodeRow]) -> list[Line]:
    cells = [
        (
            row.node,
            row.state if not row.error or row.term is None else f"{row.state} (!)",
            _count(row.term),
            _count(row.applied),
            _count(row.behind),
            _plain(row.applied_per_s),
            _ms(row.flush.p50_ms),
            _ms(row.flush.p99_ms),
            _NONE if row.cpu is None else f"{row.cpu:.0%}",
            _bytes(row.memory_bytes),
            _bytes(row.disk_used_bytes),
            _bytes(row.disk_free_bytes),
        )
        for row in rows
    ]
    styles = [
        Style.LEADER if row.state == "leader" else Style.PLAIN if row.state in _WELL else Style.BAD for row in rows
    ]
    return _table(_NODE_HEADER, cells, styles, texts=2)


def _flows(rows: Sequence[FlowRow]) -> list[Line]:
    if not rows:
        return []
    cells = [
        (row.flow, row.consumer, _count(row.lag_batches), _count(row.lag_items), f"{row.lag_s:.1f}", row.trend)
        for row in rows
    ]
    return _table(_FLOW_HEADER, cells, [Style.PLAIN] * len(rows), texts=2)


def _table(header: Sequence[str], rows: Sequence[Sequence[str]], styles: Iterable[Style], texts: int) -> list[Line]:
    """Return rows in columns: the first ``texts`` to the left, numbers to the right."""
    safe = [[printable(cell).replace("\n", " ") for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(header, *safe, strict=True)]

    def line(cells: Sequence[str]) -> str:
        sides = (
            cell.ljust(width) if at < texts else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(cells, widths, strict=True))
        )
        return " ".join(sides)

    return [Line(line(header), Style.HEAD), *(Line(line(row), style) for row, style in zip(safe, styles, strict=True))]


def _cut(lines: list[Line], room: int, what: str) -> list[Line]:
    """Return a table in so many lines; the last one counts what is left out."""
    if len(lines) <= room:
        return lines
    kept = lines[: max(0, room - 1)]
    return [*kept, Line(f"… and {len(lines) - len(kept) - (not kept)} more {what}")] if room > 0 else []


def _count(number: int | None) -> str:
    return _NONE if number is None else f"{number:,}"


def _plain(number: float | None) -> str:
    return _NONE if number is None else f"{number:,.0f}"


def _rate(number: float | None) -> str:
    return f"{_plain(number)}/s"


def _ms(number: float | None) -> str:
    return _NONE if number is None else f"{number:.1f}" if number < 100 else f"{number:,.0f}"


def _both(latency: Latency) -> str:
    return f"{_ms(latency.p50_ms)}/{_ms(latency.p99_ms)}"


def _bytes(number: int | None) -> str:
    if number is None:
        return _NONE
    size = float(number)
    for unit in "BKMG":
        if abs(size) < 1000:
            return f"{size:.1f}{unit}" if unit != "B" and size < 10 else f"{size:.0f}{unit}"
        size /= 1024
    return f"{size:.1f}T"
