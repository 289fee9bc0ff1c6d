"""The flags of every setting of a node, for each command that takes them all."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from oncegate.gateway.node.setting import Setting
from oncegate.gateway.node.settings import SETTINGS

Config = Annotated[Path | None, typer.Option(envvar="ONCEGATE_CONFIG", help="TOML file with settings")]
F = TypeVar("F", bound=Callable[..., None])


def with_setting_flags(command: F) -> F:
    """Give a command with ``**flags`` a flag for each setting in their place; None: not given."""
    written = inspect.signature(command, eval_str=True)
    own = [one for one in written.parameters.values() if one.kind is not inspect.Parameter.VAR_KEYWORD]
    flags = [_parameter(one) for one in SETTINGS.values()]
    command.__signature__ = written.replace(parameters=[*own, *flags])  # type: ignore[attr-defined]
    return command


def _parameter(one: Setting) -> inspect.Parameter:
    if one.kind is bool:
        option = typer.Option(one.flag, help=one.text)  # a single name: there is no --no-… beside it
    else:
        metavar = "BYTES" if one.is_size else None
        text = f"{one.text} [{one.default_words}]"
        option = typer.Option(one.flag, help=text, show_default=False, metavar=metavar)
    # A size is read where those of files and variables are: whoever writes 8MiB is told what a size is.
    kind = list[str] if one.kind is list else str if one.is_size else one.kind
    annotation = Annotated[kind | None, option]  # type: ignore[valid-type]
    return inspect.Parameter(one.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
