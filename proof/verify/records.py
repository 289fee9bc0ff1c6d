"""Whether a state agrees with itself: rows, completion records and flow items that tell of the same commit.

Owns: what must hold of any state, whatever log led to it. It finds damage that checksums cannot show, in a state whose
log is gone. Read next: :mod:`oncegate.rifl.completion`, :mod:`oncegate.gateway.machine.tables`.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from oncegate.gateway.machine.machine import Machine
from oncegate.gateway.machine.tables import ROW_OVERHEAD_BYTES, Remembered, StoredRow, Table
from oncegate.proof.verify.compare import open_items
from oncegate.proof.verify.findings import Difference, Report
from oncegate.rifl.completion import CompletionRecord
from oncegate.rifl.ids import format_client_id
from oncegate.rifl.key_table import KEYS_CLIENT


class _Told(NamedTuple):
    """A completion record and the request id it is under."""

    request: str
    record: CompletionRecord


class StateCheck:
    """The checks of one state.

    Args:
        node, place: for words.
        machine: the state; nothing may be applied meanwhile. Takes memory that follows records and 8 bytes a row.
    """

    def __init__(self, node: str, place: object, machine: Machine, report: Report) -> None:
        self._node = node
        self._place = place
        self._machine = machine
        self._report = report
        self._told: dict[int, _Told] = {}

    def check(self) -> None:
        """Raise Difference for the first contradiction."""
        for told in self._records():
            commit = told.record.commit
            self._report.records += 1
            if commit > self._machine.commit:
                raise self._difference(f"record of {told.request}", f"a commit up to {self._machine.commit}", commit)
            if (other := self._told.setdefault(commit, told)) is not told:
                raise self._difference(f"commit {commit}", f"one record, {other.request}'s", f"{told.request}'s too")
        versions = array("q")
        for table in self._machine.tables.values():
            if table.kind == "resident":
                self._check_table(table, versions)
        self._check_unique(versions)
        self._check_open_items()

    def record_of(self, client_id: int, sequence: int) -> int | None:
        """Return the commit number that is remembered for an operation, None if nothing is."""
        tracker = self._machine.trackers.get(client_id)
        record = None if tracker is None else tracker.find(sequence)
        return None if record is None else record.commit

    def _records(self) -> Iterator[_Told]:
        machine = self._machine
        for session in machine.sessions:
            name = format_client_id(session.client_id)
            for sequence, record in machine.trackers[session.client_id].records.items():
                if not record.sealed:
                    yield _Told(f"{name}/{sequence}", record)
        for used in machine.keys:
            yield _Told(f"{format_client_id(KEYS_CLIENT)}/{used.number}", used.record)

    def _check_table(self, table: Table, versions: array[int]) -> None:
        size = count = 0
        for key, row in table.rows.items():
            count += 1
            size += len(key) + len(row.value) + ROW_OVERHEAD_BYTES
            versions.append(row.version)
            if not 1 <= row.version <= self._machine.commit:
                expected = f"a version in 1..{self._machine.commit}"
                raise self._difference(f"row {table.name}/{key}", expected, row.version)
            told = self._told.get(row.version)
            if told is not None:
                self._check_row(f"row {table.name}/{key}, commit {row.version}", row, told)
        self._report.rows += count
        if count != len(table.rows):
            raise self._difference(f"table {table.name}", f"{len(table.rows)} rows", count)
        if size != table.bytes:
            raise self._difference(f"table {table.name}", f"{table.bytes} bytes", size)

    def _check_row(self, what: str, row: StoredRow, told: _Told) -> None:
        result = told.record.result
        if not isinstance(result, Remembered):
            return
        if result.refusal is not None:
            raise self._difference(what, f"no row, {told.request} was refused with {result.refusal}", row.value)
        if result.version != row.version:
            raise self._difference(what, f"no row, {told.request} was a read", row.value)
        if result.value != row.value:
            raise self._difference(what, f"{result.value!r}, the result of {told.request}", row.value)

    def _check_unique(self, versions: array[int]) -> None:
        ordered = np.sort(np.frombuffer(versions, np.int64)) if versions else np.empty(0, np.int64)
        twice = ordered[1:][ordered[1:] == ordered[:-1]]
        if not len(twice):
            return
        version = int(twice[0])
        rows = [
            f"{table.name}/{key}"
            for table in self._machine.tables.values()
            for key, row in table.rows.items()
            if row.version == version
        ]
        raise self._difference(f"commit {version}", f"one row, {rows[0]}", f"{rows[1]} too")

    def _check_open_items(self) -> None:
        for flow in self._machine.flows.all():
            name = flow.declaration.name
            for commit, item in open_items(flow):
                if not isinstance(item, tuple):
                    continue
                _, _, client_id, sequence = item
                known = self.record_of(client_id, sequence)
                if known is not None and known != commit:
                    request = f"{format_client_id(client_id)}/{sequence}"
                    raise self._difference(f"open item of {name}, {request}", f"commit {known}", commit)

    def _difference(self, what: str, expected: object, found: object) -> Difference:
        return Difference(self._node, self._place, what, expected, found)
