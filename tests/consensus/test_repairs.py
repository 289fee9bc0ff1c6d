"""Each repair beside the stock library: the defect without the filter, its absence with it."""

from __future__ import annotations

import pytest
from pysyncobj import SyncObj, SyncObjConf
from pysyncobj.node import Node
from pysyncobj.transport import Transport

from oncegate.consensus.configuration import Configuration, RaftMember
from oncegate.consensus.core.reconfiguration import Reconfiguration
from oncegate.consensus.core.repairs import ack_counts, admit_append, cap_snapshot_chunk, next_index_after_ack
from oncegate.consensus.errors import ChangePending, ProtocolError, SafetyViolation
from oncegate.consensus.log.ballot import Ballot
from oncegate.consensus.log.library_log import LibraryLog
from oncegate.consensus.log.log_base import NO_BASE
from oncegate.consensus.messages import Ack, Append
from oncegate.proof.sim.engine.fake_disk import FakeDisk, InlineWorker


class Wire(Transport):
    def __init__(self):
        super().__init__(None, None, [])
        self.sent = []

    def send(self, node, message):
        self.sent.append((node.id, message))
        return True


class StockNode:
    """PySyncObj 0.3.17 as published, with its log in memory."""

    base = NO_BASE

    def __init__(self, peers=2, **settings):
        self.wire = Wire()
        self.peers = [Node(f"peer{number}") for number in range(peers)]
        conf = SyncObjConf(autoTick=False, leaderFallbackTimeout=1e9, **settings)
        self.node = SyncObj(Node("self"), self.peers, conf=conf, transport=self.wire)

    def deliver(self, message, peer=0):
        self.wire._onMessageReceived(self.peers[peer], message)

    def append(self, append, peer=0):
        self.deliver(
            {
                "type": "append_entries",
                "term": append.term,
                "commit_index": append.commit,
                "entries": append.entries,
                "prevLogIdx": append.prev_index,
                "prevLogTerm": append.prev_term,
            },
            peer,
        )

    def lead(self):
        for peer in self.peers:
            self.wire._onNodeConnected(peer)
        self.node._SyncObj__raftElectionDeadline = 0
        self.node.doTick(0)
        self.deliver({"type": "response_vote", "term": self.term})
        assert self.node._isLeader()
        return self

    def acknowledged(self, next_index):
        """A peer says that it has what is before an entry."""
        self.deliver({"type": "next_node_idx", "next_node_idx": next_index, "reset": False, "success": True})
        self.node.doTick(0)

    @property
    def log(self):
        return self.node._SyncObj__raftLog

    @property
    def term(self):
        return self.node.raftCurrentTerm

    @property
    def last_index(self):
        return self.log[-1][1]

    @property
    def last_term(self):
        return self.log[-1][2]

    @property
    def commit_index(self):
        return self.node.raftCommitIndex

    def term_at(self, index):
        return self.log[index - 1][2] if 1 <= index <= len(self.log) else None


def entries(first, last, term=1):
    return [(b"\0command", index, term) for index in range(first, last + 1)]


@pytest.fixture
def follower():
    """A follower that holds and has acknowledged entries 2 to 6 of term 1."""
    stock = StockNode()
    stock.append(Append(1, 1, 0, 1, entries(2, 6)))
    assert stock.last_index == 6
    return stock


@pytest.fixture(params=["a repeated append", "an old heartbeat"])
def old_append(request):
    """What a leader may send after the follower has acknowledged more; it proves entries up to 3."""
    return Append(1, 1, 0, 6, entries(2, 3)) if request.param == "a repeated append" else Append(1, 3, 1, 6, [])


def test_b1_stock_follower_forgets_acknowledged_entries_on_a_repeated_append(follower, old_append):
    follower.append(old_append)
    assert follower.last_index == 3


def test_b1_filtered_follower_keeps_them(follower, old_append):
    admitted = admit_append(old_append, follower)
    follower.append(admitted.append)
    assert (admitted.success, admitted.index) == (True, 3), "no more than it proves is acknowledged"
    assert (follower.last_index, follower.commit_index) == (6, 3)


def test_b1_the_new_part_of_an_overlapping_append_is_added(follower):
    admitted = admit_append(Append(1, 4, 1, 1, entries(5, 8)), follower)
    assert admitted.append.prev_index == 6
    follower.append(admitted.append)
    assert follower.last_index == 8
    assert admitted.index == 8


def test_b1_a_conflicting_suffix_is_still_replaced(follower):
    admitted = admit_append(Append(2, 4, 1, 1, [(b"\0command", 5, 1), (b"\0new", 6, 2)]), follower)
    assert admitted.append.prev_index == 5
    follower.append(admitted.append)
    assert (follower.last_index, follower.last_term) == (6, 2)


def test_b1_the_commit_index_is_capped_at_the_last_match(follower):
    assert admit_append(Append(1, 2, 1, 99, entries(3, 4)), follower).append.commit == 4
    assert admit_append(Append(1, 6, 1, 99, entries(7, 7)), follower).append.commit == 7


