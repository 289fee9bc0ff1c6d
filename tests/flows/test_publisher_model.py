"""The queue between apply and the disk against a plain list of what was asked for, on disks that fail now and then.

Batches and drops come in any order, readers keep files back meanwhile, and attempts fail. The reference does everything
in the order in which it was asked for: what is on the disk at the end, what is read on the way, and what still waits.
"""

from __future__ import annotations

import random
from contextlib import ExitStack

import pytest

from oncegate.flows import segment
from oncegate.flows.errors import NotFoundError
from oncegate.flows.publisher import Publisher
from tests.flows.test_publisher import TIMEOUT_S, FakeDisk, batch, payload

FLOWS = "fg"


class Sides:
    """A publisher and what has to come of it."""

    def __init__(self, seed: int) -> None:
        self.dice, self.disk = random.Random(seed), FakeDisk()
        self.failed: list[tuple[str, int]] = []
        self.publisher = Publisher(
            self.disk,
            on_failure=lambda flow, number, _: self.failed.append((flow, number)),
            pending_batches_max=4,
            retry_ms=0,
        )
        self.newest = dict.fromkeys(FLOWS, 0)
        self.there: dict[tuple[str, int], bytes] = {}
        """What is read: what was submitted and not removed since."""
        self.due = dict.fromkeys(FLOWS, 0)
        """Newest batch that is to go of each flow once nobody keeps them."""
        self.keepers: list[ExitStack] = []
        self.publisher.start()

    def submit(self) -> None:
        flow = self.dice.choice(FLOWS)
        self.newest[flow] += 1
        sealed = batch(self.newest[flow], flow)
        for _ in range(self.dice.choice((0, 0, 0, 2))):
            self.disk.failures.append(OSError(28, "No space left on device"))
        self.publisher.submit(sealed)
        self.there[flow, sealed.number] = payload(sealed)

    def drop(self) -> None:
        flow = self.dice.choice(FLOWS)
        number = self.dice.randint(0, self.newest[flow])
        self.publisher.drop_through(flow, number)
        if self.keepers:
            self.due[flow] = max(self.due[flow], number)
        else:
            self._gone(flow, number)

    def _gone(self, flow: str, number: int) -> None:
        self.there = {place: data for place, data in self.there.items() if place[0] != flow or place[1] > number}

    def keep(self) -> None:
        self.wait()
        stack = ExitStack()
        stack.enter_context(self.publisher.keeping())
        self.keepers.append(stack)

    def let_go(self) -> None:
        if not self.keepers:
            return
        self.wait()
        self.keepers.pop(self.dice.randrange(len(self.keepers))).close()
        if not self.keepers:
            for flow, number in self.due.items():
                self._gone(flow, number)
            self.due = dict.fromkeys(FLOWS, 0)

    def read(self) -> None:
        """Read anything that no drop on its way could remove."""
        for (flow, number), data in self.there.items():
            assert self.publisher.get(flow, number) == data
            offset, size = self.dice.randint(0, len(data)), self.dice.randint(0, len(data))
            piece = self.publisher.piece(flow, number, offset, size)
            assert piece == (len(data), segment.checksum(data), data[offset : offset + size])
            assert self.publisher.checksum(flow, number) == segment.checksum(data)

    def wait(self) -> None:
        """What was asked for until now is done when the publisher says so."""
        assert self.publisher.wait_done(self.publisher.mark(), TIMEOUT_S)
        assert self.disk.batches == self.there
        assert (self.publisher.pending_bytes, self.publisher.overloaded) == (0, False)
        assert not any(self.publisher.has(*place) for place in self.there)

    def stall(self) -> None:
        """The disk does nothing for a while: all is read from memory, and what waits is counted."""
        self.wait()
        self.disk.gate.clear()
        begun = dict(self.newest)
        for _ in range(self.dice.randint(1, 6)):
            self.submit()
        waiting = [(flow, n) for flow in FLOWS for n in range(begun[flow] + 1, self.newest[flow] + 1)]
        assert all(self.publisher.has(*place) for place in waiting)
        assert self.publisher.overloaded == (len(waiting) >= 4)
        for flow, number in waiting:  # again: as after a restart that applies the log once more
            self.publisher.submit(batch(number, flow))
        assert self.publisher.pending_bytes == sum(batch(number, flow).size_bytes for flow, number in waiting)
        self.read()
        self.disk.gate.set()


@pytest.mark.parametrize("seed", range(8))
def test_disk_holds_what_was_asked_for_in_the_order_in_which_it_was(seed: int) -> None:
    sides = Sides(seed)
    try:
        for _ in range(40):
            does = (sides.submit, sides.read, sides.drop, sides.wait, sides.keep, sides.let_go, sides.stall)
            sides.dice.choices(does, (6, 1, 3, 1, 1, 2, 1))[0]()
        while sides.keepers:
            sides.let_go()
        sides.wait()
        gone = {(flow, n) for flow in FLOWS for n in range(1, sides.newest[flow] + 1)} - sides.there.keys()
        for place in gone:
            with pytest.raises(NotFoundError):
                sides.publisher.get(*place)
    finally:
        sides.disk.gate.set()
        sides.publisher.close(TIMEOUT_S)
    assert not sides.publisher.alive
