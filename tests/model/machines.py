"""The real machine as a function from states to states, for a search that comes by most of them many times.

Read next: ``tests/model/protocol.py``, the world around it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

from oncegate.gateway.machine import commands as c
from oncegate.gateway.machine.apply import apply
from oncegate.gateway.machine.machine import Machine
from oncegate.gateway.machine.ordering import in_columns
from oncegate.gateway.machine.rows import StoredRow
from oncegate.gateway.machine.state import layout
from oncegate.rifl.completion import CompletionRecord
from oncegate.rifl.errors import Code, OncegateError
from oncegate.rifl.ids import Fingerprint, SequenceNumber
from tests.gateway.logs import apart, told

RESTART: Final = ("restart",)
"""Not a message: the node saves its state, and starts from it."""
LEASE_MS: Final = 1_000
CLIENT: Final = 1

Message = tuple[Any, ...]
"""``("open",)``, ``("take",)``, ``("renew", epoch)``, ``("reap",)``, ``("op", epoch, sequence, first incomplete)``,
``("run", epoch, first sequence, last sequence, first incomplete)``, and ``("resolve", sequence)``."""


class Outcome(NamedTuple):
    """What is recorded of an operation: its commit number, its result, and whether it took effect."""

    commit: int
    result: bytes
    applied: bool


class Effect(NamedTuple):
    """What applying an entry did, as whoever asked is told; ``each`` of the operations of a run."""

    code: Code | None = None
    result: Outcome | None = None
    replayed: bool = False
    epoch: int = 0
    first_incomplete: int = 1
    fate: str = ""
    each: tuple[Effect, ...] = ()


class About(NamedTuple):
    """What the checks look at of a state: cluster time, the session's end or -1, its epoch or 0, and three counters.

    Every operation counts ``here``, transactions also ``there``, in another table; ``commits`` counts all that was ever
    executed, also a put that was executed twice and left the same row.
    """

    time_ms: int
    ends_ms: int
    epoch: int
    here: int
    there: int
    commits: int


class Machines:
    """The machine as a function: states have numbers, and each step is worked out once by the real code.

    Args:
        make: makes the machine.
        window: of the session.
        transaction: sequence number of an operation that is one; 0: none. It counts in two tables, if what it finds in
            the first one is not nothing: so it is refused before any other operation.
        puts: the other operations are plain puts, each on a row of its own, that may travel in columns.
    """

    def __init__(self, make: Callable[[], Machine], window: int, transaction: int = 0, *, puts: bool = False) -> None:
        self._make = make
        self._window = window
        self._transaction = transaction
        self._puts = puts
        self._logs: list[tuple[bytes, ...]] = []
        self._numbers: dict[Any, int] = {}
        self._steps: dict[tuple[int, int, Message], tuple[int, Effect]] = {}
        self.about: list[About] = []
        tables = [c.DeclareTable(name, "resident", 1 << 20) for name in ("t", "u")]
        start = c.encode_entry(0, [*tables])
        machine = make()
        apply(machine, 1, 1, start)
        self.start = self._number(machine, (start,))

    def step(self, number: int, stamp_ms: int, message: Message) -> tuple[int, Effect]:
        """Apply a message to a state; returns the state after and what it did."""
        known = self._steps.get((number, stamp_ms, message))
        if known is not None:
            return known
        log, machine = self._logs[number], self._replayed(number)
        if message == RESTART:
            data, effect = b"", Effect()
            _restart(machine)
        else:
            data = c.encode_entry(stamp_ms, [self._command(message)])
            (result,) = apply(machine, 0, 1, data)
            effect = _effect(result)
        found = self._numbers.get(self._key(machine))
        after = self._number(machine, (*log, data)) if found is None else found
        self._steps[number, stamp_ms, message] = after, effect
        return after, effect

    def _replayed(self, number: int) -> Machine:
        machine = self._make()
        for data in self._logs[number]:
            if data:
                apply(machine, 0, 1, data)
            else:
                _restart(machine)
        return machine

    def _command(self, message: Message) -> c.Command:
        match message:
            case ("open",):
                return c.OpenSession("first", LEASE_MS, self._window)
            case ("take",):
                return c.TakeOver(CLIENT, "second")
            case ("renew", epoch):
                return c.RenewSession(CLIENT, epoch)
            case ("reap",):
                return c.Reap([CLIENT])
            case ("op", epoch, sequence, first_incomplete):
                return c.Operate(CLIENT, epoch, first_incomplete, [self._operation(sequence)])
            case ("run", epoch, first, last, first_incomplete):
                ops = [self._operation(SequenceNumber(sequence)) for sequence in range(first, last + 1)]
                return in_columns(c.Operate(CLIENT, epoch, first_incomplete, ops))
            case ("resolve", sequence):
                return c.Resolve(CLIENT, sequence)
        raise ValueError(message)

    def _operation(self, sequence: SequenceNumber) -> c.Op | c.Transaction:
        kind, print_, by = int(c.OpKind.INCREMENT), Fingerprint(sequence), share(sequence)
        if sequence != self._transaction and self._puts:
            return c.Op(sequence, int(c.OpKind.PUT), "t", f"put {sequence}", print_, b"%d" % by)
        if sequence != self._transaction:
            return c.Op(sequence, kind, "t", "n", print_, by=by)
        counts = c.Condition("t", "n", int(c.Test.AT_LEAST), 1)
        none, unprinted = SequenceNumber(0), Fingerprint(0)
        both = [c.Op(none, kind, table, "n", unprinted, by=by) for table in ("t", "u")]
        return c.Transaction(sequence, print_, [counts], both)

    def _number(self, machine: Machine, log: tuple[bytes, ...]) -> int:
        number = self._numbers[self._key(machine)] = len(self._logs)
        self._logs.append(log)
        session = machine.sessions.get(CLIENT)
        ends, epoch = (-1, 0) if session is None else (session.ends_ms, int(session.epoch))
        self.about.append(About(machine.time_ms, ends, epoch, *_counted(machine), machine.commit))
        return number

    @staticmethod
    def _key(machine: Machine) -> Any:
        return (
            machine.time_ms,
            machine.commit,
            machine.sessions.next_id,
            tuple(sorted((s.client_id, s.epoch, s.nonce, s.ends_ms, s.former) for s in machine.sessions)),
            tuple(repr((client, tracker.dump())) for client, tracker in sorted(machine.trackers.items())),
            tuple(repr(tracker.runs) for tracker in machine.trackers.values()),
            tuple((key, row.version, row.value) for name in ("t", "u") for key, row in _rows(machine, name)),
        )


def _restart(machine: Machine) -> None:
    """Do with sessions and records what a save, the end of the process and a start do."""
    for client_id, tracker in list(machine.trackers.items()):
        session = machine.sessions.get(client_id)
        assert session is not None
        image = layout.SESSIONS.encode((session, tracker))
        _, machine.trackers[client_id] = layout.SESSIONS.decode(Path("image"), image)


def _rows(machine: Machine, table: str) -> list[tuple[str, StoredRow]]:
    return sorted(machine.tables[table].rows.items())


def _counted(machine: Machine) -> tuple[int, int]:
    here, there = (sum(int(row.value) for _, row in _rows(machine, name)) for name in ("t", "u"))
    return here, there


def share(sequence: int) -> int:
    """What an operation adds: the sum tells which were executed and how often."""
    return 10 ** (sequence - 1)


def _effect(result: Any) -> Effect:
    if isinstance(result, OncegateError):
        return Effect(result.code)
    if hasattr(result, "verdicts"):
        each = [Effect(code, _outcome(record), again) for _, code, record, again in map(told, apart(result.verdicts))]
        return each[0] if len(each) == 1 else Effect(each=tuple(each))
    if hasattr(result, "resolution"):
        return Effect(None, _outcome(result.resolution.record), fate=str(result.resolution.fate))
    if hasattr(result, "epoch"):
        return Effect(epoch=result.epoch, first_incomplete=result.first_incomplete)
    return Effect()


def _outcome(record: CompletionRecord | None) -> Outcome | None:
    if record is None:
        return None
    refusal = None if record.result is None else record.result.refusal
    return Outcome(record.commit, repr(record.result).encode(), refusal is None)
