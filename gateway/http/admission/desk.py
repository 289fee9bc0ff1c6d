"""The desk: decides whether a request is admitted, and counts it.

Owns: the order of the checks (host and origin, target, route, identity, scope, query, media type, the tenant's requests
under way, its rate), what each sender uses, and which routes a token reaches that is limited to some tables
(``write:orders.``). Pure but for the clock. It sees a request as :class:`Asked`, so that what
comes through aiohttp (:mod:`oncegate.gateway.http.admission.gate`) and what comes on the hot path
(:mod:`oncegate.gateway.http.hot.connection`) pass the same rules.
"""

from __future__ import annotations

import contextlib
import math
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from typing import Final, NamedTuple
from urllib.parse import unquote_to_bytes

from oncegate.consensus.snapshot.throttle import TokenBucket
from oncegate.gateway import wire
from oncegate.gateway.http.admission.hosts import AllowedHosts, is_own_origin
from oncegate.gateway.http.auth import Tokens
from oncegate.gateway.http.identity import ANONYMOUS, Identity, Scope
from oncegate.gateway.http.routing import ANYTHING, FORM, JSON_LINES, UNNAMED, Route
from oncegate.gateway.http.unknown_names import meant, short
from oncegate.rifl.errors import Code, OncegateError

_NAMED: Final = frozenset({wire.JSON, wire.MSGPACK, wire.ARROW, JSON_LINES})
"""Types that a page of another site cannot send without asking first."""
TENANTS_MAX: Final = 10_000
"""Tenants whose requests are counted at a time; an idle one makes room."""
_SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})
"""Methods that change nothing (RFC 9110 §9.2.1)."""
_NO_ESCAPE: Final = re.compile(r"%(?![0-9A-Fa-f]{2})", re.ASCII)
IN_THE_PATH: Final = ("table", "flow")
"""Which parts of a path name what a token may be limited to; a flow is reached by its own name."""
CHECKED_BY_ITS_HANDLER: Final = frozenset(
    {"/v1/operations", "/v1/transactions", "/v1/rows", "/v1/explain", "/v1/flows", "/v1/tables"}
)
"""Names tables in its body or query, or lists them."""
OF_THE_TENANT: Final = ("/v1/sessions", "/v1/requests/", "/v1/cluster", "/v1/token")
"""The tenant's own sessions and results, whatever table they are of; who is in the cluster; the token itself."""


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

    def is_full(self, now_s: float) -> bool:
        """Whether nothing would change if it were made anew."""
        self.wait_ms(now_s)
        return self.level >= self.burst

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


REQUESTS_NO_BOUND: Final = sys.maxsize


class Usage:
    """The requests that one sender has under way, at most ``requests_max``, and its rate.

    A request takes a place when it is admitted, and gives it back while its body is on its way: what a client sends one
    byte a second keeps out none of its tenant's requests that are there.
    """

    __slots__ = ("bucket", "requests", "requests_max")

    def __init__(self, bucket: OperationRate | None, requests_max: int = REQUESTS_NO_BOUND) -> None:
        self.requests = 0
        self.requests_max = requests_max
        self.bucket = bucket

    def no_place(self) -> OncegateError:
        """Return the refusal of a request for which no place is left."""
        detail = f"{self.requests_max} requests of this tenant are under way"
        return OncegateError(Code.OVERLOADED, detail, retry_after_ms=100)

    @contextlib.contextmanager
    def receiving(self) -> Iterator[None]:
        """Give the place of a counted request back while its body arrives; raises OVERLOADED if none is left then."""
        self.requests -= 1
        try:
            yield
        finally:
            self.requests += 1  # its end takes it off again, also if it is refused now
        if self.requests > self.requests_max:
            raise self.no_place()

    def charge(self, operations: int) -> None:
        """Count a decoded request's operations against the rate; call it before they are proposed.

        Never refuses: the request was admitted, and the sender's next request waits until the debt is paid.
        """
        if self.bucket is not None:
            self.bucket.take(operations - 1)

    def describe(self, headers: MutableMapping[str, str]) -> None:
        """Tell the sender its rate in the headers of an answer, if it has one."""
        if self.bucket is not None:
            headers["RateLimit-Policy"] = self.bucket.policy
            headers["RateLimit"] = self.bucket.state


class Asked(NamedTuple):
    """What the desk looks at of a request, before any byte of its body is read."""

    method: str
    target: str
    """Path and query as they were sent."""
    route: Route | None
    """What serves it; None: nothing."""
    names: Mapping[str, str]
    """The parts of the path that the route names."""
    query: Sequence[str]
    """Names of the query parameters, one for each value."""
    header: Callable[[str], str | None]
    """Returns the first value of a header."""
    media: str
    """Content type of the body without parameters."""
    has_body: bool


