"""Applying requests that carry an idempotency key instead of a place in a session.

Owns: the join of :mod:`oncegate.rifl.key_table` (was it there before?) and the machine (what does it do?). Pure,
deterministic and total, as :mod:`oncegate.gateway.machine.machine` is, which calls it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from oncegate.gateway.machine import commands as c
from oncegate.rifl.completion import CompletionRecord
from oncegate.rifl.key_table import KEYS_CLIENT
from oncegate.rifl.result_tracker import Verdict

if TYPE_CHECKING:
    from oncegate.gateway.machine.machine import Machine
    from oncegate.gateway.machine.results import OpVerdict


def apply_keyed(machine: Machine, command: c.Keyed) -> tuple[list[OpVerdict], int]:
    """Execute what is new, answer what is remembered.

    Returns:
        A verdict for each operation, with the number that its key was mapped to (0 where it was refused), and how
        long, in milliseconds, all keys that were accepted are still remembered.
    """
    keys, now = machine.keys, machine.time_ms
    keys.forget(now, len(command.ops) + 1)  # one more than may come: what is over never piles up
    verdicts: list[OpVerdict] = []
    ends: list[int] = []
    for item in command.ops:
        verdict, known = keys.decide(command.tenant, item.key, item.op.fingerprint, item.named_ms, now)
        if known is not None:
            machine.replayed += 1
            ends.append(known.ends_ms)
            verdicts.append((known.number, None, known.record, True))
        elif verdict is not Verdict.EXECUTE:
            verdicts.append((0, verdict.code, None, False))
        else:
            number = keys.next
            slot = keys.slot(command.tenant, item.key, now, command.lifetime_ms)
            op = msgspec.structs.replace(item.op, sequence=number)
            done = machine.execute(KEYS_CLIENT, slot, op, command.traceparent)
            if isinstance(done, CompletionRecord):
                ends.append(keys.last_end_ms())
                verdicts.append((number, None, done, False))
            else:
                verdicts.append((0, done, None, False))
    return verdicts, max(0, min(ends) - now) if ends else 0
