"""One exchange as values: what a handler needs of an admitted request, and the reply it makes.

Owns: the headers that every reply carries, the form of ``application/problem+json``, and the shape of a request that
not aiohttp alone serves (:class:`Ordering`). Knows no server: :mod:`oncegate.gateway.http.negotiation` drives an
ordering for aiohttp, :mod:`oncegate.gateway.http.hot.request` on the hot path.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from oncegate.gateway import wire
from oncegate.gateway.answer_values import BUILT_BYTES_MAX, JSON, MSGPACK, bytes_to_build
from oncegate.gateway.answers import Answer
from oncegate.gateway.http.admission.usage import Usage
from oncegate.gateway.http.identity import Identity
from oncegate.gateway.http.request_headers import Headers
from oncegate.gateway.node.attempts import Waiter
from oncegate.gateway.node.node import Node
from oncegate.rifl.errors import OncegateError

RETRY_AFTER_MS: Final = 1_000
"""Suggested with a 429 or 503 that suggests nothing by itself."""


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

    @property
    def tenant(self) -> str:
        """The tenant of the sender."""
        return self.identity.tenant

    def reply(self, answer: Answer, *, etag: str | None = None, encoded: bytes | None = None) -> Reply:
        """Return the reply that carries an answer; ``encoded``: its body, if that is made already."""
        return answered(self.node, answer, packed=self.packed, etag=etag, encoded=encoded, age_ms=self.age_ms)


class WriteApplied(Protocol):
    """Writes the usual answer, as :meth:`oncegate.gateway.http.hot.applied.AppliedAnswers.written` does."""

    def __call__(self, answer: Answer, /, *, packed: bool, etag: bytes = b"", more: bytes = b"") -> bytes:
        """Return its bytes on the wire."""


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

    def reply(self, answer: Answer, encoded: bytes | None) -> Reply:
        """Return the reply; ``encoded``: the answer's body, if that was made off the loop."""

    def applied(self, answer: Answer, write: WriteApplied) -> bytes | None:
        """Return what :meth:`reply` says of an answer with few values, as ``write`` writes it; None: ask for that.

        It says nothing of its sender's rate, nor of how old the state is.
        """


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


def standing(node: Node, age_ms: int | None = None) -> dict[str, str]:
    """Return the headers about a node: cluster time, who leads, and how old the state may be that was read."""
    headers = {wire.H_TIME_MS: str(node.machine.time_ms)}
    leader = node.leader_http
    if leader is not None:
        headers[wire.H_LEADER] = leader
    if age_ms is not None:
        headers[wire.H_AGE_MS] = str(age_ms)
    return headers


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
