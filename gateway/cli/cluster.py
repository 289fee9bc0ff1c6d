"""Commands that ask a running cluster: ``oncegate status``, ``member``, ``leader`` and ``explain``."""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Final
from urllib.parse import urlencode

import typer

from oncegate.gateway.cli.cluster_state import OddAnswer, naming, unasked, whole
from oncegate.gateway.cli.output import Format, Output, Yes, as_json, checked, confirm, failed, say, show
from oncegate.gateway.local.blocking_http import TIMEOUT_S, NotAsked, RequestRefused, Unreachable, Untrusted, send_json

if TYPE_CHECKING:
    from oncegate.gateway.node.settings import MemberAddress

Endpoint = Annotated[str, typer.Option(help="HTTP address of a node")]
"""Of a command that asks a node; :mod:`oncegate.gateway.cli.connection_flags` puts its flags in the place of this."""
ENDPOINT_DEFAULT: Final = "http://127.0.0.1:7400"
"""On ``DEFAULT_HTTP_PORT`` of :mod:`oncegate.gateway.wire`, which costs an import of msgspec."""
member = typer.Typer(help="Members of the cluster: add, remove, repair.", no_args_is_help=True)
leader = typer.Typer(help="Leadership of the cluster: move.", no_args_is_help=True)
level = typer.Typer(help="Feature level of the cluster, after an upgrade: show, raise.", no_args_is_help=True)
_ADD_S = 75.0
_CHANGE_S = 30.0
_SEARCH_S = 60.0
_REPAIR_S = 3600.0
_LOOK_S = 0.5
_REQUEST = re.compile(r"[0-9a-f]{16}/[0-9]{1,16}", re.ASCII)


def _state(endpoint: str, address: str) -> dict[str, Any] | str:
    """Return the cluster as a member sees it that ``endpoint`` named, or in a word or two why it does not say."""
    reason = unasked(endpoint, address)
    if reason is not None:
        return f"not asked: {reason}"
    try:
        return whole(send_json("GET", f"{address}/v1/cluster", None, TIMEOUT_S))
    except RequestRefused:
        return "refused"
    except Untrusted:
        return "untrusted"
    except OddAnswer:
        return "odd answer"
    except Unreachable:
        return "unreachable"


def ask(
    method: str, endpoint: str, path: str, body: dict[str, Any] | None = None, timeout_s: float = TIMEOUT_S
) -> dict[str, Any]:
    """Ask a node; a refusal ends the command with 1, no answer, or one from whom is not to be trusted, with 3."""
    try:
        return send_json(method, endpoint + path, body, timeout_s)
    except NotAsked as misuse:
        raise failed(misuse, 2) from None
    except RequestRefused as refusal:
        raise failed(refusal, 1) from None
    except Untrusted as fault:
        way_out = "--ca-file or ONCEGATE_CA_FILE names the file of the authority that signed it"
        raise failed(f"the certificate of {endpoint} is not trusted: {fault}; {way_out}", 3) from None
    except Unreachable as fault:
        raise failed(f"no node answers at {endpoint}: {fault}", 3) from None


def ask_cluster(endpoint: str, read: Callable[[Mapping[str, Any]], dict[str, Any]] = naming) -> dict[str, Any]:
    """Ask a node for its cluster, as :func:`ask`; an answer that no node gives ends the command with 3."""
    told = ask("GET", endpoint, "/v1/cluster")
    try:
        return read(told)
    except OddAnswer as fault:
        raise failed(f"no node answers at {endpoint}: {fault}", 3) from None


def status(endpoint: Endpoint = ENDPOINT_DEFAULT, output: Format = Output.TABLE) -> None:
    """Show the cluster as each of its nodes sees it. Exit status 1 if none of them knows a leader.

    A terminal too narrow for all columns shows fewer.
    """
    first = ask_cluster(endpoint, whole)
    states = _states(endpoint, first)
    told = {node_id: None if isinstance(state, str) else state for node_id, state in states.items()}
    if not as_json(output, told, ({"node": node_id, **(state or {})} for node_id, state in told.items())):
        _show(first, states, told)
    if not any(state and state["leader"] for state in told.values()):
        voters = [states[member["id"]] for member in first["members"] if member.get("voter", True)]
        answers = sum(not isinstance(state, str) for state in voters)
        how_many = f"{answers} of {len(voters)} voters {'answers' if answers == 1 else 'answer'}"
        raise failed(f"no leader: {how_many}", 1)


