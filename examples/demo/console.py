"""What a person sees while the demo runs: progress bars on a terminal, plain lines elsewhere.

Owns: the screen. Must not know what is shown. Read next: :mod:`examples.demo.scenario`, which tells it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType
from typing import Final, Self

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from examples.demo.recount import Check

_LINE_EVERY_S: Final = 5.0


class Screen:
    """Shows phases, events and three bars: messages acknowledged, rows delivered, leaders killed.

    Args:
        messages: how many are to be acknowledged.
        rows: how many are to be delivered.
        kills: how many leaders are to be killed.
        console: where to; standard output by default.
    """

    def __init__(self, messages: int, rows: int, kills: int, console: Console | None = None) -> None:
        self.console = console or Console(highlight=False)
        self._totals = (messages, rows, kills)
        self._began_s = time.monotonic()
        self._line_at_s = 0.0
        self._said = ""
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self.console,
            disable=not self.console.is_terminal,
        )
        names = ("messages acknowledged", "timeline rows delivered", "leaders killed")
        self._bars = [
            self._progress.add_task(name, total=total) for name, total in zip(names, self._totals, strict=True)
        ]

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def begin(self) -> None:
        """Start the clock of the events anew: what came before was set-up."""
        self._began_s = time.monotonic()

    def say(self, text: str) -> None:
        """Show an event, above the bars."""
        elapsed_s = time.monotonic() - self._began_s
        self.console.print(f"[dim]{elapsed_s:6.1f} s[/dim]  {escape(text)}", soft_wrap=True)

    def show(self, messages: int, rows: int, kills: int) -> None:
        """Show how far things are; call it often, it is cheap."""
        for bar, value in zip(self._bars, (messages, rows, kills), strict=True):
            self._progress.update(bar, completed=value)
        if self.console.is_terminal:
            return
        now_s = time.monotonic()
        line = f"messages {messages:,}/{self._totals[0]:,}, rows {rows:,}/{self._totals[1]:,}"
        if now_s >= self._line_at_s and line != self._said:
            self._line_at_s, self._said = now_s + _LINE_EVERY_S, line
            self.say(line)


def results(checks: Sequence[Check], console: Console) -> None:
    """Print the table of results, and what differs where something does."""
    table = Table("check", title="Results", title_justify="left")
    table.add_column("expected", justify="right")
    table.add_column("found", justify="right")
    table.add_column("verdict")
    for check in checks:
        verdict = "[green]PASS[/green]" if check.passed else "[bold red]FAIL[/bold red]"
        table.add_row(escape(check.name), escape(check.expected), escape(check.found), verdict)
    console.print(table)
    for check in checks:
        for name in check.named:
            console.print(f"{check.name}: {name}", markup=False, soft_wrap=True)
