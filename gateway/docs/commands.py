"""The command line as its help shows it, for docs/cli.md."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import click

_COLUMNS: Final = 100


def commands() -> Iterator[str]:
    """Yield a section for each command, with its help."""
    import typer.main

    from oncegate.gateway.cli.main import command_line

    yield from _command(typer.main.get_command(command_line()), None, "oncegate", 2)


def _command(command: Any, parent: click.Context | None, name: str, level: int) -> Iterator[str]:
    context = command.make_context(name, [], parent=parent, resilient_parsing=True, **_WIDTH)
    context.info_name = name
    below = getattr(command, "commands", {})
    if parent is not None or not below:
        path = context.command_path
        yield f"{'#' * level} {path}"
        yield "```text"
        yield from (line.rstrip() for line in command.get_help(context).splitlines())
        yield "```"
        yield ""
    for each, one in below.items():
        yield from _command(one, context, each, level if parent is None else level + 1)


_WIDTH: Final = {"terminal_width": _COLUMNS, "max_content_width": _COLUMNS}
