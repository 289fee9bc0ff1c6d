"""``/v1/cluster/members``, ``/v1/cluster/leader``: operators change the cluster, through any node."""

from __future__ import annotations

from typing import Final

import msgspec
from aiohttp import web

from gateway import edge
from gateway.administration import AddMember, MoveLeader, RemoveMember
from gateway.config import MemberAddress
from gateway.exchange import NODE, body, local, typed


class NewMember(msgspec.Struct, forbid_unknown_fields=True):
    """Body of ``POST /v1/cluster/members``."""

    id: str
    host: str
    http_port: int
    peer_port: int


class NewLeader(msgspec.Struct, forbid_unknown_fields=True):
    """Body of ``POST /v1/cluster/leader``; without ``to`` the follower that is furthest."""

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
        raise edge.bad(str(fault)) from None
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
    web.post("/v1/cluster/members", add),
    web.delete("/v1/cluster/members/{id}", remove),
    web.post("/v1/cluster/leader", lead),
]
