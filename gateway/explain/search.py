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

from oncegate.gateway.explain.memory import EXECUTED, UNKNOWN, Did, VerdictLog
from oncegate.gateway.machine import commands as c
from oncegate.gateway.machine.effects import NO_SESSION
from oncegate.gateway.machine.ending import SESSION_END, TTL_END
from oncegate.gateway.machine.results import Ended
from oncegate.rifl.completion import FINGERPRINT_BYTES
from oncegate.rifl.ids import ClientId, RequestId, SequenceNumber
from oncegate.rifl.key_table import KEYS_CLIENT

_KINDS = {kind.value: kind.name.lower() for kind in c.OpKind}
_CURSOR_MARK = msgspec.msgpack.encode("cm")
_CASCADE_MARK = msgspec.msgpack.encode("cw")
_KEY_MARK = b"k"
"""In the tag of every command of keys: the log does not hold a key's number."""


PAUSE_OPERATIONS = 500
_ANOTHER = (NO_SESSION, 0)
"""Client id and sequence number that stand for those of another tenant's request."""


class OfKey(NamedTuple):
    """Look for the writes of a row.

    Tenants share tables: those of other tenants than ``tenant`` are found too, without their request ids. None: whoever
    asks may see all tenants' ids.
    """

    table: str
    key: str
    tenant: str | None = None


class OfRequest(NamedTuple):
    """Look for a request id among its tenant's requests: the log outlives the session that names the owner."""

    client_id: int
    sequence: int
    tenant: str = ""


Wanted = OfKey | OfRequest


class Mention(NamedTuple):
    """One attempt in the log. ``key`` is empty for an operation of a range that was looked for by its id.

    ``sequence`` is 0 for a write of a cascade, which has no request id, where an idempotency key's number is not
    known (it was refused, or applied before this process), and of another tenant's request.
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

    def entry(self, data: bytes, index: int, term: int) -> Iterator[Mention | Moved | None]:
        """Yield the mentions in an entry; an entry that is not the machine's has none.

        None after a command of many operations: whoever searches lets others run.
        """
        wanted = self._wanted
        if not any(mark in data for mark in (self._mark, _CURSOR_MARK, _CASCADE_MARK)) and not (
            # The entry that ends a session does not name the rows that end with it, nor a take those that it takes.
            isinstance(wanted, OfKey)
            and (self._verdicts.has_ended(index, wanted.table, wanted.key) or self._verdicts.has_taken(index))
        ):
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
            if isinstance(command, c.AnyOperate):
                count = len(command.ops)
                keyed = isinstance(command, c.Keyed)
                client_id = command.client_id if isinstance(command, c.Operate) else KEYS_CLIENT
                for position, op in enumerate(c.operations_of(command)):
                    did = verdicts.of_operation(index, number, position, before)
                    sequence = did.number if keyed else op.sequence
                    who = (client_id, sequence) if self._is_shown(command.tenant) else _ANOTHER
                    for write, each in _writes(op, did):
                        if self._is_wanted(command, client_id, sequence, write):
                            kind = _KINDS.get(write.kind, str(write.kind))
                            yield Mention(*at, *who, kind, write.table, write.key, each)
            elif isinstance(command, c.Range):
                count = len(command.fingerprints) // FINGERPRINT_BYTES
                for sequence, key in self._in_range(command, count):
                    did = verdicts.of_range(index, number, command.first, sequence, before)
                    who = (command.client_id, sequence) if self._is_shown(command.tenant) else _ANOTHER
                    yield Mention(*at, *who, "put", command.table, key, did)
            elif isinstance(command, c.Cascade):
                count = len(command.ops)
                for position, op in enumerate(command.ops, 1):
                    if isinstance(wanted, OfKey) and (wanted.table, wanted.key) == (op.table, op.key):
                        did = verdicts.of_range(index, number, 1, position, before)
                        yield Mention(*at, NO_SESSION, 0, _KINDS[op.kind], op.table, op.key, did)
                if command.last:
                    yield Moved(*at, command.flow, command.consumer, command.batch)
            elif isinstance(command, c.MoveCursor):
                yield Moved(*at, command.flow, command.consumer, command.batch)
            elif isinstance(command, c.EndRows | c.CloseSession | c.Reap) and isinstance(wanted, OfKey):
                for cause, did in _ends(wanted, command, verdicts.ends(index, number)):
                    yield Mention(*at, NO_SESSION, 0, cause, wanted.table, wanted.key, did)
            taken = verdicts.executed(index, number, count)
            before = -1 if before < 0 or taken < 0 else before + taken
            if count > PAUSE_OPERATIONS:
                yield None

    def _is_wanted(self, command: c.AnyOperate, client_id: int, sequence: int, op: c.Op) -> bool:
        wanted = self._wanted
        if isinstance(wanted, OfKey):
            return wanted.key == op.key and wanted.table == op.table
        return wanted == (client_id, sequence, command.tenant)

    def _is_shown(self, tenant: str) -> bool:
        wanted = self._wanted
        return not isinstance(wanted, OfKey) or wanted.tenant is None or wanted.tenant == tenant

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


def _ends(wanted: OfKey, command: c.Command, ended: list[Ended] | None) -> Iterator[tuple[str, Did]]:
    """Yield why the row was ended, if it was; ``ended`` is None where that is not remembered."""
    if ended is None and isinstance(command, c.EndRows) and wanted.key in command.rows.get(wanted.table, ()):
        yield TTL_END, Did(UNKNOWN)
    for one in ended or ():
        if one.table == wanted.table and wanted.key in (one.key, one.then):
            commit = one.commit + (wanted.key != one.key)
            yield SESSION_END if one.owner else TTL_END, Did(EXECUTED, commit)


def _writes(op: c.Op | c.Transaction, did: Did) -> Iterator[tuple[c.Op, Did]]:
    """Yield an operation, or the writes of a transaction, with what became of each: each has a commit number."""
    if isinstance(op, c.Op):
        yield op, did
        return
    for at, write in enumerate(op.writes):
        each = msgspec.structs.replace(did, commit=did.commit + at if did.writes > 1 else did.commit)
        said = write.options or c.NO_OPTIONS
        if write.kind == c.OpKind.TAKE:
            for place, key in enumerate(did.taken):
                gone, there = (each.commit + 1 + 2 * place, each.commit + 2 + 2 * place) if each.commit else (0, 0)
                before = write.key + key[len(said.to) :]
                yield msgspec.structs.replace(write, key=before), msgspec.structs.replace(each, commit=gone)
                yield msgspec.structs.replace(write, key=key), msgspec.structs.replace(each, commit=there)
            if not did.taken:
                yield write, each
        elif said.numbered and each.commit:
            yield msgspec.structs.replace(write, key=f"{write.key}{each.commit:0{c.NUMBER_DIGITS}d}"), each
        else:
            yield write, each


def _mark(wanted: Wanted) -> bytes:
    """Return bytes that every entry about the wanted key or request contains."""
    if isinstance(wanted, OfKey):
        return (wanted.key.rstrip("0123456789") or wanted.key).encode()  # a numbered write's entry has no number
    return _KEY_MARK if wanted.client_id == KEYS_CLIENT else msgspec.msgpack.encode(wanted.client_id)
