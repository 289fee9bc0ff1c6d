"""What a service lets its gate do, and what the gate keeps: the policy, the record of a key, the refusals.

Owns: settings and their bounds, the ``Idempotency-Key`` header (draft-ietf-httpapi-idempotency-key-header), the row of
a key and its two states, and problems (RFC 9457). Pure.

| state | meaning |
|---|---|
| claimed | a service runs the request, or died while it did; ``owner`` names the session that lives as long as it |
| done | carried out: ``status``, ``headers`` and ``body`` are the response, or ``body`` is None where it was not kept |
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import msgspec

from oncegate.gateway import idempotency_key

RESPONSE_BYTES_MAX: Final = 128 * 1024
"""Most that a response may be set to take in the record: with its base64 it stays inside a row's bound."""
TABLE_DEFAULT: Final = "idempotency"
PROBLEM: Final = "application/problem+json"
H_REPLAYED: Final = "Idempotent-Replayed"
H_KEPT: Final = "Idempotency-Key-Kept"
"""Seconds for which a recorded response is known at least."""


@dataclass(frozen=True, slots=True)
class Incoming:
    """A request as the gate sees it, whatever the framework.

    Attributes:
        method: upper case.
        path: as it was sent, with the query.
        headers: names in lower case; of several with one name the last, but for the key.
        keys: all values of ``Idempotency-Key``.
        body: the whole body.
    """

    method: str
    path: str
    headers: Mapping[str, str]
    keys: tuple[str, ...]
    body: bytes

    @property
    def fingerprint(self) -> str:
        """Hash of method, path and body: tells a retry from a reuse of the key."""
        digest = hashlib.sha256(f"{self.method}\0{self.path}\0".encode())
        digest.update(self.body)
        return digest.hexdigest()


def nobody(_: Incoming) -> str:
    """Give all callers one space of keys."""
    return ""


def never(_: Incoming) -> bool:
    """Run no request again whose first run broke off."""
    return False


@dataclass(frozen=True, slots=True)
class Policy:
    """Settings of a gate.

    Attributes:
        methods: requests with these methods take a key; others pass.
        required: whether such a request without a key is refused with 400; else it passes unprotected.
        scope: who is calling, such as a user or tenant: keys of one never meet those of another. Set it wherever
            callers must not see each other's responses.
        rerun: whether a request may be run again under the same :attr:`Ticket.id` when the service died before
            its response was recorded, or answered with one of ``broken``. Only for handlers whose effects are
            idempotent under that id.
        broken: statuses that say that a run broke off; recorded like others unless ``rerun`` holds.
        passing: statuses that are not recorded: the key is free again, and a retry runs.
        response_bytes_max: bodies up to here are kept, up to ``RESPONSE_BYTES_MAX``. A larger one is sent, and a
            retry is told that it was carried out and not kept.
        body_bytes_max: request bodies up to here are read for the fingerprint; larger ones are refused with 413.
        lease_ms: how long after its last sign of life a service counts as dead, 1 second to 24 hours.
        kept_s: how long a response is known at least, published in ``Idempotency-Key-Kept``. Afterwards the key is
            forgotten and a retry is a new request.
        record_timeout_s: how long claiming a key and recording a response may take each.
        table: resident table of the records.
        quota_bytes: its size; when it is full, requests with new keys are refused with 503.
    """

    methods: frozenset[str] = frozenset({"POST", "PATCH"})
    required: bool = False
    scope: Callable[[Incoming], str] = nobody
    rerun: Callable[[Incoming], bool] = never
    broken: frozenset[int] = frozenset({500, 502, 504})
    passing: frozenset[int] = frozenset({429, 503})
    response_bytes_max: int = 64 * 1024
    body_bytes_max: int = 1024 * 1024
    lease_ms: int = 30_000
    kept_s: int = 24 * 3600
    record_timeout_s: float = 10.0
    table: str = TABLE_DEFAULT
    quota_bytes: int = 1024 * 1024 * 1024
    left_out: frozenset[str] = frozenset(
        ["connection", "content-length", "date", "keep-alive", "server", "set-cookie", "transfer-encoding", "upgrade"]
    )
    """Headers of a response that are not recorded, in lower case."""

    def __post_init__(self) -> None:
        if not 0 <= self.response_bytes_max <= RESPONSE_BYTES_MAX:
            raise ValueError(f"response_bytes_max must be in 0..{RESPONSE_BYTES_MAX}")
        if self.kept_s < 1 or self.body_bytes_max < 0:
            raise ValueError("kept_s and body_bytes_max must be positive")


