"""What the driver's errors mean: try again, try with fewer rows, this row will never do, or this store will not.

Owns: the one mapping of cassandra-driver's errors to ours. Pure. Read next: :mod:`oncegate.stores.errors`.
"""

from __future__ import annotations

import re
from typing import Final

from cassandra import (
    AuthenticationFailed,
    CoordinationFailure,
    DriverException,
    InvalidRequest,
    OperationTimedOut,
    Timeout,
    Unavailable,
    UnresolvableContactPoints,
)
from cassandra.cluster import NoHostAvailable
from cassandra.connection import ConnectionException
from cassandra.protocol import ErrorMessage, IsBootstrappingErrorMessage, OverloadedErrorMessage, ServerError

from oncegate.stores.errors import StoreCode, StoreError

_TRANSIENT: Final = (
    CoordinationFailure,
    ConnectionException,
    IsBootstrappingErrorMessage,
    NoHostAvailable,
    OperationTimedOut,
    OverloadedErrorMessage,
    ServerError,
    Timeout,
    Unavailable,
    UnresolvableContactPoints,
)
FAILURES: Final = (*_TRANSIENT, DriverException, ErrorMessage)
"""All that the driver raises of a server's answer, or of none."""
_FEWER_MAY_DO: Final = (CoordinationFailure, InvalidRequest, OperationTimedOut, Timeout)
_MISSING: Final = re.compile(r"(keyspace|table) \S+ does not exist|unconfigured table", re.IGNORECASE)
_DISK_FULL: Final = re.compile(r"disk.usage", re.IGNORECASE)
_DETAIL_MAX: Final = 300


def transient(error: Exception) -> bool:
    """Whether the same request may succeed later: nobody answered, or a server could not do it now."""
    if isinstance(error, NoHostAvailable):
        return not any(_closed_door(one) for one in _causes(error))
    # The server says so by a refusal of the request, though nothing is wrong with it.
    return isinstance(error, _TRANSIENT) or (isinstance(error, InvalidRequest) and bool(_DISK_FULL.search(str(error))))


def refuses_content(error: Exception) -> bool:
    """Whether the server refused a request for what it holds."""
    return isinstance(error, InvalidRequest) and not transient(error) and not _MISSING.search(str(error))


def fewer_may_do(error: Exception) -> bool:
    """Whether half of the rows at once may succeed."""
    return isinstance(error, _FEWER_MAY_DO)


def reason(error: Exception) -> str:
    """Return what the server said of a row, bounded, without the key that it may name."""
    found = re.search(r'message="(.{1,120}?)( for keyspace|"|$)', str(error))
    return f"the server: {found[1] if found else type(error).__name__}"


def translated(error: Exception, place: str) -> StoreError:
    """Return our error for one that is not tried again, or no longer; ``place`` names cluster and keyspace."""
    text = f"{place}: {type(error).__name__} {error}"[:_DETAIL_MAX]
    if transient(error):
        return StoreError(StoreCode.STORE_UNAVAILABLE, text)
    if isinstance(error, InvalidRequest) and _MISSING.search(str(error)):
        return StoreError(
            StoreCode.STORE_MISMATCH, f"{place} lacks the keyspace or the table: `oncegate store init` creates them"
        )
    if isinstance(error, InvalidRequest):
        return StoreError(StoreCode.STORE_MISMATCH, text)
    if isinstance(error, NoHostAvailable):
        return StoreError(
            StoreCode.STORE_REFUSED, f"{place}: {next(filter(_closed_door, _causes(error)))}"[:_DETAIL_MAX]
        )
    return StoreError(StoreCode.STORE_REFUSED, text)


def _causes(error: NoHostAvailable) -> list[Exception]:
    return list(error.errors.values()) if isinstance(error.errors, dict) else []


def _closed_door(error: Exception) -> bool:
    """Whether a server, or our check of it, refused the connection for good: credentials or certificates."""
    text = str(error)
    if isinstance(error, AuthenticationFailed):
        # A server whose own tables of users do not answer says this.
        return "Unable to perform authentication" not in text
    return isinstance(error, OSError) and ("CERTIFICATE" in text or "WRONG_VERSION_NUMBER" in text)
