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
from oncegate.gateway.machine import operations, ordering, session_handlers, transactions
from oncegate.gateway.machine.apply import HANDLERS
from oncegate.gateway.machine.machine import Machine
from oncegate.proof.mutants.bugs import BUGS
from oncegate.proof.mutants.planting import Change, planted
from oncegate.rifl import rule
from oncegate.rifl.completion import CompletionRecord
from oncegate.rifl.ids import ClientId, CommitNumber, Epoch
from oncegate.rifl.resolve_rule import Fate, ResolveVerdict
from oncegate.rifl.result_tracker import ResultTracker
from oncegate.rifl.rule import Replay, Standing, Verdict, decide, standing
from oncegate.rifl.session import SessionRecord
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
    monkeypatch.setattr(ordering, "RUN_MIN", 2)
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


RETRIES_A_REFUSAL = Change(
    "rifl/rule.py",
    "        return Replay(record) if record.fingerprint == fingerprint",
    """
        if record.result is not None and record.result.refusal is not None:
            tracker._records.pop(sequence)
            return EXECUTE
        return Replay(record) if record.fingerprint == fingerprint""",
)
"""What was refused is executed again, as if a retry deserved another chance."""


def applies_half(machine: Machine, first: CommitNumber, writes: list[Any], *author: Any) -> None:
    """Does the first write of a transaction alone."""
    apply_together(machine, first, writes[:1], *author)


def no_lease(session: SessionRecord, epoch: int, now_ms: int) -> Standing:
    """Never looks at the lease."""
    return standing(session, epoch, 0)


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


class Broken(NamedTuple):
    """A rule that is broken, by changes of text, by patches (owner, attribute, replacement) or in the model."""

    bug: str
    complaint: str
    changes: tuple[Change, ...] = ()
    patches: tuple[tuple[Any, Any, Any], ...] = ()
    model: Callable[[Bounds], Model] = Model
    bounds: Bounds = Bounds()


USUAL = Bounds()


def as_known(name: str, complaint: str, bounds: Bounds = USUAL) -> Broken:
    """Return a rule that is broken as one of the planted bugs says."""
    return Broken(BUGS[name].breaks, complaint, BUGS[name].changes, bounds=bounds)


EXECUTED_LATE = "executed after the lease had ended"
BROKEN = (
    as_known("apply-without-dedup", "executed twice"),
    as_known("stale-is-new", "after it had been acknowledged"),
    as_known("ack-off-by-one", "executed twice"),
    as_known("no-fence", "was served although"),
    as_known("reaped-while-live", "reaped while its lease lives"),
    as_known("resolve-without-seal", "after it had been sealed"),
    as_known("run-record-of-another", "has changed", RUNS),
    as_known("ack-drops-rest-of-run", "executed twice", RUNS),
    as_known("snapshot-without-runs", "executed twice", RUNS),
    Broken("replay is made anew", "has changed", patches=((rule, "decide", answers_anew),)),
    Broken("lease is not looked at", EXECUTED_LATE, patches=((operations, "standing", no_lease),)),
    Broken("reaped session is new", EXECUTED_LATE, patches=((HANDLERS, c.Operate, revives),)),
    Broken("take-over forgets", "its result is lost", patches=((HANDLERS, c.TakeOver, forgets),)),
    Broken(
        "resolve seals what is recorded",
        "was sealed as never executed, but it was executed",
        patches=((session_handlers, "resolve", lambda *_: ResolveVerdict(Fate.SEALED)),),
    ),
    Broken(
        "transaction does its first write alone",
        "not what was executed as a whole",
        patches=((transactions, "write_together", applies_half),),
    ),
    Broken(
        "condition of a transaction is not looked at",
        "not what it was decided by",
        patches=((transactions, "_failed_condition", lambda *_: None),),
    ),
    Broken("refusal is not remembered", "executed twice", (RETRIES_A_REFUSAL,)),
    Broken("answer comes before the commit", "was told before", model=partial(Model, answers_early=True)),
)


@pytest.mark.parametrize("broken", BROKEN, ids=[broken.bug for broken in BROKEN])
def test_broken_rule_is_found_with_a_shortest_way_to_it(broken: Broken, monkeypatch: pytest.MonkeyPatch) -> None:
    for patch in broken.patches:
        (monkeypatch.setitem if patch[0] is HANDLERS else monkeypatch.setattr)(*patch)
    monkeypatch.setattr(ordering, "RUN_MIN", 2)
    with planted(broken.changes):
        found = search(broken.model(broken.bounds))
    assert found.trace is not None, f"{found.states} states and no complaint"
    show(f"{found.states:,} states", *found.trace)
    assert broken.complaint in found.trace[-1]
    assert len(found.trace) <= 12


def test_way_to_a_broken_promise_is_a_shortest_one() -> None:
    """Open, commit, hear, the same operation twice, two commits: nothing of it can be left out."""
    with BUGS["apply-without-dedup"].planted():
        trace = search(Model(Bounds())).trace
    assert trace is not None
    assert " ".join(step.split()[0] for step in trace) == "deliver commit first deliver deliver commit commit"
