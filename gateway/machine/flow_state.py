"""Flows inside the state machine: which writes go into which segment, where batches end, which consumers read them.

Owns: the join of the pieces of :mod:`oncegate.flows` for all declared flows. Pure and deterministic; part of the
replicated state. Files are written elsewhere (:class:`oncegate.flows.publisher.Publisher`); the batches to write are
handed over by :meth:`FlowTable.take_sealed`.
"""

from __future__ import annotations

from collections.abc import Container, Iterable

import msgspec

from oncegate.flows import batcher, retention
from oncegate.flows.batch_log import BatchLog, BatchMeta
from oncegate.flows.chunks import SealedBatch
from oncegate.flows.cursor import Consumers
from oncegate.flows.errors import FlowError
from oncegate.flows.flow import FlowDeclaration, FlowGraph
from oncegate.flows.open_segment import OpenSegment
from oncegate.rifl.errors import Code, OncegateError

Sealed = SealedBatch


class Flow:
    """One flow as every replica holds it."""

    __slots__ = ("batches", "consumers", "declaration", "moves", "retained_bytes", "segment")

    def __init__(self, declaration: FlowDeclaration) -> None:
        self.declaration = declaration
        self.segment = OpenSegment(declaration.name, declaration.source)
        self.batches = BatchLog()
        self.consumers = Consumers(declaration.consumers)
        self.retained_bytes = 0
        """Bytes of sealed batches that retention still holds; with the open segment, what a table's quota bounds."""
        self.moves = 0
        """Attaches and cursor moves in this process; not part of the replicated state."""

    @property
    def stamp(self) -> tuple[int, int, int, int]:
        """A value that differs after every change of the flow."""
        return self.segment.last_commit, self.batches.last, self.batches.first, self.moves


