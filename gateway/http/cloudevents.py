"""CloudEvents 1.0 over HTTP: reads binary, structured and batched mode into one canonical form.

Owns: reading the three modes (HTTP Protocol Binding §3) and checking the context attributes (specification §3).
Pure. An event becomes a put. Its row key is ``source`` and ``id`` with a blank between; a source holds no blank, so two
events share a row only if both are equal. Its value is the event in the JSON Event Format with all attributes.
``source`` and ``id`` are also its idempotency key, in the table it is sent to.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

import msgspec

from oncegate.gateway import wire
from oncegate.gateway.http import request_bodies
from oncegate.gateway.machine import commands as c
from oncegate.rifl.errors import Code, OncegateError
from oncegate.rifl.ids import SequenceNumber
from oncegate.rifl.key_table import NO_TIME

STRUCTURED: Final = "application/cloudevents+json"
BATCH: Final = "application/cloudevents-batch+json"
_FAMILY: Final = "application/cloudevents"
_PREFIX: Final = "ce-"
_REQUIRED: Final = ("id", "source", "type")
_NAME = re.compile(r"[a-z0-9]{1,64}", re.ASCII)
_TIME = re.compile(
    r"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])[Tt]([01]\d|2[0-3]):[0-5]\d:([0-5]\d|60)(\.\d{1,18})?"
    r"([Zz]|[+-]([01]\d|2[0-3]):[0-5]\d)",
    re.ASCII,
)
_URI = re.compile(r"[^\s\"<>\\^`{|}]+")
_ABSOLUTE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:.+", re.ASCII)
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]")
_JSON_TYPE = re.compile(r"[^/;\s]+/([^/;\s]+\+)?json", re.IGNORECASE)
_INT32: Final = range(-(2**31), 2**31)


_TOO_MANY: Final = f"more than {c.OPERATIONS_MAX} events"
_room = request_bodies.Room(c.OPERATIONS_MAX, _TOO_MANY)


class _Head(msgspec.Struct):
    """What every event has: a list of these is no list of a million numbers."""

    specversion: str
    id: str
    source: str
    type: str

    def __post_init__(self) -> None:
        _room.take()


class CloudEvent(NamedTuple):
    """An event in canonical form."""

    source: str
    id: str
    op: c.Op

    def keyed(self) -> c.KeyedOp:
        """Return the operation under its idempotency key."""
        return c.KeyedOp(f"e\0{self.op.table}\0{self.source}\0{self.id}", NO_TIME, self.op)


def is_batch(content_type: str) -> bool:
    """Tell whether a body holds several events."""
    return content_type == BATCH


def read(table: str, content_type: str, headers: Iterable[tuple[str, str]], body: bytes) -> list[CloudEvent]:
    """Translate a request in any mode; ``content_type`` is without parameters, in lower case.

    Raises:
        OncegateError: BAD_REQUEST, UNSUPPORTED_MEDIA_TYPE for a format other than JSON, PAYLOAD_TOO_LARGE.
    """
    if content_type == STRUCTURED:
        return [_event(table, _object(body, "the event"), "")]
    if content_type == BATCH:
        return _events(table, body)
    if content_type.startswith(_FAMILY):
        raise OncegateError(Code.UNSUPPORTED_MEDIA_TYPE, f"events come as {STRUCTURED}, {BATCH} or in binary mode")
    return [_event(table, _binary(headers, body), "")]


def _events(table: str, body: bytes) -> list[CloudEvent]:
    """Build one event after the other, so that no more is built than is kept."""
    if len(body) > request_bodies.INLINE_BYTES_MAX:
        # Ends at the first that is no event, or is too many, so that what is cut into pieces below has few of them.
        _room.open()
        request_bodies.decode(body, wire.JSON, list[_Head])
    many = request_bodies.decode(body, wire.JSON, list[msgspec.Raw])
    if len(many) > c.OPERATIONS_MAX:
        raise OncegateError(Code.PAYLOAD_TOO_LARGE, _TOO_MANY)
    events, size = [], 0
    for at, sent in enumerate(many):
        where = f"events[{at}]: "
        event = _event(table, _object(sent, f"{where}the event"), where)
        events.append(event)
        size += len(event.op.key) + len(event.op.value or b"")
        if size > request_bodies.OPERATIONS_BYTES_MAX:
            raise OncegateError(
                Code.PAYLOAD_TOO_LARGE, f"the events are over {request_bodies.OPERATIONS_BYTES_MAX} bytes"
            )
    return events


def _object(sent: bytes | msgspec.Raw, where: str) -> dict[str, Any]:
    found = request_bodies.value(sent, wire.JSON, where)
    if type(found) is not dict:
        raise request_bodies.bad(f"{where} is no object")
    return found


def _binary(headers: Iterable[tuple[str, str]], body: bytes) -> dict[str, Any]:
    attributes: dict[str, Any] = {}
    content_type: str | None = None
    for name, text in headers:
        lowered = name.lower()
        if lowered == "content-type":
            content_type = text
        elif lowered.startswith(_PREFIX):
            attribute = lowered.removeprefix(_PREFIX)
            if attribute in attributes:
                raise request_bodies.bad(f"{lowered} is given more than once")
            if attribute in ("datacontenttype", "data", "data_base64"):
                raise request_bodies.bad(
                    f"{lowered} is no attribute of an event: Content-Type and the body take its place"
                )
            attributes[attribute] = _header_value(lowered, text)
    if "specversion" not in attributes:
        raise request_bodies.bad(f"not an event: neither {STRUCTURED} nor a ce-specversion header")
    if content_type is not None:
        attributes["datacontenttype"] = content_type
    if body:
        attributes.update(_data(content_type or "", body))
    return attributes


def _header_value(name: str, text: str) -> str:
    """Undo the percent-encoding, and the quotes that older senders put around it (Protocol Binding §3.1.3.2)."""
    if len(text) > 1 and text[0] == text[-1] == '"':
        text = re.sub(r"\\(.)", r"\1", text[1:-1])
    try:
        return unquote(text, errors="strict")
    except UnicodeDecodeError:
        raise request_bodies.bad(f"{name} is not percent-encoded UTF-8") from None


def _data(content_type: str, body: bytes) -> dict[str, Any]:
    media = content_type.partition(";")[0].strip()
    if _JSON_TYPE.fullmatch(media):
        return {"data": request_bodies.value(body, wire.JSON, "data")}
    if len(body) > c.VALUE_BYTES_MAX:
        raise OncegateError(Code.PAYLOAD_TOO_LARGE, f"data is over {c.VALUE_BYTES_MAX} bytes")
    if media.lower().startswith("text/"):
        try:
            return {"data": body.decode()}
        except UnicodeDecodeError:
            pass  # another charset: kept as bytes
    return {"data_base64": base64.b64encode(body).decode()}


def _event(table: str, given: dict[str, Any], where: str) -> CloudEvent:
    event = {name: value for name, value in given.items() if value is not None or name == "data"}
    if event.get("specversion") != "1.0":
        raise request_bodies.bad(f"{where}specversion must be 1.0")
    for name in _REQUIRED:
        if name not in event:
            raise request_bodies.bad(f"{where}{name} is missing")
    for name, value in event.items():
        if name not in ("data", "data_base64"):
            _check_attribute(name, value, where)
    if "data_base64" in event:
        _check_base64(event, where)
    source, event_id = event["source"], event["id"]
    key = request_bodies.check_key(f"{source} {event_id}", f"{where}source and id")
    value = request_bodies.canonical_json(event, f"{where}the event")
    fingerprint = c.fingerprint_put(table, key, value)
    op = c.Op(SequenceNumber(0), int(c.OpKind.PUT), table, key, fingerprint, value)
    return CloudEvent(source, event_id, op)


def _check_attribute(name: str, value: Any, where: str) -> None:
    if not _NAME.fullmatch(name):
        raise request_bodies.bad(f"{where}attribute names have 1..64 lower-case letters and digits")
    if type(value) is str:
        if _CONTROL.search(value):
            raise request_bodies.bad(f"{where}{name} holds a control character")
    elif name in _TEXTS or not (type(value) is bool or (type(value) is int and value in _INT32)):
        raise request_bodies.bad(
            f"{where}{name} must be a string" + ("" if name in _TEXTS else ", a boolean or a 32-bit integer")
        )
    if name in _TEXTS and not value:
        raise request_bodies.bad(f"{where}{name} is empty")
    if name == "source" and not _URI.fullmatch(value):
        raise request_bodies.bad(f"{where}source must be a URI reference")
    if name == "dataschema" and not (_URI.fullmatch(value) and _ABSOLUTE.fullmatch(value)):
        raise request_bodies.bad(f"{where}dataschema must be a URI")
    if name == "time" and not _TIME.fullmatch(value):
        raise request_bodies.bad(f"{where}time must have the form of RFC 3339")


def _check_base64(event: dict[str, Any], where: str) -> None:
    if "data" in event:
        raise request_bodies.bad(f"{where}data and data_base64 exclude each other")
    try:
        if type(event["data_base64"]) is str:
            base64.b64decode(event["data_base64"], validate=True)
            return
    except (binascii.Error, ValueError):
        pass
    raise request_bodies.bad(f"{where}data_base64 must be a string in Base64")


_TEXTS: Final = frozenset(("id", "source", "specversion", "type", "datacontenttype", "dataschema", "subject", "time"))
