"""``oncegate check``: runs that try to break a cluster, and verdicts on them.

Exit codes: 0 valid, 1 invalid, 2 unknown, 3 misuse (bad arguments or files), 4 the run itself failed or was stopped.
A command imports its modules when it runs: a starting server does not pay for them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Final

import typer

from oncegate.gateway.cli.check_file import EXIT_CODES, file
from oncegate.gateway.cli.exits import CRASH, VerdictGroup, exits

EXITS: Final = {**EXIT_CODES, "crashed": CRASH}


check: Final = typer.Typer(
    cls=VerdictGroup,
    help="Prove the promises: workloads under faults, and verdicts on their histories.",
    no_args_is_help=True,
)
check.command("file")(file)
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
    from oncegate.proof.check.soaking import soak
    from oncegate.proof.check.summary import soak_lines

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
        state = soak(template, workload, runs, seeds=seeds, keep=keep, resume=resume, say=say)
    for line in soak_lines(state):
        typer.echo(line)
    raise typer.Exit(EXITS[state.verdict])


@check.command()
def replay(folder: Folder) -> None:
    """Judge the saved history of a run again, without running anything."""
    from oncegate.proof.check.folder import RunFolder
    from oncegate.proof.check.runner import judge
    from oncegate.proof.check.summary import verdict_lines

    with _stoppable():
        verdict = judge(RunFolder.open(folder))
    for line in verdict_lines(verdict):
        typer.echo(line)
    raise typer.Exit(EXITS[verdict.verdict])


@check.command()
def shrink(
    folder: Folder,
    history: Annotated[bool, typer.Option("--history", help="only the history, without new runs")] = False,
    runs: Annotated[int, typer.Option(help="how many smaller plans are tried")] = 40,
    tries: Annotated[int, typer.Option(help="how often each of them")] = 2,
) -> None:
    """Make a failing run smaller: fewer faults, fewer processes, a shorter time, or fewer events."""
    from oncegate.proof.check.folder import RunFolder
    from oncegate.proof.check.shrinking import shrink_history, shrink_run
    from oncegate.proof.check.summary import verdict_lines

    with _stoppable():
        opened, say = RunFolder.open(folder), partial(typer.echo, err=True)
        small, verdict = shrink_history(opened, say) if history else shrink_run(opened, say, runs=runs, tries=tries)
    for line in verdict_lines(verdict):
        typer.echo(line)
    typer.echo(str(small.path))
    raise typer.Exit(EXITS[verdict.verdict])


@contextlib.contextmanager
def _stoppable() -> Iterator[None]:
    """As :func:`exits`, but Ctrl-C also exits with the code of a run that was stopped."""
    from oncegate.proof.check.errors import Unavailable

    try:
        with exits(misuse=(Unavailable,)):
            yield
    except KeyboardInterrupt:
        typer.echo("oncegate: stopped; what was recorded can be read with `oncegate check replay`", err=True)
        raise typer.Exit(CRASH) from None
