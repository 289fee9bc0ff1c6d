"""How commands print and end: tables for people, JSON for programs, one line and an exit code for an error.

Exit codes of commands that give a verdict: one for each verdict, others for misuse and for a crash. The one module that
knows how typer ends a command that is misused (``typer.core``, ``typer.exceptions``).
"""

from __future__ import annotations

import contextlib
import sys
import traceback
from collections.abc import Collection, Iterable, Iterator, Sequence
from enum import StrEnum
from typing import Annotated, Any, Final

import typer
from typer.core import TyperCommand, TyperGroup
from typer.exceptions import TyperException

from oncegate.rifl.errors import OncegateError

MISUSE: Final = 3
"""Of a command that gives a verdict; not typer's 2, which is one: nothing could be told."""
CRASH: Final = 4
_PIPED_WIDTH: Final = 240
"""Columns of a table that nobody looks at on a terminal: nothing is cut off for whoever searches in it."""


class Output(StrEnum):
    """How a command prints."""

    TABLE = "table"
    JSON = "json"


Format = Annotated[Output, typer.Option("--output", "-o", help="table or json")]


def show(header: Sequence[str], rows: Iterable[Sequence[str]], *, unbroken: Collection[str] = ()) -> None:
    """Print a table to standard output, as wide as its terminal; cells of ``unbroken`` columns stay on one line.

    A cell is text as it is: keys and errors come from whoever writes, and would otherwise be read as markup by rich and
    as commands by a terminal.
    """
    # Import rich only to print a table.
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE)
    for name in header:
        table.add_column(name, overflow="fold", no_wrap=name in unbroken)
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    Console(width=None if sys.stdout.isatty() else _PIPED_WIDTH).print(table)


def printable(text: str) -> str:
    """Return a text with what no terminal shows, control characters first of all, as escapes; line ends stay."""
    return "".join(
        one if one.isprintable() or one == "\n" else one.encode("unicode_escape", "surrogatepass").decode()
        for one in text
    )


def failed(fault: object, code: int) -> typer.Exit:
    """Print what went wrong, and return the exit that ends the command."""
    typer.echo(f"oncegate: {fault}", err=True)
    return typer.Exit(code)


class VerdictGroup(TyperGroup):
    """A group of commands that give verdicts: misuse has an exit code that no verdict has."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        with _misuse():
            return super().invoke(ctx)


class VerdictCommand(TyperCommand):
    """A command that gives a verdict: its misuse has an exit code that no verdict has."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        with _misuse():
            return super().invoke(ctx)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the arguments."""
        with _misuse():
            return super().parse_args(ctx, args)


@contextlib.contextmanager
def _misuse() -> Iterator[None]:
    try:
        yield
    except TyperException as misuse:
        misuse.exit_code = MISUSE
        raise
    except ModuleNotFoundError as missing:
        raise not_installed(missing, MISUSE) from None


def not_installed(missing: ModuleNotFoundError, code: int) -> typer.Exit:
    """Print which extra to install for a module of another package; raises ``missing`` again if it is one of ours."""
    if missing.name is None or missing.name.partition(".")[0] == __name__.partition(".")[0]:
        raise missing
    return failed(f"{missing.name} is not installed; pip install 'oncegate[server]'", code)


@contextlib.contextmanager
def exits(*, misuse: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Print the error and exit with its code: no error may look like a verdict.

    Args:
        misuse: errors that describe wrong arguments or files, as OncegateError does.
    """
    expected: tuple[type[Exception], ...] = (OncegateError, *misuse)
    try:
        yield
    except expected as fault:
        raise failed(fault.detail if isinstance(fault, OncegateError) else fault, MISUSE) from None
    except Exception:  # noqa: BLE001 - see above
        traceback.print_exc()
        raise typer.Exit(CRASH) from None
