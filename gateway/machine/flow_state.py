"""Flows inside the state machine: which writes go into which segment, where batches end, which consumers read them.

Owns: the join of the pieces of :mod:`oncegate.flows` for all declared flows. Pure and deterministic; part of the
replicated state. Files are written elsewhere (:class:`oncegate.flows.publisher.Publisher`); the batches to write are
handed over by :meth:`FlowTable.take_sealed`. What alters or removes a flow that is there:
:mod:`oncegate.gateway.machine.flow_handlers`.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from typing import NamedTuple

import msgspec

from oncegate.flows import batcher, retention
from oncegate.flows.batch_log import BatchLog, BatchMeta
from oncegate.flows.chunks import SealedBatch
from oncegate.flows.cursor import Consumers, WrittenPart
from oncegate.flows.errors import FlowError
from oncegate.flows.flow import FlowDeclaration, FlowGraph
from oncegate.flows.open_segment import GroupItem
from oncegate.flows.retired import RetiredNames, Used
from oncegate.flows.shedding import SheddingSegment, level, segment_of
from oncegate.rifl.errors import Code, OncegateError

Sealed = SealedBatch


class Flow:
    """One flow as every replica holds it."""

    __slots__ = ("altered_ms", "batches", "consumers", "declaration", "moves", "retained_bytes", "segment", "version")

    def __init__(self, declaration: FlowDeclaration, used: Used = Used(), now_ms: int = 0) -> None:  # noqa: B008 - frozen
        self.declaration = declaration
        self.version = used.versions + 1
        """Rises with every change of the declaration, and when a consumer is removed or expires; a deleted flow's are
        not given out again."""
        self.altered_ms = now_ms
        """Cluster time at which the declaration got its present form."""
        self.segment = segment_of(declaration)
        self.batches = BatchLog(used.batches + 1)
        self.consumers = Consumers(declaration.consumers, cursor=used.batches, fences=used.fences, now_ms=now_ms)
        self.retained_bytes = 0
        """Bytes of sealed batches that retention still holds; with the open segment, what a table's quota bounds."""
        self.moves = 0
        """Attaches and cursor moves in this process; not part of the replicated state."""

    @property
    def shed_items(self) -> int:
        """Items that were left out so far."""
        return self.segment.shed_items if isinstance(self.segment, SheddingSegment) else 0

    @property
    def shed_level(self) -> int:
        """How often the share of items that are kept is halved now."""
        return self.segment.level if isinstance(self.segment, SheddingSegment) else 0

    def adjust(self) -> None:
        """Shed as much as the declaration says for what consumers have to read; after every change of either."""
        if isinstance(self.segment, SheddingSegment):
            self.segment.level = level(self.declaration, self.batches.bytes_after(self.consumers.watermark()))

    @property
    def stamp(self) -> tuple[int, int, int, int]:
        """A value that differs after every change of the flow."""
        return self.segment.last_commit, self.batches.last, self.batches.first, self.moves + self.shed_items


class Hold(NamedTuple):
    """A flow that fills its table: its bytes, and in words what keeps the oldest of them."""

    flow: str
    bytes: int
    why: str


