"""``/v1/cluster``, ``/livez``, ``/readyz``, ``/metrics``: what operators look at."""

from __future__ import annotations

from importlib.metadata import version
from typing import Final

from aiohttp import web

from oncegate.gateway import wire
from oncegate.gateway.http import routing
from oncegate.gateway.http.admission.connections import CONNECTIONS
from oncegate.gateway.http.identity import Scope
from oncegate.gateway.http.metrics import exposition
from oncegate.gateway.http.negotiation import BODIES, NODE, local, problem, typed
from oncegate.gateway.http.routing import Raw
from oncegate.rifl.errors import Code, OncegateError

_VERSION: Final = version("oncegate")


@typed
async def cluster(request: web.Request) -> web.StreamResponse:
    """``GET /v1/cluster``: as this node sees it, at once; it answers without a quorum too."""
    node = request.app[NODE]
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
        peer_address = f"{member.host}:{member.peer_port}"
        members.append(wire.Member(member.node_id, node.settings.http_of(member), peer_address, role, match, voter))
    state = wire.ClusterState(
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
        version=_VERSION,
        members=members,
        cluster=node.settings.cluster,
        saved_index=0 if node.state.saved is None else node.state.saved.index,
        change_pending=status.change_pending,
    )
    return local(request, state)


async def livez(request: web.Request) -> web.StreamResponse:
    """``GET /livez``: the process answers."""
    return web.Response(text="ok\n")


async def readyz(request: web.Request) -> web.StreamResponse:
    """``GET /readyz``: 200 when this node can answer a linearizable request, now."""
    node = request.app[NODE]
    try:
        await node.reads.reach("linearizable", 0)
    except OncegateError as refusal:
        return problem(request, OncegateError(Code.NOT_READY, refusal.detail, retry_after_ms=200))
    return web.Response(text="ok\n")


async def metrics(request: web.Request) -> web.StreamResponse:
    """``GET /metrics``: Prometheus text."""
    text, content_type = exposition(request.app[NODE], request.app[CONNECTIONS], request.app[BODIES])
    return web.Response(body=text, headers={"Content-Type": content_type})


_TEXT: Final = Raw(("text/plain",), "ok")
_METRICS: Final = Raw(("text/plain",), "Prometheus text")

ROUTES: Final = [
    routing.get("/v1/cluster", cluster, Scope.READ, {200: wire.ClusterState}),
    routing.get("/livez", livez, None, {200: _TEXT}),
    routing.get("/readyz", readyz, None, {200: _TEXT}, errors=(Code.NOT_READY,)),
    routing.get("/metrics", metrics, Scope.READ, {200: _METRICS}),
]
