"""Where two machines that should be equal differ first.

Owns: the walk through two states in the order of :func:`oncegate.gateway.machine.state.digest.state_digest`, with a
name for each part.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import zip_longest
from typing import Any, NamedTuple

from oncegate.flows.chunks import RangeChunk, SealedChunk
from oncegate.gateway.machine.flow_state import Flow
from oncegate.gateway.machine.machine import Machine
from oncegate.gateway.machine.tables import Table


class Unequal(NamedTuple):
    """A part of the state and its two values."""

    what: str
    left: object
    right: object


ABSENT = "nothing"


def first_unequal(left: Machine, right: Machine) -> Unequal | None:
    """Return where two states differ first, None if they are equal."""
    return next(_unequal(left, right), None)


def _unequal(left: Machine, right: Machine) -> Iterator[Unequal]:
    for name in ("commit", "time_ms", "replayed"):
        yield from _same(name, getattr(left, name), getattr(right, name))
    yield from _same("next client id", left.sessions.next_id, right.sessions.next_id)
    yield from _same("tables", list(left.tables), list(right.tables))
    for name, table in left.tables.items():
        yield from _tables(name, table, right.tables[name])
    yield from _keyed("session", _sessions(left), _sessions(right))
    for name in ("first", "next", "forgotten_ms", "bytes"):
        yield from _same(f"idempotency keys, {name}", getattr(left.keys, name), getattr(right.keys, name))
    yield from _keyed(
        "idempotency key", ((used.number, used) for used in left.keys), ((used.number, used) for used in right.keys)
    )
    yield from _same("flows", left.flows.names(), right.flows.names())
    for one, other in zip(left.flows.all(), right.flows.all(), strict=True):
        yield from _flows(one, other)


def _tables(name: str, left: Table, right: Table) -> Iterator[Unequal]:
    yield from _same(f"table {name}, kind", left.kind, right.kind)
    yield from _same(f"table {name}, quota_bytes", left.quota_bytes, right.quota_bytes)
    yield from _keyed(f"row {name}/", left.rows.items(), right.rows.items(), joined="")
    yield from _same(f"table {name}, bytes", left.bytes, right.bytes)
    yield from _same(f"table {name}, number of rows", len(left.rows), len(right.rows))


def _sessions(machine: Machine) -> Iterator[tuple[int, Any]]:
    for session in sorted(machine.sessions, key=lambda session: session.client_id):
        yield session.client_id, (session, machine.trackers[session.client_id].dump())


def _flows(left: Flow, right: Flow) -> Iterator[Unequal]:
    name = left.declaration.name
    yield from _same(f"flow {name}, declaration", left.declaration, right.declaration)
    yield from _same(f"flow {name}, consumers", left.consumers.snapshot(), right.consumers.snapshot())
    yield from _same(f"flow {name}, first batch", left.batches.first, right.batches.first)
    yield from _same(f"flow {name}, newest batch", left.batches.last, right.batches.last)
    for number in range(left.batches.first, left.batches.last + 1):
        yield from _same(f"batch {number} of {name}", left.batches.get(number), right.batches.get(number))
    yield from _same(f"flow {name}, retained_bytes", left.retained_bytes, right.retained_bytes)
    yield from _keyed(f"open item of {name}, commit", open_items(left), open_items(right))
    yield from _same(f"flow {name}, open bytes", left.segment.size_bytes, right.segment.size_bytes)


def open_items(flow: Flow) -> Iterator[tuple[int, Any]]:
    """Yield (first commit number, content) of what no batch holds yet: an item, or a range as one."""
    segment = flow.segment
    run = segment.run_view()
    chunks: Iterable[SealedChunk] = (*segment.closed_chunks, run.chunk(0, run.items))
    for chunk in chunks:
        if isinstance(chunk, RangeChunk):
            yield chunk.first_commit, chunk
            continue
        for row, key in enumerate(chunk.keys):
            numbers = (column[8 * row : 8 * row + 8] for column in (chunk.commits, chunk.client_ids, chunk.sequences))
            commit, client_id, sequence = (int.from_bytes(number, "little", signed=True) for number in numbers)
            yield commit, (key, chunk.values[row], client_id, sequence)


def _same(what: str, left: object, right: object) -> Iterator[Unequal]:
    if left != right:
        yield Unequal(what, left, right)


def _keyed(
    what: str, left: Iterable[tuple[Any, Any]], right: Iterable[tuple[Any, Any]], *, joined: str = " "
) -> Iterator[Unequal]:
    """Compare two sequences of (key, value) in ascending key order."""
    for one, other in zip_longest(left, right):
        if one == other:
            continue
        if one is None or (other is not None and other[0] < one[0]):
            yield Unequal(f"{what}{joined}{other[0]}", ABSENT, other[1])
        elif other is None or one[0] < other[0]:
            yield Unequal(f"{what}{joined}{one[0]}", one[1], ABSENT)
        else:
            yield Unequal(f"{what}{joined}{one[0]}", one[1], other[1])
