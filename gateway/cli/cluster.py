"""Commands that ask a running cluster: ``oncegate status``, ``member``, ``leader`` and ``explain``."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import Annotated, Any, Final
from urllib.parse import urlencode

import typer

from oncegate.gateway.cli.output import Format, Output, failed, show
from oncegate.gateway.local.blocking_http import TIMEOUT_S, RequestRefused, Unreachable, get_json, send_json

Endpoint = Annotated[str, typer.Option(envvar="ONCEGATE_ENDPOINT", help="HTTP address of any node")]
ENDPOINT_DEFAULT: Final = "http://127.0.0.1:7400"
"""On ``DEFAULT_HTTP_PORT`` of :mod:`oncegate.gateway.wire`, which costs an import of msgspec."""
member = typer.Typer(help="Members of the cluster: add, remove.", no_args_is_help=True)
leader = typer.Typer(help="Leadership of the cluster: move.", no_args_is_help=True)
_ADD_S = 75.0
_CHANGE_S = 30.0
_SEARCH_S = 60.0
_REQUEST = re.compile(r"[0-9a-f]{16}/[0-9]{1,16}", re.ASCII)


def _state(endpoint: str) -> dict[str, Any] | None:
    return get_json(f"{endpoint}/v1/cluster")


def ask(
    method: str, endpoint: str, path: str, body: dict[str, Any] | None = None, timeout_s: float = TIMEOUT_S
) -> dict[str, Any]:
    """Ask a node; a refusal ends the command with 1, no answer with 3."""
    try:
        return send_json(method, endpoint + path, body, timeout_s)
    except RequestRefused as refusal:
        raise failed(refusal, 1) from None
    except Unreachable:
        raise failed(f"no node answers at {endpoint}", 3) from None


def status(endpoint: Endpoint = ENDPOINT_DEFAULT, output: Format = Output.TABLE) -> None:
    """Show the cluster as each of its nodes sees it."""
    first = ask("GET", endpoint, "/v1/cluster")
    states = {m["id"]: first if m["id"] == first["node"] else _state(m["http"]) for m in first["members"]}
    if output is Output.JSON:
        typer.echo(json.dumps(states, indent=1))
        return
    newest = max(state["commit_index"] for state in states.values() if state)
    header = ("node", "http", "role", "term", "log commit", "applied", "behind", "commit", "version")
    show(header, (_row(member, states[member["id"]], newest) for member in first["members"]), unbroken={"http"})


def _row(member: dict[str, Any], state: dict[str, Any] | None, newest: int) -> list[str]:
    if state is None:
        return [member["id"], member["http"], "unreachable"]
    behind = newest - state["applied_index"]
    shown = (state["term"], state["commit_index"], state["applied_index"], behind, state["commit"], state["version"])
    return [member["id"], member["http"], state["role"], *map(str, shown)]


@member.command()
def add(
    new: Annotated[str, typer.Argument(help="the new node as id=host:http_port:peer_port")],
    endpoint: Endpoint = ENDPOINT_DEFAULT,
) -> None:
    """Add a node: it receives the log as a learner and votes once it has caught up. Prints how to start it."""
    from oncegate.gateway.node.settings import MemberAddress

    try:
        address = MemberAddress.parse(new)
    except ValueError as fault:
        raise failed(fault, 2) from None
    cluster = ask("GET", endpoint, "/v1/cluster")
    flags = " ".join(f"--member {m['id']}={_address(m)}" for m in cluster["members"] if m["id"] != address.node_id)
    typer.echo("Start the new node, with an empty data directory, where it is to run:", err=True)
    typer.echo(
        f"oncegate serve --join --node {address.node_id} --cluster {cluster['cluster']} {flags} --member {address}"
    )
    ports = {"http_port": address.http_port, "peer_port": address.peer_port}
    body = {"id": address.node_id, "host": address.host, **ports}
    typer.echo("Waiting until it has caught up and votes ...", err=True)
    ask("POST", endpoint, "/v1/cluster/members", body, _ADD_S)
    typer.echo(f"{address.node_id} is a member and votes", err=True)


@member.command()
def remove(
    node_id: Annotated[str, typer.Argument(help="id of the node")], endpoint: Endpoint = ENDPOINT_DEFAULT
) -> None:
    """Remove a node, also a dead one or the leader. Its data directory is of no use to the cluster afterwards."""
    ask("DELETE", endpoint, f"/v1/cluster/members/{node_id}", None, _CHANGE_S)
    typer.echo(f"{node_id} is no member any more", err=True)


@leader.command()
def move(
    to: Annotated[str | None, typer.Option(help="id of the node that is to lead [the one that is furthest]")] = None,
    endpoint: Endpoint = ENDPOINT_DEFAULT,
) -> None:
    """Hand leadership over, before maintenance for instance; writes wait for milliseconds."""
    ask("POST", endpoint, "/v1/cluster/leader", {} if to is None else {"to": to}, _CHANGE_S)
    cluster = _state(endpoint)
    if cluster is not None:
        typer.echo(f"{cluster['leader']} leads", err=True)


def _address(described: dict[str, str]) -> str:
    """Return host:http_port:peer_port of a member as ``GET /v1/cluster`` describes it."""
    host, peer_port = described["peer"].rsplit(":", 1)
    return f"{host}:{described['http'].rsplit(':', 1)[1]}:{peer_port}"


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
        raise failed("give TABLE/KEY or CLIENT_ID/SEQUENCE", 2)
    query = {"request": what} if _REQUEST.fullmatch(what) and not key else {"table": table, "key": name}
    found = ask("GET", endpoint, f"/v1/explain?{urlencode(query)}", None, _SEARCH_S)
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
