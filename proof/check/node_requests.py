"""One HTTP exchange with one chosen node, and what it says about the operation that it carried.

Owns: connections of a run, and the reading of an attempt's end: answered, surely not applied, or in doubt. No retry
and no routing: a workload decides which node gets which attempt. The SDK, which does both by itself, is asked through
:mod:`oncegate.gateway.client`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

import aiohttp
import msgspec
from yarl import URL

from oncegate.rifl.errors import Code

ATTEMPT_S: Final = 1.0
"""An attempt without an answer is given up after it: long for a healthy node, short against a frozen one."""

_NO_TIMERS: Final = aiohttp.ClientTimeout(total=None, connect=None, sock_connect=None, sock_read=None)


class AttemptReply(NamedTuple):
    """The end of one attempt.

    Attributes:
        status: HTTP status; 0 if there was no answer.
        body: decoded JSON, or bytes of another type.
        headers: of the answer.
        code: of the problem, or why there is no answer; empty if all is well.
        doubt: whether what was asked may have been done although no answer says so.
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


class Nodes:
    """Talks to the nodes of a cluster by their ids; use as an async context manager.

    Args:
        endpoints: returns the addresses by node id; asked at each call, since members come and go.
    """

    def __init__(self, endpoints: Callable[[], Mapping[str, str]]) -> None:
        self.endpoints = endpoints
        self._http: aiohttp.ClientSession

    async def __aenter__(self) -> Self:
        self._http = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0), timeout=_NO_TIMERS, cookie_jar=aiohttp.DummyCookieJar()
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

        Args:
            node: its id.
            method: HTTP method.
            path: percent-encoded, with its query.
            body: sent as JSON unless None.
            headers: further ones.
            timeout_s: for the whole attempt.
        """
        endpoint = self.endpoints().get(node)
        if endpoint is None:
            return AttemptReply(0, None, {}, "no such member", doubt=False, retryable=True)
        content = None if body is None else msgspec.json.encode(body)
        sent = {**(headers or {}), **({} if content is None else {"Content-Type": "application/json"})}
        url = URL(endpoint + path, encoded=True)
        try:
            async with (
                asyncio.timeout(timeout_s),
                self._http.request(method, url, data=content, headers=sent, allow_redirects=False) as response,
            ):
                payload = await response.read()
        except TimeoutError:
            return AttemptReply(0, None, {}, "no answer in time", doubt=True, retryable=True)
        except aiohttp.ClientConnectorError:
            return AttemptReply(0, None, {}, "no connection", doubt=False, retryable=True)
        except (aiohttp.ClientError, OSError):
            return AttemptReply(0, None, {}, "connection lost", doubt=True, retryable=True)
        return _read(response, payload)


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


REFUSED_ALONE: Final = frozenset({Code.FENCED, Code.STALE, Code.SESSION_EXPIRED})
"""Refusals that say nothing about earlier attempts of the same request; this one they deny."""
