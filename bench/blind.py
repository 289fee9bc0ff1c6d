"""A node that looks for no duplicates: the measure of what duplicate detection costs, and never a product.

Owns: a machine that executes whatever it is sent and remembers nothing of it, and ``python -m bench.blind serve …``,
which runs an ordinary node around it. No setting leads here: only a process that imports this module has it.
"""

from __future__ import annotations

from typing import Any

from oncegate.gateway.cli.main import main
from oncegate.gateway.machine import commands as c
from oncegate.gateway.machine.machine import Machine
from oncegate.gateway.machine.results import Operated, Ranged
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


class BlindMachine(Machine):
    """Applies each attempt, the tenth retry like the first: no rule, no record, no ack, no lease renewed."""

    _amnesiac = Amnesiac()

    def _operate(self, command: c.Operate) -> Operated:
        verdicts: list[OpVerdict] = []
        for op in command.ops:
            done = self.execute(command.client_id, self._amnesiac, op, command.traceparent)
            if isinstance(done, CompletionRecord):
                verdicts.append(Applied(op.sequence, done))
            else:
                verdicts.append(Rejected(op.sequence, Refusal(done)))
        return Operated(verdicts, self._left_ms(command.client_id))

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
