"""Turns request bodies into canonical commands, or refuses them before anything is proposed.

Owns: decoding, limits and canonical form. Pure. A command from here is safe to put into the log: types, ranges, sizes
and JSON values are checked, so that :mod:`oncegate.gateway.machine.machine` need not check them. Ranges have their own
module, :mod:`oncegate.gateway.http.range_bodies`.

What a body costs is bounded before anything is built of it. A small one (``INLINE_BYTES_MAX``) may be built at once: it
holds no more objects than bytes. Of a large one only the frame is decoded; its values stay bytes, and each is weighed
(:mod:`oncegate.gateway.http.value_weight`) before it is built. Large ones are translated on a thread of their own
(:mod:`oncegate.gateway.http.admission.parsing`), and no step here keeps the interpreter's lock for long.
"""

from __future__ import annotations

import threading
from functools import lru_cache
from math import isfinite
from typing import Any, Final, TypeVar, cast

import msgspec

from oncegate.flows import bytes_text
from oncegate.flows.flow import NAME_PATTERN
from oncegate.flows.parts import PARTS_MAX
from oncegate.gateway import wire
from oncegate.gateway.http import unknown_names, value_weight
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

INLINE_BYTES_MAX: Final = 48 * 1024
"""A body up to this size is built at once, on the event loop; every byte of it may become an object.

What the SDK divides 512 puts of 200 bytes into is below it, with room for keys and for values half as long again.
"""
CONTROL_BYTES_MAX: Final = 32 * 1024
"""Body of a request that carries neither operations nor a value."""
VALUE_SENT_BYTES_MAX: Final = 2 * 2**20
"""A value as it is sent, with its escapes and blanks; in canonical form it has ``VALUE_BYTES_MAX``."""
VALUE_DEPTH_MAX: Final = 64
OPERATIONS_BYTES_MAX: Final = 4 * 2**20
"""Keys and values of one request in canonical form: half of what a log entry may hold."""
_SCALARS: Final = frozenset((str, int, float, bool, type(None)))
_UNSET: Final = msgspec.UNSET
_UNCONDITIONAL: Final[tuple[int, int | bytes | None]] = (c.Test.NONE.value, None)
_NUMBERS: Final = {"at_least": c.Test.AT_LEAST.value, "at_most": c.Test.AT_MOST.value}
_KINDS: Final = {kind.name.lower(): kind.value for kind in c.OpKind if kind is not c.OpKind.TAKE}
# Looking a member up in its enum costs more than comparing with it.
_PUT: Final = c.OpKind.PUT.value
_INCREMENT: Final = c.OpKind.INCREMENT.value
_APPEND: Final = c.OpKind.APPEND.value
_DELETE: Final = c.OpKind.DELETE.value
_GET: Final = c.OpKind.GET.value
_VALUE: Final = c.Test.VALUE.value

T = TypeVar("T")


class Room(threading.local):
    """How many more items the body may have that this thread decodes.

    Each item takes its place when it is built, so that a crowd of tiny ones ends the decoding: 8 MiB hold 200,000, and
    nothing else would run until they were built.
    """

    left = 0

    def __init__(self, most: int, refusal: str) -> None:
        self._most, self._refusal = most, refusal

    def open(self) -> None:
        """Begin with another body."""
        self.left = self._most

    def take(self) -> None:
        """Count one; raises PAYLOAD_TOO_LARGE."""
        self.left -= 1
        if self.left < 0:
            raise OncegateError(Code.PAYLOAD_TOO_LARGE, self._refusal)


_operations_room = Room(c.OPERATIONS_MAX, f"more than {c.OPERATIONS_MAX} operations")
_writes_room = Room(c.OPERATIONS_MAX, f"more than {c.OPERATIONS_MAX} writes")


class _Operation(wire.Operation, forbid_unknown_fields=True, omit_defaults=True, rename={"if_": "if"}):
    """One operation of a large body: what it carries is not built yet."""

    def __post_init__(self) -> None:
        _operations_room.take()

    value: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    if_: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET  # type: ignore[assignment]
    item: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    writes: list[RawWrite] | msgspec.UnsetType = msgspec.UNSET  # type: ignore[assignment]
    conditions: list[RawCondition] | msgspec.UnsetType = msgspec.UNSET  # type: ignore[assignment]


