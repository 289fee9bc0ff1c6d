"""A simulated process that runs PySyncObj as published: its log, its messages, its timers, its snapshots.

Only what the library asks of its surroundings is replaced: time, randomness, transport. The repairs of
:mod:`oncegate.consensus.core.repairs` can be put in front of it one by one, as filters of what its transport hands
over. Read next: :mod:`oncegate.proof.sim.engine.stock_families`.
"""

from __future__ import annotations

import zlib
from typing import ClassVar

import pysyncobj.syncobj
from pysyncobj import SyncObj, SyncObjConf, replicated
from pysyncobj.config import FAIL_REASON
from pysyncobj.journal import MemoryJournal
from pysyncobj.node import Node
from pysyncobj.transport import Transport

from oncegate.consensus.core.read_index import ReadRounds
from oncegate.consensus.core.repairs import admit_append, cap_snapshot_chunk, next_index_after_ack
from oncegate.consensus.log.log_base import NO_BASE
from oncegate.consensus.messages import Append
from oncegate.proof.sim.engine.node import SimNode

TICK_S = 0.01


class _Member(Node):
    """A node that hashes alike in every process."""

    def __hash__(self):
        return zlib.crc32(self.id.encode())


class _Wire(Transport):
    """The library's transport over the simulated network."""

    def __init__(self, owner):
        super().__init__(None, None, [])
        self._owner = owner

    def send(self, node, message):
        return self._owner.library_sends(node.id, message)

    def hand_over(self, node, message):
        self._onMessageReceived(node, message)

    def set_connected(self, node, connected):
        (self._onNodeConnected if connected else self._onNodeDisconnected)(node)


class _NullPoller:
    def poll(self, timeout):
        """Return at once."""


class WatchedJournal(MemoryJournal):
    """The library's journal in memory, with somebody watching; it outlives the process as a page cache would."""

    def __init__(self, node):
        super().__init__()
        self._node = node
        self._cleared = False
        self.flushed_state = ([], 0, None)

    def add(self, command, idx, term):
        super().add(command, idx, term)
        see = self._node.world.see
        if self._cleared:
            self._cleared = False
            see.installed(self._node.name, idx)
        see.appended(self._node.name, idx, term, command)
        see.flushed(self._node.name)

    def clear(self):
        super().clear()
        self._cleared = True

    def deleteEntriesFrom(self, entryFrom):  # noqa: N802, N803 - the library's names
        first = self[0][1]
        removes = entryFrom < len(self)
        super().deleteEntriesFrom(entryFrom)
        if removes:
            self._node.world.see.truncated(self._node.name, first + entryFrom)

    def flush(self):
        """What the repair of D1 does before anything is said."""
        self.flushed_state = (list(self[0:]), self.getCurrentTerm(), self.getVotedForNodeId())

    def lose_power(self):
        """Only what was flushed is left; the library flushes nothing."""
        entries, term, vote = self.flushed_state
        self.clear()
        self._cleared = False
        for entry in entries:
            MemoryJournal.add(self, *entry)
        self.setCurrentTerm(term, vote)


