"""Exit codes of commands that give a verdict: one for each verdict, others for misuse and for a crash.

The one module that knows how typer ends a command that is misused (``typer.core``, ``typer.exceptions``).
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator
from typing import Any, Final

import typer
from typer.core import TyperCommand, TyperGroup
from typer.exceptions import TyperException

from oncegate.rifl.errors import OncegateError

MISUSE: Final = 3
"""Not typer's 2, which is a verdict: nothing could be told."""
CRASH: Final = 4


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
        say_what_is_missing(missing)
        raise typer.Exit(MISUSE) from None


def say_what_is_missing(missing: ModuleNotFoundError) -> None:
    """Print which extra to install for a module of another package; raises ``missing`` again if it is one of ours."""
    if missing.name is None or missing.name.partition(".")[0] == __name__.partition(".")[0]:
        raise missing
    typer.echo(f"oncegate: {missing.name} is not installed; pip install 'oncegate[server]'", err=True)


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
        typer.echo(f"oncegate: {fault.detail if isinstance(fault, OncegateError) else fault}", err=True)
        raise typer.Exit(MISUSE) from None
    except Exception:  # noqa: BLE001 - see above
        traceback.print_exc()
        raise typer.Exit(CRASH) from None
