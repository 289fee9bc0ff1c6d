"""One exchange as values: what a handler needs of an admitted request, and the reply it makes.

Owns: the head of every answer (status, ``Date``, commit number, memory, leader, rate), the form of
``application/problem+json``, and the shape of a request that not aiohttp alone serves (:class:`Ordering`). Knows no
connection: :mod:`oncegate.gateway.http.negotiation` drives an ordering for aiohttp,
:mod:`oncegate.gateway.http.hot.request` on the hot path.

An answer leaves as a :class:`Reply`, whose head aiohttp writes, or :func:`written` as aiohttp would. The usual one of
the hot path, a 200 of a sender without a rate, is bytes at once (:class:`UsualAnswers`), to the byte those that the
other way makes of it (tests/gateway/test_applied_answers.py).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import msgspec
from aiohttp import hdrs
from aiohttp.helpers import ETAG_ANY, LIST_QUOTED_ETAG_RE, rfc822_formatted_time
from aiohttp.http import SERVER_SOFTWARE

from oncegate.consensus.errors import StorageError
from oncegate.gateway import wire
from oncegate.gateway.answer_values import BUILT_BYTES_MAX, JSON, MSGPACK, bytes_to_build
from oncegate.gateway.answers import Answer
from oncegate.gateway.http.identity import Identity
from oncegate.gateway.http.request_bodies import number
from oncegate.gateway.machine.machine import Machine
from oncegate.gateway.node.attempts import Waiter
from oncegate.gateway.node.node import Node
from oncegate.gateway.node.reads import Reads
from oncegate.gateway.node.refusals import translated
from oncegate.gateway.observability import logs
from oncegate.rifl.errors import Code, OncegateError

if TYPE_CHECKING:
    from oncegate.gateway.http.admission.desk import Usage

RETRY_AFTER_MS: Final = 1_000
"""Suggested with a 429 or 503 that suggests nothing by itself."""
_REASONS: Final = {status.value: status.phrase for status in HTTPStatus}
_HEAD: Final = f"HTTP/1.1 200 OK\r\n{wire.H_COMMIT}: %d\r\n{wire.H_TIME_MS}: %d\r\n"
_MEMORY: Final = f"{wire.H_MEMORY_MS}: %d\r\n".encode()
_REST: Final = "%b%bContent-Type: {media}\r\n%bContent-Length: %d\r\nDate: {date}\r\nServer: {server}\r\n\r\n%b"
_TRACE: Final = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}", re.ASCII)
log = logging.getLogger(__name__)


class Headers(Protocol):
    """The headers of a request."""

    def __call__(self, name: str, /) -> list[str]:
        """Return all values of a header, none if it is not there."""

    def have_none(self, names: frozenset[str], /) -> bool:
        """Tell whether none of these is there; they are written in small letters."""


class Reply(NamedTuple):
    """A whole answer; ``headers`` in the order in which they leave, ``Content-Type`` among them."""

    status: int
    headers: dict[str, str]
    body: bytes


@dataclass(slots=True)
class Exchange:
    """An admitted request, but for its body.

    Attributes:
        node: which serves it.
        identity: who sends it.
        usage: what its sender uses; the request is one of those under way.
        headers: returns all values of a header.
        media: content type of the body.
        packed: whether to answer in msgpack.
        running: idempotency keys whose first request this node has not answered yet.
        query: its parameters, the first of each name.
        age_ms: set for a ``stale`` read: its answer, a problem too, says how old it may be.
        commit: set by a read: its refusal, which may come later, reflects the state of this commit number.
        usual: writes its answer if that is a usual one; None: aiohttp does.
    """

    node: Node
    identity: Identity
    usage: Usage
    headers: Headers
    media: str
    packed: bool
    running: set[str]
    query: Mapping[str, str] = field(default_factory=dict)
    age_ms: int | None = None
    commit: int | None = None
    usual: UsualAnswers | None = None

    def reply(
        self,
        answer: Answer,
        *,
        etag: str | None = None,
        more: Mapping[str, str] = {},
        encoded: bytes | None = None,
    ) -> Reply | bytes:
        """Return the reply that carries an answer, or its bytes on the wire where it is a usual one.

        Args:
            answer: what is told.
            etag: of the row.
            more: headers behind ``Content-Type``.
            encoded: the answer's body, if that is made already.
        """
        body = encode(answer, packed=self.packed) if encoded is None else encoded
        if self.usual is not None and self.age_ms is None and self.usage.bucket is None:
            return self.usual.written(answer, body, packed=self.packed, etag=etag, more=more)
        reply = answered(self.node, answer, packed=self.packed, etag=etag, encoded=body, age_ms=self.age_ms)
        reply.headers.update(more)
        return reply


class UsualAnswers:
    """Writes the usual answers of one node from a template that is made anew when the date or the leader changes."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._date = ""
        self._leader: str | None = None
        self._packed = self._text = b""

    def written(
        self, answer: Answer, body: bytes, *, packed: bool, etag: str | None = None, more: Mapping[str, str] = {}
    ) -> bytes:
        """Return an answer as it stands on the wire; arguments as of :meth:`Exchange.reply`."""
        node = self._node
        date, leader = rfc822_formatted_time(), node.leader_http
        if date != self._date or leader != self._leader:
            self._renew(date, leader)
        memory_ms = answer.memory_ms
        memory = b"" if memory_ms is None else _MEMORY % memory_ms
        tag = b"" if etag is None else f'ETag: "{etag}"\r\n'.encode()
        rest = "".join([f"{name}: {value}\r\n" for name, value in more.items()]).encode() if more else b""
        template = self._packed if packed else self._text
        return template % (answer.commit, node.machine.time_ms, memory, tag, rest, len(body), body)

    def _renew(self, date: str, leader: str | None) -> None:
        self._date, self._leader = date, leader
        shown = "" if leader is None else f"{wire.H_LEADER}: {leader}\r\n".replace("%", "%%")
        server = SERVER_SOFTWARE.replace("%", "%%")
        self._packed, self._text = (
            (_HEAD + shown + _REST.format(media=media, date=date, server=server)).encode()
            for media in (wire.MSGPACK, wire.JSON)
        )


