"""Each job of the library ends as a recount does, whatever the order and number of its batches. Needs no Spark."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from oncegate.spark import FlowBatch, apply, open_store
from tests.spark.library.case import all_cases

CASES = all_cases()


@pytest.mark.parametrize("name", sorted(CASES))
@pytest.mark.parametrize("seed", [1, 2])
def test_a_job_ends_as_a_recount_does_whatever_comes_twice_and_in_which_order(
    name: str, seed: int, tmp_path: Path
) -> None:
    case, chance = CASES[name], random.Random(seed)
    written = list(case.writes(chance))
    batches, at = [], 0
    while at < len(written):
        size = chance.randrange(1, 400)
        batches.append(FlowBatch.of(*written[at : at + size], number=len(batches) + 1, first_commit=at + 1))
        at += size
    order = [*batches, *chance.sample(batches, len(batches) // 2)]
    chance.shuffle(order)
    with open_store(f"sqlite://{tmp_path}/store?shards=2") as store:
        apply(case.derivation, store, case.tables, *order)
        assert case.read(store) == case.expected(written)
