"""The record of a key in the gateway, and the refusals that a caller may see.

Owns: the row of a key and its two states, and problems (RFC 9457). Pure.

| state | meaning |
|---|---|
| claimed | a service runs the request, or died while it did; ``owner`` names the session that lives as long as it |
| done | carried out: ``status``, ``headers`` and ``body`` are the response, or ``body`` is None where it was not kept |
"""

from __future__ import annotations

import base64
import hashlib
from typing import Any, Final, Literal

import msgspec

PROBLEM: Final = "application/problem+json"
H_REPLAYED: Final = "Idempotent-Replayed"
H_KEPT: Final = "Idempotency-Key-Kept"
"""Seconds for which a recorded response is known at least."""


class Kept(msgspec.Struct, frozen=True):
    """A response: from a handler, from a record, or a refusal."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes | None


class IdempotencyRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """The row of a key. ``at_s`` is when it was written, by the writing service's clock: only forgetting reads it."""

    state: Literal["claimed", "done"]
    fingerprint: str
    owner: str
    attempt: int
    at_s: int
    status: int = 0
    headers: list[tuple[str, str]] = []
    body: str | None = None

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
