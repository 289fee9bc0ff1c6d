"""The configurations of a log; the leader's rules for changing them are in the model of reconfiguration."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncegate.consensus import Overloaded
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


def test_those_who_wait_are_bounded_and_may_give_up():
    log = open_log(FakeDisk())
    log.membership.begin(FIRST)
    log.append(b"\1", 1, 0)
    changes = Reconfiguration(log.membership, 1.0, lambda token, result: None, lambda token, error: None)

    def add(token):
        changes.add("n4", RaftMember("127.0.0.1", 9), token, ready=True, commit_index=1)

    add("first")
    assert changes.append_to(log, 1, *changes.wanted)
    for number in range(63):
        add(number)
    with pytest.raises(Overloaded):
        add("one too many")
    changes.forget("first")
    add("in its place")
