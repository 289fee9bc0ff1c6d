"""``oncegate table``: declare, list and drop tables."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote, urlencode

import typer

from oncegate.gateway.cli.cluster import ENDPOINT_DEFAULT, Endpoint, ask
from oncegate.gateway.cli.flows import duration
from oncegate.gateway.cli.output import Format, Output, as_json, failed, say, show

table = typer.Typer(help="Tables: declare, list, drop.", no_args_is_help=True)


def pages(endpoint: str, path: str, member: str) -> list[dict[str, Any]]:
    """Return what a list has on all its pages."""
    found: list[dict[str, Any]] = []
    query: dict[str, str | int] = {"limit": 1000}
    while True:
        page = ask("GET", endpoint, f"{path}?{urlencode(query)}")
        found += page[member]
        if page["next"] is None:
            return found
        query["after"] = page["next"]


@table.command("declare")
def declare_table(
    name: Annotated[str, typer.Argument(metavar="TABLE", help="name of the table")],
    stream: Annotated[
        bool, typer.Option("--stream", help="a stream of rows to consumers [rows that are read]")
    ] = False,
    quota_bytes: Annotated[int | None, typer.Option(min=1024, help="its resident rows have no more bytes")] = None,
    consumer: Annotated[
        list[str] | None, typer.Option(help="of a stream: kept until this consumer has it; repeat for each")
    ] = None,
    retention: Annotated[str | None, typer.Option(metavar="TIME", help="of a stream: kept for so long, as 24h")] = None,
    endpoint: Endpoint = ENDPOINT_DEFAULT,
) -> None:
    """Declare a table; again as it is: nothing changes. Declared otherwise before: exit status 1."""
    flow: dict[str, Any] = {"consumers": consumer} if consumer else {}
    if retention is not None:
        flow["retention_ms"] = duration(retention)
    if flow and not stream:
        raise failed("--consumer and --retention go with --stream", 2)
    body: dict[str, Any] = {"kind": "stream" if stream else "resident"}
    body |= {} if quota_bytes is None else {"quota_bytes": quota_bytes}
    found = ask("PUT", endpoint, f"/v1/tables/{quote(name, safe='')}", body | ({"flow": flow} if flow else {}))
    typer.echo(f"{name} is a {found['kind']} table, incarnation {found['incarnation']}", err=True)


@table.command("list")
def list_tables(endpoint: Endpoint = ENDPOINT_DEFAULT, output: Format = Output.TABLE) -> None:
    """List all tables; rows and bytes are those of resident ones."""
    tables = pages(endpoint, "/v1/tables", "tables")
    if as_json(output, tables):
        return
    header = ("table", "kind", "incarnation", "rows", "bytes", "quota")
    show(header, map(_row, tables), unbroken={"table"})


def _row(one: dict[str, Any]) -> list[str]:
    counts = (f"{one[name]:,}" for name in ("rows", "bytes", "quota_bytes"))
    return [one["name"], one["kind"], str(one["incarnation"]), *counts]


@table.command("drop")
def drop_table(
    name: Annotated[str, typer.Argument(metavar="TABLE", help="name of the table")],
    incarnation: Annotated[int, typer.Option(help="which one: `oncegate table list` shows the number")],
    force: Annotated[bool, typer.Option("--force", help="with its rows, and although consumers have attached")] = False,
    endpoint: Endpoint = ENDPOINT_DEFAULT,
) -> None:
    """Drop a table. Flows on it or to it stand in the way; a table of the same name later is another one."""
    query = f"incarnation={incarnation}{'&force=true' if force else ''}"
    ask("DELETE", endpoint, f"/v1/tables/{quote(name, safe='')}?{query}")
    say(f"{name}, incarnation {incarnation}, is dropped", err=True)
