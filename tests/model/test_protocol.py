"""The session protocol, searched to its end inside bounds, on the real machine; and rules broken on purpose.

Wider bounds: ``ONCEGATE_MODEL_ENTRIES=5 pytest tests/model -s`` visits 450,000 states in 20 s; 6 takes gigabytes.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import pytest

from oncegate.gateway.machine import commands as c
from oncegate.gateway.machine import machine as machine_module
from oncegate.gateway.machine.machine import Machine
from oncegate.proof.mutants.forgotten import forgotten
from oncegate.rifl import rule
from oncegate.rifl.completion import CompletionRecord
from oncegate.rifl.ids import ClientId, Epoch
from oncegate.rifl.resolve_rule import Fate, ResolveVerdict
from oncegate.rifl.result_tracker import ResultTracker
from oncegate.rifl.rule import Refusal, Replay, Standing, Verdict, decide, standing
from oncegate.rifl.session import SessionRecord, SessionTable
from tests.model.protocol import CLIENT, LEASE_MS, Bounds, Model, search

ENTRIES = int(os.environ.get("ONCEGATE_MODEL_ENTRIES", "4"))


def show(*lines: str) -> None:
    """Print what a search saw; pytest shows it with ``-s`` or ``-rP``."""
    sys.stdout.write("\n".join(["", *lines, ""]))


@pytest.mark.parametrize(
    "bounds",
    [
        Bounds(entries=ENTRIES),
        Bounds(operations=3, entries=ENTRIES, ticks=1),
        Bounds(window=1, entries=ENTRIES, ticks=1),
    ],
    ids=["two operations, a lease that ends", "three operations", "a window of one"],
)
def test_every_promise_holds_in_every_reachable_state(bounds: Bounds) -> None:
    found = search(Model(bounds))
    show(f"{bounds}: {found.states:,} states, {found.transitions:,} transitions, depth {found.depth}")
    assert found.trace is None, "\n".join(found.trace or [])
    assert found.states > 10_000, "the bounds let too little happen"
    assert found.depth >= 14


def forgets(tracker: ResultTracker, sequence: int, *how: Any) -> Verdict:
    """Executes without looking at the records."""
    verdict = decide(tracker, sequence, *how)
    return forgotten(tracker, sequence) if isinstance(verdict, Replay) else verdict


def knows_nothing_stale(tracker: ResultTracker, sequence: int, *how: Any) -> Verdict:
    """Takes a sequence number below first incomplete for a new one."""
    verdict = decide(tracker, sequence, *how)
    return forgotten(tracker, sequence) if verdict is Refusal.STALE else verdict


class DropsTooEarly(ResultTracker):
    """Takes first incomplete for an inclusive ack."""

    def acknowledge(self, first_incomplete: int) -> None:
        super().acknowledge(first_incomplete)
        if self._records is not None:
            self._records.pop(first_incomplete, None)


def answers_anew(tracker: ResultTracker, *how: Any) -> Verdict:
    """Answers a replay with the commit number of now."""
    verdict = decide(tracker, *how)
    if not isinstance(verdict, Replay):
        return verdict
    record = verdict.record
    return Replay(CompletionRecord(record.fingerprint, record.commit + tracker.highest, record.result))


def no_fence(session: SessionRecord, epoch: int, now_ms: int) -> Standing:
    """Serves every epoch."""
    return standing(session, session.epoch, now_ms)


def no_lease(session: SessionRecord, epoch: int, now_ms: int) -> Standing:
    """Never looks at the lease."""
    return standing(session, epoch, 0)


def reaps_blindly(self: SessionTable, client_id: int, now_ms: int) -> bool:
    """Drops whom the leader named, without a look at the lease."""
    known = self.get(client_id) is not None
    self.close(client_id)
    return known


class Revives(Machine):
    """Treats a session that is gone as new."""

    def _operate(self, command: c.Operate) -> Any:
        if self.sessions.get(CLIENT) is None and self.sessions.next_id > CLIENT:
            self.sessions.put_back(
                SessionRecord(ClientId(CLIENT), Epoch(1), "revived", LEASE_MS, 2, self.time_ms + LEASE_MS)
            )
            self.trackers[CLIENT] = ResultTracker(window=2)
        return super()._operate(command)


class Refuses(Machine):
    """Loses what it remembers when the session changes hands."""

    def _control(self, command: Any) -> Any:
        done = super()._control(command)
        if isinstance(command, c.TakeOver) and CLIENT in self.trackers:
            tracker = self.trackers[CLIENT]
            tracker.first_incomplete = tracker.highest + 1
        return done


PLANTED: list[tuple[Callable[[pytest.MonkeyPatch], dict[str, Any]], str]] = []


def _planted(promise: str) -> Callable[[Callable[[pytest.MonkeyPatch], dict[str, Any]]], None]:
    return lambda plant: PLANTED.append((plant, promise))


@_planted("executed twice")
def records_are_not_looked_at(patch: pytest.MonkeyPatch) -> dict[str, Any]:
    patch.setattr(rule, "decide", forgets)
    return {}


@_planted("executed after it had been acknowledged")
def stale_is_new(patch: pytest.MonkeyPatch) -> dict[str, Any]:
    patch.setattr(rule, "decide", knows_nothing_stale)
    return {}


@_planted("executed twice")
def ack_is_inclusive(patch: pytest.MonkeyPatch) -> dict[str, Any]:
    patch.setattr(c, "ResultTracker", DropsTooEarly)
    return {}


@_planted("has changed")
def replay_is_made_anew(patch: pytest.MonkeyPatch) -> dict[str, Any]:
    patch.setattr(rule, "decide", answers_anew)
    return {}


@_planted("was served although")
def older_epoch_is_served(patch: pytest.MonkeyPatch) -> dict[str, Any]:
    patch.setattr(machine_module, "standing", no_fence)
    return {}


@_planted("executed after the lease had ended")
def lease_is_not_looked_at(patch: pytest.MonkeyPatch) -> dict[str, Any]:
    patch.setattr(machine_module, "standing", no_lease)
    return {}


@_planted("reaped while its lease lives")
def reaping_is_not_checked_again(patch: pytest.MonkeyPatch) -> dict[str, Any]:
    patch.setattr(SessionTable, "reap", reaps_blindly)
    return {}


@_planted("executed after the lease had ended")
def reaped_session_is_new(patch: pytest.MonkeyPatch) -> dict[str, Any]:
    return {"make": Revives}


@_planted("its result is lost")
def take_over_forgets(patch: pytest.MonkeyPatch) -> dict[str, Any]:
    return {"make": Refuses}


@_planted("after it had been sealed")
def seal_is_not_remembered(patch: pytest.MonkeyPatch) -> dict[str, Any]:
    patch.setattr(ResultTracker, "seal", lambda self, sequence: None)
    return {}


@_planted("was sealed as never executed, but it was executed")
def resolve_seals_what_is_recorded(patch: pytest.MonkeyPatch) -> dict[str, Any]:
    patch.setattr(machine_module, "resolve", lambda tracker, sequence, first_incomplete: ResolveVerdict(Fate.SEALED))
    return {}


@_planted("was told before")
def answer_comes_before_the_commit(patch: pytest.MonkeyPatch) -> dict[str, Any]:
    return {"answers_early": True}


@pytest.mark.parametrize(("plant", "promise"), PLANTED, ids=[plant.__name__ for plant, _ in PLANTED])
def test_broken_rule_is_found_with_a_shortest_way_to_it(
    plant: Callable[[pytest.MonkeyPatch], dict[str, Any]], promise: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = search(Model(Bounds(), **plant(monkeypatch)))
    assert found.trace is not None, f"{found.states} states and no complaint"
    show(f"{found.states:,} states", *found.trace)
    assert promise in found.trace[-1]
    assert len(found.trace) <= 12


def test_way_to_a_broken_promise_is_a_shortest_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Open, commit, hear, the same operation twice, two commits: nothing of it can be left out."""
    monkeypatch.setattr(rule, "decide", forgets)
    trace = search(Model(Bounds())).trace
    assert trace is not None
    assert [step.split()[0] for step in trace] == [
        "deliver",
        "commit",
        "first",
        "deliver",
        "deliver",
        "commit",
        "commit",
    ]
