"""Writes under an idempotency key: for what comes to the application more than once, to whichever of its processes.

Owns: the requests with ``Idempotency-Key``, and what their answers mean. A webhook's or message's own id is the key:
the first request with it is executed, every later one, of any process or session, gets its result. The cluster
remembers a key for as long as the answer says (``memory_ms_left``; 24 h by default), and a key that names its time,
``oncegate-<ms>-<anything>``, is never executed again (docs/decisions/0012-idempotency-keys.md).

Every such write is a transaction, also one of a single row. It has no place in the order of a session.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from oncegate.gateway.client.arguments import bad
from oncegate.gateway.client.courier import Call
from oncegate.gateway.client.failures import UNREADABLE
from oncegate.gateway.client.results import Json, WriteResult
from oncegate.gateway.client.transaction import Transaction, operation_of
from oncegate.gateway.client.verdicts import write_result
from oncegate.gateway.wire import (
    H_IDEMPOTENCY_KEY,
    H_MEMORY_MS,
    H_REPLAYED,
    JSON,
    MSGPACK,
    OperationResult,
    TransactionApplied,
    TransactionWrite,
)
from oncegate.gateway.wire import Transaction as Body
from oncegate.rifl.ids import parse_request_id

if TYPE_CHECKING:
    from oncegate.gateway.client.connection import Connection

PATH: Final = "/v1/transactions"
REFUSED: Final = frozenset((409, 412))
"""Statuses that business refusals have."""
_KEY: Final = re.compile(r"[ -~]{1,255}", re.ASCII)
_ENCODE: Final = msgspec.msgpack.Encoder().encode


class _Refused(msgspec.Struct):
    """A business refusal; a problem of another kind has no ``request``. That of an absent row has no ``version``."""

    code: str
    request: str
    commit: int
    failed: str
    version: int = 0
    value: Json = None
    encoding: str | msgspec.UnsetType = msgspec.UNSET


class KeyedCall(Call[WriteResult]):
    """``POST /v1/transactions`` under a key; the same bytes in every attempt."""

    __slots__ = ()

    def __init__(self, transaction: Transaction, key: str, headers: Mapping[str, str], deadline: float) -> None:
        operation = operation_of(transaction)
        quoted = '"' + key.replace("\\", "\\\\").replace('"', '\\"') + '"'
        more = {H_IDEMPOTENCY_KEY: quoted, "Content-Type": MSGPACK, "Accept": JSON}
        body = _ENCODE(Body(operation.writes or [], operation.conditions or []))
        super().__init__("POST", PATH, deadline=deadline, headers={**headers, **more}, body=body)

    def takes(self, status: int, payload: bytes) -> bool:
        """Tell whether an answer beyond 2xx is a result: a business refusal is."""
        if status not in REFUSED:
            return False
        try:
            msgspec.json.decode(payload, type=_Refused)
        except UNREADABLE:
            return False
        return True

    def accept(self, status: int, headers: Mapping[str, str], payload: bytes) -> WriteResult:
        """Return the result."""
        replayed, memory_ms = H_REPLAYED in headers, int(headers.get(H_MEMORY_MS, "0"))
        if status in REFUSED:
            no = msgspec.json.decode(payload, type=_Refused)
            client_id, sequence = parse_request_id(no.request)
            told = OperationResult(
                sequence, "refused", no.commit, no.version, no.value, failed=no.failed, replayed=replayed, code=no.code
            )
            told.encoding = no.encoding
            return write_result(told, client_id, memory_ms)
        done = msgspec.json.decode(payload, type=TransactionApplied)
        client_id, sequence = parse_request_id(done.request)
        told = OperationResult(sequence, "applied", done.commit, writes=done.writes, replayed=replayed)
        return write_result(told, client_id, memory_ms)


def naming(cluster_time_ms: int, name: str | None) -> str:
    """Return a key that names a cluster time; raises BAD_REQUEST for what no key may have."""
    key = f"oncegate-{cluster_time_ms}-{secrets.token_hex(16) if name is None else name}"
    if not isinstance(name, str | None) or not _KEY.fullmatch(key):
        raise bad("the name of an idempotency key is printable characters of ASCII, 255 with the time before it")
    return key


async def send(connection: Connection, transaction: Transaction, key: Any, timeout_s: float | None) -> WriteResult:
    """Execute a transaction once for its key, and return its result, new or replayed.

    Raises:
        OperationFailed: PAYLOAD_MISMATCH if the key was used for another content; as a write of a session.
    """
    if not isinstance(key, str) or not _KEY.fullmatch(key):
        raise bad("an idempotency key is 1 to 255 printable characters of ASCII")
    result = await connection.perform(KeyedCall(transaction, key, connection.headers, connection.deadline(timeout_s)))
    connection.saw(result.commit)
    return result


async def send_one(
    connection: Connection, transaction: Transaction, key: Any, timeout_s: float | None
) -> WriteResult[Any]:
    """The same for a transaction of a single write: the result is that of the write."""
    whole = await send(connection, transaction, key, timeout_s)
    if not whole.applied:
        return whole
    one: TransactionWrite = whole.writes[0]
    value = None if one.value is msgspec.UNSET else one.value
    return msgspec.structs.replace(whole, version=one.version, value=value, writes=())
