"""``oncegate check file``: the verdict on a saved history, with its proof in words.

The checker is imported when the command runs: a server that starts does not pay for it.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from oncegate.gateway.cli.exits import exits
from oncegate.gateway.cli.output import Format, Output

if TYPE_CHECKING:
    from oncegate.proof.lincheck import Event, Limits, Operation, Result

EXIT_CODES: Final = {"valid": 0, "invalid": 1, "unknown": 2}
FILE_BYTES_MAX: Final = 2 * 2**30
_PARALLEL_FROM: Final = 300_000
"""Operations from which processes are worth their start."""
_SHOWN_MAX: Final = 16
_BEGINNING_BYTES: Final = 2**16
"""How far into a file its format is looked for: a log of Jepsen may begin with lines of others."""
_EDN: Final = re.compile(rb"[\s\[]*(?:#jepsen[\w.]*)?\{\s*:")


class HistoryFormat(StrEnum):
    """How a history is written."""

    JSONL = "jsonl"
    EDN = "edn"
    LOG = "log"


class Level(StrEnum):
    """The consistency level that a history must have."""

    LINEARIZABLE = "linearizable"
    SEQUENTIAL = "sequential"
    SESSION = "session"


def file(
    history: Annotated[Path, typer.Argument(help="the history, one event a line")],
    model: Annotated[str, typer.Option(help="register, cas-register, counter, list, set, … or FILE.py:Class")],
    history_format: Annotated[
        HistoryFormat | None,
        typer.Option("--format", help="jsonl; edn or log (Jepsen) [by the file's name, else its first line]"),
    ] = None,
    keyed: Annotated[bool, typer.Option("--keyed", help="edn, log: values are [key value]")] = False,
    level: Annotated[Level, typer.Option(help="linearizable, sequential or session")] = Level.LINEARIZABLE,
    seconds: Annotated[float, typer.Option(min=0.001, help="then the verdict is unknown")] = 60.0,
    states: Annotated[int, typer.Option(min=1, help="states visited, then the verdict is unknown")] = 20_000_000,
    jobs: Annotated[int, typer.Option(min=0, max=256, help="processes; 0: by cores and size")] = 0,
    output: Format = Output.TABLE,
) -> None:
    """Check a saved history, without a cluster: 0 valid, 1 invalid, 2 unknown, 3 misuse, 4 crash."""
    from oncegate.proof.lincheck import Limits, operations

    with exits(misuse=(OSError, UnicodeDecodeError)):
        listed = operations(_events(history, history_format, keyed=keyed))
        began = time.monotonic()
        result = _check(listed, model, level, Limits(states_max=states, seconds=seconds, clock=time.monotonic), jobs)
    if output is Output.JSON:
        import msgspec

        sys.stdout.write(msgspec.json.format(msgspec.json.encode(result), indent=1).decode() + "\n")
    else:
        _show(result, time.monotonic() - began)
    raise typer.Exit(EXIT_CODES[result.verdict])


def _events(history: Path, history_format: HistoryFormat | None, *, keyed: bool) -> Iterator[Event]:
    from oncegate.proof.lincheck import read_events
    from oncegate.proof.lincheck.edn import jepsen_events, jepsen_log

    if history.stat().st_size > FILE_BYTES_MAX:
        raise OSError(f"{history} is longer than {FILE_BYTES_MAX} bytes")
    match history_format or _format_of(history):
        case HistoryFormat.EDN:
            yield from jepsen_events(history.read_text(encoding="utf-8"), keyed=keyed)
        case HistoryFormat.LOG:
            with history.open(encoding="utf-8") as text:
                yield from jepsen_log(text, keyed=keyed)
        case HistoryFormat.JSONL:
            with history.open("rb") as lines:
                yield from read_events(lines)


def _format_of(history: Path) -> HistoryFormat:
    """Tell a history's format by its name, else by how it begins."""
    if history.suffix == ".edn":
        return HistoryFormat.EDN
    with history.open("rb") as file:
        begins = file.read(_BEGINNING_BYTES)
    if b"jepsen.util" in begins and not begins.lstrip().startswith(b'{"'):
        return HistoryFormat.LOG
    return HistoryFormat.EDN if _EDN.match(begins) else HistoryFormat.JSONL


def _check(listed: list[Operation], model: str, level: Level, limits: Limits, jobs: int) -> Result:
    from oncegate.proof.check.models import load_model
    from oncegate.proof.check.parallel import check_keys
    from oncegate.proof.lincheck import check, sequential, sessions

    if level is Level.SESSION:
        load_model(model)
        return sessions(listed)
    if level is Level.SEQUENTIAL:
        return sequential(listed, load_model(model), limits)
    if jobs == 0:
        jobs = (os.cpu_count() or 1) if len(listed) >= _PARALLEL_FROM else 1
    return check(listed, load_model(model), limits) if jobs == 1 else check_keys(listed, model, limits, jobs)


def _show(result: Result, seconds: float) -> None:
    keys = "key" if result.keys == 1 else "keys"
    typer.echo(
        f"{result.name}: {result.verdict.upper()} ({result.operations:,} operations, {result.keys:,} {keys}, "
        f"{result.states_visited:,} states, {seconds:.1f} s)"
    )
    if result.reason:
        typer.echo(f"  {result.reason}")
    for failure in result.failures:
        typer.echo("" if failure.key is None else f"\nkey {failure.key}")
        for line in failure.words[:_SHOWN_MAX]:
            typer.echo(f"  - {line}")
        if len(failure.words) > _SHOWN_MAX:
            typer.echo(f"  … and {len(failure.words) - _SHOWN_MAX} more lines (-o json shows all)")
        if failure.prefix:
            typer.echo(f"  longest good order: {len(failure.prefix):,} operations")
