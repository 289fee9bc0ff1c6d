"""Turns request bodies into canonical commands, or refuses them before anything is proposed.

Owns: decoding, limits and canonical form. Pure. A command from here is safe to put into the log: types, ranges, sizes
and JSON values are checked, so that :mod:`oncegate.gateway.machine.machine` need not check them. Ranges have their own
module, :mod:`oncegate.gateway.http.range_bodies`.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, Final, TypeVar, cast

import msgspec

from oncegate.flows.flow import NAME_PATTERN
from oncegate.gateway import wire
from oncegate.gateway.machine import commands as c
from oncegate.rifl.errors import Code, OncegateError
from oncegate.rifl.ids import (
    ID_MAX,
    LEASE_MS_DEFAULT,
    LEASE_MS_MAX,
    LEASE_MS_MIN,
    WINDOW_DEFAULT,
    WINDOW_MAX,
    Fingerprint,
    SequenceNumber,
    parse_client_id,
)
from oncegate.rifl.session import NONCE_LENGTH_MAX, SESSIONS_MAX

VALUE_DEPTH_MAX: Final = 64
OPERATIONS_BYTES_MAX: Final = 4 * 2**20
"""Keys and values of one request in canonical form: half of what a log entry may hold."""
_UNCONDITIONAL: Final[tuple[c.Test, int | bytes | None]] = (c.Test.NONE, None)
_KINDS: Final = {kind.name.lower(): kind.value for kind in c.OpKind}
# Looking a member up in its enum costs more than comparing with it.
_PUT: Final = c.OpKind.PUT.value
_INCREMENT: Final = c.OpKind.INCREMENT.value
_APPEND: Final = c.OpKind.APPEND.value
_GET: Final = c.OpKind.GET.value

T = TypeVar("T")

_canonical = msgspec.json.Encoder(order="deterministic")
_decoders: dict[Any, tuple[msgspec.json.Decoder[Any], msgspec.msgpack.Decoder[Any]]] = {}


def bad(detail: str) -> OncegateError:
    """Return a BAD_REQUEST with that detail."""
    return OncegateError(Code.BAD_REQUEST, detail)


def decode(body: bytes, content_type: str, shape: type[T]) -> T:
    """Read a body as ``shape``, from msgpack if the content type says so, else from JSON.

    Raises:
        OncegateError: BAD_REQUEST with the place of the first fault.
    """
    pair = _decoders.get(shape)
    if pair is None:
        pair = _decoders[shape] = (msgspec.json.Decoder(shape), msgspec.msgpack.Decoder(shape))
    try:
        return cast(T, pair[content_type == wire.MSGPACK].decode(body))
    except RecursionError:
        raise bad("the body is nested too deeply") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as fault:
        raise bad(str(fault)) from None


def canonical_json(value: Any, where: str) -> bytes:
    """Return the canonical JSON text of a decoded value: keys sorted, no blanks.

    Raises:
        OncegateError: BAD_REQUEST for a value that JSON cannot express, PAYLOAD_TOO_LARGE over ``VALUE_BYTES_MAX``.
    """
    if type(value) is not str:
        _check_json(value, where, VALUE_DEPTH_MAX)
    text = _canonical.encode(value)
    if len(text) > c.VALUE_BYTES_MAX:
        raise OncegateError(Code.PAYLOAD_TOO_LARGE, f"{where} is over {c.VALUE_BYTES_MAX} bytes")
    return text


def _check_json(value: Any, where: str, depth: int) -> None:
    kind = type(value)
    if kind is str or kind is bool or value is None:
        return
    if kind is int:
        if not -(2**63) <= value < 2**64:
            raise bad(f"{where} holds an integer of more than 64 bits")
    elif kind is float:
        if not math.isfinite(value):
            raise bad(f"{where} holds a number that JSON cannot express")
    elif depth == 0:
        raise bad(f"{where} is nested more than {VALUE_DEPTH_MAX} deep")
    elif kind is list:
        for item in value:
            if type(item) is not str:
                _check_json(item, where, depth - 1)
    elif kind is dict:
        for name, item in value.items():
            if type(name) is not str:
                raise bad(f"{where} has a key that is not a string")
            if type(item) is not str:
                _check_json(item, where, depth - 1)
    else:
        raise bad(f"{where} holds a type that JSON does not have")


@lru_cache(maxsize=4096)
def check_name(name: str, what: str) -> str:
    """Return a table's, flow's or consumer's name if it is one; raises BAD_REQUEST."""
    if not NAME_PATTERN.fullmatch(name):
        raise bad(f"{what} must match {NAME_PATTERN.pattern}")
    return name


