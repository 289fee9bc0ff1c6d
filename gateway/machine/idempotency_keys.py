"""Applying requests that carry an idempotency key instead of a place in a session.

Owns: the join of :mod:`oncegate.rifl.key_table` (was the request seen before?) and the machine (what does it do?).
Pure, deterministic and total, as :mod:`oncegate.gateway.machine.machine` is, which calls it.

Invariant: a key has taken its number if, and only if, its operation was executed. Raises InvariantViolation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from oncegate.gateway.machine import commands as c
from oncegate.rifl.completion import CompletionRecord
from oncegate.rifl.errors import InvariantViolation
from oncegate.rifl.ids import SequenceNumber
from oncegate.rifl.key_table import KEYS_CLIENT, KeyRecord
from oncegate.rifl.rule import Applied, OpVerdict, Refusal, Rejected, Replayed

if TYPE_CHECKING:
    from oncegate.gateway.machine.machine import Machine

NO_NUMBER: Final = SequenceNumber(0)
"""Stands for the number of a key that was refused: it was mapped to none."""


def apply_keyed(machine: Machine, command: c.Keyed) -> tuple[list[OpVerdict], int]:
    """Execute what is new, answer what is remembered.

    Returns:
        A verdict for each operation, with the number that its key was mapped to (``NO_NUMBER`` where it was refused),
        and how long, in milliseconds, all keys that were accepted are still remembered.
    """
    keys, now = machine.keys, machine.time_ms
    keys.forget(now, len(command.ops) + 1)  # forgets one more than can be added, so expired keys never pile up
    verdicts: list[OpVerdict] = []
    ends: list[int] = []
    for item in command.ops:
        verdict = keys.decide(command.tenant, item.key, item.op.fingerprint, item.named_ms, now)
        if isinstance(verdict, KeyRecord):
            machine.replayed += 1
            ends.append(verdict.ends_ms)
            verdicts.append(Replayed(verdict.number, verdict.record))
        elif isinstance(verdict, Refusal):
            verdicts.append(Rejected(NO_NUMBER, verdict))
        else:
            number = keys.next
            slot = keys.slot(command.tenant, item.key, now, command.lifetime_ms)
            op = msgspec.structs.replace(item.op, sequence=number)
            done = machine.execute(KEYS_CLIENT, slot, op, command.traceparent)
            executed = isinstance(done, CompletionRecord)
            if keys.next != number + executed:
                raise InvariantViolation(f"idempotency key {number} was executed or remembered, not both")
            if isinstance(done, CompletionRecord):
                ends.append(keys.last_end_ms())
                verdicts.append(Applied(number, done))
            else:
                verdicts.append(Rejected(NO_NUMBER, Refusal(done)))
    return verdicts, max(0, min(ends) - now) if ends else 0
