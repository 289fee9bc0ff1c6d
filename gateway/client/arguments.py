"""What the SDK takes: each argument is checked at the call, so that no value can harm the calls of others.

Owns: the bounds of arguments and their refusals: BAD_REQUEST or PAYLOAD_TOO_LARGE, outcome not_applied, before a write
has a number or a request leaves. The bounds are the node's (docs/limits.md); where the node has the last word, such as
on the size of a value in canonical JSON, only what is surely over it is refused here. Knows nothing of calls.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

from oncegate.gateway.client.failures import OperationFailed
from oncegate.gateway.client.settings import Tuning
from oncegate.rifl.errors import Code
from oncegate.rifl.ids import ID_MAX, RANGE_LENGTH_MAX, RequestId, parse_request_id

if TYPE_CHECKING:
    from oncegate.gateway.client.results import Json

Encode: TypeAlias = Callable[[Any], "Json"]
"""Turns an object that JSON has no type for into one that JSON can say."""
NAME: Final = re.compile(r"[a-z0-9][a-z0-9_.-]{0,63}")
"""Of a table, a flow or a consumer."""
KEY_BYTES_MAX: Final = 512
VALUE_BYTES_MAX: Final = 256 * 1024
VALUE_DEPTH_MAX: Final = 64
OPERATIONS_MAX: Final = 4096
NONCE_LENGTH_MAX: Final = 64
TTL_MS_MAX: Final = 366 * 24 * 3_600_000
_WHOLE: Final = {
    "in_flight_max": (1, 16),
    "pipeline_min": (0, ID_MAX),
    "batch_operations_max": (1, OPERATIONS_MAX),
    "batch_bytes_max": (1, ID_MAX),
    "range_min": (1, ID_MAX),
    "range_rows_max": (1, RANGE_LENGTH_MAX),
    "connections_max": (1, 4096),
    "streams_max": (0, 65_536),
    "retry_budget": (0, ID_MAX),
}
_SECONDS: Final = ("linger_s", "attempt_timeout_s", "backoff_first_s", "backoff_cap_s", "retry_after_cap_s")
_PACKED_BYTES_MAX: Final = 3 * VALUE_BYTES_MAX
"""A larger value in msgpack is too large in JSON too: a number takes 9 bytes there, and 3 with its separator here."""
_EXACT: Final = frozenset((str, int, bool, type(None)))
"""Types of values that need no further look."""
_ENCODER: Final = msgspec.msgpack.Encoder().encode
_CANONICAL: Final = msgspec.json.Encoder(order="deterministic").encode


def bad(detail: str) -> OperationFailed:
    """Return a BAD_REQUEST with that detail; it was not applied."""
    return OperationFailed(Code.BAD_REQUEST, detail)


def text(value: Any, what: str, bytes_max: int) -> str:
    """Return a text of at most so many bytes of UTF-8 as a plain ``str``; subclasses may encode or compare otherwise.

    Raises:
        OperationFailed: BAD_REQUEST for what is no text, or has no UTF-8; PAYLOAD_TOO_LARGE.
    """
    if type(value) is not str:
        if not isinstance(value, str):
            raise bad(f"{what} is text, not {type(value).__name__}")
        value = str.__str__(value)
    try:
        size = len(value) if value.isascii() else len(value.encode())
    except UnicodeEncodeError as refused:
        raise bad(f"{what}: UTF-8 cannot say {value!a}") from refused
    if size > bytes_max:
        raise OperationFailed(Code.PAYLOAD_TOO_LARGE, f"{what} is over {bytes_max} bytes")
    return str(value)


@lru_cache(maxsize=1024)
def _name(value: str, what: str) -> str:
    if not NAME.fullmatch(value):
        raise bad(f"{what} must match {NAME.pattern}")
    return value


def name_of(value: Any, what: str = "table") -> str:
    """Return the name of a table, flow or consumer."""
    return _name(value if type(value) is str else text(value, what, KEY_BYTES_MAX), what)


def key_of(value: Any) -> str:
    """Return a row's key: 1 to 512 bytes of UTF-8 without NUL."""
    if type(value) is str and value.isascii() and 0 < len(value) <= KEY_BYTES_MAX and "\0" not in value:
        return value
    value = text(value, "key", KEY_BYTES_MAX)
    if not value or "\0" in value:
        raise bad("key holds a NUL" if value else "key is empty")
    return str(value)


def whole(value: Any, what: str, low: int = 1, high: int = ID_MAX) -> int:
    """Return a whole number in ``low..high``; True and False are none."""
    if not isinstance(value, int) or type(value) is bool or not low <= value <= high:
        raise bad(f"{what} is a whole number in {low}..{high}")
    return int(value)


def flag(value: Any, what: str) -> bool:
    """Return True or False."""
    if value is True or value is False:
        return bool(value)
    raise bad(f"{what} is True or False")


def one_of(value: Any, what: str, known: Collection[str]) -> str:
    """Return one of the words that are known."""
    if isinstance(value, str) and str.__str__(value) in known:
        return str.__str__(value)
    raise bad(f"{what} is one of {', '.join(known)}")


def seconds(value: Any, what: str = "timeout_s") -> float:
    """Return a duration; infinite is one, and one below zero is over."""
    if isinstance(value, (int, float)) and type(value) is not bool and value == value:
        try:
            return float(value)
        except OverflowError:
            pass
    raise bad(f"{what} is a number of seconds")


