"""``/v1/cluster/members``, ``/v1/cluster/leader``: operators change the cluster, through any node."""

from __future__ import annotations

from typing import Final

import msgspec
from aiohttp import web

from oncegate.gateway.http import request_bodies, routing
from oncegate.gateway.http.identity import Scope
from oncegate.gateway.http.negotiation import NODE, body, local, typed
from oncegate.gateway.http.routing import PROPOSED
from oncegate.gateway.node.administration import AddMember, MoveLeader, RemoveMember
from oncegate.gateway.node.settings import MemberAddress
from oncegate.rifl.errors import Code


class NewMember(msgspec.Struct, forbid_unknown_fields=True):
    """Body of ``POST /v1/cluster/members``."""

    id: str
    host: str
    http_port: int
    peer_port: int


class NewLeader(msgspec.Struct, forbid_unknown_fields=True):
    """Body of ``POST /v1/cluster/leader``; without ``to``, leadership goes to the follower with the longest log."""

    to: str | None = None


class Changed(msgspec.Struct):
    """Answer: the members as this node knows them now."""

    members: list[str]


@typed
async def add(request: web.Request) -> web.StreamResponse:
    """``POST /v1/cluster/members``: answered when the node votes, or TIMEOUT (it goes on catching up)."""
    new = await body(request, NewMember)
    try:
        address = MemberAddress.parse(f"{new.id}={new.host}:{new.http_port}:{new.peer_port}")
    except ValueError as fault:
        raise request_bodies.bad(str(fault)) from None
    node = request.app[NODE]
    await node.administration.carry_out(AddMember(*address))
    return local(request, Changed(sorted(node.members)))


@typed
async def remove(request: web.Request) -> web.StreamResponse:
    """``DELETE /v1/cluster/members/{id}``."""
    node = request.app[NODE]
    await node.administration.carry_out(RemoveMember(request.match_info["id"]))
    return local(request, Changed(sorted(node.members)))


@typed
async def lead(request: web.Request) -> web.StreamResponse:
    """``POST /v1/cluster/leader``: hand leadership over."""
    new = await body(request, NewLeader)
    node = request.app[NODE]
    await node.administration.carry_out(MoveLeader(new.to))
    return local(request, Changed(sorted(node.members)))


ROUTES: Final = [
    routing.post(
        "/v1/cluster/members", add, Scope.ADMIN, {200: Changed}, body=NewMember, errors=(Code.CONFLICT, *PROPOSED)
    ),
    routing.delete(
        "/v1/cluster/members/{id}",
        remove,
        Scope.ADMIN,
        {200: Changed},
        errors=(Code.NOT_FOUND, Code.CONFLICT, *PROPOSED),
    ),
    routing.post(
        "/v1/cluster/leader", lead, Scope.ADMIN, {200: Changed}, body=NewLeader, errors=(Code.CONFLICT, *PROPOSED)
    ),
]
