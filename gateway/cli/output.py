"""How commands print and end: tables for people, JSON or lines of JSON for programs, one line and an exit code for an
error. What a command that asks for JSON prints on stdout is JSON, and on success it prints nothing on stderr, but for
what it had to wait for.

Exit codes of commands that give a verdict: one for each verdict, others for misuse and for a crash. The one module that
knows how typer ends a command that is misused (``typer.core``, ``typer.exceptions``).
"""

from __future__ import annotations

import contextlib
import json
import sys
import traceback
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from types import TracebackType
from typing import Annotated, Any, Final, Self

import typer
from typer.core import TyperCommand, TyperGroup
from typer.exceptions import TyperException

from oncegate.rifl.errors import OncegateError
from oncegate.version import installing

MISUSE: Final = 3
"""Of a command that gives a verdict; not typer's 2, which is one: nothing could be told."""
CRASH: Final = 4
_PIPED_WIDTH: Final = 240
"""Columns of a table that nobody looks at on a terminal: nothing is cut off for whoever searches in it."""


class Output(StrEnum):
    """How a command prints."""

    TABLE = "table"
    JSON = "json"
    JSONL = "jsonl"


Format = Annotated[Output, typer.Option("--output", "-o", help="table, json, or jsonl: an object a line")]
Yes = Annotated[bool, typer.Option("--yes", help="do not ask")]


def confirm(question: str, *, yes: bool) -> None:
    """Ask before what cannot be taken back, unless ``yes``; any other answer, or none, ends the command with 1."""
    if not yes:
        typer.confirm(question, abort=True, err=True)


def as_json(output: Output, found: object, lines: Iterable[object] | None = None) -> bool:
    """Print what was found if JSON is asked for, and tell whether it was.

    Args:
        output: how to print.
        found: what ``json`` prints; ``jsonl`` prints the items of a list, and anything else as one line.
        lines: what ``jsonl`` prints instead, an object a line: rows that ``found`` has below names.
    """
    if output is Output.JSON:
        typer.echo(json.dumps(found, indent=1, default=str))
    elif output is Output.JSONL:
        whole = found if isinstance(found, list) else [found]
        for one in whole if lines is None else lines:
            typer.echo(json.dumps(one, default=str))
    return output is not Output.TABLE


class Printed:
    """Rows printed one by one as they come, however many there are: none is kept; use as ``with``.

    A table has columns of fixed widths, the last one as wide as it is. An array of JSON is closed at the end and left
    open by an error: what was cut off is not read as a whole.

    Args:
        output: how to print.
        columns: of the table: the members of a row, with their least widths; ``value`` is shown as JSON.
        live: each row is there for whoever reads as soon as it is printed.
    """

    def __init__(self, output: Output, columns: Sequence[tuple[str, int]], *, live: bool = False) -> None:
        self._output = output
        self._columns = columns
        self._live = live
        self._began = False

    def __enter__(self) -> Self:
        if self._output is Output.TABLE:
            self._line(name for name, _ in self._columns)
        return self

    def row(self, row: Mapping[str, Any]) -> None:
        """Print a row."""
        match self._output:
            case Output.TABLE:
                self._line(self._cell(row, name) for name, _ in self._columns)
            case Output.JSON:
                sys.stdout.write(f"{',' if self._began else '['}\n {json.dumps(row)}")
            case Output.JSONL:
                sys.stdout.write(f"{json.dumps(row)}\n")
        self._began = True
        if self._live:
            sys.stdout.flush()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._output is Output.JSON and (kind is None or not issubclass(kind, Exception)):
            sys.stdout.write("\n]\n" if self._began else "[]\n")

    @staticmethod
    def _cell(row: Mapping[str, Any], name: str) -> str:
        value = row.get(name)
        if name == "value":
            return json.dumps(value) if name in row else ""
        return printable(str(value)).replace("\n", "\\n")

    def _line(self, cells: Iterable[str]) -> None:
        padded = (cell.ljust(width) for cell, (_, width) in zip(cells, self._columns, strict=True))
        sys.stdout.write(f"{'  '.join(padded).rstrip()}\n")
        if self._live:
            sys.stdout.flush()


def show(
    header: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    unbroken: Collection[str] = (),
    dispensable: Sequence[str] = (),
) -> None:
    """Print a table to standard output, as wide as its terminal.

    A cell is text as it is: keys and errors come from whoever writes, and would otherwise be read as markup by rich and
    as commands by a terminal.

    Args:
        header: names of the columns.
        rows: their cells; a row may end early.
        unbroken: columns whose cells stay on one line.
        dispensable: columns that a terminal too narrow for all does not show, the first one first.
    """
    # Import rich only to print a table.
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.measure import Measurement
    from rich.table import Table
    from rich.text import Text

    console = Console(width=None if sys.stdout.isatty() else _PIPED_WIDTH)
    cells = [[Text(printable(cell)) for cell in row] for row in rows]
    for left_out in range(len(dispensable) + 1):
        table = Table(box=SIMPLE)
        shown = [at for at, name in enumerate(header) if name not in dispensable[:left_out]]
        for at in shown:
            table.add_column(header[at], overflow="fold", no_wrap=header[at] in unbroken)
        for row in cells:
            table.add_row(*(row[at] for at in shown if at < len(row)))
        if Measurement.get(console, console.options.update(max_width=_PIPED_WIDTH), table).maximum <= console.width:
            break
    console.print(table)


def printable(text: str) -> str:
    """Return a text with what no terminal shows, control characters first of all, as escapes; line ends stay."""
    return "".join(
        one if one.isprintable() or one == "\n" else one.encode("unicode_escape", "surrogatepass").decode()
        for one in text
    )


def say(text: str, *, err: bool = False) -> None:
    """Print a text that a node may have written some of: no terminal is to read it as commands."""
    typer.echo(printable(text), err=err)


def failed(fault: object, code: int) -> typer.Exit:
    """Print what went wrong, and return the exit that ends the command."""
    say(f"oncegate: {fault}", err=True)
    return typer.Exit(code)


@contextlib.contextmanager
def checked() -> Iterator[None]:
    """End the command as misused where one of its words is not what it takes, which a ValueError says."""
    try:
        yield
    except ValueError as fault:
        raise failed(fault, 2) from None


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
    return failed(f"{missing.name} is not installed; {installing('server')}", code)


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
