"""How commands that give a verdict end: its exit code, and codes for misuse and for a crash that no verdict has."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator
from typing import Final

import typer

from oncegate.rifl.errors import OncegateError

MISUSE: Final = 3
CRASH: Final = 4


@contextlib.contextmanager
def exits(*, misuse: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Say what went wrong and exit with its code: whatever it is, it must not pass for a verdict.

    Args:
        misuse: errors that say what is wrong with what was given, as OncegateError does.
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
