"""The error tree: one class, one registry, every refusal typed.

Owns: codes, HTTP status, outcome and retryability (SEMANTICS, *Errors*). Must not know HTTP libraries.
The table of SEMANTICS is written from :data:`REGISTRY` by :mod:`oncegate.gateway.docs`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple


class Outcome(StrEnum):
    """What the caller may conclude about its operation."""

    NOT_APPLIED = "not_applied"
    APPLIED = "applied"
    UNKNOWN = "unknown"


class Code(StrEnum):
    """Names of all refusals, the same in HTTP answers, the SDK and the logs."""

    BAD_REQUEST = "BAD_REQUEST"
    BAD_ACK = "BAD_ACK"
    UNAUTHENTICATED = "UNAUTHENTICATED"
    FORBIDDEN = "FORBIDDEN"
    NOT_FOUND = "NOT_FOUND"
    METHOD_NOT_ALLOWED = "METHOD_NOT_ALLOWED"
    UNSUPPORTED_MEDIA_TYPE = "UNSUPPORTED_MEDIA_TYPE"
    CONFLICT = "CONFLICT"
    IN_PROGRESS = "IN_PROGRESS"
    FENCED = "FENCED"
    STALE = "STALE"
    SESSION_EXPIRED = "SESSION_EXPIRED"
    RETENTION_EXCEEDED = "RETENTION_EXCEEDED"
    PAYLOAD_TOO_LARGE = "PAYLOAD_TOO_LARGE"
    PAYLOAD_MISMATCH = "PAYLOAD_MISMATCH"
    WINDOW_FULL = "WINDOW_FULL"
    QUOTA = "QUOTA"
    OVERLOADED = "OVERLOADED"
    NOT_LEADER = "NOT_LEADER"
    NOT_READY = "NOT_READY"
    NO_LEADER = "NO_LEADER"
    TIMEOUT = "TIMEOUT"
    INTERNAL = "INTERNAL"


class Traits(NamedTuple):
    """What holds for every error of a code."""

    status: int
    outcome: Outcome
    retryable: bool
    title: str
    advice: str
    """What the caller does next; Markdown, for the documentation."""


_NO, _UNKNOWN = Outcome.NOT_APPLIED, Outcome.UNKNOWN

# fmt: off
REGISTRY: Final[dict[Code, Traits]] = {
    Code.BAD_REQUEST: Traits(400, _NO, False, "The request is malformed",
        "correct the request; `detail` says what is wrong"),
    Code.BAD_ACK: Traits(400, _UNKNOWN, False, "First incomplete is impossible",
        "a bug of the client: open a new session; an earlier attempt may have been applied"),
    Code.UNAUTHENTICATED: Traits(401, _NO, False, "No valid credentials",
        "send a token that the node knows"),
    Code.FORBIDDEN: Traits(403, _NO, False, "Not allowed",
        "send a token that has the scope, or that belongs to the session's tenant"),
    Code.NOT_FOUND: Traits(404, _NO, False, "Not found",
        "declare the table or flow first, or correct the name"),
    Code.METHOD_NOT_ALLOWED: Traits(405, _NO, False, "The path does not take this method",
        "use a method that `Allow` names"),
    Code.UNSUPPORTED_MEDIA_TYPE: Traits(415, _NO, False, "The path does not take a body of this type or coding",
        "send JSON or what the path takes, without `Content-Encoding`"),
    Code.CONFLICT: Traits(409, _NO, False, "Declared differently already",
        "compare the declaration with the present one; after a membership change wait for it, then ask again"),
    Code.IN_PROGRESS: Traits(409, _UNKNOWN, True, "The same request is still running",
        "send the same `Idempotency-Key` again later: the first request has no answer yet"),
    Code.FENCED: Traits(410, _UNKNOWN, False, "Not the current owner",
        "stop this process: it must not write in this session; what was in flight is its successor's to know"),
    Code.STALE: Traits(410, _UNKNOWN, False, "The request was acknowledged before",
        "do not send it again; an earlier attempt may have been applied"),
    Code.SESSION_EXPIRED: Traits(410, _UNKNOWN, False, "The session's memory has ended",
        "open a new session; an earlier attempt may have been applied: read the row before a new request"),
    Code.RETENTION_EXCEEDED: Traits(410, _NO, False, "No longer retained",
        "start the consumer at the first batch that is retained; read the rows anew, and watch from there"),
    Code.PAYLOAD_TOO_LARGE: Traits(413, _NO, False, "Over a size limit",
        "send less at once ([limits.md](limits.md))"),
    Code.PAYLOAD_MISMATCH: Traits(422, _NO, False, "The request id was used for another payload",
        "a bug of the client: give each payload a request id of its own"),
    Code.WINDOW_FULL: Traits(429, _NO, True, "Too far above first incomplete",
        "acknowledge results, then send the same request id again"),
    Code.QUOTA: Traits(429, _NO, True, "A quota is used up",
        "wait for `Retry-After`; free what the quota counts"),
    Code.OVERLOADED: Traits(429, _NO, True, "Too much is waiting",
        "wait for `Retry-After`, then send the same request id again"),
    Code.NOT_LEADER: Traits(421, _NO, True, "Another node leads",
        "send it to the node that `Oncegate-Leader` names; nothing was proposed"),
    Code.NOT_READY: Traits(503, _NO, True, "The node has not caught up",
        "wait for `Retry-After`, or ask another node"),
    Code.NO_LEADER: Traits(503, _NO, True, "No leader is known",
        "wait for `Retry-After`, or ask another node"),
    Code.TIMEOUT: Traits(504, _UNKNOWN, True, "No answer in time",
        "send the same request id again, or resolve it"),
    Code.INTERNAL: Traits(500, _UNKNOWN, False, "The node met a bug and said so",
        "read the node's log; resolve the request"),
}
# fmt: on
"""Every code, once, with its traits."""


class InvariantViolation(Exception):
    """The exactly-once bookkeeping contradicts itself: if the node went on, it could execute an operation twice.

    Not a refusal that a client could cause: a bug, or damage that no checksum saw. It leaves the state machine with
    the index of the log entry, and the node stops.
    """


class OncegateError(Exception):
    """A typed refusal.

    Attributes:
        code: which refusal.
        detail: one sentence for a person; never contains secrets or payloads.
        outcome: what is known about the operation; in doubt, unknown.
        retryable: whether the same request id may be sent again.
        retry_after_ms: when the server suggests to, or None.
    """

    def __init__(
        self,
        code: Code,
        detail: str = "",
        *,
        retry_after_ms: int | None = None,
        outcome: Outcome | None = None,
    ) -> None:
        super().__init__(detail or REGISTRY[code].title)
        traits = REGISTRY[code]
        self.code = code
        self.detail = detail
        self.status = traits.status
        self.title = traits.title
        self.outcome = outcome or traits.outcome
        self.retryable = traits.retryable
        self.retry_after_ms = retry_after_ms

    def __str__(self) -> str:
        return f"{self.code}: {self.detail or self.title} (outcome {self.outcome})"

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (self.code, self.detail, self.retry_after_ms, self.outcome))


def _rebuild(code: Code, detail: str, retry_after_ms: int | None, outcome: Outcome) -> OncegateError:
    return OncegateError(code, detail, retry_after_ms=retry_after_ms, outcome=outcome)
