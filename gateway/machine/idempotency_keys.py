"""Applying requests that carry an idempotency key instead of a place in a session.

Owns: the join of :mod:`oncegate.rifl.key_table` (was the request seen before?) and the machine (what does it do?).
Pure, deterministic and total, as :mod:`oncegate.gateway.machine.machine` is, which calls it.

Invariant: a key has taken its number if, and only if, its operation was executed. Raises InvariantViolation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from oncegate.gateway.machine import commands as c
from oncegate.gateway.machine.machine import Machine
from oncegate.gateway.machine.operations import execute
from oncegate.gateway.machine.results import Operated
from oncegate.gateway.machine.tenant_share import share
from oncegate.rifl.completion import CompletionRecord
from oncegate.rifl.errors import Code, InvariantViolation, OncegateError
from oncegate.rifl.ids import ClusterTimeMs, SequenceNumber
from oncegate.rifl.key_records import KeyKind, KeyRecord, kind_of, size_of
from oncegate.rifl.key_table import KEYS_CLIENT, KeySlot, KeyTable, Taken
from oncegate.rifl.rule import Applied, OpVerdict, Refusal, Rejected, Replayed

FULL: Final = "as many keys are remembered as may be, of this tenant or of all: docs/limits.md"
NO_NUMBER: Final = SequenceNumber(0)
"""Stands for the number of a key that was refused: it was mapped to none."""
KIND_PARTS: Final = 4
"""Keys and events each have one part of so many for themselves."""


def check_room(machine: Machine, command: c.Keyed, bytes_max: int, now_ms: Callable[[], int]) -> None:
    """Refuse new keys for which there is no room, or which their tenant's share does not hold, before they are ordered.

    Only where commands get their place in the log, by the state that is applied there: the log carries no such bound,
    so that every member, of an earlier build too, decides its entries alike. What is under way meanwhile is not counted
    yet. A request whose keys are all remembered is a replay and passes.

    Args:
        machine: with the keys that are remembered.
        command: what is to be ordered.
        bytes_max: of the keys of all tenants.
        now_ms: cluster time now; asked for only by a refusal.

    Raises:
        OncegateError: QUOTA, with the time until there will be room; nothing was proposed.
    """
    tenant, keys, ops = command.tenant, machine.keys, command.ops
    if not ops:
        return
    kind, wanted = kind_of(ops[0].key), 0
    for item in ops:
        wanted += size_of(tenant, item.key)
    if has_room(keys.taken(kind, tenant), tenant, wanted, bytes_max):
        return
    if all(keys.has(tenant, item.key) for item in ops):
        return
    raise OncegateError(Code.QUOTA, FULL, retry_after_ms=room_in_ms(keys, tenant, kind, wanted, bytes_max, now_ms()))


def has_room(taken: Taken, tenant: str, wanted: int, bytes_max: int) -> bool:
    """Tell whether ``wanted`` bytes fit into what a tenant may hold of a kind while so much is taken."""
    return taken.own + wanted <= share(tenant, kind_bytes_max(taken, bytes_max), taken.of_kind, taken.own)


def kind_bytes_max(taken: Taken, bytes_max: int) -> int:
    """Return what a kind may hold: all but what the other one holds, or but its part where it holds less."""
    return bytes_max - max(taken.all - taken.of_kind, bytes_max // KIND_PARTS)


def room_in_ms(keys: KeyTable, tenant: str, kind: KeyKind, wanted: int, bytes_max: int, now_ms: int) -> int:
    """Return how long it takes until so many keys have been forgotten that there is room, a second at least."""
    to_come = keys.room_to_come(kind, tenant)
    room_ms = (ends_ms for ends_ms, left in to_come if has_room(left, tenant, wanted, bytes_max))
    return max(1_000, next(room_ms, keys.last_end_ms()) + 1 - now_ms)


def operate_keyed(machine: Machine, command: c.Keyed) -> Operated:
    """Execute what is new, answer what is remembered.

    Returns:
        A verdict for each operation, with the number that its key was mapped to (``NO_NUMBER`` where it was refused),
        and how long, in milliseconds, all keys that were accepted are still remembered.
    """
    keys, now, tenant = machine.keys, machine.time_ms, command.tenant
    if keys.due(now):
        keys.forget(now)
    verdicts: list[OpVerdict] = []
    ends_ms: ClusterTimeMs | None = None
    for item in command.ops:
        verdict = keys.decide(tenant, item.key, item.op.fingerprint, item.named_ms, now)
        if type(verdict) is KeyRecord:
            machine.replayed += 1
            ends_ms = verdict.ends_ms if ends_ms is None or verdict.ends_ms < ends_ms else ends_ms
            verdicts.append(Replayed(verdict.number, verdict.record))
        elif type(verdict) is Refusal:
            verdicts.append(Rejected(NO_NUMBER, verdict))
        else:
            number = keys.next
            slot = KeySlot(keys, tenant, item.key, now, command.lifetime_ms)
            op = msgspec.structs.replace(item.op, sequence=number)
            done = execute(machine, KEYS_CLIENT, slot, op, command.traceparent)
            if keys.next != number + (type(done) is CompletionRecord):
                raise InvariantViolation(f"idempotency key {number} was executed or remembered, not both")
            if type(done) is CompletionRecord:
                if ends_ms is None:  # else one that is no later is known: ends ascend
                    ends_ms = keys.last_end_ms()
                verdicts.append(Applied(number, done))
            else:
                verdicts.append(Rejected(NO_NUMBER, Refusal(done)))
    return Operated(verdicts, 0 if ends_ms is None or ends_ms < now else ends_ms - now, keyed=True)


def forget_keys(machine: Machine, _: c.ForgetKeys) -> int:
    """Forget idempotency keys whose time is over; returns how many."""
    return machine.keys.forget(machine.time_ms)
