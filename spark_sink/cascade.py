"""One flow batch back into the gateway: derive, cut into parts, write each once, the cursor with the last. No Spark.

Owns: the writes that a derivation may yield, where parts are cut, and the dead letters of a job that has no store. A
job that writes to the gateway and one that writes to a store compose: the tables of the one have flows that the other
reads. Must not know Spark or HTTP. Read next: `cascade_sink`, `flow_client`, `oncegate.flows.parts`.

A derivation yields the same writes for the same batch, in the same order, so the parts are the same in every attempt,
whoever makes it. The gateway refuses a part whose content differs from what was written as that part.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol, TypeAlias

import numpy as np

from oncegate.spark_sink.applying import Done
from oncegate.spark_sink.derivation import ERROR_CHARACTERS_MAX, FlowBatch, Reject, settled
from oncegate.spark_sink.errors import SinkError
from oncegate.stores.errors import StoreCode

KEY_BYTES_MAX: Final = 512
VALUE_BYTES_MAX: Final = 256 * 1024
DEPTH_MAX: Final = 64
PART_BYTES: Final = 512 * 1024
"""A part is cut where it would be larger: half of what the gateway takes, which counts by other texts."""
PART_WRITES: Final = 2_048
_RAW_CHARACTERS_MAX: Final = 32 * 1024
HELD_MAX: Final = 100_000
"""Writes of a batch up to which an item that makes the derivation fail is found and laid aside."""


@dataclass(frozen=True, slots=True)
class Put:
    """Write ``value``, JSON data, to a row of a table of the gateway.

    Raises:
        ValueError: the gateway would refuse key or value; in a derivation that makes the item a dead letter.
    """

    table: str
    key: str
    value: Any
    text: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        _check_value(self.value, DEPTH_MAX)
        value = _json(self.value)
        if len(value.encode()) > VALUE_BYTES_MAX:
            raise ValueError(f"a value of more than {VALUE_BYTES_MAX} bytes")
        object.__setattr__(self, "text", _written("put", self.table, self.key, f',"value":{value}'))


@dataclass(frozen=True, slots=True)
class Remove:
    """Delete a row of a table of the gateway; raises ValueError as `Put`."""

    table: str
    key: str
    text: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", _written("delete", self.table, self.key, ""))


@dataclass(frozen=True, slots=True)
class Increment:
    """Add ``by`` to a row of a resident table that is an integer or absent; raises ValueError as `Put`.

    Counted once a batch. A batch that is read again on purpose, as a replay, is counted again.
    """

    table: str
    key: str
    by: int = 1
    text: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        _check_value(self.by, 0)
        object.__setattr__(self, "text", _written("increment", self.table, self.key, f',"by":{self.by}'))


Write: TypeAlias = Put | Remove | Increment
WriteDerivation: TypeAlias = Callable[[FlowBatch], Iterable[Write | Reject]]


def _written(op: str, table: str, key: str, more: str) -> str:
    if not 1 <= len(key.encode()) <= KEY_BYTES_MAX or "\0" in key:
        raise ValueError(f"a key has 1..{KEY_BYTES_MAX} bytes and no NUL")
    return f'{{"op":"{op}","table":{_json(table)},"key":{_json(key)}{more}}}'


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"), sort_keys=True)


def _check_value(value: Any, depth: int) -> None:
    """Refuse what `json` would write and the gateway would not take."""
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ValueError("an integer of more than 64 bits")
    if isinstance(value, dict | list | tuple):
        if not depth:
            raise ValueError(f"a value nested more than {DEPTH_MAX} deep")
        for one in value.values() if isinstance(value, dict) else value:
            _check_value(one, depth - 1)


class PartWriter(Protocol):
    """The part of `FlowClient` that a cascade needs."""

    def cascade(self, consumer: str, batch: int, part: int, fence: int, writes: list[str], *, last: bool) -> int:
        """See `FlowClient.cascade`."""
        ...


@dataclass(frozen=True, slots=True)
class Cascade:
    """Writes what batches derive to, under one attachment of a consumer; batches have to come in order.

    Args:
        derivation: deterministic; yields writes to declared targets of the flow.
        client: of the flow that is read.
        consumer: whose cursor moves, and ``fence`` of its attachment.
        dead_letters: table of the gateway for rejected items, a target of the flow too; see `letter`.
        part_writes, part_bytes: where parts are cut; the same in every attempt at a batch.
    """

    derivation: WriteDerivation
    client: PartWriter
    consumer: str
    fence: int
    dead_letters: str
    part_writes: int = PART_WRITES
    part_bytes: int = PART_BYTES

    def apply(self, batch: FlowBatch, done: Done) -> None:
        """Write the batch, and count it in ``done``; when it returns, all of it is written and the cursor has moved.

        Idempotent, also across processes: a batch that was finished, or begun, is not written twice.

        Raises:
            SinkError: FENCED; FLOW_REFUSED, also for a part that was written with another content before;
                FLOW_UNREACHABLE, when the gateway did not answer, or was full, until the deadline.
        """
        for number, (part, last) in enumerate(self._parts(batch), 1):
            cursor = self.client.cascade(self.consumer, batch.number, number, self.fence, part, last=last)
            done.rows["gateway"] += len(part)
            if cursor >= batch.number:
                break
        done.count(batch)

    def _parts(self, batch: FlowBatch) -> Iterator[tuple[list[str], bool]]:
        """Yield the parts, at least one, and whether each is the last."""
        part: list[str] = []
        size = 0
        for write in writes_of(self.derivation, batch):
            one = letter(self.dead_letters, self.consumer, batch, write) if isinstance(write, Reject) else write
            length = len(one.text.encode())
            if part and (len(part) >= self.part_writes or size + length > self.part_bytes):
                yield part, False
                part, size = [], 0
            part.append(one.text)
            size += length
        yield part, True


def writes_of(derivation: WriteDerivation, batch: FlowBatch) -> Iterator[Write | Reject]:
    """Yield what ``derivation`` makes of the batch; items for which it raises one of `ITEM_FAULTS` are rejected.

    As `oncegate.spark_sink.derivation.changes_of`: nothing is yielded before that is settled, which covers batches of
    up to `HELD_MAX` writes.
    """
    return settled(derivation, batch, lambda _: 1, HELD_MAX)


def letter(table: str, job: str, batch: FlowBatch, reject: Reject) -> Put:
    """Return the write of a dead letter: key ``job/flow/commit``, value error, item and batch.

    A value of more than `_RAW_CHARACTERS_MAX` is cut, and ``whole`` is false; the batch has all of it.

    Raises:
        SinkError: BAD_ROWS, when the batch has no item of that commit number.
    """
    found = np.flatnonzero(np.asarray(batch.items.column("commit")) == reject.commit)
    if not len(found):
        raise SinkError(StoreCode.BAD_ROWS, f"batch {batch.number} has no item of commit number {reject.commit}")
    (item,) = replace(batch, items=batch.items.slice(int(found[0]), 1))
    raw = None if item.value is None else item.value[:_RAW_CHARACTERS_MAX]
    told = {"job": job, "flow": batch.flow, "batch": batch.number, "commit": item.commit, "key": item.key}
    told |= {"raw": raw, "whole": raw == item.value, "error": reject.error[:ERROR_CHARACTERS_MAX]}
    return Put(table, f"{job}/{batch.flow}/{item.commit:016d}", told)
