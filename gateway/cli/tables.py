"""``oncegate table``: list and drop tables."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote, urlencode

import typer

from oncegate.gateway.cli.cluster import ENDPOINT_DEFAULT, Endpoint, ask
from oncegate.gateway.cli.output import Format, Output, as_json, say, show

table = typer.Typer(help="Tables: list, drop.", no_args_is_help=True)


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
