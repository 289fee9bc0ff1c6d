"""An outbox and its file against a plain dictionary of entries, over lost sessions and restarts.

What is noted is on disk with the next transaction; what may be acknowledged is settled there; and "not applied" is told
when nothing is left that a restart would send.
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import msgspec
import pytest

from oncegate import OperationFailed, OutcomeUnknown, RequestId, Resolution, WriteResult
from oncegate.gateway.client.batch import Pending
from oncegate.gateway.client.durable_outbox import DurableOutbox
from oncegate.gateway.client.outbox_file import FORMAT, Head, Learned, NewEntry, OutboxFile
from oncegate.gateway.wire import Operation
from oncegate.rifl.errors import Code, Outcome
from oncegate.rifl.ids import ClientId, SequenceNumber
from oncegate.rifl.request_tracker import RequestTracker
from tests.client.answers import settle

Key = tuple[int, int]
Entry = tuple[object, bool, Resolution | None]
"""The value that is written, whether it is in doubt, and its fate."""


def _fate(key: Key, commit: int) -> Resolution:
    if commit % 3 == 0:
        return Resolution("sealed")
    return Resolution(
        "applied", WriteResult(ClientId(key[0]), SequenceNumber(key[1]), True, commit, commit, 7, False, 0)
    )


def _id(key: Key) -> RequestId:
    return RequestId(ClientId(key[0]), SequenceNumber(key[1]))


def opened(path: Path) -> OutboxFile:
    file = OutboxFile(path)
    file._database.execute("PRAGMA synchronous=OFF")  # no power is lost here
    return file


def _on_disk(path: Path) -> tuple[Head, dict[Key, Entry]]:
    file = OutboxFile(path, read_only=True)
    try:
        found: dict[Key, Entry] = {
            (one.client_id, one.sequence): (one.operation.value, one.doubted, one.fate) for one in file.loaded
        }
        assert list(found) == sorted(found)
        return file.head, found
    finally:
        file.close()


@pytest.mark.parametrize("seed", range(6))
def test_file_has_what_was_written_of_each_session_whatever_one_transaction_says_of_an_entry(
    tmp_path: Path, seed: int
) -> None:
    dice, path = random.Random(seed), tmp_path / "o"
    model: dict[Key, tuple[Operation, bool, int, Resolution | None]] = {}
    file, head, keys = opened(path), Head(), [(owner, number) for owner in (1, 2, 2**40) for number in range(1, 6)]
    reader = OutboxFile(path, read_only=True)
    for step in range(1, 60):
        if step == 1 or dice.random() < 0.3:
            owner = dice.choice((1, 2, 2**40))
            head = Head(FORMAT, f"n{step}", owner, step, 8, dice.choice((None, step, {"at": [step]})), f"c{step % 3}")
            new = head
        else:
            new = None
        numbers = dice.sample(range(1, 6), dice.randint(0, 3))
        added = {one: Operation(one, "put", "rows", f"k{one}", "v" * dice.randint(0, 99)) for one in numbers}
        dropped, doubted, learned = (dice.choices(keys, k=dice.randint(0, 3)) for _ in range(3))
        fates = [(_id(key), _fate(key, 100 * step + at)) for at, key in enumerate(learned)]
        file.write(
            [NewEntry(number, msgspec.msgpack.encode(one)) for number, one in added.items()],
            dropped,
            doubted,
            fates,
            head=new,
            now_ms=step,
        )
        for request, fate in fates:
            if request in model and model[request][3] is None:
                model[request] = (model[request][0], True, model[request][2], fate)
        for key in dropped:
            model.pop(key, None)
        for key in doubted:
            if key in model:
                model[key] = (model[key][0], True, *model[key][2:])
        model |= {(head.client_id, number): (one, False, step, None) for number, one in added.items()}
        assert (len(file), file.unsettled) == (len(model), [one[3] for one in model.values()].count(None))
        bodies = [
            msgspec.msgpack.encode(one if fate is None else Learned(msgspec.Raw(msgspec.msgpack.encode(one)), fate))
            for one, _, _, fate in model.values()
        ]
        assert file.bytes == sum(map(len, bodies))
        reader.reload()
        assert (len(reader), reader.unsettled, reader.bytes) == (len(file), file.unsettled, file.bytes)
        asked = dice.choice(keys)
        found = file.entry(*asked)
        assert (found and (found.operation, found.doubted, found.taken_ms, found.fate)) == model.get(asked)
        if dice.random() < 0.3:
            entries = file.reload()
        elif dice.random() < 0.3:
            file.close()
            file = opened(path)
            entries = file.loaded
        else:
            continue
        assert file.head == head
        assert [(one.client_id, one.sequence) for one in entries] == sorted(model)
        for one in entries:
            assert (one.operation, one.doubted, one.taken_ms, one.fate) == model[one.client_id, one.sequence]
            assert (one.op, one.table, one.key) == ("put", "rows", f"k{one.sequence}")
    reader.close()
    file.close()


class Walk:
    """An outbox, and what its file is to hold once everything noted is written."""

    def __init__(self, path: Path, dice: random.Random) -> None:
        self.path, self.dice = path, dice
        self.outbox: DurableOutbox
        self.model: dict[Key, Entry] = {}
        self.open: dict[int, Pending] = {}
        self.back: list[Pending] = []
        self.client_id = self.made = 0
        self.tracker: RequestTracker
        self.callers: dict[object, asyncio.Future[Any]] = {}
        self.position: object = None

    async def begin(self, *, again: bool = False) -> None:
        """Open the next session."""
        outbox, self.client_id = self.outbox, self.client_id + 1
        if again:
            await outbox.reload()
            own = {self.key_of(one) for one in self.back}
            unknown = {key for key, (_, _, fate) in self.model.items() if fate is None and key not in own}
            assert {(one.client_id, one.sequence) for one in outbox.entries} == unknown
        await outbox.rename(nonce=f"n{self.client_id}")
        await outbox.rename(client_id=self.client_id, lease_ms=1_000, window=64)
        self.tracker = RequestTracker(window=64)
        outbox.begin(ClientId(self.client_id), self.tracker)

    def is_used(self, key: Key) -> bool:
        """Whether somebody waits for a write, or will send it in the next session."""
        return key in {(self.client_id, number) for number in self.open} or key in map(self.key_of, self.back)

    @staticmethod
    def key_of(pending: Pending) -> Key:
        return pending.promise.entry  # type: ignore[attr-defined, no-any-return]

    def some(self) -> list[int]:
        return self.dice.sample(sorted(self.open), self.dice.randint(0, min(3, len(self.open))))

    def made_pending(self) -> Pending:
        self.made += 1
        caller: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        position = self.dice.choice((None, None, self.made))
        operation = Operation(0, "put", "rows", "k", value=self.made)
        caller.add_done_callback(lambda told: told.cancelled() or told.exception())
        self.callers[self.made] = caller
        return Pending(operation, None, caller, 1e9, position)

    async def add(self, *, overtaken: bool) -> None:
        pendings = self.dice.sample(self.back, self.dice.randint(0, min(2, len(self.back))))
        pendings += [self.made_pending() for _ in range(self.dice.randint(0 if pendings else 1, 2))]
        self.dice.shuffle(pendings)
        came: dict[Key, Entry] = {}
        for pending, number in zip(pendings, self.tracker.take_singles(len(pendings)), strict=True):
            if pending in self.back:
                self.back.remove(pending)
                self.model.pop(self.key_of(pending))
            elif pending.position is not None:
                self.position = pending.position
            pending.operation.sequence = number
            came[self.client_id, number] = (pending.operation.value, False, None)
        task = asyncio.ensure_future(self.outbox.add(pendings))
        await asyncio.sleep(0)
        if overtaken:  # while that is written
            self.settled(self.some())
        await task
        self.model |= came
        self.open |= {pending.operation.sequence: pending for pending in pendings}

    def settled(self, numbers: list[int], *, released: bool = False) -> None:
        (self.tracker.release if released else self.tracker.complete)(numbers)
        self.outbox.settled(numbers)
        for number in numbers:
            del self.model[self.client_id, number]
            del self.open[number]

    def doubt(self, numbers: list[int]) -> None:
        self.tracker.abandon(numbers)
        self.outbox.doubted(numbers)
        for number in numbers:
            value, _, fate = self.model[self.client_id, number]
            self.model[self.client_id, number] = (value, True, fate)
            self.open.pop(number).promise.set_exception(OutcomeUnknown(Code.TIMEOUT))

    def lose(self) -> None:
        """Lose the session: its writes are in doubt, or taken back."""
        numbers = sorted(self.open)
        taken = [number for number in numbers if self.dice.random() < 0.6]
        for number in taken:
            pending = self.open.pop(number)
            self.outbox.take_back(pending.promise)  # type: ignore[arg-type]
            pending.operation.sequence = 0
            self.back.append(pending)
        self.doubt([number for number in numbers if number not in taken])

    async def refuse(self, pending: Pending) -> None:
        """Have a write refused for certain: who hears of it finds no entry any more."""
        key, caller = self.key_of(pending), self.callers[pending.operation.value]
        pending.promise.set_exception(OperationFailed(Code.QUOTA, outcome=Outcome.NOT_APPLIED))
        assert pending.promise.done()
        assert not caller.done()
        del self.model[key]
        with pytest.raises(OperationFailed, match="QUOTA") as refused:
            await caller
        assert refused.value.outcome is Outcome.NOT_APPLIED
        assert key not in _on_disk(self.path)[1]

    async def restart(self) -> None:
        await self.outbox.close()
        await self.enter()

    async def enter(self) -> None:
        self.outbox = await DurableOutbox.open(self.path)
        self.outbox._file._database.execute("PRAGMA synchronous=OFF")  # no power is lost here
        assert {(one.client_id, one.sequence) for one in self.outbox.entries} == set(self.model)
        assert self.outbox.position == self.position
        self.open.clear()
        self.back.clear()
        await self.begin()

    def acknowledges_what_is_settled_on_disk(self) -> None:
        for (owner, number), (_, doubted, fate) in _on_disk(self.path)[1].items():
            assert owner != self.client_id or number >= self.outbox.first_incomplete or doubted or fate is not None
        assert self.outbox.first_incomplete <= self.tracker.first_incomplete


STEPS = (
    *("add", "add", "add", "overtaken", "settle", "release", "doubt", "doubt", "learn", "learn", "drop", "refuse"),
    *("give up", "flush", "flush", "forget", "mark", "entry", "lose", "restart", "belong"),
)


@pytest.mark.parametrize("seed", range(8))
async def test_outbox_keeps_each_write_until_it_is_settled_and_under_one_name(tmp_path: Path, seed: int) -> None:
    dice, cluster = random.Random(seed), ""
    walk = Walk(tmp_path / "o", dice)
    await walk.enter()
    for at in range(120):
        step, entries, outbox = dice.choice(STEPS), walk.model, walk.outbox
        written = step not in ("settle", "release", "doubt", "learn", "drop", "give up", "overtaken")
        match step:
            case "add" | "overtaken":
                await walk.add(overtaken=step == "overtaken")
            case "settle" | "release":
                walk.settled(walk.some(), released=step == "release")
            case "doubt":
                walk.doubt(walk.some())
            case "learn":
                for key in dice.sample(sorted(entries), min(2, len(entries))):
                    if not walk.is_used(key):
                        fate = _fate(key, at)
                        outbox.learned(_id(key), fate)
                        entries[key] = (entries[key][0], True, entries[key][2] or fate)
                        if key[0] == walk.client_id and walk.tracker.is_abandoned(key[1]):
                            walk.tracker.settle(key[1])
            case "drop" | "forget":
                left = [key for key in sorted(entries) if not walk.is_used(key)][-2:]
                for key in left:
                    del entries[key]
                    if step == "drop":
                        outbox.drop(_id(key))
                if step == "forget":
                    loaded = OutboxFile(walk.path, read_only=True)
                    await outbox.forget([one for one in loaded.loaded if (one.client_id, one.sequence) in left])
                    loaded.close()
            case "mark":
                loaded = OutboxFile(walk.path, read_only=True)
                mine = [one for one in loaded.loaded if not walk.is_used((one.client_id, one.sequence))][:2]
                loaded.close()
                await outbox.mark(mine)
                for one in mine:
                    if (key := (one.client_id, one.sequence)) in entries:
                        entries[key] = (entries[key][0], True, entries[key][2])
            case "refuse":
                if walk.open and dice.random() < 0.7:
                    number = dice.choice(sorted(walk.open))
                    await walk.refuse(walk.open.pop(number))
                    walk.tracker.release([number])
                    await outbox.flush()
                elif walk.back:
                    await walk.refuse(walk.back.pop())
                else:
                    continue
            case "give up":
                if walk.back:
                    gone = walk.back.pop()
                    walk.callers[gone.operation.value].cancel()
                    del entries[walk.key_of(gone)]
            case "entry":
                number = dice.randint(1, 12)
                found = await outbox.entry(number)
                told = found and (found.operation.value, found.doubted, found.fate)
                assert told == entries.get((walk.client_id, number))
            case "lose":
                walk.lose()
                await walk.begin(again=True)
            case "restart":
                await walk.restart()
            case "belong":
                cluster = f"c{at}"
                await outbox.belong(cluster)
                written = False
            case _:
                await outbox.flush()
        walk.acknowledges_what_is_settled_on_disk()
        if written:
            head, found_there = _on_disk(walk.path)
            assert found_there == walk.model
            assert set(walk.outbox._taken_back) == set(map(walk.key_of, walk.back))
            noted = [*walk.outbox._dropped, *walk.outbox._doubted, *walk.outbox._learned]
            assert not noted, "it would be written again"
            assert walk.outbox.empty == all(fate is not None for _, _, fate in walk.model.values())
            assert (head.client_id, head.lease_ms, head.window) == (walk.client_id, 1_000, 64)
            assert (head.position, head.cluster, head.nonce) == (walk.position, cluster, "")
            assert walk.outbox.position == walk.position
            assert walk.outbox.first_incomplete == walk.tracker.first_incomplete
    await walk.outbox.close()
    assert _on_disk(walk.path)[1] == walk.model


async def test_what_is_noted_is_written_although_no_write_follows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oncegate.gateway.client.durable_outbox.IDLE_FLUSH_S", 0.0)
    walk = Walk(tmp_path / "o", random.Random(0))
    await walk.enter()
    for step in 2 * ("settle", "doubt", "learn", "drop"):
        await walk.add(overtaken=False)
        number, key = min(walk.open), (walk.client_id, min(walk.open))
        match step:
            case "settle":
                walk.settled([number])
            case "doubt":
                walk.doubt([number])
            case "learn":
                fate = _fate(key, 1)
                walk.outbox.learned(_id(key), fate)
                walk.model[key] = (walk.model[key][0], True, fate)
                del walk.open[number]
            case _:
                walk.outbox.drop(_id(key))
                del walk.model[key], walk.open[number]
        async with asyncio.timeout(20):
            while _on_disk(walk.path)[1] != walk.model:
                await settle()
    await walk.outbox.close()
