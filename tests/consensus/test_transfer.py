"""When the target of a transfer is told, and how a transfer ends."""

from __future__ import annotations

import pytest

from oncegate.consensus.core.transfer import Transfers, most_up_to_date
from oncegate.consensus.errors import ChangeRefused, LeadershipLost, TransferFailed
from tests.consensus.simulation import Simulation


@pytest.fixture
def ended():
    return {}


@pytest.fixture
def transfers(ended):
    return Transfers(ended.__setitem__, ended.__setitem__)


def test_the_target_is_told_once_it_has_everything_and_callers_have_their_results(transfers):
    transfers.begin("n2", "token", 5.0)
    assert not transfers.tell(applied_index=10, matched_index=9, last_index=10)
    assert not transfers.tell(applied_index=9, matched_index=10, last_index=10)
    assert transfers.tell(applied_index=10, matched_index=10, last_index=10)
    assert not transfers.tell(applied_index=10, matched_index=10, last_index=10)


def test_a_transfer_ends_well_when_the_target_leads(transfers, ended):
    transfers.begin("n2", "first", 5.0)
    transfers.begin("n2", "second", 6.0)
    transfers.leader_seen("n2")
    assert ended == {"first": "n2", "second": "n2"}
    assert transfers.target is None


def test_a_transfer_fails_when_somebody_else_leads_or_time_is_up(transfers, ended):
    transfers.begin("n2", "token", 5.0)
    transfers.leader_seen("n3")
    assert isinstance(ended["token"], TransferFailed)
    transfers.begin("n2", "late", 5.0)
    assert not transfers.expire(4.9)
    assert transfers.expire(5.0)
    assert isinstance(ended["late"], TransferFailed)
    assert not transfers.expire(6.0)


def test_one_transfer_at_a_time(transfers):
    transfers.begin("n2", "token", 5.0)
    with pytest.raises(ChangeRefused):
        transfers.begin("n3", "token", 5.0)


def test_a_stopping_node_answers_those_who_wait(transfers, ended):
    transfers.begin("n2", "token", 5.0)
    transfers.stop(LeadershipLost("stopped"))
    assert isinstance(ended["token"], LeadershipLost)


def test_the_most_up_to_date_voter_takes_over():
    assert most_up_to_date({"n2": 5, "n3": 7, "n4": 7}, {"n2", "n3", "n4"}) == "n3"
    with pytest.raises(TransferFailed):
        most_up_to_date({}, set())


def test_a_transfer_takes_no_election_time_out_and_costs_no_proposal():
    """In the simulation a message takes up to 20 ms, and a step as long."""
    for seed in range(8):
        sim = Simulation(seed, faults=False)
        sim.run_until(sim.leader)
        sim.settle_and_check()
        sim.cut = set()
        old = sim.leader()
        sim.run_until(lambda sim=sim: len(sim.links) == 3)
        unknown = []
        old.engine._leading.proposals._on_failure = lambda token, error, unknown=unknown: unknown.append(error)
        target = next(name for name in sim.nodes if name != old.name)
        old.engine.transfer(target, lambda result: None, 5.0)
        sim.run_until(lambda old=old: old.engine._leading.transfers.told)
        started = sim.now
        sim.run_until(lambda sim=sim, target=target: sim.leader() is sim.nodes[target])
        assert sim.now - started < 0.4, seed
        assert all(error.outcome == "not_applied" for error in unknown)
        assert old.engine.term == sim.nodes[target].engine.term
        sim.settle_and_check()
