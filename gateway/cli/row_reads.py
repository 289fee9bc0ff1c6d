"""``oncegate get``, ``scan`` and ``watch``: rows and their changes, on the SDK.

Exit codes: :mod:`oncegate.gateway.cli.calls`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from oncegate.gateway.cli.calls import NOT_FOUND, REFUSED, STOPPED, run
from oncegate.gateway.cli.connection_flags import Cluster, table_names
from oncegate.gateway.cli.output import Format, Output, Printed, as_json, failed, show
from oncegate.gateway.cli.row_values import print_value, told, write_bytes
from oncegate.rifl.errors import Code, OncegateError

if TYPE_CHECKING:
    from oncegate.gateway.client import Change, Client, FlowItem, Row

Table = Annotated[str, typer.Argument(metavar="TABLE", help="name of the table", autocompletion=table_names)]
Key = Annotated[str, typer.Argument(metavar="KEY", help="key of the row")]
Timeout = Annotated[float | None, typer.Option(min=0.001, help="total time of a call [30, or the profile's]")]
ValueFormat = Annotated[
    Output | None, typer.Option("--output", "-o", help="table, json or jsonl: all of it [the value alone]")
]
_NEWEST_S: Final = 5.0
_PAGE_ROWS: Final = 500
_ROWS: Final = (("key", 24), ("version", 10), ("value", 0))
_ITEMS: Final = (("commit", 10), ("key", 24), ("value", 0))
_CHANGES: Final = (("commit", 10), ("key", 24), ("change", 12), ("value", 0))


class Consistency(StrEnum):
    """What a read reflects."""

    LINEARIZABLE = "linearizable"
    SESSION = "session"
    STALE = "stale"


def get(
    table: Table,
    key: Key,
    cluster: Cluster,
    text: Annotated[bool, typer.Option("--text", help="print a value that is text as it is, not as JSON")] = False,
    bytes_file: Annotated[
        str | None, typer.Option("--bytes-file", metavar="FILE", help="write a value of bytes here; -: stdout")
    ] = None,
    consistency: Annotated[
        Consistency, typer.Option(help="linearizable; session: any node at --min-commit; stale: any node")
    ] = Consistency.LINEARIZABLE,
    min_commit: Annotated[int | None, typer.Option(min=0, help="with session: a commit number seen before")] = None,
    timeout_s: Timeout = None,
    output: ValueFormat = None,
) -> None:
    """Read a row: its value as JSON, or with -o all of it. Exit status 4 if there is none."""
    if sum((text, bytes_file is not None, output is not None)) > 1:
        raise failed("--text, --bytes-file and --output are three ways to print: give one", 2)
    if min_commit is not None and consistency is not Consistency.SESSION:
        raise failed("--min-commit goes with --consistency session", 2)

    async def read() -> Row | None:
        async with cluster.client(timeout_s) as client:
            await _reached(client, table, min_commit, "--min-commit")
            return await client.get(table, key, consistency=consistency.value, min_commit=min_commit)

    row = run(read(), table=table)
    if row is None:
        raise failed(f"there is no row {key} in {table}", NOT_FOUND)
    if bytes_file is not None:
        write_bytes(row.value, bytes_file)
    elif output is None:
        print_value(row.value, text=text)
    elif not as_json(output, found := _row(row, commit=True)):
        show(("what", "value"), ((name, str(one)) for name, one in {**found, **_shown(row)}.items()))


def _row(row: Row, *, commit: bool = False) -> dict[str, Any]:
    """Return a row as an object of JSON, without what does not hold for it."""
    more = {"commit": row.commit if commit else 0, "age_ms": row.age_ms, "ends_ms": row.ends_ms, "owner": row.owner}
    absent = (None, 0, "") if not commit else (None, "")
    kept = {name: one for name, one in more.items() if one not in absent and (name, one) != ("ends_ms", 0)}
    return {"key": row.key, **told(row.value), "version": row.version, **kept}


def _shown(row: Row) -> dict[str, Any]:
    import json

    return {} if isinstance(row.value, bytes) else {"value": json.dumps(row.value)}


def scan(
    table: Table,
    cluster: Cluster,
    prefix: Annotated[str, typer.Option(help="only keys that begin with it")] = "",
    start: Annotated[str, typer.Option("--from", help="only this key and greater ones")] = "",
    end: Annotated[str, typer.Option("--to", help="only keys below it")] = "",
    reverse: Annotated[bool, typer.Option("--reverse", help="against key order")] = False,
    limit: Annotated[int | None, typer.Option(min=1, help="so many rows at most [all]")] = None,
    commit: Annotated[int | None, typer.Option(min=0, help="as it was at this commit number [now]")] = None,
    since: Annotated[int | None, typer.Option(min=0, help="of a stream table: what is above this commit")] = None,
    timeout_s: Timeout = None,
    output: Format = Output.TABLE,
) -> None:
    """Print rows in key order, all as they were at one moment; of a stream table what it retains, in commit order.

    Rows are printed as they arrive, in bounded memory however many there are. If it is cut off, the exit status is not
    0, and an array of JSON is left open.
    """
    of_rows = (prefix, start, end, reverse, commit)

    async def read() -> None:
        async with cluster.client(timeout_s) as client:
            if (await client.table(table)).kind == "stream":
                if of_rows != ("", "", "", False, None):
                    raise failed(f"{table} is a stream table: it takes --since and --limit alone", 2)
                await _items(client, table, since, limit, output)
                return
            if since is not None:
                raise failed(f"{table} is no stream table: `oncegate watch {table} --since {since}` tells changes", 2)
            await _reached(client, table, commit, "--commit")
            page_rows = min(_PAGE_ROWS, limit or _PAGE_ROWS)
            rows = client.rows(
                table, prefix=prefix, start=start, end=end, reverse=reverse, commit=commit, page_rows=page_rows
            )
            left = limit
            with Printed(output, _ROWS) as printed:
                async for row in rows:
                    printed.row(_row(row))
                    if left is not None and (left := left - 1) == 0:
                        return

    run(read(), table=table)


async def _reached(client: Client, table: str, commit: int | None, flag: str) -> None:
    """End the command if no node has applied a commit number yet: waiting for it in silence would look like a hang.

    Where nobody can tell which one is the newest, the call itself says why.
    """
    if not commit:
        return
    try:
        await client.get(table, "-", timeout_s=min(_NEWEST_S, client.timeout_s))  # linearizable, whatever the row is
    except OncegateError as failure:
        if failure.code in (Code.NOT_FOUND, Code.FORBIDDEN, Code.UNAUTHENTICATED, Code.BAD_REQUEST):
            raise
        return
    if commit > client.highest_commit:
        raise failed(f"{flag} {commit} is beyond the newest commit, {client.highest_commit}", REFUSED)


async def _items(client: Client, table: str, since: int | None, limit: int | None, output: Output) -> None:
    left = limit
    with Printed(output, _ITEMS) as printed:
        async for item in client.items(table, from_commit=since):
            printed.row(_item(item))
            if left is not None and (left := left - 1) == 0:
                return


def _item(item: FlowItem) -> dict[str, Any]:
    told_value = {"deleted": True} if item.deleted else told(item.value)
    ids = {"client_id": item.client_id, "sequence": item.sequence}
    return {"commit": item.commit, "key": item.key, **told_value, "time_ms": item.time_ms, **ids}


def watch(
    table: Table,
    cluster: Cluster,
    key: Annotated[str | None, typer.Option(help="only this row")] = None,
    prefix: Annotated[str, typer.Option(help="only keys that begin with it")] = "",
    since: Annotated[
        int | None, typer.Option(min=0, metavar="COMMIT", help="every change above this commit number [from now on]")
    ] = None,
    count: Annotated[int | None, typer.Option(min=1, help="end after so many changes [never]")] = None,
    timeout_s: Timeout = None,
    output: Format = Output.JSONL,
) -> None:
    """Print each change of rows, once and in order, until Ctrl-C or --count; goes on at another node when one fails.

    `--since` with the `commit` of the last change that you have seen goes on behind it: exit status 1 if the cluster
    keeps so old changes no longer.
    """
    if key is not None and prefix:
        raise failed("--key and --prefix exclude each other", 2)

    async def read() -> None:
        left = count
        async with cluster.client(timeout_s) as client:
            await _reached(client, table, since, "--since")
            with Printed(output, _CHANGES, live=True) as printed:
                async for change in client.watch(table, prefix=prefix, key=key, from_commit=since):
                    printed.row(_change(change, for_people=output is Output.TABLE))
                    if left is not None and (left := left - 1) == 0:
                        return

    try:
        run(read(), table=table)
    except typer.Exit as over:
        if over.exit_code != STOPPED:
            raise  # Ctrl-C is how a watch ends


def _change(change: Change, *, for_people: bool) -> dict[str, Any]:
    found = {"commit": change.commit, "key": change.key}
    found |= {"deleted": True} if change.deleted else told(change.value)
    if change.cause:
        found["cause"] = change.cause
    if change.version != change.commit:
        found |= {"version": change.version, "until": change.until}
    if for_people:
        found["change"] = change.cause or ("deleted" if change.deleted else "put")
    return found
