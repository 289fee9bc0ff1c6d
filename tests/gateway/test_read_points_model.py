"""When a read may be answered: not before its level and its commit number allow, and refused for one reason, in time.

The test plays the replica, whose calls take time, fail and are asked again between two leaders, the machine, which
applies meanwhile, and the clock. A linearizable read is answered from a state that has applied what was committed when
it began. All that a read waits for, one after the other, ends within one bound.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from oncegate.consensus import errors as ce
from oncegate.gateway.node.between_leaders import HOLD_MS
from oncegate.gateway.node.reads import Reads
from oncegate.rifl.errors import Code, OncegateError, Outcome

LEVELS = ("linearizable", "linearizable", "session", "stale", "eventual")
ANSWER_S = 5.0
FAULTS: dict[type[ce.ConsensusError], tuple[Code, Callable[[], ce.ConsensusError]]] = {
    ce.Timeout: (Code.TIMEOUT, lambda: ce.Timeout("a read", 1.0, outcome="unknown")),
    ce.StorageError: (Code.NOT_READY, lambda: ce.StorageError("damaged")),
    ce.NoLeader: (Code.NO_LEADER, lambda: ce.NoLeader("lost")),
}


class Read:
    """One read. Stands for the replica and the machine."""

    def __init__(self, dice: random.Random, now: list[float]) -> None:
        self.dice, self.now = dice, now
        self.level = dice.choice(LEVELS)
        self.commit = 10
        self.min_commit = dice.choice((0, 9, 10, 11, 13))
        self.own_s = dice.choice((None, 0.25, 2.0))
        self.began_s = now[0]
        self.due_s = now[0] + (ANSWER_S if self.own_s is None else self.own_s)
        self.index: int | None = None
        self.applied = False
        """The state has applied what was committed when the read began."""
        self.fault: ce.ConsensusError | None = None
        nothing: Any = None
        me: Any = self
        self.reads = Reads(me, me, nothing, nothing, answer_s=ANSWER_S)

    def call(self, timeout_s: float) -> None:
        """Take some time, and fail at times."""
        assert timeout_s == pytest.approx(self.due_s - self.now[0]), "what is left of the one bound"
        self.now[0] += self.dice.choice((0.0, 0.0625))
        fault = self.dice.choice((None, None, None, *FAULTS))
        self.fault = None if fault is None else FAULTS[fault][1]()
        if self.fault is not None:
            raise self.fault

    async def read_index(self, *, timeout_s: float) -> int:
        assert self.index is None
        await asyncio.sleep(0)
        self.call(timeout_s)
        self.index, self.fault = self.dice.randrange(100), None
        return self.index

    async def wait_applied(self, index: int, *, timeout_s: float) -> None:
        assert index == self.index
        self.call(timeout_s)
        self.commit += self.dice.choice((0, 0, 1))
        self.applied = True

    def goes_on(self) -> None:
        """Let something happen that a read may wait for, or nothing."""
        what = self.dice.choice(("applied", "led", "led", "lost", "time", "time"))
        if what == "applied":
            self.commit += 1
            self.reads.applied(self.commit)
        elif what in ("led", "lost"):
            self.reads.lead.change(known=what == "led")
        else:
            self.now[0] += self.dice.choice((0.125, HOLD_MS / 1000, 2.0))

    def judge_refusal(self, refusal: OncegateError) -> str:
        if refusal.code is Code.BAD_REQUEST:
            assert self.level == "eventual"
            return "level"
        assert self.level in LEVELS[:-1]
        if "has not been applied" in refusal.detail:
            assert self.applied or self.level != "linearizable"
            assert self.commit < self.min_commit
            assert self.now[0] >= self.due_s
            assert (refusal.code, refusal.outcome) == (Code.NOT_READY, Outcome.NOT_APPLIED)
            return "commit"
        assert self.fault is not None
        assert refusal.code is FAULTS[type(self.fault)][0]
        if isinstance(self.fault, ce.NoLeader) and self.index is None:
            assert self.now[0] >= min(self.began_s + HOLD_MS / 1000, self.due_s), "somebody might lead soon"
            return "lead"
        return "fault"


@pytest.mark.parametrize("seed", range(4))
async def test_a_read_is_answered_from_a_state_that_is_new_enough_or_refused_when_its_time_is_over(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    dice, seen, loop = random.Random(seed), Counter[str](), asyncio.get_running_loop()
    now = [float(int(loop.time()))]  # and all that is added to it are binary fractions
    with monkeypatch.context() as patched:
        patched.setattr(loop, "time", lambda: now[0])
        for _ in range(500):
            read = Read(dice, now)
            task = asyncio.create_task(read.reads.reach(read.level, read.min_commit, read.own_s))
            for _ in range(6):
                await asyncio.sleep(0)
            while not task.done():
                assert now[0] < read.due_s, "it waits for too long"
                if isinstance(read.fault, ce.NoLeader):
                    assert now[0] < read.began_s + HOLD_MS / 1000, "it waits for a leader for too long"
                read.goes_on()
                for _ in range(6):
                    await asyncio.sleep(0)
            fault = task.exception()
            assert not read.reads.commit_waiters
            if fault is None:
                assert read.level in LEVELS[:-1]
                assert read.commit >= read.min_commit
                assert read.applied == (read.level == "linearizable")
                seen["answered"] += 1
            else:
                assert isinstance(fault, OncegateError)
                seen[read.judge_refusal(fault)] += 1
    assert min(seen[what] for what in ("answered", "level", "commit", "lead", "fault")) > 3
