"""What takes effect together is told under one number: that of its end."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from oncegate.gateway.machine.effects import join
from oncegate.gateway.machine.machine import Machine
from oncegate.gateway.machine.rows import ChangeRun, StoredRow
from oncegate.rifl.ids import CommitNumber

steps = st.lists(st.sampled_from(["write", "write", "read", "run", "begin", "begin", "end", "end"]), max_size=24)


def write(machine: Machine, *, told: bool = True) -> None:
    """Do what takes a commit number, and changes a row or none."""
    machine.commit = CommitNumber(machine.commit + 1)
    if told:
        row = StoredRow(machine.commit, b"1")
        machine.changes.append((machine.commit, machine.commit, "t", "k", None, row, "why"))


@given(steps)
def test_change_is_told_up_to_the_end_of_the_outermost_that_took_effect_together_with_it(plan: list[str]) -> None:
    """Against all pairs of a first and a last number: a transaction in a cascade's part, one that changes nothing."""
    machine, open_, pairs = Machine(), list[int](), list[tuple[int, int]]()
    single: list[int] = []
    runs: list[ChangeRun] = []
    for step in [*plan, *["end"] * plan.count("begin")]:
        if step in ("write", "read"):
            write(machine, told=step == "write")
            single += [machine.commit] if step == "write" else []
        elif step == "run" and not open_:  # a run of puts is part of nothing
            first = CommitNumber(machine.commit + 1)
            machine.commit = CommitNumber(machine.commit + 2)
            rows = [StoredRow(CommitNumber(first + at), b"1") for at in range(2)]
            runs.append(ChangeRun(first, "t", ["a", "b"], [None, None], rows, 4))
            machine.changes.append(runs[-1])
        elif step == "begin":
            open_.append(machine.commit + 1)
        elif step == "end" and open_:
            pairs.append((open_.pop(), int(machine.commit)))
            join(machine, pairs[-1][0])
    changed = [(first, last) for first, last in pairs if any(first <= commit <= last for commit in single)]
    several = {(first, last) for first, last in changed if first < last}
    outermost = [one for one in several if not any(a <= one[0] and one[1] <= b and (a, b) != one for a, b in several)]
    assert machine.joined == sorted(outermost)
    expected: list[Any] = [
        (commit, max([last for first, last in several if first <= commit <= last], default=commit)) for commit in single
    ]
    assert [change[:2] for change in machine.changes if type(change) is not ChangeRun] == expected
    assert [change for change in machine.changes if type(change) is ChangeRun] == runs
    rest = [change[2:] for change in machine.changes if type(change) is not ChangeRun]
    assert rest == [("t", "k", None, StoredRow(CommitNumber(commit), b"1"), "why") for commit in single]
    told = [change[0] for change in machine.changes]
    assert told == sorted(told)
