"""The real machine as a function from states to states, for a search that comes by most of them many times.

Read next: ``tests/model/protocol.py``, the world around it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from oncegate.gateway.machine import commands as c
from oncegate.gateway.machine.machine import Machine
from oncegate.rifl.errors import Code, OncegateError
from tests.gateway.logs import told

LEASE_MS: Final = 1_000
CLIENT: Final = 1

Message = tuple[Any, ...]
"""``("open",)``, ``("take",)``, ``("renew", epoch)``, ``("reap",)``, ``("op", epoch, sequence, first incomplete)``, and
``("resolve", sequence)``."""


class Effect(NamedTuple):
    """What applying an entry did, as whoever asked is told."""

    code: Code | None = None
    result: tuple[int, bytes] | None = None
    replayed: bool = False
    epoch: int = 0
    first_incomplete: int = 1
    fate: str = ""


class Machines:
    """The machine as a function: states have numbers, and each step is worked out once by the real code."""

    def __init__(self, make: Callable[[], Machine], window: int) -> None:
        self._make = make
        self._window = window
        self._logs: list[tuple[bytes, ...]] = []
        self._numbers: dict[Any, int] = {}
        self._steps: dict[tuple[int, int, Message], tuple[int, Effect]] = {}
        self.about: list[tuple[int, int, int, int]] = []
        """Of each state: cluster time, the session's end or -1, its epoch or 0, and what the counter says."""
        start = c.encode_entry(0, [c.DeclareTable("t", "resident", 1 << 20)])
        machine = make()
        machine.apply(1, 1, start)
        self.start = self._number(machine, (start,))

    def step(self, number: int, stamp_ms: int, message: Message) -> tuple[int, Effect]:
        """Apply a message to a state; returns the state after and what it did."""
        known = self._steps.get((number, stamp_ms, message))
        if known is not None:
            return known
        log = self._logs[number]
        machine = self._make()
        for data in log:
            machine.apply(0, 1, data)
        data = c.encode_entry(stamp_ms, [self._command(message)])
        (result,) = machine.apply(0, 1, data)
        found = self._numbers.get(self._key(machine))
        after = self._number(machine, (*log, data)) if found is None else found
        self._steps[number, stamp_ms, message] = after, _effect(result)
        return after, _effect(result)

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
                op = c.Op(sequence, int(c.OpKind.INCREMENT), "t", "n", sequence, by=share(sequence))
                return c.Operate(CLIENT, epoch, first_incomplete, [op])
            case ("resolve", sequence):
                return c.Resolve(CLIENT, sequence)
        raise ValueError(message)

    def _number(self, machine: Machine, log: tuple[bytes, ...]) -> int:
        number = self._numbers[self._key(machine)] = len(self._logs)
        self._logs.append(log)
        session = machine.sessions.get(CLIENT)
        row = machine.tables["t"].rows.get("n")
        ends, epoch = (-1, 0) if session is None else (session.ends_ms, int(session.epoch))
        self.about.append((machine.time_ms, ends, epoch, 0 if row is None else int(row.value)))
        return number

    @staticmethod
    def _key(machine: Machine) -> Any:
        row = machine.tables["t"].rows.get("n")
        return (
            machine.time_ms,
            machine.commit,
            machine.sessions.next_id,
            tuple(sorted((s.client_id, s.epoch, s.nonce, s.ends_ms, s.former) for s in machine.sessions)),
            tuple(repr((client, tracker.dump())) for client, tracker in sorted(machine.trackers.items())),
            None if row is None else (row.version, row.value),
        )


def share(sequence: int) -> int:
    """What an operation adds: the sum tells which were executed and how often."""
    return 10 ** (sequence - 1)


def _effect(result: Any) -> Effect:
    if isinstance(result, OncegateError):
        return Effect(result.code)
    if hasattr(result, "verdicts"):
        ((_, code, record, replayed),) = map(told, result.verdicts)
        return Effect(code, None if record is None else (record.commit, repr(record.result).encode()), replayed)
    if hasattr(result, "resolution"):
        record = result.resolution.record
        stored = None if record is None else (record.commit, repr(record.result).encode())
        return Effect(None, stored, fate=str(result.resolution.fate))
    if hasattr(result, "epoch"):
        return Effect(epoch=result.epoch, first_incomplete=result.first_incomplete)
    return Effect()
