"""Items of a flow from any batch or commit number on, against the list of those that are kept."""

from __future__ import annotations

import random
from typing import Any

import pytest

from oncegate import Code, OperationFailed
from oncegate.gateway.client import items
from oncegate.gateway.client.items import Items
from oncegate.gateway.client.results import FlowInfo, FlowItem


class Flow:
    """Batches of a flow in the place of a connection; the oldest were dropped."""

    def __init__(self, dice: random.Random) -> None:
        self.batches: dict[int, list[FlowItem]] = {}
        self.read: list[int] = []
        commit, self.last = dice.randint(0, 3), dice.choice((0, 1, 2, dice.randint(3, 12)))
        for number in range(1, self.last + 1):
            self.batches[number] = []
            for _ in range(dice.choice((1, 1, 2, 5))):
                commit += dice.choice((1, 1, 4))
                self.batches[number].append(FlowItem(commit, "k", number, 0, "", commit))
        self.newest, self.all = commit, [item for batch in self.batches.values() for item in batch]
        dropped = dice.choice((0, 0, dice.randint(0, self.last)))
        for number in range(1, dropped + 1):
            del self.batches[number]
        self.info = FlowInfo("f", "t", first_batch=dropped + 1, last_batch=self.last, items=len(self.all))

    async def ask(self, path: str, shape: Any, *, timeout_s: float | None = None) -> FlowInfo:
        assert (shape, timeout_s) == (FlowInfo, 3.0)
        return self.info

    async def batch(self, connection: object, flow: str, number: int, timeout_s: float | None) -> list[FlowItem]:
        assert (connection, flow, timeout_s) == (self, "f", 3.0)
        self.read.append(number)
        return self.batches[number]


@pytest.mark.parametrize("seed", range(60))
async def test_reading_begins_with_the_first_item_above_a_commit_number_and_leaves_out_none_in_silence(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    flow = Flow(random.Random(seed))
    monkeypatch.setattr(items, "read_batch", flow.batch)
    kept = [item for batch in flow.batches.values() for item in batch]
    oldest = kept[0].commit if kept else None
    for above in (None, *range(flow.newest + 3)):
        flow.read.clear()
        reading = Items(flow, "f", None, above, 3.0)  # type: ignore[arg-type]
        whole = above is None or len(kept) == len(flow.all) or (oldest is not None and oldest <= above + 1)
        if not whole:
            with pytest.raises(OperationFailed) as refused:
                [item async for item in reading]
            assert refused.value.code is Code.RETENTION_EXCEEDED
            continue
        expected = [item for item in kept if above is None or item.commit > above]
        assert [item async for item in reading] == expected
        assert reading.batch == (expected[-1].value if expected else None)
        searched = len(flow.read) - len({item.value for item in expected})
        assert searched <= len(flow.batches).bit_length() + 1, "batches are looked at by halves"
    for number in range(flow.info.first_batch, flow.last + 2):
        reading = Items(flow, "f", number, None, 3.0)  # type: ignore[arg-type]
        assert [item async for item in reading] == [item for item in kept if item.value >= number]  # type: ignore[operator]


@pytest.mark.parametrize("seed", range(40))
async def test_reading_that_is_cut_off_anywhere_goes_on_behind_the_last_batch_that_came_whole(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    dice = random.Random(seed)
    flow = Flow(dice)
    kept = [item for batch in flow.batches.values() for item in batch]

    async def batch(connection: object, name: str, number: int, timeout_s: float | None) -> list[FlowItem]:
        found = await flow.batch(connection, name, number, timeout_s)
        if dice.random() < 0.4:
            raise OperationFailed(Code.TIMEOUT, "nobody answers")
        return found

    monkeypatch.setattr(items, "read_batch", batch)
    seen: list[FlowItem] = []
    number = flow.info.first_batch
    while True:
        reading = Items(flow, "f", number, None, 3.0)  # type: ignore[arg-type]
        try:
            async for one in reading.batches():
                seen += one
            break
        except OperationFailed:
            if reading.batch is not None:
                number = reading.batch + 1
    assert seen == kept
