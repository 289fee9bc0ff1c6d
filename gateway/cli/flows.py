"""``oncegate flow`` and ``oncegate consumer``: show, alter and delete flows; place and remove consumers."""

from __future__ import annotations

import re
import secrets
from datetime import UTC, datetime
from typing import Annotated, Any, Final
from urllib.parse import quote

import typer

from oncegate.gateway.cli.cluster import ENDPOINT_DEFAULT, Endpoint, ask
from oncegate.gateway.cli.flow_graph import as_dot, as_text
from oncegate.gateway.cli.output import Format, Output, Yes, as_json, checked, confirm, failed, say, show

flow = typer.Typer(help="Flows: list, draw, show, alter, delete.", no_args_is_help=True)
consumer = typer.Typer(help="Consumers of flows: list, show, start, detach, remove.", no_args_is_help=True)

Flow = Annotated[str, typer.Argument(metavar="FLOW", help="name of the flow")]
Consumer = Annotated[str, typer.Argument(metavar="CONSUMER", help="name of the consumer")]
Version = Annotated[int | None, typer.Option(help="change this version only [the one of now]")]
_UNITS_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION: Final = re.compile(r"([0-9]{1,12})(ms|s|m|h|d)", re.ASCII)
_PLACES: Final = ("beginning", "now")
_HEADER: Final = ("flow", "consumer", "required", "cursor", "behind: batches", "items", "seconds", "trend", "note")


def _path(flow_name: str, consumer_name: str = "") -> str:
    path = f"/v1/flows/{quote(flow_name, safe='')}"
    return f"{path}/consumers/{quote(consumer_name, safe='')}" if consumer_name else path


def duration_ms(text: str) -> int:
    """Read a duration such as ``90s``, ``15m``, ``24h`` or ``7d``; 0 needs no unit; raises ValueError."""
    if text == "0":
        return 0
    found = _DURATION.fullmatch(text)
    if found is None:
        raise ValueError(f"{text} is no duration: write 90s, 15m, 24h or 7d")
    return int(found[1]) * _UNITS_MS[found[2]]


def place(text: str, now: datetime) -> dict[str, Any]:
    """Return where a consumer starts as the API has it; raises ValueError.

    Args:
        text: ``beginning``, ``now``, ``batch:N``, ``event:MS``, a duration before now, or a date and time, UTC unless
            it says so.
        now: the present, with its zone.
    """
    if text in _PLACES:
        return {"start": text}
    if text.startswith("batch:") and text[6:].isascii() and text[6:].isdigit():
        return {"batch": int(text[6:])}
    if text.startswith("event:") and text[6:].isascii() and text[6:].isdigit():
        return {"event_ms": int(text[6:])}
    if _DURATION.fullmatch(text):
        return {"ago_ms": duration_ms(text)}
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            f"{text} is no place: write beginning, now, batch:N, event:MS, 2h or 2026-01-31T12:00"
        ) from None
    ago_ms = (now - (at if at.tzinfo is not None else at.replace(tzinfo=UTC))).total_seconds() * 1000
    if ago_ms < 0:
        raise ValueError(f"{text} is to come")
    return {"ago_ms": int(ago_ms)}


def duration(text: str | None) -> int | None:
    """Read a duration as :func:`duration_ms`, None as it is; another text ends the command as misused."""
    with checked():
        return None if text is None else duration_ms(text)


@flow.command("list")
def list_flows(endpoint: Endpoint = ENDPOINT_DEFAULT, output: Format = Output.TABLE) -> None:
    """List all flows: what each retains, and what keeps its oldest batch."""
    flows = ask("GET", endpoint, "/v1/flows")["flows"]
    if as_json(output, flows):
        return
    show(("flow", "source", "version", "batches", "bytes", "consumers", "held by"), map(_row, flows), unbroken={"flow"})


def _row(one: dict[str, Any]) -> list[str]:
    batches = f"{one['first_batch']}..{one['last_batch']}" if one["first_batch"] <= one["last_batch"] else "none"
    names = ", ".join(one["consumers"])
    return [one["flow"], one["source"], str(one["version"]), batches, f"{one['retained_bytes']:,}", names, one["held"]]


