"""Streams of events under way: who is told what happens, until the node shuts down or the client goes.

Owns: which tasks tell a client, and that each of them ends. What is told belongs to the routes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

from aiohttp import web

from oncegate.gateway import wire
from oncegate.gateway.http.routing import EVENT_STREAM

SWEEP_S: Final = 1.0
"""How soon a stream ends whose client has gone: aiohttp does not tell its handler."""


class EventStream(NamedTuple):
    """A stream: its request, and what ends it once its client has gone."""

    request: web.Request
    end: Callable[[], object]


EventStreams: TypeAlias = dict[Any, EventStream]
"""The streams of one kind, by the task that tells the client."""


def response(commit: int, headers: Mapping[str, str]) -> web.StreamResponse:
    """Return the response that a stream is, which begins at a commit number; ``headers`` it has too."""
    fixed = {wire.H_COMMIT: str(commit), "Content-Type": EVENT_STREAM, "Cache-Control": "no-store"}
    return web.StreamResponse(headers={**fixed, **headers})


def keep(app: web.Application, key: web.AppKey[EventStreams]) -> None:
    """Prepare the application for streams of one kind, kept under ``key`` by their handlers."""
    streams: EventStreams = {}

    async def sweep() -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            for request, end in [*streams.values()]:
                if request.transport is None:
                    end()

    async def swept(_: web.Application) -> AsyncIterator[None]:
        task = asyncio.create_task(sweep())
        yield
        task.cancel()

    async def close(_: web.Application) -> None:
        for task in [*streams]:
            task.cancel()

    app[key] = streams
    app.cleanup_ctx.append(swept)
    app.on_shutdown.append(close)