class FlowTable:
    """All flows. It raises errors of :mod:`oncegate.flows` as OncegateError."""

    def __init__(self) -> None:
        self._graph = FlowGraph()
        self.retired = RetiredNames()
        """What the names of deleted flows have used."""
        self._flows: dict[str, Flow] = {}
        self._taps: dict[str, tuple[Flow, ...]] = {}
        self.is_tapped = self._taps.__contains__
        """Tells whether any flow derives from a table; asked of each write, so it is no method of its own."""
        self.sealed: list[Sealed] = []
        """Batches sealed since :meth:`take_sealed`."""
        self.dropped: list[tuple[str, int]] = []
        """Flow and newest dropped batch of what went since :meth:`take_dropped`."""

    def declare(self, declaration: FlowDeclaration, tables: Container[str], now_ms: int) -> str:
        """Declare a flow on a declared table; the same declaration again changes nothing. Returns its name."""
        if declaration.source not in tables:
            raise OncegateError(Code.NOT_FOUND, f"no table {declaration.source}")
        try:
            new = self._graph.declare(declaration)
        except FlowError as fault:
            raise typed(fault) from None
        if new:
            flow = Flow(declaration, self.retired.declared(declaration.name), now_ms)
            self._flows[declaration.name] = flow
            self._taps[declaration.source] = (*self._taps.get(declaration.source, ()), flow)
        return declaration.name

    def put_back(self, flow: Flow) -> None:
        """Add a flow read from a saved state, in the order of declaration."""
        declaration = flow.declaration
        self._graph.declare(declaration)
        self._flows[declaration.name] = flow
        self._taps[declaration.source] = (*self._taps.get(declaration.source, ()), flow)

    def replace(self, flow: Flow, declaration: FlowDeclaration, now_ms: int) -> None:
        """Give a flow another declaration with the same name, source and target."""
        self._graph.replace(declaration)
        if declaration.shed_lag_bytes != flow.declaration.shed_lag_bytes:
            flow.segment = segment_of(declaration, flow.segment.snapshot(), flow.shed_items)
        flow.declaration = declaration
        flow.altered_ms = now_ms
        # Ranges are cut by the room that is left in the open segment: it has to have some.
        if batcher.is_full(declaration, flow.segment.items, flow.segment.size_bytes):
            self._cut(flow, now_ms)

    def remove(self, flow: Flow) -> None:
        """Forget a flow with its batches, open items and consumers; its name begins above what it has used."""
        name, source = flow.declaration.name, flow.declaration.source
        self._graph.remove(name)
        del self._flows[name]
        self._taps[source] = tuple(one for one in self._taps[source] if one is not flow)
        if not self._taps[source]:
            del self._taps[source]
        fences = max((flow.consumers.fences, *(one.fence + 1 for one in flow.consumers.all())))
        self.retired.retire(name, Used(flow.batches.last, fences, flow.version + 1))
        # A batch that was sealed just now is about to be written, and then to be removed.
        self.dropped.append((name, flow.batches.last))

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
            deleted = "" if self.retired.find(name) is None else ": it was deleted"
            raise OncegateError(Code.NOT_FOUND, f"no flow {name}{deleted}")
        return flow

    def find(self, name: str) -> Flow | None:
        """Return a flow, None if there is none of that name."""
        return self._flows.get(name)

    def of_table(self, table: str) -> tuple[Flow, ...]:
        """Return the flows whose source is ``table``."""
        return self._taps.get(table, ())

    def is_full(self, table: str, quota_bytes: int, now_ms: int) -> bool:
        """Tell whether a flow of ``table`` holds more undelivered or retained bytes than its quota.

        Drops what retention no longer holds, so only an entry may ask; others ask :meth:`looks_full`.
        """
        for flow in self._taps.get(table, ()):
            if flow.retained_bytes + flow.segment.size_bytes > quota_bytes:
                # While a table is full no batch is cut, so nothing else would notice that retention is over.
                self.retain(flow, now_ms)
                if flow.retained_bytes + flow.segment.size_bytes > quota_bytes:
                    return True
        return False

    def looks_full(self, table: str, quota_bytes: int) -> bool:
        """Tell the same, of all that is there; changes nothing."""
        return any(flow.retained_bytes + flow.segment.size_bytes > quota_bytes for flow in self._taps.get(table, ()))

    def undelivered(self, table: str, bytes_max: int, now_ms: int) -> Hold | None:
        """Return a flow of ``table`` whose consumers have left more than ``bytes_max`` to read, or None."""
        for flow in self._taps.get(table, ()):
            left = flow.batches.bytes_after(flow.consumers.watermark()) + flow.segment.size_bytes
            if left > bytes_max:
                why = retention.why_held(flow.declaration, flow.batches, flow.consumers, now_ms)
                return Hold(flow.declaration.name, left, why)
        return None

    def hold(self, table: str, now_ms: int) -> Hold | None:
        """Return the flow of ``table`` that holds the most bytes, as :meth:`is_full` counts them; changes nothing."""
        flows = self._taps.get(table, ())
        if not flows:
            return None
        flow = max(flows, key=lambda one: one.retained_bytes + one.segment.size_bytes)
        why = retention.why_held(flow.declaration, flow.batches, flow.consumers, now_ms)
        return Hold(flow.declaration.name, flow.retained_bytes + flow.segment.size_bytes, why)

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

    def append_group(
        self,
        table: str,
        items: Sequence[GroupItem],
        time_ms: int,
        client_id: int,
        sequence: int,
        traceparent: str = "",
    ) -> None:
        """Add the writes of one transaction to every flow of their table; no batch ends between two of them."""
        for flow in self._taps.get(table, ()):
            if not batcher.has_room(flow.declaration, flow.segment.items, len(items)):
                self._cut(flow, time_ms)
            flow.segment.append_group(items, time_ms, client_id, sequence, traceparent)
            if batcher.is_full(flow.declaration, flow.segment.items, flow.segment.size_bytes):
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
            if isinstance(segment, SheddingSegment) and segment.leaves_out(first_commit, count):
                continue
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

    def clock(self, name: str, field: str, first: int, newest_ms: list[int], now_ms: int) -> int:
        """Record event times, unless the flow's are of another member by now; returns the newest batch that has one."""
        flow = self.get(name)
        if field == flow.declaration.event_time:
            flow.moves += 1
            flow.batches.clock(first, newest_ms)
            self.retain(flow, now_ms)
        return flow.batches.clocked_through

    def attach(
        self, name: str, consumer: str, nonce: str, now_ms: int = 0, *, cursor: int | None = None
    ) -> tuple[int, int]:
        """Attach an instance of a consumer, at ``cursor`` if it is given. Returns (fence, cursor)."""
        flow = self.get(name)
        flow.moves += 1
        try:
            attachment = flow.consumers.attach(consumer, nonce, flow.batches, now_ms, cursor=cursor)
        except FlowError as fault:
            raise typed(fault) from None
        flow.adjust()
        return attachment.fence, attachment.cursor

    def move(self, name: str, consumer: str, batch: int, fence: int, *, replay: bool, now_ms: int) -> int:
        """Move a cursor, then drop what retention no longer holds. Returns the cursor."""
        flow = self.get(name)
        flow.moves += 1
        try:
            cursor = flow.consumers.move(consumer, batch, fence, flow.batches, replay=replay, now_ms=now_ms)
        except FlowError as fault:
            raise typed(fault) from None
        self.retain(flow, now_ms)
        return cursor

    def part(
        self, name: str, consumer: str, batch: int, part: int, fence: int, fingerprint: int, *, last: bool
    ) -> WrittenPart | None:
        """Judge a part of a cascade (:mod:`oncegate.flows.parts`); None: it is new. Changes nothing."""
        flow = self.get(name)
        try:
            return flow.consumers.part(consumer, batch, part, fence, fingerprint, flow.batches, last=last)
        except FlowError as fault:
            raise typed(fault) from None

    def wrote(
        self, name: str, consumer: str, batch: int, fingerprint: int, commit: int, now_ms: int, *, last: bool
    ) -> int:
        """Remember a new part; the last one moves the cursor, and retention follows. Returns the cursor."""
        flow = self.get(name)
        flow.moves += 1
        cursor = flow.consumers.wrote(consumer, batch, fingerprint, commit, now_ms, last=last)
        if last:
            self.retain(flow, now_ms)
        return cursor

    def batch(self, name: str, number: int) -> BatchMeta:
        """Return what is known of a batch; raises NOT_FOUND, BAD_REQUEST or RETENTION_EXCEEDED."""
        try:
            return self.get(name).batches.get(number)
        except FlowError as fault:
            raise typed(fault) from None

    def take_sealed(self) -> list[Sealed]:
        """Hand over the batches sealed since the last call; their files are the caller's business."""
        sealed, self.sealed = self.sealed, []
        return sealed

    def take_dropped(self) -> list[tuple[str, int]]:
        """Hand over (flow, newest dropped batch) of what retention let go since the last call."""
        dropped, self.dropped = self.dropped, []
        return dropped

    def _cut(self, flow: Flow, now_ms: int) -> None:
        batches = flow.batches
        sealed = flow.segment.freeze(batches.last + 1)
        batches.append(sealed.first_commit, flow.segment.last_commit, sealed.items, sealed.size_bytes, now_ms)
        flow.retained_bytes += sealed.size_bytes
        self.sealed.append(sealed)
        self.retain(flow, now_ms)

    def retain(self, flow: Flow, now_ms: int) -> None:
        """Drop what retention no longer holds."""
        through = retention.droppable_through(flow.declaration, flow.batches, flow.consumers, now_ms)
        if through >= flow.batches.first:
            for number in range(flow.batches.first, through + 1):
                flow.retained_bytes -= flow.batches.get(number).size_bytes
            flow.batches.drop_through(through)
            self.dropped.append((flow.declaration.name, through))
        flow.adjust()


def declaration_of(text: bytes) -> FlowDeclaration:
    """Read a declaration from JSON; raises BAD_REQUEST."""
    try:
        return msgspec.json.decode(text, type=FlowDeclaration)
    except (FlowError, msgspec.DecodeError) as fault:
        raise OncegateError(Code.BAD_REQUEST, str(fault)) from None


def typed(fault: FlowError) -> OncegateError:
    """Return a refusal of :mod:`oncegate.flows` as the cluster's."""
    return OncegateError(Code(fault.code), str(fault))
