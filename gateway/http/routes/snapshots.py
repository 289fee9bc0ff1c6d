"""Backups, for operators: a node makes a copy of its state and batches, hands its files out, and forgets it.

The files travel to whoever asks, who alone has the credentials of the place where they are kept. Read next:
:mod:`oncegate.gateway.backup.taking`.
"""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec
from aiohttp import web

from oncegate.gateway import wire
from oncegate.gateway.backup.manifest import Manifest
from oncegate.gateway.backup.taking import Copies
from oncegate.gateway.http.control_routes import Routes
from oncegate.gateway.http.identity import Scope
from oncegate.gateway.http.negotiation import NODE, local
from oncegate.gateway.http.routing import READ, UNNAMED, Raw
from oncegate.rifl.errors import Code, OncegateError
from oncegate.version import __version__

_PIECE_BYTES: Final = 2**20
_FILE: Final = Raw((UNNAMED,), "the bytes of a file")
_copies: Final = web.AppKey("copies", Copies)
ROUTES: Final = Routes("snapshots")


class Snapshot(msgspec.Struct):
    """Answer of ``POST /v1/snapshots``: what to read, and under which id."""

    id: str
    manifest: Manifest


@ROUTES.add("POST", "/v1/snapshots", Scope.ADMIN, {201: Snapshot}, errors=(Code.OVERLOADED, *READ), act="snapshot.take")
async def take(request: web.Request) -> web.StreamResponse:
    """``POST /v1/snapshots``: copy everything that was acknowledged before; kept until it is idle for five minutes."""
    copy = await request.app[_copies].make()
    response = local(request, Snapshot(copy.id, copy.manifest))
    response.set_status(201)
    return response


@ROUTES.add("GET", "/v1/snapshots/{id}/files/{sha256}", Scope.ADMIN, _FILE, errors=(Code.NOT_FOUND,), head=False)
async def file(request: web.Request) -> web.StreamResponse:
    """``GET /v1/snapshots/{id}/files/{sha256}``: a file of the manifest."""
    copies, copy_id = request.app[_copies], request.match_info["id"]
    copy, wanted = copies.find(copy_id), request.match_info["sha256"]
    found = next((one for one in copy.manifest.files if one.sha256 == wanted), None)
    if found is None:
        raise OncegateError(Code.NOT_FOUND, "the backup has no such file")
    source = await asyncio.to_thread(copy.path(found).open, "rb")
    try:
        headers = {wire.H_COMMIT: str(request.app[NODE].machine.commit), "Content-Type": UNNAMED}
        response = web.StreamResponse(headers={**headers, "Content-Length": str(found.size_bytes)})
        await response.prepare(request)
        while piece := await asyncio.to_thread(source.read, _PIECE_BYTES):
            await response.write(piece)
            copies.find(copy_id)
    finally:
        source.close()
    await response.write_eof()
    return response


@ROUTES.add("DELETE", "/v1/snapshots/{id}", Scope.ADMIN, {204: None}, act="snapshot.discard")
async def discard(request: web.Request) -> web.StreamResponse:
    """``DELETE /v1/snapshots/{id}``: give the copy's disk space back; idempotent."""
    await request.app[_copies].discard(request.match_info["id"])
    return web.Response(status=204)


async def _close(app: web.Application) -> None:
    await app[_copies].close()


def set_up(app: web.Application) -> None:
    """Prepare the application: no copy is there yet, and none is left behind."""
    app[_copies] = Copies(app[NODE], __version__)
    app.on_shutdown.append(_close)
