"""The bounds of an outbox against a dictionary of what is in it: what fits is taken, the rest refused, to the byte.

Through it all the file holds what the dictionary does, and is never over a bound; its position is that of what it took.
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import msgspec
import pytest

from oncegate.gateway.client import durable_outbox
from oncegate.gateway.client.batch import Pending
from oncegate.gateway.client.durable_outbox import DurableOutbox
from oncegate.gateway.client.failures import OperationFailed
from oncegate.gateway.client.outbox_file import OutboxFile
from oncegate.gateway.wire import Operation
from oncegate.rifl.errors import Code, Outcome
from oncegate.rifl.ids import ClientId
from oncegate.rifl.request_tracker import RequestTracker

ENTRIES_MAX, BYTES_MAX = 6, 700


def _pending(sequence: int, length: int, position: int | None = None) -> Pending:
    operation = Operation(sequence, "put", "rows", "k", value="x" * length)
    return Pending(operation, None, asyncio.get_running_loop().create_future(), 1e9, position)


@pytest.mark.parametrize("seed", range(12))
async def test_writes_that_fit_are_taken_and_others_refused_to_the_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(durable_outbox, "ENTRIES_MAX", ENTRIES_MAX)
    monkeypatch.setattr(durable_outbox, "BYTES_MAX", BYTES_MAX)
    dice, held, sequence, full = random.Random(seed), dict[int, int](), 0, 0
    position: int | None = None
    outbox = await DurableOutbox.open(tmp_path / "o")
    await outbox.rename(client_id=1)
    outbox.begin(ClientId(1), RequestTracker(window=4_096))
    for _ in range(80):
        if held and dice.random() < 0.4:
            gone = dice.sample(sorted(held), dice.randint(1, len(held)))
            outbox.settled(gone)
            await outbox.flush()
            for number in gone:
                del held[number]
            continue
        wanted = []
        for _ in range(dice.randint(1, 3)):
            sequence += 1
            place = dice.choice((None, sequence))
            wanted.append(_pending(sequence, dice.choice((0, 10, dice.randint(0, 400))), place))
        exact = BYTES_MAX - sum(held.values()) - sum(_size(one) for one in wanted)
        if dice.random() < 0.4 and -400 < exact < 400:
            # The last byte there is room for, or one more than that.
            grown = len(wanted[-1].operation.value) + exact + dice.choice((0, 1))
            wanted[-1] = _pending(sequence, max(0, grown), wanted[-1].position)
        sizes = {one.operation.sequence: _size(one) for one in wanted}
        fits = len(held) + len(sizes) <= ENTRIES_MAX and sum(held.values()) + sum(sizes.values()) <= BYTES_MAX
        if fits:
            await outbox.add(wanted)
            held |= sizes
            position = next((one.position for one in reversed(wanted) if one.position is not None), position)
        else:
            full += 1
            with pytest.raises(OperationFailed) as refused:
                await outbox.add(wanted)
            assert (refused.value.code, refused.value.outcome) == (Code.QUOTA, Outcome.NOT_APPLIED)
        with_file = OutboxFile(tmp_path / "o", read_only=True)
        assert {entry.sequence for entry in with_file.loaded} == set(held)
        assert (with_file.head.position, outbox.position) == (position, position)
        assert (len(with_file), with_file.bytes) == (len(held), sum(held.values()))
        with_file.close()
    assert full
    await outbox.close()


def _size(pending: Pending) -> int:
    return len(msgspec.msgpack.encode(pending.operation))
