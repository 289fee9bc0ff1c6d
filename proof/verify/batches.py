"""Sealed segment files against the log, the flow state and each other.

Owns: which files must be there, what each must hold, and the newest item of each row against the row. Must not know
stores. Read next: :mod:`oncegate.flows.segment_store`, :mod:`oncegate.proof.verify.store_check`.

A file must be there if its batch is retained and the node cannot make it again: it was sealed up to the saved state,
which waits for the files before it counts, or the node was stopped in order. A node whose log lacks its beginning may
have got its state as a snapshot and may not have fetched its batches yet: that is a note, not a difference.
"""

from __future__ import annotations

from typing import NamedTuple

import google_crc32c
import numpy as np
import pyarrow as pa

from oncegate.flows import segment
from oncegate.flows.batch_log import BatchMeta
from oncegate.flows.errors import FlowError
from oncegate.flows.schema import batch_schema
from oncegate.flows.segment import format_checksum
from oncegate.gateway.machine.flow_state import Flow
from oncegate.gateway.machine.machine import Machine
from oncegate.proof.verify.findings import Difference, Report
from oncegate.proof.verify.node_files import Built, NodeFiles, Replay
from oncegate.proof.verify.states import open_items
from oncegate.rifl.ids import format_client_id


class Expectation(NamedTuple):
    """What is known of one node's batches.

    Attributes:
        replay: the node's machine at the end of its committed log.
        required: by flow, the newest batch whose file must be there.
        retained_from: by flow, the oldest batch that no entry of the log, committed or not, lets go.
        newest: by flow, the newest batch that any entry of the log seals.
        tail: batches sealed by entries that are not known to be committed.
    """

    replay: Replay
    required: dict[str, int]
    retained_from: dict[str, int]
    newest: dict[str, int]
    tail: dict[tuple[str, int], Built]


