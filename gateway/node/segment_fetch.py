"""Fetches sealed batches that this node lacks from its peers.

Owns: the call by which a node asks another one for a piece of a batch, the order in which it asks its peers, and the
list of missing batches. A node that got its state as a snapshot knows every retained batch from the flow state but
never wrote their files.

A piece travels in one frame; the whole is checked against the checksum in the sender's file, stored, and from then
on served as if this node had written it. A reader that waits for a batch calls :meth:`SegmentFetcher.ensure`;
:meth:`SegmentFetcher.scan` fetches all others in the background.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from oncegate.consensus.errors import ConsensusError
from oncegate.consensus.ports import Caller
from oncegate.flows import segment
from oncegate.flows.errors import FlowError, NotFoundError
from oncegate.flows.publisher import Publisher
from oncegate.flows.segment_store import SegmentStore
from oncegate.gateway.machine.machine import Machine
from oncegate.rifl.errors import Code, OncegateError

FETCH: Final = b"f"
"""First byte of a peer call that asks for a piece of a batch."""
PIECE_BYTES_MAX: Final = 4 * 2**20
BATCH_BYTES_MAX: Final = 512 * 2**20
"""A payload that claims more is refused: batches are cut far below."""
CONCURRENT_MAX: Final = 4
SCANNED_MAX: Final = 64
"""Missing batches asked for at a time."""
CALL_TIMEOUT_S: Final = 5.0
ENSURE_TIMEOUT_S: Final = 10.0
BACKOFF_MIN_S: Final = 0.05
BACKOFF_MAX_S: Final = 5.0
log = logging.getLogger(__name__)


class PieceRequest(msgspec.Struct, array_like=True, frozen=True):
    """Ask for bytes of a batch's payload from ``offset`` on, at most ``PIECE_BYTES_MAX``."""

    flow: str
    number: int
    offset: int


class PieceReply(msgspec.Struct, array_like=True, frozen=True):
    """``length_bytes`` and ``checksum`` are of the whole payload; -1 and empty when the node has no such batch."""

    length_bytes: int
    checksum: str
    data: bytes


_encode = msgspec.msgpack.Encoder().encode
_request = msgspec.msgpack.Decoder(PieceRequest)
_reply = msgspec.msgpack.Decoder(PieceReply)


async def serve_piece(publisher: Publisher, payload: bytes) -> bytes:
    """Answer a peer's call; raises ``msgspec.DecodeError`` if it is malformed."""
    asked = _request.decode(payload)
    try:
        length, checksum, data = await asyncio.to_thread(
            publisher.piece, asked.flow, asked.number, asked.offset, PIECE_BYTES_MAX
        )
    except FlowError:
        return _encode(PieceReply(-1, "", b""))
    return _encode(PieceReply(length, checksum, data))


