"""The event-time clock of a flow: the newest event time among the items of a batch. Pure.

Owns: what of an item's value is its event time. The clock at a batch is the newest event time of it and all batches
before; :mod:`oncegate.flows.batch_log` keeps it. It is read from the sealed payload, off the path of writes, by the
node that leads, and ordered in the log, so that every replica has the same. Read next:
:mod:`oncegate.gateway.node.event_clocks`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec
import pyarrow as pa

from oncegate.flows.segment import read_table

EVENT_MS_MAX: Final = 2**53 - 1
NONE: Final = 0
"""Stands for no event time."""


def newest_ms(payload: bytes, field: str) -> int:
    """Return the newest event time of a batch's items, in milliseconds of their own clock; ``NONE`` if none has one.

    Args:
        payload: of the batch (:func:`oncegate.flows.segment.build`).
        field: top-level member of an item's JSON value; a number in 1..EVENT_MS_MAX, else the item has none.
    """
    event_time = _reader(field)
    newest = NONE
    for value in read_table(payload).column("value").cast(pa.binary()).to_pylist():
        if value is None or value[:1] != b"{":
            continue
        try:
            at = event_time(value)
        except msgspec.DecodeError:  # an integer beyond 64 bits somewhere in it
            continue
        if type(at) in (int, float) and newest < at <= EVENT_MS_MAX:
            newest = int(at)
    return newest


def _reader(field: str) -> Callable[[bytes], Any]:
    """Return what reads the member of a JSON object, None where there is none; raises msgspec.DecodeError."""
    if not field.isprintable() or {'"', "\\"} & {*field}:  # names that a JSON text escapes, which a shape cannot have
        decode_all = msgspec.json.Decoder(dict[str, Any]).decode
        return lambda value: decode_all(value).get(field)
    shape: Any = msgspec.defstruct("Event", [("at", Any, None)], rename={"at": field})
    decode = msgspec.json.Decoder(shape).decode
    return lambda value: decode(value).at
