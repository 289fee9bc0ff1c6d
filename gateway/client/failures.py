"""What an SDK call may raise, all of it below :class:`oncegate.rifl.errors.OncegateError`.

Owns: the errors that carry a request id or that only the client can know. Must not know HTTP.

``error.outcome`` tells a caller what it may do: after ``not_applied`` it is safe to do the write again as a new
operation, after ``unknown`` it is not. The class says the same: an error is an :class:`OutcomeUnknown` exactly if its
outcome is ``unknown``, whatever its code.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, Self

import msgspec

from oncegate.rifl.errors import REGISTRY, Code, OncegateError, Outcome
from oncegate.rifl.ids import RequestId

if TYPE_CHECKING:
    from oncegate.gateway.client.results import Resolution

UNREADABLE: Final = (msgspec.MsgspecError, ValueError, RecursionError)
"""What reading an answer outside the contract raises: msgspec lets text that is no UTF-8 and deep nesting through."""
Resolver = Callable[[RequestId, float | None], Awaitable["Resolution"]]
"""Finds out, or decides, what became of a request id; the second argument is its total time."""


class OperationFailed(OncegateError):
    """A write that ended without a result; ``code`` and ``outcome`` say why and what is known.

    The constructor returns an :class:`OutcomeUnknown` if the outcome is unknown, as ``OSError`` returns a
    ``FileNotFoundError``.

    Attributes:
        request_id: the operation's id, or None if it never got one.
    """

    def __new__(cls, *args: Any, outcome: Outcome | None = None, **more: Any) -> Self:  # noqa: D102
        kind: Any = cls
        if cls is OperationFailed or cls is PartialFailure:  # subclasses keep their own class
            code: Code = args[0] if args else more["code"]
            if (outcome or REGISTRY[code].outcome) is Outcome.UNKNOWN:
                kind = OutcomeUnknown if cls is OperationFailed else PartialDoubt
        made: Self = super().__new__(kind)
        return made

    def __init__(
        self,
        code: Code,
        detail: str = "",
        *,
        request_id: RequestId | None = None,
        retry_after_ms: int | None = None,
        outcome: Outcome | None = None,
    ) -> None:
        super().__init__(code, detail, retry_after_ms=retry_after_ms, outcome=outcome)
        self.request_id = request_id

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.code, self.detail, self.request_id, self.retry_after_ms, self.outcome)


class OutcomeUnknown(OperationFailed):
    """The operation may or may not have been applied: every error whose ``outcome`` is ``unknown`` is one of these.

    ``code`` says why: TIMEOUT if the deadline passed after the operation may have been proposed (the code of a refusal
    until after the deadline, such as QUOTA, where such a one came after that), SESSION_EXPIRED or
    FENCED if its session ended before the answer came, INTERNAL for an answer that this SDK cannot read.

    After a TIMEOUT :meth:`resolve` can settle it as long as the session is open, whatever is written meanwhile. The
    request id stays unacknowledged as long as the session's window allows, so that
    :meth:`oncegate.gateway.client.Client.request` of another process can still tell too.
    """

    resolver: Resolver | None = None
    """The session that raised it; not carried through pickling."""

    async def resolve(self, *, timeout_s: float | None = None) -> Resolution:
        """End the doubt: afterwards it is known whether the operation ran, and if it did not, it never will.

        Idempotent: every call by every caller gets the same answer.

        Args:
            timeout_s: total time; the client's by default.

        Returns:
            ``applied`` or ``refused`` with the result that the call would have returned; otherwise ``sealed``, and it
            is safe to do it again as a new operation.

        Raises:
            NotKnownYet: the cluster could not be asked: ask again.
            NeverKnown: nobody can know any more.
            OperationFailed: BAD_REQUEST if the operation never got an id, or the error came from another process: use
                ``Client.resolve`` with ``request_id``.
        """
        if self.request_id is None or self.resolver is None:
            what = "no session to ask: use Client.resolve(request_id)"
            if self.request_id is None:
                what = "it has no id to ask for: send it again, a write under a key with the same key"
            raise OperationFailed(Code.BAD_REQUEST, what)
        return await self.resolver(self.request_id, timeout_s)


class NotKnownYet(OutcomeUnknown):
    """Somebody asked for an outcome, and the cluster could not be asked: ask again, the answer has not been lost.

    ``code`` says why it could not: TIMEOUT without an answer in time, FORBIDDEN for a token that may not.
    """


class NeverKnown(OutcomeUnknown):
    """Somebody asked for an outcome that this process can never know: no question will tell.

    ``code`` says why: SESSION_EXPIRED if the cluster has forgotten the session, STALE if another process acknowledged
    the request, FENCED if another process has taken the session over. Read the row before a new request.
    """


class DeadlineExceeded(OperationFailed):
    """The deadline passed and the operation was surely not applied: no attempt was ever accepted, or it was a read.

    With another ``code`` than TIMEOUT, such as QUOTA, it would have passed: the cluster said to come back after it, in
    ``retry_after_ms``, and the call ended at once.
    """


class MalformedAnswer(OutcomeUnknown):
    """A node answered something that is not in the contract; the outcome is unknown."""


class PartialFailure(OperationFailed):
    """Some rows of one ``put_many`` were applied and others have no result.

    ``code``, ``detail``, ``outcome`` and ``request_id`` are those of the first row that failed, a row in doubt before
    one that was surely not applied. With a row in doubt it is an :class:`OutcomeUnknown` too.

    Attributes:
        applied: number of rows that were applied.
        failed: number of the others.
    """

    def __init__(
        self,
        code: Code,
        detail: str = "",
        *,
        request_id: RequestId | None = None,
        retry_after_ms: int | None = None,
        outcome: Outcome | None = None,
        applied: int = 0,
        failed: int = 0,
    ) -> None:
        super().__init__(code, detail, request_id=request_id, retry_after_ms=retry_after_ms, outcome=outcome)
        self.applied = applied
        self.failed = failed

    def __reduce__(self) -> tuple[object, ...]:
        return (*super().__reduce__(), {"applied": self.applied, "failed": self.failed})


class PartialDoubt(PartialFailure, OutcomeUnknown):
    """A :class:`PartialFailure` with rows in doubt; :meth:`resolve` settles the first, that of ``request_id``."""


def _rebuild(
    kind: type[OperationFailed],
    code: Code,
    detail: str,
    request_id: RequestId | None,
    retry_after_ms: int | None,
    outcome: Outcome,
) -> OperationFailed:
    return kind(code, detail, request_id=request_id, retry_after_ms=retry_after_ms, outcome=outcome)


def request_ids(error: BaseException) -> tuple[RequestId, ...]:
    """Return the ids of what a call that was cut off may have sent: of its error, or of its cancellation.

    For ``asyncio.timeout`` and ``asyncio.wait_for`` around a call of a session, and for tasks that were cancelled:
    their ``TimeoutError`` or ``CancelledError`` leads to the ids. :meth:`oncegate.gateway.client.Session.resolve` tells
    the fate of each. None: nothing of the call was sent, and nothing will be.

    Of a group of errors, the ids of all of them. ``asyncio.gather`` and ``asyncio.TaskGroup`` throw cancellations of
    their tasks away, and the ids with them: there, ask inside each task, or use
    :meth:`oncegate.gateway.client.Session.submit`, whose future has the id.
    """
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, BaseExceptionGroup):
            return tuple(one for part in seen.exceptions for one in request_ids(part))
        if isinstance(seen, OperationFailed):
            return () if seen.request_id is None else (seen.request_id,)
        found: tuple[RequestId, ...] | None = getattr(seen, "request_ids", None)
        if found is not None:
            return found
        seen = seen.__cause__ or seen.__context__
    return ()


def known_code(name: str) -> Code:
    """Return the code of that name; one that this version does not know counts as INTERNAL."""
    return Code._value2member_map_.get(name, Code.INTERNAL)  # type: ignore[return-value]


def known_outcome(name: str) -> Outcome:
    """Return the outcome of that name; in doubt, unknown."""
    return Outcome.NOT_APPLIED if name == "not_applied" else Outcome.APPLIED if name == "applied" else Outcome.UNKNOWN
