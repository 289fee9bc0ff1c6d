"""A check of a workload says nothing against a history that came to pass, of :mod:`tests.check.made_up`.

A check that finds something here would accuse a cluster of what it has not done; what one has to find the histories
beside this show.
"""

from __future__ import annotations

import random

import msgspec
import pytest

from oncegate.proof.check.workloads import bank, workload_of
from oncegate.proof.lincheck import operations
from tests.check.made_up import Accounts, Cluster, Rows
from tests.check.made_up_sessions import Calls, Holds, Items

CLUSTERS: dict[str, type[Cluster]] = {
    "bank": Accounts, "watch": Rows, "leases": Holds, "order": Calls, "flow": Items
}  # fmt: skip


@pytest.mark.parametrize("part", range(10))
@pytest.mark.parametrize("workload", CLUSTERS)
def test_a_history_that_came_to_pass_is_valid(workload: str, part: int) -> None:
    for seed in range(part * 10, part * 10 + 10):
        found = workload_of(workload).check(CLUSTERS[workload](seed).run())
        assert [(seed, one.name, one.failures, one.reason) for one in found if one.verdict != "valid"] == []


@pytest.mark.parametrize("part", range(4))
def test_balances_of_an_older_state_are_named_exactly_if_a_later_one_was_known_when_they_were_asked_for(
    part: int,
) -> None:
    named = 0
    for seed in range(part * 25, part * 25 + 25):
        ran = Accounts(seed)
        events, dice = ran.run(), random.Random(seed)
        told = [at for at, one in enumerate(events) if one.f == "balances" and one.value and "asked" not in one.value]
        at = dice.choice(told)
        older = [number for number, (end, _) in ran.then.items() if end <= events[at].value["commit"]]
        if not older:
            continue
        commit, held = ran.then[dice.choice(older)]
        events[at] = msgspec.structs.replace(events[at], value={"commit": commit, "held": held})
        listed = operations(events)
        (read,) = [op for op in listed if op.result is events[at].value]
        places = {name: version - bank.WRITES + 1 for name, version, _ in ran.receipts}
        before = [op for op in listed if op.status == "ok" and (op.returned or 0) < read.invoked and op.f != "balance"]
        is_late = any((places.get(str(op.key)) or op.result["commit"]) > commit for op in before)
        (found,) = [one for one in workload_of("bank").check(events) if one.name.startswith("what begins behind")]
        assert (found.verdict == "invalid") == is_late, seed
        named += is_late
    assert 0 < named < 25