def tuned(value: Any) -> Tuning:
    """Return how operations travel, each number of it within its bounds; None: the defaults."""
    if value is None:
        return Tuning()
    if not isinstance(value, Tuning):
        raise bad(f"tuning is a Tuning, not {type(value).__name__}")
    for name, (low, high) in _WHOLE.items():
        whole(getattr(value, name), f"Tuning.{name}", low, high)
    for name in _SECONDS:
        if seconds(getattr(value, name), f"Tuning.{name}") < 0:
            raise bad(f"Tuning.{name} is not below zero")
    return value


def request_id(value: Any) -> RequestId:
    """Return a request id, also one that is written as ``client_id/sequence``."""
    try:
        if isinstance(value, str):
            return parse_request_id(value)
        client_id, sequence = value
        written = f"{whole(client_id, 'client id'):016x}"
        return parse_request_id(f"{written}/{whole(sequence, 'sequence')}")
    except (ValueError, TypeError) as malformed:
        raise bad(f"a request id is client_id/sequence: {malformed}") from malformed


def check_json(value: Any, what: str = "value", depth: int = VALUE_DEPTH_MAX) -> None:
    """Refuse what JSON cannot say exactly, rather than convert it: sets, decimals, bytes, times, NaN.

    A tuple is taken and comes back as a list. Whole numbers and texts are not looked at: one over 64 bits, or without
    UTF-8, fails to be encoded as msgpack.
    """
    kind = type(value)
    if not depth and isinstance(value, (dict, list, tuple)):
        raise bad(f"{what} is nested more than {VALUE_DEPTH_MAX} deep")
    if kind is dict or isinstance(value, dict):
        for name, item in dict.items(value):
            if type(name) is not str and not isinstance(name, str):
                raise bad(f"{what} has a key that is not text: JSON has no other")
            if type(item) not in _EXACT:  # here and below, for the most frequent values, a call less
                check_json(item, what, depth - 1)
    elif kind is list or isinstance(value, (list, tuple)):
        for item in tuple.__iter__(value) if isinstance(value, tuple) else list.__iter__(value):
            if type(item) not in _EXACT:
                check_json(item, what, depth - 1)
    elif isinstance(value, float):
        if value - value != 0.0:
            raise bad(f"{what} holds a number that JSON cannot say")
    elif not isinstance(value, (str, int)) and value is not None:
        raise bad(
            f"{what} holds a {kind.__name__}: JSON has no such type, and neither client nor transaction has an encode"
        )


def encoder(value: Any) -> Encode | None:
    """Return what turns objects into JSON, or None."""
    if value is not None and not callable(value):
        raise bad("encode is a function")
    return value  # type: ignore[no-any-return]


def plain(value: Any, encode: Encode | None, what: str = "value", depth: int = VALUE_DEPTH_MAX) -> Any:
    """Return a value in which ``encode`` has turned each object that JSON has no type for into one of JSON.

    Without ``encode``, and where every object is one of JSON, it is the value itself. What ``encode`` returns may hold
    further such objects, up to the depth that a value may have. Keys of dicts are not turned. Bytes that are the whole
    value are left; others are turned like any object.

    Raises:
        OperationFailed: BAD_REQUEST for what ``encode`` raises, with it as the cause, and for too many levels.
    """
    kind = type(value)
    if encode is None or kind in _EXACT or (kind is bytes and depth == VALUE_DEPTH_MAX):
        return value
    if not depth:
        raise bad(f"{what} is nested more than {VALUE_DEPTH_MAX} deep, also by encode")
    if isinstance(value, dict):
        items = dict.items(value)
        if all(type(item) in _EXACT for _, item in items):
            return value
        return {name: plain(item, encode, what, depth - 1) for name, item in items}
    if isinstance(value, (list, tuple)):
        return [item if type(item) in _EXACT else plain(item, encode, what, depth - 1) for item in value]
    if isinstance(value, (str, int, float)):
        return value
    try:
        made = encode(value)
    except Exception as refused:
        raise bad(f"{what}: encode cannot turn a {kind.__name__} into JSON: {refused!a}") from refused
    return made if type(made) is bytes and depth == VALUE_DEPTH_MAX else plain(made, encode, what, depth - 1)


def packed(value: Any, what: str = "value", bytes_max: int = _PACKED_BYTES_MAX, *, bytes_too: bool = False) -> bytes:
    """Return a JSON value as msgpack. ``bytes_too``: it may be bytes, which are no part of a JSON value.

    Raises:
        OperationFailed: BAD_REQUEST as :func:`check_json`; PAYLOAD_TOO_LARGE.
    """
    kind = type(value)
    if kind is dict:
        for name, item in value.items():  # a flat object is what most rows are: spare it the call
            if type(item) not in _EXACT or type(name) is not str:
                check_json(value, what)
                break
    elif kind not in _EXACT and not (bytes_too and kind is bytes):
        check_json(value, what)
    try:
        made = _ENCODER(value)
    except (TypeError, ValueError, OverflowError, RuntimeError, msgspec.MsgspecError) as refused:
        raise bad(f"{what} cannot be encoded: {refused!a}") from refused
    if len(made) > bytes_max:
        raise OperationFailed(Code.PAYLOAD_TOO_LARGE, f"{what} is too large")
    return made


def canonical(value: Any, what: str = "value", *, is_checked: bool = False) -> str:
    """Return a JSON value as canonical text, the form the node hashes: one fingerprint, alone or in a range.

    ``is_checked``: :func:`packed` has taken it.

    Raises:
        OperationFailed: as :func:`packed`.
    """
    if not is_checked and (type(value) is not str or not value.isascii()):
        packed(value, what)  # refuses what this encoding would take, such as larger numbers
    made = _CANONICAL(value)
    if len(made) > VALUE_BYTES_MAX:
        raise OperationFailed(Code.PAYLOAD_TOO_LARGE, f"{what} is over {VALUE_BYTES_MAX} bytes")
    return made.decode()