class Ordering(Protocol):
    """A request whose body becomes one command, or a read of a row. Its steps are called in this order, each once.

    ``many_values``: its answers may carry many values of rows, so that their bodies are encoded off the loop.
    """

    many_values: bool

    def read(self, sent: bytes) -> None:
        """Translate the body; off the loop if that is long. Raises OncegateError; then nothing is proposed."""

    def read_at_once(self, sent: bytes) -> bool:
        """Translate a long body on the loop, if that takes no longer than a short one may; False: nothing was done."""

    def order(self, waiter: Waiter) -> None:
        """Check and charge what was read, and order it, or read; ``waiter`` is told the end, later.

        Raises:
            OncegateError: nothing was proposed, and the waiter is told nothing.
        """

    def reply(self, answer: Answer, encoded: bytes | None) -> Reply | bytes:
        """Return the reply as :meth:`Exchange.reply`; ``encoded``: the answer's body, if it was made off the loop."""


MakeOrdering = Callable[[Exchange, Mapping[str, str]], Ordering]
"""Begins an ordering, of an exchange and the parts of its path; raises OncegateError for a part that is no name."""


def wants_msgpack(accept: str | None, media: str) -> bool:
    """Tell whether to answer in msgpack: as ``Accept`` says, else if the request was msgpack."""
    if accept is None or accept == "*/*":
        return media == wire.MSGPACK
    return wire.MSGPACK in accept


def encode(answer: Answer, *, packed: bool) -> bytes:
    """Return an answer's body in the form that its caller reads."""
    return MSGPACK.encode(answer.body) if packed else JSON.encode(answer.body)


def is_long(answer: Answer, *, packed: bool) -> bool:
    """Tell whether an answer carries so many values that its body has to be encoded off the loop."""
    return bytes_to_build(answer.body, packed=packed) > BUILT_BYTES_MAX


def answered(
    node: Node,
    answer: Answer,
    *,
    packed: bool,
    status: int = 200,
    etag: str | None = None,
    encoded: bytes | None = None,
    age_ms: int | None = None,
) -> Reply:
    """Return the reply that carries a finished answer; ``age_ms``: how old the state may be that it was read from."""
    headers = {wire.H_COMMIT: str(answer.commit), **standing(node, age_ms)}
    if answer.memory_ms is not None:
        headers[wire.H_MEMORY_MS] = str(answer.memory_ms)
    if etag is not None:
        headers["ETag"] = f'"{etag}"'
    headers["Content-Type"] = wire.MSGPACK if packed else wire.JSON
    return Reply(status, headers, encode(answer, packed=packed) if encoded is None else encoded)


def complete(headers: MutableMapping[str, str], usage: Usage, node: Node) -> None:
    """Add what every answer of an admitted request carries: a commit number, and its sender's rate."""
    if wire.H_COMMIT not in headers:
        headers[wire.H_COMMIT] = str(node.machine.commit)
    usage.describe(headers)


def written(reply: Reply) -> bytes:
    """Return a reply as it stands on the wire: what aiohttp would write, to the byte."""
    head = "".join([f"{name}: {value}\r\n" for name, value in reply.headers.items()])
    if reply.status != HTTPStatus.NOT_MODIFIED:  # which has no body, and does not say how long it is
        head += f"Content-Length: {len(reply.body)}\r\n"
    return (
        f"HTTP/1.1 {reply.status} {_REASONS[reply.status]}\r\n{head}"
        f"Date: {rfc822_formatted_time()}\r\nServer: {SERVER_SOFTWARE}\r\n\r\n"
    ).encode() + reply.body


