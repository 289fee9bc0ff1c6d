"""What operators and tools ask a node: cluster and members, health, metrics, live check, timelines, the API itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import cache, partial
from typing import Final

import msgspec
from aiohttp import web

from oncegate.consensus.ports import ReplicaStatus
from oncegate.gateway import wire
from oncegate.gateway.answers import Answer
from oncegate.gateway.explain.search import OfKey, OfRequest, Wanted
from oncegate.gateway.explain.timeline import Explained
from oncegate.gateway.http import openapi, request_bodies
from oncegate.gateway.http.admission.connections import CONNECTIONS
from oncegate.gateway.http.admission.desk import check_tables
from oncegate.gateway.http.control_routes import Routes
from oncegate.gateway.http.identity import Identity, Scope
from oncegate.gateway.http.metrics import exposition
from oncegate.gateway.http.negotiation import BODIES, NODE, problem
from oncegate.gateway.http.observing import ACCESS, AUDIT, REQUESTS
from oncegate.gateway.http.routing import PROPOSED, READ, Parameter, Raw, Route
from oncegate.gateway.machine import levels
from oncegate.gateway.node.administration import AddMember, MoveLeader, RemoveMember, RepairMember, Request
from oncegate.gateway.node.commit_stall import stall_of
from oncegate.gateway.node.node import Node
from oncegate.gateway.node.settings import MemberAddress, bracketed, shared_address
from oncegate.gateway.observability.process import disk_figures
from oncegate.rifl.errors import Code, OncegateError
from oncegate.version import __version__

READY_S: Final = 0.3
"""How long ``/readyz`` waits for a read point: whoever asks every second or two wants an answer, not a good one."""
_OK: Final = Raw(("text/plain",), "ok")
_METRICS: Final = Raw(("text/plain",), "Prometheus text")
_DOCUMENT: Final = Raw((wire.JSON,), "an OpenAPI 3.1 document")
_EXPLAIN: Final = (
    Parameter("request", {"type": "string"}, "client_id/sequence"),
    Parameter("table", {"type": "string"}, "the table, with key"),
    Parameter("key", {"type": "string"}, "the row's key, with table"),
)
_CHANGE: Final = (Code.CONFLICT, *PROPOSED)
_MEMBERS: Final = "/v1/cluster/members"
_described: Final = web.AppKey[Callable[[], bytes]]("openapi")
_cluster, _members, _explain = Routes("cluster"), Routes("members"), Routes("explain")
_check, _description = Routes("check"), Routes("description")


class Member(msgspec.Struct):
    """One node of the cluster."""

    id: str
    http: str
    peer: str
    role: str
    match: int
    voter: bool = True


class ClusterState(msgspec.Struct):
    """Answer of ``GET /v1/cluster`` as the answering node sees it.

    ``stalled`` says why this node, as the leader, commits nothing; empty while it does. ``level`` is the cluster's
    feature level, ``level_known`` the highest that this node's build knows. ``settings``:
    of :meth:`oncegate.gateway.node.settings.Settings.for_new_member`.
    """

    node: str
    role: str
    leader: str | None
    term: int
    log_index: int
    commit_index: int
    applied_index: int
    commit: int
    cluster_time_ms: int
    lag: int
    version: str
    members: list[Member]
    cluster: str = ""
    identity: str = ""
    origin: str = ""
    origin_commit: int = 0
    saved_index: int = 0
    change_pending: bool = False
    damage: str = ""
    stalled: str = ""
    level: int = levels.FIRST
    level_known: int = levels.FIRST
    settings: dict[str, str | int | float | bool | list[str]] = {}


class NewMember(msgspec.Struct, forbid_unknown_fields=True):
    """Body of ``POST /v1/cluster/members``."""

    id: str
    host: str
    http_port: int
    peer_port: int


class NewLeader(msgspec.Struct, forbid_unknown_fields=True):
    """Body of ``POST /v1/cluster/leader``; without ``to``, leadership goes to the follower with the longest log."""

    to: str | None = None


class NewLevel(msgspec.Struct, forbid_unknown_fields=True):
    """Body of ``POST /v1/cluster/level``; without ``level``, the highest that the asked node's build knows."""

    level: int | None = None


class Changed(msgspec.Struct):
    """Answer: the members as this node knows them now."""

    members: list[str]


