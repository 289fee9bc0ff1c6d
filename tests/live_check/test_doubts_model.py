"""What a node knows of operations whose answers never came, were refused, or came too many at once, against a list.

A write that may still take effect makes its row doubtful, and no other one; one that certainly has none is forgotten.
Whatever way a request ends, its place among those that are waited for is free again.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from oncegate.gateway import wire
from oncegate.gateway.answers import Answer
from oncegate.gateway.live_check.recorder import RowSample, Seen, WindowRecorder
from oncegate.gateway.machine import commands as c
from oncegate.rifl.errors import Code, OncegateError, Outcome
from oncegate.rifl.ids import Fingerprint, SequenceNumber

BOUND = 12
KEYS = "abcdef"


class Requests:
    """Requests that end in every way there is; notes what must be known of each."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.recorder = WindowRecorder(RowSample(1.0, 7), BOUND)
        self.commit, self.sequence, self.dropped, self.waiting = 0, 0, 0, 0
        self.open: list[tuple[asyncio.Future[Answer], list[c.Op], Callable[[list[c.Op]], Any], int]] = []
        self.doubtful: set[str] = set()
        self.certain: list[tuple[str, int]] = []

    def _op(self, kind: c.OpKind) -> c.Op:
        self.sequence += 1
        return c.Op(SequenceNumber(self.sequence), int(kind), "t", self.dice.choice(KEYS), Fingerprint(0), b"1", by=1)

    def ask(self) -> None:
        kinds = (c.OpKind.PUT, c.OpKind.INCREMENT, c.OpKind.DELETE)
        ops = [self._op(self.dice.choice(kinds)) for _ in range(self.dice.randint(1, 3))]
        how = self.dice.choice((self._each, self._cascade, self._transaction))
        command: c.Command = c.Operate(1, 1, SequenceNumber(1), ops)
        if how == self._cascade:
            command = c.Cascade("f", "job", 1, 1, 1, True, 0, ops)
        elif how == self._transaction:
            writes: list[c.Op] = [c.Op(*msgspec.structs.astuple(op)) for op in ops]
            command = c.Operate(1, 1, SequenceNumber(1), [c.Transaction(ops[-1].sequence, Fingerprint(0), [], writes)])
        room = self.waiting + len(self.recorder.seen) + len(ops) <= BOUND
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self.recorder.watch(command, future)
        if room:
            self.waiting += len(ops)
            self.open.append((future, ops, how, self.told))
        else:
            self.dropped += len(ops)

    def _applied(self, op: c.Op) -> wire.OperationResult:
        self.commit += 1
        self.certain.append((f"t/{op.key}", self.commit))
        return wire.OperationResult(op.sequence, "applied", self.commit, self.commit)

    def _rejected(self, ops: list[c.Op]) -> str:
        outcome = self.dice.choice((Outcome.NOT_APPLIED, Outcome.UNKNOWN)).value
        if outcome == Outcome.UNKNOWN.value:
            self.doubtful |= {f"t/{op.key}" for op in ops}
        return outcome

    def _each(self, ops: list[c.Op]) -> Any:
        results = []
        for op in ops:
            if self.dice.random() < 0.6:
                results.append(self._applied(op))
            else:
                results.append(wire.OperationResult(op.sequence, "rejected", outcome=self._rejected([op])))
        return wire.OperationsResponse(results, 0)

    def _transaction(self, ops: list[c.Op]) -> Any:
        sequence, how = ops[-1].sequence, self.dice.choice(("applied", "refused", "rejected"))
        if how == "rejected":
            return wire.OperationsResponse([wire.OperationResult(sequence, how, outcome=self._rejected(ops))], 0)
        if how == "refused":
            return wire.OperationsResponse([wire.OperationResult(sequence, how, code="CONDITION_FAILED")], 0)
        for op in ops:
            self._applied(op)
        writes = [wire.TransactionWrite(self.commit - len(ops) + n, self.commit) for n in range(1, len(ops) + 1)]
        return wire.OperationsResponse([wire.OperationResult(sequence, how, self.commit, writes=writes)], 0)

    def _cascade(self, ops: list[c.Op]) -> Any:
        if self.dice.random() < 0.2:  # written long ago: nobody remembers where
            self.doubtful |= {f"t/{op.key}" for op in ops}
            return wire.CascadeWritten(1, 0, replayed=True)
        for op in ops:
            if op.kind == c.OpKind.INCREMENT:
                self.commit += 1
                self.doubtful.add(f"t/{op.key}")
            else:
                self._applied(op)
        return wire.CascadeWritten(1, self.commit, replayed=False)

    async def end(self) -> None:
        """Let any of the requests end, in any way."""
        future, ops, answers, _ = self.open.pop(self.dice.randrange(len(self.open)))
        rows, how = {f"t/{op.key}" for op in ops}, self.dice.random()
        if how < 0.15:
            self.doubtful |= rows
            future.cancel()
        elif how < 0.45:
            fault = self.dice.choice((OncegateError(Code.TIMEOUT, ""), OncegateError(Code.OVERLOADED, ""), OSError()))
            known = isinstance(fault, OncegateError) and fault.outcome is Outcome.NOT_APPLIED
            self.doubtful |= set() if known else rows
            future.set_exception(fault)
        else:
            future.set_result(Answer(answers(ops), self.commit))
        self.waiting -= len(ops)
        await asyncio.sleep(0)

    def take(self) -> list[Seen]:
        """Take what nothing can come before any more: whoever still waits has a later place than what was told then."""
        found = self.recorder.take()
        horizon = min((floor for *_, floor in self.open), default=self.told)
        assert all(one.commit <= horizon for one in found)
        assert all(one.commit > horizon for one in self.recorder.seen)
        return found

    @property
    def told(self) -> int:
        """The newest commit number that an answer has told."""
        return self.certain[-1][1] if self.certain else 0


@pytest.mark.parametrize("seed", range(30))
async def test_exactly_the_rows_of_writes_that_may_still_happen_are_doubtful(seed: int) -> None:
    requests = Requests(seed)
    recorder, taken = requests.recorder, list[Seen]()
    for _ in range(80):
        requests.ask()
        while requests.open and requests.dice.random() < 0.5:
            await requests.end()
        if requests.dice.random() < 0.4:
            taken += requests.take()
        assert (recorder.unknown, recorder.dropped) == (requests.doubtful, requests.dropped)
    while requests.open:
        await requests.end()
    taken += requests.take()
    assert recorder.unknown == requests.doubtful
    assert recorder.seen == [], "nothing is waited for any more"
    assert sorted((one.row, one.commit) for one in taken) == sorted(requests.certain)
    assert requests.dropped
    assert requests.certain