@flow.command("graph")
def graph(
    dot: Annotated[bool, typer.Option("--dot", help="in the language of Graphviz")] = False,
    endpoint: Endpoint = ENDPOINT_DEFAULT,
) -> None:
    """Draw which flows derive from which tables, who reads them, and what these write back."""
    flows = ask("GET", endpoint, "/v1/flows")["flows"]
    say("\n".join(as_dot(flows) if dot else as_text(flows)))


@flow.command("show")
def show_flow(name: Flow, endpoint: Endpoint = ENDPOINT_DEFAULT, output: Format = Output.TABLE) -> None:
    """Show a flow with its consumers."""
    _show(ask("GET", endpoint, _path(name)), output)


def _show(found: dict[str, Any], output: Output) -> None:
    if as_json(output, found):
        return
    show(("", ""), ([key, "" if value is None else str(value)] for key, value in found.items() if key != "consumers"))
    if found["consumers"]:
        show(_HEADER, _consumers(found), unbroken=_HEADER)


def _consumers(found: dict[str, Any]) -> list[list[str]]:
    return [_consumer(found["flow"], name, one) for name, one in found["consumers"].items()]


def _consumer(flow_name: str, name: str, one: dict[str, Any]) -> list[str]:
    note = "expired" if one["expired"] else "" if one["attached"] else "never attached"
    lag = (str(one["lag_batches"]), str(one["lag_items"]), f"{one['lag_ms'] / 1000:.1f}")
    return [flow_name, name, "yes" if one["required"] else "no", str(one["cursor"]), *lag, one["trend"], note]


@flow.command("alter")
def alter_flow(
    name: Flow,
    retention: Annotated[str | None, typer.Option(help="for how long a batch is kept at least, as 24h")] = None,
    retention_bytes: Annotated[
        int | None, typer.Option(help="size from which on that time does not hold; 0: none")
    ] = None,
    event_time: Annotated[str | None, typer.Option(help="member of the values that is their event time")] = None,
    shed: Annotated[int | None, typer.Option(help="unread bytes from which on items are left out; 0: never")] = None,
    required: Annotated[
        list[str] | None, typer.Option("--consumer", help="a required consumer; all of them, one option each")
    ] = None,
    no_consumers: Annotated[bool, typer.Option("--no-consumers", help="require none")] = False,
    expiry: Annotated[
        str | None, typer.Option(help="wait so long for a required consumer that never moved, as 7d; 0: for ever")
    ] = None,
    max_items: Annotated[int | None, typer.Option(help="items of a batch at most")] = None,
    max_bytes: Annotated[int | None, typer.Option(help="size at which a batch is cut")] = None,
    linger: Annotated[str | None, typer.Option(help="age at which a batch is cut, as 500ms")] = None,
    version: Version = None,
    endpoint: Endpoint = ENDPOINT_DEFAULT,
    output: Format = Output.TABLE,
) -> None:
    """Change a flow. What nobody waits for any longer is dropped at once."""
    changes = {
        "retention_ms": duration(retention),
        "retention_bytes": retention_bytes,
        "event_time": event_time,
        "shed_lag_bytes": shed,
        "consumers": [] if no_consumers else required or None,
        "consumer_expiry_ms": duration(expiry),
        "max_items": max_items,
        "max_bytes": max_bytes,
        "linger_ms": duration(linger),
    }
    body = {key: value for key, value in changes.items() if value is not None}
    if not body or (no_consumers and required):
        raise failed("say what changes" if not body else "--consumer and --no-consumers exclude each other", 2)
    body["version"] = _version(endpoint, name, version)
    _show(ask("PATCH", endpoint, _path(name), body), output)


