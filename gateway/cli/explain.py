"""``oncegate explain``: what became of a key or a request, as one timeline."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import Annotated, Any
from urllib.parse import urlencode

import typer

from oncegate.gateway.cli.cluster import ENDPOINT_DEFAULT, Endpoint, unreachable
from oncegate.gateway.cli.output import Format, Output, show
from oncegate.gateway.local.blocking_http import RequestRefused, Unreachable, send_json

_REQUEST = re.compile(r"[0-9a-f]{16}/[0-9]{1,16}", re.ASCII)
_SEARCH_S = 60.0


def explain(
    what: Annotated[str, typer.Argument(help="TABLE/KEY, or a request id CLIENT_ID/SEQUENCE")],
    endpoint: Endpoint = ENDPOINT_DEFAULT,
    output: Format = Output.TABLE,
    key: Annotated[bool, typer.Option("--key", help="read it as TABLE/KEY even if it looks like a request id")] = False,
) -> None:
    """Show attempts, suppressed duplicates, log entries, batches and deliveries of a key or a request, in order.

    What a node has forgotten is not shown: attempts since its last start, the log as far back as it is kept.
    """
    table, slash, name = what.partition("/")
    if not slash or not name:
        typer.echo("oncegate: give TABLE/KEY or CLIENT_ID/SEQUENCE", err=True)
        raise typer.Exit(2)
    query = {"request": what} if _REQUEST.fullmatch(what) and not key else {"table": table, "key": name}
    try:
        found = send_json("GET", f"{endpoint}/v1/explain?{urlencode(query)}", None, _SEARCH_S)
    except RequestRefused as refusal:
        typer.echo(f"oncegate: {refusal}", err=True)
        raise typer.Exit(1) from None
    except Unreachable:
        raise unreachable(endpoint) from None
    if output is Output.JSON:
        typer.echo(json.dumps(found, indent=1))
        return
    _print(found)


def _print(found: dict[str, Any]) -> None:
    if "state" in found:
        typer.echo(f"{found['request']}: {found['state']['state']}")
    else:
        version = found.get("version")
        typer.echo(f"{found['table']}/{found['key']}: {f'version {version}' if version else 'no resident row'}")
    header = ("time (UTC)", "what", "where", "request", "commit", "detail")
    show(header, ((_time(event.get("at_ms")), *_columns(event)) for event in found.get("events", [])))
    if found.get("truncated"):
        typer.echo("older events are left out", err=True)
    if found.get("silent"):
        typer.echo(f"no answer from {', '.join(found['silent'])}: attempts there are not shown", err=True)
    typer.echo(f"the log was searched from entry {found.get('log_from', 0)} on", err=True)


def _columns(event: dict[str, Any]) -> tuple[str, str, str, str, str]:
    where = event.get("node", "")
    if event.get("index"):
        where = f"entry {event['index']}, term {event['term']}"
    if event.get("flow"):
        place = f"{event['flow']} batch {event['batch']}" if event.get("batch") else event["flow"]
        where = f"{place}, {event['consumer']}" if event.get("consumer") else place
    return event["what"], where, event.get("request", ""), str(event.get("commit", "")), event.get("detail", "")


def _time(at_ms: int | None) -> str:
    if at_ms is None:
        return ""
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
