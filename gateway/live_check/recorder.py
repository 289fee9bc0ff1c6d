"""Records this node's answers about sampled rows as it gives them.

Owns: the hot path (one call for each request, which returns at once if no row is sampled), the floor, which stands for
time, and the bound on the operations of a window. Event loop's thread. Read next:
:mod:`oncegate.gateway.live_check.checker`.

The node's event loop orders requests and answers, so no clock is needed: one number, the newest commit number among the
answers, says what had been answered when a request came.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from functools import partial
from typing import Final

from oncegate.gateway.answers import Answer
from oncegate.gateway.live_check.sample import RowSample, Seen, of_read, of_result
from oncegate.gateway.machine import commands as c
from oncegate.rifl.errors import OncegateError, Outcome
from oncegate.rifl.key_table import KEYS_CLIENT

OPERATIONS_MAX: Final = 2_000
"""Of one window; what comes beyond is not recorded, and counted."""
UNKNOWN_ROWS_MAX: Final = 10_000


class WindowRecorder:
    """The operations of the present window.

    Args:
        choice: which rows are sampled.
        operations_max: of a window.

    Attributes:
        seen: answered operations that are not checked yet.
        dropped: operations on sampled rows that were not recorded.
        unknown: rows with an operation of which nobody knows whether it was or will be applied.
    """

    def __init__(self, choice: RowSample, operations_max: int = OPERATIONS_MAX) -> None:
        self._choice = choice
        self._operations_max = operations_max
        self._floor = 0
        self._read_floor = 0
        self._pending: dict[int, int] = {}
        self._pending_operations = 0
        self._number = 0
        self.seen: list[Seen] = []
        self.dropped = 0
        self.unknown: set[str] = set()

    def watch(self, command: c.Command, future: asyncio.Future[Answer]) -> None:
        """Note a command that was just submitted, if it has operations on sampled rows."""
        if type(command) is c.Operate:
            ops, client_id = command.ops, command.client_id
        elif type(command) is c.Keyed:
            ops, client_id = [item.op for item in command.ops], int(KEYS_CLIENT)
        else:
            return
        chosen = self._choice.of(ops)
        if chosen:
            self._watch(ops, chosen, client_id, future)

    def _watch(self, ops: list[c.Op], chosen: list[int], client_id: int, future: asyncio.Future[Answer]) -> None:
        if self._pending_operations + len(self.seen) + len(chosen) > self._operations_max:
            self.dropped += len(chosen)
            return
        self._number += 1
        self._pending[self._number] = self._floor
        self._pending_operations += len(chosen)
        future.add_done_callback(partial(self._answered, ops, chosen, client_id, self._number))

    def _answered(
        self, ops: list[c.Op], chosen: list[int], client_id: int, number: int, done: asyncio.Future[Answer]
    ) -> None:
        floor = self._pending.pop(number)
        self._pending_operations -= len(chosen)
        fault = None if done.cancelled() else done.exception()
        if done.cancelled() or fault is not None:
            if not isinstance(fault, OncegateError) or fault.outcome is not Outcome.NOT_APPLIED:
                self._doubt(ops[at] for at in chosen)
            return
        results = done.result().body.results
        for at in chosen:
            op, result = ops[at], results[at]
            seen = of_result(op, client_id, floor, result)
            if seen is not None:
                self.seen.append(seen)
                self._floor = max(self._floor, seen.commit)
            elif result.outcome != Outcome.NOT_APPLIED.value:
                self._doubt([op])

    def read_floor(self, *, linearizable: bool) -> int:
        """Return the floor of a read that comes now: of all answers, or of this node's reads if it is a weaker read."""
        return self._floor if linearizable else self._read_floor

    def has(self, table: str, key: str) -> bool:
        """Tell whether a row is sampled."""
        return self._choice.has(table, key)

    def read(self, table: str, key: str, commit: int, floor: int, version: int, value: bytes | None) -> None:
        """Note a read of a sampled row that is about to be answered; ``version`` 0 where there was no row."""
        self._read_floor = max(self._read_floor, commit)
        self._floor = max(self._floor, commit)
        if self._pending_operations + len(self.seen) >= self._operations_max:
            self.dropped += 1
            return
        self.seen.append(of_read(table, key, commit, floor, version, value))

    def take(self) -> list[Seen]:
        """Hand over the operations that can be checked; keep those whose place is after an answer still to come.

        An operation that is under way will have a commit number above its floor, unless it is a replay.
        """
        horizon = min(self._pending.values(), default=self._floor)
        ready = [seen for seen in self.seen if seen.commit <= horizon]
        self.seen = [seen for seen in self.seen if seen.commit > horizon]
        return ready

    def _doubt(self, ops: Iterable[c.Op]) -> None:
        for op in ops:
            if len(self.unknown) < UNKNOWN_ROWS_MAX:
                self.unknown.add(f"{op.table}/{op.key}")
            else:
                self.dropped += 1
