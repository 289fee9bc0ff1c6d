"""The state machine: log entries in, effects and completion records in one transition.

Owns: the order of things inside an entry, the commit number and cluster time. Joins :mod:`oncegate.rifl` (may it run?),
:mod:`oncegate.gateway.machine.tables` (what does it do?) and :mod:`oncegate.gateway.machine.flow_state` (what follows
from it?). Pure, deterministic and total: no clock, no I/O, no exception out of :meth:`Machine.apply` for anything a
client can send. Every replica runs it on the same entries and ends in the same state.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, assert_never

from oncegate.gateway.machine import commands as c
from oncegate.gateway.machine.declarations import declare_table
from oncegate.gateway.machine.flow_state import FlowTable, Sealed
from oncegate.gateway.machine.idempotency_keys import apply_keyed
from oncegate.gateway.machine.results import AppliedPart, Operated, PartVerdict, Ranged, Resolved, SessionAnswer
from oncegate.gateway.machine.tables import RowStore, Table
from oncegate.rifl.completion import FINGERPRINT_BYTES, CompletionRecord, RangeRecord
from oncegate.rifl.errors import Code, InvariantViolation, OncegateError
from oncegate.rifl.ids import ClusterTimeMs, CommitNumber, SequenceNumber
from oncegate.rifl.key_table import KEYS_CLIENT, KeySlot, KeyTable
from oncegate.rifl.range_rule import NewPart, RefusedPart, ReplayPart, decide_range, decide_range_without_session
from oncegate.rifl.resolve_rule import Fate, ResolveVerdict, resolve
from oncegate.rifl.result_tracker import ResultTracker
from oncegate.rifl.rule import Refusal, Rejected, Standing, decide_each, decide_without_session, standing
from oncegate.rifl.session import SessionRecord, SessionTable


class Machine:
    """The replicated state of a cluster."""

    def __init__(self, new_rows: Callable[[int], RowStore] | None = None) -> None:
        self.new_rows = new_rows
        """Makes the rows of the table with this number, from 0 in order of declaration; None keeps them in memory."""
        self.touched: set[int] = set()
        """Sessions that may have changed, with their records, since whoever saves the state emptied this set."""
        self.before_change: Callable[[int], None] | None = None
        """Called before the first change of a session that is not in :attr:`touched`: the last look at it as it was."""
        self.commit = CommitNumber(0)
        """Commit number of the last applied operation."""
        self.time_ms = ClusterTimeMs(0)
        """Cluster time: that of the newest entry; never goes back."""
        self.sessions = SessionTable()
        self.trackers: dict[int, ResultTracker] = {}
        self.keys = KeyTable()
        self.tables: dict[str, Table] = {}
        self.flows = FlowTable()
        self.identity = ""
        """Which cluster this is: 32 hexadecimal digits, made once at random; empty until a leader has ordered it.

        The configured name is the same after a rebuild of the cluster, this is not: a store knows by it whose it is.
        """
        self.replayed = 0
        """Operations that were answered from their completion record."""

    def apply(self, index: int, term: int, data: bytes) -> list[Any]:
        """Apply one log entry.

        Returns:
            One result per command: one of :mod:`oncegate.gateway.machine.results`, or the OncegateError that refuses
            it.

        Raises:
            InvariantViolation: the state contradicts itself; the text names the entry. The node stops.
        """
        entry = c.decode_entry(data)
        if entry.time_ms > self.time_ms:
            self.time_ms = entry.time_ms
        if self.new_rows is not None:
            self._look_ahead(entry.commands)
        try:
            return [self._one(command) for command in entry.commands]
        except InvariantViolation as broken:
            raise InvariantViolation(f"log entry {index} (term {term}): {broken}") from broken

    def _look_ahead(self, commands: list[c.Command]) -> None:
        keys: dict[str, list[str]] = {}
        for command in commands:
            if type(command) is c.Operate:
                for op in command.ops:
                    if op.table in keys:
                        keys[op.table].append(op.key)
                    else:
                        keys[op.table] = [op.key]
        for name, wanted in keys.items():
            table = self.tables.get(name)
            if table is not None and table.kind == "resident" and len(wanted) > 1:
                table.rows.look_ahead(wanted)

    def take_sealed(self) -> list[Sealed]:
        """Hand over the batches sealed since the last call; their files are the caller's business."""
        return self.flows.take_sealed()

    def adopt(self, other: Machine) -> None:
        """Become ``other``, which is not used any more: everyone who holds this machine sees the new state."""
        self.__dict__.update(other.__dict__)

    def touch_first(self, client_id: int) -> None:
        """Announce that a session may change; those on the hot path look into :attr:`touched` before they call this."""
        if client_id in self.touched or self.sessions.get(client_id) is None:
            return
        self.touched.add(client_id)
        if self.before_change is not None:
            self.before_change(client_id)

    def _one(self, command: c.Command) -> Any:
        if isinstance(command, c.Operate):
            return self._operate(command)
        if isinstance(command, c.Range):
            return self._range(command)
        if isinstance(command, c.Keyed):
            return Operated(*apply_keyed(self, command), keyed=True)
        return self._control(command)

    def _operate(self, command: c.Operate) -> Operated:
        first_incomplete = command.first_incomplete
        session = self.sessions.get(command.client_id)
        if session is None:
            return Operated(
                [Rejected(op.sequence, decide_without_session(op.sequence, first_incomplete)) for op in command.ops], 0
            )
        if session.tenant != command.tenant:  # case 3: neither executed nor answered from another's record
            return Operated([Rejected(op.sequence, Refusal.FORBIDDEN) for op in command.ops], 0)
        if command.client_id not in self.touched:
            self.touch_first(command.client_id)
        now = self.time_ms
        tracker = self.trackers[command.client_id]
        stand = standing(session, command.epoch, now)
        before = self.commit
        verdicts, accepted = decide_each(
            tracker, command.ops, first_incomplete, stand, self.execute, command.client_id, command.traceparent
        )
        if accepted:
            self._touch(session, tracker, first_incomplete)
            self.replayed += accepted - (self.commit - before)
        return Operated(verdicts, session.left_ms(now))

    def execute(
        self, client_id: int, tracker: ResultTracker | KeySlot, op: c.Op, traceparent: str
    ) -> CompletionRecord | Code:
        """Run a new operation: effect, record and flow item are one transition. A code means nothing happened."""
        table = self.tables.get(op.table)
        if table is None:
            return Code.NOT_FOUND
        code = table.check(op)
        if code is not None:
            return code
        flows = self.flows
        if table.kind == "stream":
            if flows.is_full(op.table, table.quota_bytes, self.time_ms):
                return Code.QUOTA
            commit: CommitNumber = self.commit + 1  # type: ignore[assignment]  # the hot path spares a call
            self.commit = commit
            flows.append_one(op.table, commit, op.key, op.value, self.time_ms, client_id, op.sequence, traceparent)
            return tracker.record(op.sequence, op.fingerprint, commit, None, traceparent)
        commit = self.commit + 1  # type: ignore[assignment]  # the hot path spares a call
        self.commit = commit
        result = table.execute(op, commit)
        record = tracker.record(op.sequence, op.fingerprint, commit, result, traceparent)
        if (result is None or result.refusal is None) and flows.is_tapped(op.table) and op.kind != c.OpKind.GET:
            row = table.rows.get(op.key)
            value = None if row is None else row.value
            flows.append_one(op.table, commit, op.key, value, self.time_ms, client_id, op.sequence, traceparent)
        return record

    def _range(self, command: c.Range) -> Ranged:
        first, prints = command.first, command.fingerprints
        last = first + len(prints) // FINGERPRINT_BYTES - 1
        session = self.sessions.get(command.client_id)
        if session is None:
            return Ranged([*decide_range_without_session(first, last, command.first_incomplete)], 0)
        if session.tenant != command.tenant:
            return Ranged([RefusedPart(first, SequenceNumber(last), Refusal.FORBIDDEN)], 0)
        if command.client_id not in self.touched:
            self.touch_first(command.client_id)
        table = self.tables.get(command.table)
        tracker = self.trackers[command.client_id]
        stand = standing(session, command.epoch, self.time_ms)
        parts: list[PartVerdict] = []
        for part in decide_range(tracker, first, prints, command.first_incomplete, stand):
            match part:
                case NewPart():
                    # A refusal of the part, not of the range: what is a replay beside it was applied.
                    refusal = self._refusal_of(table)
                    parts.append(
                        self._execute_part(command, tracker, part)
                        if refusal is None
                        else RefusedPart(part.first, part.last, refusal)
                    )
                case ReplayPart():
                    self.replayed += part.last - part.first + 1
                    parts.append(part)
                case RefusedPart():
                    parts.append(part)
                case _:
                    assert_never(part)
        touched = not all(isinstance(part, RefusedPart) for part in parts)
        if touched:
            self._touch(session, tracker, command.first_incomplete)
        return Ranged(parts, session.left_ms(self.time_ms))

    def _refusal_of(self, table: Table | None) -> Refusal | None:
        """Say why a table takes no range now, or None."""
        if table is None:
            return Refusal.NOT_FOUND
        if table.kind != "stream":
            return Refusal.BAD_REQUEST
        return Refusal.QUOTA if self.flows.is_full(table.name, table.quota_bytes, self.time_ms) else None

    def _execute_part(self, command: c.Range, tracker: ResultTracker, part: NewPart) -> AppliedPart:
        count = part.last - part.first + 1
        offset = part.first - command.first
        commit = CommitNumber(self.commit + 1)
        self.commit = CommitNumber(self.commit + count)
        low = offset * FINGERPRINT_BYTES
        prints = command.fingerprints[low : low + count * FINGERPRINT_BYTES]
        tracker.record_range(RangeRecord(part.first, part.last, commit, prints, command.traceparent))
        self.flows.append_range(
            command.table,
            commit,
            count,
            self.time_ms,
            command.client_id,
            part.first,
            command.body,
            offset,
            command.traceparent,
        )
        return AppliedPart(part.first, part.last, commit)

    def resolve_request(self, command: c.Resolve) -> Resolved:
        """Say what became of an operation, and seal one never executed; raises NOT_FOUND, FORBIDDEN or FENCED."""
        client_id = command.client_id
        if client_id == KEYS_CLIENT:
            found = self.keys.look_up(command.sequence, command.tenant)
            if found.fate is Fate.NEVER_SEEN:
                raise OncegateError(Code.NOT_FOUND, "no key was ever mapped to this id")
            return Resolved(found, None)
        session = self.sessions.get(client_id)
        if session is None:
            if client_id >= self.sessions.next_id:
                raise OncegateError(Code.NOT_FOUND, "no session was ever opened under this id")
            return Resolved(ResolveVerdict(Fate.EXPIRED), None)
        self.check_tenant(client_id, command.tenant)
        self.touch_first(client_id)
        owned = command.epoch > 0
        if owned and standing(session, command.epoch, self.time_ms) is Standing.FENCED:
            raise OncegateError(Code.FENCED, self.fenced_by(client_id, command.epoch))
        tracker = self.trackers[client_id]
        resolution = resolve(tracker, command.sequence, command.first_incomplete if owned else SequenceNumber(1))
        if owned:
            self._touch(session, tracker, command.first_incomplete)
        return Resolved(resolution, session.left_ms(self.time_ms))

    def _touch(self, session: SessionRecord, tracker: ResultTracker, first_incomplete: SequenceNumber) -> None:
        """Process the ack and renew the lease: every operation of a live session does both."""
        tracker.acknowledge(first_incomplete)
        if session.ends_ms >= self.time_ms:
            session.renew(self.time_ms)

    def _control(self, command: c.Control) -> Any:
        try:
            return command.apply(self)
        except OncegateError as refusal:
            return refusal

    def declare_table(self, command: c.DeclareTable) -> Table:
        """Declare a table, with rows of this machine's kind; raises as :func:`declare_table`."""
        return declare_table(command, self.tables, self.flows, self.new_rows, self.time_ms)

    def fenced_by(self, client_id: int, epoch: int) -> str:
        """Say why a request of this epoch is FENCED: epochs only rise, so a higher one was never anybody's."""
        session = self.sessions.get(client_id)
        if session is None:
            return ""
        if epoch < session.epoch:
            return f"epoch {epoch} was fenced by {session.epoch}"
        return f"epoch {epoch} was never given out, the session's is {session.epoch}"

    def check_tenant(self, client_id: int, tenant: str) -> None:
        """Raise FORBIDDEN if the session is another tenant's."""
        session = self.sessions.get(client_id)
        if session is not None and session.tenant != tenant:
            raise OncegateError(Code.FORBIDDEN, "the session is another tenant's")

    def about(self, session: SessionRecord, *, existed: bool) -> SessionAnswer:
        """Describe a session; ``existed``: it was there before the command."""
        tracker = self.trackers[session.client_id]
        return SessionAnswer(
            session.client_id,
            session.epoch,
            session.lease_ms,
            session.window,
            session.left_ms(self.time_ms),
            existed,
            tracker.first_incomplete,
            tracker.highest,
        )