def _show(
    first: dict[str, Any], states: Mapping[str, dict[str, Any] | str], told: Mapping[str, dict[str, Any] | None]
) -> None:
    if first["node"] not in told:
        say(f"{first['node']} is no member any more, and knows the others from before: ask one of them", err=True)
    newest = max((state["commit_index"] for state in told.values() if state), default=0)
    header = ("node", "http", "role", "term", "log commit", "applied", "behind", "commit", "version")
    rows = (_row(member, states[member["id"]], newest) for member in first["members"])
    show(header, rows, unbroken=header, dispensable=("version", "log commit", "commit", "applied", "term", "http"))
    for state in told.values():
        if state and state.get("stalled"):
            say(str(state["stalled"]), err=True)


def _states(endpoint: str, first: dict[str, Any]) -> dict[str, dict[str, Any] | str]:
    """Return the cluster as each member sees it; the one that was asked has said so in ``first``."""
    return {
        one["id"]: first if one["id"] == first["node"] else _state(endpoint, one["http"]) for one in first["members"]
    }


def _row(member: dict[str, Any], state: dict[str, Any] | str, newest: int) -> list[str]:
    if isinstance(state, str):
        return [member["id"], member["http"], state if member.get("voter", True) else f"{state}, learner"]
    behind = newest - state["applied_index"]
    role = state["role"]
    if state.get("damage"):
        role = f"{role}, {state['damage']}"
    elif state.get("leader") is None:  # without a leader nothing tells how far behind a node is
        role = f"{role}, knows no leader"
    elif state.get("stalled"):
        role = f"{role}, commits nothing"
    shown = (state["term"], state["commit_index"], state["applied_index"], behind, state["commit"], state["version"])
    return [member["id"], member["http"], role, *map(str, shown)]


@member.command()
def add(
    new: Annotated[str, typer.Argument(help="the new node as id=host:http_port:peer_port")],
    endpoint: Endpoint = ENDPOINT_DEFAULT,
) -> None:
    """Add a node: it receives the log as a learner and votes once it has caught up. Prints how to start it."""
    from oncegate.gateway.node.settings import MemberAddress, shared_address

    with checked():
        address = MemberAddress.parse(new)
    cluster = ask_cluster(endpoint)
    for one in cluster["members"]:
        at = f"{one['id']}={_address(one)}"
        if one["id"] == address.node_id and one.get("voter", True):
            if MemberAddress.parse(at) == address:
                say(f"{address.node_id} is a member and votes", err=True)
                return
            # The cluster would move the member to that address, and lose a node that serves.
            raise failed(f"{at} is a member: take another id for the new node, or remove this one first", 1)
        # Two at one address are told apart by nobody; of a learner, which never came, the address may be corrected.
        if one["id"] != address.node_id and (shared := shared_address([MemberAddress.parse(at), address])):
            raise failed(f"{shared} is an address of the member {one['id']}: remove that one first, or take another", 1)
    say("Start the new node, with an empty data directory, where it is to run:", err=True)
    say(_start_of(address, cluster))
    places = [value for value in cluster.get("settings", {}).values() if isinstance(value, str) and value.isupper()]
    if places:
        say(f"Put that machine's files and addresses in place of {', '.join(places)}.", err=True)
    ports = {"http_port": address.http_port, "peer_port": address.peer_port}
    body = {"id": address.node_id, "host": address.host, **ports}
    say("Waiting until it has caught up and votes ...", err=True)
    ask("POST", endpoint, "/v1/cluster/members", body, _ADD_S)
    say(f"{address.node_id} is a member and votes", err=True)


@member.command()
def remove(
    node_id: Annotated[str, typer.Argument(help="id of the node")],
    endpoint: Endpoint = ENDPOINT_DEFAULT,
    yes: Yes = False,
) -> None:
    """Remove a node, also a dead one or the leader. Its data directory is of no use to the cluster afterwards."""
    members = sorted(m["id"] for m in ask_cluster(endpoint)["members"])
    if node_id not in members:
        raise failed(f"{node_id} is no member: the members are {', '.join(members)}", 1)
    confirm(f"Remove {node_id} of {', '.join(members)}? What its data directory has is of no use then.", yes=yes)
    ask("DELETE", endpoint, f"/v1/cluster/members/{node_id}", None, _CHANGE_S)
    say(f"{node_id} is no member any more", err=True)


@member.command()
def repair(
    node_id: Annotated[str, typer.Argument(help="id of the node whose state is damaged")],
    endpoint: Endpoint = ENDPOINT_DEFAULT,
) -> None:
    """Replace a damaged state by a fresh copy from the leader, without a restart. Look at the node's disk first."""
    ask("POST", endpoint, f"/v1/cluster/members/{node_id}/repair", None, _CHANGE_S)
    members = {member["id"]: member["http"] for member in ask_cluster(endpoint)["members"]}
    if node_id not in members:
        raise failed(f"{node_id} is no member any more", 1)
    reason = unasked(endpoint, members[node_id])
    if reason is not None:
        raise failed(f"{node_id} has been told, and is not asked how it is, at {members[node_id]}: {reason}", 1)
    say(f"Waiting until {node_id} has a sound state; it goes on if you do not wait ...", err=True)
    deadline_s = time.monotonic() + _REPAIR_S
    while isinstance(state := _state(endpoint, members[node_id]), str) or state.get("damage"):
        if time.monotonic() > deadline_s:
            raise failed(f"{node_id} has no sound state yet: see the leader's log, and {node_id}'s", 1)
        time.sleep(_LOOK_S)
    say(f"{node_id} has a sound state, and catches up from entry {state['applied_index']}", err=True)


