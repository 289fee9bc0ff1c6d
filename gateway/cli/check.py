"""``oncegate check``: runs that try to break a cluster, and verdicts on them and on saved histories.

Exit codes: 0 valid, 1 invalid, 2 unknown, 3 misuse (bad arguments or files), 4 the run itself failed or was stopped.
A command imports its modules when it runs.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from oncegate.gateway.cli.output import CRASH, Format, Output, VerdictGroup, as_json, exits, failed
from oncegate.gateway.cli.progress import Advance, Unit, progress

if TYPE_CHECKING:
    from oncegate.proof.lincheck import Event, Limits, Operation, Result

EXITS: Final = {"valid": 0, "invalid": 1, "unknown": 2, "crashed": CRASH}
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


check: Final = typer.Typer(
    cls=VerdictGroup,
    help="Prove the promises: workloads under faults, and verdicts on their histories.",
    no_args_is_help=True,
)
Runs = Annotated[Path, typer.Option(help="where runs keep their folders")]
Folder = Annotated[Path, typer.Argument(help="folder of a run, such as runs/latest")]


@check.command("run")
def run_command(
    workload: Annotated[str | None, typer.Option(help="name of the workload; a wrong one lists all")] = None,
    every: Annotated[bool, typer.Option("--all", help="all workloads, in turn")] = False,
    faults: Annotated[str, typer.Option(help="names or groups, joined with +; all, none")] = "all",
    seed: Annotated[int, typer.Option(help="seed of the first run; the next runs count on from it")] = 1,
    seeds: Annotated[int | None, typer.Option(help="how many runs [each workload once]")] = None,
    seconds: Annotated[float, typer.Option(help="how long the processes of a run work")] = 12.0,
    nodes: Annotated[int, typer.Option(help="nodes of the cluster")] = 3,
    processes: Annotated[int, typer.Option(help="processes of the workload")] = 6,
    store: Annotated[str, typer.Option(help="store of the workload stored: sqlite or cassandra")] = "sqlite",
    runs: Runs = Path("runs"),
    keep: Annotated[bool, typer.Option("--keep", help="keep the folders of valid runs of a soak")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="go on where a soak was stopped")] = False,
) -> None:
    """Run workloads against clusters of real processes under faults, and judge the histories."""
    if every == (workload is not None):
        raise typer.BadParameter("give --workload NAME or --all")
    from oncegate.proof.check.plan import RunPlan, fault_names
    from oncegate.proof.check.soak import soak, soak_lines

    with _stoppable():
        template = RunPlan(
            workload="",
            faults=fault_names(faults),
            seed=seed,
            seconds=seconds,
            nodes=nodes,
            processes=processes,
            store=store,
        )
        say = partial(typer.echo, err=True)
        with ExitStack() as stack:
            bar: list[Advance] = []
            seen = 0

            def done(now: int, of: int) -> None:
                nonlocal seen
                if not bar:  # only now it is known how many there are, and how many were done before
                    bar.append(stack.enter_context(progress("checking", Unit.RUNS, of, done=now)))
                else:
                    bar[0](now - seen)
                seen = now

            state = soak(template, workload, runs, seeds=seeds, keep=keep, resume=resume, say=say, done=done)
    raise _judged(soak_lines(state), state.verdict)


@check.command()
def replay(folder: Folder) -> None:
    """Judge the saved history of a run again, without running anything."""
    from oncegate.proof.check.folder import RunFolder
    from oncegate.proof.check.runner import judge
    from oncegate.proof.check.soak import verdict_lines

    with _stoppable():
        verdict = judge(RunFolder.open(folder))
    raise _judged(verdict_lines(verdict), verdict.verdict)


@check.command()
def shrink(
    folder: Folder,
    history: Annotated[bool, typer.Option("--history", help="only the history, without new runs")] = False,
    runs: Annotated[int, typer.Option(help="how many smaller plans are tried")] = 40,
    tries: Annotated[int, typer.Option(help="how often each of them")] = 2,
) -> None:
    """Make a failing run smaller: fewer faults, fewer processes, a shorter time, or fewer events."""
    from oncegate.proof.check.folder import RunFolder
    from oncegate.proof.check.shrink import shrink_history, shrink_run
    from oncegate.proof.check.soak import verdict_lines

    with _stoppable():
        opened, say = RunFolder.open(folder), partial(typer.echo, err=True)
        small, verdict = shrink_history(opened, say) if history else shrink_run(opened, say, runs=runs, tries=tries)
    raise _judged([*verdict_lines(verdict), str(small.path)], verdict.verdict)


def _judged(lines: Iterable[str], verdict: str) -> typer.Exit:
    for line in lines:
        typer.echo(line)
    return typer.Exit(EXITS[verdict])


@contextlib.contextmanager
def _stoppable() -> Iterator[None]:
    """As :func:`exits`, but Ctrl-C also exits with the code of a run that was stopped."""
    from oncegate.proof.check.errors import Unavailable

    try:
        with exits(misuse=(Unavailable,)):
            yield
    except KeyboardInterrupt:
        raise failed("stopped; what was recorded can be read with `oncegate check replay`", CRASH) from None


@check.command()
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
    import msgspec

    if not as_json(output, msgspec.to_builtins(result)):
        _show(result, time.monotonic() - began)
    raise typer.Exit(EXITS[result.verdict])


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
    from oncegate.proof.check.parallel import check_keys, load_model
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
