"""Where a key or a request occurs in log entries; pure.

Owns: matching, from an entry's bytes to mentions of what is looked for. An entry that cannot hold it is passed over
without being decoded. Read next: :mod:`oncegate.gateway.explain.memory`, :mod:`oncegate.gateway.explain.timeline`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from oncegate.gateway.explain.memory import Did, VerdictLog
from oncegate.gateway.machine import commands as c
from oncegate.rifl.completion import FINGERPRINT_BYTES
from oncegate.rifl.ids import ClientId, RequestId, SequenceNumber
from oncegate.rifl.key_table import KEYS_CLIENT

_KINDS = {kind.value: kind.name.lower() for kind in c.OpKind}
_CURSOR_MARK = msgspec.msgpack.encode("cm")
_KEYED_MARK = msgspec.msgpack.encode("k")


class OfKey(NamedTuple):
    """Look for the writes of a row."""

    table: str
    key: str


class OfRequest(NamedTuple):
    """Look for a request id among its tenant's requests: the log outlives the session that names the owner."""

    client_id: int
    sequence: int
    tenant: str = ""


Wanted = OfKey | OfRequest


class Mention(NamedTuple):
    """One attempt in the log. ``key`` is empty for an operation of a range that was looked for by its id.

    ``sequence`` is 0 where an idempotency key's number is not known: it was refused, or applied before this process.
    """

    entry: int
    term: int
    time_ms: int
    client_id: int
    sequence: int
    op: str
    table: str
    key: str
    did: Did

    @property
    def request_id(self) -> RequestId:
        """The id of the operation."""
        return RequestId(ClientId(self.client_id), SequenceNumber(self.sequence))


class Moved(NamedTuple):
    """A log entry: a consumer has finished everything up to ``batch``."""

    entry: int
    term: int
    time_ms: int
    flow: str
    consumer: str
    batch: int


class Search:
    """Looks through entries, in order, for one thing."""

    def __init__(self, wanted: Wanted, verdicts: VerdictLog) -> None:
        self._wanted = wanted
        self._verdicts = verdicts
        self._mark = _mark(wanted)

    def entry(self, data: bytes, index: int, term: int) -> Iterator[Mention | Moved]:
        """Yield the mentions in an entry; an entry that is not the machine's has none."""
        if self._mark not in data and _CURSOR_MARK not in data:
            return
        try:
            entry = c.decode_entry(data)
        except msgspec.DecodeError:
            return
        verdicts = self._verdicts
        before = 0
        for number, command in enumerate(entry.commands):
            at = (index, term, entry.time_ms)
            count = 0
            if isinstance(command, (c.Operate, c.Keyed)):
                count = len(command.ops)
                ops = [item.op for item in command.ops] if isinstance(command, c.Keyed) else command.ops
                client_id = KEYS_CLIENT if isinstance(command, c.Keyed) else command.client_id
                for position, op in enumerate(ops):
                    did = verdicts.of_operation(index, number, position, before)
                    sequence = did.number if isinstance(command, c.Keyed) else op.sequence
                    if self._is_wanted(command, client_id, sequence, op):
                        kind = _KINDS.get(op.kind, str(op.kind))
                        yield Mention(*at, client_id, sequence, kind, op.table, op.key, did)
            elif isinstance(command, c.Range):
                count = len(command.fingerprints) // FINGERPRINT_BYTES
                for sequence, key in self._in_range(command, count):
                    did = verdicts.of_range(index, number, command.first, sequence, before)
                    yield Mention(*at, command.client_id, sequence, "put", command.table, key, did)
            elif isinstance(command, c.MoveCursor):
                yield Moved(*at, command.flow, command.consumer, command.batch)
            taken = verdicts.executed(index, number, count)
            before = -1 if before < 0 or taken < 0 else before + taken

    def _is_wanted(self, command: c.Operate | c.Keyed, client_id: int, sequence: int, op: c.Op) -> bool:
        wanted = self._wanted
        if isinstance(wanted, OfKey):
            return wanted.key == op.key and wanted.table == op.table
        return wanted == (client_id, sequence, command.tenant)

    def _in_range(self, command: c.Range, count: int) -> Iterator[tuple[int, str]]:
        wanted = self._wanted
        if isinstance(wanted, OfRequest):
            sender = wanted.client_id, wanted.tenant
            if sender == (command.client_id, command.tenant) and 0 <= wanted.sequence - command.first < count:
                yield wanted.sequence, ""
            return
        if wanted.table == command.table and self._mark in command.body:
            with pa.ipc.open_stream(command.body) as stream:
                keys = stream.read_all().column("key").combine_chunks()
            for row in pc.indices_nonzero(pc.equal(keys, pa.scalar(wanted.key, keys.type))).to_pylist():
                yield command.first + row, wanted.key


def _mark(wanted: Wanted) -> bytes:
    """Return bytes that every entry about the wanted key or request contains."""
    if isinstance(wanted, OfKey):
        return wanted.key.encode()
    # The number of a key is given when it is applied: the log does not hold it.
    return _KEYED_MARK if wanted.client_id == KEYS_CLIENT else msgspec.msgpack.encode(wanted.client_id)
