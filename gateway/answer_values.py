"""Values of rows inside answers: as the bytes they are kept in, and built only where an answer must have another form.

Owns: values that are not built (:class:`JsonText`, :class:`Packed`), the encoders that know them, and how many bytes of
an answer have to be built. A request may ask for 16 MiB of remembered results or for a page of 4 MiB; built of empty
lists these are millions of objects, and no loop has time for that. Pure.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from oncegate.flows import bytes_text
from oncegate.gateway import wire

BUILT_BYTES_MAX: Final = 32 * 1024
"""Values of an answer up to this size, together, are built at once."""


class JsonText:
    """A value as JSON text, as rows keep it."""

    __slots__ = ("text",)

    def __init__(self, text: bytes) -> None:
        self.text = text


class Packed:
    """A value as msgpack, as another node sent it."""

    __slots__ = ("packed",)

    def __init__(self, packed: bytes) -> None:
        self.packed = packed


def built(text: bytes) -> Any:
    """Return the value that rests in a text."""
    return bytes_text.bytes_of(text) if bytes_text.is_bytes(text) else msgspec.json.decode(text)


def encoding_of(text: bytes | None) -> str | msgspec.UnsetType:
    """Return what stands beside a value in answers, whose form in JSON does not tell that it is bytes."""
    return wire.BASE64 if text is not None and bytes_text.is_bytes(text) else msgspec.UNSET


def shown(text: bytes, before: int = 0) -> Any:
    """Return a row's value for an answer with ``before`` bytes of others; built unless they are too many together."""
    return built(text) if before + len(text) <= BUILT_BYTES_MAX else JsonText(text)


def json_of(value: Any) -> bytes:
    """Return the text in which a value of an answer rests: canonical JSON, or that of bytes."""
    if type(value) is JsonText:
        return value.text
    if type(value) is Packed:
        value = msgspec.msgpack.decode(value.packed)
    return bytes_text.text_of(value) if type(value) is bytes else _canonical(value)


def bytes_to_build(body: Any, *, packed: bool) -> int:
    """Return how many bytes of an answer are values that its form, msgpack or JSON, needs to have built."""
    match body:
        case wire.OperationsResponse(results=results):
            values = [one.value for one in results]
            values += [told.value for one in results if one.writes for write in one.writes for told in _told(write)]
        case wire.TransactionApplied(writes=writes):
            values = [told.value for write in writes for told in _told(write)]
        case wire.RowState():
            values = [body.value]
        case wire.RowPage(rows=rows):
            values = [one.value for one in rows]
        case wire.RowsRead(rows=found):
            values = [one.value for one in found if one is not None]
        case _:
            return 0
    if packed:
        return sum([len(value.text) for value in values if type(value) is JsonText])
    return sum([len(value.packed) for value in values if type(value) is Packed])


def _told(write: wire.TransactionWrite) -> list[wire.TransactionWrite | wire.TakenRow]:
    return [write, *(write.rows or ())]


def _in_json(value: Any) -> Any:
    match value:
        case JsonText(text=text):
            return msgspec.Raw(text)
        case Packed(packed=packed):
            return msgspec.msgpack.decode(packed)
    raise NotImplementedError(f"an answer holds a {type(value).__name__}")


def _in_msgpack(value: Any) -> Any:
    match value:
        case JsonText(text=text):
            return built(text)
        case Packed(packed=packed):
            return msgspec.Raw(packed)
    raise NotImplementedError(f"an answer holds a {type(value).__name__}")


_canonical = msgspec.json.Encoder(order="deterministic").encode
JSON: Final = msgspec.json.Encoder(enc_hook=_in_json)
"""Encodes answers as JSON."""
MSGPACK: Final = msgspec.msgpack.Encoder(enc_hook=_in_msgpack)
"""Encodes answers as msgpack, and what one node answers another."""
