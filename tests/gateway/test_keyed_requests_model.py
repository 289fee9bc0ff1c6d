"""Requests under idempotency keys against a list of buckets: new or remembered, and how long."""

from __future__ import annotations

import random

import pytest

from oncegate.gateway.machine import commands as c
from oncegate.gateway.machine.apply import apply
from oncegate.gateway.machine.machine import Machine
from oncegate.rifl.ids import ClusterTimeMs, Fingerprint, SequenceNumber
from oncegate.rifl.key_buckets import PARTS
from oncegate.rifl.key_table import NO_TIME
from oncegate.rifl.rule import Applied, Replayed

LIFE_MS = 100


def operation(key: str) -> c.KeyedOp:
    put = c.Op(SequenceNumber(1), c.OpKind.PUT, "t", key, Fingerprint(7), b"1")
    return c.KeyedOp(key, ClusterTimeMs(NO_TIME), put)


@pytest.mark.parametrize("seed", range(6))
def test_keys_of_a_request_are_executed_once_and_remembered_as_long_as_its_answer_says(seed: int) -> None:
    dice, machine, now, index, replayed = random.Random(seed), Machine(), 0, 1, 0
    apply(machine, 1, 1, c.encode_entry(0, [c.DeclareTable("t", "resident", 1 << 30)]))
    ends, buckets = dict[str, int](), list[tuple[int, list[str]]]()  # first use from which on the next one opens, keys
    for _ in range(150):
        now += dice.choice((0, 1, 5, 30, 120))
        names = [f"k{number}" for number in dice.sample(range(40), dice.randint(1, 5))]
        index += 1
        while buckets and ends[buckets[0][1][-1]] < now:  # forgotten as a whole, once its newest key's time is over
            for key in buckets.pop(0)[1]:
                del ends[key]
        command = c.Keyed(LIFE_MS, [operation(name) for name in names])
        (result,) = apply(machine, index, 1, c.encode_entry(now, [command]))
        for name, verdict in zip(names, result.verdicts, strict=True):
            assert type(verdict) is (Replayed if name in ends else Applied)
            replayed += name in ends
            if name not in ends:
                ends[name] = now + LIFE_MS
                if not buckets or now >= buckets[-1][0]:
                    buckets.append((now + LIFE_MS // PARTS, []))
                buckets[-1][1].append(name)
        assert result.memory_ms == max(0, min(ends[name] for name in names) - now)
        assert machine.replayed == replayed
        assert len(machine.keys) == len(ends)
        assert [bucket.stop - bucket.first for bucket in machine.keys.buckets] == [len(keys) for _, keys in buckets]