def members_of(node: Node) -> list[Member]:
    """Return the members as a node sees them, at once."""
    status = node.replica.status()
    members = []
    for member in node.members.values():
        if member.node_id == status.node_id:
            role, match = status.role.value, status.last_index
        else:
            peer = status.peers.get(member.node_id)
            connected = peer is not None and peer.connected
            role = "leader" if member.node_id == status.leader_id else "follower" if connected else "unreachable"
            if peer is not None and connected and not peer.voter:
                role = "learner"
            match = 0 if peer is None else peer.match_index
        voter = member.node_id in status.configuration.voters
        peer_address = f"{bracketed(member.host)}:{member.peer_port}"
        members.append(Member(member.node_id, node.settings.http_of(member), peer_address, role, match, voter))
    return members


@_cluster.told("GET", "/v1/cluster", Scope.READ, needs_state=False)
def cluster(node: Node) -> ClusterState:
    """``GET /v1/cluster``: as this node sees it, at once; it answers without a quorum too."""
    status = node.replica.status()
    return ClusterState(
        node=status.node_id,
        role=status.role.value,
        leader=status.leader_id,
        term=status.term,
        log_index=status.last_index,
        commit_index=status.commit_index,
        applied_index=status.applied_index,
        commit=node.machine.commit,
        cluster_time_ms=node.machine.time_ms,
        lag=status.commit_index - status.applied_index,
        version=__version__,
        members=members_of(node),
        cluster=node.settings.cluster,
        identity=node.machine.identity,
        origin=node.machine.origin.identity,
        origin_commit=node.machine.origin.commit,
        saved_index=0 if node.state.saved is None else node.state.saved.index,
        change_pending=status.change_pending,
        damage=node.damage,
        stalled=stall_of(status),
        level=node.machine.level,
        level_known=levels.NEWEST,
        settings=node.settings.for_new_member(),
    )


@_cluster.add("GET", "/livez", None, _OK, needs_state=False)
async def livez(request: web.Request) -> web.StreamResponse:
    """``GET /livez``: the process answers."""
    return web.Response(text="ok\n")


@_cluster.add("GET", "/readyz", None, _OK, errors=(Code.NOT_READY,))
async def readyz(request: web.Request) -> web.StreamResponse:
    """``GET /readyz``: 200 when this node can answer a linearizable request, now, has room for writes, and commits, and
    a new cluster has the level that its members know.

    Answered within half a second, whatever the others do.
    """
    node = request.app[NODE]
    status = node.replica.status()
    detail = stall_of(status)
    if not detail and status.disk_full:
        detail = f"the disk of {node.settings.node} is full: it answers reads, and takes no writes as a leader"
    if detail:
        return problem(request, OncegateError(Code.NOT_READY, detail, retry_after_ms=1000))
    try:
        await node.reads.reach("linearizable", 0, READY_S)
    except OncegateError as refusal:
        detail = f"{refusal.detail}{_unconnected(node.replica.status())}"
        return problem(request, OncegateError(Code.NOT_READY, detail, retry_after_ms=200))
    if node.founding.is_awaited(asyncio.get_running_loop().time()):
        return problem(request, OncegateError(Code.NOT_READY, "the cluster is being founded", retry_after_ms=50))
    return web.Response(text="ok\n")


def _unconnected(status: ReplicaStatus) -> str:
    away = sorted(name for name, peer in status.peers.items() if not peer.connected)
    return f"; {status.node_id} is not connected with {', '.join(away)}" if away else ""


@_cluster.add("GET", "/metrics", Scope.READ, _METRICS, needs_state=False)
async def metrics(request: web.Request) -> web.StreamResponse:
    """``GET /metrics``: Prometheus text."""
    app = request.app
    disk = await asyncio.to_thread(disk_figures, app[NODE].settings.data_dir)
    text, content_type = exposition(
        app[NODE], app[CONNECTIONS], app[BODIES], app[REQUESTS], app.get(AUDIT), app.get(ACCESS), disk
    )
    return web.Response(body=text, headers={"Content-Type": content_type})


