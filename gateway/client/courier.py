"""One call to the cluster: attempts, retries, and the move to another node when one does not serve.

Owns: the HTTP connections, what an attempt's end means, and the encoding of calls that are not batches
(:class:`JsonCall`). Must not know what others carry. Which node to ask, and when:
:mod:`oncegate.gateway.client.routing`.

| end of an attempt | may have been applied | then |
|---|---|---|
| 2xx | yes | the call's ``accept`` decides |
| no connection | no | next node at once |
| connection lost, no answer in time | yes | next node at once |
| problem, retryable | as ``outcome`` says | 421 and 503: next node at once; otherwise after a pause |
| problem, final | as ``outcome`` says | raised |
| anything else | yes | again, three times, then :class:`MalformedAnswer` |

"At once" holds once for each node; then a pause follows.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

import aiohttp
import msgspec
from multidict import istr
from tenacity import AsyncRetrying, retry_if_exception_type
from yarl import URL

from oncegate.gateway.client.failures import (
    DeadlineExceeded,
    MalformedAnswer,
    OperationFailed,
    OutcomeUnknown,
    known_code,
    known_outcome,
)
from oncegate.gateway.client.routing import AttemptFailed, RetryBudget, RetryPolicy, Router
from oncegate.gateway.client.settings import Tuning
from oncegate.gateway.wire import H_AGE_MS, H_COMMIT, H_LEADER, JSON, Problem
from oncegate.rifl.errors import Code, Outcome

T = TypeVar("T")

LOG = logging.getLogger("oncegate.client")
MALFORMED_MAX = 3
"""Answers outside the contract after which a call gives up: a proxy in between will not mend itself."""

_LEADER = istr(H_LEADER)
_JSON = msgspec.json.Encoder()
_PROBLEM = msgspec.json.Decoder(Problem)
_ELSEWHERE = frozenset((421, 503))
_NO_PROBLEM = {429: Code.OVERLOADED, 502: Code.NOT_READY, 503: Code.NOT_READY, 504: Code.TIMEOUT}
"""Statuses that proxies and dying servers send without a problem body."""


class Call(Generic[T]):
    """What one call carries, and what is known of it so far.

    Attributes:
        path: percent-encoded path with query.
        headers, body: of every attempt.
        anywhere: whether any node can answer as well as the leader.
        deadline: when it ends, on the loop's clock.
        ambiguous: whether an attempt may have been applied.
        under_way: whether an attempt is under way now.
        sent_at: when the current attempt was sent.
        malformed: how many answers were outside the contract.
        trace: further headers of every attempt, or None.
    """

    __slots__ = (
        "ambiguous",
        "anywhere",
        "body",
        "deadline",
        "headers",
        "malformed",
        "method",
        "path",
        "sent_at",
        "trace",
        "under_way",
    )

    def __init__(
        self,
        method: str,
        path: str,
        *,
        deadline: float,
        headers: Mapping[str, str],
        body: bytes | None = None,
        anywhere: bool = False,
    ) -> None:
        self.method = method
        self.path = path
        self.headers = headers
        self.body = body
        self.anywhere = anywhere
        self.deadline = deadline
        self.ambiguous = False
        self.under_way = False
        self.malformed = 0
        self.sent_at = 0.0
        self.trace: Mapping[str, str] | None = None

    def delayed(self) -> None:
        """Called when the first attempt has failed and others follow; does nothing unless overridden."""

    def accept(self, status: int, headers: Mapping[str, str], payload: bytes) -> T:
        """Turn a 2xx answer into the call's result.

        Raises:
            AttemptFailed: something of it is to be sent again.
            msgspec.MsgspecError: the answer is not in the contract.
        """
        raise NotImplementedError

    def refused(self, headers: Mapping[str, str]) -> None:
        """Called with the headers of a refusal; does nothing unless overridden."""


class Courier:
    """Makes calls for one client.

    ``clock`` is the loop's; ``authorization`` gives the header of that name for each attempt, None if calls carry it.
    """

    def __init__(
        self,
        http: aiohttp.ClientSession,
        router: Router,
        tuning: Tuning,
        clock: Callable[[], float],
        authorization: Callable[[], str] | None = None,
    ) -> None:
        self._authorization = authorization
        self._http = http
        self.router = router
        self.tuning = tuning
        self.clock = clock
        self.budget = RetryBudget(tuning.retry_budget)
        self._urls: dict[tuple[str, str], URL] = {}

    async def exchange(self, call: Call[T]) -> T:
        """Make the call; the same bytes in every attempt.

        Raises:
            AttemptFailed: the deadline has passed; see ``call.ambiguous`` and :func:`at_deadline`.
            OncegateError: a final refusal, or :class:`MalformedAnswer`.
        """
        try:
            result = await self._attempt(call)
        except AttemptFailed as failure:
            # Outside tenacity, which costs 50 µs a call: a first attempt that succeeds pays nothing for retries.
            result = await self._retry(call, failure)
        self.budget.refill()
        return result

    async def _retry(self, call: Call[T], first: AttemptFailed) -> T:
        call.delayed()
        policy = RetryPolicy(
            self.tuning, self.budget, call.deadline, self.clock, max(1, len(self.router.endpoints) - 1)
        )
        pause_s = policy.pause_s(first)
        if policy.over(pause_s):
            raise first
        await asyncio.sleep(pause_s)
        retrying = AsyncRetrying(
            retry=retry_if_exception_type(AttemptFailed), wait=policy.wait, stop=policy.stop, reraise=True
        )
        return await retrying(self._attempt, call)

    async def _attempt(self, call: Call[T]) -> T:
        now = self.clock()
        if now >= call.deadline:
            raise AttemptFailed(Code.TIMEOUT, "no time left for an attempt", ambiguous=False)
        router = self.router
        endpoint = router.pick(now, anywhere=call.anywhere)
        headers = call.headers
        if self._authorization is not None:
            headers = {**headers, "Authorization": self._authorization()}
        if call.trace is not None:
            headers = {**headers, **call.trace}
        call.sent_at = now
        call.under_way = True
        try:
            async with asyncio.timeout_at(min(now + self.tuning.attempt_timeout_s, call.deadline)):
                async with self._http.request(
                    call.method, self._url(endpoint, call.path), data=call.body, headers=headers, allow_redirects=False
                ) as response:
                    payload = await response.read()
        except TimeoutError as silent:
            call.ambiguous = True
            router.unreachable(endpoint, self.clock(), silent=True)
            raise self._failed(endpoint, Code.TIMEOUT, "no answer in time", ambiguous=True) from silent
        except aiohttp.ClientConnectorCertificateError as untrusted:
            # Another attempt would end in the same way, and a server that is no node must not get it again and again.
            detail = f"{endpoint}: its certificate is not trusted: {untrusted.certificate_error}"
            raise OperationFailed(Code.UNAUTHENTICATED, detail) from untrusted
        except aiohttp.ClientConnectorError as refused:
            router.unreachable(endpoint, self.clock())
            raise self._failed(endpoint, Code.NOT_READY, "no connection", ambiguous=False) from refused
        except (aiohttp.ClientError, OSError) as lost:
            call.ambiguous = True
            router.unreachable(endpoint, self.clock())
            raise self._failed(endpoint, Code.TIMEOUT, "connection lost", ambiguous=True) from lost
        except asyncio.CancelledError:
            call.ambiguous = True
            raise
        finally:
            call.under_way = False
        status, leader = response.status, response.headers.get(_LEADER)
        if status >= 300:
            call.refused(response.headers)
            raise self._refusal(call, endpoint, status, leader, payload)
        router.answered(endpoint, leader, now)
        try:
            return call.accept(status, response.headers, payload)
        except msgspec.MsgspecError as malformed:
            raise self._malformed(call, endpoint, str(malformed)) from malformed

    def _refusal(self, call: Call[Any], endpoint: str, status: int, leader: str | None, payload: bytes) -> Exception:
        try:
            problem = _PROBLEM.decode(payload)
        except msgspec.MsgspecError as malformed:
            code = _NO_PROBLEM.get(status)
            if code is None:
                return self._malformed(call, endpoint, f"status {status} without a problem: {malformed}")
            # The answer does not say whether it was proposed: in doubt, unknown.
            problem = Problem(type="", title="", status=status, code=code, outcome="unknown", retryable=True)
        code, outcome = known_code(problem.code), known_outcome(problem.outcome)
        detail = problem.detail or problem.title
        if code is Code.INTERNAL and problem.code != Code.INTERNAL:
            detail = f"{problem.code}: {detail}"
        if outcome is not Outcome.NOT_APPLIED and problem.retryable:
            call.ambiguous = True
        if not problem.retryable:
            self.router.answered(endpoint, leader, self.clock())
            return OperationFailed(code, detail, retry_after_ms=problem.retry_after_ms, outcome=outcome)
        elsewhere = status in _ELSEWHERE
        if elsewhere:
            self.router.refused(endpoint, leader, self.clock())
        else:
            self.router.answered(endpoint, leader, self.clock())
        LOG.debug("attempt refused: endpoint=%s code=%s", endpoint, problem.code)
        return AttemptFailed(
            code,
            detail,
            ambiguous=outcome is not Outcome.NOT_APPLIED,
            retry_after_ms=problem.retry_after_ms,
            elsewhere=elsewhere,
        )

    def _malformed(self, call: Call[Any], endpoint: str, detail: str) -> Exception:
        call.ambiguous = True
        call.malformed += 1
        detail = f"{endpoint} answered outside the contract: {detail}"
        LOG.warning("malformed answer: %s", detail)
        if call.malformed >= MALFORMED_MAX:
            return MalformedAnswer(Code.INTERNAL, detail, outcome=Outcome.UNKNOWN)
        return AttemptFailed(Code.INTERNAL, detail, ambiguous=True)

    def _failed(self, endpoint: str, code: Code, detail: str, *, ambiguous: bool) -> AttemptFailed:
        LOG.debug("attempt failed: endpoint=%s reason=%s", endpoint, detail)
        return AttemptFailed(code, f"{endpoint}: {detail}", ambiguous=ambiguous, elsewhere=True)

    def _url(self, endpoint: str, path: str) -> URL:
        url = self._urls.get((endpoint, path))
        if url is None:
            if len(self._urls) >= 1024:
                self._urls.clear()  # paths of reads vary without bound; those of writes are few
            url = self._urls[endpoint, path] = URL(endpoint + path, encoded=True)
        return url


def at_deadline(failure: AttemptFailed, *, ambiguous: bool) -> OperationFailed:
    """Return the error of a call that ran out of time."""
    if ambiguous:
        return OutcomeUnknown(Code.TIMEOUT, f"no verdict before the deadline; last: {failure.detail}")
    return DeadlineExceeded(
        Code.TIMEOUT, f"not accepted before the deadline; last: {failure.detail}", outcome=Outcome.NOT_APPLIED
    )


class JsonCall(Call[T]):
    """A call answered by one JSON document of type ``shape``; fields it does not know are ignored."""

    __slots__ = ("_shape", "age_ms", "commit")

    def __init__(
        self,
        method: str,
        path: str,
        shape: type[T],
        headers: Mapping[str, str],
        deadline: float,
        *,
        body: Any = None,
        anywhere: bool = False,
    ) -> None:
        content = None if body is None else _JSON.encode(body)
        headers = {**headers, "Accept": JSON} if content is None else {**headers, "Accept": JSON, "Content-Type": JSON}
        super().__init__(method, path, deadline=deadline, headers=headers, body=content, anywhere=anywhere)
        self._shape = shape
        self.commit = 0
        """The commit number that the answer reflects, or 0."""
        self.age_ms: int | None = None
        """The age that the answer of a ``stale`` read reflects."""

    def accept(self, status: int, headers: Mapping[str, str], payload: bytes) -> T:
        """Decode the answer; raises msgspec.MsgspecError: it is not of the shape."""
        self._note(headers)
        return msgspec.json.decode(payload, type=self._shape)

    def refused(self, headers: Mapping[str, str]) -> None:
        """Take note of the headers."""
        self._note(headers)

    def _note(self, headers: Mapping[str, str]) -> None:
        self.commit = _number(headers.get(H_COMMIT)) or self.commit
        self.age_ms = _number(headers.get(H_AGE_MS))


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) <= 16 else None


class NothingCall(Call[None]):
    """A call whose answer has no content."""

    __slots__ = ()

    def __init__(self, method: str, path: str, headers: Mapping[str, str], deadline: float) -> None:
        super().__init__(method, path, deadline=deadline, headers=headers)

    def accept(self, status: int, headers: Mapping[str, str], payload: bytes) -> None:
        """Ignore the body of a 2xx."""