def check_key(key: str, where: str = "key") -> str:
    """Return the key if it has 1..512 bytes of UTF-8 and no NUL."""
    if not key or (len(key) > 128 and len(key.encode()) > c.KEY_BYTES_MAX):
        if key:
            raise OncegateError(Code.PAYLOAD_TOO_LARGE, f"{where} is over {c.KEY_BYTES_MAX} bytes")
        raise bad(f"{where} is empty")
    if "\0" in key:
        raise bad(f"{where} holds a NUL")
    return key


def digits(text: str, what: str) -> int:
    """Return the number that decimal digits write, 20 of them at most; raises BAD_REQUEST."""
    if not text.isascii() or not text.isdigit() or len(text) > 20:
        raise bad(f"{what} is not a number")
    return int(text)


def check_number(number: int, what: str) -> int:
    """Return an id, sequence, commit or batch number if it is in 1..2^53-1."""
    if not 1 <= number <= ID_MAX:
        raise bad(f"{what} must be in 1..2^53-1")
    return number


def check_first_incomplete(number: int) -> SequenceNumber:
    """Return a first incomplete; one beyond every possible sequence number is a BAD_ACK (case 8)."""
    if number > ID_MAX:
        raise OncegateError(Code.BAD_ACK, "first incomplete is beyond every sequence number")
    return SequenceNumber(check_number(number, "first_incomplete"))


def check_client_id(text: str) -> int:
    """Return the number behind a written client id."""
    try:
        return parse_client_id(text)
    except ValueError as fault:
        raise bad(str(fault)) from None


def check_nonce(nonce: str) -> str:
    """Return the nonce if it has 1..64 printable characters."""
    if not 1 <= len(nonce) <= NONCE_LENGTH_MAX or not nonce.isprintable():
        raise bad(f"nonce must have 1..{NONCE_LENGTH_MAX} printable characters")
    return nonce


def operations(request: wire.OperationsRequest, tenant: str = "", traceparent: str = "") -> c.Operate:
    """Translate ``POST /v1/operations``; ``tenant`` is the token's, here and below.

    Raises:
        OncegateError: BAD_REQUEST, BAD_ACK or PAYLOAD_TOO_LARGE; the whole request is refused.
    """
    many = request.operations
    if not many:
        raise bad("operations is empty")
    if len(many) > c.OPERATIONS_MAX:
        raise OncegateError(Code.PAYLOAD_TOO_LARGE, f"more than {c.OPERATIONS_MAX} operations")
    ops = [operation(op, at) for at, op in enumerate(many)]
    if len(ops) > c.APPENDS_MAX and sum([op.kind == _APPEND for op in ops]) > c.APPENDS_MAX:
        raise OncegateError(Code.PAYLOAD_TOO_LARGE, f"more than {c.APPENDS_MAX} appends")
    # Canonical text can be several times as long as the received text (escapes), and the log has its own bound.
    if sum([len(op.key) + len(op.value or b"") for op in ops]) > OPERATIONS_BYTES_MAX:
        raise OncegateError(Code.PAYLOAD_TOO_LARGE, f"the operations are over {OPERATIONS_BYTES_MAX} bytes")
    return c.Operate(
        check_client_id(request.client_id),
        check_number(request.epoch, "epoch"),
        check_first_incomplete(request.first_incomplete),
        ops,
        tenant,
        traceparent,
    )


