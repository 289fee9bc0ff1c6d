"""Reads at three levels of consistency, and waiting for commits and sealed batches.

Owns: read points (linearizable, session, stale; SEMANTICS, *Reads*), rows of resident and stream tables, and the
readers that wait for a commit number or a sealed batch. Changes nothing.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Awaitable, Callable
from functools import partial
from math import ceil, inf
from typing import Final, TypeVar

from oncegate.consensus.errors import ConsensusError, NoLeader, NotReady
from oncegate.consensus.replica.replica import Replica
from oncegate.flows.errors import FlowError, NotFoundError
from oncegate.flows.flow import ROWS_CONSUMER, FlowDeclaration
from oncegate.flows.lookup import FoundWrite, IndexCache, KeyIndex, OpenLookup
from oncegate.flows.publisher import Publisher
from oncegate.gateway.machine.machine import Machine
from oncegate.gateway.machine.rows import StoredRow
from oncegate.gateway.node.between_leaders import Lead
from oncegate.gateway.node.proposer import ANSWER_S
from oncegate.gateway.node.refusals import translated
from oncegate.gateway.node.stream_store import StreamStore
from oncegate.gateway.node.turns import Turns, released
from oncegate.rifl.errors import Code, OncegateError
from oncegate.rifl.ids import CommitNumber

INDEX_BYTES_MAX: Final = 128 * 2**20
COMMIT_WAITERS_MAX: Final = 10_000
T = TypeVar("T")


def no_table(name: str) -> OncegateError:
    """Return the refusal of a read of a table that is not declared."""
    return OncegateError(Code.NOT_FOUND, f"no table {name}")


def no_row(table: str, key: str) -> OncegateError:
    """Return the refusal of a read of a row that is not there."""
    return OncegateError(Code.NOT_FOUND, f"no row {key} in table {table}")


class Reads:
    """Answers reads from the local state once it is new enough."""

    def __init__(
        self,
        replica: Replica,
        machine: Machine,
        publisher: Publisher,
        ensure: Callable[[str, int], Awaitable[None]],
        stored: StreamStore | None = None,
        answer_s: float = ANSWER_S,
        turns: Turns | None = None,
    ) -> None:
        self.answer_s = answer_s
        """How long a read waits until the local state may answer it."""
        self._replica = replica
        self._ensure = ensure
        """Fetches a retained batch that this node lacks."""
        self._stored = stored
        """Where rows are whose batches are dropped; None: nowhere."""
        self._machine = machine
        self._publisher = publisher
        self.lead = Lead()
        self._indexes = IndexCache(INDEX_BYTES_MAX)
        self._open: dict[str, OpenLookup] = {}
        self.commit_waiters: list[tuple[int, int, asyncio.Future[None]]] = []
        """Who waits for which commit number, a heap."""
        self._waiter_number = 0
        self._seal_waiters: dict[str, dict[asyncio.Future[None], None]] = {}
        self._turns = Turns() if turns is None else turns

    async def reach(self, consistency: str, min_commit: int, timeout_s: float | None = None) -> None:
        """Wait until the local state may answer a read that is ``linearizable``, ``session`` or ``stale``.

        ``min_commit``: commit number that the answer must reflect, 0 for none. ``timeout_s``: for all of it, by default
        :attr:`answer_s`.

        Raises:
            OncegateError: BAD_REQUEST, or NO_LEADER, NOT_READY or TIMEOUT when the point is not reached in time.
        """
        now_s = asyncio.get_running_loop().time
        due_s = now_s() + (self.answer_s if timeout_s is None else timeout_s)
        if consistency == "linearizable":
            try:
                index = await self._read_index(due_s)
                await self._replica.wait_applied(index, timeout_s=due_s - now_s())
            except ConsensusError as fault:
                raise translated(fault) from None
        elif consistency not in ("session", "stale"):
            raise OncegateError(Code.BAD_REQUEST, "consistency is linearizable, session or stale")
        if min_commit > self._machine.commit:
            await self._wait_commit(min_commit, due_s)

    async def _read_index(self, due_s: float) -> int:
        """Ask for a read point; between two leaders ask the next one, rather than send the caller away."""
        now_s = asyncio.get_running_loop().time
        began_s = now_s()
        while True:
            moved = self.lead.moved
            try:
                return await self._replica.read_index(timeout_s=due_s - now_s())
            except (NoLeader, NotReady):
                if not await self.lead.wait(moved, began_s, due_s):
                    raise

    def age_ms(self) -> int | None:
        """Return how long ago the local state was known to be all that was committed; None if it never was."""
        age_s = self._replica.age_s()
        return None if age_s == inf else ceil(age_s * 1000)

    async def _wait_commit(self, commit: int, due_s: float) -> None:
        if len(self.commit_waiters) >= COMMIT_WAITERS_MAX:
            raise OncegateError(Code.OVERLOADED, "too many reads wait for a commit", retry_after_ms=50)
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiter_number += 1
        heapq.heappush(self.commit_waiters, (commit, self._waiter_number, future))
        try:
            async with asyncio.timeout_at(due_s):
                await future
        except TimeoutError:
            raise OncegateError(
                Code.NOT_READY, f"commit {commit} has not been applied here", retry_after_ms=50
            ) from None
        finally:
            while self.commit_waiters and self.commit_waiters[0][2].done():
                heapq.heappop(self.commit_waiters)

    def applied(self, commit: int) -> None:
        """Wake the reads that waited for ``commit`` or less."""
        waiters = self.commit_waiters
        while waiters and waiters[0][0] <= commit:
            future = heapq.heappop(waiters)[2]
            if not future.done():
                future.set_result(None)

    def replaced(self) -> None:
        """Wake all readers: a snapshot was installed, and everything may have changed."""
        self._open.clear()
        self.applied(self._machine.commit)
        for flow in list(self._seal_waiters):
            self.sealed(flow)

    def sealed(self, flow: str) -> None:
        """Give the watchers of ``flow`` their turns."""
        waiting = self._seal_waiters.pop(flow, None)
        if waiting:
            self._turns.applied()
            self._turns.add(released(waiting))

    async def next_seal(self, flow: str, told: int) -> None:
        """Wait for a sealed batch of ``flow`` above the number ``told``, and for a turn to tell of it."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        found = self._machine.flows.find(flow)
        if found is not None and told < found.batches.last:
            self._turns.add(released((turn,)))
        else:
            self._seal_waiters.setdefault(flow, {})[turn] = None
        try:
            await turn
        finally:
            waiting = self._seal_waiters.get(flow)
            if waiting is not None and turn in waiting:
                del waiting[turn]
                if not waiting:
                    del self._seal_waiters[flow]

    async def row(self, table: str, key: str) -> StoredRow:
        """Return a row of the local state; raises NOT_FOUND."""
        declared = self._machine.tables.get(table)
        if declared is None:
            raise no_table(table)
        if declared.kind == "resident":
            row = declared.rows.get(key)
            if row is None:
                raise no_row(table, key)
            return row
        return await self._stream_row(table, key)

    async def _stream_row(self, table: str, key: str) -> StoredRow:
        """Look a key up in the open segment, in the retained batches from the newest to the oldest, in the store.

        A batch's index is built once, in a worker thread, when it is first asked for, and kept within
        ``INDEX_BYTES_MAX``. The store is asked last: a batch is dropped only when its rows are there, so what is
        neither above nor in it was never written.
        """
        flow = self._machine.flows.of_table(table)[0]
        name = flow.declaration.name
        lookup = self._open.get(name)
        if lookup is None or lookup.segment is not flow.segment:  # of a table of this name that was dropped
            lookup = self._open[name] = OpenLookup(flow.segment, self._indexes)
        # Read both ends of the sealed batches before the first wait. A seal in between moves items into a newer batch,
        # but a row found in an older one was still current after the read began.
        first, last = flow.batches.first, flow.batches.last
        found = lookup.find(key)
        number = last
        while found is None and number >= first:
            try:
                found = await self._anyhow(name, number, partial(self._find_in_batch, name, number, key))
            except (FlowError, OncegateError) as fault:
                if number < self._machine.flows.get(name).batches.first:
                    break  # dropped meanwhile, with all older batches; their rows were delivered before
                raise translated(fault) if isinstance(fault, FlowError) else fault from None
            number -= 1
        if found is None and self._machine.flows.get(name).batches.first > 1:
            found = await self._delivered_row(flow.declaration, table, key)
        if found is None or found.value is None:
            raise no_row(table, key)
        return StoredRow(CommitNumber(found.commit), found.value)

    async def _delivered_row(self, flow: FlowDeclaration, table: str, key: str) -> FoundWrite | None:
        if ROWS_CONSUMER not in flow.consumers:
            return None  # nobody keeps rows longer than their batches
        if self._stored is None:
            raise OncegateError(Code.NOT_READY, "batches of the table are dropped, and this node has no stream_store")
        found = await self._stored.find(table, key)
        declared = self._machine.tables.get(table)
        if found is not None and (declared is None or 0 < found.commit <= declared.since):
            return None  # of a table of this name that was dropped
        if found is not None and found.value is None and found.commit > self._machine.commit:
            # The store may be ahead of this node. A caller that is told "deleted" must not read the row again, so wait.
            await self._wait_commit(found.commit, asyncio.get_running_loop().time() + self.answer_s)
        return found

    async def _anyhow(self, flow: str, number: int, look: Callable[[], T]) -> T:
        """Look into a batch, in a worker thread; fetch its file from a peer first if this node lacks it."""
        try:
            return await asyncio.to_thread(look)
        except NotFoundError:
            await self._ensure(flow, number)
            return await asyncio.to_thread(look)

    def _find_in_batch(self, flow: str, number: int, key: str) -> FoundWrite | None:
        build = partial(self._build, flow, number)
        return self._indexes.get((flow, number), build).find(key)

    def _build(self, flow: str, number: int) -> KeyIndex:
        return KeyIndex.of_payload(self._publisher.get(flow, number))

    async def batch(self, flow: str, number: int) -> tuple[bytes, str]:
        """Return a sealed batch and its checksum.

        Raises:
            OncegateError: NOT_FOUND when it is not sealed, RETENTION_EXCEEDED when it was dropped.
        """
        if number > self._machine.flows.get(flow).batches.last:
            await self.reach("linearizable", 0)
        self._machine.flows.batch(flow, number)
        try:
            payload = await self._anyhow(flow, number, partial(self._publisher.get, flow, number))
            checksum = await asyncio.to_thread(self._publisher.checksum, flow, number)
        except FlowError as fault:
            self._machine.flows.batch(flow, number)  # dropped meanwhile: say so rather than "not found"
            raise translated(fault) from None
        return payload, checksum
