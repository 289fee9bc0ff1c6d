"""One node: replica, machine, proposer and segment writer joined on one event loop.

Owns: their life cycle and the wiring between them. Thin: decisions are in :mod:`oncegate.gateway.machine.machine`,
ordering in :mod:`oncegate.gateway.node.proposer`, reads in :mod:`oncegate.gateway.node.reads`. HTTP sits on top in
:mod:`oncegate.gateway.http.server`.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable
from functools import partial
from itertools import chain
from typing import Any, Final

from oncegate.consensus.config import ReplicaConfig
from oncegate.consensus.configuration import Configuration
from oncegate.consensus.errors import ConsensusError
from oncegate.consensus.ports import Role, RoleChange
from oncegate.consensus.replica.replica import Replica
from oncegate.flows.publisher import Publisher
from oncegate.flows.segment_store import SegmentStore
from oncegate.gateway.answers import Answer
from oncegate.gateway.explain.explainer import EXPLAIN, Explainer
from oncegate.gateway.live_check.checker import LIVE_CHECK, LiveChecker
from oncegate.gateway.machine import commands as c
from oncegate.gateway.machine.machine import Machine
from oncegate.gateway.machine.ordering import ClusterClock
from oncegate.gateway.machine.results import Dropped
from oncegate.gateway.machine.state import MachineState
from oncegate.gateway.machine.state.pacer import Pacer
from oncegate.gateway.machine.state.scrub import Scrubber
from oncegate.gateway.node import levels
from oncegate.gateway.node.administration import ADMINISTER, Administration, address_of
from oncegate.gateway.node.attempts import Attempt, Waiter, hand_on
from oncegate.gateway.node.change_history import ChangeHistory
from oncegate.gateway.node.commit_stall import CommitStall, is_stalled, stall_of
from oncegate.gateway.node.consumer_watch import ConsumerWatch
from oncegate.gateway.node.event_clocks import EventClocks
from oncegate.gateway.node.figures import FIGURES, Figures
from oncegate.gateway.node.forwarding import PROPOSE
from oncegate.gateway.node.levels import LEVELS
from oncegate.gateway.node.peer_credentials import PeerCredentials, peer_secrets, peer_tls
from oncegate.gateway.node.proposer import ENTRY_BYTES_MAX, Leadership, Proposer
from oncegate.gateway.node.reads import Reads
from oncegate.gateway.node.row_turns import RowTurns
from oncegate.gateway.node.segment_fetch import FETCH, SegmentFetcher, serve_piece
from oncegate.gateway.node.settings import MemberAddress, Settings
from oncegate.gateway.node.stream_store import StreamStore
from oncegate.gateway.node.watching import WatchersMax, Watching
from oncegate.rifl.errors import Code, OncegateError

HOUSEKEEPING_MS: Final = 25
FOLLOWER_HOUSEKEEPING_MS: Final = 1000
"""A follower only forgets who is gone. Each wake-up waits for its turn on a machine that others keep busy."""
LAG_MAX: Final = 1_000
"""Entries of the log that a node may lack that keeps up with its leader: a blink of a busy one."""
_LEAVE_S: Final = 0.2
"""How soon a node with a damaged state looks again whether it leads."""
_REAPING: Final = ""
_FORGETTING: Final = "\0keys"
_EXPIRING: Final = "\0consumers"
_ENDING: Final = "\0rows"
_IDENTIFYING: Final = "\0identity"
_SWEEPING: Final = "\0dropped"
_RAISING: Final = "\0level"
"""Names among the housework that no flow has."""
log = logging.getLogger(__name__)


class Node:
    """A member of the cluster. Every method belongs to the event loop that called :meth:`start`."""

    def __init__(
        self, settings: Settings, replica: ReplicaConfig | None = None, *, entry_bytes_max: int = ENTRY_BYTES_MAX
    ) -> None:
        """Open the node's state; ``replica`` replaces the consensus configuration that the settings give."""
        self.settings = settings
        self._members: dict[str, MemberAddress] = settings.addresses
        self._configuration: Configuration | None = None
        self._leader_http: str | None = None
        self._shown_for: tuple[str | None, Configuration | None] = None, None
        """What :attr:`leader_http` was found for: it stands in each answer."""
        self._loop = asyncio.get_running_loop()
        config = replica_config(settings) if replica is None else replica
        self.store = SegmentStore(settings.data_dir / "segments")
        self.publisher = Publisher(self.store, on_failure=self._unpublished, rest=Pacer().rest)
        # Open it before making the replica, which asks it from which entry on to replay the log.
        self.state = MachineState(
            settings.data_dir / "state",
            barrier=self.publisher,
            cache_bytes=settings.state_cache_bytes,
            on_applied=self._applied,
            on_installed=self._installed,
            on_damaged=self._damage_found,
            stand_in=True,
        )
        self.machine: Machine = self.state.machine
        history = ChangeHistory(settings.history_changes_max, settings.history_bytes_max, self.machine.commit)
        self.watching = Watching(history, WatchersMax.of(settings))
        self.row_turns = RowTurns(self.machine)
        self.scrubber = Scrubber(self.state, settings.scrub_bytes_per_s)
        # Consensus takes longer silences for sleep (:meth:`oncegate.consensus.core.engine.Engine.tick`): a leader that
        # wakes still leads.
        self.clock = ClusterClock(silence_ms_max=2 * config.heartbeat_ms)
        self.leadership = Leadership(node_id=settings.node)
        try:
            self.replica = Replica(
                config, self.state, on_call=self._serve_call, at_once=self._serve_at_once, on_role=self._role
            )
        except BaseException:
            self.state.close()
            raise
        self.peer_credentials = PeerCredentials(settings, self.replica.renew_credentials)
        self.administration = Administration(self.replica, self.leadership, self._repair)
        self.founding = levels.Founding(self.replica, self.machine, self._others, self._propose_level)
        self.proposer = Proposer(
            self.replica,
            self.machine,
            self.clock,
            self.leadership,
            self.founding.is_under_way,
            entry_bytes_max=entry_bytes_max,
            answer_s=settings.answer_ms_max / 1000,
            keys_bytes_max=settings.idempotency_keys_bytes_max,
        )
        self.stall = CommitStall()
        self.fetcher = SegmentFetcher(self.replica, self._others, self.machine, self.store, self.publisher)
        self.stream_store = None
        if settings.stream_store is not None:
            self.stream_store = StreamStore(settings.stream_store, lambda: self.machine.identity)
        self.reads = Reads(
            self.replica,
            self.machine,
            self.publisher,
            self.fetcher.ensure,
            self.stream_store,
            settings.answer_ms_max / 1000,
            self.watching.turns,
        )
        self.explainer = Explainer(
            self.replica, self.machine, self.clock, settings.node, lambda: self.leadership.leads, self._others
        )
        self.consumers = ConsumerWatch(self.machine, self._now_ms)
        self.event_clocks = EventClocks(self.machine, self.publisher, self._propose_quietly)
        self.figures = Figures(self)
        self.live_check: LiveChecker | None = None
        """Checks what this node answers; None where nothing is sampled."""
        if settings.live_check_share > 0:
            self.live_check = LiveChecker(
                settings.node,
                settings.live_check_share,
                settings.live_check_seed,
                settings.live_check_window_ms,
                self.replica,
                self._others,
                self._since,
                lambda: self.machine.ends.used,
            )
        self._timer: asyncio.TimerHandle | None = None
        self._leaving: asyncio.Task[None] | None = None
        self._stopping = False
        self._housework: dict[str, asyncio.Future[Answer]] = {}

    async def start(self) -> None:
        """Open the data directory, replay the log, join the cluster."""
        self.publisher.start()
        self.founding.begin(self._loop.time())
        await self.replica.start()
        self.peer_credentials.start()
        self.fetcher.scan()
        self.scrubber.start()
        if self.state.damage is not None:
            self._fence()
        if self.live_check is not None:
            self.live_check.start()
        self.figures.start()
        self._housekeep()

    async def stop(self) -> None:
        """Hand leadership over, disconnect, close the files; every acknowledged write is on disk already."""
        self._stopping = True
        if self._timer is not None:
            self._timer.cancel()
        self.peer_credentials.close()
        if self._leaving is not None:
            self._leaving.cancel()
        await asyncio.to_thread(self.scrubber.close)
        if self.live_check is not None:
            await self.live_check.close()
        await self.figures.close()
        await self.founding.close()
        await self.event_clocks.close()
        await self.fetcher.close()
        if self.stream_store is not None:
            await self.stream_store.close()
        await self.replica.stop(drain=True)
        self.proposer.close()
        await asyncio.to_thread(self.publisher.close)
        await asyncio.to_thread(self.state.close)

    def _applied(self, index: int, commit: int, results: list[Any]) -> None:
        """An entry is in the machine, which was at ``commit`` before: publish what it sealed, tell who waits."""
        machine = self.machine
        self.explainer.verdicts.applied(index, commit, results)
        flows = machine.flows
        # Most entries seal nothing, and nobody waits for them: each of these spares them a call.
        if flows.sealed:
            for batch in flows.take_sealed():
                # After a restart the log is applied again; batches whose files exist are not built again.
                if not self.store.has(batch.flow, batch.number):
                    self.publisher.submit(batch)
                self.reads.sealed(batch.flow)
        if flows.dropped:
            for flow, number in flows.take_dropped():
                self.publisher.drop_through(flow, number)
        self.watching.history.record(machine.changes, machine.commit, machine.joined)
        if self.reads.commit_waiters:
            self.reads.applied(machine.commit)
        if self.watching.watchers:
            self.watching.tell(machine.changes)
        if self.row_turns.waiting:
            self.row_turns.applied(machine.changes)
        if self.watching.watchers and any(type(result) is Dropped for result in results):
            self.watching.dropped(machine.tables)

    @property
    def damaged(self) -> bool:
        """The state must not be used."""
        return self.state.damaged

    def _installed(self) -> None:
        """A snapshot has replaced the machine's state: wake all waiting reads and fetch the missing batches."""
        if self._leaving is not None:
            self._leaving.cancel()
            self._leaving = None
            log.warning("node %s has a sound state again", self.settings.node)
        self.reads.replaced()
        self.watching.replaced(self.machine.commit)
        self.fetcher.scan()

    def submit(self, command: c.Command, size: int) -> asyncio.Future[Answer]:
        """Order a client's command. See :meth:`oncegate.gateway.node.proposer.Proposer.submit`.

        Raises:
            OncegateError: OVERLOADED, before anything is proposed.
        """
        self._check_room()
        return self._submit(command, size)

    def attempt(
        self, command: c.AnyOperate | c.Range, size: int, waiter: Waiter, then: Callable[[], None] | None = None
    ) -> None:
        """Order operations as :meth:`submit` does, and record the outcome for :mod:`oncegate.gateway.explain`.

        Who waits is told the end later, in the turn in which it comes. ``then`` is called at that end, before; not if
        this raises.
        """
        attempt = Attempt(command, size, waiter, self.explainer.attempts, then)
        try:
            self._check_room()
            if self.live_check is not None and self.live_check.recorder.samples(command):
                self._submit(command, size).add_done_callback(partial(hand_on, attempt))
            else:
                self.proposer.order(attempt)
        except OncegateError as refusal:
            attempt.refused_at_once(refusal)
            raise

    def _check_room(self) -> None:
        self.check_sound()
        if self.publisher.overloaded:
            raise OncegateError(Code.OVERLOADED, "sealed batches wait for the disk", retry_after_ms=200)
        if self.state.overloaded:
            raise OncegateError(Code.OVERLOADED, "the state waits for the disk", retry_after_ms=200)

    def _submit(self, command: c.Command, size: int) -> asyncio.Future[Answer]:
        future = self.proposer.submit(command, size)
        if self.live_check is not None:
            self.live_check.recorder.watch(command, future)
        return future

    @property
    def members(self) -> dict[str, MemberAddress]:
        """The members in force, by node id; those of the settings until the log names members."""
        configuration = self.replica.configuration
        if configuration is not self._configuration:
            self._configuration = configuration
            known = {node_id: address_of(node_id, member) for node_id, member in configuration.members.items()}
            self._members = known or self.settings.addresses
        return self._members

    @property
    def damage(self) -> str:
        """Which file of this node's state is damaged, and how; empty for a sound one."""
        damage = self.state.damage
        if damage is None:
            return ""
        file = damage.file
        data_dir = self.settings.data_dir
        return f"{file.relative_to(data_dir) if file.is_relative_to(data_dir) else file.name} is damaged"

    def check_sound(self) -> None:
        """Raise NOT_READY if this node's state is damaged: the caller asks another one."""
        if self.state.damage is not None:
            detail = f"{self.damage} on {self.settings.node}: it serves nothing until it is repaired"
            raise OncegateError(Code.NOT_READY, detail, retry_after_ms=1000)

    def _damage_found(self) -> None:
        """Runs in the thread that found it."""
        self._loop.call_soon_threadsafe(self._fence)

    def _fence(self) -> None:
        """The state is damaged: serve nothing, and do not lead."""
        if self._leaving is not None or self._stopping or self.state.damage is None:
            return
        node_id = self.settings.node
        log.critical(
            "node %s serves nothing any more: %s. The log is sound, so it goes on storing entries and voting. Look at "
            "the disk, then: oncegate member repair %s",
            node_id,
            self.state.damage,
            node_id,
        )
        self.leadership.leads = False
        self.row_turns.lead(leads=False)
        self.reads.replaced()
        self.watching.wake_all()
        self._leaving = self._loop.create_task(self._leave())

    async def _leave(self) -> None:
        """Hand leadership over, now and whenever this node is elected again."""
        while True:
            status = self.replica.status()
            if status.role is Role.LEADER and status.peers:
                try:
                    await self.replica.transfer_leadership()
                except ConsensusError as refused:
                    log.warning("node %s is damaged and still leads: %s", self.settings.node, refused)
            await asyncio.sleep(_LEAVE_S)

    def _repair(self) -> None:
        """Have the leader send a fresh copy of the state, which replaces the damaged one."""
        if self.state.damage is None:
            raise OncegateError(
                Code.CONFLICT, f"the state of {self.settings.node} is sound: there is nothing to repair"
            )
        if not self._others():
            raise OncegateError(Code.CONFLICT, f"there is no other member that {self.settings.node} could copy from")
        log.warning("node %s asks the leader for a fresh copy of the state", self.settings.node)
        self.state.want_state()

    async def hand_over(self) -> None:
        """Hand leadership over if this node leads, so that its stop causes no election."""
        await self.replica.drain()

    @property
    def leader_http(self) -> str | None:
        """HTTP address of the leader, if one is known."""
        leader_id, configuration = self.leadership.leader_id, self.replica.configuration
        if (leader_id, configuration) != self._shown_for:
            member = self.members.get(leader_id or "")
            self._leader_http = None if member is None else self.settings.http_of(member)
            self._shown_for = leader_id, configuration
        return self._leader_http

    @property
    def has_followers(self) -> bool:
        """Whether this node leads and another one keeps up with it, so that watches are better placed there."""
        if not self.leadership.leads:
            return False
        return any(peer.connected and peer.lag <= LAG_MAX for peer in self.replica.status().peers.values())

    def _serve_at_once(self, payload: bytes, tell: Callable[[bytes], None]) -> bool:
        if payload[:1] != PROPOSE:
            return False
        self.proposer.serve_forwarded(payload[1:], tell)
        return True

    async def _serve_call(self, peer: str, payload: bytes) -> bytes:
        kind, rest = payload[:1], payload[1:]
        if kind == FETCH:
            return await serve_piece(self.publisher, rest)
        if kind == EXPLAIN:
            return self.explainer.serve(rest)
        if kind == LIVE_CHECK and self.live_check is not None:
            return self.live_check.serve()
        if kind == FIGURES:
            return self.figures.serve(rest)
        if kind == LEVELS:
            return levels.serve()
        if kind == ADMINISTER:
            return await self.administration.serve(rest)
        raise OncegateError(Code.BAD_REQUEST, f"{peer} sent an unknown call")

    async def raise_level(self, level: int) -> Answer:
        """Raise the cluster's feature level once every member's build knows it.

        Raises:
            OncegateError: CONFLICT or BAD_REQUEST as :func:`oncegate.gateway.node.levels.check_all_know`, and as
                :meth:`submit`.
        """
        await levels.check_all_know(level, self.replica, self._others)
        return await self.submit(c.RaiseLevel(level), 64)

    def _since(self, table: str) -> int | None:
        declared = self.machine.tables.get(table)
        return None if declared is None else declared.since

    def _others(self) -> list[str]:
        return [node_id for node_id in self.members if node_id != self.settings.node]

    def _role(self, change: RoleChange) -> None:
        leads = change.role is Role.LEADER and change.ready and self.state.damage is None
        if leads and not self.leadership.leads:
            self.clock.lead_from(self.machine.time_ms, time.monotonic())
            self._housekeep_in(0)
        self.leadership.leads = leads
        self.row_turns.lead(leads=leads)
        self.leadership.leader_id = change.leader_id
        if change.leader_id is not None:
            self.proposer.leader_known(change.leader_id)
        self._look_for_stall()
        self.proposer.led()
        self.reads.lead.change(known=leads or change.leader_id not in (None, self.leadership.node_id))

    def _housekeep(self) -> None:
        """Propose what time makes due: seals, reaping, forgetting keys, ends of rows. Only the leader proposes."""
        sessions = self.machine.sessions
        self._look_for_stall()
        if self.leadership.leads:
            now_ms = self.clock.stamp_ms(time.monotonic())
            if self.founding.look(self._loop) and not self.machine.identity:
                self._propose_quietly(_IDENTIFYING, c.Identify(self._new_identity()))
            for flow, number in self.machine.flows.due(now_ms):
                self._propose_quietly(flow, c.Seal(flow, number))
            if not self._is_under_way(_REAPING) and (expired := sessions.expired(now_ms, limit=c.REAP_MAX)):
                self._propose_quietly(_REAPING, c.Reap(expired))
            if self.machine.keys.due(now_ms):
                self._propose_quietly(_FORGETTING, c.ForgetKeys())
            if not self._is_under_way(_ENDING) and (rows := self.machine.ends.due(now_ms, c.END_MAX)):
                self._propose_quietly(_ENDING, c.EndRows(rows), sum(map(len, chain.from_iterable(rows.values()))))
            if self.machine.closing:
                self._propose_quietly(_SWEEPING, c.SweepTables())
            self.event_clocks.look()
        if (expiring := self.consumers.look(leads=self.leadership.leads)) is not None:
            self._propose_quietly(_EXPIRING, c.ExpireConsumers(expiring))
        if not self.leadership.leads:
            sessions.expired(self.machine.time_ms, limit=c.REAP_MAX)  # drops sessions that are gone, on followers too
        # One look is bounded: at a slow pace sessions would be opened and closed faster than a follower forgets them.
        hurry = self.leadership.leads or sessions.is_behind(self.machine.time_ms)
        self._housekeep_in(HOUSEKEEPING_MS if hurry else FOLLOWER_HOUSEKEEPING_MS)

    def _look_for_stall(self) -> None:
        """Take writes, or none while nothing commits here."""
        stalled = self.leadership.leads and is_stalled(self.replica.stalled_s())
        why = stall_of(self.replica.status()) if stalled else ""
        self.stall.told(why)
        self.proposer.stall(why)

    def _now_ms(self) -> int:
        """Return cluster time now at the leader, elsewhere that of the newest entry."""
        return self.clock.stamp_ms(time.monotonic()) if self.leadership.leads else self.machine.time_ms

    def _housekeep_in(self, pause_ms: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if not self._stopping:
            self._timer = self._loop.call_later(pause_ms / 1000, self._housekeep)

    def _propose_quietly(self, what: str, command: c.Command, size: int = 0) -> None:
        """Propose a command of the node's own, one of a kind at a time; a later turn repeats a lost one."""
        if self._is_under_way(what):
            return
        try:
            future = self.proposer.submit(command, 64 + size)
        except OncegateError:
            return
        self._housework[what] = future
        future.add_done_callback(lambda done: done.cancelled() or done.exception())

    def _propose_level(self, command: c.RaiseLevel) -> None:
        self._propose_quietly(_RAISING, command)

    def _new_identity(self) -> str:
        return secrets.token_hex(16)

    def _is_under_way(self, what: str) -> bool:
        before = self._housework.get(what)
        return before is not None and not before.done()

    def _unpublished(self, flow: str, number: int, fault: Exception) -> None:
        """Runs on the segment writer's thread."""
        log.error("batch %d of %s could not be written and will be tried again: %s", number, flow, fault)


def replica_config(settings: Settings) -> ReplicaConfig:
    """Return the consensus configuration that the settings give.

    Raises ValueError if they contradict each other or the secret is too short, OSError if its file cannot be read.
    """
    return ReplicaConfig(
        node_id=settings.node,
        cluster_id=settings.cluster,
        listen=settings.peer_address,
        advertise=settings.address.peer,
        peers={m.node_id: m.peer for m in settings.addresses.values() if m.node_id != settings.node},
        member_data={m.node_id: str(m.http_port) for m in settings.addresses.values()},
        joining=settings.join,
        log_kept_bytes=settings.log_kept_bytes,
        data_dir=settings.data_dir / "raft",
        secrets=peer_secrets(settings),
        tls=peer_tls(settings),
        insecure_peers=settings.insecure_peers,
    )
