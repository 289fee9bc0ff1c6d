"""What the simulator has found, each kept as the shortest history that shows it."""

import pytest

from oncegate.consensus.core.progress import Progress
from oncegate.consensus.log.identity import open_identity
from oncegate.consensus.log.wal import Journal
from oncegate.consensus.messages import PreVoteReply, PreVoteRequest
from oncegate.proof.sim.engine.fake_disk import FakeDisk, InlineWorker, Killed
from oncegate.proof.sim.engine.plan import make_plan
from oncegate.proof.sim.engine.run import run_plan
from tests.consensus.one_engine import OneEngine


def test_a_refusal_that_only_tells_the_term_moves_no_next_index():
    """A leader of term 2 gets the refusals of the appends it sent in term 1, which carry term 2 and no position."""
    progress = Progress(10, now=0)
    progress.refused(9, 0)
    assert (progress.next_index, progress.probe_sent) == (10, False)
    progress.refused(9, 5)
    assert progress.next_index == 5


def test_a_term_read_after_a_kill_survives_a_power_loss():
    """The process dies between the rename of its ballot and the flush of the directory; then the power goes."""
    disk = FakeDisk()
    _, ballot = open_identity(disk, cluster_id="c", node_id="n")
    Journal(disk, InlineWorker(), segment_bytes=1 << 14, memory_bytes_max=1 << 12)

    def killed(call, name):
        if call == "sync_directory":
            raise Killed

    disk.on_call = killed
    with pytest.raises(Killed):
        ballot.save(5, "n2")
    disk.work_again()
    # The next process sees what the page cache holds, and tells others of that term.
    _, ballot = open_identity(disk, cluster_id="c", node_id="n")
    seen = ballot.term
    disk.kill()
    _, ballot = open_identity(disk, cluster_id="c", node_id="n")
    assert ballot.term >= seen


def test_a_node_is_added_to_a_cluster_whose_log_is_compacted():
    """It knows no member yet, and ignored the snapshots of whoever leads."""
    installed = 0
    for seed in range(200):
        plan = make_plan(seed, nodes=3, kinds={"members": 1}, joiners=("n4",), gap_s=0.5, seconds=5.0)
        if plan.save_every is not None and any(fault.args[0] == "add" for fault in plan.faults):
            outcome = run_plan(plan)
            assert not outcome.failed, f"seed {seed}: {outcome.checker}: {outcome.text}"
            installed += outcome.counts["snapshots installed"]
            if installed >= 2:
                return
    pytest.fail("no snapshot was installed")


def test_a_leader_that_stops_answers_who_waits_for_a_change_of_members():
    for seed in range(100):
        plan = make_plan(seed, nodes=3, kinds={"members": 3, "stop": 3}, joiners=("n4", "n5"), gap_s=0.1, seconds=5.0)
        outcome = run_plan(plan)
        assert not outcome.failed, f"seed {seed}: {outcome.checker}: {outcome.text}"
        if outcome.counts["added in vain"] and outcome.counts["stops"]:
            return
    pytest.fail("no change ended in vain")


@pytest.mark.parametrize("led", [False, True], ids=["without a leader", "with a leader"])
def test_a_voter_that_missed_an_addition_votes_for_the_added_member(led):
    """The added member alone has the whole log, and of the four that vote now one is dead: every other vote counts.

    A node with a leader answers no stranger, who may be one that was removed.
    """
    one = OneEngine().follow("n2", term=1) if led else OneEngine()
    one.engine.peer_up("n4", 1)
    one.receives("n4", PreVoteRequest(2, 1, 5, 1))
    assert [reply.granted for _, reply in one.said(PreVoteReply, "n4")] == ([] if led else [True])
