"""``oncegate verify``: whether what stopped nodes have on disk agrees, with a name for the first difference.

Exit codes: 0 equal, 1 different, 2 could not tell, 3 misuse, 4 crash.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final

import typer

from oncegate.gateway.cli.output import MISUSE, Format, Output, as_json, exits, failed, show
from oncegate.gateway.cli.progress import Unit, progress

EXIT: Final = {"equal": 0, "different": 1, "unknown": 2}


def verify(
    directories: Annotated[list[Path], typer.Argument(help="data directories of stopped nodes of one cluster")],
    store: Annotated[
        str | None, typer.Option(help="sqlite:///directory or cassandra://host/keyspace that the flow was delivered to")
    ] = None,
    consumer: Annotated[str | None, typer.Option(help="with --store: FLOW/CONSUMER whose job wrote there")] = None,
    contacts: Annotated[Path | None, typer.Option(help="with --store: contacts that a timeline job used")] = None,
    output: Format = Output.TABLE,
) -> None:
    """Compare log, state, batches and store of stopped nodes; read only. Names the first difference."""
    # This import takes a second, which other commands need not wait for.
    from oncegate.flows.flow import ROWS_CONSUMER
    from oncegate.proof import verify as checks

    missing = [str(path) for path in directories if not path.is_dir()]
    if missing:
        raise failed(f"no such directory: {', '.join(missing)}", MISUSE)
    if len({path.resolve() for path in directories}) != len(directories):
        raise failed("a directory is named twice", MISUSE)
    wanted: checks.StoreWanted | None = None
    if store is not None:
        flow, slash, name = (consumer or "").partition("/")
        if not (flow and slash and name):
            raise failed("--store needs --consumer FLOW/CONSUMER", MISUSE)
        if contacts is None and name != ROWS_CONSUMER:
            raise failed(
                f"a store is compared with what the library's jobs write: of consumer {ROWS_CONSUMER}, or timelines, "
                "with --contacts FILE",
                MISUSE,
            )
        if not store.startswith(("sqlite:///", "cassandra://")):
            raise failed("a store URL starts with sqlite:/// or cassandra://", MISUSE)
        wanted = checks.StoreWanted(store, flow, name, contacts)
    elif consumer is not None or contacts is not None:
        raise failed("--consumer and --contacts go with --store", MISUSE)
    with exits(), progress("comparing", Unit.STEPS):
        report = checks.verify(directories, wanted, _say if output is Output.TABLE else lambda step: None)
    import msgspec

    if not as_json(output, msgspec.to_builtins(report)):
        _print(report)
    raise typer.Exit(EXIT[report.verdict])


def _say(step: str) -> None:
    typer.echo(f"… {step}", err=True)


def _row(node: Any) -> tuple[str, ...]:
    log = f"{node.log_first}..{node.log_last}"
    return node.node, str(node.saved_index), log, str(node.commit_index), str(node.batches), node.digest[:16]


def _print(report: Any) -> None:
    if report.nodes:
        header = ("node", "saved at", "log", "committed", "batches", "state")
        show(header, (_row(node) for node in report.nodes))
    typer.echo(
        f"looked at {report.entries:,} log entries, {report.rows:,} rows, {report.records:,} completion records, "
        f"{report.items:,} items, {report.store_rows:,} rows of the store"
    )
    for note in report.notes:
        typer.echo(f"note: {note}")
    found = report.difference
    if found is not None:
        typer.echo(f"different: {found.node}, {found.place}\n  what: {found.what}")
        typer.echo(f"  expected: {found.expected}\n  found: {found.found}")
    for reason in report.undecided:
        typer.echo(f"could not tell: {reason}")
    if report.verdict == "equal":
        typer.echo("equal")
