"""A node that looks for no duplicates: the measure of what duplicate detection costs, and never a product.

Owns: handlers that execute whatever a :class:`BlindMachine` is sent and remember nothing of it, and ``python -m
bench.blind serve …``, which runs an ordinary node around them. No setting leads here: only a process that imports this
module has it.
"""

from __future__ import annotations

from typing import Any

from oncegate.gateway.cli.main import main
from oncegate.gateway.machine import commands as c
from oncegate.gateway.machine import operations
from oncegate.gateway.machine.apply import HANDLERS
from oncegate.gateway.machine.machine import Machine
from oncegate.gateway.machine.results import AppliedPart, Operated, Ranged
from oncegate.gateway.machine.state import restore
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

if __name__ == "__main__":
    vars(restore)["Machine"] = BlindMachine
    main()
