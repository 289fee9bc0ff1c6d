"""What a command of keyed writes is answered, against what was remembered when it came.

The reference is a dictionary: the payload and the number of each key. Until when it is remembered the state says, which
:mod:`tests.rifl.test_keys_kept` judges.
"""

from __future__ import annotations

import random
from typing import Any, NamedTuple

import pytest

from oncegate.gateway.machine import commands as c
from oncegate.gateway.machine.apply import apply
from oncegate.gateway.machine.idempotency_keys import NO_NUMBER
from oncegate.gateway.machine.machine import Machine
from oncegate.gateway.machine.results import Operated
from oncegate.rifl.key_table import NO_TIME
from oncegate.rifl.rule import Applied, Refusal, Rejected, Replayed

LIVES_MS = (2_000, 24_000)
TENANTS = ("", "a", "b")


class Known(NamedTuple):
    """What is remembered of a key."""

    fingerprint: int
    number: int


class Two:
    """A machine that forgets with each command, and one that is told to forget before each: they answer alike."""

    def __init__(self) -> None:
        self.machines = Machine(), Machine()
        self.index = self.now_ms = 0
        self.apply(c.DeclareTable("rows", "resident", 1 << 30))

    def apply(self, *commands: Any) -> Any:
        self.index += 2
        for at, machine in enumerate(self.machines):
            apply(machine, self.index - 1, 1, c.encode_entry(self.now_ms, [c.ForgetKeys()] if at else []))
        one, other = (apply(m, self.index, 1, c.encode_entry(self.now_ms, list(commands)))[0] for m in self.machines)
        assert not isinstance(one, Operated) or one == other
        return one

    def ends_ms(self) -> dict[tuple[str, str], int]:
        """Return what is remembered, and until when."""
        return {(one.tenant, one.key): one.ends_ms for one in self.machines[1].keys}


def an_operation(dice: random.Random, key: str, now_ms: int) -> c.KeyedOp:
    table = dice.choice(("rows", "rows", "rows", "absent"))
    named_ms = dice.choice((NO_TIME, NO_TIME, now_ms, now_ms + 1))
    op = c.Op(1, int(c.OpKind.PUT), table, "row", dice.choice((7, 7, 7, 8)), b"1")  # type: ignore[arg-type]
    return c.KeyedOp(key, named_ms, op)  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(20))
def test_each_write_of_a_command_is_executed_once_and_all_are_known_for_as_long_as_is_said(seed: int) -> None:
    dice, two = random.Random(seed), Two()
    known: dict[tuple[str, str], Known] = {}
    replayed, numbers, lifetime_ms = 0, 0, dice.choice(LIVES_MS)
    for _ in range(60):
        two.now_ms += dice.choice((0, 1, 100, 1_000, 5_000))
        tenant = dice.choice(TENANTS)
        keys = dice.sample([f"k{n}" for n in range(12)], dice.randrange(1, 6))
        command = c.Keyed(lifetime_ms, [an_operation(dice, key, two.now_ms) for key in keys], tenant)
        ends_before = two.ends_ms()
        answer = two.apply(command)
        assert isinstance(answer, Operated)
        assert answer.keyed
        ends, least, most = two.ends_ms(), [], []
        for item, verdict in zip(command.ops, answer.verdicts, strict=True):
            name = tenant, item.key
            before = known.get(name) if ends_before.get(name, -1) >= two.now_ms else None
            if before is not None and before.fingerprint == item.op.fingerprint:
                assert isinstance(verdict, Replayed)
                assert verdict.sequence == before.number
                replayed += 1
            elif before is not None:
                assert verdict == Rejected(NO_NUMBER, Refusal.PAYLOAD_MISMATCH)
                continue
            elif isinstance(verdict, Rejected):
                assert item.named_ms > two.now_ms or item.named_ms != NO_TIME or item.op.table == "absent"
                assert verdict.sequence == NO_NUMBER
                assert name not in ends, "what was refused is not remembered"
                continue
            else:
                assert isinstance(verdict, Applied)
                assert (item.named_ms <= two.now_ms, item.op.table) == (True, "rows")
                numbers += 1
                assert verdict.sequence == numbers
            known[name] = Known(item.op.fingerprint, verdict.sequence)
            # The end of a bucket moves with its last key, which may be one of this command.
            least.append(ends[name] if before is None else ends_before[name])
            most.append(ends[name])
        known_until = two.now_ms + answer.memory_ms
        assert min(least, default=two.now_ms) <= known_until <= min(most, default=two.now_ms)
        assert two.machines[0].replayed == replayed
        assert [machine.keys.next for machine in two.machines] == [numbers + 1] * 2