class RawCondition(wire.Condition, omit_defaults=True, forbid_unknown_fields=True, rename={"if_": "if"}):
    """A condition of a large body."""

    if_: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET  # type: ignore[assignment]


class RawWrite(wire.Write, omit_defaults=True, forbid_unknown_fields=True, rename={"if_": "if"}):
    """A write of a transaction of a large body."""

    value: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    if_: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET  # type: ignore[assignment]
    item: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class _Transaction(wire.Transaction, omit_defaults=True, forbid_unknown_fields=True):
    writes: list[RawWrite]  # type: ignore[assignment]
    conditions: list[RawCondition] = msgspec.field(default_factory=list)  # type: ignore[assignment]


class _Operations(wire.OperationsRequest, forbid_unknown_fields=True):
    operations: list[_Operation]  # type: ignore[assignment]


class _Write(wire.CascadeWrite, forbid_unknown_fields=True, omit_defaults=True):
    def __post_init__(self) -> None:
        _writes_room.take()

    value: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class _Cascade(wire.Cascade, forbid_unknown_fields=True, omit_defaults=True):
    writes: list[_Write]  # type: ignore[assignment]


_ANYTHING: Any = Any
_canonical = msgspec.json.Encoder(order="deterministic")
_decoders: dict[Any, tuple[msgspec.json.Decoder[Any], msgspec.msgpack.Decoder[Any]]] = {}


def bad(detail: str) -> OncegateError:
    """Return a BAD_REQUEST with that detail."""
    return OncegateError(Code.BAD_REQUEST, detail)


def decode(body: bytes | msgspec.Raw, content_type: str, shape: type[T]) -> T:
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
        raise bad(unknown_names.explained(str(fault), shape)) from None


def value(body: bytes | msgspec.Raw, content_type: str, where: str = "value") -> Any:
    """Build a value from its text or msgpack.

    Raises:
        OncegateError: BAD_REQUEST, or PAYLOAD_TOO_LARGE for what cannot be within ``VALUE_BYTES_MAX`` in canonical
            form; then nothing was built.
    """
    if content_type == wire.BYTES:
        return bytes(body)
    if len(body) > INLINE_BYTES_MAX:
        packed = content_type == wire.MSGPACK
        if len(body) > VALUE_SENT_BYTES_MAX or value_weight.is_over(bytes(body), c.VALUE_BYTES_MAX, packed=packed):
            raise OncegateError(Code.PAYLOAD_TOO_LARGE, f"{where} is over {c.VALUE_BYTES_MAX} bytes")
    return decode(body, content_type, _ANYTHING)


def canonical_json(value: Any, where: str, *, bytes_too: bool = False) -> bytes:
    """Return the canonical JSON text of a decoded value: keys sorted, no blanks. ``bytes_too``: it may be bytes.

    Raises:
        OncegateError: BAD_REQUEST for a value that JSON cannot express, PAYLOAD_TOO_LARGE over ``VALUE_BYTES_MAX``.
    """
    if bytes_too and type(value) is bytes:
        text = bytes_text.text_of(value)
    else:
        if type(value) is not str:
            _check_json(value, where)
        text = _canonical.encode(value)
    if len(text) > c.VALUE_BYTES_MAX:
        raise OncegateError(Code.PAYLOAD_TOO_LARGE, f"{where} is over {c.VALUE_BYTES_MAX} bytes")
    return text


