"""One call to the cluster: attempts, retries, and the move to another node when one does not serve.

Owns: which way an attempt takes (:mod:`oncegate.gateway.client.direct_http`, or aiohttp), what its end means, and the
encoding of calls that are not batches (:class:`JsonCall`). Must not know what others carry. Which node to ask, and
when: :mod:`oncegate.gateway.client.routing`; how many at once: :mod:`oncegate.gateway.client.connection_turns`.

| end of an attempt | may have been applied | then |
|---|---|---|
| no connection came free before the deadline | no | the call ends |
| 2xx | yes | the call's ``accept`` decides |
| no connection | no | next node at once |
| connection lost, no answer in time | yes | next node at once |
| problem, retryable | as ``outcome`` says | 421 and 503: next node at once; otherwise after a pause, or, told to come
back after the deadline, raised |
| problem, final | as ``outcome`` says | raised |
| anything else | yes | again, three times, then :class:`MalformedAnswer` |

"At once" holds once for each node; then a pause follows.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final, Generic, TypeVar

import aiohttp
import msgspec
from multidict import istr
from tenacity import AsyncRetrying, retry_if_exception_type
from yarl import URL

from oncegate.gateway.client.answer_head import BODY_BYTES_MAX, AnswerHead, UnusualAnswer
from oncegate.gateway.client.connection_turns import ConnectionTurns
from oncegate.gateway.client.direct_http import DirectPool, NoAnswer, request_head
from oncegate.gateway.client.failures import (
    UNREADABLE,
    DeadlineExceeded,
    MalformedAnswer,
    OperationFailed,
    OutcomeUnknown,
    known_code,
    known_outcome,
)
from oncegate.gateway.client.routing import LAST_ATTEMPT_S, AttemptFailed, RetryBudget, RetryPolicy, Router
from oncegate.gateway.client.settings import Tuning
from oncegate.gateway.wire import H_AGE_MS, H_COMMIT, H_LEADER, JSON, Problem
from oncegate.rifl.errors import Code, OncegateError, Outcome

T = TypeVar("T")

LOG = logging.getLogger("oncegate.client")
MALFORMED_MAX = 3
"""Answers outside the contract after which a call gives up: a proxy in between will not mend itself."""

DETOUR_S: Final = 60.0
"""How long an endpoint is asked through aiohttp after an answer that nothing else reads."""

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
        began: when its first attempt began, on the loop's clock, or 0; older calls go first where connections are few.
        under_way: whether an attempt is under way now: its bytes may have left.
        at_once: whether :meth:`accept` runs before the task that waits for the call: so does whoever it wakes.
        direct: whether its answer comes in one piece, and needs no aiohttp.
        sent_at: when the current attempt was sent.
        malformed: how many answers were outside the contract.
        trace: further headers of every attempt, or None.
        waits_s: how much longer than another a node may take to answer it.
    """

    direct: ClassVar[bool] = True
    __slots__ = (
        "ambiguous",
        "anywhere",
        "at_once",
        "began",
        "body",
        "deadline",
        "headers",
        "malformed",
        "method",
        "path",
        "sent_at",
        "trace",
        "under_way",
        "waits_s",
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
        self.began = 0.0
        self.under_way = False
        self.at_once = False
        self.malformed = 0
        self.sent_at = 0.0
        self.trace: Mapping[str, str] | None = None
        self.waits_s = 0.0

    @property
    def changes(self) -> bool:
        """Whether it may change something; otherwise nothing of it can be in doubt."""
        return self.method != "GET"

    def delayed(self) -> None:
        """Called when the first attempt has failed and others follow; does nothing unless overridden."""

    def accept(self, status: int, headers: Mapping[str, str], payload: bytes) -> T:
        """Turn a 2xx answer into the call's result.

        Raises:
            AttemptFailed: something of it is to be sent again.
            one of ``UNREADABLE``: the answer is not in the contract.
        """
        raise NotImplementedError

    def takes(self, status: int, payload: bytes) -> bool:
        """Tell whether an answer beyond 2xx is a result that :meth:`accept` reads; no, unless overridden."""
        return False

    def refused(self, headers: Mapping[str, str]) -> None:
        """Called with the headers of a refusal; does nothing unless overridden."""


class Courier:
    """Makes calls for one client.

    ``clock`` is the loop's; ``authorization`` gives the header of that name for each attempt, None if calls carry it.
    """

    def __init__(
        self,
        http: aiohttp.ClientSession,
        pool: DirectPool,
        router: Router,
        tuning: Tuning,
        clock: Callable[[], float],
        authorization: Callable[[], str] | None = None,
    ) -> None:
        self._authorization = authorization
        self._http = http
        self._pool = pool
        self._detours: dict[str, float] = {}
        """Endpoints that gave an answer which only aiohttp reads, and until when they are asked through it."""
        self.router = router
        self.tuning = tuning
        self.clock = clock
        self.budget = RetryBudget(tuning.retry_budget)
        self._turns = ConnectionTurns(pool.loop, router, tuning.connections_max)
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

    async def open_stream(self, endpoint: str, path: str, headers: Mapping[str, str]) -> aiohttp.ClientResponse:
        """Ask one node once for an answer that has no end; raises what aiohttp raises."""
        if self._authorization is not None:
            headers = {**headers, "Authorization": self._authorization()}
        url = URL(endpoint + path, encoded=True)
        return await self._http.request("GET", url, headers=headers, allow_redirects=False)

    def close(self) -> None:
        """End the calls that wait for a connection: nothing of them was sent."""
        self._turns.close()

    async def _retry(self, call: Call[T], first: AttemptFailed) -> T:
        if self.clock() + LAST_ATTEMPT_S >= call.deadline:
            raise first  # without taking a retry from the budget: those who waited in vain are no load
        call.delayed()
        policy = RetryPolicy(
            self.tuning, self.budget, lambda: call.deadline, self.clock, max(1, len(self.router.endpoints) - 1)
        )
        pause_s = policy.pause_s(first)
        if policy.in_vain(first) or policy.over(pause_s):
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
        if not call.began:
            call.began = now
        turns = self._turns
        endpoint = turns.take(now, anywhere=call.anywhere)
        if endpoint is None:
            endpoint = await turns.wait(call.began, call.deadline, anywhere=call.anywhere)
            if endpoint is None:
                raise _closed(call)
            now = self.clock()
        try:
            headers = call.headers
            if self._authorization is not None:
                headers = {**headers, "Authorization": self._authorization()}
            if call.trace is not None:
                headers = {**headers, **call.trace}
            call.sent_at = now
            due = min(now + self.tuning.attempt_timeout_s + call.waits_s, call.deadline)
            if call.direct and self._detours.get(endpoint, 0.0) <= now:
                return await self._attempt_directly(call, endpoint, headers, due)
            return await self._attempt_through_aiohttp(call, endpoint, headers, due)
        finally:
            turns.give_back(endpoint)

    async def _attempt_through_aiohttp(self, call: Call[T], endpoint: str, headers: Mapping[str, str], due: float) -> T:
        router = self.router
        call.at_once = False
        call.under_way = True
        try:
            async with asyncio.timeout_at(due):
                async with self._http.request(
                    call.method, self._url(endpoint, call.path), data=call.body, headers=headers, allow_redirects=False
                ) as response:
                    payload = await _whole(response)
        except TimeoutError as silent:
            raise self._no_answer(call, endpoint, silent, silent=True) from silent
        except aiohttp.ClientConnectorCertificateError as untrusted:
            raise _untrusted(endpoint, untrusted.certificate_error) from untrusted
        except aiohttp.ClientConnectorError as refused:
            router.unreachable(endpoint, self.clock())
            raise self._failed(endpoint, Code.NOT_READY, "no connection", ambiguous=False) from refused
        except (aiohttp.ClientError, OSError) as lost:
            raise self._no_answer(call, endpoint, lost) from lost
        except RuntimeError as closed:
            if not self._http.closed:
                call.ambiguous = True
                raise
            raise _closed(call) from closed
        except BaseException:  # it was cancelled, or is a bug: its bytes may have left
            call.ambiguous = True
            raise
        finally:
            call.under_way = False
        return self._answered(call, endpoint, response.status, response.headers, payload)

    async def _attempt_directly(self, call: Call[T], endpoint: str, headers: Mapping[str, str], due: float) -> T:
        """Make an attempt without aiohttp; the same ends."""
        pool, router = self._pool, self.router
        if pool.closed:
            raise _closed(call)
        host, body = pool.host(endpoint), call.body
        head = request_head(call.method, host, call.path, headers, None if body is None else len(body))
        connection = pool.idle(endpoint)
        if connection is None:
            try:
                connection = await pool.dial(endpoint, due)
            except TimeoutError as silent:
                router.unreachable(endpoint, self.clock(), silent=True)
                raise self._failed(endpoint, Code.NOT_READY, "no connection in time", ambiguous=False) from silent
            except ssl.SSLCertVerificationError as untrusted:
                raise _untrusted(endpoint, untrusted) from untrusted
            except OSError as refused:
                router.unreachable(endpoint, self.clock())
                raise self._failed(endpoint, Code.NOT_READY, "no connection", ambiguous=False) from refused
            if self.clock() >= due:  # a write may have been told by now that it was not applied
                pool.rest(connection)
                raise self._failed(endpoint, Code.NOT_READY, "no connection in time", ambiguous=False)
            # Made again: a write whose deadline passed meanwhile was told so, and is no longer in the body.
            body = call.body
            head = request_head(call.method, host, call.path, headers, None if body is None else len(body))

        def finish(head: AnswerHead, payload: bytes) -> T:
            return self._answered(call, endpoint, head.status, head.headers, payload)

        call.at_once = call.under_way = True
        try:
            answered: T = await connection.ask(head if body is None else head + body, due, finish)
        except NoAnswer as lost:
            raise self._no_answer(call, endpoint, lost, silent=lost.silent) from lost
        except UnusualAnswer as unusual:
            LOG.info("asked through aiohttp for a while: endpoint=%s reason=%s", endpoint, unusual)
            self._detours[endpoint] = self.clock() + DETOUR_S
            pool.drop(endpoint)
            raise self._no_answer(call, endpoint, unusual) from unusual
        except (AttemptFailed, OncegateError):
            raise
        except BaseException:  # it was cancelled, or is a bug: its bytes may have left
            call.ambiguous = True
            raise
        finally:
            call.under_way = False
        return answered

    def _answered(self, call: Call[T], endpoint: str, status: int, headers: Mapping[str, str], payload: bytes) -> T:
        """Return what an answer means to the call, or raise what else follows from it."""
        leader = headers.get(_LEADER)
        if status >= 300 and not call.takes(status, payload):
            call.refused(headers)
            raise self._refusal(call, endpoint, status, leader, payload)
        self.router.answered(endpoint, leader, call.sent_at)
        try:
            return call.accept(status, headers, payload)
        except UNREADABLE as malformed:
            raise self._malformed(call, endpoint, str(malformed)) from malformed
        except (AttemptFailed, OncegateError):
            raise
        except Exception:
            call.ambiguous = True  # a bug of the SDK: what has been answered may have been applied
            raise

    def _refusal(self, call: Call[Any], endpoint: str, status: int, leader: str | None, payload: bytes) -> Exception:
        try:
            problem = _PROBLEM.decode(payload)
        except UNREADABLE as malformed:
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

    def _no_answer(self, call: Call[Any], endpoint: str, why: Exception, *, silent: bool = False) -> AttemptFailed:
        call.ambiguous = True
        self.router.unreachable(endpoint, self.clock(), silent=silent)
        detail = "no answer in time" if silent else "connection lost"
        return self._failed(endpoint, Code.TIMEOUT, detail, ambiguous=True)

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


async def _whole(response: aiohttp.ClientResponse) -> bytes:
    """Return a body of at most ``BODY_BYTES_MAX``; a longer one counts as an answer that was lost."""
    body = bytearray()
    async for piece in response.content.iter_any():
        body += piece
        if len(body) > BODY_BYTES_MAX:
            body.clear()  # what the error remembers would keep it
            raise aiohttp.ClientPayloadError(f"more than {BODY_BYTES_MAX} bytes")
    return bytes(body)


def _untrusted(endpoint: str, why: Exception) -> OperationFailed:
    # Another attempt would end in the same way, and a server that is no node must not get it again and again.
    return OperationFailed(Code.UNAUTHENTICATED, f"{endpoint}: its certificate is not trusted: {why}")


def _closed(call: Call[Any]) -> OperationFailed:
    outcome = Outcome.UNKNOWN if call.ambiguous else Outcome.NOT_APPLIED
    return OperationFailed(Code.CONFLICT, "the client is closed", outcome=outcome)


def at_deadline(failure: AttemptFailed, *, ambiguous: bool) -> OperationFailed:
    """Return the error of a call that ran out of time, or would: then at once, with the code that says why."""
    if failure.too_late:
        detail, ms = f"refused until after the deadline: {failure.detail}", failure.retry_after_ms
        if ambiguous:
            return OutcomeUnknown(failure.code, detail, retry_after_ms=ms, outcome=Outcome.UNKNOWN)
        return DeadlineExceeded(failure.code, detail, retry_after_ms=ms, outcome=Outcome.NOT_APPLIED)
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


class ReadCall(JsonCall[T]):
    """A call that changes nothing, whatever its method: a question that does not fit into a path."""

    __slots__ = ()
    changes = False


class NothingCall(Call[None]):
    """A call whose answer has no content."""

    __slots__ = ()

    def __init__(self, method: str, path: str, headers: Mapping[str, str], deadline: float) -> None:
        super().__init__(method, path, deadline=deadline, headers=headers)

    def accept(self, status: int, headers: Mapping[str, str], payload: bytes) -> None:
        """Ignore the body of a 2xx."""
