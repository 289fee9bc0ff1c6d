"""One member of a replicated log, driven by the event loop.

Joins the engine to the loop: sockets and timers call in, futures come out. The loop's thread is the only owner;
the one blocking call is the flush. Everything decided lives in :mod:`consensus.engine`.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import os
import random
import statistics
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NoReturn

from consensus.calls import Calls
from consensus.config import RECORD_OVERHEAD_BYTES_MAX, ReplicaConfig
from consensus.configuration import Configuration, Member
from consensus.data_dir import open_data_dir
from consensus.engine import Engine
from consensus.entries import Entry
from consensus.errors import ConsensusError, NoLeader, NotLeader, NotReady, Stopped, Timeout
from consensus.follower_reads import FollowerReads
from consensus.handshake import Stamp
from consensus.messages import (
    Ack,
    Append,
    CallReply,
    CallRequest,
    Message,
    ReadProbe,
    ReadProbeAck,
    ReadReply,
    ReadRequest,
)
from consensus.operations import Operations
from consensus.ports import ReplicaStatus, RoleChange, StateMachine
from consensus.storage import DirectoryStorage, Storage
from consensus.transport import PeerTransport
from consensus.waiters import AppliedWaiters

logger = logging.getLogger(__name__)

HALT_EXIT_STATUS = 70
_DRAIN_S = 1.0


def _halt(reason: str) -> NoReturn:
    """End the process now: going on could break a promise, and cleaning up could write more."""
    logger.critical("halting: %s", reason)
    for handler in logging.getLogger().handlers:
        handler.flush()
    os._exit(HALT_EXIT_STATUS)


class Replica:
    """One member of a replicated log; every method belongs to the event loop that called :meth:`start`.

    Commands are opaque bytes. A command whose future has a result is flushed on a majority and survives the loss
    of any minority, and power loss of all. At most once a call: a command is never proposed again by itself.
    """

    _engine_type: type[Engine[asyncio.Future[object]]] = Engine

    def __init__(
        self,
        config: ReplicaConfig,
        machine: StateMachine,
        *,
        on_call: Callable[[str, bytes], Awaitable[bytes]] | None = None,
        on_role: Callable[[RoleChange], None] | None = None,
        storage: Storage | None = None,
        halt: Callable[[str], NoReturn] = _halt,
    ) -> None:
        """Remember the parts; nothing is opened before :meth:`start`.

        Args:
            config: checked settings.
            machine: gets every committed command, in order, once in this process's life.
            on_call: serves :meth:`call` of other nodes; gets the caller's node id and the payload.
            on_role: told of every change of role, leader, term or readiness, in order.
            storage: the directory; the real one at ``config.data_dir`` by default.
            halt: ends the process after a failed flush, a broken invariant or an exception in ``apply``.
        """
        self._config = config
        self._machine = machine
        self._on_call = on_call
        self._on_role = on_role
        self._given_storage = storage
        self._storage: Storage | None = None
        self._halt = halt
        self._engine: Engine[asyncio.Future[object]] | None = None
        self._transport: PeerTransport | None = None
        self._calls: Calls | None = None
        self._worker: ThreadPoolExecutor | None = None
        self._snapshot_worker: ThreadPoolExecutor | None = None
        self._tick_scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        self._applied_waiters = AppliedWaiters()
        self._follower_reads = FollowerReads(self._send, _fail)
        self._became_ready = asyncio.Event()
        self._operations = Operations(config, self._running, self._schedule_tick)

    # -- life ------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Lock and open the data directory, listen, connect; a cluster of one leads when this returns.

        What the journal knows to be committed is applied from the first ticks on; wait with :meth:`wait_applied`.

        Raises:
            StorageError: the directory is locked, another node's, or corrupt (naming file and offset), or the saved
                state and the log do not belong together.
            OSError: the directory cannot be used, or the address not be bound.
        """
        loop = asyncio.get_running_loop()
        self._loop = loop
        self._worker = ThreadPoolExecutor(1, thread_name_prefix=f"journal-{self._config.node_id}")
        try:
            storage = self._given_storage or DirectoryStorage(self._config.data_dir)
            opened = await loop.run_in_executor(None, open_data_dir, self._config, storage, self._worker)
            identity, log, known_peers = opened
        except BaseException:
            self._worker.shutdown(wait=False)
            raise
        self._storage = storage
        # Not the journal's: a long copy must not keep the next segment waiting. Its thread begins with its first job.
        self._snapshot_worker = ThreadPoolExecutor(1, thread_name_prefix=f"snapshot-{self._config.node_id}")
        try:
            self._engine = self._engine_type(
                self._config,
                self._machine,
                log,
                clock=loop.time,
                rng=random.Random(),
                send=self._send,
                on_result=_resolve,
                on_failure=_fail,
                on_role=self._role_changed,
                worker=self._snapshot_worker,
                on_peers=self._peers_changed,
                wake=self._wake,
            )
        except BaseException:
            log.abandon()
            storage.close()
            self._worker.shutdown()
            self._snapshot_worker.shutdown()
            raise
        stamp = Stamp(identity.node_uuid, identity.incarnation, tuple(identity.boots))
        self._transport = PeerTransport(self._config, stamp, known_peers, self)
        self._peers_changed()
        payload_bytes_max = self._config.frame_bytes_max - RECORD_OVERHEAD_BYTES_MAX
        self._calls = Calls(self._transport.send, self._on_call, payload_bytes_max)
        try:
            await self._transport.start()
        except BaseException:
            await self.stop()
            raise
        self._schedule_tick()
        if self._engine is not None and self._engine.lone:
            await self._became_ready.wait()

    async def stop(self, *, drain: bool = False) -> None:
        """Flush, close, and answer every waiter; idempotent. Proposals still open end as ``OutcomeUnknown``.

        With ``drain`` a leader first hands leadership over, within ``_DRAIN_S``: its proposals end with their results,
        and nobody waits for an election time-out.
        """
        if drain:
            await self.drain()
        engine, self._engine = self._engine, None
        if engine is None:
            return
        if self._timer is not None:
            self._timer.cancel()
        engine.stop()
        self._applied_waiters.stop(Stopped("the replica has stopped"))
        self._follower_reads.stop(Stopped("the replica has stopped"))
        if self._calls is not None:
            await self._calls.stop()
        if self._transport is not None:
            await self._transport.stop()
        engine.log.close()
        for worker in (self._worker, self._snapshot_worker):
            if worker is not None:
                worker.shutdown()
        if self._storage is not None:
            self._storage.close()

    async def drain(self) -> None:
        """Hand leadership over before a stop, if this node has it and there is somebody to take it; never raises."""
        if self._engine is not None:
            await self._operations.drain(_DRAIN_S)

    # -- requests --------------------------------------------------------------------------------------

    def propose(self, command: bytes) -> asyncio.Future[object]:
        """Append a command to the log; calls of one loop iteration share one flush.

        Args:
            command: 2 to ``command_bytes_max`` bytes; kept, not copied.

        Returns:
            A future with what ``apply`` returned on this node. It fails with ``OutcomeUnknown`` when leadership is lost
            first, or ``NotLeader`` when it was lost before the command was appended. It always ends, at
            the latest when the leader steps down for want of a quorum.

        Raises:
            NotLeader, Transferring, Overloaded, CommandRefused, CommandReserved, Stopped: the command was not appended.
        """
        engine = self._running()
        future: asyncio.Future[object] = self._loop.create_future()
        engine.propose(command, future)
        self._schedule_tick()
        return future

    async def read_index(self, *, timeout_s: float) -> int:
        """A linearizable read point (ReadIndex, Raft thesis §6.4), from any node.

        State that has applied this index reflects every command that was acknowledged before this call.
        Reads that come together share a round of messages; nothing is written.

        Raises:
            NoLeader: none is known, or it was lost meanwhile.
            NotReady: the leader has not committed in its term yet.
            Timeout: no majority confirmed in time.
        """
        engine = self._running()
        future: asyncio.Future[object] = self._loop.create_future()
        try:
            engine.read(future)
        except NotLeader as error:
            if error.leader_id is None:
                raise NoLeader("no leader is known") from error
            self._follower_reads.add(future)
        self._schedule_tick()
        try:
            async with asyncio.timeout(timeout_s):
                index = await future
        except TimeoutError as error:
            raise Timeout("the read", timeout_s, outcome="not_applied") from error
        except NotLeader as error:
            raise NoLeader("the leader was lost") from error
        if not isinstance(index, int):
            raise NotReady("the leader is not ready")
        return index

    async def wait_applied(self, index: int, *, timeout_s: float) -> None:
        """Wait until this node has applied the entry at ``index``.

        Raises:
            Timeout: it has not; nothing else happened.
        """
        engine = self._running()
        if engine.applied_index >= index:
            return
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._applied_waiters.add(index, waiter)
        try:
            async with asyncio.timeout(timeout_s):
                await waiter
        except TimeoutError as error:
            raise Timeout(f"applying entry {index}", timeout_s, outcome="not_applied") from error

    def read_log(self, first: int, *, bytes_max: int) -> list[Entry]:
        """Applied entries from ``first`` on, or from where the log begins, as (command, index, term), oldest first.

        At least one if there is any, and no more than ``bytes_max`` beyond it; older ones are read from disk, which
        blocks for as long as that takes.
        """
        engine = self._running()
        first = max(first, engine.log.base.index + 1)
        if first > engine.applied_index:
            return []
        return engine.log.entries(first, engine.applied_index, bytes_max=bytes_max)

    async def call(self, node_id: str, payload: bytes, *, timeout_s: float) -> bytes:
        """Ask another node's ``on_call``; delivered at most once, never retried here.

        Raises:
            PeerUnavailable: no connection (not applied), or it broke (unknown).
            CallFailed: the handler raised.
            Timeout: no answer in time; the outcome is unknown.
            Overloaded: the payload or the number of open calls is over its bound.
        """
        self._running()
        if self._calls is None:
            raise Stopped("the replica is not running")
        return await self._calls.call(node_id, payload, timeout_s)

    async def add_member(self, node_id: str, member: Member, *, timeout_s: float = 60.0) -> int:
        """Add a node, or change a member's address; at the leader only. Returns the index of the configuration.

        The node is started with ``ReplicaConfig.joining``, before or after. It first receives the log as a learner,
        which counts in no majority, and votes once it has been caught up for an election time-out; then the call ends.
        Asking again for the same member waits for the same outcome. A dead node is replaced by removing it, then
        adding another one under another id, or under the same one with an empty directory.

        Raises:
            NotLeader, Transferring, NotReady, ChangePending, Overloaded: nothing was appended; try again.
            Timeout: the outcome is unknown. The learner stays, and still becomes a voter when it has caught up.
            OutcomeUnknown: leadership was lost; ask the next leader again.
            ValueError: the address is not allowed without a secret or TLS.
        """
        return await self._operations.add_member(node_id, member, timeout_s)

    async def remove_member(self, node_id: str, *, timeout_s: float = 10.0) -> int:
        """Remove a member; at the leader only. Returns the index of a committed configuration without it.

        The node stays up, is disconnected once it knows, and asks for no votes. A leader that is to remove itself hands
        leadership over first and then refers the caller to the next leader, which removes it.

        Raises:
            NotLeader, Transferring, NotReady, ChangePending, Overloaded: nothing was appended; try again.
            ChangeRefused: it is the only voter, or the voters that answer would be no majority without it.
            TransferFailed: this node leads, and nobody took leadership over.
            Timeout, OutcomeUnknown: the outcome is unknown; ask the leader again.
        """
        return await self._operations.remove_member(node_id, timeout_s)

    async def transfer_leadership(self, to: str | None = None, *, timeout_s: float | None = None) -> str:
        """Hand leadership to the voter ``to``, by default the most up-to-date one; returns who leads.

        Commands are refused meanwhile (``Transferring``, nothing appended); those appended end with their results.
        If the target has not taken over after ``timeout_s``, at most an election time-out, this node goes on leading.

        Raises:
            NotLeader: this node does not lead.
            ChangeRefused: ``to`` is no other voter, or leadership is being handed to another one.
            TransferFailed: nobody took over in time, or somebody else did.
        """
        return await self._operations.transfer(to, timeout_s)

    @property
    def configuration(self) -> Configuration:
        """The members in force on this node, committed or not; the same object until it changes."""
        if self._engine is None:
            return self._config.initial_configuration
        return self._engine.membership.current

    def status(self) -> ReplicaStatus:
        """What this node knows now."""
        engine = self._running()
        flushes = sorted(engine.log.flush_seconds)
        queued, queued_bytes, appended, appended_bytes = engine.load
        return ReplicaStatus(
            node_id=self._config.node_id,
            role=engine.role,
            leader_id=engine.leader_id,
            term=engine.term,
            commit_index=engine.commit_index,
            applied_index=engine.applied_index,
            last_index=engine.log.last_index,
            ready=engine.ready,
            peers=engine.peer_status(),
            configuration=engine.membership.current,
            configuration_index=engine.membership.current_index,
            change_pending=engine.change_pending,
            transfer_target=engine.transfer_target,
            queued_commands=queued,
            queued_bytes=queued_bytes,
            appended_commands=appended,
            appended_bytes=appended_bytes,
            counters=copy.copy(engine.counters),
            journal_bytes=engine.log.bytes_used,
            flushes=engine.log.flushes,
            flush_p50_ms=1000 * statistics.median_low(flushes) if flushes else 0.0,
            flush_p99_ms=1000 * flushes[len(flushes) * 99 // 100] if flushes else 0.0,
        )

    # -- called by the transport -----------------------------------------------------------------------

    def peer_up(self, peer_id: str, epoch: int) -> None:
        """A peer is connected."""
        if self._engine is not None:
            self._engine.peer_up(peer_id, epoch)
            self._schedule_tick()

    def peer_down(self, peer_id: str) -> None:
        """A peer is gone."""
        if self._calls is not None:
            self._calls.peer_down(peer_id)
        if self._engine is not None:
            self._engine.peer_down(peer_id)
            self._follower_reads.lost(NoLeader("the leader was lost"), unless_leader=self._engine.leader_id)
            self._schedule_tick()

    def peer_said(self, peer_id: str, epoch: int, messages: list[Message]) -> None:
        """Messages came: those that need no flush are answered at once, the others share the next tick."""
        engine, calls = self._engine, self._calls
        if engine is None or calls is None:
            return
        for message in messages:
            match message:
                case Append() | Ack():
                    engine.receive(peer_id, epoch, message)
                case ReadProbe():
                    engine.receive_probe(peer_id, message)
                case ReadProbeAck():
                    engine.receive_probe_ack(peer_id, message)
                case ReadRequest(number):
                    self._serve_read(engine, peer_id, number)
                case ReadReply():
                    for read in self._follower_reads.answered(peer_id, message):
                        _resolve(read, message.index)
                    self._follower_reads.ask(engine.leader_id)
                case CallRequest():
                    calls.requested(peer_id, message)
                case CallReply():
                    calls.replied(peer_id, message)
                case _:
                    engine.receive(peer_id, epoch, message)
        if not engine.tick_wanted:
            return
        if engine.has_proposals:
            # More commands may come in this iteration: they share the tick, and its flush.
            self._schedule_tick()
        else:
            self._tick()

    # -- inside ----------------------------------------------------------------------------------------

    def _running(self) -> Engine[asyncio.Future[object]]:
        if self._engine is None:
            raise Stopped("the replica is not running")
        return self._engine

    def _send(self, peer_id: str, message: Message) -> None:
        if self._transport is not None:
            self._transport.send(peer_id, message)

    def _schedule_tick(self) -> None:
        if not self._tick_scheduled:
            self._tick_scheduled = True
            self._loop.call_soon(self._scheduled_tick)

    def _wake(self) -> None:
        """From a worker's thread: a job has ended."""
        self._loop.call_soon_threadsafe(self._schedule_tick)

    def _timer_fired(self) -> None:
        self._timer = None
        engine = self._engine
        if engine is None:
            return
        # Most of what it was set for has been put off since: a leader was heard, a commit index was sent.
        due = engine.deadline()
        if due > self._loop.time():
            self._timer = self._loop.call_at(due, self._timer_fired)
        else:
            self._schedule_tick()

    def _scheduled_tick(self) -> None:
        # A message may have brought the tick forward.
        if self._tick_scheduled:
            self._tick()

    def _tick(self) -> None:
        self._tick_scheduled = False
        engine = self._engine
        if engine is None:
            return
        try:
            more = engine.tick()
        except Exception as error:
            # A failed flush, a broken invariant or an exception in apply: none of them may be survived.
            logger.critical("the engine failed", exc_info=True)
            self._halt(f"{type(error).__name__}: {error}")
        if self._applied_waiters.next_index <= engine.applied_index:
            self._applied_waiters.applied(engine.applied_index)
        if self._follower_reads.waiting:
            self._follower_reads.ask(engine.leader_id)
        if more:
            self._schedule_tick()
        due = engine.deadline()
        if self._timer is None or due < self._timer.when():
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._loop.call_at(due, self._timer_fired)

    def _peers_changed(self) -> None:
        if self._engine is not None and self._transport is not None:
            self._transport.set_members(self._engine.wanted_peers(), anyone=self._engine.hears_anyone)

    def _role_changed(self, change: RoleChange) -> None:
        logger.info(
            "node %s is %s in term %d, leader %s, ready %s: %s",
            self._config.node_id,
            change.role.value,
            change.term,
            change.leader_id,
            change.ready,
            change.reason,
        )
        self._follower_reads.lost(NoLeader("the leader has changed"), unless_leader=change.leader_id)
        if change.ready:
            self._became_ready.set()
        if self._on_role is not None:
            self._on_role(change)

    # -- reads at a follower ---------------------------------------------------------------------------

    def _serve_read(self, engine: Engine[asyncio.Future[object]], peer_id: str, number: int) -> None:
        future: asyncio.Future[object] = self._loop.create_future()

        def answer(done: asyncio.Future[object]) -> None:
            index = done.result() if done.exception() is None else None
            self._send(peer_id, ReadReply(number, index if isinstance(index, int) else None))
            engine.show_commit(peer_id)

        try:
            engine.read(future)
        except (NotLeader, NotReady):
            self._send(peer_id, ReadReply(number, None))
            return
        future.add_done_callback(answer)
        self._schedule_tick()


def _resolve(future: asyncio.Future[object], result: object) -> None:
    if not future.done():
        future.set_result(result)


def _fail(future: asyncio.Future[object], error: ConsensusError) -> None:
    if not future.done():
        future.set_exception(error)
        # The caller may have gone away; an error nobody fetched is not worth a warning.
        future.exception()