def _check_json(value: Any, where: str) -> None:
    """Raise BAD_REQUEST for what JSON cannot express or what is nested too deeply: level by level, no call an item."""
    level, depth = [value], VALUE_DEPTH_MAX
    while level:
        inner: list[Any] = []
        for item in level:
            kind = type(item)
            if kind is str:
                continue
            if kind is dict:
                if item:
                    for name in item:
                        if type(name) is not str:
                            raise bad(f"{where} has a key that is not a string")
                    inner += item.values()
            elif kind is list:
                if item:
                    inner += item
            elif kind is int:
                if not -(2**63) <= item < 2**64:
                    raise bad(f"{where} holds an integer of more than 64 bits")
            elif kind is float:
                if not isfinite(item):
                    raise bad(f"{where} holds a number that JSON cannot express")
            elif kind is not bool and item is not None:
                raise bad(f"{where} holds a type that JSON does not have")
        if depth == 0 and not _SCALARS.issuperset(map(type, level)):
            raise bad(f"{where} is nested more than {VALUE_DEPTH_MAX} deep")
        level, depth = inner, depth - 1


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


def number(text: str, what: str, *, least: int = 1) -> int:
    """Read a decimal number in ``least``..2^53-1; raises BAD_REQUEST."""
    value = digits(text, what)
    return value if value == least == 0 else check_number(value, what)


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


def operate(body: bytes, content_type: str, tenant: str, traceparent: str) -> c.Operate:
    """Translate the body of ``POST /v1/operations``; raises as :func:`operations`."""
    if len(body) <= INLINE_BYTES_MAX:
        return operations(decode(body, content_type, wire.OperationsRequest), tenant, traceparent)
    _operations_room.open()
    return operations(decode(body, content_type, _Operations), tenant, traceparent, content_type)


def operations(
    request: wire.OperationsRequest, tenant: str = "", traceparent: str = "", content_type: str = ""
) -> c.Operate:
    """Translate a decoded ``POST /v1/operations``; ``tenant`` is the token's, here and below.

    ``content_type``: that of the values, which are not built yet; empty: they are.

    Raises:
        OncegateError: BAD_REQUEST, BAD_ACK or PAYLOAD_TOO_LARGE; the whole request is refused.
    """
    many = request.operations
    if not many:
        raise bad("operations is empty")
    if len(many) > c.OPERATIONS_MAX:
        raise OncegateError(Code.PAYLOAD_TOO_LARGE, f"more than {c.OPERATIONS_MAX} operations")
    ops = _translated(many, content_type, OPERATIONS_BYTES_MAX)
    client_id, epoch = check_client_id(request.client_id), check_number(request.epoch, "epoch")
    first_incomplete = check_first_incomplete(request.first_incomplete)
    if len(ops) > c.APPENDS_MAX or c.Transaction in map(type, ops):
        _check_count(ops)
    return c.Operate(client_id, epoch, first_incomplete, [*ops], tenant, traceparent, request.in_order)


def _check_count(ops: list[c.Op | c.Transaction]) -> None:
    writes = c.writes_of(ops)
    if len(writes) > c.OPERATIONS_MAX:
        raise OncegateError(Code.PAYLOAD_TOO_LARGE, f"transactions with more than {c.OPERATIONS_MAX} writes")
    if len(writes) > c.APPENDS_MAX and sum([op.kind == _APPEND for op in writes]) > c.APPENDS_MAX:
        raise OncegateError(Code.PAYLOAD_TOO_LARGE, f"more than {c.APPENDS_MAX} appends")


def _translated(many: list[wire.Operation], content_type: str, bytes_max: int) -> list[c.Op | c.Transaction]:
    """Translate operations; values that are not built yet one after the other, so that no more is built than is kept.

    Canonical text can be several times as long as the received text (escapes), and the log has its own bound.
    """
    if not content_type:
        if len(many) == 1 and many[0].writes is _UNSET:
            return [operation(many[0], 0)]  # within the bound: a value has one of its own
        ops = [
            operation(op, at) if op.writes is msgspec.UNSET else transaction_of(op, f"operations[{at}].")
            for at, op in enumerate(many)
        ]
        if sum([len(op.key) + len(op.value or b"") if isinstance(op, c.Op) else _size(op) for op in ops]) > bytes_max:
            raise _over(bytes_max)
        return ops
    ops, size = list[c.Op | c.Transaction](), 0
    for at, op in enumerate(many):
        if op.writes is _UNSET:
            if op.value is not _UNSET and op.item is _UNSET is op.if_:
                op.value = value(op.value, content_type)
            else:
                build(op, content_type, f"operations[{at}]")
            ops.append(operation(op, at))
            op.value = op.item = op.if_ = _UNSET
        else:
            ops.append(transaction_of(op, f"operations[{at}].", content_type, bytes_max - size))
            op.writes, op.conditions = [], []
        size += _size(ops[-1])
        if size > bytes_max:
            raise _over(bytes_max)
    return ops


