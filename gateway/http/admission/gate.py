"""The gate: every request passes it once, before its handler.

Owns: the order of the checks (route, identity, scope, media type, the tenant's requests under way, its rate), the
headers that tell a client its rate, and the one place where errors of handlers become problems. When the gate itself
refuses, no byte of a body has been read and nothing was proposed.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable
from typing import Final

from aiohttp import hdrs, web
from aiohttp.typedefs import Middleware

from oncegate.consensus.snapshot.throttle import TokenBucket
from oncegate.gateway import wire
from oncegate.gateway.http.auth import Tokens
from oncegate.gateway.http.identity import ANONYMOUS, Identity
from oncegate.gateway.http.negotiation import IDENTITY, problem
from oncegate.gateway.http.routing import ANYTHING, FORM, JSON_LINES, UNNAMED, Handler, Route
from oncegate.rifl.errors import Code, OncegateError

_NAMED: Final = frozenset({wire.JSON, wire.MSGPACK, wire.ARROW, JSON_LINES})
"""Types that a page of another site cannot send without asking first."""
_STATUS_CODES: Final = {
    404: Code.NOT_FOUND,
    405: Code.METHOD_NOT_ALLOWED,
    413: Code.PAYLOAD_TOO_LARGE,
    415: Code.UNSUPPORTED_MEDIA_TYPE,
}
log = logging.getLogger(__name__)


class OperationRate(TokenBucket):
    """The rate of a tenant: ``per_s`` operations a second, ``burst`` at once. One caller at a time.

    A request is admitted while any tokens are left, and its operations are subtracted afterwards, below zero if
    necessary: the cost of a body is known only once it is decoded, and a range may hold more operations than the whole
    bucket. The next request waits until the debt is paid. So the rate holds over time, and at most one request is ahead
    of it.
    """

    __slots__ = ()

    def wait_ms(self, now_s: float) -> int:
        """Return 0 if a request may go now, else the milliseconds until one may."""
        return math.ceil((self.open_at(now_s) - now_s) * 1000)

    @property
    def remaining(self) -> int:
        """Operations that may still go at once, never negative."""
        return max(0, int(self.level))

    @property
    def policy(self) -> str:
        """The value of ``RateLimit-Policy``: quota and window (IETF httpapi ratelimit-headers)."""
        return f'"operations";q={self.burst};w={max(1, math.ceil(self.burst / self.per_s))}'

    @property
    def state(self) -> str:
        """The value of ``RateLimit``: remaining operations, seconds until the bucket is full."""
        reset_s = max(0, math.ceil((self.burst - self.level) / self.per_s))
        return f'"operations";r={self.remaining};t={reset_s}'


class Usage:
    """The requests that one sender has under way, and its rate."""

    __slots__ = ("bucket", "requests")

    def __init__(self, bucket: OperationRate | None) -> None:
        self.requests = 0
        self.bucket = bucket


class Desk:
    """Decides which requests to admit.

    Args:
        routes: all that are served.
        tokens: None: everybody is :data:`oncegate.gateway.http.identity.ANONYMOUS` and may do everything.
        requests_max: requests that one tenant may have under way at this node.
        operations_per_s: of one tenant at this node, unless its token says otherwise; 0: no bound.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        routes: Iterable[Route],
        *,
        tokens: Tokens | None = None,
        requests_max: int,
        operations_per_s: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._routes = {route.handler: route for route in routes}
        self._known = tokens
        self._requests_max = requests_max
        self._operations_per_s = operations_per_s
        self._clock = clock
        self._tenants: dict[str, Usage] = {}
        self._tokens: dict[tuple[str, str], Usage] = {}

    def admit(self, request: web.Request) -> Usage | None:
        """Admit a request and count it as under way; return None if no route serves it (its handler answers that).

        Raises:
            OncegateError: UNAUTHENTICATED, FORBIDDEN, UNSUPPORTED_MEDIA_TYPE, OVERLOADED or QUOTA.
        """
        route = self._routes.get(request.match_info.handler)
        if route is None:
            return None
        identity = ANONYMOUS
        if self._known is not None and route.scope is not None:
            identity = self._known.identify(request.headers.get(hdrs.AUTHORIZATION))
            if route.scope not in identity.scopes:
                raise OncegateError(Code.FORBIDDEN, f"the token lacks the scope {route.scope}")
        request[IDENTITY] = identity
        if route.method != hdrs.METH_GET:
            _check_media(request, route)
        usage = self._usage(identity)
        if usage.requests >= self._requests_max:
            detail = f"{self._requests_max} requests of this tenant are under way"
            raise OncegateError(Code.OVERLOADED, detail, retry_after_ms=100)
        if usage.bucket is not None and route.scope is not None:
            wait_ms = usage.bucket.wait_ms(self._clock())
            if wait_ms:
                detail = f"more than {usage.bucket.per_s} operations a second"
                raise OncegateError(Code.QUOTA, detail, retry_after_ms=wait_ms)
            usage.bucket.take(1)
        usage.requests += 1
        return usage

    def usage_of(self, identity: Identity) -> Usage | None:
        """Return the usage of a sender, None if it has never sent a request."""
        if identity.operations_per_s is not None:
            return self._tokens.get((identity.name, identity.tenant))
        return self._tenants.get(identity.tenant)

    def _usage(self, identity: Identity) -> Usage:
        usage = self.usage_of(identity)
        if usage is None:
            # One for each tenant and token: requests of strangers add none.
            own = identity.operations_per_s
            usage = Usage(self._bucket(self._operations_per_s if own is None else own))
            if own is None:
                self._tenants[identity.tenant] = usage
            else:
                self._tokens[identity.name, identity.tenant] = usage
        elif usage.bucket is not None and identity.operations_per_s not in (None, usage.bucket.per_s):
            usage.bucket = self._bucket(identity.operations_per_s or 0)  # the tokens were reloaded
        return usage

    def _bucket(self, per_s: int) -> OperationRate | None:
        return OperationRate(per_s, per_s) if per_s else None


