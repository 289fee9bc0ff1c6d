"""Group commit, whatever becomes of its entries: what waits, waits for an entry that is under way, for nothing else.

Entries end applied, lost with the lead, never appended, or cancelled; the node loses the lead and gets it again.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest

from oncegate.consensus import errors as ce
from oncegate.consensus.ports import Role, RoleChange
from oncegate.gateway.http.server import running
from oncegate.gateway.machine import commands as c
from oncegate.gateway.machine import ordering
from oncegate.gateway.node.node import Node
from oncegate.gateway.node.settings import Settings
from oncegate.rifl.errors import OncegateError
from tests.gateway.http_contract import founded
from tests.gateway.test_node_proposals import Log, _put, _settle, _turns

FAULTS = (
    None,
    None,
    None,
    ce.LeadershipLost("lost"),
    ce.NotLeader(None),
    ce.Stopped("stopped"),
    asyncio.CancelledError(),
    RuntimeError("a bug"),
)


@pytest.fixture
async def node(files: Settings) -> AsyncIterator[Node]:
    """A node that leads and orders nothing of its own."""
    async with running(files) as started:
        await founded(started)
        await started.submit(c.DeclareTable("rows", "resident", 2**30), 64)
        await started.submit(c.OpenSession("n", 60_000, 512), 64)
        started._housekeep_in(3_600_000)
        await _turns()
        yield started


class Tried:
    """A random walk, and what the entries and futures say about who waits for what."""

    def __init__(self, node: Node, log: Log, seed: int) -> None:
        self.node, self.log, self.dice = node, log, random.Random(seed)
        self.futures: dict[int, asyncio.Future[Any]] = {}
        self.leads = True

    def under_way(self) -> list[int]:
        """Return which entries have not come to their end, by their place."""
        with_commands = [held for firsts, held in self.log.entries if firsts]
        return [at for at, held in enumerate(with_commands) if not held.done()]

    def unproposed(self) -> set[int]:
        """Return the commands that no entry which may still be applied has, and that nobody was told about."""
        open_ones = {first for firsts, held in self.log.entries if not held.done() for first in firsts}
        return {number for number, future in self.futures.items() if not future.done()} - open_ones

    def step(self) -> None:
        what = self.dice.choice(("submit", "submit", "submit", "end", "end", "lead"))
        if what == "submit":
            number = len(self.futures) + 1
            size = self.dice.choice((64, 64, 64, ordering.SMALL_BYTES))
            self.futures[number] = self.node.submit(_put(number, 1, b"1"), size)
        elif what == "end" and (places := self.under_way()):
            self.end(self.dice.choice(places), self.dice.choice(FAULTS))
        elif what == "lead":
            self.leads = not self.leads
            self.tell_role()

    def end(self, at: int, fault: BaseException | None) -> None:
        if isinstance(fault, asyncio.CancelledError):
            [held for firsts, held in self.log.entries if firsts][at].cancel()
        else:
            self.log.end(at, fault)  # type: ignore[arg-type]

    def tell_role(self) -> None:
        role, leader = (Role.LEADER, "n1") if self.leads else (Role.CANDIDATE, None)
        term = self.node.replica.status().term
        self.node._role(RoleChange(role=role, leader_id=leader, term=term, ready=self.leads))

    def check(self) -> None:
        waiting = self.unproposed()
        if self.leads and waiting:
            assert self.under_way(), f"{sorted(waiting)} wait, and nothing is under way"
        in_flight = sum(not future.done() for future in self.futures.values())
        assert self.node.proposer.inflight_commands == in_flight


@pytest.mark.parametrize("seed", range(8))
async def test_nothing_waits_for_an_entry_that_has_come_to_its_end(
    node: Node, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    tried = Tried(node, Log(node, monkeypatch), seed)
    for _ in range(60):
        tried.step()
        await _turns()
        tried.check()
    tried.leads = True
    tried.tell_role()
    await _turns()
    while places := tried.under_way():
        tried.end(places[0], None)
        await _turns()
        tried.check()
    ends = await _settle(*tried.futures.values())
    assert all(not isinstance(end, BaseException) or isinstance(end, OncegateError) for end in ends)
    assert node.proposer.inflight_commands == node.proposer.inflight_bytes == 0
