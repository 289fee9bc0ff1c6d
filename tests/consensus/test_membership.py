"""The configurations of a log, and the leader's rules for changing them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncegate.consensus import ChangePending, ChangeRefused, LeadershipLost, NotReady, Overloaded
from oncegate.consensus.configuration import MAGIC, Configuration, RaftMember, encode
from oncegate.consensus.core.reconfiguration import Reconfiguration
from oncegate.consensus.errors import SafetyViolation
from oncegate.consensus.log.ballot import Ballot
from oncegate.consensus.log.library_log import LibraryLog
from oncegate.consensus.log.membership import Membership
from oncegate.proof.sim.engine.fake_disk import FakeDisk, InlineWorker


def members(*names, learners=()):
    return Configuration({name: RaftMember("127.0.0.1", 1, voter=name not in learners) for name in (*names, *learners)})


FIRST = members("n1", "n2", "n3")
COMMAND = b"\0a command"


def open_log(disk):
    ballot = Ballot(disk, 99, None)
    return LibraryLog(disk, InlineWorker(), ballot, segment_bytes=1 << 15, memory_bytes_max=300)


def test_a_learner_is_no_voter():
    membership = Membership()
    membership.begin(members("n1", learners=("n2",)))
    assert (membership.voters, membership.learners) == ({"n1"}, {"n2"})


@pytest.mark.parametrize("base", range(4, 9))
def test_a_joined_node_knows_its_members_from_its_first_configuration_on_and_keeps_those_behind_its_base(base):
    membership = Membership()
    for index in (5, 7):
        membership.appended(index, encode(members(f"n{index}")))
    assert [membership.known_at(index) for index in range(4, 9)] == [False, True, True, True, True]
    if base > 4:
        membership.rebase(base, membership.at(base))
        assert membership.known_at(4)
    assert membership.indexes == {index for index in (5, 7) if index > base}
    assert membership.current_index == max(base, 7)


def test_an_entry_that_only_looks_like_a_configuration_stops_the_node():
    membership = Membership()
    with pytest.raises(SafetyViolation, match="entry 7"):
        membership.appended(7, MAGIC + b"garbage")


steps = st.lists(
    st.one_of(
        st.tuples(st.just("change"), st.sets(st.sampled_from("abcdef"), min_size=1)),
        st.tuples(st.just("command"), st.integers(1, 4)),
        st.tuples(st.just("truncate"), st.integers(1, 6)),
        st.tuples(st.just("compact"), st.integers(1, 6)),
        st.tuples(st.just("restart"), st.just(0)),
    ),
    max_size=30,
)


@given(steps)
def test_what_is_known_at_each_index_equals_a_list_of_all_entries(script):
    """The model: one configuration an index, cut and extended like the log. A restart replays the journal."""
    disk = FakeDisk()
    log = open_log(disk)
    log.membership.begin(FIRST)
    log.append(b"\1", 1, 0)
    model = [None, FIRST]
    base = 1
    for step, argument in script:
        if step == "change":
            changed = members(*sorted(argument))
            log.append(encode(changed), log.last_index + 1, 1)
            model.append(changed)
        elif step == "command":
            for _ in range(argument):
                log.append(COMMAND, log.last_index + 1, 1)
                model.append(model[-1])
        elif step == "truncate":
            # What is compacted is committed, and never truncated.
            index = max(base + 1, log.last_index + 1 - argument)
            log.truncate_from(index)
            del model[index:]
        elif step == "compact":
            base = max(base, log.last_index - argument)
            log.membership.compact(base)
        else:
            log.flush()
            log.abandon()
            disk.kill()
            log = open_log(disk)
            log.membership.begin(FIRST)
            base = 1
        assert log.membership.current == model[-1]
        for index in range(base, log.last_index + 1):
            assert log.membership.at(index) == encode(model[index])
    if base > 1:
        with pytest.raises(SafetyViolation):
            log.membership.at(base - 1)


def test_a_base_replaces_what_the_log_held_before_it():
    membership = Membership()
    membership.begin(FIRST)
    membership.appended(5, encode(members("n1", "n2")))
    membership.appended(9, encode(members("n1")))
    membership.rebase(7, encode(members("n1", "n2")))
    assert membership.at(7) == encode(members("n1", "n2"))
    assert membership.current == members("n1")
    membership.rebase(20, encode(members("n1", "n9")))
    assert (membership.current_index, membership.voters) == (20, {"n1", "n9"})
    membership.begin(FIRST)
    assert membership.voters == {"n1", "n9"}


class Desk:
    """A leader's changes, its log, and what callers were told."""

    def __init__(self, first=FIRST):
        self.log = open_log(FakeDisk())
        self.log.membership.begin(first)
        self.log.append(b"\1", 1, 0)
        self.commit = 1
        self.results, self.failures = {}, {}
        self.changes = Reconfiguration(
            self.log.membership,
            1.0,
            self.results.__setitem__,
            lambda token, error: self.failures.update({token: error}),
        )

    def add(self, name, token="token", *, ready=True):
        self.changes.add(name, RaftMember("127.0.0.1", 9), token, ready=ready, commit_index=self.commit)

    def remove(self, name, token="token", *, ready=True):
        self.changes.remove(name, token, ready=ready, commit_index=self.commit)

    def append(self):
        return self.changes.wanted is not None and self.changes.append_to(self.log, 1, *self.changes.wanted)

    def committed(self):
        self.commit = self.log.last_index
        self.changes.settle(self.commit)

    def promote(self, now, *, caught_up=True, ready=True):
        return self.changes.promote(lambda node_id: caught_up, now, ready=ready, commit_index=self.commit)

    @property
    def membership(self):
        return self.log.membership