def resolve(client_id: int, sequence: SequenceNumber, request: wire.ResolveRequest, tenant: str = "") -> c.Resolve:
    """Translate ``POST /v1/requests/{client_id}/{sequence}/resolve``; the ids are checked already."""
    first_incomplete = check_first_incomplete(request.first_incomplete)
    if request.epoch is None:
        if first_incomplete != 1:
            raise bad("only the session's owner acknowledges: first_incomplete needs epoch")
        return c.Resolve(client_id, sequence, tenant=tenant)
    return c.Resolve(client_id, sequence, check_number(request.epoch, "epoch"), first_incomplete, tenant)


def operation(op: wire.Operation, at: int) -> c.Op:
    """Translate one operation, the one at position ``at`` of its request; raises BAD_REQUEST or PAYLOAD_TOO_LARGE."""
    kind = _KINDS.get(op.op)
    if kind is None:
        raise bad(f"operations[{at}].op must be one of {', '.join(_KINDS)}")
    sequence: SequenceNumber = op.sequence  # type: ignore[assignment]  # the hot path spares the call
    if not 1 <= sequence <= ID_MAX:
        raise bad(f"operations[{at}].sequence must be in 1..2^53-1")
    table, key = check_name(op.table, "table"), check_key(op.key)
    test, operand = _UNCONDITIONAL if op.if_ is msgspec.UNSET else _condition(op.if_, at)
    value: bytes | None = None
    by = 0
    if kind == _PUT:
        if op.value is msgspec.UNSET or op.by is not msgspec.UNSET or op.item is not msgspec.UNSET:
            raise bad(f"operations[{at}]: put needs value and takes neither by nor item")
        value = canonical_json(op.value, "value")
        if not test:  # the hot path
            return c.Op(sequence, 1, table, key, c.fingerprint_put(table, key, value), value)
    elif op.value is not msgspec.UNSET:
        raise bad(f"operations[{at}]: {op.op} takes no value")
    if kind == _APPEND:
        if op.item is msgspec.UNSET:
            raise bad(f"operations[{at}]: append needs item")
        value = canonical_json(op.item, "item")
    elif op.item is not msgspec.UNSET:
        raise bad(f"operations[{at}]: {op.op} takes no item")
    if kind == _GET and test:
        raise bad(f"operations[{at}]: get takes no if")
    if kind == _INCREMENT:
        by = op.by if isinstance(op.by, int) else 1
        if not -(2**63) <= by < 2**63:
            raise bad(f"operations[{at}].by must fit 64 bits, signed")
    elif op.by is not msgspec.UNSET:
        raise bad(f"operations[{at}]: {op.op} takes no by")
    draft = c.Op(sequence, kind, table, key, Fingerprint(0), value, by, int(test), operand)
    return msgspec.structs.replace(draft, fingerprint=c.fingerprint(draft))


def _condition(condition: dict[str, Any], at: int) -> tuple[c.Test, int | bytes | None]:
    if len(condition) == 1:
        [(name, operand)] = condition.items()
        if name == "absent" and operand is True:
            return c.Test.ABSENT, None
        if name == "version" and type(operand) is int and 0 <= operand <= ID_MAX:
            return c.Test.VERSION, operand
        if name == "value":
            return c.Test.VALUE, canonical_json(operand, "if.value")
    raise bad(f'operations[{at}].if must be one of {{"absent": true}}, {{"version": n}}, {{"value": v}}')


def open_session(
    request: wire.OpenSession,
    tenant: str = "",
    *,
    sessions_max: int = SESSIONS_MAX,
    tenant_sessions_max: int = SESSIONS_MAX,
) -> c.OpenSession:
    """Translate ``POST /v1/sessions``; the command carries the bounds on live sessions. Raises BAD_REQUEST."""
    lease_ms = LEASE_MS_DEFAULT if request.lease_ms is None else request.lease_ms
    window = WINDOW_DEFAULT if request.window is None else request.window
    if not LEASE_MS_MIN <= lease_ms <= LEASE_MS_MAX:
        raise bad(f"lease_ms must be in {LEASE_MS_MIN}..{LEASE_MS_MAX}")
    if not 1 <= window <= WINDOW_MAX:
        raise bad(f"window must be in 1..{WINDOW_MAX}")
    return c.OpenSession(check_nonce(request.nonce), lease_ms, window, tenant, sessions_max, tenant_sessions_max)
