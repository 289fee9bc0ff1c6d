"""Who is connected, who votes, who is listened to."""

from __future__ import annotations

from pathlib import Path

from oncegate.consensus.config import ReplicaConfig
from oncegate.consensus.configuration import Configuration, RaftMember, encode
from oncegate.consensus.core.peers import Peers
from oncegate.consensus.log.membership import Membership


def member(node, *, voter=True):
    return RaftMember("127.0.0.1", int(node[1:]), voter=voter)


def peers_of(node="n1", others=("n2", "n3", "n4"), *, joining=False):
    config = ReplicaConfig(
        node_id=node,
        cluster_id="c",
        listen=("127.0.0.1", 1),
        peers={other: ("127.0.0.1", int(other[1:])) for other in others},
        joining=joining,
        data_dir=Path("unused"),
    )
    membership = Membership()
    membership.begin(config.initial_configuration)
    peers = Peers(config, membership)
    peers.follow(1)
    return peers, membership


def without(membership, node):
    return encode(membership.current.without(node))


def test_a_removed_member_is_listened_to_until_its_removal_is_committed():
    peers, membership = peers_of()
    membership.appended(9, without(membership, "n4"))
    assert peers.followed != membership.version
    peers.follow(8)
    assert peers.voters == {"n2", "n3"}
    assert "n4" in peers.known
    assert peers.unsettled
    assert not peers.settle(8)
    assert peers.settle(9)
    assert "n4" not in peers.known
    assert not peers.settle(10), "it is settled once"


def test_a_removal_that_is_truncated_gives_the_voter_back():
    peers, membership = peers_of()
    membership.appended(9, without(membership, "n4"))
    peers.follow(8)
    membership.truncated(9)
    assert peers.followed != membership.version
    peers.follow(8)
    assert peers.voters == {"n2", "n3", "n4"}
    assert peers.followed == membership.version
    assert not peers.unsettled


def test_only_voters_that_are_connected_are_asked_in_the_order_of_their_connections():
    peers, membership = peers_of()
    membership.appended(9, encode(membership.current.with_member("n5", member("n5", voter=False))))
    peers.follow(9)
    for epoch, peer in enumerate(("n4", "n5", "n2")):
        peers.epochs[peer] = epoch
    assert peers.connected_voters() == ["n4", "n2"]
    assert peers.is_connected("n2", 2)
    assert not peers.is_connected("n2", 1)


def test_a_leader_out_of_reach_is_none_and_then_any_candidate_is_heard():
    peers, _ = peers_of()
    assert peers.within_reach("n1") == "n1"
    assert peers.within_reach("n2") is None
    assert peers.hears_anyone("n2")
    peers.epochs["n2"] = 1
    assert peers.within_reach("n2") == "n2"
    assert not peers.hears_anyone("n2")


def test_a_joiner_hears_everybody_and_dials_the_given_members_until_its_log_names_it():
    peers, membership = peers_of("n5", joining=True)
    peers.epochs["n2"] = 1
    assert peers.hears_anyone("n2")
    assert set(peers.wanted(1, None, ())) == {"n2", "n3", "n4"}
    named = Configuration({"n2": member("n2"), "n3": member("n3"), "n5": member("n5", voter=False)})
    membership.appended(9, encode(named))
    peers.follow(9)
    assert not peers.hears_anyone("n2")
    assert set(peers.wanted(9, None, ())) == {"n2", "n3"}


def test_wanted_are_members_of_both_configurations_the_leaving_and_the_leader():
    peers, membership = peers_of()
    membership.appended(9, without(membership, "n4"))
    peers.follow(8)
    assert set(peers.wanted(8, "n2", ())) == {"n2", "n3", "n4"}
    assert set(peers.wanted(9, "n2", ())) == {"n2", "n3"}
    assert set(peers.wanted(9, "n7", ("n4",))) == {"n2", "n3", "n4", "n7"}