@pytest.fixture
def desk():
    return Desk()


def test_a_second_change_is_refused_until_the_first_is_committed(desk):
    desk.add("n4")
    for then in (desk.append, desk.committed):
        for other in (lambda: desk.add("n5"), lambda: desk.remove("n1")):
            with pytest.raises(ChangePending) as refused:
                other()
            assert (refused.value.outcome, refused.value.retryable) == ("not_applied", True)
        then()
    desk.remove("n1")


def test_no_change_before_the_leader_has_committed_in_its_term(desk):
    with pytest.raises(NotReady):
        desk.add("n4", ready=False)
    with pytest.raises(NotReady):
        desk.remove("n1", ready=False)
    desk.add("n4")
    desk.append()
    desk.committed()
    desk.promote(0.0, ready=False)
    assert not desk.promote(9.0, ready=False)
    assert desk.promote(9.0)


def test_a_new_member_is_a_learner_until_it_has_been_caught_up_for_a_time_out(desk):
    desk.add("n4")
    desk.append()
    assert desk.membership.learners == {"n4"}
    assert not desk.promote(0.0)
    desk.committed()
    assert desk.results == {}
    assert not desk.promote(0.9)
    assert not desk.promote(0.95, caught_up=False)
    assert not desk.promote(1.1)
    assert not desk.promote(2.0)
    assert desk.promote(2.2)
    desk.append()
    assert desk.membership.voters == {"n1", "n2", "n3", "n4"}
    assert desk.results == {}
    desk.committed()
    assert desk.results == {"token": desk.log.last_index}


def test_asking_again_waits_for_the_same_member(desk):
    desk.add("n4", "first")
    desk.append()
    desk.add("n4", "second")
    desk.committed()
    desk.promote(0.0)
    desk.promote(5.0)
    desk.append()
    desk.committed()
    assert set(desk.results) == {"first", "second"}
    last = desk.log.last_index
    desk.add("n4", "third")
    desk.committed()
    assert "third" in desk.results
    assert desk.log.last_index == last


def test_another_address_changes_neither_the_vote_nor_the_member(desk):
    for name, first in (("n1", FIRST), ("n4", members("n1", learners=("n4",)))):
        desk = Desk(first)
        before = desk.membership.current.members[name]
        desk.add(name)
        desk.append()
        after = desk.membership.current.members[name]
        assert (after.port, after.voter, after.since) == (9, before.voter, before.since)


def test_an_id_that_was_removed_and_added_again_is_another_member(desk):
    desk.remove("n3")
    desk.append()
    desk.committed()
    desk.add("n3")
    desk.append()
    assert desk.membership.current.members["n3"].since == desk.log.last_index


def test_a_removal_ends_when_it_is_committed(desk):
    desk.remove("n3")
    desk.append()
    assert desk.membership.voters == {"n1", "n2"}
    desk.changes.settle(desk.commit)
    assert desk.results == {}
    desk.committed()
    assert desk.results == {"token": 2}
    desk.remove("n3", "again")
    desk.committed()
    assert desk.results["again"] == 2


def test_the_only_voter_stays():
    desk = Desk(members("n1", learners=("n2",)))
    with pytest.raises(ChangeRefused):
        desk.remove("n1")


def test_a_lost_leadership_leaves_every_caller_with_an_unknown_outcome(desk):
    desk.add("n4")
    desk.changes.end()
    assert isinstance(desk.failures["token"], LeadershipLost)
    assert not desk.append()


def test_who_adds_what_somebody_else_removes_is_told(desk):
    desk.add("n4", "adder")
    desk.append()
    desk.committed()
    desk.remove("n4", "remover")
    desk.append()
    desk.committed()
    assert "remover" in desk.results
    assert isinstance(desk.failures["adder"], ChangeRefused)


def test_those_who_wait_are_bounded_and_may_give_up(desk):
    desk.add("n4", "first")
    desk.append()
    for number in range(63):
        desk.add("n4", number)
    with pytest.raises(Overloaded):
        desk.add("n4", "one too many")
    desk.changes.forget("first")
    desk.add("n4", "in its place")