class Counter(SyncObj):
    """A replicated list of commands, as an application of the library would write it."""

    def __init__(self, owner, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.commands = {}
        self._SyncObj__properies |= {"_poller"}
        _OWNERS[id(self)] = owner

    @replicated
    def write(self, command):
        """Apply one command; answers the index it has in the log."""
        owner = _OWNERS[id(self)]
        index = self.raftLastApplied + 1
        self.commands[index] = command
        owner.world.see.applied(owner.name, index, self._getTerm(), command)
        return index


_OWNERS = {}


class StockNode(SimNode):
    """The library as published, behind the repairs named in ``repairs``."""

    repairs: frozenset = frozenset()
    conf: ClassVar[dict] = {}

    def __init__(self, world, name, rng):
        super().__init__(world, name, rng)
        self.journal = WatchedJournal(self)
        self.sync = None
        self._wire = None
        self._epochs = {}
        self._members = {}
        self._rounds = None
        self._acks = {}

    # -- life -------------------------------------------------------------------------------------------

    def boot(self):
        self._enter()
        self.world.see.started(self.name, list(self.journal[0:]) or [(b"\1", 1, 0)], self.journal.getCurrentTerm())
        if not len(self.journal):
            MemoryJournal.add(self.journal, b"\1", 1, 0)
        others = [name for name in self.world.plan.names if name != self.name]
        self._members = {name: _Member(name) for name in others}
        self._wire = _Wire(self)
        self._epochs = {}
        self._rounds = ReadRounds()
        self._rounds.set_peers(frozenset(others))
        self._round_acks = {}
        settings = {
            "autoTick": False,
            "raftMinTimeout": 0.4,
            "raftMaxTimeout": 1.4,
            "useFork": False,
            "logCompactionMinTime": 1e9,
            **self.conf,
        }
        original = pysyncobj.syncobj.createJournal, pysyncobj.syncobj.createPoller
        pysyncobj.syncobj.createJournal = lambda journal: self.journal
        pysyncobj.syncobj.createPoller = lambda kind: _NullPoller()
        try:
            self.sync = Counter(
                self,
                _Member(self.name),
                list(self._members.values()),
                conf=SyncObjConf(**settings),
                transport=self._wire,
            )
        finally:
            pysyncobj.syncobj.createJournal, pysyncobj.syncobj.createPoller = original

    def _enter(self):
        """The library reads time and randomness of the process it runs in."""
        pysyncobj.syncobj.monotonicTime = self.clock.read
        pysyncobj.syncobj.random = self.rng

    def forget(self):
        if self.sync is not None:
            _OWNERS.pop(id(self.sync), None)
        self.sync = None

    def die(self, *, power, down_s):
        alive = self.alive
        super().die(power=power, down_s=down_s)
        if alive and power:
            self.journal.lose_power()

    def run_tick(self):
        self._enter()
        self.sync.doTick(0)
        self._observe()
        return self.world.scheduler.now + TICK_S

    def _observe(self):
        sync, see = self.sync, self.world.see
        see.ticked(self.name, sync.raftCurrentTerm, sync.raftCommitIndex)
        if sync._isLeader():
            see.leads(self.name, sync.raftCurrentTerm)

    def compact(self):
        """Take a snapshot at the next tick and drop the log before it."""
        if self.sync is not None:
            self.sync.forceLogCompaction()

    def transfer(self, target):
        """Hand leadership to another node."""
        if self.sync is not None:
            self._enter()
            self.sync.transferLeadership(self._members[target])

    # -- network ----------------------------------------------------------------------------------------

    def _connected(self, peer, epoch):
        self._enter()
        self._epochs[peer] = epoch
        self._wire.set_connected(self._members[peer], True)

    def _disconnected(self, peer):
        self._enter()
        self._epochs.pop(peer, None)
        self._wire.set_connected(self._members[peer], False)

    def library_sends(self, peer, message):
        """Let a message out; its term goes with it where a repair needs that."""
        if "D1" in self.repairs:
            self.journal.flush()
        see = self.world.see
        match message["type"]:
            case "append_entries":
                see.leads(self.name, message["term"])
            case "request_vote":
                see.votes(self.name, self.name, message["term"])
            case "response_vote":
                see.votes(self.name, peer, message["term"])
            case "next_node_idx":
                message = {**message, **self._acks.get("override", {}), "sim_term": self._acks.get("term", 0)}
        if peer not in self._epochs:
            return False
        self.world.network.send(self.name, peer, message)
        return True

    def _received(self, peer, epoch, message):
        self._enter()
        if "B4" in self.repairs and self._epochs.get(peer) != epoch:
            return
        sync, member, kind = self.sync, self._members[peer], message["type"]
        if kind == "read_probe":
            if message["term"] == sync.raftCurrentTerm:
                self.library_sends(peer, {**message, "type": "read_probe_ack"})
            return
        if kind == "read_probe_ack":
            self._probe_acknowledged(peer, message)
            return
        self._acks = {}
        next_before = None
        if kind == "append_entries":
            self._acks["term"] = message["term"]
            message = self._filtered(message)
        elif kind == "next_node_idx":
            if "B3" in self.repairs and message["sim_term"] != sync.raftCurrentTerm:
                return
            if "B1" in self.repairs and message["success"] and not message["reset"]:
                next_before = sync._SyncObj__raftNextIndex.get(member)
        self._wire.hand_over(member, message)
        self._acks = {}
        if next_before is not None and sync._isLeader():
            sync._SyncObj__raftNextIndex[member] = next_index_after_ack(next_before, message["next_node_idx"] - 1)
        self._observe()

    def _filtered(self, message):
        """The follower's side of B1 and B2."""
        if "B2" in self.repairs:
            message = cap_snapshot_chunk(message, self.sync.raftCommitIndex)
        if "B1" in self.repairs and "entries" in message and message["term"] >= self.sync.raftCurrentTerm:
            append = Append(
                message["term"],
                message["prevLogIdx"],
                message["prevLogTerm"],
                message["commit_index"],
                message["entries"],
            )
            admitted = admit_append(append, _LogView(self.sync))
            if admitted.success:
                shown = admitted.append
                self._acks["override"] = {"next_node_idx": admitted.index + 1}
                message = {
                    **message,
                    "prevLogIdx": shown.prev_index,
                    "prevLogTerm": shown.prev_term,
                    "commit_index": shown.commit,
                    "entries": shown.entries,
                }
        return message

    # -- clients ----------------------------------------------------------------------------------------

    @property
    def leads(self):
        return self.sync is not None and self.sync._isLeader()

    @property
    def term(self):
        return self.sync.raftCurrentTerm

    @property
    def applied_index(self):
        return self.sync.raftLastApplied if self.sync is not None else 0

    @property
    def commands(self):
        return self.sync.commands

    def _propose(self, command, done):
        self._enter()

        def answered(index, reason):
            if reason == FAIL_REASON.SUCCESS:
                self.world.acknowledged(command, index)
                done(index)
            else:
                done(None)

        self.sync.write(command, callback=answered)

    def _read(self, read):
        """Read at whoever says that it leads, as the library's documentation has it, or by a round."""
        self._enter()
        if not self.leads:
            self.world.read_failed(read)
        elif "R1" in self.repairs:
            if self.sync.raftLastApplied < self.sync._SyncObj__noopIDx:
                self.world.read_failed(read)
                return
            self._rounds.add(read)
            number = self._rounds.start(self.sync.raftCommitIndex, 0.0)
            for peer in self._members:
                self.library_sends(peer, {"type": "read_probe", "term": self.term, "number": number})
        else:
            self.world.read_done(read, self.applied_index, self.applied_index)

    def _probe_acknowledged(self, peer, message):
        if self.leads and message["term"] == self.term:
            self._rounds.confirm(peer, message["number"])
            point, reads = self._rounds.finish()
            for read in reads:
                if self.applied_index >= point:
                    self.world.read_done(read, point, self.applied_index)
                else:
                    self.world.read_failed(read)


class _LogView:
    """What the follower's filter asks of a log."""

    base = NO_BASE

    def __init__(self, sync):
        self._log = sync._SyncObj__raftLog
        self._first = self._log[0][1]
        self.commit_index = sync.raftCommitIndex
        self.last_index, self.last_term = self._log[-1][1:]

    def term_at(self, index):
        position = index - self._first
        return self._log[position][2] if 0 <= position < len(self._log) else None


def stock(*repairs, **conf):
    """A type of node: the library with these repairs in front of it."""
    return type("Stock", (StockNode,), {"repairs": frozenset(repairs), "conf": conf})
