"""The session protocol, searched to its end inside bounds, on the real machine; and rules broken on purpose.

Wider bounds: ``ONCEGATE_MODEL_ENTRIES=5 pytest tests/model -s`` visits 450,000 states in 20 s; 6 takes gigabytes.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import pytest

from oncegate.gateway.machine import commands as c
from oncegate.gateway.machine import operations, put_runs, session_handlers, transactions
from oncegate.gateway.machine.apply import HANDLERS
from oncegate.gateway.machine.machine import Machine
from oncegate.gateway.machine.state import layout
from oncegate.proof.mutants.forgotten import DropsTooEarly, executes, forgotten
from oncegate.proof.mutants.runs_of_puts import drops_cut_runs, forgets_runs, middle_as_last
from oncegate.rifl import result_tracker, rule
from oncegate.rifl.completion import CompletionRecord
from oncegate.rifl.ids import ClientId, CommitNumber, Epoch
from oncegate.rifl.resolve_rule import Fate, ResolveVerdict
from oncegate.rifl.result_tracker import ResultTracker
from oncegate.rifl.rule import Refusal, Replay, Standing, Verdict, decide, standing
from oncegate.rifl.session import SessionRecord, SessionTable
from tests.model.machines import CLIENT, LEASE_MS
from tests.model.protocol import Bounds, Model, search

apply_together = transactions.write_together
ENTRIES = int(os.environ.get("ONCEGATE_MODEL_ENTRIES", "4"))
RUNS = Bounds(operations=3, transaction=0, window=3, ticks=0, losses=0, given_up=0, runs=True, restarts=1)
"""One record for one to three puts, which are sent again in every cut, acknowledged one by one, and saved."""


def show(*lines: str) -> None:
    """Print what a search saw; pytest shows it with ``-s`` or ``-rP``."""
    sys.stdout.write("\n".join(["", *lines, ""]))


@pytest.mark.parametrize(
    "bounds",
    [
        Bounds(entries=ENTRIES),
        Bounds(operations=3, entries=ENTRIES, ticks=1),
        Bounds(window=1, entries=ENTRIES, ticks=1),
        RUNS._replace(entries=ENTRIES),
    ],
    ids=["two operations, a lease that ends", "three operations", "a window of one", "runs of puts, a restart"],
)
def test_every_promise_holds_in_every_reachable_state(bounds: Bounds, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(put_runs, "RUN_MIN", 2)
    found = search(Model(bounds))
    show(f"{bounds}: {found.states:,} states, {found.transitions:,} transitions, depth {found.depth}")
    assert found.trace is None, "\n".join(found.trace or [])
    assert found.states > 10_000, "the bounds let too little happen"
    assert found.depth >= 14


def answers_anew(tracker: ResultTracker, *how: Any) -> Verdict:
    """Answers a replay with the commit number of now."""
    verdict = decide(tracker, *how)
    if not isinstance(verdict, Replay):
        return verdict
    record = verdict.record
    return Replay(CompletionRecord(record.fingerprint, record.commit + tracker.highest, record.result))


def retries_a_refusal(tracker: ResultTracker, sequence: int, *how: Any) -> Verdict:
    """Executes again what was refused, as if a retry deserved another chance."""
    verdict = decide(tracker, sequence, *how)
    result = verdict.record.result if isinstance(verdict, Replay) else None
    return forgotten(tracker, sequence) if result is not None and result.refusal is not None else verdict


def applies_half(machine: Machine, first: CommitNumber, writes: list[Any], *author: Any) -> None:
    """Does the first write of a transaction alone."""
    apply_together(machine, first, writes[:1], *author)


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


def revives(machine: Machine, command: c.Operate) -> Any:
    """Treats a session that is gone as new."""
    if machine.sessions.get(CLIENT) is None and machine.sessions.next_id > CLIENT:
        machine.sessions.put_back(
            SessionRecord(ClientId(CLIENT), Epoch(1), "revived", LEASE_MS, 2, machine.time_ms + LEASE_MS)
        )
        machine.trackers[CLIENT] = ResultTracker(window=2)
    return operations.operate(machine, command)


def forgets(machine: Machine, command: c.TakeOver) -> Any:
    """Loses what it remembers when the session changes hands."""
    done = session_handlers.take_over(machine, command)
    if CLIENT in machine.trackers:
        tracker = machine.trackers[CLIENT]
        tracker.first_incomplete = tracker.highest + 1
    return done


class Planted(NamedTuple):
    """A rule that is broken, by patches (owner, attribute, replacement) or in the model, and what is complained of."""

    bug: str
    complaint: str
    patches: tuple[tuple[Any, Any, Any], ...] = ()
    model: Callable[[Bounds], Model] = Model
    bounds: Bounds = Bounds()


EXECUTED_LATE = "executed after the lease had ended"
PLANTED = (
    Planted("records are not looked at", "executed twice", ((rule, "decide", executes(Replay)),)),
    Planted("stale is new", "after it had been acknowledged", ((rule, "decide", executes(Refusal.STALE)),)),
    Planted("ack is inclusive", "executed twice", ((session_handlers, "ResultTracker", DropsTooEarly),)),
    Planted("replay is made anew", "has changed", ((rule, "decide", answers_anew),)),
    Planted("older epoch is served", "was served although", ((operations, "standing", no_fence),)),
    Planted("lease is not looked at", EXECUTED_LATE, ((operations, "standing", no_lease),)),
    Planted("reaping is not checked again", "reaped while its lease lives", ((SessionTable, "reap", reaps_blindly),)),
    Planted("reaped session is new", EXECUTED_LATE, ((HANDLERS, c.Operate, revives),)),
    Planted("take-over forgets", "its result is lost", ((HANDLERS, c.TakeOver, forgets),)),
    Planted("seal is not remembered", "after it had been sealed", ((ResultTracker, "seal", lambda *_: None),)),
    Planted(
        "resolve seals what is recorded",
        "was sealed as never executed, but it was executed",
        ((session_handlers, "resolve", lambda *_: ResolveVerdict(Fate.SEALED)),),
    ),
    Planted(
        "transaction does its first write alone",
        "not what was executed as a whole",
        ((transactions, "write_together", applies_half),),
    ),
    Planted(
        "condition of a transaction is not looked at",
        "not what it was decided by",
        ((transactions, "_failed_condition", lambda *_: None),),
    ),
    Planted("refusal is not remembered", "executed twice", ((rule, "decide", retries_a_refusal),)),
    Planted(
        "record in a run is another's", "has changed", ((result_tracker, "_record_of", middle_as_last),), bounds=RUNS
    ),
    Planted("ack drops a run's rest", "executed twice", ((result_tracker, "_from", drops_cut_runs),), bounds=RUNS),
    Planted("runs are not saved", "executed twice", ((layout, "encode_session", forgets_runs),), bounds=RUNS),
    Planted("answer comes before the commit", "was told before", model=partial(Model, answers_early=True)),
)


@pytest.mark.parametrize("planted", PLANTED, ids=[planted.bug for planted in PLANTED])
def test_broken_rule_is_found_with_a_shortest_way_to_it(planted: Planted, monkeypatch: pytest.MonkeyPatch) -> None:
    for patch in planted.patches:
        (monkeypatch.setitem if patch[0] is HANDLERS else monkeypatch.setattr)(*patch)
    monkeypatch.setattr(put_runs, "RUN_MIN", 2)
    found = search(planted.model(planted.bounds))
    assert found.trace is not None, f"{found.states} states and no complaint"
    show(f"{found.states:,} states", *found.trace)
    assert planted.complaint in found.trace[-1]
    assert len(found.trace) <= 12


def test_way_to_a_broken_promise_is_a_shortest_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Open, commit, hear, the same operation twice, two commits: nothing of it can be left out."""
    monkeypatch.setattr(rule, "decide", executes(Replay))
    trace = search(Model(Bounds())).trace
    assert trace is not None
    assert " ".join(step.split()[0] for step in trace) == "deliver commit first deliver deliver commit commit"
