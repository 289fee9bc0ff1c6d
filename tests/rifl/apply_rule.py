"""The apply rule twice: over dumb dictionaries, and the parts of rifl put together as the state machine does.

The model states the rule of SEMANTICS.md a second time, one operation after the other, with loops instead of
bookkeeping.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from oncegate.rifl.completion import FINGERPRINT_BYTES, RangeRecord
from oncegate.rifl.errors import OncegateError
from oncegate.rifl.range_rule import NewPart, RangePart
from oncegate.rifl.resolve_rule import resolve
from oncegate.rifl.result_tracker import ResultTracker
from oncegate.rifl.rule import EXECUTE, Replay, Standing, Verdict, decide_without_session, standing
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
            fate = ("executed", commit) if commit else ("sealed", 0)
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


def assert_caught(machine: type[RuleBasedStateMachine], max_examples: int, **planted: Any) -> None:
    """Show that a comparison with a model notices a planted bug, within so many examples, the same in each run."""
    mutant = type("Mutant", (machine,), planted)
    fixed = settings(
        max_examples=max_examples,
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
