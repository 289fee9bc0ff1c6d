"""Single entries of an outbox (``client.durable_outbox``): as they are after all that was noted, and dropped."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from oncegate import Code, OperationFailed, OutcomeUnknown
from oncegate.gateway.client.batch import Pending
from oncegate.gateway.client.durable_outbox import DurableOutbox
from oncegate.gateway.wire import Operation
from oncegate.rifl.ids import ClientId
from oncegate.rifl.request_tracker import RequestTracker
from tests.client.answers import settle

OWNER = ClientId(7)


@asynccontextmanager
async def holding(path: Path) -> AsyncIterator[DurableOutbox]:
    """An outbox with writes 1, 2 and 3 of a session."""
    outbox = await DurableOutbox.open(path)
    await outbox.rename(client_id=OWNER, lease_ms=1000, window=8)
    outbox.begin(OWNER, RequestTracker(window=8))
    loop = asyncio.get_running_loop()
    operations = [Operation(number, "put", "t", f"k{number}", value=number) for number in (1, 2, 3)]
    await outbox.add([Pending(one, None, loop.create_future(), 9.0) for one in operations])
    try:
        yield outbox
    finally:
        await outbox.close()


async def test_entry_is_what_all_that_was_noted_before_makes_of_it(tmp_path: Path) -> None:
    """Else one that has its result would be sent again, and be called a write in doubt."""
    async with holding(tmp_path / "o") as outbox:
        outbox.settled([1])
        outbox.doubted([2])
        found = [await outbox.entry(number) for number in (1, 2, 3, 4)]
        assert [one and (one.sequence, one.doubted) for one in found] == [None, (2, True), (3, False), None]


@pytest.mark.parametrize("ends", ["written", "cancelled", "broken"])
async def test_who_waits_for_an_entry_to_be_dropped_is_told_once_whether_that_is_known(
    ends: str, tmp_path: Path
) -> None:
    told: list[OperationFailed | None] = []
    async with holding(tmp_path / "o") as outbox:
        if ends == "broken":
            outbox.broken = OutcomeUnknown(Code.INTERNAL, "the disk is full")
        before = asyncio.all_tasks()
        outbox.drop_then((OWNER, 1), told.append)
        (task,) = asyncio.all_tasks() - before
        if ends == "cancelled":
            await asyncio.sleep(0)
            task.cancel()
        await asyncio.wait([task], timeout=10)
        await settle()
        (one,) = told
        match ends:
            case "written":
                assert one is None
                assert await outbox.entry(1) is None
            case "broken":
                assert one is outbox.broken
            case _:
                assert isinstance(one, OutcomeUnknown)
                assert one.code is Code.INTERNAL, "it may not have reached the disk"
    assert len(told) == 1


async def test_what_is_noted_as_an_outbox_is_left_is_in_the_file_and_nothing_comes_after(tmp_path: Path) -> None:
    unheard: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unheard.append(context))
    async with holding(tmp_path / "o") as outbox:
        outbox.settled([1, 3])
        assert outbox._flush_timer is not None
    assert outbox._flush_timer is None or outbox._flush_timer.cancelled()
    later = await DurableOutbox.open(tmp_path / "o")
    assert [one.sequence for one in later.entries] == [2]
    await later.close()
    assert not unheard


async def test_outbox_may_be_closed_again_and_by_two_at_once_and_is_written_and_free_when_either_returns(
    tmp_path: Path,
) -> None:
    async with holding(tmp_path / "o") as outbox:
        outbox.settled([2])
        ends = [asyncio.ensure_future(outbox.close()) for _ in range(2)]
        await asyncio.wait(ends, timeout=10, return_when=asyncio.FIRST_COMPLETED)
        later = await DurableOutbox.open(tmp_path / "o")
        assert [one.sequence for one in later.entries] == [1, 3]
        await later.close()
        await asyncio.wait_for(asyncio.gather(*ends), timeout=10)
        await outbox.close()


async def test_what_is_noted_is_written_soon_though_nobody_asks_and_nothing_is_tried_once_it_is_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oncegate.gateway.client.durable_outbox.IDLE_FLUSH_S", 0.0)
    writes: list[int] = []
    async with holding(tmp_path / "o") as outbox:
        commit = outbox._commit

        async def counted(added: list[Any]) -> None:
            writes.append(len(added))
            await commit(added)

        monkeypatch.setattr(outbox, "_commit", counted)
        for note in (outbox.settled, outbox.doubted):
            note([1])
            await settle()
            assert len(writes) == 1, "what is noted is written"
            writes.clear()
        outbox.settled([2])
        await outbox.flush()
        await settle()
        assert len(writes) == 1, "nothing is left to write"
        writes.clear()
        outbox.settled([3])
        outbox.broken = OutcomeUnknown(Code.INTERNAL, "the disk is full")
        await settle()
        assert not writes, "nobody knows what is on disk"
        outbox.broken = None