class Desk:
    """Decides which requests to admit.

    Args:
        routes: all that are served.
        tokens: None: everybody is :data:`oncegate.gateway.http.identity.ANONYMOUS` and may do everything.
        requests_max: requests that one tenant may have under way at this node.
        operations_per_s: of one tenant at this node, unless its token says otherwise; 0: no bound.
        body_bytes_max: bound of any body; a route may have a lower one.
        hosts: names that the node answers to.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        routes: Iterable[Route],
        *,
        tokens: Tokens | None = None,
        requests_max: int,
        operations_per_s: int,
        body_bytes_max: int,
        hosts: AllowedHosts,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._routes: dict[object, Route] = {route.handler: route for route in routes}
        self._queries = {
            route.handler: {p.name: p.schema.get("type") == "array" for p in route.parameters if p.where == "query"}
            for route in self._routes.values()
        }
        self._known = tokens
        self._requests_max = requests_max
        self._operations_per_s = operations_per_s
        self._body_bytes_max = body_bytes_max
        self._hosts = hosts
        self._clock = clock
        self._tenants: dict[str, Usage] = {}
        self._tokens: dict[tuple[str, str], Usage] = {}

    def check_site(self, asked: Asked) -> None:
        """Refuse what a page of another site makes a browser send; raises FORBIDDEN."""
        host = asked.header("Host") or ""
        if host and not self._hosts.serves(host):  # a browser always sends one
            raise OncegateError(Code.FORBIDDEN, "this node does not answer to that Host: see the setting allowed_hosts")
        origin = asked.header("Origin")
        if origin is not None and asked.method not in _SAFE and not is_own_origin(origin, host):
            raise OncegateError(Code.FORBIDDEN, "a page of another origin may not change anything here")

    def identify(self, asked: Asked) -> Identity | None:
        """Return who sends a request that its route serves for this sender; None if no route serves it.

        Raises:
            OncegateError: BAD_REQUEST, UNAUTHENTICATED or FORBIDDEN.
        """
        if "%" in asked.target or not asked.target.isascii():
            check_target(asked.target)
        route = asked.route
        if route is None:
            return None
        if self._known is None or route.scope is None:
            return ANONYMOUS
        identity = self._known.identify(asked.header("Authorization"))
        if route.scope not in identity.scopes:
            raise OncegateError(Code.FORBIDDEN, f"the token lacks the scope {route.scope}")
        if identity.within:
            check_route(identity, route, route.scope, asked.names)
        return identity

    def admit(self, asked: Asked, route: Route, identity: Identity) -> Usage:
        """Admit a request of an identified sender, and count it as under way: its ``requests`` go down at its end.

        Raises:
            OncegateError: BAD_REQUEST, UNSUPPORTED_MEDIA_TYPE, OVERLOADED or QUOTA; then nothing was counted.
        """
        self.check_form(asked, route)
        return self.count(route, identity)

    def check_form(self, asked: Asked, route: Route) -> None:
        """Refuse parameters, a body or a media type that a route does not take.

        Raises:
            OncegateError: BAD_REQUEST or UNSUPPORTED_MEDIA_TYPE.
        """
        if asked.query:
            check_query(asked.query, self._queries[route.handler])
        if route.body is None and asked.has_body:
            raise OncegateError(Code.BAD_REQUEST, "this path takes no body")
        if route.method != "GET":
            _check_media(asked, route)

    def count(self, route: Route, identity: Identity) -> Usage:
        """Count a request whose form was checked as under way, as :meth:`admit` does.

        Raises:
            OncegateError: OVERLOADED or QUOTA; then nothing was counted.
        """
        if route.scope is None and not route.needs_state:
            usage = Usage(None)  # a process that is busy lives, and whoever asks proves nothing
        else:
            usage = self._usage(identity)
            if usage.requests >= self._requests_max:
                raise usage.no_place()
            if usage.bucket is not None and route.scope is not None:
                wait_ms = usage.bucket.wait_ms(self._clock())
                if wait_ms:
                    detail = f"more than {usage.bucket.per_s} operations a second"
                    raise OncegateError(Code.QUOTA, detail, retry_after_ms=wait_ms)
                usage.bucket.take(1)
        usage.requests += 1
        return usage

    def body_bytes_max(self, route: Route) -> int:
        """Return the bound of the body of a route's requests."""
        most = self._body_bytes_max
        return most if route.body_bytes_max is None else min(most, route.body_bytes_max)

    def route_of(self, handler: object) -> Route | None:
        """Return the route that a handler serves, None for one of aiohttp's own."""
        return self._routes.get(handler)

    def usage_of(self, identity: Identity) -> Usage | None:
        """Return the usage of a sender, None if it has never sent a request."""
        if identity.operations_per_s is not None:
            return self._tokens.get((identity.name, identity.tenant))
        return self._tenants.get(identity.tenant)

    def _usage(self, identity: Identity) -> Usage:
        usage, per_s = self.usage_of(identity), identity.operations_per_s
        if per_s is None:
            granted = None if self._known is None else self._known.rate_of(identity.tenant)
            per_s = self._operations_per_s if granted is None else granted
        if usage is None:
            # One for each tenant and token: requests of strangers add none. Signed tokens may name any number.
            if len(self._tenants) >= TENANTS_MAX:
                self._forget_an_idle_tenant()
            usage = Usage(self._bucket(per_s), self._requests_max)
            if identity.operations_per_s is None:
                self._tenants[identity.tenant] = usage
            else:
                self._tokens[identity.name, identity.tenant] = usage
        elif per_s != (0 if usage.bucket is None else usage.bucket.per_s):
            usage.bucket = self._bucket(per_s)  # the tokens were reloaded
        return usage

    def _forget_an_idle_tenant(self) -> None:
        now_s = self._clock()
        for tenant, usage in self._tenants.items():
            if not usage.requests and (usage.bucket is None or usage.bucket.is_full(now_s)):
                del self._tenants[tenant]
                return
        raise OncegateError(Code.OVERLOADED, f"{TENANTS_MAX} tenants are at work", retry_after_ms=1000)

    def _bucket(self, per_s: int) -> OperationRate | None:
        return OperationRate(per_s, per_s) if per_s else None