def build(op: wire.Operation | wire.Write | wire.Condition, content_type: str, where: str) -> None:
    """Build the values of a part of a large body in its place."""
    for name in ("value", "item", "if_"):
        sent = getattr(op, name, msgspec.UNSET)
        if sent is not msgspec.UNSET:
            setattr(op, name, value(sent, content_type, name.rstrip("_")))
    if op.if_ is not msgspec.UNSET and type(op.if_) is not dict:
        raise bad(f"Expected `object` - at `$.{where}.if`")


def _size(op: c.Op | c.Transaction) -> int:
    if isinstance(op, c.Op):
        return len(op.key) + len(op.value or b"")
    return sum([_size(write) for write in op.writes]) + sum([_weight(one) for one in op.conditions])


def _weight(condition: c.Condition) -> int:
    return len(condition.key) + (len(condition.operand) if isinstance(condition.operand, bytes) else 0)


def transaction(body: bytes, content_type: str) -> c.Transaction:
    """Translate the body of ``POST /v1/transactions``; raises as :func:`transaction_of`."""
    if len(body) <= INLINE_BYTES_MAX:
        made = transaction_of(decode(body, content_type, wire.Transaction))
    else:
        made = transaction_of(decode(body, content_type, _Transaction), content_type=content_type)
    _check_count([made])
    return made


def transaction_of(
    sent: wire.Operation | wire.Transaction,
    where: str = "",
    content_type: str = "",
    bytes_max: int = OPERATIONS_BYTES_MAX,
) -> c.Transaction:
    """Translate a transaction, alone or among operations.

    Args:
        sent: with its number among operations, alone 1.
        where: what the places in a refusal begin with.
        content_type: as of :func:`operations`.
        bytes_max: keys and values of its writes in canonical form.

    Raises:
        OncegateError: BAD_REQUEST or PAYLOAD_TOO_LARGE.
    """
    sequence = SequenceNumber(1)
    if isinstance(sent, wire.Operation):
        if sent.op != "transaction" or sent.table or sent.key or _carries_more(sent):
            raise bad(f"{where}op: transaction has writes and conditions, and nothing else has them")
        sequence = SequenceNumber(check_number(sent.sequence, f"{where}sequence"))
    writes, conditions = sent.writes or [], sent.conditions or []
    if not writes:
        raise bad(f"{where}writes is empty")
    for what, count in (("writes", len(writes)), ("conditions", len(conditions))):
        if count > c.TRANSACTION_MAX:
            raise OncegateError(Code.PAYLOAD_TOO_LARGE, f"{where}{what}: more than {c.TRANSACTION_MAX}")
    among = f"{where}writes"
    checked: list[c.Condition] = []
    made: list[c.Op] = []
    size = 0
    for at, condition in enumerate(conditions):
        checked.append(_checked(condition, f"{where}conditions[{at}]", content_type))
        size += _weight(checked[-1])
        if size > bytes_max:
            raise _over(bytes_max)
    for at, write in enumerate(writes):
        if content_type:
            build(write, content_type, f"{where}writes[{at}]")
        if write.op == "take":
            if at != len(writes) - 1:
                raise bad(f"{among}[{at}]: a take is the last write")
            made.append(_take(write, f"{among}[{at}]"))
        else:
            op = wire.Operation(1, write.op, write.table, write.key, *_of_write(write))
            made.append(_placed(c.in_transaction(operation(op, at, among)), write, f"{among}[{at}]"))
        size += _size(made[-1])
        if size > bytes_max:
            raise _over(bytes_max)
    return c.Transaction(sequence, c.fingerprint_transaction(checked, made), checked, made)


