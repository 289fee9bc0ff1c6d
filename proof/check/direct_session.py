"""Requests whose attempts the workload decides: which id, at which node, how often, with which acknowledgement.

Owns: connections of a run, what the end of an attempt says (answered, surely not applied, or in doubt), sequence
numbers, first incomplete, and the verdict of one request over all of its attempts. The SDK hides all of this; here it
is the subject. Contract: docs/API.md, *Operations*.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from random import Random
from types import TracebackType
from typing import Any, Final, Literal, NamedTuple, Self

import aiohttp
import msgspec
from yarl import URL

from oncegate.gateway.client.paths import OPERATIONS, SESSIONS, resolve_path
from oncegate.proof.check.tenants import token
from oncegate.rifl.errors import Code

ATTEMPT_S: Final = 1.0
"""An attempt without an answer is given up after it: long for a healthy node, short against a frozen one."""
OPERATION_S: Final = 3.0
"""How long a request is tried before its outcome counts as unknown."""
PAUSE_S: Final = 0.05
OVER: Final = frozenset({Code.FENCED, Code.SESSION_EXPIRED})
REFUSED_ALONE: Final = OVER | {Code.STALE}
"""Refusals that say nothing about earlier attempts of the same request; this one they deny."""
_NO_TIMERS: Final = aiohttp.ClientTimeout(total=None, connect=None, sock_connect=None, sock_read=None)


class AttemptReply(NamedTuple):
    """The end of one attempt.

    Attributes:
        status: HTTP status; 0 if there was no answer.
        body: decoded JSON, or bytes of another type.
        headers: of the answer.
        code: of the problem, or why there is no answer; empty if all is well.
        doubt: whether the request may have been applied although no answer says so.
        retryable: whether the same request may be sent again.
    """

    status: int
    body: Any
    headers: Mapping[str, str]
    code: str
    doubt: bool
    retryable: bool

    @property
    def done(self) -> bool:
        """Whether it was answered with success."""
        return 200 <= self.status < 300


def _no_reply(code: str, *, doubt: bool = True) -> AttemptReply:
    return AttemptReply(0, None, {}, code, doubt, retryable=True)


class Nodes:
    """Talks to the nodes of a cluster by their ids; use as an async context manager.

    Each call asks ``endpoints`` for the addresses by node id, since members come and go.
    """

    def __init__(self, endpoints: Callable[[], Mapping[str, str]]) -> None:
        self.endpoints = endpoints
        self._http: aiohttp.ClientSession

    async def __aenter__(self) -> Self:
        proved = token()
        self._http = aiohttp.ClientSession(
            headers={"Authorization": f"Bearer {proved}"} if proved else None,
            connector=aiohttp.TCPConnector(limit=0),
            timeout=_NO_TIMERS,
            cookie_jar=aiohttp.DummyCookieJar(),
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.close()

    @property
    def ids(self) -> list[str]:
        """Ids of the nodes, sorted: choices among them depend on the seed alone."""
        return sorted(self.endpoints())

    async def call(
        self,
        node: str,
        method: str,
        path: str,
        body: Any = None,
        *,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = ATTEMPT_S,
    ) -> AttemptReply:
        """Make one attempt at one node; never raises for what a node does.

        ``path`` is percent-encoded, with its query; ``body`` is sent as JSON unless None.
        """
        endpoint = self.endpoints().get(node)
        if endpoint is None:
            return _no_reply("no such member", doubt=False)
        content = None if body is None else msgspec.json.encode(body)
        sent = {**(headers or {}), **({} if content is None else {"Content-Type": "application/json"})}
        url = URL(endpoint + path, encoded=True)
        try:
            async with (
                asyncio.timeout(timeout_s),
                self._http.request(method, url, data=content, headers=sent, allow_redirects=False) as response,
            ):
                return _read(response, await response.read())
        except TimeoutError:
            return _no_reply("no answer in time")
        except aiohttp.ClientConnectorError:
            return _no_reply("no connection", doubt=False)
        except (aiohttp.ClientError, OSError):
            return _no_reply("connection lost")


def _read(response: aiohttp.ClientResponse, payload: bytes) -> AttemptReply:
    status, headers = response.status, response.headers
    body: Any = payload
    kind = response.content_type
    if payload and (kind == "application/json" or kind.endswith("+json")):
        try:
            body = msgspec.json.decode(payload)
        except msgspec.DecodeError:
            return AttemptReply(status, payload, headers, "malformed answer", doubt=True, retryable=True)
    if status < 300:
        return AttemptReply(status, body, headers, "", doubt=False, retryable=False)
    if not isinstance(body, dict) or "code" not in body:
        return AttemptReply(status, body, headers, f"status {status}", doubt=True, retryable=True)
    doubt = body.get("outcome") != "not_applied"
    return AttemptReply(status, body, headers, str(body["code"]), doubt=doubt, retryable=bool(body.get("retryable")))


class RequestVerdict(NamedTuple):
    """What is known of a request.

    Attributes:
        kind: ``applied``; ``refused``: a condition failed, recorded; ``failed``: it was not applied and never will be
            by any attempt so far; ``unknown``.
        result: the operation's result where it was applied or refused.
        code: why not.
        node: the one that answered last.
        retryable: whether another attempt may end otherwise.
    """

    kind: Literal["applied", "refused", "failed", "unknown"]
    result: Mapping[str, Any]
    code: str
    node: str
    retryable: bool

    @property
    def answered(self) -> bool:
        """Whether the operation has a recorded result."""
        return self.kind in ("applied", "refused")


def verdict_of(reply: AttemptReply, node: str) -> RequestVerdict:
    """Return what one attempt that carried one operation says about that attempt."""
    code, doubt, retryable = reply.code, reply.doubt, reply.retryable
    if reply.done:
        try:
            result = reply.body["results"][0]
            status = result["status"]
        except (KeyError, IndexError, TypeError):
            return RequestVerdict("unknown", {}, "malformed answer", node, retryable=True)
        if status in ("applied", "refused"):
            return RequestVerdict(status, result, str(result.get("code", "")), node, retryable=False)
        code, retryable = str(result.get("code", "rejected")), bool(result.get("retryable"))
        doubt = result.get("outcome") != "not_applied"
    return RequestVerdict("unknown" if doubt and code not in REFUSED_ALONE else "failed", {}, code, node, retryable)


class DirectSession:
    """One session, used by one worker; see :func:`open_session`.

    Attributes:
        pending: sequence numbers that are not acknowledged.
        over: whether it was fenced or has expired.
    """

    def __init__(self, nodes: Nodes, random: Random, client_id: str, epoch: int, first: int = 1) -> None:
        self.nodes, self.client_id, self.epoch = nodes, client_id, epoch
        self.pending: set[int] = set()
        self.over = False
        self._random, self._next = random, first

    def take(self) -> int:
        """Return a new sequence number, not acknowledged until :meth:`acknowledge`."""
        sequence = self._next
        self._next += 1
        self.pending.add(sequence)
        return sequence

    def acknowledge(self, sequence: int) -> None:
        """Tell the cluster with the next request that the result of this one is not needed any more."""
        self.pending.discard(sequence)

    def request(self, sequence: int) -> str:
        """Return the request id as written."""
        return f"{self.client_id}/{sequence}"

    async def attempt(self, node: str, sequence: int, operation: Mapping[str, Any]) -> RequestVerdict:
        """Send a request once to one node."""
        body = {
            "client_id": self.client_id,
            "epoch": self.epoch,
            "first_incomplete": min({*self.pending, sequence}),
            "operations": [{"sequence": sequence, **operation}],
        }
        reply = await self.nodes.call(node, "POST", OPERATIONS, body)
        verdict = verdict_of(reply, node)
        self.over = self.over or verdict.code in OVER
        return verdict

    async def perform(self, sequence: int, operation: Mapping[str, Any], *, doubt: bool = False) -> RequestVerdict:
        """Send a request to one node after another until it has a verdict or :data:`OPERATION_S` is over.

        ``operation`` is the same in every attempt; ``doubt``: whether an earlier attempt may have been applied.
        """
        ends = time.monotonic() + OPERATION_S
        while True:
            node = self._random.choice(self.nodes.ids)
            verdict = await self.attempt(node, sequence, operation)
            if verdict.answered:
                return verdict
            doubt = doubt or verdict.kind == "unknown"
            if not verdict.retryable or time.monotonic() >= ends:
                return verdict._replace(kind="unknown" if doubt else "failed")
            await asyncio.sleep(self._random.uniform(0, PAUSE_S))

    async def resolve(self, node: str, sequence: int) -> AttemptReply:
        """Ask one node once to end the doubt about a request."""
        return await self.nodes.call(node, "POST", resolve_path(self.client_id, sequence))


async def open_session(nodes: Nodes, random: Random, *, lease_ms: int, open_s: float) -> DirectSession | None:
    """Open a session, the same nonce at one node after another; None if no node answers within ``open_s``."""
    body = {"nonce": f"{random.getrandbits(128):032x}", "lease_ms": lease_ms}
    ends = time.monotonic() + open_s
    while time.monotonic() < ends:
        reply = await nodes.call(random.choice(nodes.ids), "POST", SESSIONS, body)
        if reply.done:
            return DirectSession(nodes, random, str(reply.body["client_id"]), int(reply.body["epoch"]))
        await asyncio.sleep(random.uniform(0, PAUSE_S))
    return None