@leader.command()
def move(
    to: Annotated[str | None, typer.Option(help="id of the node that is to lead [the one that is furthest]")] = None,
    endpoint: Endpoint = ENDPOINT_DEFAULT,
) -> None:
    """Hand leadership over, before maintenance for instance; writes wait for milliseconds."""
    ask("POST", endpoint, "/v1/cluster/leader", {} if to is None else {"to": to}, _CHANGE_S)
    cluster = _state(endpoint, endpoint)
    if not isinstance(cluster, str):
        say(f"{cluster.get('leader')} leads", err=True)


@level.command("show")
def show_level(endpoint: Endpoint = ENDPOINT_DEFAULT, output: Format = Output.TABLE) -> None:
    """Show the level in force, and the highest that each node's build knows."""
    first = ask_cluster(endpoint)
    states = _states(endpoint, first)
    known = {name: None if isinstance(one, str) else one.get("level_known", 1) for name, one in states.items()}
    if as_json(output, {"level": first.get("level", 1), "known": known}):
        return
    say(f"in force: {first.get('level', 1)}")
    for name, state in states.items():
        say(f"{name}: {state if isinstance(state, str) else known[name]}")


@level.command("raise")
def raise_level(
    to: Annotated[int | None, typer.Option(help="the level [the highest that the asked node's build knows]")] = None,
    endpoint: Endpoint = ENDPOINT_DEFAULT,
    yes: Yes = False,
) -> None:
    """Allow what came with the new build, once every member runs it. Older builds cannot come back afterwards."""
    confirm("Raise the feature level? Builds that do not know it cannot come back.", yes=yes)
    raised = ask("POST", endpoint, "/v1/cluster/level", {} if to is None else {"level": to}, _CHANGE_S)
    say(f"the feature level is {raised['level']}", err=True)


def _start_of(new: MemberAddress, cluster: Mapping[str, Any]) -> str:
    """Return the command that starts a node of a cluster: its members, and what the node that was asked was given."""
    from oncegate.gateway.node.settings import SETTINGS

    words = ["oncegate", "serve", "--join", "--node", new.node_id, "--cluster", cluster["cluster"]]
    words += ["--data-dir", f"oncegate-{new.node_id}"]
    for one in cluster["members"]:
        if one["id"] != new.node_id:
            words += ["--member", f"{one['id']}={_address(one)}"]
    words += ["--member", str(new)]
    for name, value in cluster.get("settings", {}).items():
        flag = SETTINGS[name].flag if name in SETTINGS else f"--{name.replace('_', '-')}"
        for one in value if isinstance(value, list) else [value]:
            words += [flag] if one is True else [flag, str(one)]
    return shlex.join(words)


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

    What a node has forgotten is not shown: attempts since its last start, the log as far back as it is kept. Exit
    status 1 if nothing is known of a key.
    """
    table, slash, name = what.partition("/")
    if not slash or not name:
        raise failed("give TABLE/KEY or CLIENT_ID/SEQUENCE", 2)
    query = {"request": what} if _REQUEST.fullmatch(what) and not key else {"table": table, "key": name}
    found = ask("GET", endpoint, f"/v1/explain?{urlencode(query)}", None, _SEARCH_S)
    if not as_json(output, found, found.get("events", [])):
        _print(found)
    if not (found.get("events") or found.get("version") or "state" in found):
        raise failed(f"nothing is known of {what}", 1)


def _print(found: dict[str, Any]) -> None:
    if "state" in found:
        say(f"{found['request']}: {found['state']['state']}")
    else:
        version = found.get("version")
        say(f"{found['table']}/{found['key']}: {f'version {version}' if version else 'no resident row'}")
    header = ("time (UTC)", "what", "where", "request", "commit", "detail")
    if events := found.get("events"):
        show(header, ((_time(event.get("at_ms")), *_columns(event)) for event in events))
    if found.get("truncated"):
        say("older events are left out", err=True)
    if found.get("silent"):
        say(f"no answer from {', '.join(found['silent'])}: attempts there are not shown", err=True)
    say(f"the log was searched from entry {found.get('log_from', 0)} on", err=True)


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
