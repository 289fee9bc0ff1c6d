"""A node that looks for no duplicates: the measure of what duplicate detection costs, and never a product.

Owns: a machine that executes whatever it is sent and remembers nothing of it, and ``python -m bench.blind serve …``,
which runs an ordinary node around it. No setting leads here: only a process that imports this module has it.
"""

from __future__ import annotations

from typing import Any

from oncegate.gateway.cli.main import main
from oncegate.gateway.machine import commands as c
from oncegate.gateway.machine import put_runs
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

    _amnesiac = Amnesiac()

    def _operate(self, command: c.Operate) -> Operated:
        who, trace = command.client_id, command.traceparent
        verdicts: list[OpVerdict | AppliedPart] = []
        for part in command.parts:
            if not isinstance(part, c.Puts):
                verdicts.append(self._executed(who, part, trace))
                continue
            commit, count = put_runs.execute(self, who, self._amnesiac, part, trace)
            if count:
                verdicts.append(AppliedPart(part.first, SequenceNumber(part.first + count - 1), commit))
            if count < len(part.keys):
                verdicts += [self._executed(who, op, trace) for op in part.ops[count:]]
        return Operated(verdicts, self._left_ms(who))

    def _executed(self, client_id: int, op: c.Op | c.Transaction, traceparent: str) -> OpVerdict:
        done = self.execute(client_id, self._amnesiac, op, traceparent)
        if isinstance(done, CompletionRecord):
            return Applied(op.sequence, done)
        return Rejected(op.sequence, Refusal(done))

    def _range(self, command: c.Range) -> Ranged:
        last = SequenceNumber(command.first + len(command.fingerprints) // FINGERPRINT_BYTES - 1)
        part = self._execute_part(command, self._amnesiac, NewPart(command.first, last))
        return Ranged([part], self._left_ms(command.client_id))

    def _left_ms(self, client_id: int) -> int:
        session = self.sessions.get(client_id)
        return 0 if session is None else session.left_ms(self.time_ms)


if __name__ == "__main__":
    vars(restore)["Machine"] = BlindMachine
    main()
