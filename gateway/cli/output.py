"""How commands print: tables for people, JSON for programs."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Sequence
from enum import StrEnum
from typing import Annotated, Final

import typer

_PIPED_WIDTH: Final = 240
"""Columns of a table that nobody looks at on a terminal: nothing is cut off for whoever searches in it."""


class Output(StrEnum):
    """How a command prints."""

    TABLE = "table"
    JSON = "json"


Format = Annotated[Output, typer.Option("--output", "-o", help="table or json")]


def show(header: Sequence[str], rows: Iterable[Sequence[str]], *, unbroken: Collection[str] = ()) -> None:
    """Print a table to standard output, as wide as its terminal; cells of ``unbroken`` columns stay on one line."""
    # Import rich only to print a table.
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.table import Table

    table = Table(box=SIMPLE)
    for name in header:
        table.add_column(name, overflow="fold", no_wrap=name in unbroken)
    for row in rows:
        table.add_row(*row)
    Console(width=None if sys.stdout.isatty() else _PIPED_WIDTH).print(table)