@_members.told("POST", _MEMBERS, Scope.ADMIN, *_CHANGE, needs_state=False, act="member.add")
async def add(node: Node, sent: NewMember) -> Changed:
    """``POST /v1/cluster/members``: answered when the node votes, or TIMEOUT (it goes on catching up)."""
    try:
        address = MemberAddress.parse(f"{sent.id}={bracketed(sent.host)}:{sent.http_port}:{sent.peer_port}")
    except ValueError as fault:
        raise request_bodies.bad(str(fault)) from None
    others = [one for one in node.members.values() if one.node_id != address.node_id]
    if shared := shared_address([*others, address]):
        raise OncegateError(Code.CONFLICT, f"{shared} is the address of another member")
    return await _changed(node, AddMember(*address))


@_members.told(
    "DELETE", _MEMBERS + "/{id}", Scope.ADMIN, Code.NOT_FOUND, *_CHANGE, needs_state=False, act="member.remove"
)
async def remove(node: Node, id_: str) -> Changed:
    """``DELETE /v1/cluster/members/{id}``."""
    return await _changed(node, RemoveMember(id_))


@_members.told(
    "POST",
    _MEMBERS + "/{id}/repair",
    Scope.ADMIN,
    Code.CONFLICT,
    Code.NOT_READY,
    Code.TIMEOUT,
    needs_state=False,
    act="member.repair",
)
async def repair(node: Node, id_: str) -> Changed:
    """``POST /v1/cluster/members/{id}/repair``: a node whose state is damaged gets a fresh copy from the leader.

    Answered when the node has begun; ``damage`` of its ``GET /v1/cluster`` is empty when it has ended.
    """
    return await _changed(node, RepairMember(id_))


@_members.told("POST", "/v1/cluster/leader", Scope.ADMIN, *_CHANGE, needs_state=False, act="leader.move")
async def lead(node: Node, sent: NewLeader) -> Changed:
    """``POST /v1/cluster/leader``: hand leadership over."""
    return await _changed(node, MoveLeader(sent.to))


@_members.told("POST", "/v1/cluster/level", Scope.ADMIN, *_CHANGE, answer=wire.ClusterLevel, act="level.raise")
async def raise_level(node: Node, sent: NewLevel) -> Answer:
    """``POST /v1/cluster/level``: allow what came with a feature level, once every member can; there is no way back."""
    return await node.raise_level(levels.NEWEST if sent.level is None else sent.level)


async def _changed(node: Node, change: Request) -> Changed:
    await node.administration.carry_out(change)
    return Changed(sorted(node.members))


@_check.told("GET", "/v1/check", Scope.READ, Code.NOT_FOUND)
async def check(node: Node) -> wire.LiveCheck:
    """``GET /v1/check``: this node's verdict, and one on the newest sampled operations of all members together."""
    live = node.live_check
    if live is None:
        raise OncegateError(Code.NOT_FOUND, "live_check_share is 0: nothing is sampled")
    return await live.report()


@_explain.told("GET", "/v1/explain", Scope.READ, Code.NOT_FOUND, *READ, parameters=_EXPLAIN)
async def explain(request: web.Request, node: Node, identity: Identity) -> Explained:
    """``GET /v1/explain?table=&key=`` or ``?request=client_id/sequence``, after everything acknowledged before it."""
    query = request.query
    wanted: Wanted
    if "request" in query and not {"table", "key"} & query.keys():
        client_id, _, sequence = query["request"].partition("/")
        wanted = OfRequest(
            request_bodies.check_client_id(client_id), request_bodies.number(sequence, "sequence"), identity.tenant
        )
    elif {"table", "key"} <= query.keys() and "request" not in query:
        table, key = request_bodies.check_name(query["table"], "table"), request_bodies.check_key(query["key"])
        wanted = OfKey(table, key, None if identity.sees_all else identity.tenant)
        check_tables(identity, Scope.READ, [table])
    else:
        raise request_bodies.bad("name a request, or a table and a key")
    await node.reads.reach("linearizable", 0)
    return await node.explainer.explain(wanted, partial(identity.may, Scope.READ))


@_description.add("GET", "/openapi.json", None, _DOCUMENT, needs_state=False)
async def describe(request: web.Request) -> web.StreamResponse:
    """``GET /openapi.json``: this API as OpenAPI 3.1."""
    return web.Response(body=request.app[_described](), content_type=wire.JSON)


def set_up(app: web.Application, routes: tuple[Route, ...]) -> None:
    """Prepare the description of ``routes``: it is written when it is first asked for."""
    described: Callable[[], bytes] = cache(lambda: openapi.document(routes, __version__))
    app[_described] = described


ROUTES: Final = (*_cluster, *_members, *_explain, *_check, *_description)
