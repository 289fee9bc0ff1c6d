"""What a transition leaves behind: rows, their changes for whoever watches, items for flows. Pure.

Owns: that these three happen together, under one commit number. Everything that changes a row of a table, or adds to a
stream table, goes through here: operations, transactions, what a consumer derives, and the ends of rows. Whether it may
happen was decided before, so nothing here refuses. The completion record is written by the caller in the same call of
:func:`oncegate.gateway.machine.apply.apply`, so nobody ever sees one without the other.

A run of puts has a second form, :func:`write_run`, since rows in columns cost a third of what they cost one by one
(docs/decisions/0073-commands-are-data.md). Both are compared operation by operation in tests/gateway/test_put_runs.py.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from operator import itemgetter
from typing import Final, TypeAlias

from oncegate.flows.open_segment import GroupItem
from oncegate.gateway.machine import commands as c
from oncegate.gateway.machine.machine import Machine
from oncegate.gateway.machine.rows import StoredRow
from oncegate.gateway.machine.tables import Table
from oncegate.rifl.ids import CommitNumber

NO_SESSION: Final = 0
"""Client id of items that no session wrote: consumers' and ends of rows; their sequence number is the commit number."""
_FIRST: Final = itemgetter(0)

Write: TypeAlias = tuple[CommitNumber, Table, str, StoredRow | None, StoredRow | None, bytes | None]
"""A write of several that are one transition: its commit number, its table and key, the row before and after, and the
value that flows get. Of a stream table both rows are None. A plain tuple: one is made for each write."""


def write(
    machine: Machine,
    commit: CommitNumber,
    table: Table,
    key: str,
    before: StoredRow | None,
    after: StoredRow | None,
    client_id: int,
    sequence: int,
    traceparent: str = "",
    cause: str = "",
) -> None:
    """Write one row, ``before`` of it being there now, under the next commit number; ``cause`` as of Table.change.

    Raises:
        InvariantViolation: as :meth:`Table.change`.
    """
    machine.commit = commit
    if table.kind == "resident":
        table.change(key, before, after, commit, cause)
    flows = machine.flows
    if flows.is_tapped(table.name):
        value = None if after is None else after.value
        flows.append_one(table.name, commit, key, value, machine.time_ms, client_id, sequence, traceparent)


def write_together(
    machine: Machine,
    first: CommitNumber,
    writes: Sequence[Write],
    client_id: int,
    sequence: int,
    traceparent: str = "",
    cause: str = "",
) -> None:
    """Write several rows as one transition: its commit numbers begin with ``first`` and end with the machine's.

    Raises:
        InvariantViolation: as :func:`write`.
    """
    flows, groups = machine.flows, dict[str, list[GroupItem]]()
    for commit, table, key, before, after, value in writes:
        if table.kind == "resident":
            table.change(key, before, after, commit, cause)
        if flows.is_tapped(table.name):
            groups.setdefault(table.name, []).append(GroupItem(commit, key, value))
    for name, items in groups.items():
        flows.append_group(name, items, machine.time_ms, client_id, sequence, traceparent)
    join(machine, first)


def write_run(
    machine: Machine,
    table: Table,
    keys: Sequence[str],
    values: Sequence[bytes],
    client_id: int,
    sequence: int,
    traceparent: str,
) -> int:
    """Do what :func:`write` does with each put of a run, from the next commit number and ``sequence`` on.

    Returns:
        How many were written. The others are left to be decided one by one: the table may not take them.
    """
    flows, now, commit = machine.flows, machine.time_ms, CommitNumber(machine.commit + 1)
    stream = table.kind == "stream"
    if not stream and not table.put_run(keys, values, commit):
        return 0
    done = len(keys)
    if flows.is_tapped(table.name):
        for at, (key, value) in enumerate(zip(keys, values, strict=True)):
            if stream and flows.is_full(table.name, table.quota_bytes, now):
                done = at
                break
            flows.append_one(table.name, commit + at, key, value, now, client_id, sequence + at, traceparent)
    machine.commit = CommitNumber(machine.commit + done)
    return done


def write_range(machine: Machine, command: c.Range, first: int, count: int) -> None:
    """Add ``count`` writes of a range, from sequence number ``first`` on, to the flows of its table, unseen."""
    commit, offset = CommitNumber(machine.commit + 1), first - command.first
    machine.commit = CommitNumber(machine.commit + count)
    author = machine.time_ms, command.client_id, first
    machine.flows.append_range(command.table, commit, count, *author, command.body, offset, command.traceparent)


def join(machine: Machine, first: int) -> None:
    """Note that all with commit number ``first`` and above took effect together: what one command does as a whole.

    A number between them names the state after the last: a transaction reads x (7), puts a (8), deletes a row that is
    not there (9). The change of a is told up to 9, and who asks for the rows at 7 or 8 gets those at 9.
    """
    changes, until = machine.changes, int(machine.commit)
    at = bisect_left(changes, first, key=_FIRST)
    if at < len(changes) and first < until:
        changes[at:] = [(commit, until, *rest) for commit, _, *rest in changes[at:]]
        # A session that ends gives back two rows, each gone at one number and there at the next, (7, 8), (9, 10).
        # All of it is one transition, (7, 10).
        del machine.joined[bisect_left(machine.joined, first, key=_FIRST) :]
        machine.joined.append((first, until))
