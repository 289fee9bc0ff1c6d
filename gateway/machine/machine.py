"""The state machine: log entries in, effects and completion records in one transition.

Owns: the order of things inside an entry, the commit number and cluster time. Joins :mod:`oncegate.rifl` (may it run?),
:mod:`oncegate.gateway.machine.tables` (what does it do?) and :mod:`oncegate.gateway.machine.flow_state` (what follows
from it?). Pure, deterministic and total: no clock, no I/O, no exception out of :meth:`Machine.apply` for anything a
client can send. Every replica runs it on the same entries and ends in the same state.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, Final, NamedTuple, assert_never, cast

from oncegate.gateway.machine import cascades, dropping, ending, levels, put_runs, transactions
from oncegate.gateway.machine import commands as c
from oncegate.gateway.machine.declarations import declare_table
from oncegate.gateway.machine.dropping import Closing, Swept
from oncegate.gateway.machine.flow_state import FlowTable, Sealed
from oncegate.gateway.machine.idempotency_keys import apply_keyed
from oncegate.gateway.machine.look_ahead import look_ahead
from oncegate.gateway.machine.results import (
    AppliedPart,
    Cascaded,
    Dropped,
    Ended,
    Operated,
    PartVerdict,
    Ranged,
    Resolved,
    SessionAnswer,
)
from oncegate.gateway.machine.row_ends import RowEnds
from oncegate.gateway.machine.tables import INTEGER_BYTES_MAX, ChangeRun, RowChange, RowStore, Table
from oncegate.rifl.completion import FINGERPRINT_BYTES, CompletionRecord, RangeRecord
from oncegate.rifl.errors import Code, InvariantViolation, OncegateError
from oncegate.rifl.ids import ClusterTimeMs, CommitNumber, SequenceNumber
from oncegate.rifl.key_records import KeyRecords
from oncegate.rifl.key_table import KEYS_CLIENT, KeySlot, KeyTable
from oncegate.rifl.range_rule import NewPart, RefusedPart, ReplayPart, decide_range, decide_range_without_session
from oncegate.rifl.resolve_rule import Fate, ResolveVerdict, resolve
from oncegate.rifl.result_tracker import ResultTracker
from oncegate.rifl.rule import (
    OpVerdict,
    Refusal,
    Rejected,
    Replayed,
    Standing,
    decide_each,
    decide_without_session,
    is_new_run,
    standing,
)
from oncegate.rifl.session import SessionRecord, SessionTable

# Looking a member up in its enum costs a tenth of what applying an operation does.
_PUT: Final = c.OpKind.PUT.value
_INCREMENT: Final = c.OpKind.INCREMENT.value
_FIRST: Final = itemgetter(0)


class Origin(NamedTuple):
    """The cluster that a restored one begins where it was: its identity, empty for none, and its last commit number."""

    identity: str = ""
    commit: int = 0


class Machine:
    """The replicated state of a cluster."""

    def __init__(
        self, new_rows: Callable[[int], RowStore] | None = None, key_records: KeyRecords | None = None
    ) -> None:
        self.new_rows = new_rows
        """Makes the rows of the table with this number; None keeps them in memory."""
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
        self.keys = KeyTable(key_records)
        self.tables: dict[str, Table] = {}
        self.tables_declared = 0
        """How many tables were ever declared: the number of the next one."""
        self.closing: dict[str, Closing] = {}
        """Dropped tables with rows that are still to be removed, in the order in which they were dropped."""
        self.swept: list[Swept] = []
        """What is to be saved of tables that are gone; not part of the replicated state."""
        self.ends = RowEnds(saved=new_rows is not None)
        """The rows that end by themselves."""
        self.ends_left = ending.ENDED_AT_ONCE_MAX
        """Rows that sessions may still take with them in this entry."""
        self.flows = FlowTable()
        self.identity = ""
        """Which cluster this is: 32 hexadecimal digits, made once at random; empty until a leader has ordered it.

        The configured name is the same after a rebuild of the cluster, this is not: a store knows by it whose it is.
        """
        self.origin = Origin()
        """What this state was restored from."""
        self.level = levels.FIRST
        """Feature level of the cluster (:mod:`oncegate.gateway.machine.levels`); never falls."""
        self.changes: list[RowChange | ChangeRun] = []
        """How the newest entry has changed resident rows, in commit order; emptied before the next one."""
        self.joined: list[tuple[int, int]] = []
        """First and last commit number of each transition of several that has changed rows, ascending and disjoint;
        emptied likewise."""
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
        self.ends_left = ending.ENDED_AT_ONCE_MAX
        self.changes.clear()
        if self.joined:
            self.joined.clear()
        if self.new_rows is not None:
            look_ahead(entry.commands, self.tables, self.keys)
        try:
            return [self._one(command) for command in entry.commands]
        except InvariantViolation as broken:
            raise InvariantViolation(f"log entry {index} (term {term}): {broken}") from broken

    def take_sealed(self) -> list[Sealed]:
        """Hand over the batches sealed since the last call; their files are the caller's business."""
        return self.flows.take_sealed()

    def join_changes(self, first: int) -> None:
        """Note that all with commit number ``first`` and above took effect together: what one command does as a whole.

        A number between them names the state after the last: a transaction reads x (7), puts a (8), deletes a row
        that is not there (9). The change of a is told up to 9, and who asks for the rows at 7 or 8 gets those at 9.
        """
        changes, until = self.changes, int(self.commit)
        at = bisect_left(changes, first, key=_FIRST)
        if at < len(changes) and first < until:
            changes[at:] = [(commit, until, *rest) for commit, _, *rest in changes[at:]]
            # A session that ends gives back two rows, each gone at one number and there at the next, (7, 8), (9, 10).
            # All of it is one transition, (7, 10).
            del self.joined[bisect_left(self.joined, first, key=_FIRST) :]
            self.joined.append((first, until))

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
            verdicts, memory_ms = apply_keyed(self, command)
            return Operated(verdicts, memory_ms, keyed=True)
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
        verdicts, accepted = self._decide(command, tracker, standing(session, command.epoch, now))
        self.replayed += sum([type(verdict) is Replayed for verdict in verdicts])
        if accepted:
            self._touch(session, tracker, first_incomplete)
        return Operated(verdicts, session.left_ms(now))

    def _decide(
        self, command: c.Operate, tracker: ResultTracker, stand: Standing
    ) -> tuple[Sequence[OpVerdict | AppliedPart], int]:
        """Decide and execute operations; those of a run that is new at once, as one by one it would be done."""
        who, acked, trace = command.client_id, command.first_incomplete, command.traceparent
        if command.in_order:
            return decide_each(tracker, command.ops, acked, stand, self.execute, who, trace, in_order=True)
        verdicts: list[OpVerdict | AppliedPart] = []
        accepted = 0
        for kind, parts in groupby(command.parts, type):
            if kind is not c.Puts:
                ops = cast("list[c.Op | c.Transaction]", [*parts])
                told, more = decide_each(tracker, ops, acked, stand, self.execute, who, trace)
                verdicts += told
                accepted += more
                continue
            for part in cast("Iterator[c.Puts]", parts):
                done = 0
                if is_new_run(tracker, part.first, len(part.keys), acked, stand):
                    commit, done = put_runs.execute(self, who, tracker, part, trace)
                    if done:
                        verdicts.append(AppliedPart(part.first, SequenceNumber(part.first + done - 1), commit))
                        accepted += done
                if done < len(part.keys):
                    told, more = decide_each(tracker, part.ops[done:], acked, stand, self.execute, who, trace)
                    verdicts += told
                    accepted += more
        return verdicts, accepted

    def execute(
        self, client_id: int, tracker: ResultTracker | KeySlot, op: c.Op | c.Transaction, traceparent: str
    ) -> CompletionRecord | Code:
        """Run a new operation or transaction: effects, record and flow items are one transition. A code means nothing
        happened.
        """
        if isinstance(op, c.Transaction):
            return transactions.execute(self, client_id, tracker, op, traceparent)
        table = self.tables.get(op.table)
        if table is None:
            return Code.NOT_FOUND
        life = None
        if op.options is not None:
            life = ending.life_of(op, client_id, self.time_ms)
            if life is not None and (code := table.check_life(op, life)) is not None:
                return code
        flows = self.flows
        commit: CommitNumber = self.commit + 1  # type: ignore[assignment]  # the hot path spares a call
        if op.kind == _PUT and not op.test and life is None and table.kind == "resident":
            text = op.value or b"null"
            if not table.put(op.key, text, commit):
                return Code.QUOTA
            self.commit = commit
            if flows.is_tapped(op.table):
                flows.append_one(op.table, commit, op.key, text, self.time_ms, client_id, op.sequence, traceparent)
            return tracker.record(op.sequence, op.fingerprint, commit, None, traceparent)
        if op.kind == _INCREMENT and table.kind == "resident":  # as check says it
            if table.bytes + len(op.key) + INTEGER_BYTES_MAX > table.quota_bytes:
                return Code.QUOTA
        elif (code := table.check(op)) is not None:
            return code
        if table.kind == "stream":
            if flows.is_full(op.table, table.quota_bytes, self.time_ms):
                return Code.QUOTA
            self.commit = commit
            flows.append_one(op.table, commit, op.key, op.value, self.time_ms, client_id, op.sequence, traceparent)
            return tracker.record(op.sequence, op.fingerprint, commit, None, traceparent)
        self.commit = commit
        result = table.execute(op, commit, life)
        record = tracker.record(op.sequence, op.fingerprint, commit, result, traceparent)
        if flows.is_tapped(op.table) and (result is None or result.refusal is None) and op.kind != c.OpKind.GET:
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

    def cascade(self, command: c.Cascade) -> Cascaded:
        """Write a part of what a consumer derives; raises as :func:`oncegate.gateway.machine.cascades.apply_part`."""
        done = cascades.apply_part(self, command)
        self.replayed += done.replayed
        return done

    def end_due(self, rows: dict[str, list[str]]) -> list[Ended]:
        """End those of the rows, keys by table, whose time is over."""
        return ending.end_due(self, rows)

    def may_end(self, client_id: int) -> bool:
        """Tell whether this entry has room for the rows that end with a session."""
        return ending.takes_rows(self, client_id)

    def sessions_gone(self, client_ids: Iterable[int]) -> list[Ended]:
        """Forget the records of sessions, each dropped as it is named, and end the rows that are bound to them.

        That is one transition: at no commit number is there a row whose session is gone.
        """
        first, ended = self.commit + 1, list[Ended]()
        for client_id in client_ids:
            del self.trackers[client_id]
            ended += ending.end_bound(self, client_id)
        self.join_changes(first)
        return ended

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
        return declare_table(self, command)

    def drop_table(self, name: str, incarnation: int, *, force: bool) -> Dropped:
        """Drop a table; raises as :func:`oncegate.gateway.machine.dropping.drop`."""
        return dropping.drop(self, name, incarnation, force=force)

    def sweep_tables(self) -> int:
        """Remove some rows of dropped tables; returns how many."""
        return dropping.sweep(self)

    def every_table(self) -> list[Table]:
        """Return all tables, then the dropped ones that still have rows."""
        return [*self.tables.values(), *(closing.table for closing in self.closing.values())]

    def table_of(self, name: str) -> Table:
        """Return a table, also a dropped one that still has rows."""
        return self.tables[name] if name in self.tables else self.closing[name].table

    def raise_level(self, level: int) -> int:
        """Raise the feature level, and return the one in force.

        Raises:
            InvariantViolation: this build does not know the level; it must not go on in this cluster.
        """
        if level > levels.NEWEST:
            newer = "start this node with the build of the others"
            raise InvariantViolation(f"feature level {level}, this build knows {levels.NEWEST}: {newer}")
        self.level = max(self.level, level)
        return self.level

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
