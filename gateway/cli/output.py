"""How commands print: tables for people, JSON for programs."""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.table import Table

_PIPED_WIDTH: Final = 240
"""Columns of a table that nobody looks at on a terminal: nothing is cut off for whoever searches in it."""


class Output(StrEnum):
    """How a command prints."""

    TABLE = "table"
    JSON = "json"


Format = Annotated[Output, typer.Option("--output", "-o", help="table or json")]


def show(table: Table) -> None:
    """Print a table to standard output, as wide as its terminal."""
    for column in table.columns:
        column.overflow = "fold"
    Console(width=None if sys.stdout.isatty() else _PIPED_WIDTH).print(table)