def standing(node: Node, age_ms: int | None = None) -> dict[str, str]:
    """Return the headers about a node: cluster time, who leads, and how old the state may be that was read."""
    headers = {wire.H_TIME_MS: str(node.machine.time_ms)}
    leader = node.leader_http
    if leader is not None:
        headers[wire.H_LEADER] = leader
    if age_ms is not None:
        headers[wire.H_AGE_MS] = str(age_ms)
    return headers


def refusal_of(fault: Exception) -> OncegateError:
    """Return what the caller of a handler is told of its failure; a bug is logged."""
    match fault:
        case OncegateError():
            return fault
        case StorageError():
            # The node fences itself; what was under way may have been applied by others.
            return translated(fault)
        case _:
            log.error("a handler failed", exc_info=fault)
            request = logs.REQUEST.get()
            return OncegateError(Code.INTERNAL, f"see the node's log{request and f', request {request}'}")


def refused(
    node: Node, refusal: OncegateError, age_ms: int | None = None, commit: int | None = None, **members: Any
) -> Reply:
    """Return the ``application/problem+json`` reply of a refusal, with extension members (RFC 9457 §3.2).

    ``age_ms``, ``commit``: of the state that it reflects; by default that of now.
    """
    reply = bare_refusal(refusal, **members)
    reply.headers[wire.H_COMMIT] = str(node.machine.commit if commit is None else commit)
    reply.headers.update(standing(node, age_ms))
    return reply


def bare_refusal(refusal: OncegateError, **members: Any) -> Reply:
    """Return the reply of a refusal that belongs to no request."""
    headers = {}
    retry_after_ms = refusal.retry_after_ms
    if retry_after_ms is None and refusal.status in (429, 503):
        retry_after_ms = RETRY_AFTER_MS
    if retry_after_ms is not None:
        headers["Retry-After"] = str(-(-retry_after_ms // 1000))
    shown = wire.Problem(
        type=f"urn:oncegate:error:{refusal.code.value}",
        title=refusal.title,
        status=refusal.status,
        code=refusal.code.value,
        outcome=refusal.outcome.value,
        retryable=refusal.retryable,
        detail=refusal.detail,
        retry_after_ms=retry_after_ms,
    )
    headers["Content-Type"] = wire.PROBLEM
    text = JSON.encode({**msgspec.to_builtins(shown), **members} if members else shown)
    return Reply(refusal.status, headers, text)


def traceparent(headers: Headers) -> str:
    """Return the trace context of a request in version 00's form (W3C Trace Context §3.2), empty if there is none.

    A malformed or repeated trace context is dropped, as that specification asks; the request is not refused.
    """
    values = headers(wire.H_TRACEPARENT)
    if len(values) != 1 or not _TRACE.fullmatch(values[0]):
        return ""
    return values[0]


def is_current(headers: Headers, etag: str) -> bool:
    """Tell whether ``If-None-Match`` names this ETag, so that the answer is 304 (RFC 9110 §13.1.2)."""
    held = headers(hdrs.IF_NONE_MATCH)
    if not held or held[0] == ETAG_ANY:
        return bool(held)
    for named in LIST_QUOTED_ETAG_RE.finditer(held[0]):
        if named[4]:  # from here on it is no list of ETags
            return False
        if named[3] in (etag, ETAG_ANY):
            return True
    return False


async def reached(reads: Reads, query: Mapping[str, str]) -> int | None:
    """Wait until the local state is as new as ``?consistency=`` and ``?min_commit=`` ask.

    Returns how old the state may be that a ``stale`` read finds, None for another read. Raises as
    :meth:`oncegate.gateway.node.reads.Reads.reach`.
    """
    consistency = query.get("consistency", "linearizable")
    await reads.reach(consistency, number(query.get("min_commit", "0"), "min_commit", least=0))
    return reads.age_ms() if consistency == "stale" else None


def check_owner(tenant: str, machine: Machine, client_id: int) -> None:
    """Refuse a session of another tenant, as far as this node knows it (SEMANTICS, case 3).

    This saves a log entry and guards reads of the local state. A node that is behind may not know the session yet; for
    everything that goes through the log, the apply rule decides.

    Raises:
        OncegateError: FORBIDDEN; it says no more about the session than that it belongs to another tenant.
    """
    session = machine.sessions.get(client_id)
    if session is not None and session.tenant != tenant:
        raise OncegateError(Code.FORBIDDEN, "the session belongs to another tenant")