class BatchCheck:
    """The checks of all nodes' files; keep it for the whole run: files are compared across nodes."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._seen: dict[tuple[str, int], tuple[str, str]] = {}
        self._absent: list[tuple[NodeFiles, str, int]] = []

    def check(self, wanted: Expectation) -> int:
        """Look at one node's files; returns how many. Raises Difference."""
        node, machine = wanted.replay.node, wanted.replay.machine
        count = 0
        for flow in machine.flows.all():
            name = flow.declaration.name
            self._check_surplus(node, name, wanted)
            newest: dict[str, tuple[int, bytes | None]] | None = {}
            previous: BatchMeta | None = None
            for number in range(flow.batches.first, flow.batches.last + 1):
                meta = flow.batches.get(number)
                built = wanted.replay.built.get((name, number))
                _check_order(node, name, previous, meta)
                previous = meta
                payload = node.batch(name, number)
                if payload is None:
                    newest = None
                    if wanted.retained_from[name] <= number <= wanted.required[name]:
                        self._missing(node, name, meta)
                    continue
                count += 1
                items = self._check_file(node, flow, meta, payload, built)
                self._check_records(node, machine, (name, number), items)
                if newest is not None and machine.tables[flow.declaration.source].kind == "resident":
                    _collect(newest, items)
            for number in range(flow.batches.last + 1, wanted.newest[name] + 1):
                payload = node.batch(name, number)
                if payload is not None and (built := wanted.tail.get((name, number))) is not None:
                    self._check_bytes(node, name, number, payload, built)
            if newest is not None:
                self._check_newest(node, machine, flow, newest)
        return count

    def settle(self) -> None:
        """Tell of files that a node lacks and may yet fetch: whether another one has them."""
        for node, flow, number in self._absent:
            if (flow, number) in self._seen:
                holder = self._seen[flow, number][0]
                self._report.notes.append(f"{node.node} lacks batch {number} of {flow} and can fetch it from {holder}")
            else:
                self._report.undecided.append(
                    f"{node.node} lacks batch {number} of {flow}; its state may have come as a snapshot, and no other "
                    "directory that was given has the batch"
                )

    def _missing(self, node: NodeFiles, flow: str, meta: BatchMeta) -> None:
        if node.log.first_index > 1 or node.log.was_reset:
            self._absent.append((node, flow, meta.number))
            return
        expected = f"{meta.items} items, commits {meta.first_commit}..{meta.last_commit}"
        raise self._difference(node, flow, meta.number, expected, "no file")

    def _check_surplus(self, node: NodeFiles, flow: str, wanted: Expectation) -> None:
        present = node.segments.list(flow)
        if present and present[-1] > wanted.newest[flow]:
            expected = f"no file, the log seals batches up to {wanted.newest[flow]}"
            raise self._difference(node, flow, present[-1], expected, "a file")

    def _check_file(
        self, node: NodeFiles, flow: Flow, meta: BatchMeta, payload: bytes, built: Built | None
    ) -> pa.Table:
        name, number = meta_name = flow.declaration.name, meta.number
        try:
            items = segment.read_table(payload)
        except (pa.ArrowException, OSError) as fault:
            raise self._difference(node, name, number, "an Arrow stream", fault) from None
        schema = batch_schema(name, flow.declaration.source, number)
        if not items.schema.equals(schema, check_metadata=True):
            found = f"{items.schema.names} of {items.schema.metadata}"
            raise self._difference(node, name, number, f"{schema.names} of {schema.metadata}", found)
        commits = items.column("commit").to_numpy()
        first, last = (commits[0], commits[-1]) if len(commits) else (0, 0)
        found = f"{len(commits)} items, commits {first}..{last}"
        expected = f"{meta.items} items, commits {meta.first_commit}..{meta.last_commit}"
        if found != expected:
            raise self._difference(node, name, number, expected, found)
        steps = np.flatnonzero(commits[1:] <= commits[:-1])
        if len(steps):
            row = int(steps[0]) + 1
            found = f"commit {commits[row]} at row {row}, after commit {commits[row - 1]}"
            raise self._difference(node, name, number, "ascending commits", found)
        if built is not None:
            self._check_bytes(node, name, number, payload, built)
        self._compare(node, meta_name, payload)
        self._report.items += len(commits)
        return items

    def _check_records(self, node: NodeFiles, machine: Machine, name: tuple[str, int], items: pa.Table) -> None:
        """What is remembered of an operation and what a batch holds of it must have one commit number."""
        clients, sequences, commits = (
            items.column(column).to_numpy() for column in ("client_id", "sequence", "commit")
        )
        for client_id in np.unique(clients).tolist():
            tracker = machine.trackers.get(client_id)
            if tracker is None:
                continue
            # What is acknowledged is not remembered: mostly there is nothing left to look at.
            rows = np.flatnonzero((clients == client_id) & (sequences >= tracker.first_incomplete))
            for sequence, commit in zip(sequences[rows].tolist(), commits[rows].tolist(), strict=True):
                record = tracker.find(sequence)
                if record is not None and record.commit != commit:
                    expected = f"commit {record.commit} for {format_client_id(client_id)}/{sequence}, as remembered"
                    raise self._difference(node, *name, expected, commit)

    def _check_bytes(self, node: NodeFiles, flow: str, number: int, payload: bytes, built: Built) -> None:
        if (len(payload), google_crc32c.value(payload)) != (built.length_bytes, built.crc):
            expected = f"{built.length_bytes} bytes, {format_checksum(built.crc)}, as entry {built.entry} sealed it"
            found = f"{len(payload)} bytes, {segment.checksum(payload)}"
            raise self._difference(node, flow, number, expected, found)

    def _compare(self, node: NodeFiles, name: tuple[str, int], payload: bytes) -> None:
        checksum = segment.checksum(payload)
        other, known = self._seen.setdefault(name, (node.node, checksum))
        if known != checksum:
            who = f"{other} and {node.node}"
            place = node.segments.path(*name)
            raise Difference(who, place, f"batch {name[1]} of {name[0]}", f"{known} as on {other}", checksum)

    def _check_newest(
        self, node: NodeFiles, machine: Machine, flow: Flow, newest: dict[str, tuple[int, bytes | None]]
    ) -> None:
        table = machine.tables[flow.declaration.source]
        if table.kind != "resident":
            return
        for commit, item in open_items(flow):
            if isinstance(item, tuple):
                newest[item[0]] = (commit, item[1])
        for key, (commit, value) in newest.items():
            row = table.rows.get(key)
            expected = None if value is None else (commit, value)
            found = None if row is None else (row.version, row.value)
            if expected != found:
                wanted = f"{expected or 'no row'}, the newest item of flow {flow.declaration.name}, commit {commit}"
                raise node.differs("state", f"row {table.name}/{key}", wanted, found or "no row")

    @staticmethod
    def _difference(node: NodeFiles, flow: str, number: int, expected: object, found: object) -> Difference:
        try:
            place: object = node.segments.path(flow, number)
        except FlowError:
            place = node.path / "segments" / flow
        return Difference(node.node, place, f"batch {number} of {flow}", expected, found)


def _check_order(node: NodeFiles, flow: str, previous: BatchMeta | None, meta: BatchMeta) -> None:
    if previous is not None and meta.first_commit <= previous.last_commit:
        what = f"batch {meta.number} of {flow}"
        expected = f"a first commit above {previous.last_commit}, the last of batch {previous.number}"
        raise node.differs("state", what, expected, meta.first_commit)


def _collect(newest: dict[str, tuple[int, bytes | None]], items: pa.Table) -> None:
    values = items.column("value").cast(pa.binary()).to_pylist()
    commits, keys = items.column("commit").to_pylist(), items.column("key").to_pylist()
    for commit, key, value in zip(commits, keys, values, strict=True):
        newest[key] = (commit, value)