def _take(write: wire.Write, where: str) -> c.Op:
    """Translate a take."""
    if not isinstance(write.to, str) or not isinstance(write.count, int):
        raise bad(f"{where}: take needs to and count")
    if any(one is not _UNSET for one in (*_of_write(write)[:6], write.numbered, write.then)):
        raise bad(f"{where}: take takes to, count, ttl_ms and bound, and nothing else")
    table, prefix, to = check_name(write.table, "table"), check_key(write.key), check_key(write.to, "to")
    if not 1 <= write.count <= c.TAKE_MAX:
        raise bad(f"{where}.count must be in 1..{c.TAKE_MAX}")
    if prefix.startswith(to) or to.startswith(prefix):
        raise bad(f"{where}: key and to are prefixes of which neither begins with the other")
    _check_no_longer(to, prefix, f"{where}.to")
    ttl_ms = write.ttl_ms if isinstance(write.ttl_ms, int) else 0
    if write.ttl_ms is not _UNSET and not 1 <= ttl_ms <= c.TTL_MS_MAX:
        raise bad(f"{where}.ttl_ms must be in 1..{c.TTL_MS_MAX}")
    none, unprinted = SequenceNumber(0), Fingerprint(0)
    options = c.Options(ttl_ms, write.bound is True, to=to, count=write.count)
    return c.Op(none, c.OpKind.TAKE.value, table, prefix, unprinted, options=options)


def _placed(op: c.Op, write: wire.Write, where: str) -> c.Op:
    """Return a write that says more of its row's key, or where the row is moved at its end."""
    if _UNSET is write.numbered is write.then is write.to is write.count:
        return op
    if write.to is not _UNSET or write.count is not _UNSET:
        raise bad(f"{where}: to and count are for take")
    numbered, then = write.numbered is True, write.then if isinstance(write.then, str) else ""
    if op.kind != _PUT or op.test:
        raise bad(f"{where}: numbered and then are for a put without if")
    if numbered and len(op.key.encode()) + c.NUMBER_DIGITS > c.KEY_BYTES_MAX:
        raise OncegateError(Code.PAYLOAD_TOO_LARGE, f"{where}.key is over {c.KEY_BYTES_MAX} bytes with its number")
    if write.then is not _UNSET:
        if op.options is None:
            raise bad(f"{where}: then is for a row that ends, by ttl_ms or bound")
        if check_key(then, "then") == op.key:
            raise bad(f"{where}.then is the row's own key")
        _check_no_longer(then, op.key, f"{where}.then")
    return c.with_options(op, numbered=numbered, then=then)


def _check_no_longer(moved: str, key: str, where: str) -> None:
    """Refuse a key that rows are moved to if it is longer: a table that is full must not grow by that."""
    if len(moved.encode()) > len(key.encode()):
        raise bad(f"{where} must not be longer than key")


def _of_write(write: wire.Write) -> tuple[Any, ...]:
    return write.value, write.by, write.if_, write.item, write.floor, write.ceiling, write.ttl_ms, write.bound


def _carries_more(op: wire.Operation) -> bool:
    more = (op.value, op.by, op.if_, op.item, op.floor, op.ceiling, op.ttl_ms, op.bound)
    return any(one is not msgspec.UNSET for one in more)


def _checked(condition: wire.Condition, where: str, content_type: str) -> c.Condition:
    if content_type:
        build(condition, content_type, where)
    if isinstance(condition.session, str):
        if any(one is not msgspec.UNSET for one in (condition.table, condition.key, condition.if_)):
            raise bad(f"{where}: a condition is of a row or of a session")
        return c.Condition("", "", c.Test.SESSION_LIVE.value, check_client_id(condition.session))
    if isinstance(condition.table, str) and isinstance(condition.key, str) and isinstance(condition.if_, dict):
        test, operand = _condition(condition.if_, where)
        return c.Condition(check_name(condition.table, "table"), check_key(condition.key), test, operand)
    raise bad(f"{where} needs table, key and if, or session")


def _over(bytes_max: int) -> OncegateError:
    return OncegateError(Code.PAYLOAD_TOO_LARGE, f"the operations are over {bytes_max} bytes: send fewer at once")


