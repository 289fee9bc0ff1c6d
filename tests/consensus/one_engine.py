"""One engine by itself: the test plays its peers, its clock and its network, message by message."""

from __future__ import annotations

import random
from pathlib import Path

from oncegate.consensus.config import ReplicaConfig
from oncegate.consensus.core.engine import Engine
from oncegate.consensus.log.identity import open_identity
from oncegate.consensus.log.library_log import LibraryLog
from oncegate.consensus.messages import Ack, Append, PreVoteReply, PreVoteRequest, VoteReply, VoteRequest
from oncegate.proof.sim.engine.fake_disk import FakeDisk, InlineWorker
from tests.consensus.cluster import ListMachine


def config_of(peers=("n2", "n3"), node_id="n1", **settings):
    """Settings of a node of the cluster c, with small bounds."""
    return ReplicaConfig(
        node_id=node_id,
        cluster_id="c",
        listen=("127.0.0.1", 1),
        peers=dict.fromkeys(peers, ("127.0.0.1", 1)),
        data_dir=Path("unused"),
        **{"command_bytes_max": 1000, "journal_segment_bytes": 10_000, "log_memory_bytes_max": 2000, **settings},
    )


def open_log(disk, config):
    """The log that is on the disk of the node that a configuration names."""
    _, ballot = open_identity(disk, cluster_id="c", node_id=config.node_id)
    return LibraryLog(
        disk,
        InlineWorker(),
        ballot,
        segment_bytes=config.journal_segment_bytes,
        memory_bytes_max=config.log_memory_bytes_max,
    )


class OneEngine:
    """Node n1 of a cluster of three, or another; the connections to its peers are up."""

    now = 100.0

    def __init__(self, peers=("n2", "n3"), *, disk=None, machine=None, node_id="n1", **settings):
        self.peers = peers
        self.disk = disk or FakeDisk()
        self.machine = machine or ListMachine()
        self.sent = []
        self.results = []
        self.failures = []
        config = config_of(peers, node_id, **settings)
        self.engine = Engine(
            config,
            self.machine,
            open_log(self.disk, config),
            clock=lambda: self.now,
            rng=random.Random(node_id),
            send=self.sends,
            on_result=lambda token, result: self.results.append((token, result)),
            on_failure=lambda token, error: self.failures.append((token, error)),
            on_role=self.role_changes,
        )
        for peer in peers:
            self.engine.peer_up(peer, 1)

    def sends(self, peer_id, message):
        """Called with each message that leaves."""
        self.sent.append((self.now, peer_id, message))

    def role_changes(self, change):
        """Called with each change of role, term, leader or readiness."""

    def tick(self, at=None):
        """Let the clock show ``at``, and tick."""
        self.now = self.now if at is None else at
        return self.engine.tick()

    def receives(self, peer, *messages):
        """Messages of one peer come, and a tick follows."""
        for message in messages:
            self.engine.receive(peer, 1, message)
        self.tick()

    def said(self, kind, peer=None):
        """What was sent since it was last asked for, of one kind, as (time, message)."""
        said = [(at, message) for at, to, message in self.sent if type(message) is kind and peer in (None, to)]
        self.sent = [one for one in self.sent if not (type(one[2]) is kind and peer in (None, one[1]))]
        return said

    def follow(self, leader="n2", term=5):
        """Hear a leader whose log is as empty as this one."""
        self.receives(leader, Append(term, 0, 0, 0, []))
        self.said(Ack)
        return self

    def campaign(self):
        """Time out, and hear that all others would vote for this node."""
        self.tick(self.engine.deadline())
        request = self.said(PreVoteRequest)[0][1]
        for peer in self.peers:
            # Of a node that is still in the term before.
            self.receives(peer, PreVoteReply(request.term - 1, request.attempt, True))
        assert len(self.said(VoteRequest)) == len(self.peers)
        return self

    def lead(self):
        """Win an election by the votes of all others, and have the first entry of the term committed."""
        self.campaign()
        for peer in self.peers:
            self.receives(peer, VoteReply(self.engine.raft.term()))
        self.acknowledge(*self.peers)
        assert self.engine.leading.ready
        return self

    def acknowledge(self, *peers):
        """These peers have flushed all that they were sent."""
        for peer in peers:
            appends = [message for _, message in self.said(Append, peer)]
            if appends:
                last = appends[-1]
                index = last.prev_index + len(last.entries)
                self.engine.receive(peer, 1, Ack(self.engine.raft.term(), 1, True, index, last.prev_index))
        self.tick()