def test_b1_stock_leader_sends_entries_in_flight_again_after_an_ack():
    stock = StockNode().lead()
    node, peer = stock.node, stock.peers[0]
    for _ in range(5):
        node._SyncObj__raftLog.add(b"\0command", stock.last_index + 1, stock.term)
    node._SyncObj__sendAppendEntries()
    assert node._SyncObj__raftNextIndex[peer] == 8
    stock.deliver({"type": "next_node_idx", "next_node_idx": 4, "reset": False, "success": True})
    assert node._SyncObj__raftNextIndex[peer] == 4


def test_b1_next_index_is_never_moved_back_by_an_ack():
    assert next_index_after_ack(8, 3) == 8
    assert next_index_after_ack(3, 8) == 9


CHUNK = {"type": "append_entries", "term": 2, "commit_index": 6, "serialized": (b"part", True, False)}


def test_b2_stock_follower_commits_its_unmatched_tail_on_a_snapshot_chunk(follower):
    follower.deliver(CHUNK)
    assert follower.commit_index == 6


def test_b2_a_capped_snapshot_chunk_commits_nothing(follower):
    follower.deliver(cap_snapshot_chunk(CHUNK, follower.commit_index))
    assert follower.commit_index == 1


def test_b3_stock_leader_commits_by_an_ack_of_an_earlier_term():
    stock = StockNode().lead()
    # Sent by a follower in answer to an earlier leader's entry at the same index; it says nothing of terms.
    stock.acknowledged(3)
    assert stock.commit_index == 2


def test_b3_an_ack_counts_in_its_own_term_only():
    assert ack_counts(Ack(4, 77, True, 2, 1), term=4, epoch=77)
    assert not ack_counts(Ack(3, 77, True, 2, 1), term=4, epoch=77)


def test_b4_an_ack_counts_on_its_own_connection_only():
    assert not ack_counts(Ack(4, 76, True, 2, 1), term=4, epoch=77)
    assert not ack_counts(Ack(4, 76, True, 2, 1), term=4, epoch=None)


def test_b5_stock_leader_accepts_two_uncommitted_additions():
    stock = StockNode(dynamicMembershipChange=True)
    stock.wire.addNode = lambda node: None
    stock.lead()
    stock.acknowledged(3)
    refused = []
    for name in ("new1", "new2"):
        stock.node.addNodeToCluster(Node(name), callback=lambda result, error: refused.append(error))
    stock.node.doTick(0)
    assert refused == []
    assert {node.id for node in stock.node.otherNodes} == {"peer0", "peer1", "new1", "new2"}
    # Both are in force, and neither is committed: majorities of three and of five need not share a node.
    assert (stock.commit_index, stock.last_index) == (2, 4)


def test_b5_a_second_change_waits_for_the_commit_of_the_first():
    log = LibraryLog(FakeDisk(), InlineWorker(), Ballot(FakeDisk(), 1, None), segment_bytes=1 << 15, memory_bytes_max=1)
    log.membership.begin(Configuration.of_addresses({"self": ("a", 1), "peer0": ("b", 1), "peer1": ("c", 1)}))
    log.append(b"\1", 1, 0)
    changes = Reconfiguration(log.membership, 1.0, lambda token, result: None, lambda token, error: None)
    changes.add("new1", RaftMember("d", 1), None, ready=True, commit_index=1)
    changes.append_to(log, 1, *changes.wanted)
    with pytest.raises(ChangePending) as refused:
        changes.add("new2", RaftMember("e", 1), None, ready=True, commit_index=1)
    assert (refused.value.outcome, refused.value.retryable) == ("not_applied", True)
    assert log.last_index == 2
    changes.add("new2", RaftMember("e", 1), None, ready=True, commit_index=2)


def test_a_gap_is_refused_with_the_end_of_the_log(follower):
    refused = admit_append(Append(1, 9, 1, 9, entries(10, 11)), follower)
    assert (refused.success, refused.index) == (False, 7)
    follower.append(refused.append)
    assert follower.last_index == 6
    assert follower.commit_index == 1


def test_a_conflict_is_refused_with_the_first_uncommitted_entry(follower):
    follower.append(admit_append(Append(1, 6, 1, 3, []), follower).append)
    refused = admit_append(Append(3, 6, 2, 9, entries(7, 7, 3)), follower)
    assert (refused.success, refused.index) == (False, 4)
    follower.append(refused.append)
    assert (follower.last_index, follower.commit_index) == (6, 3)


def test_a_leader_that_contradicts_a_committed_entry_stops_the_node(follower):
    follower.append(admit_append(Append(1, 6, 1, 5, []), follower).append)
    with pytest.raises(SafetyViolation):
        admit_append(Append(2, 4, 1, 5, entries(5, 5, 2)), follower)
    with pytest.raises(SafetyViolation):
        admit_append(Append(2, 4, 2, 5, []), follower)


def test_entries_that_are_not_consecutive_are_refused(follower):
    with pytest.raises(ProtocolError):
        admit_append(Append(1, 6, 1, 1, [(b"\0command", 9, 1)]), follower)
