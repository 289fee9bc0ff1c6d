"""``oncegate outbox``: list the writes that a worker left, send them again without the worker, or drop them.

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

outbox = typer.Typer(help="Outboxes of workers: list, send again, drop.", no_args_is_help=True)
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
    """Send everything again under its ids and print what became of each write. The worker must not run.

    A write that stays in the outbox is printed as `in doubt` or `waiting`; the exit code is then 1.
    """
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
        _show(_left(file), output)
        raise _exit(fault) from None
    rows = [*map(_outcome, recovered), *(_described(entry, outcome="unknown") for entry in unknown)]
    left = _left(file)
    _show([*rows, *left], output)
    if left:
        raise failed(f"{len(left)} writes stay in the outbox: drain again, or drop them", 1)


@outbox.command()
def drop(
    file: File,
    requests: Annotated[
        list[str] | None,
        typer.Argument(help="only these, as `ls` prints them; by default all", metavar="REQUEST"),
    ] = None,
    output: Format = Output.TABLE,
    yes: Annotated[bool, typer.Option("--yes", help="do not ask")] = False,
) -> None:
    """Drop writes without sending them, and print them. The worker must not run.

    Nobody can tell afterwards from this file what became of them: one that was sent before may have been applied.
    """
    from oncegate.gateway.client.outbox_file import OutboxFile

    if not file.exists():
        raise failed(f"there is no outbox {file}", 2)
    try:
        opened = OutboxFile(file)
    except OncegateError as fault:
        raise _exit(fault) from None
    try:
        chosen = [entry for entry in opened.loaded if not requests or str(entry.request_id) in requests]
        missing = sorted(set(requests or ()) - {str(entry.request_id) for entry in chosen})
        if missing:
            raise failed(f"not in the outbox: {', '.join(missing)}", 2)
        if chosen and not yes:
            typer.confirm(f"Drop {len(chosen)} writes of {file}?", abort=True, err=True)
        opened.write(dropped=[entry.request_id for entry in chosen])
    finally:
        opened.close()
    _show([_described(entry, outcome="dropped") for entry in chosen], output)


def _left(file: Path) -> list[dict[str, Any]]:
    """Describe the writes that an outbox still holds, after an attempt to send them."""
    try:
        opened = _open(file)
    except OncegateError:
        return []
    opened.close()
    left = [entry for entry in opened.loaded if entry.fate is None]
    return [_described(entry, outcome="in doubt" if entry.doubted else "waiting") for entry in left]


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
    if entry.fate is not None:
        more = {"fate": entry.fate.state, **more}
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
