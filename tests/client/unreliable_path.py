"""A path to a fake node on which requests come late and answers are lost, as a seed says."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import msgspec
from aiohttp import web

from oncegate.testing import FakeGateway
from tests.client.answers import OPERATIONS, Answer


class UnreliablePath:
    """Stands before the first node of a gateway until :meth:`heal`."""

    def __init__(self, fake: FakeGateway, seed: int) -> None:
        self._node, self._dice = fake.nodes[0], random.Random(seed)
        self.lost = self.late = 0
        self._node.before, self._node.after = self._before, self._after

    async def _before(self, request: web.Request) -> Answer:
        if request.path == OPERATIONS and self._dice.random() < 0.3:
            self.late += 1
            for _ in range(self._dice.choice((1, 10, 100))):
                await asyncio.sleep(0)
        return None

    async def _after(self, request: web.Request) -> None:
        if request.path == OPERATIONS and self._dice.random() < 0.2:
            self.lost += 1
            assert request.transport is not None
            request.transport.abort()

    def heal(self) -> None:
        """Deliver everything from now on."""
        self._node.before = self._node.after = None


class Held:
    """Holds back each request that has an operation of a kind, until it is let go: copies, too."""

    def __init__(self, fake: FakeGateway, matches: Callable[[dict[str, Any]], bool], *, applied: bool) -> None:
        """``applied``: it is applied at once, and only its answer is held back."""
        self._node, self._matches, self._applied = fake.nodes[0], matches, applied
        self._free = asyncio.Event()
        self.count = 0
        self._node.before = self._before

    async def _before(self, request: web.Request) -> Answer:
        if request.path != OPERATIONS:
            return None
        body = msgspec.msgpack.decode(await request.read())
        if not any(self._matches(operation) for operation in body["operations"]):
            return None
        self.count += 1
        answer = await self._node.serve(request) if self._applied else None
        await self._free.wait()
        return answer

    async def holds(self, count: int = 1) -> None:
        """Wait until it holds so many."""
        async with asyncio.timeout(20):
            while self.count < count:
                await asyncio.sleep(0)

    def let_go(self) -> None:
        """Let what was held go on, and what comes pass."""
        self._free.set()
