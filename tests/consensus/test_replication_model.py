"""What a leader sends to whom, and when, whatever happens in whatever order, against a model that is told the same.

The model writes down what the followers are known to have by the model of one follower's progress. All moments are
multiples of an eighth of a second, and so are heartbeat, notice and time-outs: a bound that is off by one shows.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oncegate.consensus.config import ReplicaConfig
from oncegate.consensus.configuration import Configuration, RaftMember, encode
from oncegate.consensus.core.library import Raft
from oncegate.consensus.core.replication import Replication
from oncegate.consensus.counters import Counters
from oncegate.consensus.errors import SafetyViolation
from oncegate.consensus.log.library_log import LibraryLog
from oncegate.consensus.log.membership import Membership
from oncegate.consensus.messages import Ack, Append, Message
from oncegate.consensus.ports import PeerStatus, SavedPoint
from oncegate.consensus.snapshot.throttle import Growth, TokenBucket
from tests.consensus.one_engine import config_of
from tests.consensus.test_progress import PROBE, REPLICATE, SNAPSHOT, Model

HEARTBEAT_S, NOTICE_S, TIME_OUT_S, FULL_PAUSE_S = 0.25, 0.125, 2.0, 0.5
LAG_ENTRIES_MAX, HEADER_BYTES = 1024, 48
APPEND_BYTES, BURST_BYTES, IN_FLIGHT_BYTES = 2500, 3000, 4800
TERM = 9
NAMES = ("n2", "n3", "n4", "n5")


def config_with(catch_up_bytes_per_s: int = 4000, **others: Any) -> ReplicaConfig:
    """A quarter of a segment is less than ``append_bytes_max``: the one bounds appends, the other bursts."""
    bounds = {"append_bytes_max": BURST_BYTES, "journal_segment_bytes": 4 * APPEND_BYTES}
    return config_of(
        heartbeat_ms=250,
        commit_notice_ms=125,
        election_ms_min=1000,
        election_ms_max=2000,
        catch_up_bytes_per_s=catch_up_bytes_per_s,
        **{"in_flight_bytes_max": IN_FLIGHT_BYTES, **bounds, **others},
    )


def size_bytes(index: int) -> int:
    """Four that follow each other fill an append, and eight what may be in flight."""
    return 300 + 200 * (index % 4)


class Log:
    """Entries that are known by their index; the older ones are not in memory, the oldest ones gone."""

    def __init__(self, last_index: int = 4) -> None:
        self.last_index = last_index
        self.base = SavedPoint(0, 0, b"")
        self.memory_from = 1
        self.membership = Membership()
        self.membership.begin(configuration({"n2": True, "n3": True}))

    @property
    def end(self) -> int:
        return sum(size_bytes(index) + HEADER_BYTES for index in range(1, self.last_index + 1))

    def bytes_after(self, index: int) -> int:
        first = max(index, self.base.index) + 1
        return sum(size_bytes(index) + HEADER_BYTES for index in range(first, self.last_index + 1))

    def in_memory(self, index: int) -> bool:
        return index >= self.memory_from

    def term_at(self, index: int) -> int | None:
        return 1 + index // 4 if max(1, self.base.index) <= index <= self.last_index else None

    def entries(self, first: int, last: int, *, bytes_max: int) -> list[tuple[bytes, int, int]]:
        assert self.base.index < first <= last <= self.last_index
        found, room = [], bytes_max
        for index in range(first, last + 1):
            room -= size_bytes(index)
            if found and (room < 0 or self.in_memory(index) != self.in_memory(first)):
                break
            found.append((bytes(size_bytes(index)), index, 1 + index // 4))
        return found


def configuration(members: dict[str, bool]) -> Configuration:
    """Of this node and of others, each with whether it votes."""
    others = {name: RaftMember("127.0.0.1", 1, voter=voter) for name, voter in members.items()}
    return Configuration({"n1": RaftMember("127.0.0.1", 1), **others})


class Library:
    """The term, the commit index, and what it is told of the followers."""

    def __init__(self) -> None:
        self.committed = 2
        self.told: list[tuple[str, int]] = []

    def term(self) -> int:
        return TERM

    def commit_index(self) -> int:
        return self.committed

    def receive_match(self, peer_id: str, index: int) -> None:
        self.told.append((peer_id, index))


class Follower(Model):
    """The model of one follower, and since which entry its state is damaged."""

    wanted_from = 0


@dataclass
class Leader:
    """The model."""

    config: ReplicaConfig
    log: Log
    raft: Library
    followers: dict[str, Follower] = field(default_factory=dict)
    going: dict[str, tuple[int, float]] = field(default_factory=dict)
    buckets: dict[str, TokenBucket] = field(default_factory=dict)
    growth: Growth = field(default_factory=Growth)
    leads: bool = False
    committed: int = 0
    committed_at: float = 0.0
    moved_at: float = 0.0
    deadline: float = 0.0
    sent: list[tuple[str, Message]] = field(default_factory=list)
    told: list[tuple[str, int]] = field(default_factory=list)
    answered_s: list[float] = field(default_factory=list)

    def others(self) -> list[str]:
        return [name for name in sorted(self.log.membership.current.members) if name != "n1"]

    def begin(self, now: float) -> None:
        self.leads, self.committed = True, self.raft.committed
        self.deadline = self.moved_at = self.committed_at = now
        self.followers = {name: Follower(self.log.last_index + 1, now) for name in self.others()}

    def end(self, now: float) -> None:
        self.leads, self.followers, self.going = False, {}, {}

    def members_changed(self, now: float) -> None:
        if not self.leads:
            return
        members = self.others()
        for name in members:
            self.going.pop(name, None)
            if name not in self.followers:
                self.followers[name] = Follower(self.log.last_index + 1, now)
        for name in sorted(self.followers):
            if name not in members and name not in self.going:
                self.going[name] = self.log.membership.current_index, now + TIME_OUT_S

    def dismiss(self, connected: tuple[str, ...], now: float) -> bool:
        before = len(self.going)
        for name, (index, until) in list(self.going.items()):
            knows = self.followers[name].match >= index and self.followers[name].commit >= index
            if knows or now >= until or name not in connected:
                del self.going[name], self.followers[name]
        return len(self.going) < before

    def caught_up(self, name: str) -> bool:
        one = self.followers.get(name)
        if one is None or one.state is not REPLICATE or self.log.last_index > one.match + LAG_ENTRIES_MAX:
            return False
        return self.log.bytes_after(one.match) <= IN_FLIGHT_BYTES

    def reconnected(self, name: str, now: float) -> None:
        if name in self.followers:
            self.followers[name].step("reconnected")

    def acknowledged(self, name: str, ack: Ack, now: float) -> bool:
        one = self.followers.get(name)
        if one is None:
            return False
        one.ack_at, one.wanted_from = now, ack.wanted_from
        if not ack.success:
            one.step("refused", ack.prev_index, ack.index)
            return False
        if ack.index > self.log.last_index:
            raise SafetyViolation
        news = bool(one.step("matched", ack.index))
        if ack.full:
            one.step("full", now + FULL_PAUSE_S)
        elif news or ack.index == self.log.last_index:
            one.step("has_room")
        if news and ack.index > self.raft.committed and name in self.log.membership.voters:
            self.told.append((name, ack.index))
            if one.acked_sent_at is not None:
                self.answered_s.append(now - one.acked_sent_at)
            return True
        return False

    def brings_nothing(self, name: str, ack: Ack) -> bool:
        one = self.followers.get(name)
        if one is None or one.state is not REPLICATE or one.next <= self.log.last_index:
            return False
        return ack.success and not ack.full and ack.index <= self.raft.committed

    def heard(self, name: str, now: float) -> None:
        if name in self.followers:
            self.followers[name].ack_at = now

    def snapshot_over(self, name: str, index: int, now: float) -> None:
        if name in self.followers:
            self.followers[name].wanted_from = 0
            self.followers[name].step("snapshot_over", min(index, self.log.last_index))

    def wanting_snapshot(self, saved_index: int) -> list[str]:
        return [
            name
            for name, one in self.followers.items()
            if one.state is SNAPSHOT or (one.wanted_from != 0 and one.wanted_from <= saved_index)
        ]

    def excuse(self, slept_s: float) -> None:
        self.moved_at += slept_s
        for one in self.followers.values():
            one.ack_at += slept_s

    def quorum_until(self, voters: frozenset[str]) -> float:
        answers = sorted((one.ack_at for name, one in self.followers.items() if name in voters), reverse=True)
        needed = math.ceil((len(voters) - 1) / 2)
        if needed <= 0:
            return math.inf
        return answers[needed - 1] + TIME_OUT_S if len(answers) >= needed else -math.inf

    def send(self, name: str, one: Follower, first: int, entries: list[tuple[bytes, int, int]], now: float) -> None:
        term = self.log.term_at(first - 1)
        assert term is not None
        self.sent.append((name, Append(TERM, first - 1, term, self.raft.committed, entries)))
        one.step("sent", first - 1 + len(entries), sum(len(command) for command, _, _ in entries), self.committed, now)

    def feed(self, name: str, one: Follower, now: float) -> float:
        """Send what a follower may get; return when it may get more, if that is not when it answers."""
        if one.next <= self.log.base.index and one.state is not SNAPSHOT:
            one.step("begin_snapshot")
        if one.state is SNAPSHOT or now < one.paused:
            return math.inf
        while True:
            in_flight = sum(size for _, size, _ in one.on_the_way)
            if one.state is PROBE and one.probing:
                return math.inf
            if one.state is REPLICATE and (one.next > self.log.last_index or in_flight >= IN_FLIGHT_BYTES):
                return math.inf
            old = one.next <= self.log.last_index and one.next < self.log.memory_from
            bucket = self.buckets.setdefault(name, TokenBucket(self.config.catch_up_bytes_per_s, BURST_BYTES))
            if old:
                self.growth.observe(self.log.end, now)
                if self.config.catch_up_bytes_per_s:
                    bucket.set_rate(self.config.catch_up_bytes_per_s + self.growth.per_s)
                if bucket.open_at(now) > now:
                    return bucket.open_at(now)
            entries = []
            if one.next <= self.log.last_index:
                entries = self.log.entries(one.next, self.log.last_index, bytes_max=APPEND_BYTES)
            self.send(name, one, one.next, entries, now)
            if old:
                bucket.take(sum(len(command) + HEADER_BYTES for command, _, _ in entries))
                return now if one.state is REPLICATE else math.inf

    def heartbeat(self, name: str, now: float) -> None:
        one = self.followers[name]
        self.send(name, one, max(one.next, self.log.base.index + 1), [], now)

    def replicate(self, connected: tuple[str, ...], now: float) -> bool:
        if self.committed != self.raft.committed:
            self.committed, self.committed_at, self.moved_at = self.raft.committed, now, now
        if self.raft.committed == self.log.last_index:
            self.moved_at = now
        again = []
        for name, one in [(name, self.followers[name]) for name in connected if name in self.followers]:
            again.append(self.feed(name, one, now))
            if now >= one.sent_at + HEARTBEAT_S or (
                one.commit != self.committed and now >= self.committed_at + NOTICE_S
            ):
                self.heartbeat(name, now)
        due = [one.sent_at + HEARTBEAT_S for name, one in self.followers.items() if name in connected]
        if any(one.commit != self.committed for name, one in self.followers.items() if name in connected):
            due.append(self.committed_at + NOTICE_S)
        self.deadline = min([now + HEARTBEAT_S, *due, *(at for at in again if at > now)])
        return now in again

    def show_commit(self, name: str, now: float) -> None:
        self.committed, was = self.raft.committed, self.committed
        if name in self.followers and self.followers[name].commit != self.committed:
            self.heartbeat(name, now)
        self.committed = was

    def stalled_s(self, now: float) -> float:
        waits = self.leads and self.raft.committed != self.log.last_index
        return max(0.0, now - self.moved_at) if waits else 0.0

    def status(self, name: str, now: float, *, connected: bool) -> PeerStatus:
        one = self.followers.get(name)
        voter = name in self.log.membership.voters
        if one is None:
            nothing = {"next_index": 0, "lag": 0, "match_index": 0, "in_flight_bytes": 0, "silent_s": 0.0}
            return PeerStatus(connected=connected, voter=voter, disk_full=False, **nothing)  # type: ignore[arg-type]
        return PeerStatus(
            connected=connected,
            voter=voter,
            next_index=one.next,
            lag=self.log.last_index - one.match,
            match_index=one.match,
            in_flight_bytes=sum(size for _, size, _ in one.on_the_way),
            silent_s=max(0.0, now - one.ack_at),
            disk_full=one.disk_full,
        )


class Both:
    """A leader and its model; what happens, happens to both."""

    def __init__(self, config: ReplicaConfig) -> None:
        self.now = 8.0
        self.log, self.raft, self.counters = Log(), Library(), Counters()
        self.sent: list[tuple[str, Message]] = []
        self.real = Replication(
            config,
            cast(LibraryLog, self.log),
            cast(Raft, self.raft),
            lambda name, message: self.sent.append((name, message)),
            self.counters,
        )
        self.model = Leader(config, self.log, self.raft)

    def does(self, what: str, *given: Any) -> tuple[object, object]:
        """Let it happen; return what each of the two answered."""
        log, model, real, now = self.log, self.model, self.real, self.now
        match what:
            case "grow":
                log.last_index += given[0]
            case "commit":
                self.raft.committed = max(self.raft.committed, log.last_index - given[0])
            case "evict":
                log.memory_from = max(log.memory_from, log.last_index - given[0])
            case "compact":
                name, beside = given
                index = model.followers[name].next + beside if name in model.followers else 0
                index = max(log.base.index, min(self.raft.committed, index))
                log.base = SavedPoint(index, 1 + index // 4, b"")
                log.memory_from = max(log.memory_from, index + 1)
            case "members":
                log.last_index += 1
                log.membership.appended(log.last_index, encode(configuration(given[0])))
                return real.members_changed(now), model.members_changed(now)
            case "ack":
                name, chosen, success, full, wanted_from = given
                # All nodes have entry 1: none asks for it.
                index = max(1 if success else 2, self.chosen(name, chosen))
                ack = Ack(TERM, 1, success, index, self.previous(name, chosen), full, wanted_from)
                return self.outcome(real, name, ack), self.outcome(model, name, ack)
            case "excuse":
                return real.excuse(*given), model.excuse(*given)
            case "end":
                return real.end(), model.end(now)
            case "snapshot_over":
                return real.snapshot_over(*given), model.snapshot_over(*given, now)
            case "reconnected":
                return real.reconnected(*given), model.reconnected(*given, now)
            case "begin" if model.leads:
                # A term ends before the next one begins.
                return self.does("end")
            case "replicate" if not model.leads:
                pass
            case "answers":
                # Everything that was sent arrives, and is flushed.
                name = given[0]
                if name in model.followers and model.followers[name].state is not SNAPSHOT:
                    return self.does("ack", name, 3, True, False, 0)
            case _:
                return getattr(real, what)(*given, now), getattr(model, what)(*given, now)
        return None, None

    def outcome(self, leader: Replication | Leader, name: str, ack: Ack) -> object:
        try:
            return leader.acknowledged(name, ack, self.now)
        except SafetyViolation:
            return "refused"

    def chosen(self, name: str, number: int) -> int:
        """An entry that an answer may be about."""
        one = self.model.followers.get(name, Follower(2, 0.0))
        last = self.log.last_index
        sent = one.on_the_way[-1][0] if one.on_the_way else last
        first = one.on_the_way[0][0] if one.on_the_way else one.match
        return max(1, (one.match, first, one.next - 1, min(sent, last), self.raft.committed, last, last + 1)[number])

    def previous(self, name: str, number: int) -> int:
        one = self.model.followers.get(name, Follower(2, 0.0))
        return max(2, one.next - 1 if number % 3 else one.match)

    def compare(self) -> None:
        """All that a caller can ask."""
        real, model, now = self.real, self.model, self.now
        assert self.sent == model.sent
        assert (self.raft.told, self.counters.appends_sent) == (model.told, len(model.sent))
        histogram = self.counters.replication
        assert (histogram.count, histogram.sum_s) == (len(model.answered_s), pytest.approx(sum(model.answered_s)))
        assert list(real.leaving) == list(model.going)
        assert real.matches() == {name: one.match for name, one in model.followers.items()}
        mends_from = max([0, *(one.wanted_from for one in model.followers.values())])
        for index in (0, 2, 3, 9):
            assert real.snapshots_wanted(index) == (model.wanting_snapshot(index), mends_from)
        voters = self.log.membership.voters
        for some in (voters, voters - {"n2"}, frozenset(("n1", "n2", "n3", "n4", "n5")), frozenset()):
            until = model.quorum_until(some)
            assert real.quorum_until(some) == until
            assert [real.has_quorum(some, at) for at in (now, until)] == [now < until, False]
        assert [real.stalled_s(at) for at in (now, now - 9.0)] == [model.stalled_s(at) for at in (now, now - 9.0)]
        for name in NAMES:
            one = model.followers.get(name)
            assert real.match_index(name) == (0 if one is None else one.match)
            assert real.caught_up(name) == model.caught_up(name)
            for connected, at in ((True, now), (False, now - 9.0)):
                wanted = model.status(name, at, connected=connected)
                assert real.status(name, at, connected=connected) == wanted
            for index in (self.raft.committed, self.raft.committed + 1):
                for success, full in ((True, False), (True, True), (False, False)):
                    ack = Ack(TERM, 1, success, index, 1, full)
                    assert real.brings_nothing(name, ack) == model.brings_nothing(name, ack)
        if model.leads:
            assert real.deadline == pytest.approx(model.deadline, abs=1e-9)


Event = tuple[Any, ...]
Steps = list[tuple[float, Event]]
"""How much later each happens, and what."""

_LIKELY = ("n2", "n2", "n2", "n3", *NAMES)


def answer(*, success: bool = True, full: bool = False, wanted_from: int = 0) -> list[Event]:
    return [("ack", name, about, success, full, wanted_from) for name in _LIKELY for about in range(7)]


all_hear: list[Event] = [("replicate", NAMES)]
some_hear: list[Event] = [
    ("replicate", names) for names in (("n2",), ("n3", "n2"), ("n5", "n3", "n4"), (), ("n2", "n4"))
]
one_answers: list[Event] = [("answers", name) for name in _LIKELY]
no_room = answer(full=True)
refuses = answer(success=False)
damaged = [event for index in (1, 3, 9) for event in answer(wanted_from=index)]
members: list[Event] = [
    ("members", {name: voter for name, voter in zip(NAMES, votes, strict=True) if voter is not None})
    for votes in product((True, False, None), repeat=len(NAMES))
]
all_are_back: list[Event] = [("members", dict.fromkeys(NAMES, True))]
grows: list[Event] = [("grow", count) for count in (1, 2, 4, 9, 12)]
commits: list[Event] = [("commit", behind) for behind in (0, 0, 0, 1, 2)]
evicts: list[Event] = [("evict", kept) for kept in range(4)]
compacts: list[Event] = [("compact", name, beside) for name in _LIKELY for beside in (-1, 0, 1)]
lets_go: list[Event] = [("dismiss", connected) for connected in (NAMES, NAMES, ("n2", "n3"), ())]
shows: list[Event] = [("show_commit", name) for name in _LIKELY]
excuses: list[Event] = [("excuse", slept_s) for slept_s in (0.125, 1.0, 4.0)]
installs: list[Event] = [("snapshot_over", name, index) for name in _LIKELY for index in (1, 3, 4, 5, 9, 20)]
connects: list[Event] = [(what, name) for what in ("reconnected", "heard") for name in _LIKELY]
new_term: list[Event] = [("end",), ("begin",)]
KINDS = (
    *(all_hear, some_hear, one_answers, answer(), no_room, refuses, damaged, members, grows, commits, evicts),
    *(compacts, lets_go, shows, excuses, installs, connects, new_term),
)
SOON_S, AT_ANY_TIME_S = (0.0, 0.0, 0.125), (0.0, 0.0, 0.125, 0.25, 0.5, 1.0)
STORIES: tuple[tuple[tuple[float, ...], tuple[list[Event], ...]], ...] = (
    (SOON_S, (all_hear, [("answers", "n2")], [("answers", "n3")])),
    (SOON_S, (grows, all_hear, one_answers, commits, all_hear, all_hear)),
    (SOON_S, (grows, all_hear, commits, shows, all_hear)),
    (SOON_S, (grows, evicts, all_hear, all_hear, one_answers, all_hear)),
    (SOON_S, (grows, all_hear, no_room + refuses + damaged, all_hear)),
    ((0.25,), (all_hear, no_room, all_hear, all_hear)),
    (SOON_S, (no_room, all_hear, grows, answer(), all_hear)),
    (SOON_S, (grows, all_hear, commits, compacts, all_hear, installs + one_answers, all_hear)),
    (SOON_S, (members, all_hear, one_answers, commits, all_hear, lets_go)),
    (SOON_S, (members, all_are_back, lets_go, grows, all_hear)),
    ((1.0, 1 - 1 / 1024), (members, [("dismiss", NAMES)], [("dismiss", NAMES)], lets_go)),
    (SOON_S, (grows, all_hear, excuses, all_hear)),
)


def told(dice: random.Random, waits: Sequence[float], kinds: Sequence[list[Event]]) -> Steps:
    return [(dice.choice(waits), dice.choice(kind)) for kind in kinds]


_dice = random.Random(1)
ANY_STEP = [told(_dice, AT_ANY_TIME_S, (kind,)) for kind in KINDS for _ in range(40)]
STORIES_TOLD = [told(_dice, *story) for story in STORIES for _ in range(60)]
"""Chosen once: so a list of them costs Hypothesis little to draw, and to make smaller."""


SENT: Steps = [(0.0, ("replicate", NAMES)), (0.0, ("answers", "n2")), (0.0, ("replicate", NAMES))]


def joined(parts: tuple[Steps, ...] | list[Steps]) -> Steps:
    return [step for part in parts for step in part]


stories = st.tuples(
    st.sampled_from([[], *STORIES_TOLD[:60]]),
    *[st.sampled_from(STORIES_TOLD), st.sampled_from(ANY_STEP)] * 3,
).map(joined)


def play(both: Both, steps: Steps) -> None:
    for at, (later_s, event) in enumerate(steps):
        both.now += later_s
        found, wanted = both.does(*event)
        assert found == wanted, (at, event)
        both.compare()


@settings(max_examples=300)
@given(st.sampled_from([4000, 0]), stories)
def test_leader_sends_what_the_model_sends(catch_up_bytes_per_s: int, steps: Steps) -> None:
    play(Both(config_with(catch_up_bytes_per_s)), [(0.0, ("begin",)), *steps])


@pytest.mark.parametrize("kind", range(len(KINDS)))
def test_whatever_happens_once_and_late_is_as_in_the_model(kind: int) -> None:
    """Each event that there is, some time after all followers were sent what they lack, and once more after that."""
    for event in {repr(event): event for event in KINDS[kind]}.values():
        late = (0.5, event)
        play(Both(config_with()), [(0.0, ("begin",)), *SENT, late, (0.5, SENT[-1][1]), late])


@pytest.mark.parametrize("grown", range(5))
@pytest.mark.parametrize("catch_up_bytes_per_s", [4000, 0])
def test_a_follower_that_reads_old_entries_gets_its_rate_and_what_the_log_grows_by(
    catch_up_bytes_per_s: int, grown: int
) -> None:
    both = Both(config_with(catch_up_bytes_per_s))
    turn: Steps = [
        (0.125, ("grow", grown)),
        *((0.0, one) for one in (("evict", 0), *all_hear, ("ack", "n2", 2, True, False, 0))),
    ]
    play(both, [(0.0, ("begin",)), (0.0, ("grow", 90)), *turn * 40])


@pytest.mark.parametrize("done", range(4))
def test_removed_member_goes_once_it_has_and_knows_committed_the_entry_that_removes_it(done: int) -> None:
    hear = (0.25, ("replicate", NAMES))
    told: Steps = [hear, (0.0, ("answers", "n3")), (0.0, ("commit", 0)), hear]
    both, dismiss = Both(config_with()), (0.0, ("dismiss", NAMES))
    play(both, [(0.0, ("begin",)), *SENT, (0.0, ("members", {"n2": True})), *told[:done], dismiss])
    assert "n3" in both.real.leaving
    play(both, [*told[done:], dismiss])
    assert "n3" not in both.real.leaving


@given(st.lists(st.sampled_from(ANY_STEP), max_size=8).map(joined))
def test_node_that_does_not_lead_knows_no_followers(steps: Steps) -> None:
    both = Both(config_with())
    both.compare()
    play(both, steps)


@pytest.mark.parametrize("match", range(1, 12))
def test_follower_is_caught_up_that_lacks_no_more_than_may_be_in_flight(match: int) -> None:
    log_bytes = Log(last_index=12).bytes_after(6)
    both = Both(config_with(in_flight_bytes_max=log_bytes))
    both.log.last_index = 12
    both.real.begin(both.now)
    assert not both.real.caught_up("n2"), "nothing is known of it"
    both.real.acknowledged("n2", Ack(TERM, 1, True, match, match), both.now)
    assert both.real.caught_up("n2") == (match >= 6)


@pytest.mark.parametrize("lag", [1023, 1024, 1025])
def test_follower_that_lacks_many_small_entries_is_not_caught_up(lag: int) -> None:
    both = Both(config_with(in_flight_bytes_max=1 << 30))
    both.log.last_index = 7 + lag
    both.real.begin(both.now)
    both.real.acknowledged("n2", Ack(TERM, 1, True, 7, 7), both.now)
    assert both.real.caught_up("n2") == (lag <= 1024)


def test_followers_at_the_same_place_are_sent_the_same_message() -> None:
    both = Both(config_with())
    play(both, [(0.0, ("begin",)), (0.0, ("replicate", NAMES))])
    (_, first), (_, second) = both.sent
    assert first is second, "it is encoded once"


def test_entry_that_the_log_does_not_know_is_never_sent() -> None:
    both = Both(config_with())
    both.log.last_index = 0
    both.real.begin(both.now)
    with pytest.raises(SafetyViolation):
        both.real.replicate(NAMES, both.now)
    assert both.sent == []
