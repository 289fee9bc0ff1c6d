"""``oncegate config``: the settings of a node before it runs: what it would take, from where, and what is wrong."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from oncegate.gateway.cli.output import Format, Output, as_json, failed, show
from oncegate.gateway.cli.setting_flags import Config, with_setting_flags
from oncegate.gateway.node.setting import DEFAULT, Gathered, gather, sample
from oncegate.gateway.node.settings import SETTINGS, Settings

config = typer.Typer(help="Settings of a node: show, check, sample.", no_args_is_help=True)


@config.command("show")
@with_setting_flags
def show_settings(
    config: Config = None,
    output: Format = Output.TABLE,
    given: Annotated[bool, typer.Option("--given", help="only what has another origin than the default")] = False,
    **flags: Any,
) -> None:
    """Show each setting as `oncegate serve` would take it here with the same flags, and where its value came from.

    No setting holds a secret: secrets are in files, of which the paths are shown.
    """
    gathered = gather(SETTINGS, config, os.environ, flags)
    _tell_unknown(gathered.unknown)
    if gathered.faults:
        raise failed("\n".join(gathered.faults), 2)
    shown = {name: one for name, one in gathered.settings.items() if not given or one.origin != DEFAULT}
    told = {name: {"value": one.value, "origin": one.origin} for name, one in shown.items()}
    if as_json(output, told, ({"setting": name, **one} for name, one in told.items())):
        return
    rows = ((name, _words(one.value), one.origin) for name, one in shown.items())
    show(("setting", "value", "from"), rows, unbroken=("from",))


def _words(value: Any) -> str:
    match value:
        case None:
            return ""
        case bool():
            return str(value).lower()
        case list():
            return "\n".join(value)
    return str(value)


@config.command()
def check(
    file: Annotated[Path, typer.Argument(help="TOML file with settings")],
    values_only: Annotated[
        bool,
        typer.Option(
            "--values-only", help="look at none of the files that it names, nor at this machine: both may be elsewhere"
        ),
    ] = False,
) -> None:
    """Tell what keeps `oncegate serve --config FILE` from starting here; exit status 1, and a line for each fault.

    Settings are held against each other and against this machine: descriptors, disk, memory. What does not keep it from
    starting is a warning. Variables count as they would there.
    """
    gathered = gather(SETTINGS, file, os.environ, {})
    _tell_unknown(gathered.unknown)
    if gathered.faults:
        raise failed("\n".join(gathered.faults), 1)
    if not values_only and (faults := list(_start_faults(file, gathered))):
        raise failed("\n".join(dict.fromkeys(faults)), 1)
    typer.echo(f"{file}: {sum(one.origin != DEFAULT for one in gathered.settings.values())} settings, nothing wrong")


def _start_faults(file: Path, gathered: Gathered) -> Iterator[str]:
    """Yield what keeps a node with these settings from starting here; tell what does not on stderr."""
    from oncegate.gateway.cli.serve import fitness_of
    from oncegate.gateway.cli.start_check import start_faults

    settings = Settings.of(gathered)
    try:
        for one in fitness_of(settings):
            if one.is_error:
                yield f"{file}: {one.text}"
            else:
                typer.echo(f"oncegate: {file}: {one.text}", err=True)
    except ValueError as error:
        yield f"{file}: {error}"
    for fault in start_faults(settings):
        yield fault.told(gathered) if fault.names else f"{file}: {fault.text}"


@config.command("sample")
def show_sample() -> None:
    """Print a file with every setting at its default, commented out."""
    typer.echo("# Every setting of `oncegate serve --config` at its default.\n")
    for line in sample(SETTINGS):
        typer.echo(line)


def _tell_unknown(unknown: list[str]) -> None:
    for one in unknown:
        typer.echo(f"oncegate: {one}", err=True)