USAGE: Final = web.RequestKey("usage", Usage)


def charge(request: web.Request, operations: int) -> None:
    """Count a decoded request's operations against its sender's rate; call it before they are proposed.

    Never refuses: the request was admitted, and the sender's next request waits until the debt is paid.
    """
    usage = request.get(USAGE)
    if usage is not None and usage.bucket is not None:
        usage.bucket.take(operations - 1)


def _check_media(request: web.Request, route: Route) -> None:
    headers = request.headers
    # A compressed body could make a small request large, and no client needs one.
    coding = headers.get(hdrs.CONTENT_ENCODING)
    if coding is not None and coding.strip().lower() != "identity":
        raise OncegateError(Code.UNSUPPORTED_MEDIA_TYPE, "send the body without Content-Encoding")
    kind = request.content_type
    if kind in route.media or ANYTHING in route.media:
        return
    if kind not in (UNNAMED, FORM) and (route.media or kind not in _NAMED):
        taken = ", ".join(sorted(route.media)) or "no body"
        raise OncegateError(Code.UNSUPPORTED_MEDIA_TYPE, f"this path takes: {taken}")
    # A browser sends these for any page without asking first: a page on the web must not write to a node on loopback.
    if hdrs.ORIGIN in headers and route.method == hdrs.METH_POST:
        raise OncegateError(
            Code.UNSUPPORTED_MEDIA_TYPE, "a request from a web page must have the content type application/json"
        )


def gate(desk: Desk) -> Middleware:
    """Return the middleware that calls ``desk``; every error leaves as a problem, aiohttp's own refusals too."""

    @web.middleware
    async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            usage = desk.admit(request)
        except OncegateError as refusal:
            response = problem(request, refusal)
            if refusal.code is Code.UNAUTHENTICATED:
                response.headers[hdrs.WWW_AUTHENTICATE] = "Bearer"
            elif refusal.code is Code.UNSUPPORTED_MEDIA_TYPE:
                response.headers[hdrs.ACCEPT_ENCODING] = "identity"
            elif refusal.code is Code.QUOTA:
                _describe_rate(response, desk.usage_of(request[IDENTITY]))
            return response
        if usage is None:
            return await _unrouted(request, handler)
        request[USAGE] = usage
        answer: web.StreamResponse
        try:
            answer = await handler(request)
        except OncegateError as refusal:
            answer = problem(request, refusal)
        except web.HTTPException:
            raise
        except Exception:
            log.exception("a handler failed")
            answer = problem(request, OncegateError(Code.INTERNAL, "see the node's log"))
        finally:
            usage.requests -= 1
        if usage.bucket is not None and not answer.prepared:
            _describe_rate(answer, usage)
        return answer

    return guarded


async def _unrouted(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turn aiohttp's refusals (no route, no such method) into problems."""
    try:
        return await handler(request)
    except web.HTTPException as fault:
        if fault.status < 400:
            raise
        response = problem(request, OncegateError(_STATUS_CODES.get(fault.status, Code.BAD_REQUEST), fault.reason))
        allowed = fault.headers.get(hdrs.ALLOW)
        if allowed is not None:
            response.headers[hdrs.ALLOW] = allowed
        return response


def _describe_rate(response: web.StreamResponse, usage: Usage | None) -> None:
    if usage is not None and usage.bucket is not None:
        response.headers["RateLimit-Policy"] = usage.bucket.policy
        response.headers["RateLimit"] = usage.bucket.state
