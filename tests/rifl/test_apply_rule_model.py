"""The apply rule against a dumb dictionary: sequence number to (fingerprint, commit, who came together).

Planted bugs at the end: each must be caught by the same check.
"""

from __future__ import annotations

from typing import Any, ClassVar
from unittest import mock

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from oncegate.proof.mutants.bugs import BUGS
from oncegate.rifl import rule as rule_module
from oncegate.rifl.completion import FINGERPRINT_BYTES
from oncegate.rifl.errors import OncegateError
from oncegate.rifl.range_rule import RangePart, decide_range
from oncegate.rifl.result_tracker import ResultTracker
from oncegate.rifl.rule import Standing, Verdict, decide
from tests.rifl.apply_rule import UNIT, Known, Model, RangeRule, Rule, Server, assert_caught, payload_of, recorded

first_incompletes = st.one_of(
    st.integers(-2, 4), st.just("highest"), st.just("next"), st.sampled_from([2**53 - 1, 2**64 - 1])
)
clients = st.integers(0, 9)
REQUEST: dict[str, Any] = {
    "pick": clients,
    "back": st.sampled_from([0, 0, 0, 0, 0, 0, 1]),
    "fi": first_incompletes,
    "changed": st.sampled_from([False, False, False, False, True]),
}
"""Whose request it is, of which epoch, its ack, and whether it comes with another payload than before."""


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

    @rule(pick=clients)
    def open_is_retried(self, pick: int) -> None:
        client = self._pick(pick)
        known = self.model.sessions.get(client)
        if known is not None:
            assert self.server.open(self.nonces[client], 1_000, 1, self.model.now) == client
            self._renewed(known)

    @rule(**REQUEST, offsets=st.lists(st.integers(-2, 14), min_size=1, max_size=4))
    def operate(self, pick: int, back: int, fi: int | str, offsets: list[int], changed: bool) -> None:
        client = self._pick(pick)
        base = self._base(client)
        sequences = [max(1, base + offset) for offset in offsets]
        ops = [(s, payload_of(s, changed=changed and s % 2 == 0)) for s in sequences]
        self._send(client, self._epoch(client) - back, self._first_incomplete(client, fi), ops, ranged=False)

    @rule(**REQUEST, offset=st.integers(-3, 4 * UNIT), length=st.integers(1, UNIT))
    def send_range(self, pick: int, back: int, fi: int | str, offset: int, length: int, changed: bool) -> None:
        client = self._pick(pick)
        first = max(1, self._base(client) + offset)
        ops = [(s, payload_of(s, changed=changed and s % 3 == 0)) for s in range(first, first + length)]
        self._send(client, self._epoch(client) - back, self._first_incomplete(client, fi), ops, ranged=True)

    @rule(pick=clients, back=st.sampled_from([None, None, 0, 0, 1]), fi=first_incompletes, offset=st.integers(-2, 14))
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

    @rule(pick=clients)
    def renew(self, pick: int) -> None:
        client = self._pick(pick)
        known = self._live(client)
        try:
            self.server.sessions.live(client, self._epoch(client), self.model.now).renew(self.model.now)
        except OncegateError:
            assert known is None
            return
        assert known is not None, "an ended lease is not revived"
        self._renewed(known)

    @rule(pick=clients)
    def take_over(self, pick: int) -> None:
        client = self._pick(pick)
        known = self._live(client)
        self.owners += 1
        nonce = f"owner-{self.owners}"
        try:
            session = self.server.sessions.take_over(client, nonce, self.model.now)
            again = self.server.sessions.take_over(client, nonce, self.model.now)
        except OncegateError:
            assert known is None
            return
        assert known is not None
        known.epoch += 1
        self.nonces[client] = nonce
        assert session.epoch == again.epoch == known.epoch
        self._renewed(known)

    @rule(pick=clients)
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

    def _live(self, client: int) -> Known | None:
        known = self.model.sessions.get(client)
        return known if known is not None and known.ends_ms >= self.model.now else None

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


PLANTED: dict[str, dict[str, Any]] = {
    "believes any payload": {"rule_of_singles": staticmethod(believes_any_payload)},
    "acknowledges too much": {"tracker_type": AcknowledgesTooMuch},
    "moves back": {"tracker_type": MovesBack},
    "ignores singles": {"rule_of_ranges": staticmethod(ignores_singles)},
    "ignores overlap": {"rule_of_ranges": staticmethod(ignores_overlap)},
}


@pytest.mark.parametrize("bug", PLANTED)
def test_planted_bug_is_caught_by_the_model(bug: str) -> None:
    assert_caught(ApplyRule, 4_000, **PLANTED[bug])


@pytest.mark.parametrize("bug", ["apply-without-dedup", "sealed-is-executed", "ack-off-by-one"])
def test_planted_change_is_caught_by_the_model(bug: str) -> None:
    with BUGS[bug].planted():
        assert_caught(ApplyRule, 4_000)
