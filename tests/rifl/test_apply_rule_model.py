"""The apply rule against a dumb dictionary: sequence number to (fingerprint, commit, who came together).

The model states the rule of SEMANTICS.md a second time, one operation after the other, with loops instead of
bookkeeping. Planted bugs at the end: each must be caught by the same check.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar
from unittest import mock

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from oncegate.proof.mutants.forgotten import forgotten
from oncegate.rifl import rule as rule_module
from oncegate.rifl.completion import FINGERPRINT_BYTES, RangeRecord
from oncegate.rifl.errors import OncegateError
from oncegate.rifl.range_rule import NewPart, RangePart, decide_range
from oncegate.rifl.resolve_rule import resolve
from oncegate.rifl.result_tracker import ResultTracker
from oncegate.rifl.rule import EXECUTE, Refusal, Replay, Standing, Verdict, decide, decide_without_session, standing
from oncegate.rifl.session import SessionTable
from tests.rifl.told import name_of, part_told

UNIT = 5
"""Stands for RANGE_LENGTH_MAX, so that a model that counts one by one stays fast."""

Outcome = tuple[str, int]
"""Name of the verdict, and the commit number for EXECUTE and REPLAY, else 0."""

Rule = Callable[[ResultTracker, int, int, int, Standing], Verdict]
RangeRule = Callable[[ResultTracker, int, bytes, int, Standing], list[RangePart]]


@dataclass
class Known:
    """What the model knows of a session."""

    epoch: int
    lease_ms: int
    ends_ms: int
    window: int
    first_incomplete: int = 1
    highest: int = 0
    done: dict[int, tuple[int, int, object]] = field(default_factory=dict)


def places(done: dict[int, tuple[int, int, object]], base: int, sequence: int, unit: int) -> int:
    """Count one by one: a single operation, a range and each ``unit`` of missing numbers in a row are a place."""
    together: set[object] = set()
    gaps = missing = 0
    for number in range(base, sequence):
        if number in done:
            together.add(done[number][2])
            missing = 0
        else:
            gaps += missing % unit == 0
            missing += 1
    return gaps + len(together)


class Model:
    """The rule of SEMANTICS.md over plain dictionaries."""

    def __init__(self) -> None:
        self.sessions: dict[int, Known] = {}
        self.commit = 0
        self.now = 0

    def apply(self, client: int, epoch: int, fi: int, ops: list[tuple[int, int]], *, ranged: bool) -> list[Outcome]:
        known = self.sessions.get(client)
        outcomes: list[Outcome] = []
        if known is None:
            return [("BAD_ACK" if fi > sequence else "SESSION_EXPIRED", 0) for sequence, _ in ops]
        run: tuple[str, object] | None = None
        judged = dict(known.done) if ranged else known.done  # the window sees a range's parts before any is applied
        for sequence, fingerprint in ops:
            refusal = self._before_window(known, epoch, fi, sequence, fingerprint)
            if refusal is not None:
                run = None
                outcomes.append(refusal)
                continue
            if run is None or not ranged:
                base = max(known.first_incomplete, fi)
                beyond = sequence >= base + known.window
                full = beyond and places(judged, base, sequence, UNIT if ranged else 1) >= known.window
                held = {what[2] for number, what in judged.items() if number >= base}
                gap = any(number not in judged for number in range(base, sequence))
                full = full or (ranged and gap and len(held) >= known.window)
                run = ("WINDOW_FULL" if full else "EXECUTE", object())
            verdict, together = run
            if verdict == "EXECUTE":
                self.commit += 1
                known.done[sequence] = (fingerprint, self.commit, together)
                known.highest = max(known.highest, sequence)
            outcomes.append((verdict, self.commit if verdict == "EXECUTE" else 0))
        if any(verdict in ("EXECUTE", "REPLAY") for verdict, _ in outcomes):
            self._touch(known, fi)
        return outcomes

    def resolve(self, client: int, epoch: int | None, fi: int, sequence: int) -> Outcome:
        known = self.sessions[client]
        if epoch is None:
            fi = 1
        elif epoch != known.epoch:
            return "FENCED", 0
        if fi > sequence or fi > known.highest + known.window:
            return "BAD_ACK", 0
        base = max(known.first_incomplete, fi)
        if sequence < known.first_incomplete:
            fate = ("acknowledged", 0)
        elif sequence in known.done:
            commit = known.done[sequence][1]
            fate = ("applied", commit) if commit else ("sealed", 0)
        elif sequence >= base + known.window and places(known.done, base, sequence, 1) >= known.window:
            return "WINDOW_FULL", 0
        else:
            fate = ("sealed", 0)
            known.done[sequence] = (0, 0, object())
            known.highest = max(known.highest, sequence)
        if epoch is not None:
            self._touch(known, fi)
        return fate

    def _touch(self, known: Known, fi: int) -> None:
        known.first_incomplete = max(known.first_incomplete, fi)
        known.done = {s: what for s, what in known.done.items() if s >= known.first_incomplete}
        if known.ends_ms >= self.now:
            known.ends_ms = max(known.ends_ms, self.now + known.lease_ms)

    def _before_window(self, known: Known, epoch: int, fi: int, sequence: int, fingerprint: int) -> Outcome | None:
        if fi > sequence or fi > known.highest + known.window:
            return "BAD_ACK", 0
        if epoch != known.epoch:
            return "FENCED", 0
        if sequence < known.first_incomplete:
            return "STALE", 0
        if sequence in known.done:
            stored, commit, _ = known.done[sequence]
            if commit == 0:
                return "SEALED", 0
            return ("REPLAY", commit) if stored == fingerprint else ("PAYLOAD_MISMATCH", 0)
        if known.ends_ms < self.now:
            return "SESSION_EXPIRED", 0
        return None


class Server:
    """The parts under test, put together as the state machine of the gateway does, with a counter as its effect."""

    def __init__(self, tracker_type: type[ResultTracker], rule_of_singles: Rule, rule_of_ranges: RangeRule) -> None:
        self.sessions = SessionTable()
        self.trackers: dict[int, ResultTracker] = {}
        self.commit = 0
        self.effects: Counter[tuple[int, int]] = Counter()
        self._tracker_type = tracker_type
        self._decide = rule_of_singles
        self._decide_range = rule_of_ranges

    def open(self, nonce: str, lease_ms: int, window: int, now: int) -> int:
        session, existed = self.sessions.open(nonce, lease_ms, window, now)
        if not existed:
            self.trackers[session.client_id] = self._tracker_type(window=window)
        return session.client_id

    def apply(
        self, client: int, epoch: int, fi: int, ops: list[tuple[int, int]], now: int, *, ranged: bool
    ) -> list[Outcome]:
        session = self.sessions.get(client)
        if session is None:
            return [(decide_without_session(sequence, fi).name, 0) for sequence, _ in ops]
        tracker, stand = self.trackers[client], standing(session, epoch, now)
        work = self._range if ranged else self._singles
        outcomes = work(client, tracker, stand, fi, ops)
        if any(commit for _, commit in outcomes):
            tracker.acknowledge(fi)
            if session.ends_ms >= now:
                session.renew(now)
        return outcomes

    def resolve(self, client: int, epoch: int | None, fi: int, sequence: int, now: int) -> Outcome:
        session, tracker = self.sessions.get(client), self.trackers[client]
        assert session is not None
        if epoch is not None and standing(session, epoch, now) is Standing.FENCED:
            return "FENCED", 0
        try:
            fate, record = resolve(tracker, sequence, 1 if epoch is None else fi)
        except OncegateError as refusal:
            return refusal.code.value, 0
        if epoch is not None:
            tracker.acknowledge(fi)
            if session.ends_ms >= now:
                session.renew(now)
        return fate.value, 0 if record is None else record.commit

    def _singles(
        self, client: int, tracker: ResultTracker, stand: Standing, fi: int, ops: list[tuple[int, int]]
    ) -> list[Outcome]:
        outcomes: list[Outcome] = []
        for sequence, fingerprint in ops:
            verdict = self._decide(tracker, sequence, fi, fingerprint, stand)
            record = verdict.record if isinstance(verdict, Replay) else None
            if verdict is EXECUTE:
                self.commit += 1
                self.effects[client, sequence] += 1
                record = tracker.record(sequence, fingerprint, self.commit)
            outcomes.append((name_of(verdict), 0 if record is None else record.commit))
        return outcomes

    def _range(
        self, client: int, tracker: ResultTracker, stand: Standing, fi: int, ops: list[tuple[int, int]]
    ) -> list[Outcome]:
        first = ops[0][0]
        prints = b"".join(fingerprint.to_bytes(FINGERPRINT_BYTES, "big") for _, fingerprint in ops)
        outcomes: list[Outcome] = []
        covered = first
        for part in self._decide_range(tracker, first, prints, fi, stand):
            assert part.first == covered <= part.last, "parts are disjoint, ascending and cover the range"
            covered = part.last + 1
            _, _, name, commit = part_told(part)
            if isinstance(part, NewPart):
                commit = self.commit + 1
                self.commit += covered - part.first
                cut = prints[(part.first - first) * FINGERPRINT_BYTES : (covered - first) * FINGERPRINT_BYTES]
                tracker.record_range(RangeRecord(part.first, part.last, commit, cut))
                self.effects.update((client, sequence) for sequence in range(part.first, covered))
            outcomes += [(name, commit and commit + i) for i in range(covered - part.first)]
        assert covered == first + len(ops)
        return outcomes


def payload_of(sequence: int, *, changed: bool = False) -> int:
    """Fingerprint that belongs to a sequence number, so that every second sending of it is a retry."""
    return (sequence * 0x9E3779B97F4A7C15 + changed) % 2**64


def recorded(tracker: ResultTracker) -> dict[int, tuple[int, int]]:
    """All records as sequence to (fingerprint, commit), ranges taken apart; nothing may be there twice."""
    found = {sequence: (record.fingerprint, record.commit) for sequence, record in tracker.records.items()}
    for part in tracker.ranges:
        for sequence in range(part.first, part.last + 1):
            assert sequence not in found
            print_ = int.from_bytes(part.slice(sequence, sequence), "big")
            found[sequence] = (print_, part.commit_of(sequence))
    return found


first_incompletes = st.one_of(
    st.integers(-2, 4), st.just("highest"), st.just("next"), st.sampled_from([2**53 - 1, 2**64 - 1])
)


class ApplyRule(RuleBasedStateMachine):
    """Drives server and model side by side and compares after each step."""

    tracker_type: ClassVar[type[ResultTracker]] = ResultTracker
    rule_of_singles: ClassVar[Rule] = staticmethod(decide)
    rule_of_ranges: ClassVar[RangeRule] = staticmethod(decide_range)

    def __init__(self) -> None:
        super().__init__()
        self._unit = mock.patch.object(rule_module, "RANGE_LENGTH_MAX", UNIT)
        self._unit.start()
        self.server = Server(type(self).tracker_type, type(self).rule_of_singles, type(self).rule_of_ranges)
        self.model = Model()
        self.nonces: dict[int, str] = {}
        self.owners = 0
        self.sealed: set[tuple[int, int]] = set()
        self.sent: list[tuple[int, int, int, list[tuple[int, int]], bool]] = []

    def teardown(self) -> None:
        self._unit.stop()

    @initialize()
    def begin(self) -> None:
        self.open(3_000, 4)

    @rule(lease_ms=st.sampled_from([1_000, 3_000]), window=st.integers(1, 6))
    def open(self, lease_ms: int, window: int) -> None:
        nonce = f"open-{len(self.nonces)}"
        client = self.server.open(nonce, lease_ms, window, self.model.now)
        assert client not in self.nonces, "an id is never used again"
        self.nonces[client] = nonce
        self.model.sessions[client] = Known(1, lease_ms, self.model.now + lease_ms, window)

    @rule(pick=st.integers(0, 9))
    def open_is_retried(self, pick: int) -> None:
        client = self._pick(pick)
        known = self.model.sessions.get(client)
        if known is not None:
            assert self.server.open(self.nonces[client], 1_000, 1, self.model.now) == client
            self._renewed(known)

    @rule(
        pick=st.integers(0, 9),
        back=st.sampled_from([0, 0, 0, 0, 0, 0, 1]),
        fi=first_incompletes,
        offsets=st.lists(st.integers(-2, 14), min_size=1, max_size=4),
        changed=st.sampled_from([False, False, False, False, True]),
    )
    def operate(self, pick: int, back: int, fi: int | str, offsets: list[int], changed: bool) -> None:
        client = self._pick(pick)
        base = self._base(client)
        sequences = [max(1, base + offset) for offset in offsets]
        ops = [(s, payload_of(s, changed=changed and s % 2 == 0)) for s in sequences]
        self._send(client, self._epoch(client) - back, self._first_incomplete(client, fi), ops, ranged=False)

    @rule(
        pick=st.integers(0, 9),
        back=st.sampled_from([0, 0, 0, 0, 0, 0, 1]),
        fi=first_incompletes,
        offset=st.integers(-3, 4 * UNIT),
        length=st.integers(1, UNIT),
        changed=st.sampled_from([False, False, False, False, True]),
    )
    def send_range(self, pick: int, back: int, fi: int | str, offset: int, length: int, changed: bool) -> None:
        client = self._pick(pick)
        first = max(1, self._base(client) + offset)
        ops = [(s, payload_of(s, changed=changed and s % 3 == 0)) for s in range(first, first + length)]
        self._send(client, self._epoch(client) - back, self._first_incomplete(client, fi), ops, ranged=True)

    @rule(
        pick=st.integers(0, 9),
        back=st.sampled_from([None, None, 0, 0, 1]),
        fi=first_incompletes,
        offset=st.integers(-2, 14),
    )
    def resolve(self, pick: int, back: int | None, fi: int | str, offset: int) -> None:
        client = self._pick(pick)
        if client not in self.model.sessions:
            return
        sequence = max(1, self._base(client) + offset)
        epoch = None if back is None else self._epoch(client) - back
        first_incomplete = self._first_incomplete(client, fi)
        expected = self.model.resolve(client, epoch, first_incomplete, sequence)
        assert self.server.resolve(client, epoch, first_incomplete, sequence, self.model.now) == expected
        if expected[0] == "sealed":
            self.sealed.add((client, sequence))

    @rule(pick=st.integers(0, 99), again=st.booleans())
    def send_again(self, pick: int, again: bool) -> None:
        """An old request, as it was; ``again``: right after the newest one."""
        if self.sent:
            client, epoch, fi, ops, ranged = self.sent[-1 if again else pick % len(self.sent)]
            self._send(client, epoch, fi, ops, ranged=ranged)

    @rule(pick=st.integers(0, 9))
    def renew(self, pick: int) -> None:
        client = self._pick(pick)
        known = self.model.sessions.get(client)
        try:
            self.server.sessions.live(client, self._epoch(client), self.model.now).renew(self.model.now)
            assert known is not None
            assert known.ends_ms >= self.model.now, "an ended lease is not revived"
            self._renewed(known)
        except OncegateError:
            assert known is None or known.ends_ms < self.model.now

    @rule(pick=st.integers(0, 9))
    def take_over(self, pick: int) -> None:
        client = self._pick(pick)
        known = self.model.sessions.get(client)
        self.owners += 1
        nonce = f"owner-{self.owners}"
        try:
            session = self.server.sessions.take_over(client, nonce, self.model.now)
            again = self.server.sessions.take_over(client, nonce, self.model.now)
            assert known is not None
            assert known.ends_ms >= self.model.now
            known.epoch += 1
            self.nonces[client] = nonce
            assert session.epoch == again.epoch == known.epoch
            self._renewed(known)
        except OncegateError:
            assert known is None or known.ends_ms < self.model.now

    @rule(pick=st.integers(0, 9))
    def close(self, pick: int) -> None:
        if len(self.nonces) > 2:
            client = self._pick(pick)
            self.server.sessions.close(client)
            self.server.trackers.pop(client, None)
            self.model.sessions.pop(client, None)

    @rule(ms=st.integers(0, 2_500))
    def time_passes(self, ms: int) -> None:
        self.model.now += ms

    @rule()
    def reap(self) -> None:
        for client in self.server.sessions.expired(self.model.now):
            assert self.model.sessions[client].ends_ms < self.model.now, "nothing expires early"
            assert self.server.sessions.reap(client, self.model.now)
            del self.server.trackers[client]
            del self.model.sessions[client]

    @invariant()
    def both_know_the_same(self) -> None:
        assert self.server.commit == self.model.commit
        assert {s.client_id for s in self.server.sessions} == set(self.model.sessions) == set(self.server.trackers)
        for session in self.server.sessions:
            known, tracker = self.model.sessions[session.client_id], self.server.trackers[session.client_id]
            assert (session.epoch, session.ends_ms) == (known.epoch, known.ends_ms)
            assert (tracker.first_incomplete, tracker.highest) == (known.first_incomplete, known.highest)
            assert recorded(tracker) == {s: (what[0], what[1]) for s, what in known.done.items()}
            assert tracker.bytes == sum(len(part.fingerprints) for part in tracker.ranges)
            assert len(tracker.records) <= tracker.window
            assert tracker.ranges == sorted(tracker.ranges, key=lambda part: part.first)

    @invariant()
    def nothing_is_applied_twice(self) -> None:
        assert set(self.server.effects.values()) <= {1}
        assert not self.sealed & set(self.server.effects), "what was called sealed is never executed"

    def _pick(self, pick: int) -> int:
        clients = sorted(self.nonces)
        return 99 if pick == 9 else clients[-1 - pick % len(clients)]

    def _base(self, client: int) -> int:
        known = self.model.sessions.get(client)
        return 1 if known is None else known.first_incomplete

    def _epoch(self, client: int) -> int:
        known = self.model.sessions.get(client)
        return 1 if known is None else known.epoch

    def _first_incomplete(self, client: int, fi: int | str) -> int:
        known = self.model.sessions.get(client) or Known(1, 0, 0, 1)
        if isinstance(fi, str):
            return max(1, known.highest + (fi == "next"))
        return fi if fi > 100 else max(1, known.first_incomplete + fi)

    def _renewed(self, known: Known) -> None:
        if known.ends_ms >= self.model.now:
            known.ends_ms = max(known.ends_ms, self.model.now + known.lease_ms)

    def _send(self, client: int, epoch: int, fi: int, ops: list[tuple[int, int]], *, ranged: bool) -> None:
        tracker, session = self.server.trackers.get(client), self.server.sessions.get(client)
        before = tracker and (tracker.dump(), session and session.ends_ms)
        expected = self.model.apply(client, epoch, fi, ops, ranged=ranged)
        outcomes = self.server.apply(client, epoch, fi, ops, self.model.now, ranged=ranged)
        assert outcomes == expected
        if tracker is not None and not any(commit for _, commit in outcomes):
            assert before == (tracker.dump(), session and session.ends_ms), "a refusal changes nothing"
        self.sent.append((client, epoch, fi, ops, ranged))


TestApplyRule = ApplyRule.TestCase
TestApplyRule.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)


def executes_without_looking(tracker: ResultTracker, sequence: int, *how: Any) -> Verdict:
    """Planted bug: the completion record is not looked at."""
    verdict = decide(tracker, sequence, *how)
    return forgotten(tracker, sequence) if isinstance(verdict, Replay) else verdict


class DropsTooEarly(ResultTracker):
    """Planted bug: first incomplete is taken as an inclusive ack."""

    def acknowledge(self, first_incomplete: int) -> None:
        super().acknowledge(first_incomplete)
        self.records.pop(first_incomplete, None)


class AcknowledgesTooMuch(ResultTracker):
    """Planted bug: an ack moves first incomplete one too far, so that a lost response cannot be replayed."""

    def acknowledge(self, first_incomplete: int) -> None:
        super().acknowledge(first_incomplete + 1)


class MovesBack(ResultTracker):
    """Planted bug: a delayed request with a smaller first incomplete brings acknowledged ids back to life."""

    def acknowledge(self, first_incomplete: int) -> None:
        super().acknowledge(first_incomplete)
        self.first_incomplete = min(first_incomplete, self.first_incomplete)


def believes_any_payload(
    tracker: ResultTracker, sequence: int, first_incomplete: int, fingerprint: int, stand: Standing
) -> Verdict:
    """Planted bug: the fingerprint is not compared."""
    known = tracker.find(sequence)
    return decide(tracker, sequence, first_incomplete, known.fingerprint if known else fingerprint, stand)


def forgets_seals(tracker: ResultTracker, sequence: int, *how: Any) -> Verdict:
    """Planted bug: a seal answers who asks, but a late attempt is taken for a new one."""
    verdict = decide(tracker, sequence, *how)
    return forgotten(tracker, sequence) if verdict is Refusal.SEALED else verdict


def ignores_singles(
    tracker: ResultTracker, first: int, fingerprints: bytes, first_incomplete: int, stand: Standing
) -> list[RangePart]:
    """Planted bug: a range looks at recorded ranges only."""
    with mock.patch.object(tracker, "_records", None):
        return decide_range(tracker, first, fingerprints, first_incomplete, stand)


def ignores_overlap(
    tracker: ResultTracker, first: int, fingerprints: bytes, first_incomplete: int, stand: Standing
) -> list[RangePart]:
    """Planted bug: a range is judged as a whole, by its first operation."""
    part = decide_range(tracker, first, fingerprints, first_incomplete, stand)[0]
    return [msgspec.structs.replace(part, last=first + len(fingerprints) // FINGERPRINT_BYTES - 1)]


PLANTED: list[dict[str, Any]] = [
    {"rule_of_singles": staticmethod(executes_without_looking)},
    {"tracker_type": DropsTooEarly},
    {"tracker_type": AcknowledgesTooMuch},
    {"tracker_type": MovesBack},
    {"rule_of_singles": staticmethod(believes_any_payload)},
    {"rule_of_singles": staticmethod(forgets_seals)},
    {"rule_of_ranges": staticmethod(ignores_singles)},
    {"rule_of_ranges": staticmethod(ignores_overlap)},
]


@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: next(iter(planted.values())).__name__)
def test_planted_bug_is_caught_by_the_model(planted: dict[str, Any]) -> None:
    mutant = type("Mutant", (ApplyRule,), planted)
    fixed = settings(
        max_examples=4_000,
        stateful_step_count=40,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    with pytest.raises(AssertionError):
        run_state_machine_as_test(mutant, settings=fixed)
