"""One hot request from its body to the bytes of its answer, without a task of its own.

Owns: the steps of an ordering driven by callbacks, and that whatever happens ends with one answer and with nothing
counted any more. The rules are those of :mod:`oncegate.gateway.http.exchange`; aiohttp's way through the same steps is
:func:`oncegate.gateway.http.negotiation.ordered`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from oncegate.gateway import wire
from oncegate.gateway.answers import Answer
from oncegate.gateway.http import exchange as exchanges
from oncegate.gateway.http.admission.bodies import BodyBudget
from oncegate.gateway.http.admission.parsing import ParsingThread
from oncegate.gateway.http.exchange import Exchange, Ordering, Reply, traceparent
from oncegate.gateway.http.hot.routes import Found
from oncegate.gateway.http.request_bodies import INLINE_BYTES_MAX
from oncegate.gateway.observability import logs
from oncegate.gateway.observability.access import AccessLog
from oncegate.gateway.observability.request_times import RequestTimes

if TYPE_CHECKING:
    from oncegate.gateway.observability.spans import Spans

log = logging.getLogger(__name__)

_NOTHING_TOLD: Final = b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n"
"""When the refusal itself cannot be made: what became of the request, it does not say."""


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
            aside.spans.request(trace, (route.method, route.path), status, lasted_s, shown)

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