class SegmentFetcher:
    """Fetches missing batches from ``others``, the other members of now. Event loop's thread.

    ``publisher`` has the batches that this node sealed itself and has not written to ``store`` yet.

    Bounds: ``CONCURRENT_MAX`` batches in memory at once; one fetch a batch, whoever waits for it.
    """

    def __init__(
        self,
        peers: Caller,
        others: Callable[[], Sequence[str]],
        machine: Machine,
        store: SegmentStore,
        publisher: Publisher,
    ) -> None:
        self._peers = peers
        self._others = others
        self._machine = machine
        self._store = store
        self._publisher = publisher
        self._slots = asyncio.Semaphore(CONCURRENT_MAX)
        self._under_way: dict[tuple[str, int], asyncio.Task[None]] = {}
        self._missing: set[tuple[str, int]] = set()
        self._scanning: asyncio.Task[None] | None = None
        self._turn = 0
        self.fetched = 0
        self.failures = 0

    @property
    def missing(self) -> int:
        """Retained batches that this node is known to lack."""
        return len(self._missing)

    async def ensure(self, flow: str, number: int) -> None:
        """Return when the batch is here.

        Raises NOT_FOUND when no member gave it in ``ENSURE_TIMEOUT_S``, RETENTION_EXCEEDED when it was dropped
        meanwhile.
        """
        try:
            async with asyncio.timeout(ENSURE_TIMEOUT_S):
                # A waiter that gives up must not end the fetch for the others.
                await asyncio.shield(self._task(flow, number))
        except TimeoutError:
            self._machine.flows.batch(flow, number)
            raise OncegateError(
                Code.NOT_FOUND, f"batch {number} of {flow} is on no member that can be reached", retry_after_ms=500
            ) from None
        self._machine.flows.batch(flow, number)

    def scan(self) -> None:
        """Look for missing batches and fetch them in the background; called at the start and after an install."""
        if self._scanning is not None:
            self._scanning.cancel()
        self._scanning = asyncio.get_running_loop().create_task(self._scan())

    async def close(self) -> None:
        """End all fetches."""
        tasks = [*self._under_way.values(), *([self._scanning] if self._scanning is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _scan(self) -> None:
        self._missing = set()
        flows = self._machine.flows
        for name in {*await asyncio.to_thread(self._store.flows), *flows.retired.names()}:
            # Deleted while this node was away. A flow that the log has still to declare begins above these numbers.
            if flows.find(name) is None and (used := flows.retired.used(name).batches):
                self._publisher.drop_through(name, used)
        for name in flows.names():
            if (found := flows.find(name)) is None:  # deleted while this looked at the others
                continue
            batches = found.batches
            first, last = batches.first, batches.last
            # Batches that were dropped while this node was away are not fetched, and their files are removed.
            self._publisher.drop_through(name, first - 1)
            present = set(await asyncio.to_thread(self._store.list, name))
            self._missing |= {(name, number) for number in range(first, last + 1) if number not in present}
        if self._missing:
            log.info("%d sealed batches are missing here and are fetched", len(self._missing))
        # Newest first, because readers follow the end of a flow. A batch that no peer has yet must not delay the
        # others.
        under_way: set[asyncio.Task[None]] = set()
        for flow, number in sorted(self._missing, key=lambda missing: -missing[1]):
            if len(under_way) >= SCANNED_MAX:
                _, under_way = await asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED)
            under_way.add(self._task(flow, number))

    def _task(self, flow: str, number: int) -> asyncio.Task[None]:
        task = self._under_way.get((flow, number))
        if task is None:
            task = asyncio.get_running_loop().create_task(self._until_here(flow, number))
            self._under_way[flow, number] = task
            task.add_done_callback(lambda _: self._under_way.pop((flow, number), None))
        return task

    async def _until_here(self, flow: str, number: int) -> None:
        """Ask all members in turn, with growing pauses, until the batch is here or is no longer retained."""
        pause_s = BACKOFF_MIN_S
        try:
            while self._is_wanted(flow, number):
                async with self._slots:
                    for peer in self._in_turn():
                        if await self._fetched_from(peer, flow, number):
                            return
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, BACKOFF_MAX_S)
        finally:
            if not self._is_wanted(flow, number):
                self._missing.discard((flow, number))

    def _is_wanted(self, flow: str, number: int) -> bool:
        try:
            self._machine.flows.batch(flow, number)
        except OncegateError:
            return False
        return not self._store.has(flow, number)

    def _in_turn(self) -> list[str]:
        others = list(self._others())
        self._turn += 1
        at = self._turn % len(others) if others else 0
        return others[at:] + others[:at]

    async def _fetched_from(self, peer: str, flow: str, number: int) -> bool:
        try:
            payload = await self._payload(peer, flow, number)
            if payload is None:
                return False
            items = self._machine.flows.batch(flow, number).items
            await asyncio.to_thread(self._keep, flow, number, payload, items)
        except (ConsensusError, FlowError, OncegateError, OSError, ValueError, msgspec.DecodeError) as fault:
            self.failures += 1
            log.warning("batch %d of %s could not be fetched from %s: %s", number, flow, peer, fault)
            return False
        self.fetched += 1
        return True

    async def _payload(self, peer: str, flow: str, number: int) -> bytes | None:
        parts = bytearray()
        checksum = ""
        while True:
            request = FETCH + _encode(PieceRequest(flow, number, len(parts)))
            reply = _reply.decode(await self._peers.call(peer, request, timeout_s=CALL_TIMEOUT_S))
            if reply.length_bytes < 0:
                return None
            if reply.length_bytes > BATCH_BYTES_MAX or (parts and reply.checksum != checksum):
                raise NotFoundError(f"{peer} has no batch {number} of {flow} that can be")
            checksum = reply.checksum
            parts += reply.data
            if len(parts) >= reply.length_bytes:
                break
            if not reply.data:
                raise NotFoundError(f"{peer} sent nothing of batch {number} of {flow}")
        payload = bytes(parts)
        if await asyncio.to_thread(segment.checksum, payload) != checksum:
            raise NotFoundError(f"{peer} sent a batch {number} of {flow} that does not match its checksum")
        return payload

    def _keep(self, flow: str, number: int, payload: bytes, items: int) -> None:
        found = segment.read_table(payload).num_rows
        if found != items:
            raise NotFoundError(f"a batch {number} of {flow} with {found} items came, not {items}")
        self._store.put(flow, number, payload)
