"""``oncegate status``: who leads, who is behind."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from oncegate.gateway.cli.output import Format, Output, show
from oncegate.gateway.local.blocking_http import get_json
from oncegate.gateway.wire import DEFAULT_HTTP_PORT

Endpoint = Annotated[str, typer.Option(envvar="ONCEGATE_ENDPOINT", help="HTTP address of any node")]
ENDPOINT_DEFAULT = f"http://127.0.0.1:{DEFAULT_HTTP_PORT}"


def unreachable(url: str) -> typer.Exit:
    """Print that no node answers, and return the exit that ends the command."""
    typer.echo(f"oncegate: no node answers at {url}", err=True)
    return typer.Exit(3)


def status(
    endpoint: Endpoint = ENDPOINT_DEFAULT,
    output: Format = Output.TABLE,
) -> None:
    """Show the cluster as each of its nodes sees it."""
    first = _state(endpoint)
    if first is None:
        raise unreachable(endpoint)
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


def _state(endpoint: str) -> dict[str, Any] | None:
    return get_json(f"{endpoint}/v1/cluster")
