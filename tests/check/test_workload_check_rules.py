"""What all checks of workloads have in common, over all good and bad histories of the tests beside this one.

Each way in which a check can fail is shown by a history that fails in this way alone; a read without a result says
nothing; what was not read in the end is undecided and not valid; and a check says how much it has looked at.
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import msgspec
import pytest

from oncegate.proof import check as checked
from oncegate.proof.check.checks import LOST, Findings
from oncegate.proof.check.plan import PROCESSES_MAX
from oncegate.proof.check.recorder import LANES
from oncegate.proof.check.workloads import workload_of
from oncegate.proof.check.workloads.stream import HANDED_OVER
from oncegate.proof.lincheck import Event
from tests.check.histories import FINAL, Book
from tests.check.test_workload_checks import BAD, BATCH, GOOD, called, flow, hold

ROOT = Path(checked.__file__).parent
READS = {
    *("read", "get", "scan", "look", "balance", "balances", "receipts", "told", "read-own", "find", "observe", "close"),
    *("sum", "dead", "claim", "fate", "answers", "fates", "job", "handed-over"),
}
"""Operations that change nothing, or whose effect nobody is told of if they have no result."""


def violations() -> set[tuple[str, int]]:
    """Return where the checks of workloads note a violation."""
    found = set()
    for path in [ROOT / "checks.py", *(ROOT / "workloads").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "findings.violated":
                found.add((path.name, node.lineno))
    return found


def test_each_violation_is_shown_by_a_history_in_which_its_check_finds_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    by_check = defaultdict[str, set[tuple[str, int]]](set)
    real = Findings.violated

    def violated(findings: Findings, *args: Any) -> None:
        caller = sys._getframe(1)
        by_check[findings.name].add((Path(caller.f_code.co_filename).name, caller.f_lineno))
        real(findings, *args)

    monkeypatch.setattr(Findings, "violated", violated)
    alone = set[tuple[str, int]]()
    for workload, book, _ in BAD:
        by_check.clear()
        workload_of(workload).check(book.events)
        alone |= {place for places in by_check.values() if len(places) == 1 for place in places}
    assert violations() - alone == set()


def with_empty_reads(events: list[Event]) -> list[Event]:
    """Return a history in which each read is done by two others too, of which one fails and one never ends."""
    made = list[Event]()
    numbers = iter(range(1, 1_000))
    for event in events:
        # Another worker each time, for final reads one that makes these.
        lane = FINAL if event.process >= FINAL else 0
        if event.f in READS and event.type == "invoke":
            failing, hanging = (lane + one + LANES * next(numbers) for one in (1, 2))
            times = iter((event.time + 0.2, event.time + 0.4, event.time + 0.6))
            begun, other = (msgspec.structs.replace(event, process=one) for one in (failing, hanging))
            failed = msgspec.structs.replace(begun, type="fail", value=None, error="no answer")
            made += [event]
            made += [msgspec.structs.replace(one, time=next(times)) for one in (begun, failed, other)]
        else:
            made.append(event)
    return made


def verdicts(workload: str, events: list[Event]) -> dict[str, str]:
    return {one.name: one.verdict for one in workload_of(workload.partition(",")[0]).check(events)}


@pytest.mark.parametrize("workload", GOOD)
def test_read_without_a_result_makes_no_history_inverdicts(workload: str) -> None:
    events = GOOD[workload].events
    assert verdicts(workload, with_empty_reads(events)) == verdicts(workload, events)


def test_read_without_a_result_hides_no_violation() -> None:
    for workload, book, check in BAD:
        found = verdicts(workload, with_empty_reads(book.events))
        assert any(verdict == "invalid" for name, verdict in found.items() if name.startswith(check)), (workload, check)


def test_each_check_says_that_it_has_looked_at_something() -> None:
    idle, busy = set[tuple[str, str]](), set[tuple[str, str]]()
    for workload, book in [*GOOD.items(), *((workload, book) for workload, book, _ in BAD)]:
        name = workload.partition(",")[0]
        for one in workload_of(name).check(book.events):
            (busy if one.operations and one.keys else idle).add((name, one.name))
    # The recipes at once are those of each.
    assert {one for one in idle - busy if one[0] != "recipes"} == set()


UNREAD = [name for name, book in GOOD.items() if any(event.process >= FINAL for event in book.events)]


@pytest.mark.parametrize("workload", sorted({*UNREAD} - {"watch, ends"}))
def test_what_was_not_read_in_the_end_is_undecided(workload: str) -> None:
    events = [event for event in GOOD[workload].events if event.process % LANES < PROCESSES_MAX]
    lost = [verdict for name, verdict in verdicts(workload, events).items() if name.startswith(LOST)]
    assert "unknown" in lost
    assert set(lost) <= {"unknown", "valid"}


def handed_over(first_batch: int, reads: float, end: str = "ok") -> Book:
    result = {"first_batch": first_batch, "reads": reads}
    return Book().did("handed-over", "n1", None, result if end == "ok" else None, end=end, node="n1")


UNDECIDED: list[tuple[str, Book, str]] = [
    ("order", Book().did("calls", "p0", [1, [1]], {"1": "applied"}), "the effects of a session"),
    ("order", called().did("scan", "n1", None, [[1, 3], [3, 7], [4, 9]]), "the effects of a session"),
    (
        "doubts",
        Book().did("append", "l0", 1, end="info").did("fate", "l0", 1, "not known yet").read("l0", []),
        "each doubt",
    ),
    ("stored", handed_over(1, 1.0), HANDED_OVER),
    ("stored", handed_over(2, 0.0), HANDED_OVER),
    ("stored", handed_over(2, 1.0, end="fail"), HANDED_OVER),
    ("stored", Book(), HANDED_OVER),
    ("flow", flow().did("batch", "changes/1", end="fail", node="n3"), "a batch is the same bytes"),
    ("flow", Book().did("batch", "changes/1", None, BATCH, node="n1"), "the store holds"),
    ("watch", Book().did("put", "a1", 1, 1), LOST),
]
"""What a check could not look at: neither valid nor a broken promise."""


@pytest.mark.parametrize(("workload", "book", "check"), UNDECIDED)
def test_what_could_not_be_looked_at_is_undecided(workload: str, book: Book, check: str) -> None:
    (found,) = (verdict for name, verdict in verdicts(workload, book.events).items() if name.startswith(check))
    assert found == "unknown"


def holds(*looks: dict[str, Any]) -> Book:
    book = Book().did("hold", "h0", hold(1), {"commit": 4}).did("hold", "h0", hold(2, bound=True), {"commit": 5})
    for one in looks:
        book.did("look", "h0", None, one)
    return book


def expired() -> Book:
    return Book().did("hold", "h2", hold(3), end="fail", error="SESSION_EXPIRED", request="a/1")


FIRST = {"at_ms": 1, "commit": 4, "version": 4, "value": 1, "ends_ms": 20}
BOUND = {"commit": 9, "version": 5, "value": 2, "owner": "a"}
AT_THE_BORDER = {
    "a row is there a second after its end": holds(FIRST | {"at_ms": 1_020}),
    "a row is gone at its end": holds(FIRST, {"at_ms": 20, "commit": 9}),
    "a node that is behind does not know the row": holds(FIRST, {"at_ms": 19, "commit": 4}),
    "a bound row ends before its time": holds(FIRST | {"value": 2}, {"at_ms": 2, "commit": 9}),
    "a bound row is there two seconds after the lease": (
        expired().did("look", "h0", None, {"at_ms": 10, "commit": 9}).did("look", "h1", None, BOUND | {"at_ms": 2_010})
    ),
    "another operation was told of another end": (
        Book()
        .did("close", "b")
        .did("hold", "h2", hold(3), end="fail", error="FENCED", request="a/1")
        .did("look", "h0", None, {"at_ms": 10, "commit": 9})
        .did("look", "h1", None, BOUND | {"at_ms": 9_000})
    ),
    "a read that began before the session's end was told": (
        Book().began("look", "h1", process=1).did("close", "a").ended("look", "h1", BOUND | {"at_ms": 6}, process=1)
    ),
}


@pytest.mark.parametrize("what", AT_THE_BORDER)
def test_row_that_ends_as_late_or_as_early_as_it_may_is_no_violation(what: str) -> None:
    found = verdicts("leases", AT_THE_BORDER[what].events)
    assert found == dict.fromkeys(found, "valid")