def cascade_of(flow: str, consumer: str, body: bytes, content_type: str, traceparent: str) -> c.Cascade:
    """Translate the body of ``POST /v1/flows/{flow}/consumers/{name}/cascade``; raises as :func:`cascade`."""
    if len(body) <= INLINE_BYTES_MAX:
        return cascade(flow, consumer, decode(body, content_type, wire.Cascade), traceparent)
    _writes_room.open()
    return cascade(flow, consumer, decode(body, content_type, _Cascade), traceparent, content_type)


def cascade(
    flow: str, consumer: str, request: wire.Cascade, traceparent: str = "", content_type: str = ""
) -> c.Cascade:
    """Translate a decoded part of a cascade; ``content_type`` as of :func:`operations`.

    Raises:
        OncegateError: BAD_REQUEST or PAYLOAD_TOO_LARGE.
    """
    check_number(request.batch, "batch")
    check_number(request.fence, "fence")
    if not 1 <= request.part <= PARTS_MAX:
        raise bad(f"part must be in 1..{PARTS_MAX}")
    if not request.writes and not request.last:
        raise bad("writes is empty; only the last part may be")
    if len(request.writes) > c.OPERATIONS_MAX:
        raise OncegateError(Code.PAYLOAD_TOO_LARGE, f"more than {c.OPERATIONS_MAX} writes")
    many = [
        wire.Operation(at + 1, one.op, one.table, one.key, one.value, one.by) for at, one in enumerate(request.writes)
    ]
    ops = [op for op in _translated(many, content_type, c.PART_BYTES_MAX) if isinstance(op, c.Op)]
    fingerprint = c.fingerprint_part(ops, last=request.last)
    return c.Cascade(
        flow, consumer, request.batch, request.part, request.fence, request.last, fingerprint, ops, traceparent
    )


def resolve(client_id: int, sequence: SequenceNumber, request: wire.ResolveRequest, tenant: str = "") -> c.Resolve:
    """Translate ``POST /v1/requests/{client_id}/{sequence}/resolve``; the ids are checked already."""
    first_incomplete = check_first_incomplete(request.first_incomplete)
    if request.epoch is None:
        if first_incomplete != 1:
            raise bad("only the session's owner acknowledges: first_incomplete needs epoch")
        return c.Resolve(client_id, sequence, tenant=tenant)
    return c.Resolve(client_id, sequence, check_number(request.epoch, "epoch"), first_incomplete, tenant)


def operation(op: wire.Operation, at: int, among: str = "operations") -> c.Op:
    """Translate one operation, the one at position ``at`` of its request; raises BAD_REQUEST or PAYLOAD_TOO_LARGE."""
    if op.op == "put" and _UNSET is op.if_ is op.by is op.item is op.floor is op.ceiling is op.ttl_ms is op.bound:
        sent, key = op.value, op.key
        usual = type(sent) is not bytes and sent is not _UNSET and 0 < len(key) <= 128 and "\0" not in key
        if usual and 1 <= op.sequence <= ID_MAX:
            table = check_name(op.table, "table")
            text = _canonical.encode(sent) if type(sent) is str else canonical_json(sent, "value")
            if len(text) > c.VALUE_BYTES_MAX:
                raise OncegateError(Code.PAYLOAD_TOO_LARGE, f"value is over {c.VALUE_BYTES_MAX} bytes")
            return c.Op(op.sequence, _PUT, table, key, c.fingerprint_put(table, key, text), text)  # type: ignore[arg-type]
    return any_operation(op, at, among)


