"""A service's policy on its idempotency keys: which requests have one, whose it is, how long it is remembered.

Owns: settings and their bounds, and the ``Idempotency-Key`` header (draft-ietf-httpapi-idempotency-key-header). Pure.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

KEY_LENGTH_MAX: Final = 255
RESPONSE_BYTES_MAX: Final = 128 * 1024
"""Most that a response may be set to take in the record: with its base64 it stays inside a row's bound."""
TABLE_DEFAULT: Final = "idempotency"


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
    """Return the key, or None if there is none.

    The draft wants a quoted string; a bare token, which most clients send, means the same.

    Raises:
        ValueError: more than one, or not 1..255 printable ASCII characters.
    """
    if not values:
        return None
    if len(values) > 1:
        raise ValueError("Idempotency-Key is given more than once")
    text = values[0].strip()
    if text.startswith('"'):
        text = _unquoted(text)
    elif any(mark in text for mark in ' ",;\\'):
        raise ValueError("Idempotency-Key is neither a quoted string nor a token")
    if not 1 <= len(text) <= KEY_LENGTH_MAX or not (text.isascii() and text.isprintable()):
        raise ValueError(f"Idempotency-Key must have 1..{KEY_LENGTH_MAX} printable ASCII characters")
    return text


def _unquoted(text: str) -> str:
    if len(text) < 2 or not text.endswith('"'):
        raise ValueError("Idempotency-Key is a string without an end")
    plain: list[str] = []
    letters = iter(text[1:-1])
    for letter in letters:
        if letter == '"':
            raise ValueError("Idempotency-Key goes on behind its string")
        if letter == "\\":
            letter = next(letters, "")
            if letter not in ('"', "\\"):
                raise ValueError("Idempotency-Key escapes what needs no escape")
        plain.append(letter)
    return "".join(plain)
