"""``/v1/cluster/figures``: all members now and in the last hour, once or as a stream; ``/v1/token``: who asks.

Owns: the form of the answer, and how often a stream tells. :mod:`oncegate.gateway.node.figures` asks the members.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final

import msgspec
from aiohttp import web

from oncegate.gateway.http import event_streams
from oncegate.gateway.http.admission.gate import TOKENS, is_still_known, uncounted
from oncegate.gateway.http.control_routes import Routes
from oncegate.gateway.http.event_streams import EventStream, EventStreams
from oncegate.gateway.http.identity import Identity, Scope
from oncegate.gateway.http.negotiation import NODE, bare_problem, standing, tenant_of
from oncegate.gateway.http.routes.cluster import Member, members_of
from oncegate.gateway.http.routing import EVENT_STREAM, Raw
from oncegate.gateway.machine.tenant_share import share
from oncegate.gateway.node.figures import NodeFigures, Seen
from oncegate.gateway.node.node import Node
from oncegate.gateway.observability.last_hour import COLUMNS
from oncegate.rifl.errors import Code, OncegateError

EVENT_S: Final = 2.0
"""Between two events, and how soon a token that has ended is noticed."""
STREAMS_MAX: Final = 100
"""Streams of figures at a node; each asks every member at each event."""
_streams: Final = web.AppKey("figures", EventStreams)
_EVENTS: Final = Raw((EVENT_STREAM,), "events `figures` with what has come since the one before, and `end`")
ROUTES: Final = Routes("figures")


class MemberFigures(Member, kw_only=True):
    """A member as the answering node sees it, and its own word; ``silent`` says why there is none."""

    figures: NodeFigures | None = None
    silent: str = ""


class ClusterFigures(msgspec.Struct, kw_only=True):
    """Answer of ``GET /v1/cluster/figures``, from the node ``node`` at ``at_ms`` (Unix time).

    ``columns`` names the numbers of each member's moments.
    """

    node: str
    cluster: str
    at_ms: int
    leader: str | None
    columns: tuple[str, ...]
    members: list[MemberFigures]


class TokenState(msgspec.Struct, kw_only=True):
    """Answer of ``GET /v1/token``: what the sender may do. ``within``: by scope, how names of its tables begin.

    ``tokens`` is false at a node that asks for none: everybody may do everything.
    """

    tokens: bool
    name: str
    tenant: str
    scopes: list[str]
    within: dict[str, list[str]]


@ROUTES.told("GET", "/v1/token", Scope.READ, needs_state=False)
def token(request: web.Request, identity: Identity) -> TokenState:
    """``GET /v1/token``: name, tenant and scopes of the token that the request carries."""
    return TokenState(
        tokens=TOKENS in request.app,
        name=identity.name,
        tenant=identity.tenant,
        scopes=sorted(identity.scopes),
        within={scope.value: list(prefixes) for scope, prefixes in identity.within.items()},
    )


@ROUTES.told("GET", "/v1/cluster/figures", Scope.READ, needs_state=False)
async def figures(node: Node) -> ClusterFigures:
    """``GET /v1/cluster/figures``: every member's own word on itself and on the last hour, without a quorum too."""
    return await _figures(node, {})


@ROUTES.add(
    "GET", "/v1/cluster/figures/watch", Scope.READ, _EVENTS, errors=(Code.OVERLOADED,), head=False, needs_state=False
)
async def watch(request: web.Request) -> web.StreamResponse:
    """``GET /v1/cluster/figures/watch``: the same as server-sent events, every two seconds, with new moments only.

    It ends when its token does.
    """
    streams, tenant = request.app[_streams], tenant_of(request)
    own = sum(tenant_of(one.request) == tenant for one in streams.values())
    if own >= share(tenant, STREAMS_MAX, len(streams), own):
        raise OncegateError(Code.OVERLOADED, "too many streams of figures", retry_after_ms=1000)
    node = request.app[NODE]
    response = event_streams.response(node.machine.commit, standing(request))
    task = asyncio.current_task()
    assert task is not None
    streams[task] = EventStream(request, task.cancel)
    try:
        with uncounted(request):
            await response.prepare(request)
            await _tell(request, response)
    except ConnectionError:
        pass
    finally:
        streams.pop(task, None)
    return response


async def _tell(request: web.Request, response: web.StreamResponse) -> None:
    seen: dict[str, Seen] = {}
    while is_still_known(request, Scope.READ, None):
        told = await _figures(request.app[NODE], seen)
        for one in told.members:
            if one.figures is not None and one.figures.moments:
                seen[one.id] = one.figures.seen
        await response.write(b"event: figures\ndata: %s\n\n" % msgspec.json.encode(told))
        await asyncio.sleep(EVENT_S)
    ended = bare_problem(OncegateError(Code.UNAUTHENTICATED, "the token has ended, or was taken out")).body
    if isinstance(ended, bytes):
        await response.write(b"event: end\ndata: %s\n\n" % ended)


async def _figures(node: Node, seen: dict[str, Seen]) -> ClusterFigures:
    members = {one.id: one for one in members_of(node)}
    status = node.replica.status()
    me = status.node_id
    told = await node.figures.of(members.keys() - {me}, seen)
    told[me] = node.figures.own(seen.get(me, Seen()))
    shown = []
    for member in members.values():
        answer = told[member.id]
        of_it = {"figures": answer} if isinstance(answer, NodeFigures) else {"silent": answer}
        shown.append(MemberFigures(**msgspec.structs.asdict(member), **of_it))
    return ClusterFigures(
        node=me,
        cluster=node.settings.cluster,
        at_ms=int(time.time() * 1000),
        leader=status.leader_id,
        columns=COLUMNS,
        members=shown,
    )


def set_up(app: web.Application) -> None:
    """Prepare the application for streams."""
    event_streams.keep(app, _streams)
