"""One hash of the whole replicated state: equal on all nodes that applied the same log, also after a snapshot.

Owns: what belongs to the state and in which order it is hashed. It streams rows, sessions and chunks, so its memory
does not grow with their number. Slow (microseconds a row): for tests and offline checks.
"""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from oncegate.gateway.machine.machine import Machine

_encode = msgspec.msgpack.Encoder(order="deterministic").encode


def state_digest(machine: Machine) -> str:
    """Return the SHA-256 of a machine's state, hexadecimal. Nothing may be applied meanwhile."""
    digest = hashlib.sha256()

    def add(what: str, *values: Any) -> None:
        digest.update(_encode((what, values)))

    add("meta", machine.commit, machine.time_ms, machine.replayed, machine.sessions.next_id, machine.identity)
    add("level", machine.level)
    add("origin", machine.origin)
    add("tables", machine.tables_declared, [(name, closing.swept) for name, closing in machine.closing.items()])
    for table in machine.every_table():
        add("table", table.name, table.number, table.since, table.kind, table.quota_bytes, table.bytes, len(table.rows))
        for key, row in table.rows.items():
            add("row", key, row)
        add("ending", table.ending)
    for session in sorted(machine.sessions, key=lambda session: session.client_id):
        tracker = machine.trackers[session.client_id]
        add("session", session, tracker.bytes, *tracker.dump())
    add("closed", [*machine.sessions.closed.items()])
    add("ends", sorted(machine.ends.places()))
    keys = machine.keys
    add("keys", keys.first, keys.next, keys.forgotten_ms, keys.bytes, keys.buckets)
    for used in keys:
        add("key", used)
    add("retired", machine.flows.retired.snapshot())
    for flow in machine.flows.all():
        add("flow", flow.declaration, flow.retained_bytes, flow.consumers.snapshot(), flow.batches.snapshot())
        add("versions", flow.version, flow.altered_ms, flow.consumers.fences)
        add("shed", flow.shed_level, flow.shed_items)
        segment = flow.segment
        add("open", segment.last_commit, segment.size_bytes, segment.items)
        for chunk in segment.closed_chunks:
            add("chunk", chunk)
        run = segment.run_view()
        add("run", run.chunk(0, run.items))
    return digest.hexdigest()
