"""A bar for long work: on standard error, and only where somebody looks at it.

Owns: when there is a bar, and what it shows: how much is done, the rate and the time left where the amount is known,
the time gone where it is not. rich draws it. In a pipe, a file or a log there is nothing, not even rich's import.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rich.progress import ProgressColumn, Task

_REDRAWN_PER_S: Final = 4


class Unit(StrEnum):
    """What is counted."""

    BYTES = "bytes"
    RUNS = "runs"
    NODES = "nodes"
    STEPS = "steps"


Advance = Callable[[float], None]
"""Takes how much more has been done; any thread may call it."""


def is_watched() -> bool:
    """Tell whether standard error is a terminal that can redraw a line."""
    return sys.stderr.isatty() and os.environ.get("TERM", "dumb") not in ("", "dumb", "unknown")


@contextmanager
def progress(what: str, unit: Unit, total: int | None = None, *, done: int = 0) -> Iterator[Advance]:
    """Show a bar while the block runs; it goes with the block's end, also one with an error.

    Lines that the block prints to standard error appear above it. What goes to standard output is left as it is.

    Args:
        what: a few words on what is done.
        unit: what ``total`` and the calls count.
        total: how much there is; None where nobody knows, which shows the time gone.
        done: how much of it was done before.

    Yields:
        What the block calls with each piece of work done; it does nothing where there is no bar.
    """
    if not is_watched():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import Progress

    shown = Progress(
        *_columns(unit, known=total is not None),
        console=Console(stderr=True),
        refresh_per_second=_REDRAWN_PER_S,
        transient=True,
        redirect_stdout=False,
    )
    with shown:
        task = shown.add_task(what, total=total, completed=done)
        yield lambda amount: shown.advance(task, amount)


def _columns(unit: Unit, *, known: bool) -> list[ProgressColumn | str]:
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )
    from rich.text import Text

    columns: list[ProgressColumn | str] = [TextColumn("{task.description}", markup=False), BarColumn(bar_width=20)]
    if not known:
        return [*columns, TimeElapsedColumn()]
    if unit is Unit.BYTES:
        return [*columns, DownloadColumn(binary_units=True), TransferSpeedColumn(), TimeRemainingColumn()]

    class Rate(TextColumn):
        """So many a minute: runs and nodes take seconds each."""

        def render(self, task: Task) -> Text:
            return Text("" if not task.speed else f"{60 * task.speed:.1f}/min")

    return [*columns, MofNCompleteColumn(), TextColumn(unit.value), Rate(""), TextColumn("left"), TimeRemainingColumn()]
