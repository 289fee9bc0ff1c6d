"""aiohttp's half of a connection: it serves whatever is not hot, on the same transport.

Owns: what the node asks of aiohttp's protocol object, and the problems for what is no HTTP.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final, cast

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from oncegate.gateway.http.negotiation import bare_problem
from oncegate.rifl.errors import Code, OncegateError

LINGERING_S: Final = 1.0
"""How long a request that was answered before its body was there may go on sending it, and keep its place."""
_NEVER_S: Final = 10 * 365 * 86_400.0
"""aiohttp's own patience between two requests: it does not see the hot ones, so the sweep looks after that."""
log = logging.getLogger(__name__)


class AiohttpSide(web.RequestHandler):
    """Serves the requests whose bytes it is given; its transport is the connection's."""

    __slots__ = ()

    def __init__(self, server: web.Server, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(
            server,
            loop=loop,
            access_log=cast(logging.Logger, None),
            keepalive_timeout=_NEVER_S,
            lingering_time=LINGERING_S,
            auto_decompress=False,  # the gate refuses encoded bodies: see oncegate.gateway.http.admission.desk
        )

    @property
    def has_asked(self) -> bool:
        """Whether the head of one request has arrived whole."""
        return self._request_count > 0

    @property
    def is_idle(self) -> bool:
        """Whether it waits for a request; also true before it has begun to."""
        return not self._messages and (self._waiter is not None or not self.has_asked)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer broken HTTP, or a bug outside the handlers, with a problem; the connection ends."""
        if request.writer.output_size > 0:
            raise ConnectionError("the answer has begun already")
        if isinstance(exc, HttpProcessingError):
            # Any client can send this at any rate, so it must not fill the log.
            refusal = OncegateError(Code.BAD_REQUEST, f"not HTTP as this node reads it: {(message or '')[:200]}")
        else:
            log.error("a request failed outside its handler", exc_info=exc)
            refusal = OncegateError(Code.INTERNAL, "see the node's log")
        response = bare_problem(refusal)
        response.force_close()
        return response
