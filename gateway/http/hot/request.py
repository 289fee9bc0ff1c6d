"""Hot requests: which they are, how they are admitted, and from the body to the bytes of the answer without a task.

Owns: how a hot request finds its route, and what it needs to be admitted: hot are the routes that declare an ordering,
where path and headers say nothing unusual. The paths are those of the routes; a path with an escape or an unusual sign
is left to aiohttp, which knows how to read it, and so is a query with more than plain words, or of a route that takes
none. Owns too the steps of an ordering driven by callbacks, and that whatever happens ends with one answer and with
nothing counted any more. The rules are those of :mod:`oncegate.gateway.http.exchange`; aiohttp's way through the same
steps is :func:`oncegate.gateway.http.negotiation.ordered`.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from http import HTTPStatus
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from oncegate.gateway import wire
from oncegate.gateway.answers import Answer
from oncegate.gateway.http import exchange as exchanges
from oncegate.gateway.http.admission.bodies import BodyBudget
from oncegate.gateway.http.admission.desk import Asked, Desk
from oncegate.gateway.http.admission.parsing import ParsingThread
from oncegate.gateway.http.exchange import (
    Exchange,
    MakeOrdering,
    Ordering,
    Reply,
    UsualAnswers,
    traceparent,
    wants_msgpack,
)
from oncegate.gateway.http.hot.framing import Head
from oncegate.gateway.http.request_bodies import INLINE_BYTES_MAX
from oncegate.gateway.http.routing import PATH_PART, UNNAMED, Route
from oncegate.gateway.node.node import Node
from oncegate.gateway.observability import logs
from oncegate.gateway.observability.access import AccessLog
from oncegate.gateway.observability.request_times import RequestTimes

if TYPE_CHECKING:
    from oncegate.gateway.observability.spans import Spans

_SIGNS: Final = r"[A-Za-z0-9_~:-][A-Za-z0-9_.~:-]*"
"""Letters that no escape is needed for and that no reader of paths takes for something else."""
_QUERY: Final = re.compile(r"[a-z_]+=\w+(?:&[a-z_]+=\w+)*", re.ASCII)
_MEDIA: Final = re.compile(r"([a-z0-9-]+/[a-z0-9.+-]+)(?:; ?charset=utf-8)?")
_NOTHING_TOLD: Final = b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n"
"""When the refusal itself cannot be made: what became of the request, it does not say."""
log = logging.getLogger(__name__)


class Found(NamedTuple):
    """The route of a hot request, what its path names, and what begins it."""

    route: Route
    names: Mapping[str, str]
    make: MakeOrdering
    body_bytes_max: int
    query: Mapping[str, str] = {}


class Form(NamedTuple):
    """What a head says of how its request is to be read, once the desk has found nothing wrong with that."""

    asked: Asked
    media: str
    packed: bool


class Fields:
    """The headers of a hot request, each of which stands once."""

    __slots__ = ("_given",)

    def __init__(self, given: dict[str, str]) -> None:
        self._given = given

    def __call__(self, name: str, /) -> list[str]:
        """Return the value of a header, none if it is not there."""
        value = self._given.get(name.lower())
        return [] if value is None else [value]

    def have_none(self, names: frozenset[str], /) -> bool:
        """Tell whether none of these is there; they are written in small letters."""
        return names.isdisjoint(self._given)


class HotRoutes:
    """Finds and admits hot requests.

    Args:
        routes: all that are served; those with an ordering are hot.
        desk: the same that admits what aiohttp serves.
        node: which serves them.
        running: idempotency keys in use, the same set as aiohttp's handlers use.
    """

    def __init__(self, routes: Iterable[Route], desk: Desk, node: Node, running: set[str]) -> None:
        self._desk = desk
        self.node = node
        self._running = running
        self._usual = UsualAnswers(node)
        self._exact: dict[tuple[str, str], Found] = {}
        self._patterns: dict[str, list[tuple[re.Pattern[str], Found]]] = {}
        for route in routes:
            if route.ordering is None:
                continue
            pattern = PATH_PART.sub(lambda part: f"(?P<{part[1]}>{_SIGNS})", route.path)
            found = Found(route, {}, route.ordering, desk.body_bytes_max(route))
            if pattern == route.path:
                self._exact[route.method, route.path] = found
            else:
                self._patterns.setdefault(route.method, []).append((re.compile(pattern), found))

    def find(self, head: Head) -> Found | None:
        """Return what serves a request, None if it is not hot."""
        found = self._exact.get((head.method, head.target))
        if found is None:
            path, asks, text = head.target.partition("?")
            for pattern, (route, _, make, most, _) in self._patterns.get(head.method, ()):
                named = pattern.fullmatch(path)
                if named is None:
                    continue
                if not asks:
                    found = Found(route, named.groupdict(), make, most)
                elif route.takes_query and (query := _parameters(text)) is not None:
                    found = Found(route, named.groupdict(), make, most, query)
                break
        if found is None or head.length > found.body_bytes_max:
            return None
        return found

    def form(self, head: Head, found: Found, known: Form | None = None) -> Form | None:
        """Return how a request is to be read; None if its content type is not for this reader.

        Args:
            head: the request's.
            found: what serves it.
            known: that of a head which differs from this one in the values alone that a
                :class:`oncegate.gateway.http.hot.framing.KnownHead` lets vary; what follows from the others is not
                looked at again.

        Raises:
            OncegateError: the desk refuses it.
        """
        if known is not None and known.asked.route is found.route and not known.asked.query and not found.query:
            asked, has_body = known.asked, head.length > 0
            if asked.has_body == has_body:
                if asked.target == head.target:
                    return known
                route = found.route
                asked = Asked(head.method, head.target, route, found.names, (), asked.header, known.media, has_body)
                return Form(asked, known.media, known.packed)
        headers = head.headers
        media = UNNAMED
        if (kind := headers.get("content-type")) is not None:
            named = _MEDIA.fullmatch(kind)
            if named is None:
                return None
            media = named[1]

        def header(name: str) -> str | None:
            return headers.get(name.lower())

        asks = tuple(found.query)
        asked = Asked(head.method, head.target, found.route, found.names, asks, header, media, head.length > 0)
        self._desk.check_site(asked)
        self._desk.check_form(asked, found.route)
        return Form(asked, media, wants_msgpack(headers.get("accept"), media))

    def admit(self, head: Head, found: Found, form: Form) -> Exchange | None:
        """Admit a request of this form; None if no route serves it.

        Raises:
            OncegateError: the desk refuses it, and has counted nothing: aiohttp's side may ask again, and tell.
        """
        identity = self._desk.identify(form.asked)
        if identity is None:
            return None
        usage = self._desk.count(found.route, identity)
        fields = Fields(head.headers)
        return Exchange(
            self.node,
            identity,
            usage,
            fields,
            form.media,
            form.packed,
            self._running,
            found.query,
            usual=self._usual,
        )


def _parameters(text: str) -> dict[str, str] | None:
    """Read a query whose parameters are plain words and stand once each; None for any other."""
    if not _QUERY.fullmatch(text):
        return None
    pairs = text.split("&")
    query = dict([pair.split("=") for pair in pairs])
    return query if len(query) == len(pairs) else None


class Aside:
    """What all requests share: memory and a thread for what takes long, the tasks that wait for it, and who counts."""

    def __init__(
        self,
        bodies: BodyBudget,
        parsing: ParsingThread,
        times: RequestTimes,
        access: AccessLog | None = None,
        spans: Spans | None = None,
    ) -> None:
        self.bodies = bodies
        self.times = times
        self.access = access
        self.spans = spans
        self._parsing = parsing
        self._tasks: set[asyncio.Task[Any]] = set()

    def run(self, tenant: str, work: Callable[[], Any]) -> asyncio.Task[Any]:
        """Run ``work`` beside the event loop, in the tenant's turn."""
        task = asyncio.get_running_loop().create_task(self._parsing.run(tenant, work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


class HotRequest:
    """An admitted request under way, and itself the waiter of what it orders.

    ``tell`` is called once, with the bytes of its answer; what fails behind that is logged, and told to nobody.
    """

    __slots__ = ("_aside", "_began_s", "_ended", "_exchange", "_held", "_ordering", "_route", "_tell")

    def __init__(self, exchange: Exchange, aside: Aside, tell: Callable[[bytes], None]) -> None:
        self._exchange = exchange
        self._aside = aside
        self._tell = tell
        self._held = 0
        self._ended = False
        self._ordering: Ordering

    def begin(self, found: Found, body: bytes) -> None:
        """Take the first steps with the whole body: as far as the log, if it is small."""
        exchange = self._exchange
        self._began_s, self._route = monotonic(), found.route
        try:
            if found.route.needs_state:
                exchange.node.check_sound()
            ordering = self._ordering = found.make(exchange, found.names)
            if len(body) <= INLINE_BYTES_MAX:
                ordering.read(body)
                ordering.order(self)
                return
            tenant = exchange.identity.tenant
            self._aside.bodies.hold(tenant, len(body))
            self._held = len(body)
            if ordering.read_at_once(body):
                ordering.order(self)
                return
            self._then(self._aside.run(tenant, partial(ordering.read, body)), lambda _: ordering.order(self))
        except Exception as fault:  # noqa: BLE001 - told to who asked; a bug is logged
            self._refuse(fault)

    def _then(self, future: asyncio.Future[Any], step: Callable[[Any], None]) -> None:
        future.add_done_callback(partial(self._go_on, step))

    def _go_on(self, step: Callable[[Any], None], done: asyncio.Future[Any]) -> None:
        try:
            step(done.result())
        except asyncio.CancelledError:
            self._end(b"")  # the node stops
        except Exception as fault:  # noqa: BLE001 - told to who asked; a bug is logged
            self._refuse(fault)

    def done(self) -> bool:
        """Tell whether it has ended: what is ordered goes on when its client has gone, and is counted until then."""
        return self._ended

    def set_result(self, answer: Answer) -> None:
        """Take the answer of the node."""
        ordering, exchange = self._ordering, self._exchange
        try:
            if ordering.many_values and exchanges.is_long(answer, packed=exchange.packed):
                encode = partial(exchanges.encode, answer, packed=exchange.packed)
                encoding = self._aside.run(exchange.identity.tenant, encode)
                self._then(encoding, lambda encoded: self._reply(answer, ordering.reply(answer, encoded)))
            else:
                self._reply(answer, ordering.reply(answer, None))
        except Exception as fault:  # noqa: BLE001 - told to who asked; a bug is logged
            self._refuse(fault)

    def set_exception(self, fault: BaseException) -> None:
        """Take the refusal of the node."""
        if isinstance(fault, Exception):
            self._refuse(fault)
        else:
            self._end(b"")  # the node stops

    def _refuse(self, fault: Exception) -> None:
        if self._ended:
            log.error("a request was answered and could not be counted", exc_info=fault)
            return
        try:
            exchange = self._exchange
            self._tell_reply(
                exchanges.refused(exchange.node, exchanges.refusal_of(fault), exchange.age_ms, exchange.commit)
            )
        except Exception:  # whoever refuses has others to tell
            log.exception("a refusal could not be told, or not be counted")
            self._end(_NOTHING_TOLD)

    def _reply(self, answer: Answer, reply: Reply | bytes) -> None:
        if type(reply) is bytes:
            self._end(reply)
            self._count(HTTPStatus.OK.value, answer.commit)
        else:
            assert isinstance(reply, Reply)
            self._tell_reply(reply)

    def _tell_reply(self, reply: Reply) -> None:
        exchange = self._exchange
        exchanges.complete(reply.headers, exchange.usage, exchange.node)
        self._end(exchanges.written(reply))
        commit = reply.headers.get(wire.H_COMMIT, "")
        self._count(reply.status, int(commit) if commit else None)

    def _count(self, status: int, commit: int | None) -> None:
        aside, route = self._aside, self._route
        lasted_s = monotonic() - self._began_s
        aside.times.observe(route.handler, status, lasted_s)
        if aside.access is not None:
            self._note(aside.access, status, lasted_s)
        if aside.spans is not None:
            trace = traceparent(self._exchange.headers)
            shown = "" if commit is None else str(commit)
            aside.spans.request(trace, (route.method, route.path), status, self._began_s, shown)

    def _note(self, access: AccessLog, status: int, lasted_s: float) -> None:
        identity, route = self._exchange.identity, self._route
        request = logs.request_id(lambda name: next(iter(self._exchange.headers(name)), None))
        access.add((route.method, route.path), status, lasted_s, who=(identity.name, identity.tenant), request=request)

    def _end(self, answer: bytes) -> None:
        if self._ended:
            return
        self._ended = True
        exchange = self._exchange
        exchange.usage.requests -= 1
        if self._held:
            self._aside.bodies.release(exchange.identity.tenant, self._held)
        self._tell(answer)
