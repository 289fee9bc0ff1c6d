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
from oncegate.gateway.client.durable_outbox import DurableOutbox, KeptPromise
from oncegate.gateway.client.failures import OperationFailed, OutcomeUnknown
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
    taken: dict[int, Pending] = {}
    position: int | None = None
    outbox = await DurableOutbox.open(tmp_path / "o")
    await outbox.rename(client_id=1)
    outbox.begin(ClientId(1), RequestTracker(window=4_096))
    for _ in range(60):
        if held and dice.random() < 0.4:
            gone = dice.sample(sorted(held), dice.randint(1, len(held)))
            outbox.settled(gone)
            await outbox.flush()
            for number in gone:
                del held[number], taken[number]
            continue
        if dice.random() < 0.1:  # the next process
            await outbox.close()
            outbox = await DurableOutbox.open(tmp_path / "o")
            outbox.begin(ClientId(1), RequestTracker(window=4_096))
            taken = {number: _pending(number, 0) for number in held}
        back = []
        if dice.random() < 0.3:  # the next session, in which those go on that are taken back: they need no more room
            back = [one for one in taken.values() if isinstance(one.promise, KeptPromise) and dice.random() < 0.5]
        wanted = []
        for _ in range(dice.randint(0 if back else 1, 3)):
            sequence += 1
            place = dice.choice((None, sequence))
            wanted.append(_pending(sequence, dice.choice((0, 10, dice.randint(0, 400))), place))
        exact = BYTES_MAX - sum(held.values()) - sum(_size(one) for one in wanted)
        if wanted and dice.random() < 0.4 and -400 < exact < 400:
            # The last byte there is room for, or one more than that.
            grown = len(wanted[-1].operation.value) + exact + dice.choice((0, 1))
            wanted[-1] = _pending(sequence, max(0, grown), wanted[-1].position)
        sizes = {one.operation.sequence: _size(one) for one in wanted}
        fits = len(held) + len(sizes) <= ENTRIES_MAX and sum(held.values()) + sum(sizes.values()) <= BYTES_MAX
        if fits:
            before = [one.operation.sequence for one in back]
            for one in back:
                sequence += 1
                outbox.take_back(one.promise)  # type: ignore[arg-type]
                one.operation.sequence = sequence
            await outbox.add([*back, *wanted])
            for number in before:
                del held[number], taken[number]
            held |= sizes | {one.operation.sequence: _size(one) for one in back}
            taken |= {one.operation.sequence: one for one in (*back, *wanted)}
            position = next((one.position for one in reversed(wanted) if one.position is not None), position)
        else:
            full += 1
            with pytest.raises(OperationFailed) as refused:
                await outbox.add(wanted)
            assert (refused.value.code, refused.value.outcome) == (Code.QUOTA, Outcome.NOT_APPLIED)
            assert not any(isinstance(one.promise, KeptPromise) for one in wanted)
        with_file = OutboxFile(tmp_path / "o", read_only=True)
        assert {entry.sequence for entry in with_file.loaded} == set(held)
        assert (with_file.head.position, outbox.position) == (position, position)
        assert (len(with_file), with_file.bytes) == (len(held), sum(held.values()))
        with_file.close()
    assert full
    await outbox.close()


@pytest.mark.parametrize("full", [False, True])
async def test_outbox_that_cannot_be_written_any_more_takes_nothing_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full: bool
) -> None:
    outbox = await DurableOutbox.open(tmp_path / "o")
    await outbox.rename(client_id=1)
    outbox.begin(ClientId(1), RequestTracker(window=8))
    await outbox.add([_pending(1, 0, position=1)])

    def write(*_: object, **__: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(OutboxFile, "write", write)
    with pytest.raises(OutcomeUnknown) as broken:
        await outbox.flush()
    assert outbox.broken is broken.value
    if full:
        monkeypatch.setattr(durable_outbox, "ENTRIES_MAX", 0)
    pending = _pending(2, 0, position=2)
    promise = pending.promise
    with pytest.raises(OutcomeUnknown) as refused:
        await outbox.add([pending])
    assert refused.value is outbox.broken
    assert pending.promise is promise
    assert outbox.position == 1
    await outbox.close()


def _size(pending: Pending) -> int:
    return len(msgspec.msgpack.encode(pending.operation))
