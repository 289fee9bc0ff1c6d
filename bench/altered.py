"""Nodes that are no product, the measure of what a part of one costs: ``python -m bench.altered KIND serve …``.

``blind`` looks for no duplicates: its machine executes whatever it is sent and remembers nothing of it. ``switched`` is
an ordinary node that stops checking live traffic at SIGUSR1 and goes on at SIGUSR2: two clusters side by side differ by
more than what that costs. No setting leads here: only a process of this module has it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import Any

from oncegate.gateway.cli.main import main
from oncegate.gateway.local.cluster import LocalCluster
from oncegate.gateway.machine import commands as c
from oncegate.gateway.machine import operations
from oncegate.gateway.machine.apply import HANDLERS
from oncegate.gateway.machine.machine import Machine
from oncegate.gateway.machine.results import AppliedPart, Operated, Ranged
from oncegate.gateway.machine.state import restore
from oncegate.gateway.node.node import Node
from oncegate.rifl.completion import FINGERPRINT_BYTES, CompletionRecord, RangeRecord
from oncegate.rifl.ids import CommitNumber, Fingerprint, SequenceNumber
from oncegate.rifl.range_rule import NewPart
from oncegate.rifl.result_tracker import ResultTracker
from oncegate.rifl.rule import Applied, OpVerdict, Refusal, Rejected


class Amnesiac(ResultTracker):
    """Answers from a record and keeps none."""

    def record(
        self,
        sequence: SequenceNumber,
        fingerprint: Fingerprint,
        commit: CommitNumber,
        result: Any = None,
        traceparent: str = "",
    ) -> CompletionRecord:
        """Return the record of an operation without remembering it."""
        return CompletionRecord(fingerprint, commit, result, traceparent)

    def record_range(self, record: RangeRecord) -> None:
        """Forget a range."""

    def record_run(self, record: RangeRecord) -> None:
        """Forget a run."""


class BlindMachine(Machine):
    """Applies each attempt, the tenth retry like the first: no rule, no record, no ack, no lease renewed."""


_AMNESIAC = Amnesiac()


def _operate(machine: Machine, command: c.Operate) -> Operated:
    if not isinstance(machine, BlindMachine):
        return operations.operate(machine, command)
    who, trace = command.client_id, command.traceparent
    verdicts: list[OpVerdict | AppliedPart] = []
    for part in command.parts:
        if not isinstance(part, c.Puts):
            verdicts.append(_executed(machine, who, part, trace))
            continue
        commit, count = CommitNumber(machine.commit + 1), operations.execute_run(machine, command, _AMNESIAC, part)
        if count:
            verdicts.append(AppliedPart(part.first, SequenceNumber(part.first + count - 1), commit))
        verdicts += [_executed(machine, who, op, trace) for op in part.ops[count:]]
    return Operated(verdicts, _left_ms(machine, who))


def _executed(machine: Machine, client_id: int, op: c.Op | c.Transaction, traceparent: str) -> OpVerdict:
    done = operations.execute(machine, client_id, _AMNESIAC, op, traceparent)
    if isinstance(done, CompletionRecord):
        return Applied(op.sequence, done)
    return Rejected(op.sequence, Refusal(done))


def _operate_range(machine: Machine, command: c.Range) -> Ranged:
    if not isinstance(machine, BlindMachine):
        return operations.operate_range(machine, command)
    last = SequenceNumber(command.first + len(command.fingerprints) // FINGERPRINT_BYTES - 1)
    part = operations.execute_part(machine, command, _AMNESIAC, NewPart(command.first, last))
    return Ranged([part], _left_ms(machine, command.client_id))


def _left_ms(machine: Machine, client_id: int) -> int:
    session = machine.sessions.get(client_id)
    return 0 if session is None else session.left_ms(machine.time_ms)


HANDLERS[c.Operate] = _operate
HANDLERS[c.Range] = _operate_range


class SwitchedNode(Node):
    """Turns :attr:`live_check` off and on."""

    async def start(self) -> None:
        """Start, and listen to the signals."""
        await super().start()
        loop, check = asyncio.get_running_loop(), self.live_check
        loop.add_signal_handler(signal.SIGUSR1, setattr, self, "live_check", None)
        loop.add_signal_handler(signal.SIGUSR2, setattr, self, "live_check", check)


class AlteredCluster(LocalCluster):
    """Nodes of a kind."""

    kind = "blind"

    def command(self, node_id: str) -> list[str]:
        """Return the command line of a node."""
        return [sys.executable, "-m", "bench.altered", self.kind, *super().command(node_id)[3:]]


class SwitchedCluster(AlteredCluster):
    """Nodes whose check is switched by signals."""

    kind = "switched"

    def switch(self, *, on: bool) -> None:
        """Turn the check on or off on all nodes."""
        for node_id in self.ids:
            os.kill(self.pid(node_id), signal.SIGUSR2 if on else signal.SIGUSR1)


if __name__ == "__main__":
    kind = sys.argv.pop(1)
    if kind == "blind":
        vars(restore)["Machine"] = BlindMachine
    main(SwitchedNode if kind == "switched" else None)
