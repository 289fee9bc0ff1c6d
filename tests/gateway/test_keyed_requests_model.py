"""Requests under idempotency keys below the level of buckets, against a dictionary: new or remembered, and how long."""

from __future__ import annotations

import random

import pytest

from oncegate.gateway.machine import commands as c
from oncegate.gateway.machine.machine import Machine
from oncegate.rifl.ids import ClusterTimeMs, Fingerprint, SequenceNumber
from oncegate.rifl.key_table import NO_TIME
from oncegate.rifl.rule import Applied, Replayed

LIFE_MS = 100


def operation(key: str) -> c.KeyedOp:
    put = c.Op(SequenceNumber(1), c.OpKind.PUT, "t", key, Fingerprint(7), b"1")
    return c.KeyedOp(key, ClusterTimeMs(NO_TIME), put)


@pytest.mark.parametrize("seed", range(6))
def test_keys_of_a_request_are_executed_once_and_remembered_as_long_as_its_answer_says(seed: int) -> None:
    dice, machine, now, index, replayed = random.Random(seed), Machine(), 0, 1, 0
    machine.apply(1, 1, c.encode_entry(0, [c.DeclareTable("t", "resident", 1 << 30)]))
    ends = dict[str, int]()
    for _ in range(150):
        now += dice.choice((0, 1, 5, 30, 120))
        names = [f"k{number}" for number in dice.sample(range(40), dice.randint(1, 5))]
        index, before = index + 1, len(ends)
        # One more than it may add, oldest first: what is over never piles up.
        for key in [key for key, end in ends.items() if end < now][: len(names) + 1]:
            del ends[key]
        command = c.Keyed(LIFE_MS, [operation(name) for name in names])
        (result,) = machine.apply(index, 1, c.encode_entry(now, [command]))
        for name, verdict in zip(names, result.verdicts, strict=True):
            assert type(verdict) is (Replayed if name in ends else Applied)
            replayed += name in ends
            ends.setdefault(name, now + LIFE_MS)
        assert result.memory_ms == max(0, min(ends[name] for name in names) - now)
        assert machine.replayed == replayed
        assert len(machine.keys) == len(ends) <= max(before - 1, sum(end >= now for end in ends.values()))