def any_operation(op: wire.Operation, at: int, among: str = "operations") -> c.Op:
    """Say the same as :func:`operation` of every operation, step by step."""
    kind = _KINDS.get(op.op)
    if kind is None:
        raise bad(f"{among}[{at}].op must be one of {', '.join(_KINDS)}")
    sequence: SequenceNumber = op.sequence  # type: ignore[assignment]  # the hot path spares the call
    if not 1 <= sequence <= ID_MAX:
        raise bad(f"{among}[{at}].sequence must be in 1..2^53-1")
    table, key = check_name(op.table, "table"), check_key(op.key)
    test, operand = _UNCONDITIONAL if op.if_ is msgspec.UNSET else _condition(op.if_, f"{among}[{at}]")
    value: bytes | None = None
    by = 0
    if kind == _PUT:
        if op.value is msgspec.UNSET or op.by is not msgspec.UNSET or op.item is not msgspec.UNSET:
            raise bad(f"{among}[{at}]: put needs value and takes neither by nor item")
        value = canonical_json(op.value, "value", bytes_too=True)
    elif op.value is not msgspec.UNSET:
        raise bad(f"{among}[{at}]: {op.op} takes no value")
    if kind == _APPEND:
        if op.item is msgspec.UNSET:
            raise bad(f"{among}[{at}]: append needs item")
        value = canonical_json(op.item, "item")
    elif op.item is not msgspec.UNSET:
        raise bad(f"{among}[{at}]: {op.op} takes no item")
    if kind == _GET and test:
        raise bad(f"{among}[{at}]: get takes no if")
    if kind == _INCREMENT:
        by = op.by if isinstance(op.by, int) else 1
        if not -(2**63) <= by < 2**63:
            raise bad(f"{among}[{at}].by must fit 64 bits, signed")
    elif op.by is not msgspec.UNSET:
        raise bad(f"{among}[{at}]: {op.op} takes no by")
    draft = c.Op(sequence, kind, table, key, Fingerprint(0), value, by, test, operand)
    floor, ceiling = _edge(op.floor), _edge(op.ceiling)
    if floor is not None or ceiling is not None:
        if kind != _INCREMENT:
            raise bad(f"{among}[{at}]: {op.op} takes neither floor nor ceiling")
        draft = c.with_options(draft, floor=floor, ceiling=ceiling)
    if op.ttl_ms is not _UNSET or op.bound is not _UNSET:
        ttl_ms = op.ttl_ms if isinstance(op.ttl_ms, int) else None
        return lasting(draft, ttl_ms, f"{among}[{at}].", bound=op.bound is True)
    return msgspec.structs.replace(draft, fingerprint=c.fingerprint(draft))


def lasting(op: c.Op, ttl_ms: int | None, where: str = "", *, bound: bool = False) -> c.Op:
    """Return a write whose row ends: after a time, or with the session if it is ``bound``; ``where`` it was said.

    Raises:
        OncegateError: BAD_REQUEST for an operation that leaves no row, or a time that is too short or too long.
    """
    if op.kind in (_DELETE, _GET):
        raise bad(f"{where}ttl_ms and bound are for what writes a row")
    if ttl_ms is not None and not 1 <= ttl_ms <= c.TTL_MS_MAX:
        raise bad(f"{where}ttl_ms must be in 1..{c.TTL_MS_MAX}")
    draft = c.with_options(op, ttl_ms=ttl_ms or 0, bound=bound)
    return msgspec.structs.replace(draft, fingerprint=c.fingerprint(draft))


def _edge(bound: int | msgspec.UnsetType) -> int | None:
    if not isinstance(bound, int):
        return None
    if not -(2**63) <= bound < 2**63:
        raise bad("floor and ceiling must fit 64 bits, signed")
    return bound


def _condition(condition: dict[str, Any], where: str) -> tuple[int, int | bytes | None]:
    if len(condition) == 1:
        [(name, operand)] = condition.items()
        if name == "absent" and operand is True:
            return c.Test.ABSENT.value, None
        if name == "version" and type(operand) is int and 0 <= operand <= ID_MAX:
            return c.Test.VERSION.value, operand
        if name == "value":
            return c.Test.VALUE.value, canonical_json(operand, "if.value", bytes_too=True)
        if name == "present" and operand is True:
            return c.Test.PRESENT.value, None
        if name in _NUMBERS and type(operand) is int and -(2**63) <= operand < 2**63:
            return _NUMBERS[name], operand
    known = '{"absent": true}, {"present": true}, {"version": n}, {"value": v}, {"at_least": n}, {"at_most": n}'
    raise bad(f"{where}.if must be one of {known}")


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
