"""Copies of a node that is described by a few lists: what is fetched, kept and given back, whatever fails on the way.

The node here has the parts that a copy is made with, and each may fail, or seal and drop batches meanwhile; whoever
asked may be gone before the state is saved. After each step: no file is kept back and no snapshot is open but for the
copies that are read, each of those is forgotten by one timer, and what cannot be made takes no place.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from oncegate.consensus.errors import ConsensusError, NotReady
from oncegate.consensus.ports import SavedPoint
from oncegate.gateway.backup.manifest import Manifest
from oncegate.gateway.backup.taking import COPIES_MAX, Copies, Copy
from oncegate.gateway.machine.state.errors import StateCorrupt
from oncegate.rifl.errors import Code, OncegateError

FLOWS = ("f", "g", "empty")
MADE = Manifest(1, "c", "i" * 32, "n1", "1", SavedPoint(7, 2, b""), 9, 6, 0, 0, 0, {}, {}, [])


class Snapshot:
    def __init__(self, node: Node) -> None:
        self.node, self.directory = node, Path()
        node.open.add(self)

    def close(self) -> None:
        self.node.open.remove(self)


class Node:
    """What a copy is made of; ``steps`` are counted, and one of them fails."""

    def __init__(self, dice: random.Random) -> None:
        self.dice, self.open = dice, set[Snapshot]()
        self.keepers = 0
        self.fail_in: int | None = None
        self.fault: BaseException = OSError(5, "I/O")
        self.applied = 10
        self.has_reached = False
        self.batches = {name: SimpleNamespace(first=1, last=0) for name in FLOWS}
        self.stored = {name: set[int]() for name in FLOWS}
        self.pending: set[tuple[str, int]] = set()
        self.fetched: list[tuple[str, int]] = []
        self.saved_at: int | None = None
        self.copied = Path()
        flows = SimpleNamespace(names=lambda: list(FLOWS), find=self._find)
        self.machine = SimpleNamespace(flows=flows)
        self.reads = SimpleNamespace(reach=self._reach)
        self.publisher = SimpleNamespace(keeping=self._keeping, has=lambda name, at: (name, at) in self.pending)
        self.store = SimpleNamespace(list=self._list)
        self.fetcher = SimpleNamespace(ensure=self._ensure)
        self.replica = SimpleNamespace(status=lambda: SimpleNamespace(applied_index=self.applied))
        self.state = SimpleNamespace(
            store_path=Path(), ask_to_save=self._ask, wait_saved_at=self._wait, open_snapshot=self._snapshot
        )
        self.is_asked = False
        """To save, since the last time that it was waited for."""
        self.is_slow = False
        """The state is not saved in time."""
        self.deleted: set[str] = set()
        """Flows that go while the copy is made."""

    def step(self, *, of_consensus: bool = False) -> None:
        if self.fail_in is not None:
            self.fail_in -= 1
            if self.fail_in < 0:
                self.fail_in = None
                raise OSError if isinstance(self.fault, ConsensusError) and not of_consensus else self.fault

    def begin(self) -> None:
        """A new state: some batches lie here, some wait for the disk, the others are at other nodes."""
        self.fetched, self.saved_at, self.has_reached, self.is_asked = [], None, False, False
        self.is_slow = self.dice.random() < 0.1
        self.deleted = {name for name in FLOWS if self.dice.random() < 0.1}
        for name in FLOWS[:2]:
            batches = self.batches[name]
            batches.first = self.dice.randint(1, 4)
            batches.last = batches.first + self.dice.randint(-1, 4)
            retained = range(batches.first, batches.last + 1)
            self.stored[name] = {number for number in range(1, batches.last + 3) if self.dice.random() < 0.5}
            self.pending -= {(name, number) for number in range(99)}
            self.pending |= {(name, at) for at in retained if at not in self.stored[name] and self.dice.random() < 0.4}

    def lacked(self) -> list[tuple[str, int]]:
        flows = [name for name in FLOWS if name not in self.deleted]
        retained = [(name, at) for name in flows for at in range(self.batches[name].first, self.batches[name].last + 1)]
        return [one for one in retained if one[1] not in self.stored[one[0]] and one not in self.pending]

    async def _reach(self, level: str, commit: int) -> None:
        assert (level, commit) == ("linearizable", 0)
        await asyncio.sleep(0)
        self.step()
        self.applied += 5
        self.has_reached = True

    @contextmanager
    def _keeping(self) -> Iterator[None]:
        self.keepers += 1
        try:
            yield
        finally:
            self.keepers -= 1

    def _find(self, name: str) -> Any:
        return None if name in self.deleted else SimpleNamespace(batches=self.batches[name])

    def _list(self, name: str) -> list[int]:
        self.step()
        return sorted(self.stored[name])

    async def _ensure(self, name: str, number: int) -> None:
        assert self.keepers, "what is fetched must not be removed again"
        await asyncio.sleep(0)
        self.step()
        self.fetched.append((name, number))

    def _ask(self) -> None:
        self.is_asked = True

    def _wait(self, index: int, timeout_s: float) -> bool:
        self.step(of_consensus=True)
        assert self.is_asked
        assert self.keepers
        assert self.has_reached
        assert self.fetched == self.lacked(), "a state is saved once its batches are here"
        self.saved_at = index
        return not self.is_slow

    def _snapshot(self) -> Snapshot:
        self.step(of_consensus=True)
        if self.keepers == 1:
            # Another state may be installed from here on: what was copied is not of its store.
            self.copied, self.state.store_path = self.state.store_path, Path(f"store{self.saved_at}")
        return Snapshot(self)


class Timer:
    live: list[Timer]

    def __init__(self, copy_id: str) -> None:
        self.copy_id = copy_id
        self.live.append(self)

    def cancel(self) -> None:
        self.live.remove(self)


class Made(Copies):
    """Copies whose timers run out when the test says so, and whose files are of no account."""

    def __init__(self, node: Any) -> None:
        super().__init__(node, "1")
        self.timers: list[Timer] = []
        Timer.live = self.timers

    def _expiry(self, copy_id: str) -> Any:
        return Timer(copy_id)

    def _described(self, snapshot: Any, store_path: Path) -> Manifest:
        node: Any = self._node
        node.step()
        assert node.keepers
        assert node.keepers > 1 or store_path == node.copied, "damage is told of the store that was copied"
        return MADE


FAULTS = (
    OSError(28, "No space left on device"),
    OncegateError(Code.NOT_READY, "not whole"),
    NotReady("nothing has been saved"),
    RuntimeError("a bug"),
)


@pytest.mark.parametrize("seed", range(8))
async def test_copies_hold_what_they_need_while_they_are_read_and_nothing_after(seed: int) -> None:
    dice = random.Random(seed)
    node = Node(dice)
    copies = Made(node)
    held: list[str] = []
    gone_ones: list[str] = []
    for _ in range(40):
        what = dice.choice(("make", "make", "fail", "cancel", "find", "discard", "expire"))
        if what in ("make", "fail", "cancel"):
            node.begin()
            node.fault = dice.choice(FAULTS)
            node.fail_in = dice.randrange(14) if what == "fail" else None
            is_full = len(held) == COPIES_MAX
            asked = asyncio.ensure_future(copies.make())
            if what == "cancel":
                for _ in range(dice.randrange(6)):
                    await asyncio.sleep(0)
                asked.cancel()
            applied = node.applied
            with suppress(OSError, OncegateError, ConsensusError, RuntimeError, asyncio.CancelledError):
                held.append((await asked).id)
                assert node.saved_at is not None
                assert node.saved_at >= applied, "all that was applied at the read point is in it"
            refused = None if asked.cancelled() else asked.exception()
            assert not isinstance(refused, ConsensusError), "callers know refusals of the gateway only"
            code = refused.code if isinstance(refused, OncegateError) else None
            if not asked.cancelled():
                assert (code is Code.OVERLOADED) == is_full
            assert not is_full or not node.has_reached, "one that has no place asks nobody"
            if what == "make" and not is_full:
                assert code is (Code.TIMEOUT if node.is_slow else None)
                assert node.is_slow or refused is None
        elif what == "find":
            for copy_id in (*held, *gone_ones[-2:], ""):
                if copy_id in held:
                    assert copies.find(copy_id).id == copy_id
                    continue
                with pytest.raises(OncegateError) as missing:
                    copies.find(copy_id)
                assert missing.value.code is Code.NOT_FOUND
        elif held and what == "discard":
            await copies.discard(gone := held.pop(dice.randrange(len(held))))
            await copies.discard(gone)
            gone_ones.append(gone)
        elif held and what == "expire":
            timer = dice.choice(copies.timers)
            copies.timers.remove(timer)
            copies._expired(held.pop(held.index(timer.copy_id)))
            copies.timers.append(timer)  # as a handle that has run, it can still be cancelled
            await asyncio.gather(*copies._discarding)
        node.fail_in = None
        assert node.keepers == 0
        assert len(node.open) == len(held)
        assert sorted(timer.copy_id for timer in copies.timers) == sorted(held)
    for copy_id in held[1:]:
        await copies.discard(copy_id)
    for copy_id in held[:1]:
        copies._expired(copy_id)
        await asyncio.sleep(0)  # it is being given back, and nobody has waited for that
    expired = set(copies._discarding)
    await copies.close()
    assert all(task.done() for task in expired)
    assert not node.open
    assert not copies.timers


async def test_no_more_copies_are_made_at_once_than_may_be_there() -> None:
    node = Node(random.Random(1))
    copies = Made(node)
    for there in range(COPIES_MAX + 1):
        node.begin()
        node.is_slow = False
        node.batches = {name: SimpleNamespace(first=1, last=0) for name in FLOWS}
        ends = await asyncio.gather(*(copies.make() for _ in range(COPIES_MAX + 2)), return_exceptions=True)
        made = [end for end in ends if isinstance(end, Copy)]
        assert len(made) == COPIES_MAX - there
        assert {end.code for end in ends if isinstance(end, OncegateError)} == {Code.OVERLOADED}
        for copy in made[min(1, len(made)) :]:
            await copies.discard(copy.id)
        if there < COPIES_MAX:
            assert len(copies._copies) == len(node.open) == there + 1
    await copies.close()
    assert not node.open


@pytest.mark.parametrize("fault", FAULTS)
async def test_fault_of_any_step_leaves_nothing_behind(fault: BaseException) -> None:
    for failing in range(99):
        node = Node(random.Random(3))
        node.begin()
        node.is_slow, node.fault, node.fail_in = False, fault, failing
        copies = Made(node)
        try:
            copy = await copies.make()
        except (OSError, OncegateError, RuntimeError):
            assert not node.open, failing
            assert not node.keepers, failing
            assert not copies.timers, failing
            continue
        assert failing > 6, "each part of a copy is a step"
        await copies.discard(copy.id)
        return
    pytest.fail("it never succeeds")


async def test_a_state_that_cannot_be_saved_is_a_refusal_that_callers_know() -> None:
    node = Node(random.Random(1))
    copies, faults = Made(node), iter((NotReady("nothing has been saved"), StateCorrupt(Path("x"), "a block")))

    def fails(index: int, timeout_s: float) -> bool:
        raise next(faults)

    node.state.wait_saved_at = fails
    for _ in range(2):
        with pytest.raises(OncegateError) as refused:
            await copies.make()
        assert refused.value.code is Code.NOT_READY
    assert not node.keepers