class FlowTable:
    """All flows. It raises errors of :mod:`oncegate.flows` as OncegateError."""

    def __init__(self) -> None:
        self._graph = FlowGraph()
        self._flows: dict[str, Flow] = {}
        self._taps: dict[str, tuple[Flow, ...]] = {}
        self.is_tapped = self._taps.__contains__
        """Tells whether any flow derives from a table; asked of each write, so it is no method of its own."""
        self._sealed: list[Sealed] = []
        self._dropped: list[tuple[str, int]] = []

    def declare(self, declaration: FlowDeclaration, tables: Container[str], now_ms: int) -> str:
        """Declare a flow on a declared table; the same declaration again changes nothing. Returns its name."""
        if declaration.source not in tables:
            raise OncegateError(Code.NOT_FOUND, f"no table {declaration.source}")
        try:
            new = self._graph.declare(declaration)
        except FlowError as fault:
            raise _typed(fault) from None
        if new:
            flow = Flow(declaration)
            self._flows[declaration.name] = flow
            self._taps[declaration.source] = (*self._taps.get(declaration.source, ()), flow)
        return declaration.name

    def put_back(self, flow: Flow) -> None:
        """Add a flow read from a saved state, in the order of declaration."""
        declaration = flow.declaration
        self._graph.declare(declaration)
        self._flows[declaration.name] = flow
        self._taps[declaration.source] = (*self._taps.get(declaration.source, ()), flow)

    def all(self) -> Iterable[Flow]:
        """Return all flows, in order of declaration."""
        return self._flows.values()

    def names(self) -> list[str]:
        """Return the names of all flows, in order of declaration."""
        return list(self._flows)

    def get(self, name: str) -> Flow:
        """Return a flow; raises NOT_FOUND."""
        flow = self._flows.get(name)
        if flow is None:
            raise OncegateError(Code.NOT_FOUND, f"no flow {name}")
        return flow

    def of_table(self, table: str) -> tuple[Flow, ...]:
        """Return the flows whose source is ``table``."""
        return self._taps.get(table, ())

    def is_full(self, table: str, quota_bytes: int, now_ms: int) -> bool:
        """Tell whether a flow of ``table`` holds more undelivered or retained bytes than its quota."""
        for flow in self._taps.get(table, ()):
            if flow.retained_bytes + flow.segment.size_bytes > quota_bytes:
                # While a table is full no batch is cut, so nothing else would notice that retention is over.
                self._retain(flow, now_ms)
                if flow.retained_bytes + flow.segment.size_bytes > quota_bytes:
                    return True
        return False

    def append_one(
        self,
        table: str,
        commit: int,
        key: str,
        value: bytes | None,
        time_ms: int,
        client_id: int,
        sequence: int,
        traceparent: str = "",
    ) -> None:
        """Add a committed write to every flow of its table, and cut where a batch is full."""
        for flow in self._taps.get(table, ()):
            segment = flow.segment
            segment.append_one(commit, key, value, time_ms, client_id, sequence)
            if traceparent:
                segment.trace_last(traceparent)
            if batcher.is_full(flow.declaration, segment.items, segment.size_bytes):
                self._cut(flow, time_ms)

    def append_range(
        self,
        table: str,
        first_commit: int,
        count: int,
        time_ms: int,
        client_id: int,
        first_sequence: int,
        body: bytes,
        offset: int,
        traceparent: str = "",
    ) -> None:
        """Add a committed range to every flow of its table without looking into it."""
        for flow in self._taps.get(table, ()):
            segment = flow.segment
            done = 0
            for length in batcher.pieces(flow.declaration, segment.items, count):
                segment.append_range(
                    first_commit + done,
                    length,
                    time_ms,
                    client_id,
                    first_sequence + done,
                    body,
                    offset + done,
                    traceparent,
                )
                done += length
                if batcher.is_full(flow.declaration, segment.items, segment.size_bytes):
                    self._cut(flow, time_ms)

    def due(self, now_ms: int) -> list[tuple[str, int]]:
        """Return flows whose open segment is old enough, with the batch number it would get. Decides nothing."""
        return [
            (name, flow.batches.last + 1)
            for name, flow in self._flows.items()
            if batcher.due(flow.declaration, flow.segment.opened_ms, now_ms)
        ]

    def seal(self, name: str, number: int, now_ms: int) -> int:
        """Close the open segment as batch ``number``, unless that was done before. Returns the newest batch."""
        flow = self.get(name)
        if number == flow.batches.last + 1 and flow.segment.items:
            self._cut(flow, now_ms)
        return flow.batches.last

    def attach(self, name: str, consumer: str, nonce: str) -> tuple[int, int]:
        """Attach an instance of a consumer. Returns (fence, cursor)."""
        flow = self.get(name)
        flow.moves += 1
        try:
            attachment = flow.consumers.attach(consumer, nonce, flow.batches)
        except FlowError as fault:
            raise _typed(fault) from None
        return attachment.fence, attachment.cursor

    def move(self, name: str, consumer: str, batch: int, fence: int, *, replay: bool, now_ms: int) -> int:
        """Move a cursor, then drop what retention no longer holds. Returns the cursor."""
        flow = self.get(name)
        flow.moves += 1
        try:
            cursor = flow.consumers.move(consumer, batch, fence, flow.batches, replay=replay)
        except FlowError as fault:
            raise _typed(fault) from None
        self._retain(flow, now_ms)
        return cursor

    def batch(self, name: str, number: int) -> BatchMeta:
        """Return what is known of a batch; raises NOT_FOUND, BAD_REQUEST or RETENTION_EXCEEDED."""
        try:
            return self.get(name).batches.get(number)
        except FlowError as fault:
            raise _typed(fault) from None

    def take_sealed(self) -> list[Sealed]:
        """Hand over the batches sealed since the last call."""
        sealed, self._sealed = self._sealed, []
        return sealed

    def take_dropped(self) -> list[tuple[str, int]]:
        """Hand over (flow, newest dropped batch) of what retention let go since the last call."""
        dropped, self._dropped = self._dropped, []
        return dropped

    def _cut(self, flow: Flow, now_ms: int) -> None:
        batches = flow.batches
        sealed = flow.segment.freeze(batches.last + 1)
        batches.append(sealed.first_commit, flow.segment.last_commit, sealed.items, sealed.size_bytes, now_ms)
        flow.retained_bytes += sealed.size_bytes
        self._sealed.append(sealed)
        self._retain(flow, now_ms)

    def _retain(self, flow: Flow, now_ms: int) -> None:
        through = retention.droppable_through(flow.declaration, flow.batches, flow.consumers, now_ms)
        if through >= flow.batches.first:
            for number in range(flow.batches.first, through + 1):
                flow.retained_bytes -= flow.batches.get(number).size_bytes
            flow.batches.drop_through(through)
            self._dropped.append((flow.declaration.name, through))


def declaration_of(text: bytes) -> FlowDeclaration:
    """Read a declaration from JSON; raises BAD_REQUEST."""
    try:
        return msgspec.json.decode(text, type=FlowDeclaration)
    except (FlowError, msgspec.DecodeError) as fault:
        raise OncegateError(Code.BAD_REQUEST, str(fault)) from None


def _typed(fault: FlowError) -> OncegateError:
    return OncegateError(Code(fault.code), str(fault))