def check_target(target: str) -> None:
    """Refuse a path and query that are not percent-encoded UTF-8 (RFC 3986 §2.1): they would name something else.

    Raises:
        OncegateError: BAD_REQUEST.
    """
    try:
        unquote_to_bytes(target).decode()
    except UnicodeError:
        raise OncegateError(Code.BAD_REQUEST, "the path or the query is not UTF-8") from None
    if _NO_ESCAPE.search(target):
        raise OncegateError(Code.BAD_REQUEST, "the path or the query has a % that begins no escape: write %25")


def check_query(given: Sequence[str], known: Mapping[str, bool]) -> None:
    """Refuse query parameters that a route does not take, or that are given more often than it takes them.

    Args:
        given: the names, one for each value.
        known: those that the route takes, and whether it takes several values.

    Raises:
        OncegateError: BAD_REQUEST.
    """
    seen: set[str] = set()
    for name in given:
        if name not in known:
            raise OncegateError(Code.BAD_REQUEST, f"unknown query parameter {short(name)}: {meant(name, known)}")
        if name in seen and not known[name]:
            raise OncegateError(Code.BAD_REQUEST, f"query parameter {name} is given more than once")
        seen.add(name)


def check_route(identity: Identity, route: Route, scope: Scope, names: Mapping[str, str]) -> None:
    """Refuse a request that is about another table than the token's; ``names``: the parts of its path.

    A route that names none is refused to such a token unless it stands in one of the lists above: so a new route is
    closed to it until somebody has thought about it.

    Raises:
        OncegateError: FORBIDDEN.
    """
    if scope not in identity.within or route.path in CHECKED_BY_ITS_HANDLER:
        return
    given = [names[part] for part in IN_THE_PATH if part in names]
    if given:
        _check(identity, scope, given)
    elif scope is Scope.ADMIN or not route.path.startswith(OF_THE_TENANT):
        raise OncegateError(Code.FORBIDDEN, f"the token has the scope {scope} for some tables only")


def check_tables(identity: Identity, scope: Scope, names: Iterable[str]) -> None:
    """Refuse a request that names another table than its sender's token is for; raises FORBIDDEN."""
    if scope in identity.within:
        _check(identity, scope, names)


def _check(identity: Identity, scope: Scope, names: Iterable[str]) -> None:
    beyond = next((name for name in names if not identity.may(scope, name)), None)
    if beyond is not None:
        raise OncegateError(Code.FORBIDDEN, f"the token has the scope {scope} not for {beyond}")


def _check_media(asked: Asked, route: Route) -> None:
    # A compressed body could make a small request large, and no client needs one.
    coding = asked.header("Content-Encoding")
    if coding is not None and coding.strip().lower() != "identity":
        raise OncegateError(Code.UNSUPPORTED_MEDIA_TYPE, "send the body without Content-Encoding")
    kind = asked.media
    if kind in route.media or ANYTHING in route.media:
        return
    if kind not in (UNNAMED, FORM) and (route.media or kind not in _NAMED):
        taken = ", ".join(sorted(route.media)) or "no body"
        raise OncegateError(Code.UNSUPPORTED_MEDIA_TYPE, f"this path takes: {taken}")