@flow.command("delete")
def delete_flow(
    name: Flow,
    force: Annotated[bool, typer.Option("--force", help="although consumers have attached")] = False,
    version: Version = None,
    endpoint: Endpoint = ENDPOINT_DEFAULT,
) -> None:
    """Delete a flow with all its batches. A flow of the same name later begins above their numbers."""
    query = f"version={_version(endpoint, name, version)}{'&force=true' if force else ''}"
    gone = ask("DELETE", endpoint, f"{_path(name)}?{query}")
    say(f"{gone['flow']} is deleted; its last batch was {gone['last_batch']}", err=True)


@consumer.command("list")
def list_consumers(
    name: Annotated[str | None, typer.Argument(metavar="[FLOW]", help="of this flow only")] = None,
    endpoint: Endpoint = ENDPOINT_DEFAULT,
    output: Format = Output.TABLE,
) -> None:
    """List consumers with their lag in batches, items and seconds, and how they keep up."""
    flows = ask("GET", endpoint, "/v1/flows")["flows"] if name is None else [ask("GET", endpoint, _path(name))]
    lines = (
        {"flow": one["flow"], "consumer": name, **about} for one in flows for name, about in one["consumers"].items()
    )
    if as_json(output, {one["flow"]: one["consumers"] for one in flows}, lines):
        return
    show(_HEADER, (row for one in flows for row in _consumers(one)), unbroken=_HEADER)


@consumer.command("show")
def show_consumer(
    name: Flow, consumer_name: Consumer, endpoint: Endpoint = ENDPOINT_DEFAULT, output: Format = Output.TABLE
) -> None:
    """Show one consumer."""
    one = ask("GET", endpoint, _path(name))["consumers"].get(consumer_name)
    if one is None:
        raise failed(f"no consumer {consumer_name} of flow {name}", 1)
    if not as_json(output, one):
        show(("", ""), ([key, str(value)] for key, value in one.items()))


@consumer.command("start")
def start_consumer(
    name: Flow,
    consumer_name: Consumer,
    where: Annotated[str, typer.Option("--from", help="beginning, now, batch:N, event:MS, 2h (ago), a date and time")],
    endpoint: Endpoint = ENDPOINT_DEFAULT,
    output: Format = Output.TABLE,
) -> None:
    """Place a consumer's cursor and fence its job, which then starts anew from there."""
    with checked():
        body = place(where, datetime.now(UTC))
    _started(endpoint, name, consumer_name, body, output)


@consumer.command("detach")
def detach_consumer(
    name: Flow, consumer_name: Consumer, endpoint: Endpoint = ENDPOINT_DEFAULT, output: Format = Output.TABLE
) -> None:
    """Fence a consumer's job where it is: its next move of the cursor is refused."""
    _started(endpoint, name, consumer_name, {"start": "cursor"}, output)


def _started(endpoint: str, name: str, consumer_name: str, body: dict[str, Any], output: Output) -> None:
    sent = {"nonce": secrets.token_hex(16), **body}
    made = ask("POST", endpoint, f"{_path(name, consumer_name)}/start", sent)
    if not as_json(output, made):
        text = f"{consumer_name} reads batch {made['cursor'] + 1} next; jobs before fence {made['fence']} are fenced"
        say(text)


@consumer.command("remove")
def remove_consumer(
    name: Flow,
    consumer_name: Consumer,
    version: Version = None,
    endpoint: Endpoint = ENDPOINT_DEFAULT,
    yes: Yes = False,
) -> None:
    """Remove a consumer, required or not: retention no longer waits for it, and its job is fenced."""
    seen = _version(endpoint, name, version)
    confirm(f"Remove {consumer_name} from {name}? Batches that wait for it may be dropped then.", yes=yes)
    found = ask("DELETE", endpoint, f"{_path(name, consumer_name)}?version={seen}")
    held = found["held"] or "it has no batch"
    say(f"{consumer_name} is removed from {name}, now version {found['version']}; {held}", err=True)


def _version(endpoint: str, name: str, version: int | None) -> int:
    """Return the version that is to change: the one given, or the one of now."""
    return int(ask("GET", endpoint, _path(name))["version"]) if version is None else version