def read_key(values: tuple[str, ...]) -> str | None:
    """Return the key, or None if there is none; the forms are those that the gateway takes.

    Raises:
        ValueError: more than one, or not a key.
    """
    if len(values) > 1:
        raise ValueError("Idempotency-Key is given more than once")
    return idempotency_key.read_key(values[0]) if values else None


class Kept(msgspec.Struct, frozen=True):
    """A response: from a handler, from a record, or a refusal."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes | None


class IdempotencyRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """The row of a key.

    Attributes:
        at_s: when it was written, by the writing service's clock: only forgetting reads it.
        claim: which of its owner's claims it is. One whose write was in doubt never ran, and another one may have.
    """

    state: Literal["claimed", "done"]
    fingerprint: str
    owner: str
    attempt: int
    at_s: int
    status: int = 0
    headers: list[tuple[str, str]] = []
    body: str | None = None
    claim: int = 0

    def response(self) -> Kept:
        """Return the recorded response."""
        return Kept(self.status, self.headers, None if self.body is None else base64.b64decode(self.body))


def with_response(record: IdempotencyRecord, kept: Kept, at_s: int) -> IdempotencyRecord:
    """Return the record of a claim after this response."""
    body = None if kept.body is None else base64.b64encode(kept.body).decode()
    return IdempotencyRecord(
        "done", record.fingerprint, record.owner, record.attempt, at_s, kept.status, kept.headers, body
    )


def row_key(scope: str, key: str) -> str:
    """Return the row key for a caller's key: of fixed length, and no caller can name another one's."""
    name = hashlib.sha256(scope.encode()).hexdigest()[:32]
    return f"{name}/{hashlib.sha256(key.encode()).hexdigest()}"


def read_record(value: Any) -> IdempotencyRecord:
    """Read a row's value; raises msgspec.ValidationError: the value was not written by this middleware."""
    return msgspec.convert(value, IdempotencyRecord)


def problem(
    status: int, code: str, title: str, detail: str, *, outcome: str = "not_applied", retry_after_s: int | None = None
) -> Kept:
    """Return a refusal with the members that the gateway's own problems have; retryable after so long, or not."""
    body = {
        "type": "about:blank",
        "title": title,
        "status": status,
        "detail": detail,
        "code": code,
        "outcome": outcome,
        "retryable": retry_after_s is not None,
    }
    headers = [("Content-Type", PROBLEM), ("Cache-Control", "no-store")]
    if retry_after_s is not None:
        headers.append(("Retry-After", str(retry_after_s)))
    return Kept(status, headers, msgspec.json.encode(body))


KEY_MISSING: Final = problem(
    400, "BAD_REQUEST", "Idempotency-Key is missing", "this operation requires an Idempotency-Key header"
)
OTHER_PAYLOAD: Final = problem(
    422,
    "PAYLOAD_MISMATCH",
    "Idempotency-Key is already used",
    "the key was used before for a request with another method, path or body",
)
IN_PROGRESS: Final = problem(
    409,
    "IN_PROGRESS",
    "A request is outstanding for this Idempotency-Key",
    "the same request is still being carried out",
    outcome="unknown",
    retry_after_s=1,
)
OUTCOME_UNKNOWN: Final = problem(
    500,
    "OUTCOME_UNKNOWN",
    "Nobody knows how the request ended",
    "the request was begun and broke off before its response was recorded; it will not be carried out again",
    outcome="unknown",
)
UNAVAILABLE: Final = problem(
    503, "NOT_READY", "Try again", "the key could not be claimed; nothing was carried out", retry_after_s=1
)


def key_malformed(why: str) -> Kept:
    """The header is not one key."""
    return problem(400, "BAD_REQUEST", "Idempotency-Key is malformed", why)


def body_too_large(bytes_max: int) -> Kept:
    """The body is larger than what is read for the fingerprint."""
    return problem(413, "PAYLOAD_TOO_LARGE", "Over a size limit", f"a request with a key has at most {bytes_max} bytes")


def response_not_kept(status: int) -> Kept:
    """The request was carried out; its response was too large or streamed."""
    detail = f"the request was carried out with status {status}; its response was larger than what is kept"
    made = problem(410, "RESPONSE_NOT_KEPT", "The response was not kept", detail, outcome="applied")
    return Kept(made.status, [*made.headers, (H_REPLAYED, "true")], made.body)
