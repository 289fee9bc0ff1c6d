"""What the nodes of a fake gateway share: a real machine, whose log is applied entry by entry as commands arrive.

Owns: cluster time, which only a test moves, the order of entries, and the account of what was executed. Everything that
decides is the machine's. Must not know HTTP: that is :mod:`oncegate.gateway.testing.nodes`.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, MutableSequence, Sequence
from functools import partial
from typing import Any, Final, NoReturn, cast

import msgspec

from oncegate.consensus.replica.replica import Replica
from oncegate.flows import range_body, segment
from oncegate.flows.chunks import SealedBatch
from oncegate.flows.errors import NotFoundError
from oncegate.flows.event_clock import newest_ms
from oncegate.flows.publisher import Publisher
from oncegate.gateway import wire
from oncegate.gateway.answer_values import built
from oncegate.gateway.answers import Answer, answer
from oncegate.gateway.explain.memory import AttemptLog
from oncegate.gateway.machine import commands as c
from oncegate.gateway.machine.apply import apply
from oncegate.gateway.machine.effects import NO_SESSION
from oncegate.gateway.machine.flow_handlers import overdue_consumers
from oncegate.gateway.machine.machine import Machine
from oncegate.gateway.machine.ordering import in_columns
from oncegate.gateway.machine.tables import QUOTA_BYTES_DEFAULT, TableKind
from oncegate.gateway.node.attempts import Attempt, Waiter, hand_on
from oncegate.gateway.node.change_history import ChangeHistory
from oncegate.gateway.node.reads import Reads
from oncegate.gateway.node.row_turns import RowTurns
from oncegate.gateway.node.watching import WatchersMax, Watching
from oncegate.rifl.errors import Code, OncegateError
from oncegate.rifl.key_table import KEYS_CLIENT

HISTORY_CHANGES_MAX: Final = 10_000
HISTORY_BYTES_MAX: Final = 16 * 2**20
WATCHERS_MAX: Final = WatchersMax(1_000, 1_000)


class Applied(msgspec.Struct, frozen=True):
    """One execution, in the order in which it happened: what a test counts.

    ``value`` is what the operation carried: of a put the value, of an append the item, of any other None.
    """

    client_id: int
    sequence: int
    op: str
    table: str
    key: str
    value: Any
    commit: int


class SharedState:
    """State of a cluster without consensus: an entry is decided when it is submitted.

    Attributes:
        machine: the state machine, to be looked at; change it through commands.
        executed: every execution in order; a write that a bug applied twice stands there twice.
        time_ms: cluster time; it stands still unless :meth:`advance` moves it.
        reads: how all nodes read.
        watching: the changes of rows, and who watches them.
        turns: who waits for rows to come.
    """

    def __init__(self) -> None:
        self.machine = Machine()
        self.executed: MutableSequence[Applied] = []
        self.time_ms = 0
        self._entries = 0
        self._attempts = AttemptLog()
        self._batches = _Batches()
        self.watching = Watching(ChangeHistory(HISTORY_CHANGES_MAX, HISTORY_BYTES_MAX), WATCHERS_MAX)
        log, turns = cast(Replica, _Log()), self.watching.turns
        self.reads = Reads(log, self.machine, cast(Publisher, self._batches), _no_peer, turns=turns)
        self.row_turns = RowTurns(self.machine, leads=True)
        self.apply(c.Identify(secrets.token_hex(16)))

    @property
    def commit(self) -> int:
        """The newest commit number."""
        return self.machine.commit

    def apply(self, command: c.Command) -> Answer:
        """Apply a command as an entry of its own, encoded as it stands in a log.

        Raises:
            OncegateError: the command is refused as a whole.
        """
        self._entries += 1
        machine, tables = self.machine, len(self.machine.tables)
        (result,) = apply(machine, self._entries, 1, c.encode_entry(self.time_ms, [in_columns(command)]))
        for batch in machine.flows.take_sealed():
            self._batches.keep(batch)
            self.reads.sealed(batch.flow)
        for flow, number in machine.flows.take_dropped():
            self._batches.drop_through(flow, number)
        self.reads.applied(machine.commit)
        self.watching.history.record(machine.changes, machine.commit, machine.joined)
        self.watching.tell(machine.changes)
        self.row_turns.applied(machine.changes)
        if len(machine.tables) < tables:
            self.watching.dropped(machine.tables)
            while machine.closing:  # at once: a test has to wait for nothing
                self.apply(c.SweepTables())
        made = answer(command, result, machine)
        self._note(command, made.body)
        return made

    def submit(self, command: c.Command, size: int = 0) -> asyncio.Future[Answer]:
        """Apply a command; a future as :meth:`oncegate.gateway.node.node.Node.submit` returns it."""
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        try:
            future.set_result(self.apply(command))
        except OncegateError as refusal:
            future.set_exception(refusal)
        return future

    def attempt(
        self, command: c.AnyOperate | c.Range, size: int, waiter: Waiter, then: Callable[[], None] | None = None
    ) -> None:
        """Apply operations; who waits is told later, as by :meth:`oncegate.gateway.node.node.Node.attempt`."""
        attempt = Attempt(command, size, waiter, self._attempts, then)
        self.submit(command, size).add_done_callback(partial(hand_on, attempt))

    def declare(self, table: str, kind: TableKind = "resident") -> None:
        """Declare a table with the default quota."""
        self.apply(c.DeclareTable(table, kind, QUOTA_BYTES_DEFAULT))

    async def value(self, table: str, key: str) -> Any:
        """Return a row's value; raises NOT_FOUND without one."""
        return built((await self.reads.row(table, key)).value)

    def advance(self, seconds: float) -> None:
        """Move cluster time on, and do what is due then: end leases and rows, seal batches, forget idempotency keys,
        expire consumers.
        """
        self.time_ms += round(seconds * 1000)
        while due := self._due():
            for command in due:
                self.apply(command)

    def expire(self, client_id: int) -> None:
        """End a session as the end of its lease does: session, records and the rows bound to it are gone."""
        session = self.machine.sessions.get(client_id)
        if session is None:
            raise OncegateError(Code.NOT_FOUND, "no such session")
        self.apply(c.CloseSession(client_id, session.epoch))

    def _due(self) -> list[c.Command]:
        """Return what a leader proposes on its own behalf by now."""
        machine = self.machine
        due: list[c.Command] = [c.Seal(flow, number) for flow, number in machine.flows.due(self.time_ms)]
        if expired := machine.sessions.expired(self.time_ms, limit=c.REAP_MAX):
            due.append(c.Reap(expired))
        if machine.keys.due(self.time_ms):
            due.append(c.ForgetKeys())
        if rows := machine.ends.due(self.time_ms, c.END_MAX):
            due.append(c.EndRows(rows))
        for flow in machine.flows.all():
            name, field, first = flow.declaration.name, flow.declaration.event_time, flow.batches.clocked_through + 1
            if field and first <= flow.batches.last:
                due.append(c.ClockBatches(name, field, first, [newest_ms(self._batches.get(name, first), field)]))
        overdue = [flow for flow in machine.flows.all() if overdue_consumers(machine, flow, self.time_ms)]
        due += [c.ExpireConsumers(flow.declaration.name) for flow in overdue]
        return due

    def _note(self, command: c.Command, body: Any) -> None:
        match command, body:
            case c.Operate(), wire.OperationsResponse():
                self._note_operations(command.client_id, command.ops, body.results)
            case c.Keyed(), wire.OperationsResponse():
                self._note_operations(KEYS_CLIENT, c.operations_of(command), body.results)
            case c.Range(), wire.RangeResponse():
                self._note_range(command, body.results)
            case c.Cascade(), wire.CascadeWritten(commit=last, replayed=False):
                for commit, op in enumerate(command.ops, last - len(command.ops) + 1):
                    value = None if op.value is None else msgspec.json.decode(op.value)
                    name = c.OpKind(op.kind).name.lower()
                    self.executed.append(Applied(NO_SESSION, commit, name, op.table, op.key, value, commit))

    def _note_operations(
        self, client_id: int, ops: Sequence[c.Op | c.Transaction], results: list[wire.OperationResult]
    ) -> None:
        for op, result in zip(ops, results, strict=True):
            if result.status != "applied" or result.replayed:
                continue
            first = result.writes[0].commit if result.writes else result.commit
            for commit, write in enumerate(c.writes_of([op]), cast(int, first)):
                if write.kind not in (c.OpKind.GET, c.OpKind.TAKE):
                    name = c.OpKind(write.kind).name.lower()
                    value = None if write.value is None else msgspec.json.decode(write.value)
                    made = (name, write.table, write.key, value, commit)
                    self.executed.append(Applied(client_id, result.sequence, *made))

    def _note_range(self, command: c.Range, results: list[wire.RangeResult]) -> None:
        for part in results:
            if part.status != "applied" or part.replayed:
                continue
            rows = range_body.decode(command.body, part.first - command.first, part.last - part.first + 1)
            for at, (key, value) in enumerate(zip(*(column.to_pylist() for column in rows), strict=True)):
                made = (part.first + at, "put", command.table, key, msgspec.json.decode(value))
                self.executed.append(Applied(command.client_id, *made, cast(int, part.commit) + at))


class _Log:
    """The log as a read sees it: what is decided is applied."""

    async def read_index(self, *, timeout_s: float) -> int:
        return 0

    async def wait_applied(self, index: int, *, timeout_s: float) -> None:
        return None

    def age_s(self) -> float:
        return 0.0


class _Batches:
    """Sealed batches in memory, where a node has files."""

    def __init__(self) -> None:
        self._payloads: dict[tuple[str, int], bytes] = {}

    def keep(self, batch: SealedBatch) -> None:
        payload = segment.build(batch.chunks, batch.flow, batch.table, batch.number)
        self._payloads[batch.flow, batch.number] = payload

    def drop_through(self, flow: str, number: int) -> None:
        for known in [known for known in self._payloads if known[0] == flow and known[1] <= number]:
            del self._payloads[known]

    def get(self, flow: str, number: int) -> bytes:
        try:
            return self._payloads[flow, number]
        except KeyError:
            raise NotFoundError(f"no batch {number} of {flow}") from None

    def checksum(self, flow: str, number: int) -> str:
        return segment.checksum(self.get(flow, number))


async def _no_peer(flow: str, number: int) -> NoReturn:
    raise NotFoundError(f"no batch {number} of {flow}")
