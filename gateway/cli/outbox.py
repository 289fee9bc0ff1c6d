"""``oncegate outbox``: list the writes that a worker left, and send them again without the worker.

The SDK is imported when a command runs: the other commands do not pay for it.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from oncegate.gateway.cli.connection_flags import Cluster
from oncegate.gateway.cli.output import Format, Output, as_json, failed, show
from oncegate.rifl.errors import Code, OncegateError

if TYPE_CHECKING:
    from oncegate.gateway.client import OutboxEntry, Recovered
    from oncegate.gateway.client.outbox_file import OutboxFile

outbox = typer.Typer(help="Outboxes of workers: list, send again.", no_args_is_help=True)
_UNREACHABLE = frozenset((Code.TIMEOUT, Code.NOT_READY, Code.NO_LEADER, Code.NOT_LEADER))

File = Annotated[Path, typer.Argument(help="the outbox", dir_okay=False)]


@outbox.command("ls")
def list_entries(file: File, output: Format = Output.TABLE) -> None:
    """List the writes whose results have not arrived; also while a worker uses the file."""
    try:
        opened = _open(file)
    except OncegateError as fault:
        raise _exit(fault) from None
    opened.close()
    rows, position = [_described(entry) for entry in opened.loaded], opened.head.position
    if as_json(output, {"position": position, "entries": rows}, rows):
        return
    _show(rows, output)
    typer.echo(f"{len(rows)} entries, position {json.dumps(position)}", err=True)


@outbox.command()
def drain(
    file: File,
    cluster: Cluster,
    output: Format = Output.TABLE,
    timeout_s: Annotated[float, typer.Option(min=0.1, help="total time")] = 30.0,
    forget_unknown: Annotated[
        bool, typer.Option("--forget-unknown", help="drop, and print, writes whose outcome cannot be known any more")
    ] = False,
) -> None:
    """Send everything again under its ids and print what became of it. The worker must not run."""
    import asyncio

    from oncegate.gateway.client import OutboxUnresolved

    if not file.exists():
        raise failed(f"there is no outbox {file}", 2)
    unknown: list[OutboxEntry] = []
    try:
        recovered = asyncio.run(_drain(file, cluster, timeout_s, unknown if forget_unknown else None))
    except OutboxUnresolved as fault:
        _show([_described(entry, outcome="unknown") for entry in fault.entries], output)
        raise failed(f"{fault.detail}; take note of them, then --forget-unknown", 1) from None
    except OncegateError as fault:
        raise _exit(fault) from None
    _show([*(_outcome(one) for one in recovered), *(_described(entry, outcome="unknown") for entry in unknown)], output)


async def _drain(file: Path, cluster: Cluster, timeout_s: float, unknown: list[OutboxEntry] | None) -> list[Recovered]:
    note = None if unknown is None else unknown.append
    async with cluster.client(timeout_s) as client, client.session(outbox=file, on_unknown=note) as session:
        return session.recovered


def _open(file: Path) -> OutboxFile:
    from oncegate.gateway.client.outbox_file import OutboxFile

    if file.exists():
        try:
            return OutboxFile(file)  # a commit that a crash cut off is undone first
        except OncegateError as fault:
            if fault.code is not Code.CONFLICT:
                raise
    return OutboxFile(file, read_only=True)


def _described(entry: OutboxEntry, **more: Any) -> dict[str, Any]:
    return {
        "request": str(entry.request_id),
        "op": entry.op,
        "table": entry.table,
        "key": entry.key,
        "told_unknown": entry.doubted,
        "taken": datetime.fromtimestamp(entry.taken_ms / 1000, UTC).isoformat(timespec="milliseconds"),
        **more,
    }


def _outcome(one: Recovered) -> dict[str, Any]:
    result = one.result
    if result is None:
        code = one.failure.code if one.failure is not None else Code.INTERNAL
        return _described(one.entry, outcome="not_applied", code=str(code))
    outcome = "applied" if result.applied else "refused"
    return _described(one.entry, outcome=outcome, commit=result.commit, replayed=result.replayed)


def _show(rows: list[dict[str, Any]], output: Output) -> None:
    if as_json(output, rows):
        return
    if not rows:
        return
    names = list(dict.fromkeys(name for row in rows for name in row))
    header = [name.replace("_", " ") for name in names]
    show(header, ([str(row.get(name, "")) for name in names] for row in rows), unbroken=header[:1])


def _exit(fault: OncegateError) -> typer.Exit:
    code = 3 if fault.code in _UNREACHABLE else 2 if fault.code is Code.NOT_FOUND else 1
    return failed(fault.detail or fault.title, code)
