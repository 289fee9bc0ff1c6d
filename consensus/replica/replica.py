"""One member of a replicated log, driven by the event loop.

Owns the life of the node, what its parts are and how they are joined: sockets call in, futures come out. The loop's
thread is the only owner; the one blocking call is the flush. Everything decided lives in
:mod:`oncegate.consensus.core.engine`, when it ticks in :mod:`oncegate.consensus.replica.ticker`, what comes from the
peers goes through :mod:`oncegate.consensus.replica.inbound`.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NoReturn

from oncegate.consensus.config import RECORD_OVERHEAD_BYTES_MAX, ReplicaConfig
from oncegate.consensus.configuration import Configuration, RaftMember
from oncegate.consensus.core.engine import Engine
from oncegate.consensus.errors import NoLeader, Stopped, Timeout
from oncegate.consensus.log.entries import Entry
from oncegate.consensus.log.storage import DirectoryStorage, Storage
from oncegate.consensus.messages import Message
from oncegate.consensus.net.calls import Answered, Calls, ServeAtOnce
from oncegate.consensus.net.handshake import Stamp
from oncegate.consensus.net.transport import PeerTransport
from oncegate.consensus.ports import ReplicaStatus, RoleChange, StateMachine
from oncegate.consensus.replica.data_dir import open_data_dir
from oncegate.consensus.replica.inbound import Inbound
from oncegate.consensus.replica.operations import Operations, status_of
from oncegate.consensus.replica.read_points import ReadPoints
from oncegate.consensus.replica.ticker import AppliedWaiters, FollowerReads, Ticker, fail, halt_process, resolve

logger = logging.getLogger(__name__)

_DRAIN_S = 1.0


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
        at_once: ServeAtOnce | None = None,
        on_role: Callable[[RoleChange], None] | None = None,
        storage: Storage | None = None,
        halt: Callable[[str], NoReturn] = halt_process,
    ) -> None:
        """Remember the parts; nothing is opened before :meth:`start`.

        Args:
            config: checked settings.
            machine: gets every committed command, in order, once in this process's life.
            on_call: serves :meth:`call` of other nodes; gets the caller's node id and the payload.
            at_once: asked before ``on_call``; serves calls that need no task.
            on_role: told of every change of role, leader, term or readiness, in order.
            storage: the directory; the real one at ``config.data_dir`` by default.
            halt: ends the process after a failed flush, a broken invariant or an exception in ``apply``.
        """
        self._config = config
        self._machine = machine
        self._on_call = on_call
        self._at_once = at_once
        self._on_role = on_role
        self._given_storage = storage
        self._storage: Storage | None = None
        self._engine: Engine[asyncio.Future[object]] | None = None
        self._transport: PeerTransport | None = None
        self._calls: Calls | None = None
        self._inbound: Inbound | None = None
        self._worker: ThreadPoolExecutor | None = None
        self._snapshot_worker: ThreadPoolExecutor | None = None
        self._applied_waiters = AppliedWaiters()
        self._follower_reads = FollowerReads(self._send, fail)
        self._ticker = Ticker(self._applied_waiters, self._follower_reads, halt)
        self._read_points = ReadPoints(self._follower_reads, self._ticker.soon)
        self._became_ready = asyncio.Event()
        self._operations = Operations(config, self._running, self._ticker.soon)

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
                on_result=resolve,
                on_failure=fail,
                on_role=self._role_changed,
                worker=self._snapshot_worker,
                on_peers=self._peers_changed,
                wake=self._ticker.wake,
            )
        except BaseException:
            log.abandon()
            storage.close()
            self._worker.shutdown()
            self._snapshot_worker.shutdown()
            raise
        self._ticker.start(self._engine)
        stamp = Stamp(identity.node_uuid, identity.incarnation, tuple(identity.boots))
        payload_bytes_max = self._config.frame_bytes_max - RECORD_OVERHEAD_BYTES_MAX
        self._calls = Calls(self._send_call, self._on_call, payload_bytes_max, self._at_once)
        self._inbound = Inbound(
            self._engine, self._calls, self._follower_reads, self._read_points, self._ticker, self._send
        )
        self._transport = PeerTransport(self._config, stamp, known_peers, self._inbound)
        self._peers_changed()
        try:
            await self._transport.start()
        except BaseException:
            await self.stop()
            raise
        self._ticker.soon()
        if self._engine is not None and self._engine.lone and not self._engine.applier.damaged:
            await self._became_ready.wait()

    async def stop(self, *, drain: bool = False) -> None:
        """Flush, close, and answer every waiter; idempotent. Proposals still open end as ``LeadershipLost``.

        With ``drain`` a leader first hands leadership over, within ``_DRAIN_S``: its proposals end with their results,
        and nobody waits for an election time-out.
        """
        if drain:
            await self.drain()
        engine, self._engine = self._engine, None
        if engine is None:
            return
        self._ticker.stop()
        if self._inbound is not None:
            self._inbound.stop()
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
            A future with what ``apply`` returned on this node. It fails with ``LeadershipLost`` when leadership is lost
            first, or ``NotLeader`` when it was lost before the command was appended. It always ends, at
            the latest when the leader steps down for want of a quorum.

        Raises:
            NotLeader, Transferring, Overloaded, CommandRefused, CommandReserved, Stopped: the command was not appended.
        """
        engine = self._running()
        future: asyncio.Future[object] = self._loop.create_future()
        engine.leading.propose(command, future)
        self._ticker.soon()
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
        return await self._read_points.read(self._running(), timeout_s)

    async def wait_applied(self, index: int, *, timeout_s: float) -> None:
        """Wait until this node has applied the entry at ``index``.

        Raises:
            Timeout: it has not; nothing else happened.
        """
        engine = self._running()
        if engine.applier.applied_index >= index:
            return
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._applied_waiters.add(index, waiter)
        try:
            async with asyncio.timeout(timeout_s):
                await waiter
        except TimeoutError as error:
            raise Timeout(f"applying entry {index}", timeout_s, outcome="not_applied") from error

    def age_s(self) -> float:
        """How long ago, in seconds, this node's applied state was known to be all that was committed; ``inf``: never.

        A leader knows that from the answers of a majority, another node from a leader's message whose commit index it
        has applied. Counted from when the message came: what was committed while it was on its way is not known here.
        """
        return self._running().age_s

    def stalled_s(self) -> float:
        """For how long this node, as the leader, has had entries that do not commit, its commit index at rest; else 0.

        Costs less than :meth:`status`, of which it is a part.
        """
        return 0.0 if self._engine is None else self._engine.leading.replication.stalled_s(self._engine.clock())

    def read_log(self, first: int, *, bytes_max: int) -> list[Entry]:
        """Applied entries from ``first`` on, or from where the log begins, as (command, index, term), oldest first.

        At least one if there is any, and no more than ``bytes_max`` beyond it; older ones are read from disk, which
        blocks for as long as that takes.
        """
        engine = self._running()
        first = max(first, engine.log.base.index + 1)
        if first > engine.applier.applied_index:
            return []
        return engine.log.entries(first, engine.applier.applied_index, bytes_max=bytes_max)

    async def call(self, node_id: str, payload: bytes, *, timeout_s: float) -> bytes:
        """Ask another node's ``on_call``; delivered at most once, never retried here.

        Raises:
            PeerUnavailable: no connection (not applied), or it broke (unknown).
            CallFailed: the handler raised.
            Timeout: no answer in time; the outcome is unknown.
            Overloaded: the payload or the number of open calls is over its bound.
        """
        return await self._running_calls().call(node_id, payload, timeout_s)

    def ask(self, node_id: str, payload: bytes, *, timeout_s: float, answered: Answered) -> int:
        """Do what :meth:`call` does without a task; returns a number for :meth:`give_up`.

        ``answered`` gets the answer, or ``PeerUnavailable``, ``CallFailed`` or ``Timeout``: once, after this returns.

        Raises:
            PeerUnavailable, Overloaded, Stopped: nothing was sent.
        """
        return self._running_calls().ask(node_id, payload, timeout_s, answered)

    def give_up(self, number: int) -> None:
        """Nobody waits for what was asked under this number any more; an answer that comes is dropped."""
        if self._calls is not None:
            self._calls.give_up(number)

    async def add_member(self, node_id: str, member: RaftMember, *, timeout_s: float = 60.0) -> int:
        """Add a node, or change a member's address; at the leader only. Returns the index of the configuration.

        The node is started with ``ReplicaConfig.joining``, before or after. It first receives the log as a learner,
        which counts in no majority, and votes once it has been caught up for an election time-out; then the call ends.
        Asking again for the same member waits for the same outcome. A dead node is replaced by removing it, then
        adding another one under another id, or under the same one with an empty directory.

        Raises:
            NotLeader, Transferring, NotReady, ChangePending, Overloaded: nothing was appended; try again.
            Timeout: the outcome is unknown. The learner stays, and still becomes a voter when it has caught up.
            LeadershipLost: leadership was lost; ask the next leader again.
            ValueError: the address is not allowed without TLS; see :class:`~oncegate.consensus.config.ReplicaConfig`.
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
            Timeout, LeadershipLost: the outcome is unknown; ask the leader again.
        """
        return await self._operations.remove_member(node_id, timeout_s)

    async def transfer_leadership(self, to: str | None = None, *, timeout_s: float | None = None) -> str:
        """Hand leadership to the voter ``to``, by default the most up-to-date one; returns who leads.

        Commands are refused meanwhile (``Transferring``, nothing appended); those appended end with their results, but
        for a leader whose state is damaged: there their outcome is unknown.
        If the target has not taken over after ``timeout_s``, at most an election time-out, this node goes on leading.

        Raises:
            NotLeader: this node does not lead.
            ChangeRefused: ``to`` is no other voter, or leadership is being handed to another one.
            TransferFailed: nobody took over in time, or somebody else did.
        """
        return await self._operations.transfer(to, timeout_s)

    def renew_credentials(self, secrets: tuple[bytes, ...]) -> None:
        """Go on with these secrets, and with the certificates that their files hold now.

        Connections stay, but those proved by a secret that is no longer accepted: they are closed, and dialled again.

        Raises:
            ValueError, OSError: a secret or a certificate is not usable; nothing has changed.
        """
        if self._transport is not None:
            self._transport.renew(secrets)

    @property
    def configuration(self) -> Configuration:
        """The members in force on this node, committed or not; the same object until it changes."""
        if self._engine is None:
            return self._config.initial_configuration
        return self._engine.membership.current

    def status(self) -> ReplicaStatus:
        """What this node knows now."""
        return status_of(self._running())

    # -- inside ----------------------------------------------------------------------------------------

    def _running(self) -> Engine[asyncio.Future[object]]:
        if self._engine is None:
            raise Stopped("the replica is not running")
        return self._engine

    def _running_calls(self) -> Calls:
        self._running()
        if self._calls is None:
            raise Stopped("the replica is not running")
        return self._calls

    def _send(self, peer_id: str, message: Message) -> None:
        if self._transport is not None:
            self._transport.send(peer_id, message)

    def _send_call(self, peer_id: str, message: Message) -> bool:
        return self._transport is not None and self._transport.send(peer_id, message)

    def _peers_changed(self) -> None:
        engine = self._engine
        if engine is not None and self._transport is not None:
            self._transport.set_members(engine.wanted_peers(), anyone=engine.peers.hears_anyone(engine.raft.leader()))

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
