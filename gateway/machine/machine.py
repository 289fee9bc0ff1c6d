"""The state machine's state: what every replica of a cluster holds, equal on all of them.

Owns: the parts of the state and what is asked of several of them at once. What changes it, a command of a log entry, is
applied by :mod:`oncegate.gateway.machine.apply`. Joins :mod:`oncegate.rifl` (may it run?),
:mod:`oncegate.gateway.machine.tables` (what is there?) and :mod:`oncegate.gateway.machine.flow_state` (what follows
from it?). Pure: no clock, no I/O but that of the rows' store.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from oncegate.gateway.machine import levels, row_ends
from oncegate.gateway.machine.flow_state import FlowTable
from oncegate.gateway.machine.row_ends import RowEnds
from oncegate.gateway.machine.rows import ChangeRun, RowChange, RowStore
from oncegate.gateway.machine.tables import Closing, Swept, Table
from oncegate.rifl.errors import Code, OncegateError
from oncegate.rifl.ids import ClusterTimeMs, CommitNumber, SequenceNumber
from oncegate.rifl.key_records import KeyRecords
from oncegate.rifl.key_table import KeyTable
from oncegate.rifl.result_tracker import ResultTracker
from oncegate.rifl.session import SessionRecord, SessionTable


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
        self.ends_left = row_ends.ENDED_AT_ONCE_MAX
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

    def begin(self, time_ms: ClusterTimeMs) -> None:
        """Begin an entry: cluster time goes on, and what the entry before has changed is told."""
        if time_ms > self.time_ms:
            self.time_ms = time_ms
        self.ends_left = row_ends.ENDED_AT_ONCE_MAX
        self.changes.clear()
        self.joined.clear()

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

    def acknowledge(self, session: SessionRecord, tracker: ResultTracker, first_incomplete: SequenceNumber) -> None:
        """Process an ack and renew the lease: every operation of a live session does both."""
        tracker.acknowledge(first_incomplete)
        if session.ends_ms >= self.time_ms:
            session.renew(self.time_ms)

    def every_table(self) -> list[Table]:
        """Return all tables, then the dropped ones that still have rows."""
        return [*self.tables.values(), *(closing.table for closing in self.closing.values())]

    def table_of(self, name: str) -> Table:
        """Return a table, also a dropped one that still has rows."""
        return self.tables[name] if name in self.tables else self.closing[name].table

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
